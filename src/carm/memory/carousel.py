"""Stage R: orders replacements for samples that may leave the RAM tier, and publishes them when they have been read.

An order takes a slot, a stored sample of the same class that is not in RAM, and free blocks; it ends when the worker
reports. If the slot was given to another sample meanwhile, the replacement is dropped. So slots never change class,
never wait, and never have two orders.

Where steps follow each other so fast that the worker would be woken for a few samples every few milliseconds, the
orders of several steps go to it as one: what an order costs beside its bytes is then paid once, and most of that is
time in which one thread keeps the interpreter from the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from carm.memory.gate import AutoRatio
from carm.memory.ram import RamTier
from carm.memory.stats import Stats
from carm.memory.store import Store
from carm.memory.swap import ReadDone, ReadOrder

Ints = NDArray[np.int64]
_QUICK = 0.02  # seconds between two steps that follow each other fast
_PATIENCE = 0.05  # seconds that an order waits for others at most
_ENOUGH = 64  # samples that are an order of their own


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

    @classmethod
    def joined(cls, parts: Sequence[Swap]) -> Swap:
        """Several orders as one."""
        if len(parts) == 1:
            return parts[0]

        def whole(name: str) -> Ints:
            return np.concatenate([getattr(part, name) for part in parts])

        return cls(
            whole("slots"),
            whole("old_ids"),
            whole("old_handles"),
            whole("handles"),
            whole("blocks"),
            None if parts[0].sizes is None else whole("sizes"),
            whole("first"),
            parts[0].ordered,
        )


class Carousel:
    """The swaps under way between one RAM tier and one store."""

    def __init__(
        self,
        ram: RamTier,
        store: Store,
        stats: Stats,
        rng: np.random.Generator,
        send: Callable[[ReadOrder], None],
        auto: AutoRatio | None,
        *,
        at_once: bool,
    ) -> None:
        self.ram, self.store, self.stats, self.rng, self.auto = ram, store, stats, rng, auto
        self.at_once = at_once or auto is not None
        """Whether no order waits for others: synchronous swaps repeat exactly, and the automatic ratio times each."""
        self.outstanding = 0
        """Swaps under way; at most as many as the RAM tier has spare records."""
        self.in_flight = np.zeros(ram.table, bool)
        self.swaps: dict[int, Swap] = {}
        self._send = send
        self._ticket = 0
        self._waiting: list[int] = []  # tickets of orders that the worker has not been given
        self._last = 0.0  # when something was last ordered

    def order(self, slots: Ints, ids: Ints) -> int:
        """Order a replacement for each of `slots`, which hold the samples `ids`, as far as possible."""
        ram, store, stats = self.ram, self.store, self.stats
        stats.picked += len(slots)
        slots, ids = self._fit(slots, ids)
        if not len(slots):
            return 0
        old = ram.handles[slots].astype(np.int64)
        handles = store.sets.take_like(old, self.rng)  # what is in RAM has its slot's label
        none = handles < 0
        if np.count_nonzero(none):
            stats.dropped["no other sample"] += int(none.sum())
            slots, ids, old, handles = slots[~none], ids[~none], old[~none], handles[~none]
        sizes = None if ram.schema.fixed else store.sizes[handles].astype(np.int64)
        blocks = ram.take_blocks(len(handles)) if sizes is None else ram.allocate(sizes)
        while blocks is None:  # only where sizes vary: the last orders make way until the rest fits
            assert sizes is not None
            store.sets.release(int(handles[-1]))
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
        now = time.monotonic()
        self.swaps[self._ticket] = Swap(slots, ids, old, handles, rows, sizes, first, now)
        self._waiting.append(self._ticket)
        quick, self._last = now - self._last < _QUICK, now
        if self.at_once or not quick or n >= _ENOUGH:
            self.send()
        else:
            self.send_due(now)
        return n

    @property
    def waits(self) -> bool:
        """Whether there are orders that the worker has not been given."""
        return bool(self._waiting)

    def send_due(self, now: float | None = None) -> None:
        """Give the worker the orders that wait, if they are many or have waited long."""
        if not self._waiting:
            return
        waiting = [self.swaps[ticket] for ticket in self._waiting]
        # A slot whose order waits cannot be swapped again: in a small memory nearly all would wait, and few be swapped.
        enough = min(_ENOUGH, self.ram.spare_records // 2, self.ram.capacity // 16)
        late = (time.monotonic() if now is None else now) - waiting[0].ordered > _PATIENCE
        if late or sum(len(swap.slots) for swap in waiting) >= enough:
            self.send()

    def send(self) -> None:
        """Give the worker the orders that wait, as one."""
        if not self._waiting:
            return
        swap = Swap.joined([self.swaps.pop(ticket) for ticket in self._waiting])
        ticket = self._waiting[-1]
        self._waiting = []
        self.swaps[ticket] = swap
        offsets, sums = self.store.offsets[swap.handles], self.store.sums[swap.handles]
        self._send(ReadOrder(ticket, offsets, swap.sizes, sums, swap.blocks))

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
        ascending = np.sort(slots)
        if np.count_nonzero(ascending[1:] == ascending[:-1]):  # a batch that somebody put together from two draws
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
        ram, store, stats = self.ram, self.store, self.stats
        swap = self.swaps.pop(report.ticket)
        slots, handles, first = swap.slots, swap.handles, swap.first
        n = len(slots)
        self.in_flight[slots] = False
        self.outstanding -= n
        now = time.monotonic()
        stats.aged(now - swap.ordered)
        stats.bytes_read += n * ram.layout.block if ram.schema.fixed else int(store.sizes[handles].sum())
        old_handles = swap.old_handles
        good = report.ok & (ram.ids[slots] == swap.old_ids)
        if np.count_nonzero(good) < n:
            bad, late = ~report.ok, report.ok & ~good
            ram.release(first[~good])
            store.sets.release_each(handles[late])
            stats.dropped["slot changed"] += int(late.sum())
            if bad.any():
                stats.dropped["corrupt"] += int(bad.sum())
                store.discard(handles[bad].tolist())
            slots, old_handles, handles, first = slots[good], old_handles[good], handles[good], first[good]
        if len(slots):
            store.sets.release_each(old_handles)
            ram.swap(slots, first, store.ids[handles], handles)
            stats.swapped += len(slots)
        if self.auto is not None:
            self.auto.completed(n, now, now - swap.ordered)

    def cancel(self) -> None:
        """The worker is gone, and all orders with it."""
        for swap in self.swaps.values():
            self.in_flight[swap.slots] = False
            self.outstanding -= len(swap.slots)
            self.stats.dropped["worker died"] += len(swap.slots)
            self.ram.release(swap.first)
            self.store.sets.release_each(swap.handles)
        self.swaps.clear()
        self._waiting = []
