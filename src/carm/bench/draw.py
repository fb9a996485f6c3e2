"""How fast training gets a batch: `memory.draw` against `numpy.take` of rows that are known already.

Our side also chooses the samples, copies their labels, ids and slots, and gives tensors. The other side is one call on
a private array that nothing else uses, with different rows in every call, so that both find as much of it in the
processor's caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from carm.bench.raw import Gather
from carm.bench.report import Row, Target, compare
from carm.bench.timing import Measure, alternate
from carm.bench.workspace import NOTHING, SMALL, Workspace, fill_cache, open_memory
from carm.memory.gate import Gate, Random
from carm.memory.memory import Memory

Ints = NDArray[np.int64]
_QUEUE = 1024
_BUSY_SLOTS = 8_192  # so many that few of those drawn are being swapped already


def _quiet(memory: Memory, n: int, calls: int) -> Measure:
    """Nothing but draws; seconds per call."""

    def measure() -> float:
        memory.flush()
        draw = memory.draw
        begun = time.perf_counter()
        for _ in range(calls):
            draw(n)
        return (time.perf_counter() - begun) / calls

    return measure


def _stepping(memory: Memory, n: int, calls: int, gate: Gate) -> Measure:
    """Draws in a loop that gives feedback on every batch, with a gate that lets everything go or nothing.

    With the one, the worker is busy all the time: every batch is ordered to be replaced before the next is drawn. With
    the other, the loop is the same but for the swaps; draws in a row, with nothing in between, would find their code
    and data in the processor's caches, as no training loop does. Only the draws are timed, each by itself; the mean
    counts, so that the draws that had to wait for the worker do too. Before a draw the reports are looked at once more,
    as `add` would do in a training loop.
    """

    def measure() -> float:
        draw, feedback, clock = memory.draw, memory.feedback, time.perf_counter
        memory.gate = gate
        spent = 0.0
        while memory.stats()["queue_depth"] + n <= _QUEUE and feedback(draw(n)):
            pass  # the queue is filled before anything is timed
        for _ in range(calls):
            begun = clock()
            batch = draw(n)
            spent += clock() - begun
            feedback(batch)
            feedback(NOTHING)
        memory.flush()
        return spent / calls

    return measure


def _known(take: Callable[[list[Ints]], float], rows: int, n: int, calls: int, rng: np.random.Generator) -> Measure:
    def measure() -> float:
        return take([rng.choice(rows, n, replace=False) for _ in range(calls)])

    return measure


def _draw(work: Workspace, n: int, share: float) -> Iterator[Row]:
    sizes = work.sizes
    name, calls = f"draw-{n}", sizes.draw_calls
    store = work.small()
    rng = np.random.default_rng(2)
    for slots in sizes.draw_slots:
        gather = Gather(slots, SMALL.head_size, n)
        with open_memory(store, slots, queue=_QUEUE, swap="thread", engine="aio") as memory:
            measured = alternate(
                {
                    "ours": _quiet(memory, n, calls),
                    "fresh": _known(gather.fresh, slots, n, calls, rng),
                    "into": _known(gather.into, slots, n, calls, rng),
                },
                2 * sizes.repetitions + 1,
            )
        what = f"{slots:,} slots"
        yield compare(
            name,
            what,
            measured["ours"],
            measured["fresh"],
            of="speed",
            unit="us",
            against="numpy.take",
            target=Target(">=", share),
        )
        yield compare(
            name,
            what,
            measured["ours"],
            measured["into"],
            of="speed",
            unit="us",
            against="numpy.take(out=), memory reused",
        )
    slots = _BUSY_SLOTS
    for engine, swap in (("aio", "thread"), ("mapped", "thread"), ("aio", "process"), ("mapped", "process")):
        fill_cache(store)
        with open_memory(store, slots, queue=_QUEUE, swap=swap, engine=engine) as memory:
            sides = {
                "swapping": _stepping(memory, n, calls, Random(1.0)),
                "quiet": _stepping(memory, n, calls, Random(0.0)),
            }
            sides["swapping"]()
            measured = alternate(sides, 2 * sizes.repetitions + 1)
        yield compare(
            f"{name}-swapping",
            f"{swap}, engine {engine}, {slots:,} slots",
            measured["swapping"],
            measured["quiet"],
            of="speed",
            unit="us",
            against="the same loop, no swaps",
            target=Target(">=", 0.7) if swap == "thread" else None,
        )


def draw_64(work: Workspace) -> Iterator[Row]:
    """`draw-64`, `draw-64-swapping`: the mini-batch of a small model, where the fixed cost of a call shows."""
    yield from _draw(work, 64, 0.35)


def draw_256(work: Workspace) -> Iterator[Row]:
    """`draw-256`, `draw-256-swapping`: a large mini-batch."""
    yield from _draw(work, 256, 0.6)
