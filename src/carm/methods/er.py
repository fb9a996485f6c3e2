"""ER, experience replay (Ratcliff, 1990): train on the old samples together with the new ones.

Nothing is changed in the model. The bundle is the stream buffer and the memory, shuffled; the loss is iCaRL's binary
cross-entropy over the classes seen; the memory is a ring buffer that gives every class the same share.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from carm.memory.select import Reservoir, Ring, Selection
from carm.methods.base import Method
from carm.methods.losses import binary, one_hot


class ER(Method):
    """loss: binary cross-entropy (the paper) or cross-entropy. keep: ring buffer (the paper) or reservoir."""

    name = "er"

    def __init__(self, *, loss: Literal["bce", "ce"] = "bce", keep: Literal["ring", "reservoir"] = "ring") -> None:
        self.criterion, self.keep = loss, keep

    def selection(self) -> Selection:
        return Ring() if self.keep == "ring" else Reservoir()

    def loss(self, logits: Tensor, y: Tensor, x: Tensor) -> Tensor:
        if self.criterion == "ce":
            return F.cross_entropy(logits, y)
        return binary(logits[:, : self.seen], one_hot(y, self.seen))
