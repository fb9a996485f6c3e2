"""Accuracy and forgetting, from the outputs for the test samples of every class.

After each task the net is tested on all classes seen: class-incremental (CI), where every class seen is a candidate,
and task-incremental (TI), where only those of the sample's own task are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from carm.nets.head import task_mates

Floats = NDArray[np.float64]


@dataclass
class Counts:
    """Right answers among the test samples of each class, as they come in."""

    classes: int
    right: dict[str, Floats] = field(default_factory=dict)
    total: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.total = np.zeros(self.classes)
        self.right = {name: np.zeros(self.classes) for name in ("ci", "ti", "ci5")}

    def add(self, scores: Tensor, y: Tensor, own: Tensor) -> None:
        """`scores` (n, seen); `own` (n, seen): which classes belong to each sample's task."""
        y = y.to(scores.device)
        labels = y.cpu().numpy()
        self.total += np.bincount(labels, minlength=self.classes)
        within = scores.masked_fill(~own.to(scores.device), float("-inf"))
        best = scores.topk(min(5, scores.shape[1]), 1).indices
        possible = scores.gather(1, y[:, None])[:, 0] > float("-inf")  # else it is no answer, wherever it comes out
        for name, hit in (
            ("ci", possible & (best[:, 0] == y)),
            ("ti", possible & (within.argmax(1) == y)),
            ("ci5", possible & (best == y[:, None]).any(1)),
        ):
            self.right[name] += np.bincount(labels, weights=hit.double().cpu().numpy(), minlength=self.classes)

    def per_class(self, name: str) -> Floats:
        """Percent right; NaN for a class that has no test samples."""
        with np.errstate(invalid="ignore"):
            return 100 * self.right[name] / self.total


def mean_over_classes(per_class: Floats, classes: Any) -> float:
    """The mean over those of `classes` that can be tested."""
    return _mean(per_class[list(classes)])


def _mean(values: Any) -> float:
    """The mean of what is not NaN."""
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else float("nan")


def forgetting(matrix: list[list[float]]) -> float:
    """Mean over the tasks of (best accuracy at any earlier point - final accuracy).

    `matrix[t][j]` is the accuracy on task j after task t. The last task has no earlier point and is left out, and so is
    a task without test samples (NaN).
    """
    final = matrix[-1]
    lost = [max(matrix[t][j] for t in range(j, len(matrix) - 1)) - final[j] for j in range(len(matrix) - 1)]
    lost = [one for one in lost if not np.isnan(one)]
    return float(np.mean(lost)) if lost else 0.0


class History:
    """The accuracies after every task so far."""

    def __init__(self) -> None:
        self.matrix: dict[str, list[list[float]]] = {"ci": [], "ti": []}
        self.incremental: dict[str, list[float]] = {"ci": [], "ti": [], "ci5": []}
        self.by_class: list[list[float]] = []

    def add(self, counts: Counts, tasks: list[tuple[int, ...]], seen: int) -> None:
        """`tasks`: the classes that each task so far is tested on."""
        for name in self.matrix:
            self.matrix[name].append([mean_over_classes(counts.per_class(name), task) for task in tasks])
        for name in self.incremental:
            self.incremental[name].append(mean_over_classes(counts.per_class(name), range(seen)))
        self.by_class.append([round(float(a), 2) for a in counts.per_class("ci")[:seen]])

    def final(self) -> dict[str, Any]:
        return {
            name: {
                "accuracy": self.incremental[name][-1],
                "forgetting": forgetting(self.matrix[name]),
                "average": _mean(self.incremental[name]),
            }
            for name in self.matrix
        } | {"top5": self.incremental["ci5"][-1]}

    def as_dict(self) -> dict[str, Any]:
        return {"matrix": self.matrix, "incremental": self.incremental, "by_class": self.by_class}

    def load(self, state: dict[str, Any]) -> None:
        self.matrix, self.incremental, self.by_class = state["matrix"], state["incremental"], state["by_class"]


def own_classes(y: NDArray[np.int64], tasks: list[tuple[int, ...]], seen: int) -> Tensor:
    """For each label, which of the classes seen belong to its task (n, seen)."""
    return task_mates(tasks, seen)[torch.from_numpy(y)]
