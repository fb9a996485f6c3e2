"""The losses that several methods share, each as in its paper."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from carm.nets.head import closed


def one_hot(y: Tensor, columns: int) -> Tensor:
    return F.one_hot(y, columns).to(torch.float32)


def binary(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of every output on its own, averaged over samples and outputs."""
    return F.binary_cross_entropy_with_logits(logits, targets)


def soft(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Cross-entropy between the softmax of the teacher's outputs and ours, both at a temperature."""
    q = F.softmax(teacher / temperature, 1)
    return -(q * F.log_softmax(logits / temperature, 1)).sum(1).mean()


def within_task(logits: Tensor, y: Tensor, mates: Tensor) -> Tensor:
    """Cross-entropy over the classes of each sample's own task; `mates` (classes, classes) as of `task_mates`."""
    return F.cross_entropy(closed(logits, mates[y][:, : logits.shape[1]]), y)
