"""How fast training gets a batch: `memory.draw` against `numpy.take` of rows that are known already.

Our side also chooses the samples, copies their labels, ids and slots, and gives tensors. The other side is one call on
a private array that nothing else uses, with different rows in every call, so that both find as much of it in the
processor's caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from carm.bench.raw import Copying, Gather
from carm.bench.report import Row, Target, compare
from carm.bench.timing import Measure, alternate
from carm.bench.workspace import SMALL, Workspace, fill_cache, open_memory
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


class _Step:
    """What a training loop does between two draws, on one core: a convolution."""

    def __init__(self) -> None:
        self._layer = torch.nn.Conv2d(16, 16, 3)
        self._x = torch.randn(8, 16, 32, 32)

    def __call__(self) -> None:
        with torch.no_grad():
            self._layer(self._x)

    def __enter__(self) -> _Step:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the other core is the worker's
        return self

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._threads)


def _stepping(memory: Memory, n: int, calls: int, gate: Gate, step: _Step) -> Measure:
    """Draws with a step of training before each, while the worker is busy or, with a gate that lets nothing go, idle.

    The worker has as many orders as its queue takes before each step, so it is busy all the time. The step is there on
    both sides because it leaves nothing of a draw's code and data in the processor's caches, as in any training loop;
    without it, the side that makes no orders would find them there, and the other would not. Only the draws behind it
    are timed, each by itself; the mean counts, so that the draws that had to wait for the worker do too.
    """

    def measure() -> float:
        draw, feedback, clock = memory.draw, memory.feedback, time.perf_counter
        memory.gate = gate
        spent = 0.0
        for _ in range(calls):
            while feedback(draw(n)) and memory.stats()["queue_depth"] + n <= _QUEUE:
                pass
            step()
            begun = clock()
            draw(n)
            spent += clock() - begun
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
        with _Step() as step, open_memory(store, slots, queue=_QUEUE, swap=swap, engine=engine) as memory:
            sides = {
                "swapping": _stepping(memory, n, calls, Random(1.0), step),
                "quiet": _stepping(memory, n, calls, Random(0.0), step),
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
    gather = Gather(slots, SMALL.head_size, n)
    bare = _known(gather.fresh, slots, n, calls, rng)
    with Copying(sizes.small_records, SMALL.head_size, n) as other:
        measured = alternate({"beside": other.beside(bare), "alone": bare}, 2 * sizes.repetitions + 1)
    yield compare(
        f"{name}-swapping",
        f"bare numpy.take, {slots:,} rows, while another process copies rows",
        measured["beside"],
        measured["alone"],
        of="speed",
        unit="us",
        against="the same, alone",
    )


def draw_64(work: Workspace) -> Iterator[Row]:
    """`draw-64`, `draw-64-swapping`: the mini-batch of a small model, where the fixed cost of a call shows."""
    yield from _draw(work, 64, 0.35)


def draw_256(work: Workspace) -> Iterator[Row]:
    """`draw-256`, `draw-256-swapping`: a large mini-batch."""
    yield from _draw(work, 256, 0.6)
