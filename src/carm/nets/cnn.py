"""A compact CNN for machines without a GPU: a run over all tasks of a small benchmark takes minutes, not days."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import conv, image_shape


class CNN(nn.Module):
    """Four 3x3 convolutions, `width` channels doubling at each; the image is halved after the first three.

    Pooling comes straight after the convolution, so that batch norm and ReLU see a quarter of the pixels: at these
    sizes they cost as much as the convolution. The result is the same as pooling after the ReLU, as long as the norm's
    scale is positive. Any image from 8 pixels up will do (8x8 digits, 28x28 MNIST, 32x32 CIFAR); a 2x2 grid of averages
    keeps a coarse sense of place and makes the 32 x `width` features independent of the image size.
    """

    def __init__(self, in_shape: tuple[int, ...], *, generator: torch.Generator, width: int = 16) -> None:
        super().__init__()
        channels, _, _ = image_shape(in_shape, smallest=8, why=", because the image is halved three times")
        if width < 1:
            raise ValueError(f"width={width}: must be at least 1")
        layers: list[nn.Module] = []
        inputs = channels
        for step in range(4):
            outputs = width * 2**step
            layers.append(conv(inputs, outputs, 3, generator=generator))
            if step < 3:
                layers.append(nn.MaxPool2d(2))
            layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
            inputs = outputs
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.feature_dim = 4 * inputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out
