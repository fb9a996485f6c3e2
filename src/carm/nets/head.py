"""Classifier heads, and two ways to read them: over all classes seen (CI), or within each sample's task (TI).

A head's column number is the class label. A `GrowingHead` has columns for the classes met so far; a `FixedHead` has all
of them from the start, as DER++ needs, whose stored logits must keep their length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import glorot, linear

_MIX = 0x9E3779B97F4A7C15  # an odd 64-bit constant: spreads consecutive row numbers over distant seeds


class Head(nn.Module):
    """Maps features (n, feature_dim) to logits (n, classes)."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        if feature_dim < 1:
            raise ValueError(f"feature_dim={feature_dim}: must be at least 1")
        self.feature_dim = feature_dim

    @property
    def classes(self) -> int:
        """The number of logits."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:
        """One row for each class (classes, feature_dim), to read and to differentiate, not to write to."""
        raise NotImplementedError

    @property
    def bias(self) -> Tensor:
        """One number for each class (classes,), like `weight`."""
        raise NotImplementedError

    def grow(self, classes: int) -> list[nn.Parameter]:
        """Make sure there are logits for labels below `classes`; return the parameters that are new."""
        raise NotImplementedError


class FixedHead(Head):
    """A head with all its classes from the start, drawn like those of the published baselines that have one."""

    def __init__(self, feature_dim: int, classes: int, *, seed: int = 0) -> None:
        super().__init__(feature_dim)
        if classes < 1:
            raise ValueError(f"classes={classes}: a fixed head needs at least 1")
        self.linear = glorot(feature_dim, classes, generator=torch.Generator().manual_seed(seed))

    @property
    def classes(self) -> int:
        return self.linear.out_features

    @property
    def weight(self) -> Tensor:
        return self.linear.weight

    @property
    def bias(self) -> Tensor:
        return self.linear.bias

    def grow(self, classes: int) -> list[nn.Parameter]:
        """Nothing to do while the classes fit, so that methods may call `grow` without asking which head they have."""
        if classes > self.classes:
            raise ValueError(
                f"classes={classes}: this fixed head has {self.classes}; build it larger, or use a growing head"
            )
        return []

    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.linear(features)
        return logits


class GrowingHead(Head):
    """A head that gains logits as classes arrive, without touching those it has.

    Each growth adds a block of its own, and the logits are the blocks' outputs side by side. One larger matrix would be
    simpler, but a product of another size is summed in another order: the old logits would change in their last bits,
    and with them every decision that compares the net before and after growth. Blocks also keep the old parameters the
    same objects, so an optimizer may be rebuilt over `net.parameters()` or keep its momentum and take on what `grow`
    returns with `add_param_group`.

    New rows depend only on the head's seed and on how many rows there were. The seed is part of the state dict, so a
    resumed run grows the same rows as one that was never interrupted; loading a state dict first brings the head to the
    size it had.
    """

    seed: Tensor
    _like: Tensor

    def __init__(self, feature_dim: int, classes: int = 0, *, seed: int = 0) -> None:
        super().__init__(feature_dim)
        self.blocks = nn.ModuleList()
        self.register_buffer("seed", torch.tensor(seed))
        self.register_buffer("_like", torch.empty(0), persistent=False)  # where the net lives, even without a block
        self.grow(classes)

    @property
    def classes(self) -> int:
        return sum(self._sizes())

    @property
    def weight(self) -> Tensor:
        return torch.cat([self._like.view(0, 1).expand(0, self.feature_dim), *(b.weight for b in self._linears())])

    @property
    def bias(self) -> Tensor:
        return torch.cat([self._like, *(b.bias for b in self._linears())])

    def grow(self, classes: int) -> list[nn.Parameter]:
        have = self.classes
        if classes < have:
            raise ValueError(f"classes={classes}: the head has {have} already and never forgets one")
        if classes == have:
            return []
        generator = torch.Generator().manual_seed((int(self.seed) + _MIX * (have + 1)) % 2**63)
        block = linear(self.feature_dim, classes - have, generator=generator).to(self._like)
        block.train(self.training)
        self.blocks.append(block)
        return list(block.parameters())

    def forward(self, features: Tensor) -> Tensor:
        if len(self.blocks) == 0:
            return features.new_zeros(len(features), 0)
        return torch.cat([F.linear(features, b.weight, b.bias) for b in self._linears()], dim=1)

    def _linears(self) -> list[nn.Linear]:
        return [block for block in self.blocks if isinstance(block, nn.Linear)]

    def _sizes(self) -> list[int]:
        return [block.out_features for block in self._linears()]

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        """Take on the state's block sizes first: torch then loads the blocks, whose tensors must fit.

        A state without a head, such as that of a pretrained backbone, leaves this one alone.
        """
        if f"{prefix}seed" in state_dict:
            self._fit(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _fit(self, state_dict: Mapping[str, Any], prefix: str) -> None:
        sizes: list[int] = []
        while (weight := state_dict.get(f"{prefix}blocks.{len(sizes)}.weight")) is not None:
            sizes.append(len(weight))
        have = self._sizes()
        if sizes[: len(have)] != have:  # other cuts: these parameters cannot hold that state
            self.blocks = nn.ModuleList()
            have = []
        for size in sizes[len(have) :]:
            self.grow(self.classes + size)


def mask_seen(logits: Tensor, seen: int | Sequence[int] | Tensor) -> Tensor:
    """Class-incremental reading: close every logit whose class is not in `seen`.

    `seen` is a number (the first so many classes), class labels, or a boolean mask over the classes. See `closed` for
    what a closed logit is.
    """
    classes = logits.shape[1]
    if isinstance(seen, Tensor) and seen.dtype == torch.bool:
        if seen.shape != (classes,):
            raise ValueError(f"seen: a mask of shape {tuple(seen.shape)}, but there are {classes} logits")
        return closed(logits, seen.to(logits.device))
    mask = torch.zeros(classes, dtype=torch.bool)
    if isinstance(seen, Integral):  # Python's or numpy's
        if not 0 < int(seen) <= classes:
            raise ValueError(f"seen={seen}: must be between 1 and the {classes} logits")
        mask[: int(seen)] = True
    else:
        labels = torch.as_tensor(seen, dtype=torch.long).cpu()
        if labels.ndim != 1 or len(labels) == 0 or int(labels.min()) < 0 or int(labels.max()) >= classes:
            raise ValueError(f"seen={labels.tolist()}: must be labels from 0 to {classes - 1}, at least one")
        mask[labels] = True
    return closed(logits, mask.to(logits.device))


def task_table(tasks: Sequence[Sequence[int]], classes: int | None = None) -> Tensor:
    """A boolean table (tasks, classes): which labels belong to which task. They may belong to several."""
    labels = [label for task in tasks for label in task]
    if not labels or min(labels) < 0:
        raise ValueError(f"tasks={tasks!r}: must hold labels from 0 on, at least one")
    width = max(labels) + 1 if classes is None else classes
    if max(labels) >= width:
        raise ValueError(f"tasks: label {max(labels)} does not fit classes={classes}")
    table = torch.zeros(len(tasks), width, dtype=torch.bool)
    for row, task in enumerate(tasks):
        table[row, list(task)] = True
    return table


def task_mates(tasks: Sequence[Sequence[int]], classes: int) -> Tensor:
    """A boolean table (classes, classes): which labels have been in a task with which."""
    table = task_table(tasks, classes).float()
    return (table.T @ table) > 0


def mask_task(logits: Tensor, task: Tensor, table: Tensor) -> Tensor:
    """Task-incremental reading: for each sample, close every logit outside its task.

    `task` holds the samples' task numbers (n,), `table` is a `task_table`. A growing head may have fewer logits than
    the table has classes; it must have at least one of every task asked for.
    """
    classes = logits.shape[1]
    if table.dtype != torch.bool or table.ndim != 2 or table.shape[1] < classes:
        shape = tuple(table.shape)
        raise ValueError(f"table: {table.dtype} {shape}; must be boolean, (tasks, classes), {classes} classes or more")
    if task.shape != (len(logits),):
        raise ValueError(f"task: shape {tuple(task.shape)}; must be one number for each of the {len(logits)} samples")
    rows = table.to(logits.device)[:, :classes][task.to(logits.device)]
    empty = ~rows.any(dim=1)
    if bool(empty.any()):
        raise ValueError(f"task={int(task[empty.cpu()][0])}: none of its classes is among the {classes} logits")
    return closed(logits, rows)


def closed(logits: Tensor, mask: Tensor) -> Tensor:
    """Logits with those outside `mask` set so low that softmax and sigmoid give them probability zero and no gradient.

    The value is finite on purpose: with minus infinity, a soft target or an entropy term 0 x -inf would turn into NaN.
    Losses that compare logits themselves, such as the mean squared error of DER++, must use the open ones.
    """
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min / 2)
