"""How fast samples come from storage into the RAM tier.

Our side is the whole path: gate and order in the training thread, the read, the checksum, the copy into a free row, the
report, and the flip that publishes it. Orders are made as training makes them, by `feedback` with a gate that lets
everything go, on batches of one shuffled pass over the RAM tier. The batches are drawn before the clock starts: drawing
is no part of a swap, and `draw` measures it.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carm.bench.raw import MOST, FilePerSample, Gather, RawAio
from carm.bench.report import Row, Target, compare
from carm.bench.timing import Measure, alternate, better
from carm.bench.workspace import LARGE, NOTHING, SMALL, Workspace, fill_cache, offsets_of, open_memory
from carm.machine import drop_cache
from carm.memory import native
from carm.memory.batch import Batch
from carm.memory.extentfile import NAME as EXTENTS
from carm.memory.memory import Memory
from carm.memory.record import Schema

Ints = NDArray[np.int64]
_REQUESTS = {1: "one request", 2: "two requests", MOST: "four requests"}
_PARTS = 4  # into which bare AIO may divide a batch
_PAUSE = 1e-4  # between two looks at the queue: the worker must not get through all of it meanwhile


def _queue(slots: int, batch: int) -> int:
    """Long enough that the worker always has the next order, and short enough that most slots are not in it."""
    return max(4 * batch, slots // 4)


def _pass(memory: Memory, batch: int) -> list[Batch]:
    """Every slot once, in batches; only where the samples came from is kept."""
    return [Batch({}, drawn.slots, drawn.ids) for drawn in memory.bundle(batch_size=batch)]


def _steady(memory: Memory, *, batch: int, queue: int) -> Measure:
    """Swap a whole RAM tier once, as fast as the worker can; seconds per sample in the steady state.

    The queue is kept full, so the worker never waits, and the clock runs only while it is. Between two looks at the
    queue this thread sleeps, as training would be in torch: looking without a pause would only take the interpreter
    away from the worker.
    """

    def swapped() -> int:
        return int(memory.stats()["swapped"])

    def measure() -> float:
        orders = _pass(memory, batch)[::-1]
        ordered = now = at_begin = swapped()
        full, begun = now + queue, time.perf_counter()
        filling = True
        while orders:
            while orders and ordered - now + batch <= queue:
                ordered += memory.feedback(orders.pop())
            time.sleep(_PAUSE)
            memory.feedback(NOTHING)  # looks at the reports
            now = swapped()
            if filling and now >= full and len(orders) * batch > queue:
                filling, at_begin, begun = False, now, time.perf_counter()
        taken = (time.perf_counter() - begun) / max(now - at_begin, 1)
        memory.flush()
        return taken

    return measure


def _in_turn(memory: Memory, *, batch: int) -> Measure:
    """The same for a synchronous memory, whose `feedback` does everything."""

    def measure() -> float:
        orders = _pass(memory, batch)
        begun = time.perf_counter()
        swapped = sum(memory.feedback(order) for order in orders)
        return (time.perf_counter() - begun) / swapped

    return measure


def _raw(aio: RawAio, offsets: Ints, rng: np.random.Generator, *, batch: int, count: int, in_flight: int) -> Measure:
    def measure() -> float:
        chosen = [rng.choice(offsets, batch, replace=False) for _ in range(max(2, count // batch))]
        return aio.read(chosen, in_flight=in_flight)

    return measure


def _cold(
    name: str,
    work: Workspace,
    store: Path,
    schema: Schema,
    *,
    slots: int,
    batches: tuple[int, ...],
    share: float,
    times: float,
) -> Iterator[Row]:
    sizes = work.sizes
    rng = np.random.default_rng(1)
    offsets, size = offsets_of(store)
    drop_cache(store)
    for batch, swap in itertools.product(batches, ("thread", "process")):
        queue = _queue(slots, batch)
        folder = f"{name}-{batch}-files"
        with contextlib.ExitStack() as stack:
            memory = stack.enter_context(open_memory(store, slots, queue=queue, swap=swap, engine="aio"))
            sides: dict[str, Measure] = {
                "ours": _steady(memory, batch=batch, queue=queue),
            }
            bare: dict[str, Measure] = {}
            for each in (batch, batch // _PARTS):
                aio = RawAio(store / EXTENTS, size=size, batch=each)
                stack.callback(aio.close)
                for requests, said in _REQUESTS.items():
                    measure = _raw(aio, offsets, rng, batch=each, count=slots, in_flight=requests)
                    bare[f"{said} of {each} in flight"] = measure
            sides |= bare
            if swap == "thread":
                scheme = FilePerSample(work.directory / folder, size=schema.head_size, files=sizes.files, slots=slots)
                sides["files"] = partial(stack.enter_context(scheme).swap, sizes.files // 2, batch, rng)
            measured = alternate(sides, sizes.repetitions)
        work.discard(folder)
        best = better(measured, list(bare))
        yield compare(
            name,
            f"{swap}, batches of {batch}",
            measured["ours"],
            measured[best],
            of="speed",
            unit="items/s",
            against=f"raw Linux AIO, {best}",
            target=Target(">=", share) if swap == "thread" else None,
        )
        if swap == "thread":
            yield compare(
                name,
                f"{swap}, batches of {batch}",
                measured["ours"],
                measured["files"],
                of="speed",
                unit="items/s",
                against="file per sample + Manager",
                target=Target(">=", times),
            )


def cold_3k(work: Workspace) -> Iterator[Row]:
    """`swap-cold-3k`: records of 3 KB from the device."""
    yield from _cold(
        "swap-cold-3k",
        work,
        work.small(),
        SMALL,
        slots=work.sizes.small_slots,
        batches=(128, 256),
        share=0.75,
        times=10,
    )


def cold_110k(work: Workspace) -> Iterator[Row]:
    """`swap-cold-110k`: records of 110 KB from the device."""
    yield from _cold(
        "swap-cold-110k",
        work,
        work.large(),
        LARGE,
        slots=work.sizes.large_slots,
        batches=(128,),
        share=0.75,
        times=2,
    )
    work.discard("large")


def warm(work: Workspace) -> Iterator[Row]:
    """`swap-warm`: records of 3 KB from the page cache, against a copy out of an array as large as the store."""
    sizes = work.sizes
    store, slots, batch = work.small(), sizes.small_slots, 256
    queue = _queue(slots, batch)
    fill_cache(store)
    rng = np.random.default_rng(1)
    gather = Gather(sizes.small_records, SMALL.head_size, batch)

    def copy() -> float:
        rows = [rng.integers(0, sizes.small_records, batch) for _ in range(max(2, slots // batch))]
        return gather.into(rows) / batch

    variants = [("thread", True), ("process", True), ("sync", True)]
    if native.library is not None:
        variants.insert(1, ("thread", False))
    for swap, compiled in variants:
        with (
            contextlib.nullcontext() if compiled else native.without(),
            open_memory(store, slots, queue=queue, swap=swap, engine="mapped") as memory,
        ):
            ours = _in_turn(memory, batch=batch) if swap == "sync" else _steady(memory, batch=batch, queue=queue)
            ours()  # the first pass maps the file's pages
            measured = alternate({"ours": ours, "copy": copy}, sizes.repetitions)
        yield compare(
            "swap-warm",
            f"{swap}, batches of {batch}{'' if compiled else ', without compiled code'}",
            measured["ours"],
            measured["copy"],
            of="speed",
            unit="items/s",
            against="memcpy gather",
            target=Target(">=", 0.3) if swap == "thread" and compiled else None,
        )
