"""What is done to images before the net, for every data set."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from carm.data.augment.crops import centre_crop, random_crop, random_flip, random_resized_crop, resize
from carm.data.augment.images import Images, batch, images_of

Transform: TypeAlias = Callable[..., Any]


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
    draw from generators of their own, usually torch's global one: a run seeds that, in loops of your own you have to.
    """

    function: Callable[[Tensor], Tensor]

    def __call__(self, x: Images) -> Tensor:
        return batch([self.function(image) for image in images_of(x)])


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
            return whole.to(torch.float32)  # nets compute in it; numpy makes float64 unless told otherwise
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
