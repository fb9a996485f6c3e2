"""What it costs to store a sample, whether that grows with the store, and how long a large store takes to open."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from carm.bench.raw import Log
from carm.bench.report import Row, Target, amount, compare
from carm.bench.sizes import Sizes
from carm.bench.timing import Measure, alternate
from carm.bench.workspace import SMALL, TINY, Workspace, samples
from carm.machine import drop_cache
from carm.memory.memory import Memory
from carm.memory.select import Reservoir
from carm.memory.store import Store

_SLOTS = 2_000
_COMMIT = 2_048  # samples per commit when a store is filled
_FULL = " and room for no more"


def append(work: Workspace) -> Iterator[Row]:
    """`append`: batches of 256 records of 3 KB, on the device when the call returns; the other side writes the same
    bytes.

    The sides take turns batch by batch: a disk that slows down after a burst slows down both.
    """
    rng = np.random.default_rng(3)
    batch = samples(SMALL, 256, rng)
    packed = SMALL.pack(batch)
    pieces = [packed.data.data[s : s + n] for s, n in zip(packed.starts.tolist(), packed.sizes.tolist(), strict=True)]
    log = Log(work.directory / "append.log")
    with contextlib.closing(log), Store(work.directory / "append", schema=SMALL) as store:

        def ours() -> float:
            begun = time.perf_counter()
            store.append(batch)
            return time.perf_counter() - begun

        measured = alternate({"ours": ours, "raw": lambda: log.append(pieces)}, work.sizes.appends)
    work.discard("append")
    os.unlink(work.directory / "append.log")
    yield compare(
        "append",
        "256 records of 3 KB",
        measured["ours"],
        measured["raw"],
        of="speed",
        unit="ms",
        against="pwritev + fdatasync",
        target=Target(">=", 0.3),
    )


# -- many samples ------------------------------------------------------------------------------------------------------


def _filled(work: Workspace, count: int) -> Path:
    """A store with `count` samples of 64 bytes, in commits larger than those of a training run, to be done sooner."""
    return work.store(f"tiny-{count}", TINY, count, batch=_COMMIT)


class _Adding:
    """Adds batches to one memory, and remembers what the calls alone took."""

    def __init__(self, memory: Memory, batch: int, count: int) -> None:
        self.memory, self.batch, self.count = memory, batch, count
        self.calls: list[float] = []
        self._samples = samples(TINY, batch, np.random.default_rng(4))

    def __call__(self) -> float:
        """Seconds per sample, until all of them are on the device."""
        x, y = self._samples["x"], self._samples["y"]
        begun = time.perf_counter()
        for _ in range(self.count // self.batch):
            self.memory.add(x, y)
        added = time.perf_counter()
        self.memory.flush()
        self.calls.append((added - begun) / self.count)
        return (time.perf_counter() - begun) / self.count


def add(work: Workspace) -> Iterator[Row]:
    """`add`: does a sample cost more when many are stored already? One memory of each size, in turns: first they grow,
    then they may hold no more, and every sample that comes takes the place of another."""
    for full in (False, True):
        with contextlib.ExitStack() as stack:
            memories = {count: stack.enter_context(_filled_memory(work, count, full)) for count in work.sizes.stored}
            for batch in (10, 128):
                yield from _adding(memories, batch, work.sizes, full)
            for count, memory in memories.items():
                stats = memory.stats()
                yield amount(
                    "add",
                    f"index per sample, {count:,} stored{_FULL if full else ''}",
                    [stats["index_bytes"] / stats["stored_samples"]],
                    unit="bytes",
                    against="a bound",
                    target=Target("<=", 64),
                )
    for count in work.sizes.stored[:-1]:
        work.discard(f"tiny-{count}")


def _filled_memory(work: Workspace, count: int, full: bool) -> Memory:
    store = _filled(work, count)
    capacity = None
    if full:
        with Store(store, readonly=True) as opened:
            capacity = len(opened)
    return Memory(
        slots=_SLOTS, storage=store, storage_capacity=capacity, select=Reservoir(), swap="thread", engine="aio"
    )


def _adding(memories: dict[int, Memory], batch: int, sizes: Sizes, full: bool) -> Iterator[Row]:
    """What a sample costs in each of the memories, against the one with fewest."""
    few, *others = memories
    adding = {str(count): _Adding(memory, batch, sizes.added) for count, memory in memories.items()}
    for first in adding.values():
        first()
        first.calls.clear()
    measured = alternate(adding, 2 * sizes.repetitions + 1)
    for count in others:
        sides = {
            "until on the device": (measured[str(count)], measured[str(few)]),
            "the call alone": (adding[str(count)].calls, adding[str(few)].calls),
        }
        for what, (ours, theirs) in sides.items():
            yield compare(
                "add",
                f"batches of {batch}, {count:,} stored{_FULL if full else ''}, {what}",
                ours,
                theirs,
                of="cost",
                unit="us",
                against=f"{few:,} stored",
                target=Target("<=", 1.3),
            )


def open_many(work: Workspace) -> Iterator[Row]:
    """`open-1m`: opening a large store, per million samples, with its files in the page cache and without."""
    count = work.sizes.stored[-1]
    store = _filled(work, count)

    def opening(prepare: Callable[[], None]) -> Measure:
        def measure() -> float:
            prepare()
            begun = time.perf_counter()
            with Store(store) as opened:
                taken = time.perf_counter() - begun
                return taken / len(opened) * 1_000_000

        return measure

    measured = alternate(
        {"warm": opening(lambda: None), "dropped": opening(lambda: drop_cache(store))}, work.sizes.repetitions
    )
    for name, cache in (("warm", "page cache warm"), ("dropped", "page cache dropped")):
        yield amount(
            "open-1m",
            f"{count:,} stored, {cache}",
            measured[name],
            unit="s",
            against="a bound, per million",
            target=Target("<=", 1.0),
        )
    work.discard(store.name)
