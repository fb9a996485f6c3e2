"""How a method is trained: the numbers that the papers list in their tables of hyper-parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

Schedule = Literal["constant", "step", "cosine", "restarts"]
SCHEDULES: tuple[Schedule, ...] = ("constant", "step", "cosine", "restarts")
_FLOOR = 0.01  # of the learning rate, at the end of a cosine


@dataclass(frozen=True)
class Training:
    """Passes, mini-batches, and SGD.

    batch        samples per mini-batch; with `old_batch`, new samples per mini-batch
    old_batch    old samples in every mini-batch; 0: each pass goes over all old and all new samples, shuffled, or where
                 the memory takes samples in batch by batch, as many old ones as new
    schedule     constant; step: times `gamma` at each of `milestones`, which are shares of the passes; cosine: one half
                 wave down to a hundredth; restarts: half waves, each twice as long as the one before
    warmup       passes at a tenth of the learning rate, before the schedule begins
    cutmix       probability that a mini-batch is mixed, for the methods that mix
    clip         largest norm of the gradient; 0: any
    """

    passes: int = 1
    batch: int = 10
    old_batch: int = 0
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: Schedule = "constant"
    milestones: tuple[float, ...] = ()
    gamma: float = 0.1
    warmup: int = 0
    cutmix: float = 0.0
    clip: float = 0.0

    def __post_init__(self) -> None:
        for name in ("passes", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("old_batch", "lr", "momentum", "weight_decay", "warmup", "clip", "gamma"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be 0 or more")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule={self.schedule!r}: must be one of {', '.join(SCHEDULES)}")
        if any(not 0 < share < 1 for share in self.milestones):
            raise ValueError(f"milestones={self.milestones}: must be shares of the passes, between 0 and 1")
        if not 0 <= self.cutmix <= 1:
            raise ValueError(f"cutmix={self.cutmix}: must be a probability, from 0 to 1")

    def lr_at(self, number: int) -> float:
        """The learning rate in pass `number` (from 0)."""
        if number < self.warmup:
            return 0.1 * self.lr
        if self.schedule == "step":
            share = number / self.passes
            return self.lr * self.gamma ** sum(share >= m - 1e-9 for m in self.milestones)
        if self.schedule == "constant":
            return self.lr
        at, length = number - self.warmup, max(self.passes - self.warmup, 1)
        if self.schedule == "restarts":
            cycle = (at + 1).bit_length() - 1  # cycles of 1, 2, 4, ... passes
            at, length = at + 1 - (1 << cycle), 1 << cycle
        return self.lr * (_FLOOR + (1 - _FLOOR) * (1 + math.cos(math.pi * at / length)) / 2)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.SGD:
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
