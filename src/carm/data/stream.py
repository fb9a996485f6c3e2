"""Streams: how the samples of a data set arrive, task after task.

`split_by_class` plans a stream: which class belongs to which task, and in which order the samples come. The plan is a
`Stream`, a fixed sequence of `Task`s that hold positions, not samples, so that it costs nothing to make again and to
compare. `Online` and `Offline` in `delivery.py` hand it out.

    stream = split_by_class(load("cifar-100"), tasks=10)
    for x, y in Online(stream, size=10): ...
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from carm.data.source import ArraySplit, Batch, Images, Source, Split

Scenario = Literal["class", "task"]


@dataclass(frozen=True, eq=False)
class Task:
    """Some samples of a split, in the order in which they arrive.

    `classes` are the labels that this task is about: those it introduces, or in a blurry stream its major classes.
    Samples of other classes may be among the indices there.
    """

    number: int
    classes: tuple[int, ...]
    split: Split
    indices: NDArray[np.int64]

    @classmethod
    def of(cls, x: Any, y: ArrayLike, *, number: int = 0) -> Task:
        """A task from your own arrays or CPU tensors, samples first."""
        if isinstance(x, list) and len({np.shape(image) for image in x}) > 1:
            raise ValueError(
                "the images of a task of arrays must have one size: crop them, or make a task over a split"
            )
        split = ArraySplit(np.asarray(x), np.asarray(y))
        return cls(number, tuple(np.unique(split.y).tolist()), split, np.arange(len(split)))

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def x(self) -> Images:
        """All images. Of image files, this decodes every one; `batches` needs less room."""
        return self.fetch().x

    @property
    def y(self) -> NDArray[np.int64]:
        """All labels, without fetching any image."""
        return self.split.y[self.indices]

    def fetch(self, start: int = 0, stop: int | None = None) -> Batch:
        """Samples `start` to `stop` in order of arrival, without those that cannot be decoded."""
        return replace(self.split.fetch(self.indices[start:stop]), task=self.number)

    def batches(self, size: int) -> Iterator[Batch]:
        """One pass in order of arrival; the last batch may be smaller.

        A batch of which no image can be decoded is left out.
        """
        for start in range(0, len(self), positive("size", size)):
            batch = self.fetch(start, start + size)
            if len(batch):
                yield batch

    def after(self, count: int) -> Task:
        """What is left of the task after its first `count` samples."""
        return self if count == 0 else replace(self, indices=self.indices[count:])


@dataclass(frozen=True, eq=False)
class Stream:
    """A planned stream: tasks over the training split of `source`, and how to test on it.

    Use the labels and the test split of *this* source: classes are numbered in the order in which they arrive.
    """

    source: Source
    tasks: tuple[Task, ...]
    scenario: Scenario = "class"

    def __post_init__(self) -> None:
        if self.scenario not in ("class", "task"):
            raise ValueError(f"scenario is {self.scenario!r}; it must be 'class' or 'task' (incremental)")
        for place, task in enumerate(self.tasks):
            if task.number != place:
                raise ValueError(
                    f"task {place} of the stream has the number {task.number}; tasks are numbered from 0, in order"
                )
            if task.split is not self.source.train:
                raise ValueError(f"task {place} is not over the training split of the stream's source; make it so")
            if len(task) == 0:
                raise ValueError(f"task {place}, with the classes {list(task.classes)}, has no samples; leave it out")
        order, length = self.indices, len(self.source.train)
        if len(order) and (order.min() < 0 or order.max() >= length):
            raise ValueError(f"the stream names samples {order.min()} to {order.max()}; there are 0 to {length - 1}")
        counts = np.bincount(order)
        if counts.max(initial=0) > 1:
            raise ValueError(f"sample {int(counts.argmax())} is in the stream twice; every sample arrives once")

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __getitem__(self, number: int) -> Task:
        return self.tasks[number]

    @property
    def indices(self) -> NDArray[np.int64]:
        """Positions in the training split of all samples, in order of arrival."""
        return np.concatenate([np.zeros(0, np.int64), *(task.indices for task in self.tasks)])

    @cached_property
    def fingerprint(self) -> int:
        """A number that differs if anything is planned differently: a position is valid in its own stream only."""
        order = self.indices
        borders = [len(task) for task in self.tasks]
        value = zlib.crc32(self.source.train.y[order].tobytes(), zlib.crc32(order.tobytes()))
        return zlib.crc32(repr((self.source.name, borders)).encode(), value)

    def seen(self, number: int) -> tuple[int, ...]:
        """The labels that have occurred once task `number` has been learned, sorted."""
        return tuple(np.unique(np.concatenate([task.y for task in self.tasks[: number + 1]])).tolist())

    def candidates(self, number: int, after: int) -> tuple[int, ...]:
        """The labels among which a sample of task `number` is to be recognised, once task `after` has been learned.

        Class-incremental: all that were seen. Task-incremental: those of its task, because the learner is told which
        it is.
        """
        return self.tasks[number].classes if self.scenario == "task" else self.seen(after)

    def test_indices(self, number: int) -> NDArray[np.int64]:
        """Positions in the test split of the samples of the classes of task `number`."""
        return np.flatnonzero(np.isin(self.source.test.y, self.tasks[number].classes))


# -- planning --------------------------------------------------------------------------------------------------------

# Class orders of the original works: iCaRL's for the sets it introduced, natural where nothing is listed.
_PAPER_ORDERS = {"cifar-100": "icarl", "imagenet-100": "icarl", "imagenet-1000": "icarl", "mini-imagenet": "shuffled"}


def class_order(rule: str, classes: int, *, seed: int = 0, name: str = "") -> NDArray[np.int64]:
    """The order in which classes arrive.

    `natural`: 0, 1, 2, ... `icarl`: the permutation with seed 1993 that iCaRL and its successors use. `shuffled`: by
    `seed`, as TinyER does in every run. `paper`: the one that the paper uses for the data set `name`, natural for
    others.
    """
    if rule == "paper":
        rule = _PAPER_ORDERS.get(name, "natural")
    if rule == "natural":
        return np.arange(classes)
    if rule == "icarl":
        return np.random.RandomState(1993).permutation(classes).astype(np.int64)
    if rule == "shuffled":
        return np.random.default_rng([seed, 0]).permutation(classes)
    raise ValueError(
        f"order is {rule!r}; it must be 'paper', 'natural', 'icarl', 'shuffled' or a list of class numbers"
    )


def task_sizes(tasks: int | Sequence[int], classes: int) -> list[int]:
    """How many classes each task has.

    A number of tasks that does not divide the classes gives the first ones one more.
    """
    if isinstance(tasks, (int, np.integer)):
        if not 1 <= tasks <= classes:
            raise ValueError(
                f"tasks is {tasks}; with {classes} classes it must be 1 to {classes}: every task needs a "
                "class of its own"
            )
        return [classes // tasks + (number < classes % tasks) for number in range(tasks)]
    sizes = [int(size) for size in tasks]
    if min(sizes, default=0) < 1 or sum(sizes) != classes:
        raise ValueError(
            f"tasks is {sizes}, {sum(sizes)} classes in all; sizes must be at least 1 and make up the {classes} classes"
        )
    return sizes


def split_by_class(
    source: Source,
    *,
    tasks: int | Sequence[int] = 10,
    order: str | Sequence[int] | NDArray[np.integer] = "paper",
    scenario: Scenario = "class",
    blurry: float = 0.0,
    samples_per_class: int | None = None,
    seed: int = 0,
) -> Stream:
    """Plan a stream in which every task brings new classes.

    tasks: how many, or a list with the number of classes of each.
    order: see `class_order`; or a list of class numbers, which may leave classes out.
    scenario: "class" or "task" incremental. The samples are the same; the candidates at test time differ.
    blurry: the share of every class that does not come with its own task but is spread evenly over all others, where
        it is a minor class. 0: tasks are disjoint.
    samples_per_class: use at most so many of each class, chosen by `seed`; a larger number includes the samples of a
        smaller one.
    seed: decides everything random. Within a task, samples arrive shuffled.
    """
    if not 0 <= blurry < 1:
        raise ValueError(f"blurry is {blurry}; it is the share of a class that comes with other tasks, 0 to below 1")
    if blurry and scenario == "task":
        raise ValueError(
            "a blurry stream cannot be task-incremental: a sample's task would not tell its candidates; use 'class'"
        )
    if samples_per_class is not None:
        positive("samples_per_class", samples_per_class)
    wanted = class_order(order, len(source.classes), seed=seed, name=source.name) if isinstance(order, str) else order
    source = source.reordered(wanted)
    sizes = task_sizes(tasks, len(source.classes))
    choosing, dealing, shuffling = (np.random.default_rng([seed, part]) for part in (1, 2, 3))

    y = source.train.y
    by_class = np.split(np.argsort(y, kind="stable"), np.cumsum(np.bincount(y, minlength=len(source.classes)))[:-1])
    arriving: list[list[NDArray[np.int64]]] = [[] for _ in sizes]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    for label, members in enumerate(by_class):
        if len(members) == 0:
            raise ValueError(
                f"class {label} of the stream ({source.classes[label]!r}) has no training samples; leave it "
                "out: order=[...] names the classes to use"
            )
        mine = int(owner[label])
        chosen = choosing.permutation(members)[:samples_per_class]
        kept, spread = _blurred(chosen, blurry, len(sizes), dealing)
        arriving[mine].append(kept)
        for other, part in zip((t for t in range(len(sizes)) if t != mine), spread, strict=False):
            arriving[other].append(part)

    ends = np.cumsum(sizes)
    planned = []
    for number, parts in enumerate(arriving):
        classes = tuple(range(int(ends[number]) - sizes[number], int(ends[number])))
        planned.append(Task(number, classes, source.train, shuffling.permutation(np.concatenate(parts))))
    return Stream(source, tuple(planned), scenario)


def _blurred(
    members: NDArray[np.int64], share: float, tasks: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Divide one class: what stays with its task, at least one sample, and an equal part for each of the others.

    What does not divide equally goes to tasks drawn at random, or the first tasks would get more of every class.
    """
    if share == 0 or tasks == 1:
        return members, []
    count = min(round(share * len(members)), len(members) - 1)
    sizes = np.full(tasks - 1, count // (tasks - 1))
    sizes[rng.permutation(tasks - 1)[: count % (tasks - 1)]] += 1
    return members[count:], np.split(members[:count], np.cumsum(sizes)[:-1])


def positive(name: str, value: int) -> int:
    """`value`, if it is one that a size or a count can have."""
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
    return value
