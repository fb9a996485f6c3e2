"""How long a run takes here: a few steps are timed, and multiplied by the steps of the run.

An estimate, good to a factor of two or so: tests and storage are not timed. CPU time of one thread is measured, which
does not depend on what else the machine does, and large steps are taken to gain from more threads.
"""

from __future__ import annotations

import math
import os
import time
from typing import Any

import torch
import torch.nn.functional as F

from carm import nets
from carm.lab.config import Config
from carm.nets.threads import torch_threads

# classes, training samples per class, and input as the nets see it
SHAPES: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "digits": (10, 140, (1, 8, 8)),
    "mnist": (10, 6000, (1, 28, 28)),
    "fashion-mnist": (10, 6000, (1, 28, 28)),
    "cifar-10": (10, 5000, (3, 32, 32)),
    "cifar-100": (100, 500, (3, 32, 32)),
    "tiny-imagenet": (200, 500, (3, 64, 64)),
    "mini-imagenet": (100, 500, (3, 84, 84)),
    "imagenet-100": (100, 1300, (3, 224, 224)),
    "imagenet-1000": (1000, 1281, (3, 224, 224)),
}
_START = 1.0  # seconds that a run takes besides its steps
_LONGEST = 0.5  # seconds that one timing may take, or two steps
_BESIDES = 5e-4  # seconds of a step for augmentation, drawing and the gate


def steps(config: Config) -> tuple[float, int]:
    """Mini-batches of a run, and the samples in each."""
    classes, each, _ = SHAPES[config.data]
    each = min(config.per_class or each, each)
    new = classes * each / config.tasks
    total = 0.0
    for task in range(config.tasks):
        old = min(config.em, task * new)
        if config.method in ("gdumb", "rm"):
            memory = min(config.em, (task + 1) * new)
            extra = new / config.batch * (1 + 0.3 * config.options.get("copies", 12)) if config.method == "rm" else 0
            total += config.passes * math.ceil(memory / config.batch) + extra
        elif config.old_batch:
            total += config.passes * new / config.batch
        else:
            total += config.passes * (old + new) / config.batch
    draws = 2 if config.method == "der++" else 1
    return total, config.batch + draws * (config.old_batch or (config.batch if config.method == "der++" else 0))


class Estimator:
    """Times every distinct (net, input, batch) once. `threads` of each run; 0: the cores, divided among `jobs`."""

    def __init__(self, *, jobs: int = 1, threads: int = 0) -> None:
        self.threads = threads or max(1, (os.cpu_count() or 1) // jobs)
        self._seconds: dict[tuple[Any, ...], float] = {}

    def seconds(self, config: Config) -> float:
        count, batch = steps(config)
        teacher = 1.3 if config.method in ("icarl", "bic") else 1.0  # a second net, forwards only
        return _START + count * self.step(config, batch) * teacher

    def step(self, config: Config, batch: int) -> float:
        """One step forward and back. Large nets are timed with few samples, and scaled up."""
        classes, _, shape = SHAPES[config.data]
        few = batch if config.net.startswith(("mlp", "cnn")) else min(batch, 4)
        side = min(shape[-1], 64)  # of photographs a part: the work grows with the area
        key = (config.net, config.width, shape[0], side, few)
        if key not in self._seconds:
            self._seconds[key] = self._time(config, (shape[0], side, side), few, classes)
        alone = self._seconds[key] * batch / few * (shape[-1] / side) ** 2
        return alone / (self.threads**0.7 if alone > 0.01 else 1.0) + _BESIDES

    def _time(self, config: Config, shape: tuple[int, ...], batch: int, classes: int) -> float:
        with torch_threads(1):
            options: dict[str, Any] = {"width": config.width} if config.width else {}
            net = nets.build(config.net, in_shape=shape, classes=classes, head="fixed", seed=0, **options)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
            x, y = torch.zeros(batch, *shape), torch.arange(batch) % classes
            taken: list[float] = []
            while len(taken) < 2 or (len(taken) < 8 and sum(taken) < _LONGEST):
                begun = time.process_time()
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                taken.append(time.process_time() - begun)
            return min(taken)
