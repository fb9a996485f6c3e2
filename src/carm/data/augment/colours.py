"""Colours: brightness, contrast, saturation, sharpness and hue."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from carm.data.augment.images import Images, back_to, image_batch, to_float, uniform


def _grey(x: Tensor) -> Tensor:
    """Luminance (n, 1, h, w) by the weights of ITU-R 601; for images that are not RGB, the mean over channels."""
    if x.shape[1] != 3:
        return x.mean(1, keepdim=True)
    return (x * x.new_tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)


def _blend(x: Tensor, other: Tensor | float, factor: Tensor) -> Tensor:
    """`factor` 1: `x`; 0: `other`; above 1: further away from `other`."""
    return (factor * x + (1 - factor) * other).clamp_(0, 1)


def blend_brightness(x: Tensor, factor: Tensor) -> Tensor:
    return _blend(x, 0.0, factor)


def blend_contrast(x: Tensor, factor: Tensor) -> Tensor:
    return _blend(x, _grey(x).mean((1, 2, 3), keepdim=True), factor)


def blend_saturation(x: Tensor, factor: Tensor) -> Tensor:
    return _blend(x, _grey(x), factor) if x.shape[1] == 3 else x


def blend_sharpness(x: Tensor, factor: Tensor) -> Tensor:
    """Blend with a 3x3 average that counts the middle five times. The outermost pixels have none and stay."""
    if min(x.shape[2:]) < 3:
        return x
    smooth = x.clone()
    across = x[..., :-2] + x[..., 1:-1] + x[..., 2:]
    around = across[:, :, :-2] + across[:, :, 1:-1] + across[:, :, 2:]
    smooth[:, :, 1:-1, 1:-1] = (around + 4 * x[:, :, 1:-1, 1:-1]) / 13
    return _blend(x, smooth, factor)


def turn_hue(x: Tensor, turn: Tensor) -> Tensor:
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
    x = image_batch(x)
    for name, value, limit in (
        ("brightness", brightness, math.inf),
        ("contrast", contrast, math.inf),
        ("saturation", saturation, math.inf),
        ("hue", hue, 0.5),
    ):
        if not 0 <= value <= limit:
            raise ValueError(f"{name}={value}: must be from 0 to {limit}")
    steps = (
        (blend_brightness, brightness),
        (blend_contrast, contrast),
        (blend_saturation, saturation),
        (turn_hue, hue),
    )
    out = to_float(x)
    for number in torch.randperm(4, generator=generator, device=generator.device).tolist():
        step, strength = steps[number]
        drawn = (2 * uniform(len(x), generator, x.device) - 1).mul_(strength).view(-1, 1, 1, 1)
        if strength:
            out = step(out, drawn if step is turn_hue else (1 + drawn).clamp_(min=0))
    return back_to(out, x)
