"""What the training thread and the swap worker say to each other: orders go one way, reports the other.

Whoever gives an order has made all decisions: which extents, which free blocks, which samples die. To carry one out is
to move bytes, and to do it again after a crash half-way changes nothing. This module knows neither side, so the worker
needs nothing of `Store` or `Memory`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from carm.memory import extentfile
from carm.memory.catalogue import ENTRY, Catalogue, Entries
from carm.memory.extentfile import ExtentFile
from carm.memory.record import Records, in_pieces

log = logging.getLogger("carm")
Ints = NDArray[np.int64]
_NONE = np.zeros(0, np.int64)
_NO_ENTRIES: Entries = np.zeros(0, ENTRY)

# -- orders ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ReadOrder:
    """Read these extents into these free blocks of the RAM tier."""

    ticket: int
    offsets: Ints
    sizes: Ints | None  # None: all records have one size, that of a block
    sums: NDArray[np.uint64]
    blocks: Ints


def joined(orders: list[ReadOrder]) -> ReadOrder:
    """One order for what several say."""
    if len(orders) == 1:
        return orders[0]
    sizes = [order.sizes for order in orders if order.sizes is not None]
    return ReadOrder(
        orders[0].ticket,
        np.concatenate([order.offsets for order in orders]),
        np.concatenate(sizes) if sizes else None,
        np.concatenate([order.sums for order in orders]),
        np.concatenate([order.blocks for order in orders]),
    )


def parts(order: ReadOrder, block: int, most: int) -> list[ReadOrder]:
    """An order as several of at most `most` bytes each, or one record; `block` is that of the RAM tier."""
    n = len(order.sums)
    if (n * block if order.sizes is None else int(order.sizes.sum())) <= most:
        return [order]
    sizes = np.full(n, block, np.int64) if order.sizes is None else order.sizes
    ends = np.concatenate(([0], np.cumsum(-(-sizes // block))))  # in blocks
    return [
        ReadOrder(
            order.ticket,
            order.offsets[part],
            None if order.sizes is None else order.sizes[part],
            order.sums[part],
            order.blocks[ends[part.start] : ends[part.stop]],
        )
        for part in in_pieces(sizes, most)
    ]


@dataclass(slots=True)
class WriteOrder:
    """Append these records; in the same commit some samples die. `before` die in a commit of their own, first: their
    extents are needed for the new records."""

    seq: int
    records: Records
    births: Entries
    deaths: Ints
    before: Ints = field(default_factory=lambda: _NONE)
    afresh: bool = False  # whether an earlier commit may be there that nobody knows of, and must be taken back first
    final: bool = True  # whether the dead are gone for good: no checkpoint is kept that would need them
    limit: int | None = None  # of the extent file's size
    victims: list[int] = field(default_factory=list)  # handles of those of `deaths` that are in the index
    doomed: Entries = field(default_factory=lambda: _NO_ENTRIES)  # entries of the rest of `deaths`
    indices: Ints = field(default_factory=lambda: _NONE)  # which of the planned records are written
    left_out: int = 0  # how many are not

    @property
    def floor(self) -> int | None:
        """The commit before which there is no way back, because something dies for good."""
        return self.seq + 1 if self.final and len(self.deaths) else None


@dataclass(slots=True)
class CompactOrder:
    """Merge the catalogue's rows up to this commit."""

    floor: int


Order = ReadOrder | WriteOrder | CompactOrder

# -- reports -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class ReadDone:
    ticket: int
    ok: NDArray[np.bool_]


@dataclass(slots=True, eq=False)
class WriteDone:
    seq: int
    error: tuple[int, str] | None  # of a device that is full; anything else is a Failure


@dataclass(slots=True, eq=False)
class Compacted:
    floor: int


@dataclass(slots=True, eq=False)
class Failure:
    """The worker met an error that it cannot handle; it stops."""

    traceback: str


Report = ReadDone | WriteDone | Compacted | Failure

# -- carrying out writes -----------------------------------------------------------------------------------------------


def perform(order: WriteOrder, file: ExtentFile, catalogue: Catalogue) -> None:
    """Carry out a write order. Doing it again after a crash half-way changes nothing."""
    if len(order.before) or order.afresh:
        catalogue.commit(order.seq, _NO_ENTRIES, order.before, floor=order.seq if len(order.before) else None)
    records = order.records
    file.write(records.data, records.starts, records.sizes, order.births["offset"], order.limit)
    catalogue.commit(order.seq + 1, order.births, order.deaths, floor=order.floor)


def compact(catalogue: Catalogue, floor: int) -> None:
    """Merge the catalogue's rows up to a commit. That is housekeeping: where there is no room for it, it waits."""
    try:
        catalogue.compact(floor)
    except OSError as error:
        if error.errno not in extentfile.FULL:
            raise
        log.warning("the catalogue cannot be made smaller now: %s", error)
