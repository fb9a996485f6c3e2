"""How fast training gets a batch: `memory.draw` against `numpy.take` of rows that are known already.

Our side also chooses the samples, copies their labels, ids and slots, and gives tensors. The other side is one call on
a private array that nothing else uses, with different rows in every call, so that both find as much of it in the
processor's caches.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from carm.bench.cores import interrupted_core, kept_from, kept_on
from carm.bench.raw import Copying, Gather
from carm.bench.report import Row, Target, compare
from carm.bench.timing import Measure, alternate
from carm.bench.workspace import SMALL, Workspace, fill_cache, open_memory
from carm.memory.batch import Batch
from carm.memory.gate import Random
from carm.memory.memory import Memory

Ints = NDArray[np.int64]
_QUEUE = 1024
_ORDER = 256
_BUSY_SLOTS = 8_192  # so many that few of those drawn are being swapped already
_PICTURES = 2_000
_KEPT = 0.7  # of a draw's speed, and of its share of a bare copy's, beside a worker at full speed


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


class _Beside:
    """Draws of one memory, or bare copies, with a step of training before each: beside its worker, or with nothing
    ordered.

    The step is there because training does not do nothing but draw. Before it the queue is filled whenever it is half
    empty, so that the worker has always something to do. Each draw is timed by itself, and the mean counts, so that
    those that had to wait for the worker do too; that the batch is freed is no part of it.

    It runs on a core that the device does not interrupt, where there is one such device and several cores: a virtual
    disk with a single queue may announce all that it has read to one core, and whatever else runs there waits.
    """

    def __init__(self, memory: Memory, n: int, calls: int, step: _Step) -> None:
        assert memory._carousel is not None and memory._ram is not None
        self.memory, self.n, self.calls, self.step = memory, n, calls, step
        self.carousel, self.ids = memory._carousel, memory._ram.ids
        self.rng = np.random.default_rng(4)
        self.array = np.ones((len(memory), SMALL.head_size), np.uint8)
        self.left: list[int] = []
        """Swaps that were still under way after each draw beside the worker."""

    def _fill_queue(self) -> None:
        """Give feedback on different samples, many at a time."""
        self.memory.poll()
        if self.carousel.outstanding > _QUEUE // 2:
            return
        slots = self.rng.permutation(self.memory.slots)
        for at in range(0, 2 * _QUEUE, _ORDER):
            part = slots[at : at + _ORDER]
            self.memory.feedback(Batch({}, part, self.ids[part]))

    def _timed(self, call: Callable[[Ints], object], *, swaps: bool) -> float:
        """Seconds per call, which gets different rows each time."""
        memory, clock = self.memory, time.perf_counter
        memory.flush()
        spent = 0.0
        for _ in range(self.calls):
            rows = self.rng.choice(len(self.array), self.n, replace=False)
            if swaps:
                self._fill_queue()
            self.step()
            begun = clock()
            made = call(rows)
            spent += clock() - begun
            del made
            if swaps:
                memory.poll()
                self.left.append(self.carousel.outstanding)
        memory.flush()
        return spent / self.calls

    def sides(self) -> dict[str, Measure]:
        def draw(_: Ints) -> object:
            return self.memory.draw(self.n)

        def take(rows: Ints) -> object:
            return np.take(self.array, rows, axis=0)

        return {
            "busy": partial(self._timed, draw, swaps=True),
            "quiet": partial(self._timed, draw, swaps=False),
            "take": partial(self._timed, take, swaps=True),
        }


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
    yield from _varying(work, n)
    yield from _beside(work, n, share)
    slots = _BUSY_SLOTS
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


def _varying(work: Workspace, n: int) -> Iterator[Row]:
    """Draws of samples that differ in size, as pictures do; the other side joins known ones that lie in one piece
    each."""
    rng = np.random.default_rng(6)
    pictures = [rng.bytes(int(size)) for size in rng.integers(5_000, 30_000, _PICTURES)]
    calls = work.sizes.draw_calls
    with Memory(slots=_PICTURES) as memory:
        memory.add(pictures, np.arange(_PICTURES) % 10)

        def known() -> float:
            batches = [rng.choice(_PICTURES, n, replace=False).tolist() for _ in range(calls)]
            begun = time.perf_counter()
            for rows in batches:
                b"".join([pictures[row] for row in rows])
            return (time.perf_counter() - begun) / calls

        measured = alternate({"ours": _quiet(memory, n, calls), "joined": known}, 2 * work.sizes.repetitions + 1)
    yield compare(
        f"draw-{n}",
        f"{_PICTURES:,} slots, samples of 5 to 30 KB",
        measured["ours"],
        measured["joined"],
        of="speed",
        unit="us",
        against="bytes.join of known ones",
    )


def _beside(work: Workspace, n: int, share: float) -> Iterator[Row]:
    """Draws beside every kind of worker."""
    sizes, store, slots = work.sizes, work.small(), _BUSY_SLOTS
    interrupted = interrupted_core(store)
    for engine, swap in (("aio", "thread"), ("mapped", "thread"), ("aio", "process"), ("mapped", "process")):
        fill_cache(store)
        with (
            _Step() as step,
            open_memory(store, slots, queue=_QUEUE, swap=swap, engine=engine, gate=Random(1.0)) as memory,
        ):
            beside = _Beside(memory, n, sizes.draw_calls, step)
            sides = beside.sides()
            sides["busy"]()
            beside.left.clear()
            with kept_from(interrupted):
                measured = alternate(sides, 2 * sizes.repetitions + 1)
            left = np.array(beside.left)
            there: dict[str, list[float]] = {}
            if interrupted is not None and engine == "aio":
                with kept_on(interrupted):
                    there = alternate({side: sides[side] for side in ("busy", "quiet")}, sizes.repetitions)
        row = partial(compare, f"draw-{n}-swapping", of="speed", unit="us")
        source = "from the device" if engine == "aio" else "out of the page cache"
        what = f"{swap} that reads {source}, {slots:,} slots"
        judged = swap == "thread"
        yield row(
            what,
            measured["busy"],
            measured["quiet"],
            against="the same, nothing ordered",
            target=Target(">=", _KEPT) if judged else None,
            note=f"{swap} that reads {source}: after a draw {np.median(left):.0f} swaps were still under way, and none "
            f"after {np.mean(left == 0):.0%} of the draws",
        )
        yield row(
            what,
            measured["busy"],
            measured["take"],
            against="numpy.take beside the same worker",
            target=Target(">=", round(_KEPT * share, 3)) if judged else None,
        )
        if there:
            against = "the same, nothing ordered"
            yield row(f"{what}, on the core that the device interrupts", there["busy"], there["quiet"], against=against)


def draw_64(work: Workspace) -> Iterator[Row]:
    """`draw-64`, `draw-64-swapping`: the mini-batch of a small model, where the fixed cost of a call shows."""
    yield from _draw(work, 64, 0.35)


def draw_256(work: Workspace) -> Iterator[Row]:
    """`draw-256`, `draw-256-swapping`: a large mini-batch."""
    yield from _draw(work, 256, 0.6)
