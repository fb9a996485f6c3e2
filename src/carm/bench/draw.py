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
from carm.memory.orders import Order, ReadDone, ReadOrder
from carm.memory.swap import SyncWorker, Worker

Ints = NDArray[np.int64]
_QUEUE = 1024
_ORDER = 256
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


class _Idle(SyncWorker):
    """Says of every read that it is done, and reads nothing; stands in for a worker that goes on afterwards."""

    def __init__(self, worker: Worker) -> None:
        Worker.__init__(self)
        self.stands_in_for = worker

    def send(self, order: Order) -> None:
        assert isinstance(order, ReadOrder)
        self.inbox.append(ReadDone(order.ticket, np.ones(len(order.sums), bool)))


class _Beside:
    """Draws of one memory with a step of training before each: beside its worker, or beside one that does nothing.

    It runs on a core that the device does not interrupt, where there is one such device and several cores: a virtual
    disk with a single queue may announce all that it has read to one core, and whatever else runs there waits.

    Before each step twice as many swaps are ordered as the queue takes, faster than the worker carries them out. The
    step is there because training is not in the middle of ordering swaps when it draws. On the other side all of this
    is the same, and what was ordered is published too, but no byte is moved: what remains is what the worker's work
    costs a draw. Each draw is timed by itself, and the mean counts, so that those that had to wait for the worker do
    too; that the batch is freed is no part of it.
    """

    def __init__(self, memory: Memory, n: int, calls: int, step: _Step) -> None:
        assert memory._worker is not None and memory._ram is not None
        self.memory, self.n, self.calls, self.step = memory, n, calls, step
        self.worker, self.idle = memory._worker, _Idle(memory._worker)
        self.ids = memory._ram.ids
        self.rng = np.random.default_rng(4)
        self.left: list[int] = []
        """Swaps that were still under way after each draw beside the worker."""

    def _order(self) -> None:
        """Give feedback on different samples, many at a time."""
        slots = self.rng.permutation(self.memory.slots)
        for at in range(0, 2 * _QUEUE, _ORDER):
            part = slots[at : at + _ORDER]
            self.memory.feedback(Batch({}, part, self.ids[part]))

    def draws(self, worker: Worker, *, swaps: bool) -> float:
        """Seconds per draw beside `worker`."""
        memory, draw, n, clock = self.memory, self.memory.draw, self.n, time.perf_counter
        memory.flush()
        memory._worker = worker
        spent = 0.0
        for _ in range(self.calls):
            if swaps:
                self._order()
            self.step()
            begun = clock()
            batch = draw(n)
            spent += clock() - begun
            del batch
            if swaps and worker is self.worker:
                memory.poll()
                self.left.append(memory.stats()["queue_depth"])
        memory.flush()
        memory._worker = self.worker
        return spent / self.calls

    def sides(self) -> dict[str, Measure]:
        return {
            "busy": partial(self.draws, self.worker, swaps=True),
            "idle": partial(self.draws, self.idle, swaps=True),
            "none": partial(self.draws, self.worker, swaps=False),
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
    yield from _beside(work, n)
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


def _beside(work: Workspace, n: int) -> Iterator[Row]:
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
                    there = alternate({side: sides[side] for side in ("busy", "idle")}, sizes.repetitions)
        row = partial(compare, f"draw-{n}-swapping", of="speed", unit="us")
        what = f"{swap}, engine {engine}, {slots:,} slots"
        yield row(
            what,
            measured["busy"],
            measured["idle"],
            against="the same beside an idle worker",
            target=Target(">=", 0.7) if swap == "thread" else None,
            note=f"{swap}, engine {engine}: after a draw {np.median(left):.0f} swaps were still under way, and none "
            f"after {np.mean(left == 0):.0%} of the draws",
        )
        if there:
            against = "the same beside an idle worker"
            yield row(f"{what}, on the core that the device interrupts", there["busy"], there["idle"], against=against)
        against = "nothing ordered at all, the draw's code still in the caches"
        yield row(what, measured["busy"], measured["none"], against=against)


def draw_64(work: Workspace) -> Iterator[Row]:
    """`draw-64`, `draw-64-swapping`: the mini-batch of a small model, where the fixed cost of a call shows."""
    yield from _draw(work, 64, 0.35)


def draw_256(work: Workspace) -> Iterator[Row]:
    """`draw-256`, `draw-256-swapping`: a large mini-batch."""
    yield from _draw(work, 256, 0.6)
