"""Stage S: the stream buffer on its way to storage.

Samples collect until they are worth a commit or have waited long enough, then go out together; while one write is under
way the next collects, so on a slow device batches grow by themselves. A sample counts (may be a replacement, may be
evicted) once it is on the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from carm.memory.carousel import Carousel
from carm.memory.errors import StoreFull
from carm.memory.orders import CompactOrder, WriteDone, WriteOrder
from carm.memory.ram import RamTier
from carm.memory.record import Records
from carm.memory.stats import Stats
from carm.memory.store import Store

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Waiting:
    """Packed samples that wait, with their ids and the slots they were given (-1: none)."""

    records: list[Records] = field(default_factory=list)
    ids: list[Ints] = field(default_factory=list)
    slots: list[Ints] = field(default_factory=list)
    samples: int = 0
    nbytes: int = 0
    since: float = 0.0  # when the first of them came

    def push(self, records: Records, ids: Ints, slots: Ints) -> None:
        if not self.samples:
            self.since = time.monotonic()
        self.records.append(records)
        self.ids.append(ids)
        self.slots.append(slots)
        self.samples += len(ids)
        self.nbytes += records.nbytes

    def joined(self) -> tuple[Records, Ints, Ints]:
        """Everything in one piece."""
        if len(self.records) == 1:
            return self.records[0], self.ids[0], self.slots[0]
        shifts = np.cumsum([0] + [len(r.data) for r in self.records[:-1]])
        records = Records(
            np.concatenate([r.data for r in self.records]),
            np.concatenate([r.starts + s for r, s in zip(self.records, shifts, strict=True)]),
            np.concatenate([r.sizes for r in self.records]),
            np.concatenate([r.labels for r in self.records]),
        )
        return records, np.concatenate(self.ids), np.concatenate(self.slots)


class Intake:
    """The way of new samples from the RAM tier's process into one store."""

    def __init__(
        self,
        ram: RamTier,
        store: Store,
        stats: Stats,
        send: Callable[[WriteOrder | CompactOrder], None],
        carousel: Carousel,
        *,
        batch: int,
        most: int,
        patience: float,
    ) -> None:
        self.ram, self.store, self.stats = ram, store, stats
        self.batch = batch
        self.most = most
        self.patience = patience
        self.buffer = Waiting()
        self.writing: tuple[WriteOrder, Ints, Ints] | None = None  # with the ids and slots of its births
        self.compacting = False
        self._send = send
        self._carousel = carousel

    @property
    def samples(self) -> int:
        """Samples that are not on the device yet."""
        return self.buffer.samples + (len(self.writing[1]) if self.writing else 0)

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes + (self.writing[0].records.nbytes if self.writing else 0)

    @property
    def idle(self) -> bool:
        return not self.busy and not self.buffer.samples

    @property
    def busy(self) -> bool:
        """Whether the worker has something to do for us."""
        return self.writing is not None or self.compacting

    def pump(self, *, force: bool = False) -> None:
        """Send the buffer to storage if it is worth a commit and none is under way."""
        buffer = self.buffer
        if self.writing is not None or not buffer.samples or self._crowded:
            return
        due = buffer.samples >= self.batch or buffer.nbytes >= self.most // 4
        if not (force or due or time.monotonic() - buffer.since > self.patience):
            return
        records, ids, slots = buffer.joined()
        try:
            order = self.store.plan(records, ids, self._in_ram(ids, slots))
        except StoreFull:
            self.buffer = Waiting()
            self.stats.unstored += len(ids)
            raise
        self.buffer = Waiting()
        self.stats.unstored += len(ids) - len(order.indices)
        self.writing = order, ids[order.indices], slots[order.indices]
        self._send(order)
        self.store.complain(records)  # last: warnings may be made errors, and what can be stored shall be

    @property
    def _crowded(self) -> bool:
        """Whether swaps under way may hold so much of a small store that samples in RAM would find no room in it."""
        most, room, swaps = self.store.max_samples, self.store.max_bytes, self._carousel.outstanding
        if not swaps:
            return False
        if most is not None and len(self.ram) + swaps > most:
            return True
        each = self.store.index.live_bytes // max(len(self.store), 1)
        return room is not None and (len(self.ram) + swaps) * each > room - room // 8

    def _in_ram(self, ids: Ints, slots: Ints) -> NDArray[np.bool_]:
        here: NDArray[np.bool_] = (slots >= 0) & (self.ram.ids[slots] == ids)
        return here

    def written(self, report: WriteDone) -> None:
        """The worker has made a write durable, or found the device full."""
        assert self.writing is not None
        if report.error is not None:
            self.requeue()
            self.store.full()
            self.pump(force=True)  # again, with victims; StoreFull if there are none
            return
        order, ids, slots = self.writing
        self.writing = None
        handles = self.store.confirm(order)
        here = self._in_ram(ids, slots)
        self.ram.handles[slots[here]] = handles[here]
        self.store.index.sets.hold_each(handles[here])
        self.stats.stored += len(ids)
        self.stats.bytes_written += order.records.nbytes
        if self.store.wants_compaction and not self.compacting:
            self.compacting = True
            self.store.buried = 0
            self._send(CompactOrder(self.store.past.floor))
        self.pump()

    def compacted(self) -> None:
        self.compacting = False

    def requeue(self) -> None:
        """The write under way failed: its samples go back to the buffer, before what came later."""
        if self.writing is None:
            return
        order, ids, slots = self.writing
        self.writing = None
        self.store.fail(order)
        later, self.buffer = self.buffer, Waiting()
        self.buffer.push(order.records, ids, slots)
        for piece in zip(later.records, later.ids, later.slots, strict=True):
            self.buffer.push(*piece)

    def resend(self) -> None:
        """The worker was replaced: give the new one the write again. (Doing a write twice changes nothing.)"""
        self.compacting = False
        if self.writing is not None:
            self._send(self.writing[0])

    def moved(self, now_at: Ints) -> None:
        """Slots were renumbered."""
        self.buffer.slots = [np.where(s >= 0, now_at[s], s) for s in self.buffer.slots]
        if self.writing is not None:
            order, ids, slots = self.writing
            self.writing = order, ids, np.where(slots >= 0, now_at[slots], slots)
