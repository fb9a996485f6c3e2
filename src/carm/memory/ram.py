"""The RAM tier: a table of slots over rows of bytes, published by flipping the table.

Rows are made of *blocks*. Where all records have one size, a block is a record. Where sizes vary, a record takes as
many small blocks as it needs, linked by an array of successors: any free blocks will do, so nothing is padded to the
largest sample and nothing fragments.

A record is always written to blocks that no slot points at; then the slot's entry is flipped to them in one 8-byte
store, and the old blocks become free. Readers copy, and look at the entries before and after: an entry holds a
generation that grows with every flip, so an unchanged entry proves that its blocks were not reused during the copy.
Readers never wait, writers never wait for readers, and the training process, which does all the flipping, need not
check at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carm.memory import native
from carm.memory.classes import ClassSets
from carm.memory.errors import CarmError
from carm.memory.move import scatter
from carm.memory.record import Bytes, Records, Schema
from carm.memory.shared import SharedBlock, fence

_ROW = 0xFFFFFFFF  # an entry: generation << 32 | first block + 1; low half 0: the slot is empty
_GENERATION = 1 << 32
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """Where things lie in the shared block. Picklable: it is all another process needs to read."""

    schema: Schema
    capacity: int
    blocks: int
    block: int  # bytes

    @property
    def _offsets(self) -> tuple[int, int, int, int, int]:
        entries = 64
        successors = entries + 8 * self.capacity
        sizes = successors + 4 * self.blocks
        arena = -(-(sizes + 4 * self.blocks) // 4096) * 4096
        return entries, successors, sizes, arena, arena + self.blocks * self.block

    @property
    def nbytes(self) -> int:
        return self._offsets[-1]

    def arrays(self, shared: SharedBlock) -> Arrays:
        data = shared.bytes()
        entries, successors, sizes, arena, end = self._offsets
        rows = data[arena:end].reshape(self.blocks, self.block)
        return Arrays(
            header=data[:entries].view(np.int64),
            entries=data[entries:successors].view(np.int64),
            successors=data[successors:sizes].view(np.int32),
            sizes=data[sizes : sizes + 4 * self.blocks].view(np.int32),
            arena=rows,
            heads=data[arena:end].view(self.schema.head) if self.schema.fixed else None,
        )


@dataclass(frozen=True)
class Arrays:
    """The shared block as arrays."""

    header: Ints  # [0]: 1 once the tier has been replaced by another of a new size
    entries: Ints  # per slot
    successors: NDArray[np.int32]  # per block: the next block of the record, or -1
    sizes: NDArray[np.int32]  # per first block: bytes of the record
    arena: Bytes  # (blocks, bytes per block)
    heads: NDArray[Any] | None  # the arena as records, where all have one size


def copy_records(arrays: Arrays, first: Ints) -> tuple[Bytes, Ints]:
    """Copy the records that begin at the blocks `first` into one array; returns it and where each record starts."""
    arena = arrays.arena
    block = arena.shape[1]
    if arrays.heads is not None:
        return np.take(arena, first, axis=0, mode="clip").reshape(-1), np.arange(len(first), dtype=np.int64) * block
    # A chain that is being rewritten may be nonsense: the entry check then rejects the copy, but until then every step
    # must stay in bounds and end.
    counts = np.maximum(-(-arrays.sizes[first].astype(np.int64) // block), 1)
    counts = np.minimum(counts, arena.shape[0])
    starts = np.concatenate(([0], np.cumsum(counts)))
    at = first.astype(np.int64)
    if native.library is not None:
        return native.library.gather(arena, arrays.successors, at, counts), starts[:-1] * block
    # Follow all chains at once.
    chain = np.zeros(int(starts[-1]), np.int64)
    where, left = starts[:-1].copy(), counts.copy()
    while len(at):
        chain[where] = at
        left = left - 1
        more = left > 0
        at, where, left = arrays.successors[at[more]].astype(np.int64), where[more] + 1, left[more]
        np.clip(at, 0, arena.shape[0] - 1, out=at)
    return np.take(arena, chain, axis=0, mode="clip").reshape(-1), starts[:-1] * block


class RamTier:
    """Slots, their samples, and the free blocks. Used by one thread, the one that trains; see RamReader for others."""

    def __init__(self, schema: Schema, capacity: int, *, blocks: int, block: int, spare: int) -> None:
        self.schema = schema
        self.table = capacity  # slots there are
        self.limit = capacity  # slots that may be used: fewer once large records have filled the blocks
        self.spare = spare  # blocks kept free for records on their way in
        self.layout = Layout(schema, capacity, blocks, block)
        self.shared = SharedBlock(self.layout.nbytes)
        self.arrays = self.layout.arrays(self.shared)
        self._whole = self.arrays.arena.reshape(-1).view(f"V{block}") if schema.fixed else None  # a record per item
        if schema.fixed:
            self.arrays.sizes[:] = block
        self.sets = ClassSets(capacity)
        self.labels = np.zeros(capacity, np.int64)
        self.ids = np.full(capacity, -1, np.int64)  # id of the sample in each slot; -1: empty
        self.handles = np.full(capacity, -1, np.int32)  # its entry in the storage tier; -1: not stored (yet)
        self._row = np.full(capacity, -1, np.int64)  # what each entry says, without the generation
        self._count = 0
        self._free = np.arange(blocks, dtype=np.int32)[::-1].copy()  # a stack: low blocks are handed out first
        self._top = blocks
        self._used: Ints | None = None

    @staticmethod
    def block_size(schema: Schema, mean: float) -> int:
        """Bytes per block: a record where all have one size, else about 1/32 of a typical record (`mean` bytes).

        A record wastes half a block on average, so that is under 2 %; blocks of less than 256 bytes would cost more in
        successors than they save.
        """
        if schema.fixed:
            return schema.head_size
        return int(min(max(1 << int(np.log2(max(mean, 1) / 24)), 256), 4096))

    # -- asking ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count

    def free(self) -> Ints:
        """Empty slots that may be used, ascending."""
        room = self.limit - self._count
        return np.flatnonzero(self.ids < 0)[:room] if room > 0 else np.zeros(0, np.int64)

    def used(self) -> Ints:
        """Slots that hold a sample, ascending."""
        if self._used is None:
            self._used = np.flatnonzero(self.ids >= 0)
        return self._used

    @property
    def capacity(self) -> int:
        """Slots that may be used."""
        return self.limit

    @property
    def free_blocks(self) -> int:
        return self._top

    @property
    def spare_records(self) -> int:
        """How many records may be on their way in at once."""
        if self.schema.fixed:
            return self.spare
        return max(1, self.spare // max(1, self.typical(self.arrays.sizes[self.rows(self.used()[:64])])))

    def typical(self, sizes: NDArray[Any]) -> int:
        """Blocks that a record takes on average, given some records' sizes."""
        return int(np.ceil(self.blocks_for(np.asarray(sizes, np.int64)).mean())) if len(sizes) else 1

    def blocks_in_use(self, block: int) -> int:
        """Blocks of `block` bytes that the present records would take."""
        sizes = self.arrays.sizes[self.rows(self.used())].astype(np.int64)
        return int((-(-sizes // block)).sum())

    def rows(self, slots: Ints) -> Ints:
        """First block of the record in each of `slots`."""
        return self._row[slots]

    def blocks_for(self, sizes: Ints) -> Ints:
        """How many blocks records of these sizes take."""
        return -(-sizes // self.layout.block)

    def fields(self, slots: Ints) -> Any:
        """Copies of the samples in `slots`: by name, in a dict or a structured array."""
        if self._whole is not None:
            # One copy of whole rows; the fields are views of it. Indexing, unlike `take`, keeps the interpreter to
            # itself, so that a swap thread that waits for it does not get in between.
            return self._whole[self._row[slots]].view(self.schema.head)
        data, starts = self.read(slots)
        return self.schema.unpack(data, starts)

    def read(self, slots: Ints) -> tuple[Bytes, Ints]:
        """Copy the records in `slots`; returns the bytes and where each record starts."""
        return copy_records(self.arrays, self.rows(slots))

    # -- blocks ------------------------------------------------------------------------------------------------------

    def allocate(self, sizes: Ints) -> NDArray[np.int32] | None:
        """Take free blocks for records of these sizes, in order, and link them. None if there are not enough."""
        if self.schema.fixed:
            return self.take_blocks(len(sizes))
        counts = self.blocks_for(sizes)
        blocks = self.take_blocks(int(counts.sum()))
        if blocks is not None:
            self.arrays.successors[blocks[:-1]] = blocks[1:]
            last = np.cumsum(counts) - 1
            self.arrays.successors[blocks[last]] = -1
            self.arrays.sizes[blocks[last - counts + 1]] = sizes
        return blocks

    def take_blocks(self, n: int) -> NDArray[np.int32] | None:
        """Take `n` free blocks: where all records have one size, those for `n` records."""
        if n > self._top:
            return None
        self._top -= n
        blocks: NDArray[np.int32] = self._free[self._top : self._top + n].copy()
        return blocks

    def first_blocks(self, blocks: NDArray[np.integer], sizes: Ints) -> Ints:
        """The first block of each record, of blocks that `allocate` gave for records of these sizes."""
        if self.schema.fixed:
            return blocks.astype(np.int64)
        counts = self.blocks_for(sizes)
        return np.asarray(blocks[np.cumsum(counts) - counts], np.int64)

    def release(self, first: Ints) -> None:
        """Give back the blocks of the records that begin at `first`."""
        if self.schema.fixed:
            blocks: NDArray[Any] = first
        else:
            block = self.layout.block
            counts = -(-self.arrays.sizes[first].astype(np.int64) // block)
            chain = []
            at = first
            while len(at):
                chain.append(at)
                counts = counts - 1
                more = counts > 0
                at, counts = self.arrays.successors[at[more]].astype(np.int64), counts[more]
            blocks = np.concatenate(chain) if chain else first
        self._free[self._top : self._top + len(blocks)] = blocks
        self._top += len(blocks)

    def write(self, records: Records, chosen: Ints, blocks: NDArray[np.int32]) -> None:
        """Copy records `chosen` of `records` into `blocks` (as `allocate` gave them)."""
        scatter(self.arrays.arena, blocks, records.data, records.starts[chosen], records.sizes[chosen])

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(self, slots: Ints, first: Ints, labels: Ints, ids: Ints, handles: NDArray[np.int32]) -> None:
        """Point `slots` (no slot twice) at the records that begin at `first`; what they showed before is released."""
        rows = self._flip(slots, first)
        was_used = rows >= 0
        changed = ~was_used | (self.labels[slots] != labels)
        if changed.any():
            for slot, label, used in zip(
                slots[changed].tolist(), labels[changed].tolist(), was_used[changed].tolist(), strict=True
            ):
                if used:
                    self.sets.remove(slot)
                else:
                    self._count += 1
                self.sets.add(slot, label)
            self._used = None
            self.labels[slots] = labels
            rows = rows[was_used]
        self.ids[slots] = ids
        self.handles[slots] = handles
        if len(rows):
            self.release(rows)

    def swap(self, slots: Ints, first: Ints, ids: Ints, handles: NDArray[np.integer]) -> None:
        """`publish` where every slot keeps its class."""
        old = self._flip(slots, first)
        self.ids[slots] = ids
        self.handles[slots] = handles
        self.release(old)

    def _flip(self, slots: Ints, first: Ints | int) -> Ints:
        """Point slots at other records (-1: at none), in one store each; returns the first blocks of the old ones."""
        old: Ints = self._row[slots]
        fence()  # records first, then the entries that show them
        self.arrays.entries[slots] += first - old + _GENERATION
        self._row[slots] = first
        return old

    def clear(self, slots: Ints) -> None:
        """Empty `slots`."""
        rows = self._flip(slots, -1)
        for slot in slots.tolist():
            self.sets.remove(slot)
        self._count -= len(slots)
        self._used = None
        self.ids[slots] = -1
        self.handles[slots] = -1
        self.release(rows)

    def settle(self) -> Ints:
        """The blocks are full before the slots: from now on only as many slots as there was room for, the lowest ones.

        Returns for each slot the slot whose sample it has now.
        """
        self.limit = max(1, self._count)
        stray = self.used()[self.used() >= self.limit]
        empty = np.flatnonzero(self.ids[: self.limit] < 0)[: len(stray)]
        came_from = np.arange(self.table)
        came_from[empty], came_from[stray] = stray, empty
        for source, target in zip(stray.tolist(), empty.tolist(), strict=True):
            self.sets.remove(source)
            self.sets.add(target, int(self.labels[source]))
        self._flip(empty, self._flip(stray, -1))
        for array in (self.labels, self.ids, self.handles):
            array[empty] = array[stray]
        self.ids[stray] = -1
        self.handles[stray] = -1
        self._used = None
        return came_from

    def retire(self) -> None:
        """Tell readers in other processes that this tier has been replaced, and let go of it."""
        self.arrays.header[0] = 1
        self.shared.close()

    def reader(self) -> RamReader:
        return RamReader(self.layout, self.shared)


def slot_numbers(slots: Any) -> Ints:
    """Numbers of slots, as given by a caller."""
    given = np.atleast_1d(np.asarray(slots))
    if given.dtype == bool:
        raise IndexError("slots are numbers, and this is a mask: pick from memory.slots with it")
    if given.size and given.dtype.kind not in "iu":
        raise IndexError(f"slots are whole numbers; got {given.dtype}")
    return given.astype(np.int64)


class RamReader:
    """Reads the RAM tier from any process; a map-style dataset over slots for `DataLoader` workers, forked or spawned.

    `reader[slot]` is a dict of the sample's fields; `reader.read(slots)` a dict of batched fields. Every sample is
    whole: if a swap replaced it during the copy, it is copied again.
    """

    def __init__(self, layout: Layout, shared: SharedBlock) -> None:
        self.layout = layout
        self._shared = shared
        self._arrays: Arrays | None = None
        self.retries = 0

    def __getstate__(self) -> dict[str, Any]:
        self._attached()  # a retired tier cannot be passed on: say so here
        return {"layout": self.layout, "_shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["layout"], state["_shared"])  # type: ignore[misc]

    def __len__(self) -> int:
        return self.layout.capacity

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The samples there are; slots may be empty."""
        return (self[slot] for slot in self.filled().tolist())

    def filled(self) -> Ints:
        """Slots that hold a sample now."""
        return np.flatnonzero(self._attached().entries & _ROW)

    def _attached(self) -> Arrays:
        if self._arrays is None:
            self._arrays = self.layout.arrays(self._shared)
        if self._arrays.header[0]:
            raise CarmError(
                "the memory was resized, restored or closed after this reader was made; make a new one with "
                "memory.reader()"
            )
        return self._arrays

    def read_records(self, slots: Ints) -> tuple[Bytes, Ints]:
        """Copy the records in `slots`; returns the bytes and where each record starts."""
        arrays = self._attached()
        before, data, starts = self._copy(arrays, slots)
        copied = np.arange(len(slots))
        while True:
            fence()  # the entries are looked at again after the copy, not before
            copied = copied[arrays.entries[slots[copied]] != before]
            if not len(copied):
                return data, starts
            # Only these again: of a large batch some slot changes during every copy, and it would never be done.
            self.retries += 1
            before, again, at = self._copy(arrays, slots[copied])
            if arrays.heads is not None:
                data.reshape(len(slots), -1)[copied] = again.reshape(len(copied), -1)
            else:
                starts[copied] = at + len(data)
                data = np.concatenate((data, again))

    def _copy(self, arrays: Arrays, slots: Ints) -> tuple[Ints, Bytes, Ints]:
        """The entries of `slots`, and copies of the records that they show; possibly torn."""
        entries: Ints = arrays.entries[slots]
        first = (entries & _ROW) - 1
        if len(first) and first.min() < 0:
            self._attached()  # a tier that is being replaced is emptied
            raise IndexError(f"slot {int(slots[first < 0][0])} is empty; draw slots from reader.filled()")
        return entries, *copy_records(arrays, first)

    def read(self, slots: Sequence[int] | Ints) -> dict[str, Any]:
        """Batched fields of the samples in `slots`: tensors, and lists of uint8 tensors for variable fields."""
        from carm.memory.tensors import to_tensors

        chosen = slot_numbers(slots)
        if len(chosen) and (chosen.min() < 0 or chosen.max() >= self.layout.capacity):
            raise IndexError(
                f"slots must be from 0 to {self.layout.capacity - 1}; got {int(chosen.min())} to {int(chosen.max())}"
            )
        data, starts = self.read_records(chosen)
        return to_tensors(self.layout.schema, self.layout.schema.unpack(data, starts))

    def __getitem__(self, slot: int) -> dict[str, Any]:
        return {name: value[0] for name, value in self.read([slot]).items()}

    def __getitems__(self, slots: list[int]) -> list[dict[str, Any]]:
        batch = self.read(slots)
        return [{name: value[i] for name, value in batch.items()} for i in range(len(slots))]
