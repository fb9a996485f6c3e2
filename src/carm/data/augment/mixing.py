"""CutMix (Yun et al., 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from carm.data.augment.images import below, chance, image_batch


class Mixed(NamedTuple):
    """The targets of a mixed batch: `lam` of each image shows `y_a`, the rest `y_b`."""

    y_a: Tensor
    y_b: Tensor
    lam: float

    @classmethod
    def not_mixed(cls, y: Tensor) -> Mixed:
        """The targets of images that show one thing."""
        return cls(y, y, 1.0)

    def loss(self, logits: Tensor, criterion: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy) -> Tensor:
        """The criterion for both targets, weighted by their shares of the image."""
        if self.lam == 1:
            return criterion(logits, self.y_a)
        return self.lam * criterion(logits, self.y_a) + (1 - self.lam) * criterion(logits, self.y_b)


def cutmix(
    x: Tensor, y: Tensor, *, generator: torch.Generator, alpha: float = 1.0, p: float = 1.0
) -> tuple[Tensor, Mixed]:
    """CutMix (Yun et al., 2019): one box of each image is replaced by the same box of another image of the batch.

    The box has a random place and, before the image's edge clips it, the area 1 - Beta(alpha, alpha). `lam` is what is
    left: the exact share of pixels that still show `y_a`. With probability 1 - `p` the batch stays as it is. Works on
    normalised images too.
    """
    x = image_batch(x)
    if len(y) != len(x):
        raise ValueError(f"y: {len(y)} labels for {len(x)} images")
    if not alpha > 0:
        raise ValueError(f"alpha={alpha}: must be above 0")
    chance("p", p)
    # Torch's Beta takes no generator, so a numpy generator draws it, seeded by a draw from ours.
    rng = np.random.default_rng(int(below(2**62, 1, generator, torch.device("cpu"))))
    other = torch.randperm(len(x), generator=generator, device=generator.device).to(x.device)
    if rng.random() >= p:
        return x, Mixed.not_mixed(y)
    h, w = x.shape[2:]
    side = math.sqrt(1 - rng.beta(alpha, alpha))
    v, u = int(rng.integers(h)), int(rng.integers(w))
    top, bottom = _clipped(v, int(h * side), h)
    left, right = _clipped(u, int(w * side), w)
    mixed = x.clone()
    mixed[:, :, top:bottom, left:right] = x[:, :, top:bottom, left:right].index_select(0, other)
    lam = 1 - (bottom - top) * (right - left) / (h * w)
    return mixed, Mixed(y, y[other.to(y.device)], lam)


def _clipped(centre: int, length: int, limit: int) -> tuple[int, int]:
    """Start and end of a stretch, without what lies outside 0 to `limit`."""
    start = centre - length // 2
    return max(start, 0), min(start + length, limit)
