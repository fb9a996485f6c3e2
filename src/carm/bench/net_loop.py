"""A training run with a clock around every part of a step: ER with its memory, its data and its augmentation, put
together as `carm run` does.
"""

from __future__ import annotations

import copy
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from carm import nets
from carm.data import Stream
from carm.data.augment import recipe
from carm.data.views import Views
from carm.lab.config import Config
from carm.lab.parts import make_memory, net_maker
from carm.memory.batch import Batch
from carm.methods.er import ER

FORWARD, BACKWARD = "forward and loss", "backward and optimizer"
AUGMENTATION, READING, FEEDBACK = "augmentation", "reading from memory", "feedback and gate"


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
        logits: Tensor = self.clock.timed(FORWARD, super().forward, x)
        return logits

    def loss(self, logits: Tensor, y: Tensor, x: Tensor) -> Tensor:
        loss: Tensor = self.clock.timed(FORWARD, super().loss, logits, y, x)
        return loss

    def descend(self, loss: Tensor) -> None:
        self.clock.timed(BACKWARD, super().descend, loss)

    def feedback(self, batch: Batch, logits: Tensor) -> None:
        self.clock.timed(FEEDBACK, super().feedback, batch, logits)


class TimedViews(Views):
    """Views with a clock around augmentation and normalisation."""

    clock: Clock

    def train(self, x: Any) -> Tensor:
        views: Tensor = self.clock.timed(AUGMENTATION, super().train, x)
        return views


class Loop:
    """A run in the middle of it: the memory is full, a task is being learned."""

    def __init__(self, config: Config, stream: Stream, directory: Path, tasks: int) -> None:
        self.clock = Clock()
        samples = recipe(config.data)
        self.method = method = TimedER(self.clock)
        views = TimedViews(samples, seed=config.seed, channels_last=nets.channels_last(config.net))
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
            yield from self.method.batches(number)
            number = (number + 1) % self.method.training.passes

    def step(self) -> dict[str, float]:
        """One step; returns the seconds of its parts, and of the whole. The smaller last batch of a pass is left out,
        with the time it took to read it.
        """
        size = 0
        while size != self.method.training.batch:
            self.clock.spent.clear()
            begun = time.perf_counter()
            batch = self.clock.timed(READING, next, self._batches)
            size = len(batch.y)
        self.method.learn(batch)
        whole = time.perf_counter() - begun
        return dict(self.clock.spent) | {"whole": whole}

    def alone(self) -> Alone:
        """The net by itself, on a mini-batch of the same size."""
        batch = next(self._batches)  # the first of a pass, so a whole one
        return Alone(self.method, self.method.views.train(batch.x))


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
