"""DenseNet-BC (Huang et al., 2017) for small images: each layer sees the outputs of all before it in its block."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import conv, image_shape


class DenseLayer(nn.Module):
    """Adds `growth` channels to its input. The 1x1 *bottleneck* (the B in BC) keeps the 3x3 convolution narrow."""

    def __init__(self, inputs: int, growth: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, 4 * growth, 1, generator=generator)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = conv(4 * growth, growth, 3, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.norm1(x), inplace=True))
        out = self.conv2(F.relu(self.norm2(out), inplace=True))
        return torch.cat([x, out], dim=1)


class Transition(nn.Module):
    """Between blocks: fewer channels (the *compression*, the C in BC) and half the image size."""

    def __init__(self, inputs: int, outputs: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(inputs)
        self.conv = conv(inputs, outputs, 1, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv(F.relu(self.norm(x), inplace=True))
        return F.avg_pool2d(out, 2)


class DenseNet(nn.Module):
    """Three dense blocks, a transition between each two. `depth` counts convolutions and head, as the paper does."""

    def __init__(
        self, in_shape: tuple[int, ...], *, depth: int, growth: int, compression: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        channels, _, _ = image_shape(in_shape, smallest=4, why=", because the image is halved twice")
        layers, rest = divmod(depth - 4, 6)
        if layers < 1 or rest:
            raise ValueError(
                f"depth={depth}: must be 6 n + 4 (10, 16, ..., 100): three blocks of n layers, two convolutions each"
            )
        if growth < 1:
            raise ValueError(f"growth={growth}: must be at least 1")
        if not 0 < compression <= 1:
            raise ValueError(f"compression={compression}: must be above 0 and at most 1")
        width = 2 * growth
        parts: list[nn.Module] = [conv(channels, width, 3, generator=generator)]
        for block in range(3):
            if block:
                narrow = int(width * compression)
                parts.append(Transition(width, narrow, generator=generator))
                width = narrow
            for _ in range(layers):
                parts.append(DenseLayer(width, growth, generator=generator))
                width += growth
        parts += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        self.parts = nn.Sequential(*parts)
        self.feature_dim = width

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.parts(x)
        return out.mean(dim=(2, 3))


def densenet100(
    in_shape: tuple[int, ...], *, generator: torch.Generator, growth: int = 12, compression: float = 0.5
) -> DenseNet:
    """DenseNet-100-BC: 342 features with the published growth of 12 and compression of 0.5."""
    return DenseNet(in_shape, depth=100, growth=growth, compression=compression, generator=generator)
