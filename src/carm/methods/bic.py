"""BiC (Wu et al., 2019): distillation, then two numbers that undo the net's bias towards new classes.

A tenth of the memory is a validation set, balanced over the classes, on which nothing is ever trained. Stage 1 trains
on stream and memory with `alpha * soft + (1 - alpha) * hard`: soft labels at temperature 2 from the net of the last
task, alpha the share of old classes. Stage 2 freezes the net and fits one scale and one shift for the outputs of the
newest task on the validation set. Outputs are corrected wherever they are used, in the teacher too.
"""

from __future__ import annotations

import copy
import logging
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from carm.memory.batch import Batch
from carm.memory.select import Ring, Selection
from carm.methods.base import Method, check_share
from carm.methods.losses import soft

log = logging.getLogger("carm")
_PRIOR = 0.01  # how much a scale away from 1 and a shift away from 0 cost: a few separable samples ask for infinity


class BiC(Method):
    """alpha: weight of the distillation; "auto": the share of old classes. validation: share of the memory."""

    name = "bic"
    levels = ("task",)

    def __init__(
        self, *, alpha: float | Literal["auto"] = "auto", temperature: float = 2.0, validation: float = 0.1
    ) -> None:
        check_share("alpha", alpha)
        if not temperature > 0:
            raise ValueError(f"temperature={temperature}: must be above 0")
        if not 0 <= validation < 1:
            raise ValueError(f"validation={validation}: must be a share of the memory, from 0 to below 1")
        self.alpha, self.temperature, self.validation = alpha, temperature, validation
        self.budget = 0
        self.teacher: torch.nn.Module | None = None
        self.teacher_correction = self.correction = torch.zeros(0, 2)  # (scale, shift) of each class
        self.held: dict[int, list[Any]] = {}  # the validation set: samples of each class, as the memory keeps them
        self.chosen: list[int] | None = None  # those of the present task, by position

    def selection(self) -> Selection:
        return Ring()

    def slots(self, em: int) -> int:
        self.budget = round(em * self.validation)
        return em - self.budget

    # -- the validation set ------------------------------------------------------------------------------------------

    def fill_stream(self) -> None:
        super().fill_stream()
        if self.chosen is None:
            self.hold_out()
        assert self.chosen is not None
        x, y = self.stream["x"], self.stream["y"]
        kept = np.delete(np.arange(len(y)), self.chosen)
        self.stream = {"x": [x[i] for i in kept] if isinstance(x, list) else x[kept], "y": y[kept]}

    def hold_out(self) -> None:
        """Choose an equal number of each class for the validation set, before anything is trained or stored: so they
        cannot come back from storage. Older classes give up what they have too many of. Copies, because a row of an
        array would keep the whole task in RAM."""
        x, y = self.stream["x"], self.stream["y"]
        labels = sorted({*self.held, *y.tolist()})
        share = self.budget // max(len(labels), 1)
        if share == 0:
            log.warning("BiC: %d validation samples are too few for %d classes", self.budget, len(labels))
        self.chosen = []
        for label in np.unique(y).tolist():
            members = self.rng.permutation(np.flatnonzero(y == label))
            wanted = max(min(share - len(self.held.get(label, [])), len(members) - 1), 0)
            self.chosen += members[:wanted].tolist()
            self.held.setdefault(label, []).extend(copy.copy(x[int(i)]) for i in members[:wanted])
        for label in self.held:
            del self.held[label][share:]

    # -- stage 1 -----------------------------------------------------------------------------------------------------

    def prepare_task(self) -> None:
        if self.known:
            self.teacher, self.teacher_correction = self.frozen_copy(), self.correction
        self.correction = torch.tensor([[1.0, 0.0]]).repeat(self.seen, 1)
        old = self.old.cpu()
        self.correction[old] = self.teacher_correction[old]
        self.chosen = None

    def corrected(self, logits: Tensor, correction: Tensor) -> Tensor:
        """Outputs as they count; a fixed head may have some that belong to no class yet."""
        width = min(len(correction), logits.shape[1])
        scale, shift = correction[:width].to(logits.device).T
        return torch.cat([logits[:, :width] * scale + shift, logits[:, width:]], 1)

    def loss(self, logits: Tensor, y: Tensor, x: Tensor) -> Tensor:
        logits = self.corrected(logits, self.correction)
        hard = F.cross_entropy(logits, y)
        if self.teacher is None:
            return hard
        with torch.no_grad():
            taught = self.corrected(self.teacher(x), self.teacher_correction)
        alpha = self.old_share if isinstance(self.alpha, str) else self.alpha
        return alpha * soft(logits[:, self.old], taught[:, self.old], self.temperature) + (1 - alpha) * hard

    def feedback(self, batch: Batch, logits: Tensor) -> None:
        super().feedback(batch, self.corrected(logits.detach(), self.correction))

    # -- stage 2 -----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        old = set(self.old.tolist())
        if old and any(held for label, held in self.held.items() if label not in old):
            self.fit()
        super().end()

    def fit(self) -> None:
        """The scale and the shift of the newest classes that are best on the validation set, by L-BFGS."""
        x: list[Any] = [one for label in sorted(self.held) for one in self.held[label]]
        y = torch.tensor([label for label in sorted(self.held) for _ in self.held[label]], device=self.device)
        with torch.no_grad():
            plain = torch.cat([self.raw(x[at : at + 256]) for at in range(0, len(x), 256)])
        logits = self.corrected(plain, self.correction)  # of the newest classes the correction is still none
        new = torch.ones(self.seen, dtype=torch.bool, device=self.device)
        new[self.old] = False
        pair = torch.tensor([1.0, 0.0], device=self.device, requires_grad=True)
        solver = torch.optim.LBFGS([pair], max_iter=100, line_search_fn="strong_wolfe")

        def objective() -> Tensor:
            solver.zero_grad()
            fitted = torch.where(new, logits * pair[0] + pair[1], logits)
            loss = F.cross_entropy(fitted, y) + _PRIOR * ((pair[0] - 1) ** 2 + pair[1] ** 2)
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        solver.step(objective)  # type: ignore[no-untyped-call]
        self.correction[new.cpu()] = pair.detach().cpu()

    def raw(self, x: list[Any]) -> Tensor:
        return super().outputs(self.views.test(x if isinstance(x[0], (bytes, bytearray)) else np.stack(x)))

    def outputs(self, x: Tensor) -> Tensor:
        return self.corrected(super().outputs(x), self.correction)

    # -- resuming ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "teacher": None if self.teacher is None else self.teacher.state_dict(),
            "teacher_correction": self.teacher_correction,
            "correction": self.correction,
            "held": {
                label: [torch.from_numpy(np.frombuffer(s, np.uint8).copy() if isinstance(s, bytes) else s) for s in one]
                for label, one in self.held.items()
            },
            "chosen": self.chosen,
            "encoded": any(isinstance(s, bytes) for one in self.held.values() for s in one),
        }

    def load_state_dict(self, state: dict[str, Any], task: Any) -> None:
        encoded = state["encoded"]
        self.held = {
            label: [s.numpy().tobytes() if encoded else s.numpy() for s in one] for label, one in state["held"].items()
        }
        self.chosen = state["chosen"]
        self.correction, self.teacher_correction = state["correction"], state["teacher_correction"]
        super().load_state_dict(state, task)
        self.teacher = None if state["teacher"] is None else self.frozen_copy(state["teacher"])
