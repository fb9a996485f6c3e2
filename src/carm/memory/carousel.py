"""Stage R: orders replacements for samples that may leave the RAM tier, and publishes them when they have been read.

An order takes a slot, a stored sample of the same class that is not in RAM, and free blocks; it ends when the worker
reports. If the slot was given to another sample meanwhile, the replacement is dropped. So slots never change class,
never wait, and never have two orders.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from carm.memory.gate import AutoRatio
from carm.memory.orders import ReadDone, ReadOrder
from carm.memory.ram import RamTier
from carm.memory.stats import Stats
from carm.memory.store import Store

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Swap:
    """An order that has not been reported yet."""

    slots: Ints
    old_ids: Ints
    old_handles: Ints
    handles: Ints
    blocks: Ints  # those that the records are read into
    sizes: Ints | None  # of the records, where they differ
    first: Ints  # first block of each record
    ordered: float


class Carousel:
    """The swaps under way between one RAM tier and one store."""

    def __init__(
        self,
        ram: RamTier,
        store: Store,
        stats: Stats,
        rng: np.random.Generator,
        send: Callable[[ReadOrder], None],
        auto: Callable[[], AutoRatio | None],
    ) -> None:
        self.ram, self.store, self.stats, self.rng = ram, store, stats, rng
        self.outstanding = 0
        """Swaps under way; at most as many as the RAM tier has spare records."""
        self.in_flight = np.zeros(ram.table, bool)
        self.swaps: dict[int, Swap] = {}
        self._send = send
        self._auto = auto  # of the gate that is there now
        self._ticket = 0

    def order(self, slots: Ints, ids: Ints) -> int:
        """Order a replacement for each of `slots`, which hold the samples `ids`, as far as possible."""
        ram, index, stats = self.ram, self.store.index, self.stats
        stats.picked += len(slots)
        slots, ids = self._fit(slots, ids)
        if not len(slots):
            return 0
        old = ram.handles[slots].astype(np.int64)
        handles = index.sets.take_like(old, self.rng)  # what is in RAM has its slot's label
        none = handles < 0
        if np.count_nonzero(none):
            stats.dropped["no other sample"] += int(none.sum())
            slots, ids, old, handles = slots[~none], ids[~none], old[~none], handles[~none]
        sizes = None if ram.schema.fixed else index.sizes[handles].astype(np.int64)
        blocks = ram.take_blocks(len(handles)) if sizes is None else ram.allocate(sizes)
        while blocks is None:  # only where sizes vary: the last orders make way until the rest fits
            assert sizes is not None
            index.sets.release(int(handles[-1]))
            stats.dropped["no room"] += 1
            slots, ids, old, handles, sizes = slots[:-1], ids[:-1], old[:-1], handles[:-1], sizes[:-1]
            blocks = ram.allocate(sizes)
        n = len(slots)
        if n == 0:
            return 0
        self._ticket += 1
        self.in_flight[slots] = True
        self.outstanding += n
        stats.ordered += n
        stats.deepest = max(stats.deepest, self.outstanding)
        rows = blocks.astype(np.int64)
        first = rows if sizes is None else ram.first_blocks(rows, sizes)
        self.swaps[self._ticket] = Swap(slots, ids, old, handles, rows, sizes, first, time.monotonic())
        self._send(ReadOrder(self._ticket, index.offsets[handles], sizes, index.sums[handles], rows))
        return n

    def _fit(self, slots: Ints, ids: Ints) -> tuple[Ints, Ints]:
        """Those of `slots` for which an order makes sense now."""
        dropped = self.stats.dropped
        busy = self.in_flight[slots]
        unstored = self.ram.handles[slots] < 0
        unfit = busy | unstored
        if np.count_nonzero(unfit):
            dropped["in flight"] += int(busy.sum())
            dropped["not stored yet"] += int((unstored & ~busy).sum())
            slots, ids = slots[~unfit], ids[~unfit]
        if len(set(slots.tolist())) < len(slots):  # drawn twice, in one batch or in several
            _, once = np.unique(slots, return_index=True)
            dropped["in flight"] += len(slots) - len(once)
            slots, ids = slots[once], ids[once]
        room = max(self.ram.spare_records - self.outstanding, 0)
        if len(slots) > room:
            dropped["queue full"] += len(slots) - room
            slots, ids = slots[:room], ids[:room]
        return slots, ids

    def publish(self, report: ReadDone) -> None:
        """The worker has read an order's records: show them, unless they are damaged or their slot has changed."""
        ram, index, stats = self.ram, self.store.index, self.stats
        swap = self.swaps.pop(report.ticket)
        slots, handles, first = swap.slots, swap.handles, swap.first
        n = len(slots)
        self.in_flight[slots] = False
        self.outstanding -= n
        now = time.monotonic()
        stats.aged(now - swap.ordered)
        stats.bytes_read += n * ram.layout.block if ram.schema.fixed else int(index.sizes[handles].sum())
        old_handles = swap.old_handles
        good = report.ok & (ram.ids[slots] == swap.old_ids)
        missing = handles[:0]
        if np.count_nonzero(good) < n:
            bad, late = ~report.ok, report.ok & ~good
            ram.release(first[~good])
            index.sets.release_each(handles[late])
            stats.dropped["slot changed"] += int(late.sum())
            missing = handles[bad]
            slots, old_handles, handles, first = slots[good], old_handles[good], handles[good], first[good]
        if len(slots):
            index.sets.release_each(old_handles)
            ram.swap(slots, first, index.ids[handles], handles)
            stats.swapped += len(slots)
        auto = self._auto()
        if auto is not None:
            auto.completed(n, now, now - swap.ordered)
        if len(missing):
            damaged = self.store.damaged(missing)
            index.sets.release_each(missing[~damaged])
            stats.dropped["corrupt"] += int(damaged.sum())
            stats.dropped["unreadable"] += int((~damaged).sum())
            self.store.give_up(missing, damaged)  # last: it warns, and warnings may be made errors

    def cancel(self) -> None:
        """The worker is gone, and all orders with it."""
        for swap in self.swaps.values():
            self.in_flight[swap.slots] = False
            self.outstanding -= len(swap.slots)
            self.stats.dropped["worker died"] += len(swap.slots)
            self.ram.release(swap.first)
            self.store.index.sets.release_each(swap.handles)
        self.swaps.clear()
