"""Stored samples as the net's input: decoded, augmented or not, normalised, on the device.

The memory keeps samples as they came, small images as arrays and photographs encoded, so decoding happens here, when a
mini-batch is made, on all cores.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from carm.data.augment import Recipe, batch, colour_jitter, rand_augment, random_crop, random_flip
from carm.data.decode import Decoder


class Views:
    """Turns a field of samples into a batch for the net.

    `x` is a tensor or array of samples, or a list of images: encoded (bytes, or uint8 vectors as the memory returns
    them), or decoded already (arrays of three dimensions).
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        decoder: Decoder | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
        channels_last: bool = False,
    ) -> None:
        self.recipe = recipe
        self.decoder = decoder if decoder is not None else Decoder()
        self.device = torch.device(device)
        self.channels_last = channels_last
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def flips(self) -> bool:
        """Whether a mirrored sample is as good as the sample: if training mirrors them."""
        return any(getattr(transform, "func", transform) is random_flip for transform in self.recipe.augment)

    def train(self, x: Any) -> Tensor:
        """As training sees the samples: augmented."""
        return self._placed(self.recipe.train(self._decoded(x), self.generator))

    def test(self, x: Any) -> Tensor:
        """As testing sees them: nothing random."""
        return self._placed(self.recipe.test(self._decoded(x)))

    def perturbed(self, x: Any) -> Tensor:
        """A randomly changed copy of each sample: as training changes it, and its colours; noise if x is no image."""
        images = self._decoded(x)
        if not isinstance(images, list) and (images.ndim != 4 or images.is_floating_point()):
            plain = self.recipe.test(images)
            noise = torch.randn(plain.shape, generator=self.generator)
            return self._placed(plain + 0.2 * plain.std() * noise)
        augment: tuple[Any, ...] = tuple(self.recipe.augment)
        if not augment:  # data whose training images are not augmented; moving them a little changes no class
            side = min(images.shape[2:]) if isinstance(images, Tensor) else 32
            augment = (partial(random_crop, padding=max(1, side // 8)),)
        colour = isinstance(images, list) or images.shape[1] == 3

        def jitter(x: Any, generator: torch.Generator) -> Any:
            x = batch(x)
            if x.is_floating_point():  # of a user's transform: no colours that we know
                return x
            return colour_jitter(
                x, generator=generator, brightness=0.5, contrast=0.5, saturation=0.5 if colour else 0.0
            )

        return self._placed(self.recipe.with_augment(*augment, jitter).train(images, self.generator))

    def _decoded(self, x: Any) -> Any:
        """Arrays or tensors of samples as one tensor; encoded images as a list of images, or one tensor if they fit."""
        if not isinstance(x, list):
            return torch.as_tensor(x)
        if x and isinstance(x[0], np.ndarray) and x[0].ndim == 3:
            return x
        images = self.decoder.many([one if isinstance(one, bytes) else bytes(one.numpy()) for one in x])
        return torch.from_numpy(np.stack(images)) if self.decoder.shape is not None else images

    def _placed(self, x: Tensor) -> Tensor:
        if self.channels_last and x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        return x.to(self.device, non_blocking=True)

    def state_dict(self) -> dict[str, Any]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


def strong(recipe: Recipe) -> Recipe:
    """The recipe with RandAugment behind its own training transforms."""
    return recipe.with_augment(*recipe.augment, rand_augment)
