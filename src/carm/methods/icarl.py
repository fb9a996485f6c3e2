"""iCaRL (Rebuffi et al., 2017): distillation, herding, and nearest-mean-of-exemplars classification.

For the classes of earlier tasks the target is what the net of the last task says, for every sample, old or new; for new
classes it is the truth. The memory keeps the exemplars whose running mean is closest to the class mean in feature
space, and a sample is given to the class whose exemplars' mean is nearest. The three parts can be switched off one by
one; without herding, a class keeps its latest samples, and without the nearest mean the net's outputs decide.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from carm.memory.select import Herding, Ring, Selection
from carm.methods.base import Method, check_share
from carm.methods.losses import binary, one_hot


class ICaRL(Method):
    """distill, herding, nearest_mean: the three parts.

    alpha: weight of iCaRL's loss against the binary cross-entropy with the truth for all classes; 1: iCaRL.
    "auto": the share of old classes.
    """

    name = "icarl"
    levels = ("task",)

    def __init__(
        self,
        *,
        distill: bool = True,
        herding: bool = True,
        nearest_mean: bool = True,
        alpha: float | Literal["auto"] = 1.0,
    ) -> None:
        check_share("alpha", alpha)
        self.distill, self.herding, self.nearest_mean, self.alpha = distill, herding, nearest_mean, alpha
        self.teacher: torch.nn.Module | None = None
        self.means: Tensor | None = None

    def selection(self) -> Selection:
        return Herding() if self.herding else Ring()

    def prepare_task(self) -> None:
        self.means = None  # there are more classes
        if self.distill and self.known:
            self.teacher = self.frozen_copy()

    def loss(self, logits: Tensor, y: Tensor, x: Tensor) -> Tensor:
        logits, truth = logits[:, : self.seen], one_hot(y, self.seen)
        if self.teacher is None:
            return binary(logits, truth)
        with torch.no_grad():
            targets = truth.clone()
            targets[:, self.old] = torch.sigmoid(self.teacher(x)[:, self.old])
        alpha = self.old_share if isinstance(self.alpha, str) else self.alpha
        loss = alpha * binary(logits, targets)
        return loss if alpha == 1 else loss + (1 - alpha) * binary(logits, truth)

    def descend(self, loss: Tensor) -> None:
        super().descend(loss)
        self.means = None  # the features have moved

    def store(self) -> None:
        self.means = None
        signals = {"features": self.features(self.stream["x"]).cpu()} if self.herding else None
        self.memory.add(self.stream["x"], self.stream["y"], signals=signals)

    def before_evaluation(self) -> None:
        """The mean of every class's exemplars, and of their mirror images where training mirrors too."""
        if not self.nearest_mean:
            return
        exemplars = self.memory.take(self.memory.slots)
        y = exemplars.y.to(self.device)
        means = torch.zeros(self.seen, self.net.feature_dim, device=self.device)
        for flipped in (False, True) if self.views.flips else (False,):
            means.index_add_(0, y, self.features(exemplars.x, flipped=flipped))
        means = F.normalize(means)
        means[torch.bincount(y, minlength=self.seen) == 0] = float("inf")  # no exemplar: never the nearest
        self.means = means

    def outputs(self, x: Tensor) -> Tensor:
        if self.means is None and len(self.memory):
            self.before_evaluation()
        if self.means is None:
            return super().outputs(x)
        self.net.eval()
        distance = torch.cdist(F.normalize(self.net.features(x)), self.means)
        return -distance.nan_to_num(nan=float("inf"), posinf=float("inf"))

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"teacher": None if self.teacher is None else self.teacher.state_dict()}

    def load_state_dict(self, state: dict[str, Any], task: Any) -> None:
        super().load_state_dict(state, task)
        self.means = None
        self.teacher = None if state["teacher"] is None else self.frozen_copy(state["teacher"])
