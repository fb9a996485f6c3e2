"""Fully connected nets, the usual choice for MNIST."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from .layers import glorot


class MLP(nn.Module):
    """Flattens its input and passes it through hidden layers with ReLU. The features are the last hidden layer.

    `hidden=(100, 100)` with 10 classes is the 784-100-100-10 net of the Split MNIST numbers.
    """

    def __init__(
        self, in_shape: tuple[int, ...], *, generator: torch.Generator, hidden: Sequence[int] = (100, 100)
    ) -> None:
        super().__init__()
        if not in_shape or min(in_shape) < 1:
            raise ValueError(f"in_shape={in_shape!r}: must be one or more positive numbers")
        if not hidden or min(hidden) < 1:
            raise ValueError(f"hidden={hidden!r}: must be one or more positive layer widths")
        widths = [prod(in_shape), *hidden]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [glorot(inputs, outputs, generator=generator), nn.ReLU(inplace=True)]
        self.layers = nn.Sequential(*layers)
        self.feature_dim = widths[-1]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x.flatten(1))
        return out
