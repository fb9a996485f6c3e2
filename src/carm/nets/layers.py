"""Layers whose weights come from an explicit generator.

The constructors in `torch.nn` draw their first weights from the global generator. A net built that way depends on
whatever ran before it, and changes whatever runs after it. The layers here leave that draw out and are filled from the
generator they are given.
"""

from __future__ import annotations

import torch
from torch import nn


class _Conv2d(nn.Conv2d):
    def reset_parameters(self) -> None:
        """Draw nothing: `conv` fills the weights."""


class _Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Draw nothing: `linear` fills the weights."""


def conv(inputs: int, outputs: int, kernel: int, *, stride: int = 1, generator: torch.Generator) -> nn.Conv2d:
    """A convolution without bias (a batch norm follows, and would cancel it) that keeps the image size at stride 1.

    He initialisation over the incoming connections keeps the size of the signal even from layer to layer. With
    connections counted on the other side, a DenseNet in evaluation mode, whose layers have far more inputs than
    outputs, would start with logits of tens of thousands.
    """
    layer = _Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_in", nonlinearity="relu", generator=generator)
    return layer


def linear(inputs: int, outputs: int, *, generator: torch.Generator) -> nn.Linear:
    """A fully connected layer, drawn like torch's default: weights and bias uniform within ±1/sqrt(inputs).

    The range does not depend on `outputs`, so the rows of a head that grows step by step start out like those of a
    whole one.
    """
    layer = _Linear(inputs, outputs)
    bound = inputs**-0.5
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
    return layer


def glorot(inputs: int, outputs: int, *, generator: torch.Generator) -> nn.Linear:
    """A fully connected layer with Glorot weights and no initial bias, as published MNIST baselines start theirs."""
    layer = _Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def image_shape(in_shape: tuple[int, ...], *, smallest: int = 1, why: str = "") -> tuple[int, int, int]:
    """`in_shape` as (channels, height, width), or a ValueError that says what an image net can take."""
    if len(in_shape) != 3 or min(in_shape) < 1:
        raise ValueError(f"in_shape={in_shape!r}: an image net needs three positive numbers (channels, height, width)")
    channels, height, width = in_shape
    if min(height, width) < smallest:
        raise ValueError(f"in_shape={in_shape!r}: height and width must be at least {smallest}{why}")
    return channels, height, width
