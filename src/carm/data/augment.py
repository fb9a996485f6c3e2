"""Augmentation and normalisation of whole batches.

    recipe = augment.recipe("cifar-100")
    x = recipe.train(images, generator)         # uint8 (n, c, h, w) -> cropped, flipped, normalised float32
    x = recipe.test(images)                     # the same normalisation, nothing random, ever

All functions take and return batches of images, uint8 from 0 to 255 or floating point from 0 to 1. They draw from the
generator they are given, a fixed number of values a batch, and treat each sample on its own: one crop, one flip, one
colour for each. Random resized crops, `resize` and `centre_crop` also take lists of images that differ in size.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Images: TypeAlias = Tensor | NDArray[Any] | Sequence[Tensor] | Sequence[NDArray[Any]]
Transform: TypeAlias = Callable[..., Any]


# -- batches ---------------------------------------------------------------------------------------------------------


def _tensor(x: Tensor | NDArray[Any]) -> Tensor:
    if isinstance(x, Tensor):
        return x
    return torch.from_numpy(x if x.flags.writeable else x.copy())  # torch warns about read-only memory


def _images(x: Images) -> list[Tensor]:
    """Each image as (c, h, w)."""
    images = [_tensor(image) for image in x]
    if not images:
        raise ValueError("x: no images")
    for image in images:
        if image.ndim != 3:
            raise ValueError(f"x: an image of shape {tuple(image.shape)}; must be (channels, height, width)")
    return images


def batch(x: Images) -> Tensor:
    """The images as one tensor (n, ...); a ValueError if they differ in size."""
    if isinstance(x, Tensor | np.ndarray):
        return _tensor(x)
    images = [_tensor(image) for image in x]
    shapes = {tuple(image.shape) for image in images}
    if not shapes:
        raise ValueError("x: an empty list has no image shape; give an empty tensor (0, channels, height, width)")
    if len(shapes) != 1:
        raise ValueError(
            f"x: images of shapes {sorted(shapes)}; must be one shape, use random_resized_crop or resize first"
        )
    return torch.stack(images)


def _image_batch(x: Images) -> Tensor:
    out = batch(x)
    if out.ndim != 4:
        raise ValueError(f"x: shape {tuple(out.shape)}; must be (n, channels, height, width)")
    return out


def _rand(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """`count` uniform numbers from 0 to 1, drawn where the generator lives, for use where the images live."""
    return torch.rand(count, generator=generator, device=generator.device).to(device)


def _below(limit: int, count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """`count` uniform integers below `limit`."""
    return torch.randint(limit, (count,), generator=generator, device=generator.device).to(device)


def _chance(name: str, p: float) -> float:
    if not 0 <= p <= 1:
        raise ValueError(f"{name}={p}: must be from 0 to 1")
    return p


# -- crops and flips -------------------------------------------------------------------------------------------------


def random_crop(x: Images, *, padding: int, generator: torch.Generator, size: int | None = None) -> Tensor:
    """Each image at a random place inside a black frame of `padding` pixels, cut to its old size or to `size`.

    Every line of the result is one run of memory in the padded batch, so a single `index_select` over all such runs
    copies the crops line by line, which is faster than gathering pixel by pixel.
    """
    x = _image_batch(x)
    n, c, h, w = x.shape
    rows, columns = (h, w) if size is None else (size, size)
    tall, wide = h + 2 * padding, w + 2 * padding
    if padding < 0:
        raise ValueError(f"padding={padding}: must be 0 or more")
    if not 0 < rows <= tall or not 0 < columns <= wide:
        raise ValueError(f"size={size}: must be from 1 to the padded image's {min(tall, wide)}")
    if n == 0:
        return x.new_empty(0, c, rows, columns)
    top = _below(tall - rows + 1, n, generator, x.device)
    left = _below(wide - columns + 1, n, generator, x.device)
    padded = x.new_zeros(n, c, tall, wide)
    padded[:, :, padding : padding + h, padding : padding + w] = x
    image = torch.arange(n * c, device=x.device).view(n, c, 1) * (tall * wide)
    line = (top[:, None] + torch.arange(rows, device=x.device)).view(n, 1, rows) * wide
    start = (image + line + left.view(n, 1, 1)).flatten()
    return padded.flatten().unfold(0, columns, 1).index_select(0, start).view(n, c, rows, columns)


def random_flip(x: Images, *, generator: torch.Generator, p: float = 0.5) -> Tensor:
    """Each image mirrored left to right with probability `p`."""
    x = _image_batch(x)
    flipped = _rand(len(x), generator, x.device) < _chance("p", p)
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
        return _tensor(x).new_empty(0, x.shape[1], size, size)
    images = _images(x)
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
        return _like(F.interpolate(_float(x), (height, width), mode="bilinear", antialias=True), x)
    return F.interpolate(x, (height, width), mode="bilinear", antialias=True)


def resize(x: Images, *, size: int) -> Tensor | list[Tensor]:
    """Each image with its shorter side brought to `size`, its aspect kept. A list, if sizes differ afterwards."""
    if size < 1:
        raise ValueError(f"size={size}: must be at least 1")
    if isinstance(x, Tensor | np.ndarray):
        whole = _image_batch(x)
        return _resized(whole, *_short_side(whole.shape[2], whole.shape[3], size))
    out = [_resized(i[None], *_short_side(i.shape[1], i.shape[2], size))[0] for i in _images(x)]
    return torch.stack(out) if len({i.shape for i in out}) == 1 else out


def _short_side(height: int, width: int, size: int) -> tuple[int, int]:
    short = min(height, width)
    return size * height // short, size * width // short


def centre_crop(x: Images, *, size: int) -> Tensor:
    """The middle `size` x `size` pixels of each image."""
    out = []
    for image in [_image_batch(x)] if isinstance(x, Tensor | np.ndarray) else [i[None] for i in _images(x)]:
        h, w = image.shape[2:]
        if not 0 < size <= min(h, w):
            raise ValueError(f"size={size}: must be from 1 to the image's {min(h, w)}")
        top, left = round((h - size) / 2), round((w - size) / 2)
        out.append(image[:, :, top : top + size, left : left + size])
    return torch.cat(out)


# -- colour ----------------------------------------------------------------------------------------------------------


def _float(x: Tensor) -> Tensor:
    """Images from 0 to 1, a copy."""
    return x.to(torch.float32).div_(255) if x.dtype == torch.uint8 else x.clone()


def _like(out: Tensor, x: Tensor) -> Tensor:
    """Images from 0 to 1 back in the type of `x`."""
    return out.mul(255).round_().clamp_(0, 255).to(torch.uint8) if x.dtype == torch.uint8 else out.clamp(0, 1)


def _grey(x: Tensor) -> Tensor:
    """Luminance (n, 1, h, w) by the weights of ITU-R 601; for images that are not RGB, the mean over channels."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return (x * x.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)


def _blend(x: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    """`factor` 1: `x`; 0: `other`; above 1: further away from `other`."""
    return (factor * x + (1 - factor) * other).clamp_(0, 1)


def _brightness(x: Tensor, factor: Tensor) -> Tensor:
    return _blend(x, 0.0, factor)


def _contrast(x: Tensor, factor: Tensor) -> Tensor:
    return _blend(x, _grey(x).mean((1, 2, 3), keepdim=True), factor)


def _saturation(x: Tensor, factor: Tensor) -> Tensor:
    return _blend(x, _grey(x), factor) if x.shape[1] == 3 else x


def _sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with a 3x3 average that counts the middle five times. The outermost pixels have none and stay."""
    if min(x.shape[2:]) < 3:
        return x
    smooth = x.clone()
    across = x[..., :-2] + x[..., 1:-1] + x[..., 2:]
    around = across[:, :, :-2] + across[:, :, 1:-1] + across[:, :, 2:]
    smooth[:, :, 1:-1, 1:-1] = (around + 4 * x[:, :, 1:-1, 1:-1]) / 13
    return _blend(x, smooth, factor)


def _hue(x: Tensor, turn: Tensor) -> Tensor:
    """Turn the colour circle by `turn` (1: once around); value and saturation stay."""
    if x.shape[1] != 3:
        return x
    high, place = x.max(1)
    low = x.amin(1)
    spread = high - low
    safe = spread.clamp(min=1e-12)
    r, g, b = x.unbind(1)
    sector = torch.where(place == 0, (g - b) / safe, torch.where(place == 1, (b - r) / safe + 2, (r - g) / safe + 4))
    sector = sector + 6 * turn.view(-1, 1, 1)
    channels = []
    for offset in (5, 3, 1):  # red, green, blue: the same trapezoid, a third of the circle apart
        k = (offset + sector) % 6
        channels.append(high - spread * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, 1)


def colour_jitter(
    x: Images,
    *,
    generator: torch.Generator,
    brightness: float = 0.0,
    contrast: float = 0.0,
    saturation: float = 0.0,
    hue: float = 0.0,
) -> Tensor:
    """Random colours: for each image a factor within 1 ± `brightness`, and so on; hue turned by up to ± `hue`.

    `hue` is a share of the colour circle, at most 0.5. The four steps come in an order drawn for each batch. A strength
    of 0 leaves its step out.
    """
    x = _image_batch(x)
    for name, value, limit in (
        ("brightness", brightness, math.inf),
        ("contrast", contrast, math.inf),
        ("saturation", saturation, math.inf),
        ("hue", hue, 0.5),
    ):
        if not 0 <= value <= limit:
            raise ValueError(f"{name}={value}: must be from 0 to {limit}")
    steps = ((_brightness, brightness), (_contrast, contrast), (_saturation, saturation), (_hue, hue))
    out = _float(x)
    for number in torch.randperm(4, generator=generator, device=generator.device).tolist():
        step, strength = steps[number]
        drawn = (2 * _rand(len(x), generator, x.device) - 1).mul_(strength).view(-1, 1, 1, 1)
        if strength:
            out = step(out, drawn if step is _hue else (1 + drawn).clamp_(min=0))
    return _like(out, x)


# -- RandAugment -----------------------------------------------------------------------------------------------------
# Each operation takes 8-bit images and `level`, one number for each, from -1 to 1: the share of its full strength.


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
    return _like(step(_float(x), (1 + 0.9 * level).view(-1, 1, 1, 1)), x)


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
    "brightness": partial(_enhance, _brightness),
    "colour": partial(_enhance, _saturation),
    "contrast": partial(_enhance, _contrast),
    "sharpness": partial(_enhance, _sharpness),
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
    x = _image_batch(x)
    if x.dtype != torch.uint8:
        raise ValueError(f"x: {x.dtype}; RandAugment needs uint8 images, so put it before the normalisation")
    if count < 0:
        raise ValueError(f"count={count}: must be 0 or more")
    _chance("magnitude", magnitude)
    for _ in range(count if len(x) else 0):
        chosen = _below(len(RAND_AUGMENT), len(x), generator, x.device)
        level = torch.where(_rand(len(x), generator, x.device) < 0.5, -magnitude, magnitude)
        order = chosen.argsort()
        sizes = chosen.bincount(minlength=len(RAND_AUGMENT)).tolist()
        images, levels = torch.split(x.index_select(0, order), sizes), torch.split(level[order], sizes)
        groups = zip(RAND_AUGMENT.values(), images, levels, strict=True)
        done = [operation(some, at) for operation, some, at in groups if len(some)]
        x = torch.cat(done).index_select(0, order.argsort())
    return x


# -- CutMix ----------------------------------------------------------------------------------------------------------


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
    x = _image_batch(x)
    if len(y) != len(x):
        raise ValueError(f"y: {len(y)} labels for {len(x)} images")
    if not alpha > 0:
        raise ValueError(f"alpha={alpha}: must be above 0")
    _chance("p", p)
    # Torch's Beta takes no generator, so a numpy generator draws it, seeded by a draw from ours.
    rng = np.random.default_rng(int(_below(2**62, 1, generator, torch.device("cpu"))))
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


# -- recipes ---------------------------------------------------------------------------------------------------------


def normalize(x: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """8-bit images to float32: (x / 255 - mean) / std for each channel, in one multiplication and one addition.

    One mean and one std serve any number of channels, and data that is no image.
    """
    if x.dtype != torch.uint8:
        raise ValueError(f"x: {x.dtype}; must be uint8")
    if len(mean) != 1 and (x.ndim < 2 or x.shape[1] != len(mean)):
        raise ValueError(
            f"x: shape {tuple(x.shape)}; must be (n, {len(mean)}, ...), for mean and std of {len(mean)} channels"
        )
    shape = (-1,) if len(mean) == 1 else (-1, *[1] * (x.ndim - 2))
    scale = torch.tensor([1 / (255 * s) for s in std], device=x.device).view(shape)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], device=x.device).view(shape)
    return x.to(torch.float32).mul_(scale).add_(shift)


@dataclass(frozen=True)
class PerSample:
    """Makes a batch transform of one for single images, such as those of torchvision: `PerSample(RandomPerspective())`.

    The function is given one image (c, h, w) at a time, a uint8 tensor, and returns a tensor. Transforms of that kind
    draw from generators of their own, usually torch's global one: seed it if the run is to be repeatable.
    """

    function: Callable[[Tensor], Tensor]

    def __call__(self, x: Images) -> Tensor:
        return batch([self.function(image) for image in _images(x)])


def _takes_generator(transform: Transform) -> bool:
    try:
        return "generator" in inspect.signature(transform).parameters
    except (TypeError, ValueError):  # some callables written in C have no signature
        return False


@dataclass(frozen=True)
class Recipe:
    """What happens to images before the net: `augment` in training, `prepare` in testing, then normalisation.

    A transform is any callable on a batch; if it has a parameter `generator` it is given one. Use `functools.partial`
    to set options, and `PerSample` for transforms of single images. Images that are, or come out of a transform, in
    floating point are taken to be normalised already.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    augment: tuple[Transform, ...] = ()
    prepare: tuple[Transform, ...] = ()
    _seeded: frozenset[int] = field(default=frozenset(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ValueError(f"mean={self.mean}, std={self.std}: must be of one length, a number for each channel")
        if min(self.std) <= 0:
            raise ValueError(f"std={self.std}: must be above 0")
        for transform in (*self.augment, *self.prepare):
            if not callable(transform):
                raise ValueError(f"transform {transform!r}: must be callable on a batch of images")
        for transform in self.prepare:
            if _takes_generator(transform):
                raise ValueError(f"prepare: {transform!r} takes a generator, but test images are never augmented")
        seeded = frozenset(i for i, transform in enumerate(self.augment) if _takes_generator(transform))
        object.__setattr__(self, "_seeded", seeded)

    def train(self, x: Images, generator: torch.Generator) -> Tensor:
        """Augmented and normalised."""
        for number, transform in enumerate(self.augment):
            x = transform(x, generator=generator) if number in self._seeded else transform(x)
        return self._finish(x)

    def test(self, x: Images) -> Tensor:
        """Normalised, and brought to the size that training has; nothing random."""
        for transform in self.prepare:
            x = transform(x)
        return self._finish(x)

    def with_augment(self, *transforms: Transform) -> Recipe:
        """The same recipe with other training transforms, in place of all it had."""
        return replace(self, augment=transforms)

    def _finish(self, x: Images) -> Tensor:
        whole = batch(x)
        if whole.is_floating_point():
            return whole
        if whole.dtype != torch.uint8:
            raise ValueError(f"x: {whole.dtype}; must be uint8 images, or floating point that is normalised already")
        return normalize(whole, self.mean, self.std)


def crop_flip(mean: Sequence[float], std: Sequence[float], *, padding: int = 4) -> Recipe:
    """For small images of one size: random crop with padding, and flip."""
    return Recipe(tuple(mean), tuple(std), augment=(partial(random_crop, padding=padding), random_flip))


def photographs(
    mean: Sequence[float], std: Sequence[float], *, size: int = 224, test_size: int | None = None
) -> Recipe:
    """For photographs of any size: random resized crop and flip in training; resized centre in testing.

    In testing the shorter side is brought to `test_size`, by default 8/7 of `size` (256 for 224), then the middle cut
    out.
    """
    shorter = round(size * 8 / 7) if test_size is None else test_size
    return Recipe(
        tuple(mean),
        tuple(std),
        augment=(partial(random_resized_crop, size=size), random_flip),
        prepare=(partial(resize, size=shorter), partial(centre_crop, size=size)),
    )


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_PLAIN = Recipe()
_RECIPES: dict[str, Recipe] = {
    "plain": _PLAIN,
    "mnist": _PLAIN,
    "fashion-mnist": _PLAIN,
    "digits": _PLAIN,
    "synthetic": _PLAIN,
    "cifar-10": crop_flip((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar-100": crop_flip((0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)),
    "tiny-imagenet": crop_flip((0.4802, 0.4480, 0.3975), (0.2770, 0.2691, 0.2821)),
    "mini-imagenet": crop_flip(*IMAGENET),
    "imagenet-100": photographs(*IMAGENET),
    "imagenet-1000": photographs(*IMAGENET),
}


def recipes() -> list[str]:
    """The names `recipe` knows: data sets, and "plain", which only scales to 0..1."""
    return sorted(_RECIPES)


def recipe(name: str) -> Recipe:
    """The usual recipe for a data set. Case, hyphens, underscores and blanks in the name do not matter."""
    known = {_key(entry): entry for entry in _RECIPES} | {"imagenet": "imagenet-1000"}
    if _key(name) in known:
        return _RECIPES[known[_key(name)]]
    near = get_close_matches(_key(name), known, 1, 0.4)
    hint = f" Did you mean {known[near[0]]!r}?" if near else ""
    raise ValueError(f"name={name!r}: there is no recipe of that name.{hint} Known: {', '.join(recipes())}")


def _key(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
