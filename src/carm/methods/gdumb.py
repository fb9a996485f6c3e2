"""GDumb (Prabhu et al., 2020): keep a balanced memory, and train a new net on nothing but that.

The memory takes the task in first, by greedy balanced sampling. Then a net with fresh weights, optimizer and schedule
is trained on the memory alone, with CutMix and a learning rate that warms up and falls in cosines. Swapping makes it
see all of storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from carm.data.augment import Mixed, cutmix
from carm.data.stream import Task
from carm.memory.batch import Batch
from carm.memory.select import GreedyBalanced, Selection
from carm.methods.base import Method


class GDumb(Method):
    name = "gdumb"
    levels = ("task",)
    ignores = ("old_batch",)
    stored = False  # whether the memory has taken in the present task

    def selection(self) -> Selection:
        return GreedyBalanced()

    def fill_stream(self) -> None:
        if not self.stored:
            super().fill_stream()
            self.store()
            self.stored = True
        self.stream = {}

    def prepare_task(self) -> None:
        self.stored = False
        self.new_net(len(self.tasks) - 1)

    def batches(self, number: int) -> Iterator[Batch]:
        self.set_pass(number)
        yield from self.memory.bundle(batch_size=self.training.batch)

    def learn(self, batch: Batch) -> Tensor:
        x, targets = self.views.train(batch.x), Mixed.not_mixed(batch.y.to(self.device))
        if self.training.cutmix:
            x, targets = cutmix(x, targets.y_a, generator=self.views.generator, p=self.training.cutmix)
        logits = self.forward(x)
        self.feedback(batch, logits)
        loss = targets.loss(logits)
        self.descend(loss)
        return loss.detach()

    def end(self) -> None:
        """The memory has taken the task in already."""
        self.stream = {}
        self.memory.progress = 0.0

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"stored": self.stored}

    def load_state_dict(self, state: dict[str, Any], task: Task | None) -> None:
        self.stored = state["stored"]
        super().load_state_dict(state, task)
