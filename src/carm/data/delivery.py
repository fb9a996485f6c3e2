"""How a learner receives a stream: `Online` in batches, `Offline` a task at a time.

Both make one pass, deliver no sample twice, and know their position, one number from which a run resumes exactly. They
take a planned `Stream` or any iterable of tasks, batches or `(x, y)` pairs: a stream of your own needs no class from
here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from carm.data.source import ArraySplit, Batch, Source, concatenated
from carm.data.stream import Stream, Task, positive

Out = TypeVar("Out")
Item: TypeAlias = Task | Batch | tuple[Any, ...]


class StreamBuffer:
    """Where samples wait until the learner has enough of them: first in, first out, never more than `capacity`."""

    def __init__(self, capacity: int) -> None:
        self.capacity = positive("capacity", capacity)
        self._parts: deque[Batch] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, batch: Batch) -> int:
        """Take in as many samples from the front of `batch` as there is room for, and say how many they were."""
        count = min(len(batch), self.capacity - self._count)
        if count:
            self._parts.append(batch.part(0, count))
            self._count += count
        return count

    def take(self, count: int | None = None) -> Batch:
        """The `count` samples that have waited longest, or all of them."""
        wanted = self._count if count is None else count
        if not 1 <= wanted <= self._count:
            raise ValueError(f"{wanted} samples asked of a stream buffer that holds {self._count}")
        self._count -= wanted
        taken = []
        while wanted:
            part = self._parts.popleft()
            if len(part) > wanted:
                self._parts.appendleft(part.part(wanted))
                part = part.part(0, wanted)
            wanted -= len(part)
            taken.append(part)
        return concatenated(taken)


class _Delivery(Generic[Out]):
    """One pass over any iterable of tasks or batches, with a position: how many samples have been delivered.

    A sample counts as delivered from the moment it is handed out, so a checkpoint made after a step resumes with the
    next one. To resume, make the same stream again and load the position: what was delivered is passed over, and of
    tasks nothing is fetched for that. Iterating again goes on where the last iteration stopped. Empty tasks and
    batches have nothing to learn from and are passed over.
    """

    def __init__(self, stream: Iterable[Item]) -> None:
        self._stream = stream
        self._started = False
        self._running: Iterator[Out] | None = None
        self.delivered = 0

    def __iter__(self) -> Iterator[Out]:
        return self

    def __next__(self) -> Out:
        if self._running is None:
            self._running = self._deliver()
        try:
            return next(self._running)
        except StopIteration:
            raise
        except BaseException:
            self._running = None  # or the next call would take the dead generator for the end of the stream
            raise

    def _deliver(self) -> Iterator[Out]:
        raise NotImplementedError

    def state_dict(self) -> dict[str, int]:
        state = {"delivered": self.delivered}
        if isinstance(self._stream, Stream):
            state["fingerprint"] = self._stream.fingerprint
        return state

    def load_state_dict(self, state: dict[str, int]) -> None:
        if isinstance(self._stream, Stream) and state.get("fingerprint") != self._stream.fingerprint:
            raise ValueError(
                "the position comes from another stream: data set, tasks, class order, samples_per_class, blurry "
                "share or seed differ. Resume with the settings of the saved run"
            )
        self.delivered = int(state["delivered"])
        self._running = None

    def _items(self) -> Iterator[Task | Batch]:
        """What is still to be delivered: the items behind the position, the first perhaps in part."""
        if self._started and iter(self._stream) is self._stream:
            raise ValueError(
                "the stream is an iterator that has been begun already, so the position cannot be found in it: make "
                "the stream again, and load the position before the first use"
            )
        self._started = True
        behind = self.delivered
        for item in self._stream:
            item = item if isinstance(item, (Task, Batch)) else _as_batch(item)
            if behind >= len(item):
                behind -= len(item)
            else:
                yield item.after(behind) if isinstance(item, Task) else item.part(behind)
                behind = 0
        if behind:
            raise ValueError(f"the position is sample {self.delivered}, but the stream ends {behind} before that")


class Online(_Delivery[Batch]):
    """Batches of `size` samples, each seen once. A batch is of one task: the last of a task may be smaller.

    A stream of batches of other sizes is regrouped through a buffer of `capacity` samples, by default one batch.
    """

    def __init__(self, stream: Iterable[Item], *, size: int, capacity: int | None = None) -> None:
        super().__init__(stream)
        self.size = positive("size", size)
        self.capacity = size if capacity is None else capacity
        if self.capacity < size:
            raise ValueError(f"capacity is {capacity}; the stream buffer must hold at least one batch of {size}")

    def _deliver(self) -> Iterator[Batch]:
        waiting = StreamBuffer(self.capacity)
        number = 0
        for item in self._items():
            if len(waiting) and (isinstance(item, Task) or item.task != number):
                yield self._taken(waiting, len(waiting))
            if isinstance(item, Task):
                yield from self._fetched(item)
                continue
            number = item.task
            start = 0
            while start < len(item):
                start += waiting.put(item.part(start))
                while len(waiting) >= self.size:
                    yield self._taken(waiting, self.size)
        if len(waiting):
            yield self._taken(waiting, len(waiting))

    def _fetched(self, task: Task) -> Iterator[Batch]:
        """The samples of a task wait where they are, and are fetched when it is their turn."""
        for start in range(0, len(task), self.size):
            stop = min(start + self.size, len(task))
            batch = task.fetch(start, stop)
            self.delivered += stop - start  # with those that could not be decoded: they have had their turn
            if len(batch):
                yield batch

    def _taken(self, waiting: StreamBuffer, count: int) -> Batch:
        self.delivered += count
        return waiting.take(count)


class Offline(_Delivery[Task]):
    """A task at a time; the learner may go over it several times before it asks for the next.

    A stream of batches is collected until the task number changes. `capacity` bounds the samples of a task. A larger
    task is an error, since a task-level learner can neither learn from half a task nor drop the rest unseen.
    """

    def __init__(self, stream: Iterable[Item], *, capacity: int | None = None) -> None:
        super().__init__(stream)
        self.capacity = None if capacity is None else positive("capacity", capacity)

    def _deliver(self) -> Iterator[Task]:
        waiting: list[Batch] = []
        for item in self._items():
            if waiting and (isinstance(item, Task) or item.task != waiting[0].task):
                yield self._collected(waiting)
                waiting = []
            if isinstance(item, Task):
                yield self._handed_out(item)
            else:
                waiting.append(item)
                self._check(item.task, sum(map(len, waiting)))
        if waiting:
            yield self._collected(waiting)

    def _collected(self, waiting: Sequence[Batch]) -> Task:
        batch = concatenated(waiting)
        return self._handed_out(Task.of(batch.x, batch.y, number=batch.task))

    def _handed_out(self, task: Task) -> Task:
        self._check(task.number, len(task))
        self.delivered += len(task)
        return task

    def _check(self, number: int, count: int) -> None:
        if self.capacity is not None and count > self.capacity:
            raise ValueError(
                f"task {number} has {count} samples or more, but the stream buffer holds {self.capacity}: raise "
                "capacity, make smaller tasks, or learn from batches"
            )


def stream_of(tasks: Iterable[Item], *, test: tuple[Any, Any], name: str = "own") -> Stream:
    """A `Stream`, as `carm.lab.run` wants it, of any iterable of tasks, batches, `(x, y)` or `(x, y, task number)`,
    and a pair to test on.

    Pairs without a number are a task each. Labels may be any integers: they are numbered as they arrive, and
    `stream.source.classes` has what they were. Everything is held in RAM; for more than that make a `Source` of files.
    """
    numbered = ((*i, n) if isinstance(i, (tuple, list)) and len(i) == 2 else i for n, i in enumerate(tasks))
    parts = list(Offline(numbered))
    if not parts:
        raise ValueError("tasks is empty: a stream needs samples")
    x, y = np.concatenate([np.asarray(part.x) for part in parts]), np.concatenate([part.y for part in parts])
    names, first = np.unique(y, return_index=True)
    arriving = names[np.argsort(first)]
    new = {int(label): number for number, label in enumerate(arriving)}
    unknown = sorted(set(np.asarray(test[1]).tolist()) - new.keys())
    if unknown:
        raise ValueError(f"test has the label {unknown[0]}, which no task has")
    train = ArraySplit(x, np.array([new[label] for label in y.tolist()]))
    held_out = ArraySplit(np.asarray(test[0]), np.array([new[label] for label in np.asarray(test[1]).tolist()]))
    source = Source(name, tuple(map(str, arriving.tolist())), train, held_out)
    planned, end = [], 0
    for number, part in enumerate(parts):
        begin, end = end, end + len(part)
        classes = tuple(np.unique(train.y[begin:end]).tolist())
        planned.append(Task(number, classes, train, np.arange(begin, end)))
    return Stream(source, tuple(planned))


def _as_batch(item: Any) -> Batch:
    """`(x, y)` or `(x, y, task number)`."""
    if not isinstance(item, (tuple, list)) or len(item) not in (2, 3):
        raise ValueError(
            f"the stream delivered a {type(item).__name__}; it must deliver tasks, batches, (x, y) or "
            "(x, y, task number)"
        )
    return Batch.of(item[0], item[1], task=int(item[2]) if len(item) == 3 else 0)
