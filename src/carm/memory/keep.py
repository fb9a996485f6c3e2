"""Stage M: puts samples into the RAM tier, where the selection wants them, and makes room if they are large."""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from carm.memory.ram import RamTier
from carm.memory.record import Records
from carm.memory.stats import Stats
from carm.memory.store import Store

Ints = NDArray[np.int64]


class Keeper:
    """Writes chosen samples into slots of one RAM tier."""

    def __init__(
        self, ram: RamTier, store: Store | None, stats: Stats, rng: np.random.Generator, drain: Callable[[], None]
    ) -> None:
        self.ram, self.store, self.stats, self.rng = ram, store, stats, rng
        self.tight = False
        """Whether large records filled the blocks before the slots; then `RamTier.settle` is due."""
        self._drain = drain

    def keep(self, records: Records, slots: Ints, ids: Ints) -> None:
        """Put record i into `slots[i]` where that is not -1. Slots of samples that do not fit at all become -1."""
        ram = self.ram
        chosen = np.flatnonzero(slots >= 0)
        if ram.schema.fixed and len(chosen) <= ram.free_blocks:  # one block each, and enough of them
            self._put(records, chosen, slots, ids)
            return
        need = ram.blocks_for(records.sizes)
        huge = chosen[need[chosen] > ram.layout.blocks - ram.spare]
        if len(huge):
            self.stats.dropped["too large for RAM"] += len(huge)
            slots[huge] = -1
            chosen = np.flatnonzero(slots >= 0)
        at = 0
        while at < len(chosen):
            # As many at a time as there are free blocks: each piece frees the blocks of what it replaces.
            fits = int(np.searchsorted(np.cumsum(need[chosen[at:]]), ram.free_blocks, side="right"))
            if fits == 0:
                self._make_room(slots[chosen[at:]], int(need[chosen[at]]))
                continue
            self._put(records, chosen[at : at + fits], slots, ids)
            at += fits
        if not ram.schema.fixed:
            self._balance()

    def _put(self, records: Records, part: Ints, slots: Ints, ids: Ints) -> None:
        """Put these records into their slots: there is room for them."""
        if not len(part):
            return
        ram, sizes, into = self.ram, records.sizes[part], slots[part]
        blocks = ram.allocate(sizes)
        assert blocks is not None
        ram.write(records, part, blocks)
        self.leave(into)
        nowhere = np.full(len(part), -1, np.int32)  # not stored yet
        ram.publish(into, ram.first_blocks(blocks, sizes), records.labels[part], ids[part], nowhere)

    def _make_room(self, coming: Ints, need: int) -> None:
        """Empty slots until `need` blocks are free: first those that are overwritten anyway, then the largest
        class's."""
        ram = self.ram
        for slot in coming.tolist():
            if ram.free_blocks >= need:
                return
            if ram.ids[slot] >= 0:
                self.empty(slot)
        while ram.free_blocks < need:
            if len(ram):
                self._squeeze()
            else:
                self._drain()  # the rest is on order, and comes free one way or the other

    def _squeeze(self) -> None:
        """A sample of the largest class leaves RAM to make room for larger ones."""
        label = self.ram.sets.largest(u=self.rng.random())
        assert label is not None
        self.empty(self.ram.sets.peek(label, self.rng.random()))
        self.stats.squeezed += 1
        self.tight = True

    def _balance(self) -> None:
        """Where sizes vary: keep the spare blocks free for swaps, and use more slots if records have become smaller."""
        ram = self.ram
        most = ram.layout.blocks - ram.spare
        taken = ram.blocks_in_use(ram.layout.block)
        while taken > most:
            self._squeeze()
            taken = ram.blocks_in_use(ram.layout.block)
        more = (most - taken) * len(ram) // max(taken, 1)
        if len(ram) == ram.limit and more > ram.limit // 16:  # not for every slot: selections begin anew with new slots
            ram.limit = min(ram.table, ram.limit + more)

    def empty(self, slot: int) -> None:
        """Take the sample in `slot` out of RAM."""
        self.leave(np.array([slot]))
        self.ram.clear(np.array([slot]))

    def leave(self, slots: Ints) -> None:
        """The samples in `slots` are leaving RAM: storage may choose them again."""
        if self.store is not None:
            handles = self.ram.handles[slots]
            self.store.index.sets.release_each(handles[handles >= 0])


def load_stored(ram: RamTier, store: Store, slots: Ints, handles: NDArray[np.int32]) -> int:
    """Read stored samples, which are held already, into empty slots; returns how many came whole and fitted."""
    came = 0
    for part in store.index.pieces(handles):
        here, into = handles[part], slots[part]
        data, starts, ok = store.fetch(here)
        if not ok.all():
            missing = here[~ok]
            damaged = store.damaged(missing)
            store.index.sets.release_each(missing[~damaged])
            store.give_up(missing, damaged)
            here, into, starts = here[ok], into[ok], starts[ok]
        sizes = store.index.sizes[here].astype(np.int64)
        labels = np.array([store.index.sets.label(h) for h in here.tolist()], np.int64)
        fits = int(np.searchsorted(np.cumsum(ram.blocks_for(sizes)), ram.free_blocks, side="right"))
        full = fits < len(here)
        if full:
            store.index.sets.release_each(np.concatenate([here[fits:], handles[part.stop :]]))
            here, into, starts, sizes, labels = here[:fits], into[:fits], starts[:fits], sizes[:fits], labels[:fits]
        blocks = ram.allocate(sizes)
        assert blocks is not None
        ram.write(Records(data, starts, sizes, labels), np.arange(len(here)), blocks)
        ram.publish(into, ram.first_blocks(blocks, sizes), labels, store.index.ids[here], here)
        came += len(here)
        if full:
            break
    return came


def choose_balanced(ram: RamTier, store: Store, room: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Up to `room` open samples of the store, held from now on, that make the classes in RAM as equal as possible."""
    # By count; of equal ones, the class that came first.
    heap = [(ram.sets.count(label), place, label) for place, label in enumerate(store.index.sets.labels)]
    heapq.heapify(heap)
    out: list[int] = []
    while len(out) < room and heap:
        count, place, label = heap[0]
        handle = store.index.sets.take_open(label, rng)
        if handle < 0:
            heapq.heappop(heap)
            continue
        heapq.heapreplace(heap, (count + 1, place, label))
        out.append(handle)
    return np.array(out, np.int32)
