"""DER++ (Buzzega et al., 2020): replay what the net said, and what was true.

Three parts a step: the cross-entropy of new samples; the squared distance between the outputs for old samples and the
outputs stored with them; and the cross-entropy of other old samples. The outputs ("logits") are a field of the sample,
in RAM and in storage. The head has all its outputs from the start, so that stored ones keep their length. What is
stored are the outputs of the last time that the sample was trained on as a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from carm.memory.batch import Batch, concatenate
from carm.memory.samples import take
from carm.methods.base import Method, stored_fields


class DERpp(Method):
    """alpha: weight of the stored outputs; "auto": the share of old classes. beta: weight of old samples' labels."""

    name = "der++"
    head = "fixed"

    def __init__(self, *, alpha: float | Literal["auto"] = 0.2, beta: float = 0.5) -> None:
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not isinstance(value, str) and not value >= 0:
                raise ValueError(f"{name}={value!r}: must be 0 or more" + (', or "auto"' if name == "alpha" else ""))
        self.alpha, self.beta = alpha, beta

    def prepare_task(self) -> None:
        if self.net.classes < self.seen:
            raise ValueError(
                f"DER++ stores outputs, whose number must not change: the net has {self.net.classes} and needs "
                f"{self.seen} or more from the start; give it a fixed head"
            )

    def fill_stream(self) -> None:
        super().fill_stream()
        if self.stream:
            self.said = torch.zeros(len(self.stream["y"]), self.net.classes)  # the outputs for each new sample

    def batches(self, number: int) -> Iterator[Batch]:
        self.set_pass(number)
        if self.level == "batch":
            for part in self.task.batches(self.training.batch):
                self.spoken = torch.zeros(len(part), self.net.classes)
                self.rows = torch.arange(len(part))
                new = take(stored_fields(part), np.arange(len(part)))
                yield new
                if number == 0:
                    self.memory.add(new.x, new.y, logits=self.spoken)
        else:
            order = self.rng.permutation(len(self.stream["y"]))
            self.spoken = self.said
            for at in range(0, len(order), self.training.batch):
                self.rows = torch.from_numpy(order[at : at + self.training.batch])
                self.memory.poll()
                yield take(self.stream, order[at : at + self.training.batch])

    def learn(self, batch: Batch) -> Tensor:
        """The new samples and both draws of old ones go through the net together: one forward pass, one batch norm."""
        size, parts = self.training.old_batch or self.training.batch, [batch]
        if len(self.memory):
            parts += [self.memory.draw(size), self.memory.draw(size)]
        x = self.views.train(_joined([part.x for part in parts]))
        outputs = torch.split(self.forward(x), [len(part) for part in parts])
        self.spoken[self.rows] = outputs[0].detach().cpu()
        loss = F.cross_entropy(outputs[0], batch.y.to(self.device))
        if len(parts) > 1:
            self.feedback(*_once(concatenate(parts[1:]), torch.cat(outputs[1:])))
            loss = loss + self.as_said(parts[1], outputs[1]) + self.as_labelled(parts[2], outputs[2])
        self.descend(loss)
        return loss.detach()

    def as_said(self, old: Batch, logits: Tensor) -> Tensor:
        alpha = self.old_share if isinstance(self.alpha, str) else self.alpha
        return alpha * F.mse_loss(logits, old["logits"].to(self.device))

    def as_labelled(self, old: Batch, logits: Tensor) -> Tensor:
        return self.beta * F.cross_entropy(logits, old.y.to(self.device))

    def store(self) -> None:
        self.memory.add(self.stream["x"], self.stream["y"], logits=self.said)

    def state_dict(self) -> dict[str, object]:
        return super().state_dict() | {"said": self.said if self.stream else None}

    def load_state_dict(self, state: dict[str, object], task: object) -> None:
        super().load_state_dict(state, task)  # type: ignore[arg-type]
        if isinstance(state["said"], Tensor):
            self.said = state["said"].clone()


def _once(old: Batch, logits: Tensor) -> tuple[Batch, Tensor]:
    """Each sample once, though both draws may have it: the gate shall not judge it twice."""
    _, first = np.unique(old.slots, return_index=True)
    rows = torch.from_numpy(first)
    return Batch({"y": old.y[rows]}, old.slots[first], old.ids[first]), logits[rows.to(logits.device)]


def _joined(parts: list[object]) -> object:
    """Samples of several batches: tensors one after the other, or one list of encoded images."""
    if isinstance(parts[0], list):
        return [one for part in parts if isinstance(part, list) for one in part]
    return torch.cat([part for part in parts if isinstance(part, Tensor)])
