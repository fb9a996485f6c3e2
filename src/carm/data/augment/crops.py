"""Crops, flips and sizes."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from carm.data.augment.images import (
    Images,
    back_to,
    below,
    chance,
    image_batch,
    images_of,
    tensor,
    to_float,
    uniform,
)


def random_crop(x: Images, *, padding: int, generator: torch.Generator, size: int | None = None) -> Tensor:
    """Each image at a random place inside a black frame of `padding` pixels, cut to its old size or to `size`.

    Every line of the result is one run of memory in the padded batch, so a single `index_select` over all such runs
    copies the crops line by line, which is faster than gathering pixel by pixel.
    """
    x = image_batch(x)
    n, c, h, w = x.shape
    rows, columns = (h, w) if size is None else (size, size)
    tall, wide = h + 2 * padding, w + 2 * padding
    if padding < 0:
        raise ValueError(f"padding={padding}: must be 0 or more")
    if not 0 < rows <= tall or not 0 < columns <= wide:
        raise ValueError(f"size={size}: must be from 1 to the padded image's {min(tall, wide)}")
    if n == 0:
        return x.new_empty(0, c, rows, columns)
    top = below(tall - rows + 1, n, generator, x.device)
    left = below(wide - columns + 1, n, generator, x.device)
    padded = x.new_zeros(n, c, tall, wide)
    padded[:, :, padding : padding + h, padding : padding + w] = x
    image = torch.arange(n * c, device=x.device).view(n, c, 1) * (tall * wide)
    line = (top[:, None] + torch.arange(rows, device=x.device)).view(n, 1, rows) * wide
    start = (image + line + left.view(n, 1, 1)).flatten()
    return padded.flatten().unfold(0, columns, 1).index_select(0, start).view(n, c, rows, columns)


def random_flip(x: Images, *, generator: torch.Generator, p: float = 0.5) -> Tensor:
    """Each image mirrored left to right with probability `p`."""
    x = image_batch(x)
    flipped = uniform(len(x), generator, x.device) < chance("p", p)
    take = torch.arange(len(x), device=x.device) + len(x) * flipped
    return torch.cat([x, x.flip(3)]).index_select(0, take)  # whole images at a time; torch.where goes byte by byte


def random_resized_crop(
    x: Images,
    *,
    size: int,
    generator: torch.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """From each image a box of random area and aspect, resized to `size` x `size`.

    The box has a share of the image's area within `scale` and an aspect (width : height) within `ratio`.

    Ten boxes are drawn for each image and the first that fits is used; if none does, the largest centred box whose
    aspect is allowed. The images may differ in size. They are resized one at a time, with proper smoothing: at 224
    pixels torch's 8-bit kernel for one box is faster than sampling or matrix products over the batch. (At 32 pixels
    sampling the whole batch would be faster, but smoothes nothing.)
    """
    if size < 1:
        raise ValueError(f"size={size}: must be at least 1")
    if not 0 < scale[0] <= scale[1] <= 1:
        raise ValueError(f"scale={scale}: must be two shares, 0 < low <= high <= 1")
    if not 0 < ratio[0] <= ratio[1]:
        raise ValueError(f"ratio={ratio}: must be two aspects, 0 < low <= high")
    if isinstance(x, Tensor | np.ndarray) and len(x) == 0:
        return tensor(x).new_empty(0, x.shape[1], size, size)
    images = images_of(x)
    boxes = _boxes([(i.shape[1], i.shape[2]) for i in images], scale, ratio, generator)
    cuts = [image[:, v : v + h, u : u + w] for image, (v, u, h, w) in zip(images, boxes, strict=True)]
    return torch.cat([_resized(cut[None], size, size) for cut in cuts])


def _boxes(
    sizes: list[tuple[int, int]], scale: tuple[float, float], ratio: tuple[float, float], generator: torch.Generator
) -> list[tuple[int, int, int, int]]:
    """A random (top, left, height, width) within each of `sizes`, which are (height, width)."""
    tall, wide = torch.tensor(sizes, dtype=torch.float64).view(-1, 2).T
    drawn = torch.rand(2, 10, len(sizes), generator=generator, device=generator.device, dtype=torch.float64).cpu()
    area = (scale[0] + (scale[1] - scale[0]) * drawn[0]) * tall * wide
    aspect = torch.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * drawn[1])
    w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (w >= 1) & (w <= wide) & (h >= 1) & (h <= tall)
    first = fits.int().argmax(0, keepdim=True)
    largest_w = torch.minimum(wide, (tall * ratio[1]).round()).clamp(min=1)
    largest_h = torch.minimum(tall, (wide / ratio[0]).round()).clamp(min=1)
    found = fits.any(0)
    w = torch.where(found, w.gather(0, first)[0], largest_w)
    h = torch.where(found, h.gather(0, first)[0], largest_h)
    place = torch.rand(2, len(sizes), generator=generator, device=generator.device, dtype=torch.float64).cpu()
    top = torch.where(found, (place[0] * (tall - h + 1)).floor(), ((tall - h) / 2).floor())
    left = torch.where(found, (place[1] * (wide - w + 1)).floor(), ((wide - w) / 2).floor())
    return [(v, u, a, b) for v, u, a, b in torch.stack([top, left, h, w]).long().T.tolist()]


def _resized(x: Tensor, height: int, width: int) -> Tensor:
    """Bilinear, smoothed when shrinking, as image libraries do it."""
    if x.shape[2:] == (height, width):
        return x
    if x.dtype == torch.uint8 and x.device.type != "cpu":  # only the CPU has a kernel for bytes
        return back_to(F.interpolate(to_float(x), (height, width), mode="bilinear", antialias=True), x)
    return F.interpolate(x, (height, width), mode="bilinear", antialias=True)


def resize(x: Images, *, size: int) -> Tensor | list[Tensor]:
    """Each image with its shorter side brought to `size`, its aspect kept. A list, if sizes differ afterwards."""
    if size < 1:
        raise ValueError(f"size={size}: must be at least 1")
    if isinstance(x, Tensor | np.ndarray):
        whole = image_batch(x)
        return _resized(whole, *_short_side(whole.shape[2], whole.shape[3], size))
    out = [_resized(i[None], *_short_side(i.shape[1], i.shape[2], size))[0] for i in images_of(x)]
    return torch.stack(out) if len({i.shape for i in out}) == 1 else out


def _short_side(height: int, width: int, size: int) -> tuple[int, int]:
    short = min(height, width)
    return size * height // short, size * width // short


def centre_crop(x: Images, *, size: int) -> Tensor:
    """The middle `size` x `size` pixels of each image."""
    out = []
    for image in [image_batch(x)] if isinstance(x, Tensor | np.ndarray) else [i[None] for i in images_of(x)]:
        h, w = image.shape[2:]
        if not 0 < size <= min(h, w):
            raise ValueError(f"size={size}: must be from 1 to the image's {min(h, w)}")
        top, left = round((h - size) / 2), round((w - size) / 2)
        out.append(image[:, :, top : top + size, left : left + size])
    return torch.cat(out)
