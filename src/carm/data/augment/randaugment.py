"""RandAugment (Cubuk et al., 2020).

Each operation takes 8-bit images and `level`, one number for each, from -1 to 1: the share of its full strength.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from carm.data.augment.colours import blend_brightness, blend_contrast, blend_saturation, blend_sharpness
from carm.data.augment.images import Images, back_to, below, chance, image_batch, to_float, uniform


def _warp(x: Tensor, matrix: Sequence[Tensor | float]) -> Tensor:
    """Nearest-neighbour affine warp, black outside: the pixel at (u, v) comes from (a u + b v + c, d u + e v + f)."""
    n, channels, h, w = x.shape
    a, b, c, d, e, f = (torch.as_tensor(value, dtype=torch.float32, device=x.device).view(-1, 1, 1) for value in matrix)
    u = torch.arange(w, device=x.device) + 0.5
    v = torch.arange(h, device=x.device)[:, None] + 0.5
    column = (a * u + b * v + c).floor_().long().expand(n, h, w)
    row = (d * u + e * v + f).floor_().long().expand(n, h, w)
    inside = (column >= 0) & (column < w) & (row >= 0) & (row < h)
    source = torch.where(inside, row * w + column, 0).view(n, 1, h * w).expand(n, channels, h * w)
    return x.flatten(2).gather(2, source).view(x.shape) * inside[:, None]


def _rotate(x: Tensor, level: Tensor) -> Tensor:
    """Up to 30 degrees about the middle, counter-clockwise for positive levels."""
    angle = -level * math.radians(30)
    cos, sin = angle.cos(), angle.sin()
    u, v = x.shape[3] / 2, x.shape[2] / 2
    return _warp(x, (cos, sin, u - cos * u - sin * v, -sin, cos, v + sin * u - cos * v))


def _shear_x(x: Tensor, level: Tensor) -> Tensor:
    return _warp(x, (1.0, 0.3 * level, 0.0, 0.0, 1.0, 0.0))


def _shear_y(x: Tensor, level: Tensor) -> Tensor:
    return _warp(x, (1.0, 0.0, 0.0, 0.3 * level, 1.0, 0.0))


def _translate_x(x: Tensor, level: Tensor) -> Tensor:
    return _warp(x, (1.0, 0.0, (level * (150 / 331 * x.shape[3])).trunc(), 0.0, 1.0, 0.0))


def _translate_y(x: Tensor, level: Tensor) -> Tensor:
    return _warp(x, (1.0, 0.0, 0.0, 0.0, 1.0, (level * (150 / 331 * x.shape[2])).trunc()))


def _enhance(step: Callable[[Tensor, Tensor], Tensor], x: Tensor, level: Tensor) -> Tensor:
    """A colour step with a factor from 0.1 to 1.9."""
    return back_to(step(to_float(x), (1 + 0.9 * level).view(-1, 1, 1, 1)), x)


def _posterize(x: Tensor, level: Tensor) -> Tensor:
    """Clear up to four of the eight bits."""
    cleared = (4 * level.abs()).round().to(torch.int64)
    return x & (256 - 2**cleared).to(torch.uint8).view(-1, 1, 1, 1)


def _solarize(x: Tensor, level: Tensor) -> Tensor:
    """Invert the brightest pixels: none at level 0, all at 1."""
    threshold = (256 * (1 - level.abs())).view(-1, 1, 1, 1)
    return torch.where(x < threshold, x, 255 - x)


def _autocontrast(x: Tensor, level: Tensor) -> Tensor:
    """Stretch each channel to the full range."""
    low, high = x.amin((2, 3), keepdim=True).int(), x.amax((2, 3), keepdim=True).int()
    spread = high - low
    stretched = (x.int() - low) * 255 // spread.clamp(min=1)
    return torch.where(spread > 0, stretched, x.int()).to(torch.uint8)


def _equalize(x: Tensor, level: Tensor) -> Tensor:
    """Make all levels of a channel about equally frequent; integer steps as in the Python Imaging Library."""
    n, c, h, w = x.shape
    values = x.reshape(n * c, h * w).long()
    counts = values.new_zeros(n * c, 256).scatter_add_(1, values, torch.ones_like(values))
    brightest = counts.gather(1, values.amax(1, keepdim=True))
    step = (h * w - brightest) // 255
    before = counts.cumsum(1) - counts
    table = ((before + step // 2) // step.clamp(min=1)).clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=x.device))
    return table.gather(1, values).view(x.shape).to(torch.uint8)


def _identity(x: Tensor, level: Tensor) -> Tensor:
    return x


RAND_AUGMENT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "identity": _identity,
    "shear-x": _shear_x,
    "shear-y": _shear_y,
    "translate-x": _translate_x,
    "translate-y": _translate_y,
    "rotate": _rotate,
    "brightness": partial(_enhance, blend_brightness),
    "colour": partial(_enhance, blend_saturation),
    "contrast": partial(_enhance, blend_contrast),
    "sharpness": partial(_enhance, blend_sharpness),
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
}


def rand_augment(x: Images, *, generator: torch.Generator, count: int = 2, magnitude: float = 0.3) -> Tensor:
    """RandAugment (Cubuk et al., 2020): `count` operations in a row, drawn for each image, all at one `magnitude`.

    `magnitude` runs from 0 to 1; the usual "9 of 30" is 0.3. Operations with a direction take it at random. In each
    round the images are grouped by operation, so the cost is that of at most 14 small batches, however large the batch.
    Takes 8-bit images.
    """
    x = image_batch(x)
    if x.dtype != torch.uint8:
        raise ValueError(f"x: {x.dtype}; RandAugment needs uint8 images, so put it before the normalisation")
    if count < 0:
        raise ValueError(f"count={count}: must be 0 or more")
    chance("magnitude", magnitude)
    for _ in range(count if len(x) else 0):
        chosen = below(len(RAND_AUGMENT), len(x), generator, x.device)
        level = torch.where(uniform(len(x), generator, x.device) < 0.5, -magnitude, magnitude)
        order = chosen.argsort()
        sizes = chosen.bincount(minlength=len(RAND_AUGMENT)).tolist()
        images, levels = torch.split(x.index_select(0, order), sizes), torch.split(level[order], sizes)
        groups = zip(RAND_AUGMENT.values(), images, levels, strict=True)
        done = [operation(some, at) for operation, some, at in groups if len(some)]
        x = torch.cat(done).index_select(0, order.argsort())
    return x
