"""Nets for continual learning, by name.

    net = nets.build("resnet32", in_shape=(3, 32, 32), classes=10, seed=0)
    net.features(x)                 # (n, 64)
    net(x)                          # (n, 10)
    net.grow(20)                    # ten more classes; the first ten logits stay as they are, to the last bit

Every net is a `Net`: a backbone and a head. `wrap` makes one of your own module. Weights come from the seed (or
generator) alone, never from torch's global generator, so that building a net neither depends on nor disturbs anything
else in the process.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch

from .cnn import CNN
from .densenet import DenseNet, densenet100
from .head import FixedHead, GrowingHead, Head, mask_seen, mask_task, task_table
from .mlp import MLP
from .net import HeadKind, Net, as_generator, make_head, wrap
from .resnet import ResNet, resnet18, resnet32

__all__ = [
    "FixedHead",
    "GrowingHead",
    "Head",
    "Net",
    "build",
    "channels_last",
    "mask_seen",
    "mask_task",
    "names",
    "task_table",
    "wrap",
]

_BACKBONES: dict[str, Callable[..., CNN | DenseNet | MLP | ResNet]] = {
    "cnn": CNN,
    "densenet100": densenet100,
    "mlp": MLP,
    "mlp400": partial(MLP, hidden=(400, 400)),
    "resnet18": resnet18,
    "resnet18-imagenet": partial(resnet18, stem="imagenet"),
    "resnet18-reduced": partial(resnet18, width=20),
    "resnet32": resnet32,
}


def names() -> list[str]:
    """The names `build` knows."""
    return sorted(_BACKBONES)


def channels_last(name: str) -> bool:
    """Whether a net trains at least as fast on the CPU with the channels of a pixel side by side in memory.

    All nets with convolutions do, the narrow ones by far; `carm bench nets --only channels-last` measures it.
    """
    return not name.startswith("mlp")


def check(name: str) -> None:
    """Complain about a name that no net has."""
    if name not in _BACKBONES:
        near = get_close_matches(name, names(), n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"net={name!r}: there is no such net.{hint} The nets are: {', '.join(names())}")


def build(
    name: str,
    *,
    in_shape: tuple[int, ...],
    classes: int = 0,
    head: HeadKind = "growing",
    seed: int | torch.Generator = 0,
    **options: Any,
) -> Net:
    """A new net. `in_shape` is one sample's shape, (channels, height, width) for image nets.

    `classes` is the number of logits to start with: none at all is fine for a growing head, a fixed head needs them
    all. `options` go to the backbone: `width` (cnn, resnet18), `stem` (resnet18), `hidden` (mlp), `growth` and
    `compression` (densenet100). The same seed gives the same backbone whatever the head.
    """
    check(name)
    backbone_of = _BACKBONES[name]
    allowed = sorted(set(inspect.signature(backbone_of).parameters) - {"in_shape", "generator"})
    for option in options:
        if option not in allowed:
            raise ValueError(
                f"{option}={options[option]!r}: {name} has no such option; it takes {', '.join(allowed) or 'none'}"
            )
    generator = as_generator(seed)
    backbone = backbone_of(tuple(in_shape), generator=generator, **options)
    return Net(backbone, make_head(backbone.feature_dim, classes, kind=head, generator=generator))
