"""A net = a backbone that makes features + a head that makes logits."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from .head import FixedHead, GrowingHead, Head

HeadKind = Literal["growing", "fixed"]


class Net(nn.Module):
    """Any backbone with any head.

    Methods use `features` (herding, nearest mean), `head`, and the net itself as a classifier.
    """

    def __init__(self, backbone: nn.Module, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    @property
    def feature_dim(self) -> int:
        return self.head.feature_dim

    @property
    def classes(self) -> int:
        """The number of logits now."""
        return self.head.classes

    def grow(self, classes: int) -> list[nn.Parameter]:
        """Make sure there are logits for labels below `classes`; return the new parameters, for the optimizer."""
        return self.head.grow(classes)

    def features(self, x: Tensor) -> Tensor:
        """The backbone's output as (n, feature_dim)."""
        out: Tensor = self.backbone(x)
        out = out.flatten(1)
        if out.shape[1] != self.feature_dim:
            raise ValueError(f"feature_dim={self.feature_dim}: the backbone gives {out.shape[1]} features a sample")
        return out

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(x))
        return logits


def as_generator(seed: int | torch.Generator) -> torch.Generator:
    """A seed as a fresh generator; a generator as it is."""
    return seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)


def make_head(feature_dim: int, classes: int, *, kind: HeadKind, generator: torch.Generator) -> Head:
    """A head of the given kind, seeded with one draw from `generator`."""
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    if kind == "growing":
        return GrowingHead(feature_dim, classes, seed=seed)
    if kind == "fixed":
        return FixedHead(feature_dim, classes, seed=seed)
    raise ValueError(f"head={kind!r}: must be 'growing' or 'fixed'")


def wrap(
    module: nn.Module,
    feature_dim: int,
    *,
    classes: int = 0,
    head: HeadKind = "growing",
    seed: int | torch.Generator = 0,
) -> Net:
    """Make a net of your own module: anything that maps a batch to `feature_dim` features a sample.

    The module's weights are left as they are, so it may be pretrained. Move the net to its device afterwards, as a
    whole.
    """
    return Net(module, make_head(feature_dim, classes, kind=head, generator=as_generator(seed)))
