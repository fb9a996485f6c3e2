"""Where the time of a training run goes: ER with its memory, its data and its augmentation, as `carm run` puts them
together, with a clock around every part.

The share of forward, backward and optimizer says what is left to gain around the net. The clocks cannot tell what the
swaps in the background take from the net's own cores; therefore the net's step is also timed alone, in turns with the
whole loop.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from carm.bench.net_sizes import Setting
from carm.bench.report import Row, Target, compare
from carm.data import Stream, load, split_by_class
from carm.data.augment import recipe
from carm.data.views import Views
from carm.lab.config import Config
from carm.lab.presets import preset
from carm.lab.run import make_memory, net_maker
from carm.memory.batch import Batch
from carm.methods.er import ER

SHARE = Target(">=", 0.9)
_BLOCK = 4  # steps of the whole loop, then as many of the net alone
_NET = ("forward and loss", "backward and optimizer")
_AROUND = ("augmentation", "reading from memory", "feedback and gate")


@dataclass(frozen=True)
class Case:
    """One loop: the net, the settings, and whether its share is judged."""

    net: str
    config: Config
    shape: tuple[int, int, int]
    target: Target | None = None


def _cases() -> dict[str, Case]:
    carm_100: dict[str, Any] = {"swap": "async", "ratio": 1.0}
    paper = preset("er", "cifar-100", "full").replace(**carm_100)
    small = preset("er", "cifar-100", "laptop").replace(**carm_100)
    digits = preset("er", "mnist", "laptop").replace(**carm_100)
    return {
        "resnet32": Case("resnet32", paper, (3, 32, 32), SHARE),
        "cnn": Case("cnn", small, (3, 32, 32)),
        "mlp": Case("mlp", digits, (1, 28, 28)),
    }


# -- clocks ------------------------------------------------------------------------------------------------------------


class Clock:
    """Seconds of the present step, by part."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)

    def timed(self, part: str, function: Any, *arguments: Any) -> Any:
        begun = time.perf_counter()
        result = function(*arguments)
        self.spent[part] += time.perf_counter() - begun
        return result


class TimedER(ER):
    """ER with a clock around each part of `learn`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.clock.timed(_NET[0], super().forward, x)
        return logits

    def loss(self, logits: Tensor, y: Tensor, x: Tensor) -> Tensor:
        loss: Tensor = self.clock.timed(_NET[0], super().loss, logits, y, x)
        return loss

    def descend(self, loss: Tensor) -> None:
        self.clock.timed(_NET[1], super().descend, loss)

    def feedback(self, batch: Batch, logits: Tensor) -> None:
        self.clock.timed(_AROUND[2], super().feedback, batch, logits)


class TimedViews(Views):
    """Views with a clock around augmentation and normalisation."""

    clock: Clock

    def train(self, x: Any) -> Tensor:
        views: Tensor = self.clock.timed(_AROUND[0], super().train, x)
        return views


# -- the loop ----------------------------------------------------------------------------------------------------------


def make_stream(case: Case, data: Path | None) -> tuple[Stream, str]:
    """The case's data as a stream, and what must be said about it."""
    config = case.config
    try:
        source, note = load(config.data, data), ""
    except FileNotFoundError:
        classes = 100 if config.data == "cifar-100" else 10
        each = config.per_class or 500
        source = load("synthetic", classes=classes, samples=each, test_samples=1, shape=case.shape)
        note = f"{config.data} was not found: made-up images of the same size and number take its place"
    stream = split_by_class(
        source, tasks=config.tasks, order="natural", samples_per_class=config.per_class or None, seed=config.seed
    )
    return stream, note


class Loop:
    """A run in the middle of it: the memory is full, a task is being learned."""

    def __init__(self, case: Case, stream: Stream, directory: Path, tasks: int) -> None:
        config = case.config
        self.clock = Clock()
        samples = recipe(config.data)
        self.method = method = TimedER(self.clock)
        views = TimedViews(samples, seed=config.seed, channels_last=not case.net.startswith("mlp"))
        views.clock = self.clock
        self.memory = make_memory(config, method, directory)
        method.start(
            memory=self.memory,
            make_net=net_maker(config, method, stream.source, samples),
            views=views,
            training=config.training,
            seed=config.seed,
        )
        for number in range(tasks):  # without training, which does not change what the memory does
            method.begin(stream[number])
            method.end()
        method.begin(stream[tasks])
        self._batches = self._endless()

    def _endless(self) -> Iterator[Batch]:
        number = 0
        while True:
            for batch in self.method.batches(number):
                if len(batch.y) == self.method.training.batch:  # the last of a pass is smaller
                    yield batch
            number = (number + 1) % self.method.training.passes

    def step(self) -> dict[str, float]:
        """One step; returns the seconds of its parts, and of the whole."""
        self.clock.spent.clear()
        begun = time.perf_counter()
        batch = self.clock.timed(_AROUND[1], next, self._batches)
        self.method.learn(batch)
        whole = time.perf_counter() - begun
        return dict(self.clock.spent) | {"whole": whole}

    def alone(self) -> Alone:
        return Alone(self.method, self.method.views.train(next(self._batches).x))


class Alone:
    """The same net on one batch that is there already, with nothing around it."""

    def __init__(self, method: ER, x: Tensor) -> None:
        self.criterion, self.x = method.loss, x
        self.y = torch.arange(len(x)) % method.seen
        self.net = copy.deepcopy(method.net)
        self.optimizer = method.training.optimizer(self.net.parameters())
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0  # the same batch again and again would be learned by heart

    def step(self) -> float:
        begun = time.perf_counter()
        loss = self.criterion(self.net(self.x), self.y, self.x)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return time.perf_counter() - begun


def _measure(loop: Loop, steps: int, warm_up: int) -> dict[str, list[float]]:
    """Seconds of every part in every step, and of the net alone."""
    alone = loop.alone()
    for _ in range(warm_up):
        loop.step()
        alone.step()
    out: dict[str, list[float]] = defaultdict(list)
    swapped = loop.memory.stats()["swapped"]
    for at in range(0, steps, _BLOCK):
        count = min(_BLOCK, steps - at)
        for _ in range(count):
            parts = loop.step()
            net = sum(parts[name] for name in _NET)
            around = {name: parts.get(name, 0.0) for name in _AROUND}
            other = parts["whole"] - net - sum(around.values())
            for name, seconds in {"net": net, "whole": parts["whole"], "other": other, **around}.items():
                out[name].append(seconds)
        loop.memory.flush()  # swaps still under way would slow down the other side
        out["alone"] += [alone.step() for _ in range(count)]
    out["swaps"] = [(loop.memory.stats()["swapped"] - swapped) / steps]
    return out


def profile(setting: Setting) -> list[Row]:
    """`profile`: the share of a training step that is spent in the net, and where the rest goes."""
    rows = []
    for name, steps in setting.sizes.steps:
        case = _cases()[name]
        if name.startswith("mlp"):
            torch.set_num_threads(1)  # as `carm run` has it
        stream, note = make_stream(case, setting.data)
        loop = Loop(case, stream, setting.directory / f"profile-{name}", min(setting.sizes.tasks, len(stream) - 1))
        with loop.memory:
            measured = _measure(loop, steps, setting.sizes.warm_up)
        how = f"{name}, {case.config.data}, batches of {case.config.batch}"
        rows.append(
            compare(
                "profile",
                f"{how}: forward, backward, optimizer",
                measured["net"],
                measured["whole"],
                of="cost",
                unit="ms",
                against="the whole step",
                target=case.target,
                note=note,
            )
        )
        for part in (*_AROUND, "other"):
            rows.append(
                compare(
                    "profile",
                    f"{name}: {part}",
                    measured[part],
                    measured["whole"],
                    of="cost",
                    unit="ms",
                    against="the whole step",
                )
            )
        rows.append(
            compare(
                "profile",
                f"{name}: the net alone, {np.mean(measured['swaps']):.0f} swaps a step",
                measured["alone"],
                measured["whole"],
                of="cost",
                unit="ms",
                against="the whole step",
            )
        )
    return rows
