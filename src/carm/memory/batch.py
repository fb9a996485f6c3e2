"""A batch of samples, as training sees it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class UnknownFields(dict[str, Any]):
    """The fields of a batch of no samples, drawn before anyone knows what fields samples have.

    Each is an empty tensor that `torch.cat` takes together with anything, so a training loop needs no first-step case.
    """

    device: torch.device | str = "cpu"

    def __missing__(self, name: str) -> torch.Tensor:
        return torch.empty(0, dtype=torch.bool, device=self.device)

    def on(self, device: torch.device | str) -> UnknownFields:
        out = UnknownFields()
        out.device = device
        return out


class Batch:
    """Named fields, one row per sample: `batch.x`, `batch.y`, `batch["logits"]`.

    `slots` and `ids` say where the samples came from (-1 for new ones, which are not in memory yet); `old` is their
    mask. Fixed fields are tensors, fields of variable length lists of one-dimensional uint8 tensors.
    """

    __slots__ = ("_count", "_old", "fields", "ids", "of_pass", "slots")

    def __init__(
        self, fields: dict[str, Any], slots: NDArray[np.int64], ids: NDArray[np.int64], olds: int | None = None
    ) -> None:
        self.fields = fields
        self.slots = slots
        self.ids = ids
        self._old: torch.Tensor | None = None
        self._count = olds
        self.of_pass = False
        """Whether it is of a pass that shows every sample once, so that its samples are not drawn again soon."""

    @property
    def old(self) -> torch.Tensor:
        """Which samples came from the memory."""
        if self._old is None:
            self._old = torch.from_numpy(self.slots >= 0)
        return self._old

    @property
    def olds(self) -> int:
        """How many came from the memory."""
        if self._count is None:
            self._count = int(np.count_nonzero(self.slots >= 0))
        return self._count

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(f"this batch has the fields {', '.join(self.fields)}, and no {name!r}") from None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The same batch with its tensors on `device`."""
        if isinstance(self.fields, UnknownFields):
            return Batch(self.fields.on(device), self.slots, self.ids, self._count)
        fields = {
            name: value.to(device, non_blocking=non_blocking) if isinstance(value, torch.Tensor) else value
            for name, value in self.fields.items()
        }
        moved = Batch(fields, self.slots, self.ids, self._count)
        moved.of_pass = self.of_pass
        return moved

    def __repr__(self) -> str:
        shapes = {
            k: tuple(v.shape) if isinstance(v, torch.Tensor) else f"{len(v)} byte strings"
            for k, v in self.fields.items()
        }
        return f"Batch({len(self)} samples, {self.olds} old, {shapes})"


def concatenate(parts: list[Batch]) -> Batch:
    """One batch of several with the same fields."""
    if len(parts) == 1:
        return parts[0]
    fields: dict[str, Any] = {}
    for name, first in parts[0].fields.items():
        values = [p.fields[name] for p in parts]
        fields[name] = torch.cat(values) if isinstance(first, torch.Tensor) else [v for value in values for v in value]
    slots, ids = np.concatenate([p.slots for p in parts]), np.concatenate([p.ids for p in parts])
    return Batch(fields, slots, ids, sum(p.olds for p in parts))
