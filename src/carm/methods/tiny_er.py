"""TinyER (Chaudhry et al., 2019): one pass over the stream, a few old samples beside every few new ones.

Every step learns from 10 new samples and as many old ones, and then offers the new ones to a reservoir. The task of a
sample is known, in training and in testing, so the cross-entropy is over the classes of its task.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from carm.data.stream import Task
from carm.methods.base import Method
from carm.methods.losses import within_task


class TinyER(Method):
    """masked: the loss is over the classes of each sample's task (the paper); otherwise over all classes."""

    name = "tiny-er"
    level = "batch"

    def __init__(self, *, masked: bool = True) -> None:
        self.masked = masked

    def enter(self, task: Task) -> None:
        super().enter(task)
        self.mates = self.classmates()

    def loss(self, logits: Tensor, y: Tensor, x: Tensor) -> Tensor:
        if not self.masked:
            return F.cross_entropy(logits, y)
        return within_task(logits[:, : self.seen], y, self.mates)
