"""What the methods have in common: the five stages around a net and a memory.

    method = ER()
    memory = carm.Memory(method.slots(2000), select=method.selection(), storage=...)
    method.start(memory=memory, make_net=..., views=..., training=Training(...))
    for task in stream:
        method.begin(task)                                  # I: its samples are in the stream buffer
        for number in range(method.training.passes):
            for batch in method.batches(number):            # T: mini-batches of old and new
                method.learn(batch)                         #    and R: the gate sees the old ones
            method.end_pass(number)
        method.end()                                        # M and S: the memory takes the task in
        method.before_evaluation()                          # once before a series of scores, such as class means
        method.scores(x)                                    # a number for every class seen

A method of your own overrides `loss`, and whichever of these stages it does differently.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from carm.data.stream import Task
from carm.data.views import Views
from carm.memory.batch import Batch, concatenate
from carm.memory.memory import Memory
from carm.memory.samples import take
from carm.memory.select import Reservoir, Selection
from carm.methods.training import Training
from carm.nets import Net
from carm.nets.head import task_mates

Level = Literal["task", "batch"]
MakeNet = Callable[[int], Net]
_CHUNK = 256  # samples at a time where a whole task or memory goes through the net


class Method:
    """Base class: replay of old samples beside new ones, with the cross-entropy of both.

    Options are keyword arguments of `__init__`, with annotations and defaults: the command line is made from them.
    `level` says when the memory takes samples in: after every task, or after every mini-batch; `levels`, which of the
    two the method can do. `ignores` names the settings of training that mean nothing to it, so that a configuration
    which has them is refused.
    """

    name: ClassVar[str] = ""
    head: ClassVar[Literal["growing", "fixed"]] = "growing"
    level: Level = "task"
    levels: ClassVar[tuple[Level, ...]] = ("task", "batch")
    ignores: ClassVar[tuple[str, ...]] = ("cutmix",)
    net: Net
    optimizer: torch.optim.SGD

    # -- before the first task ---------------------------------------------------------------------------------------

    def selection(self) -> Selection:
        """What RAM keeps."""
        return Reservoir()

    def slots(self, em: int) -> int:
        """Slots of the RAM tier, of an episodic memory of `em` samples."""
        return em

    def start(
        self,
        *,
        memory: Memory,
        make_net: MakeNet,
        views: Views,
        training: Training,
        level: Level | None = None,
        seed: int = 0,
    ) -> None:
        """Get ready for the first task. `make_net(number)` builds a net; the same number gives the same weights."""
        self.memory, self.views, self.training, self._make = memory, views, training, make_net
        self.device = views.device
        if level is not None and level not in self.levels:
            raise ValueError(f"level={level!r}: {self.name} works at the level {', '.join(self.levels)} only")
        self.level = level if level is not None else self.level
        self.rng = np.random.default_rng([seed, 7])
        self.tasks: list[tuple[int, ...]] = []
        """The classes of each task so far."""
        self.old = torch.zeros(0, dtype=torch.long, device=self.device)
        """The classes of earlier tasks, without those that the present one is about again."""
        self.stream: dict[str, Any] = {}
        """The stream buffer: the present task's samples."""
        self.new_net(0)

    def new_net(self, number: int) -> None:
        """A net with fresh weights, and an optimizer for it."""
        self.net = self.build(number)
        if self.tasks and self.head == "growing":
            self.net.grow(self.seen)
        self.new_optimizer()

    def build(self, number: int) -> Net:
        net = self._make(number).to(self.device)
        if self.views.channels_last:
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return net

    def new_optimizer(self) -> None:
        self.optimizer = self.training.optimizer(self.net.parameters())

    @property
    def seen(self) -> int:
        """Classes so far. Labels are given in the order in which classes arrive, so these are 0 to seen - 1."""
        return max((max(task) for task in self.tasks), default=-1) + 1

    @property
    def known(self) -> int:
        """Classes before the present task."""
        return max((max(task) for task in self.tasks[:-1]), default=-1) + 1

    def classmates(self) -> Tensor:
        """For task-incremental losses: which classes have been in a task with each class (seen, seen)."""
        return task_mates(self.tasks, self.seen).to(self.device)

    # -- I: a task comes in ------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> None:
        """A task has arrived: make room for its classes, and start a new optimizer."""
        self.tasks.append(self.classes_of(task))
        self.enter(task)
        self.prepare_task()
        if self.net.classes < self.seen:
            self.net.grow(self.seen)
        self.new_optimizer()
        self.fill_stream()

    def enter(self, task: Task) -> None:
        """Know which task this is, at its beginning or in the middle of it."""
        self.task = task
        earlier = {label for classes in self.tasks[:-1] for label in classes}
        self.old = torch.tensor(sorted(earlier - set(task.classes)), dtype=torch.long, device=self.device)

    @property
    def old_share(self) -> float:
        """The share of old classes among all seen."""
        return len(self.old) / len({label for classes in self.tasks for label in classes})

    @staticmethod
    def classes_of(task: Task) -> tuple[int, ...]:
        """A task's own classes, and in a blurry stream those of other tasks that it brings samples of."""
        return tuple(sorted({*task.classes, *np.unique(task.y).tolist()}))

    def prepare_task(self) -> None:
        """For subclasses: called when the classes of the task are known, and the head has not grown for them yet."""

    def fill_stream(self) -> None:
        """Fetch the task into the stream buffer. Batch-level methods fetch mini-batch by mini-batch instead."""
        if self.level == "batch":
            self.stream = {}
            return
        parts = [stored_fields(part) for part in self.task.batches(_CHUNK)]
        if not parts:
            raise ValueError(f"task {self.task.number + 1} has {len(self.task)} samples, and none can be decoded")
        x = [part["x"] for part in parts]
        whole = [one for part in x for one in part] if isinstance(x[0], list) else np.concatenate(x)
        self.stream = {"x": whole, "y": np.concatenate([part["y"] for part in parts])}

    # -- T: training -------------------------------------------------------------------------------------------------

    def batches(self, number: int) -> Iterator[Batch]:
        """The mini-batches of pass `number`."""
        self.set_pass(number)
        if self.level == "batch":
            yield from self.online_batches(number)
        else:
            yield from self.memory.bundle(
                self.stream, batch_size=self.training.batch, old_per_batch=self.training.old_batch or None
            )

    def set_pass(self, number: int) -> None:
        self.net.train()
        self.memory.progress = number / self.training.passes
        for group in self.optimizer.param_groups:
            group["lr"] = self.training.lr_at(number)

    def online_batches(self, number: int) -> Iterator[Batch]:
        """Samples in order of arrival; beside each mini-batch as many old ones as the training says, or as it has new.

        The memory takes them in during the first pass: a sample that comes by again is still the same sample.
        """
        for part in self.task.batches(self.training.batch):
            fields = stored_fields(part)
            new = take(fields, np.arange(len(part)))
            size = self.training.old_batch or len(part)
            yield concatenate([new, self.memory.draw(size)]) if len(self.memory) else new
            if number == 0:
                self.take_in(new)

    def take_in(self, new: Batch) -> None:
        """Batch level: the memory takes in a mini-batch that has been learned."""
        self.memory.add(new.x, new.y)

    def learn(self, batch: Batch) -> Tensor:
        """One step on a mini-batch; returns the loss."""
        x, y = self.views.train(batch.x), batch.y.to(self.device)
        logits = self.forward(x)
        self.feedback(batch, logits)
        loss = self.loss(logits, y, x)
        self.descend(loss)
        return loss.detach()

    def forward(self, x: Tensor) -> Tensor:
        """The net's outputs in training. Batch norm cannot take its statistics from one sample, such as the last of a
        pass: that one goes through with those of the batches before."""
        if not self.net.training:  # somebody asked for `scores` in the middle of a pass
            self.net.train()
        if len(x) > 1:
            logits: Tensor = self.net(x)
            return logits
        self.net.eval()
        logits = self.net(x)
        self.net.train()
        return logits

    def loss(self, logits: Tensor, y: Tensor, x: Tensor) -> Tensor:
        """The loss of a mini-batch."""
        return F.cross_entropy(logits, y)

    def feedback(self, batch: Batch, logits: Tensor) -> None:
        """R: let the gate see how the old samples did. Before the backward pass, which hides the swaps."""
        self.memory.feedback(batch, logits.detach()[:, : self.seen], target=batch.y)

    def descend(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if self.training.clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.training.clip)
        self.optimizer.step()

    def end_pass(self, number: int) -> None:
        """For subclasses: called when pass `number` is over."""

    # -- M and S: the memory takes the task in -----------------------------------------------------------------------

    def end(self) -> None:
        """The task is over: the memory takes in what is in the stream buffer."""
        if self.level == "task":
            self.store()
        self.stream = {}
        self.memory.progress = 0.0

    def store(self) -> None:
        self.memory.add(self.stream["x"], self.stream["y"])

    # -- prediction --------------------------------------------------------------------------------------------------

    def before_evaluation(self) -> None:
        """For subclasses: called before a series of `scores`."""

    @torch.no_grad()
    def scores(self, x: Any) -> Tensor:
        """For every class seen a number; the largest is the prediction. `x` as the memory has it, or
        decoded."""
        return self.outputs(self.views.test(x))

    def outputs(self, x: Tensor) -> Tensor:
        self.net.eval()
        logits: Tensor = self.net(x)
        return logits[:, : self.seen]

    @torch.no_grad()
    def features(self, x: Any, *, flipped: bool = False) -> Tensor:
        """L2-normalised features of unaugmented samples (n, d), computed in pieces."""
        self.net.eval()
        out = []
        for at in range(0, len(x), _CHUNK):
            views = self.views.test(x[at : at + _CHUNK])
            out.append(F.normalize(self.net.features(views.flip(-1) if flipped else views)))
        return torch.cat(out) if out else torch.zeros(0, self.net.feature_dim, device=self.device)

    # -- resuming ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on from the end of a pass, apart from the memory: tensors, numbers, strings, lists."""
        return {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "tasks": [list(task) for task in self.tasks],
            "rng": self.rng.bit_generator.state,
            "views": self.views.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any], task: Task | None) -> None:
        """Go on from there. `task` is the task that was being learned; None between two tasks."""
        self.tasks = [tuple(classes) for classes in state["tasks"]]
        self.net.load_state_dict(state["net"])
        self.new_optimizer()
        self.optimizer.load_state_dict(state["optimizer"])
        self.rng.bit_generator.state = state["rng"]
        self.views.load_state_dict(state["views"])
        if task is not None:
            self.enter(task)
            self.fill_stream()

    def frozen_copy(self, state: dict[str, Any] | None = None) -> Net:
        """The present net (or the one whose state is given) as a teacher that does not learn."""
        if state is None:
            teacher = copy.deepcopy(self.net)
        else:
            teacher = self.build(0)  # laid out in memory like the net, or its sums would round differently
            teacher.load_state_dict(state)
        return teacher.eval().requires_grad_(False)

    # -- options -----------------------------------------------------------------------------------------------------

    @classmethod
    def options(cls) -> dict[str, inspect.Parameter]:
        """The options that this method takes."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}


def check_share(name: str, value: float | str) -> None:
    """Complain about what is neither a weight from 0 to 1 nor "auto"."""
    if value != "auto" and (isinstance(value, str) or not 0 <= value <= 1):
        raise ValueError(f'{name}={value!r}: must be a number from 0 to 1, or "auto"')


def stored_fields(part: Any) -> dict[str, Any]:
    """A part of a task as the memory keeps it: photographs stay encoded."""
    return {"x": part.encoded if part.encoded is not None else part.array, "y": part.y}
