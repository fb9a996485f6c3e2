"""Residual nets (He et al., 2016) in the three forms continual learning uses.

Images of 32 or 64 pixels need the *CIFAR stem*: one 3x3 convolution, no pooling. The *ImageNet stem* (7x7, stride 2,
then pooling) leaves an image of 32 pixels only 8x8 before the first block and 1x1 after the last; it is refused below
64 pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import conv, image_shape

Stem = Literal["cifar", "imagenet"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut.

    Where the block changes the shape, the shortcut either is a 1x1 convolution (`project`, the paper's option B), or
    drops every second pixel and pads the new channels with zeros (option A, no parameters: what the paper's CIFAR nets
    use).
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int, project: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.conv1 = conv(inputs, outputs, 3, stride=stride, generator=generator)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv(outputs, outputs, 3, generator=generator)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.pad = outputs - inputs
        self.shortcut: nn.Module | None = None
        if project and (stride != 1 or self.pad):
            self.shortcut = nn.Sequential(
                conv(inputs, outputs, 1, stride=stride, generator=generator), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.conv1(x)), inplace=True)
        out = self.norm2(self.conv2(out))
        return F.relu(out + self._shortcut(x), inplace=True)

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.shortcut is not None:
            out: Tensor = self.shortcut(x)
            return out
        if self.stride != 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if self.pad:
            x = F.pad(x, (0, 0, 0, 0, self.pad // 2, self.pad - self.pad // 2))
        return x


class ResNet(nn.Module):
    """A stem, then stages of basic blocks; each stage after the first halves the image and doubles the channels."""

    def __init__(
        self,
        in_shape: tuple[int, ...],
        *,
        stages: Sequence[int],
        width: int,
        stem: Stem,
        project: bool,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width={width}: must be at least 1")
        if stem == "cifar":
            channels, _, _ = image_shape(in_shape)
            first: list[nn.Module] = [conv(channels, width, 3, generator=generator)]
        elif stem == "imagenet":
            channels, _, _ = image_shape(in_shape, smallest=64, why=" for the ImageNet stem; use stem='cifar'")
            first = [conv(channels, width, 7, stride=2, generator=generator)]
        else:
            raise ValueError(f"stem={stem!r}: must be 'cifar' or 'imagenet'")
        first += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
        if stem == "imagenet":
            first.append(nn.MaxPool2d(3, stride=2, padding=1))
        self.stem = nn.Sequential(*first)
        blocks: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(stages):
            outputs = width * 2**stage
            for block in range(depth):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(BasicBlock(inputs, outputs, stride=stride, project=project, generator=generator))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.feature_dim = inputs

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(self.stem(x))
        return out.mean(dim=(2, 3))


def resnet32(in_shape: tuple[int, ...], *, generator: torch.Generator) -> ResNet:
    """ResNet-32 for CIFAR: three stages of five blocks, 16-32-64 channels, shortcuts without parameters."""
    return ResNet(in_shape, stages=(5, 5, 5), width=16, stem="cifar", project=False, generator=generator)


def resnet18(in_shape: tuple[int, ...], *, generator: torch.Generator, stem: Stem = "cifar", width: int = 64) -> ResNet:
    """ResNet-18: four stages of two blocks, `width` channels in the first; 8 x `width` features."""
    return ResNet(in_shape, stages=(2, 2, 2, 2), width=width, stem=stem, project=True, generator=generator)
