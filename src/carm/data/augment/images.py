"""Images as batches, and what is drawn for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Images: TypeAlias = Tensor | NDArray[Any] | Sequence[Tensor] | Sequence[NDArray[Any]]


def tensor(x: Tensor | NDArray[Any]) -> Tensor:
    if isinstance(x, Tensor):
        return x
    return torch.from_numpy(x if x.flags.writeable else x.copy())  # torch warns about read-only memory


def images_of(x: Images) -> list[Tensor]:
    """Each image as (c, h, w)."""
    images = [tensor(image) for image in x]
    if not images:
        raise ValueError("x: no images")
    for image in images:
        if image.ndim != 3:
            raise ValueError(f"x: an image of shape {tuple(image.shape)}; must be (channels, height, width)")
    return images


def batch(x: Images) -> Tensor:
    """The images as one tensor (n, ...); a ValueError if they differ in size."""
    if isinstance(x, Tensor | np.ndarray):
        return tensor(x)
    images = [tensor(image) for image in x]
    shapes = {tuple(image.shape) for image in images}
    if not shapes:
        raise ValueError("x: an empty list has no image shape; give an empty tensor (0, channels, height, width)")
    if len(shapes) != 1:
        raise ValueError(
            f"x: images of shapes {sorted(shapes)}; must be one shape, use random_resized_crop or resize first"
        )
    return torch.stack(images)


def image_batch(x: Images) -> Tensor:
    out = batch(x)
    if out.ndim != 4:
        raise ValueError(f"x: shape {tuple(out.shape)}; must be (n, channels, height, width)")
    return out


def uniform(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """`count` uniform numbers from 0 to 1, drawn where the generator lives, for use where the images live."""
    return torch.rand(count, generator=generator, device=generator.device).to(device)


def below(limit: int, count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """`count` uniform integers below `limit`."""
    return torch.randint(limit, (count,), generator=generator, device=generator.device).to(device)


def chance(name: str, p: float) -> float:
    if not 0 <= p <= 1:
        raise ValueError(f"{name}={p}: must be from 0 to 1")
    return p


def to_float(x: Tensor) -> Tensor:
    """Images from 0 to 1, a copy."""
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x.clone()


def back_to(out: Tensor, x: Tensor) -> Tensor:
    """Images from 0 to 1 back in the type of `x`."""
    return out.mul(255).round_().clamp_(0, 255).to(torch.uint8) if x.dtype == torch.uint8 else out.clamp(0, 1)
