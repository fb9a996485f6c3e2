"""The index of the storage tier: what is known in RAM of every stored sample, about 50 bytes each.

A sample's place in these arrays is its *handle*: what the rest of the memory calls it by, because nothing has to be
looked up. Handles are given to other samples when theirs are gone; ids are not, so whoever comes back later asks by id.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carm.memory.catalogue import Entries
from carm.memory.classes import ClassSets, grown
from carm.memory.extents import padded_each
from carm.memory.record import in_pieces

Ints = NDArray[np.int64]
_PIECE = 4 << 20


class Index:
    """Where each stored sample is, of which class, and whether RAM shows it (then it is *held* in `sets`)."""

    def __init__(self, entries: Entries) -> None:
        """The index of these samples, all of them open, with handles in this order."""
        n = len(entries)
        self.ids = entries["id"].astype(np.int64)
        self.offsets = entries["offset"].astype(np.int64)
        self.sizes = entries["size"].astype(np.int32)
        self.sums = entries["checksum"].astype(np.uint64)
        self.sets = ClassSets(n)
        labels = entries["label"].astype(np.int64)
        order = np.argsort(labels, kind="stable")
        names, at = np.unique(labels[order], return_index=True)
        groups = np.split(order, at[1:]) if n else []
        # Classes in the order of their first sample, as they would be had the store never been closed.
        self.sets.restore(
            sorted(((int(c), g, None) for c, g in zip(names, groups, strict=True)), key=lambda g: int(g[1][0]))
        )
        self.live_bytes = int(padded_each(self.sizes).sum())
        """Bytes of the extent file that the samples take."""
        self._count = n
        self._free = array("i")  # handles that may be given out again
        self._top = n  # and the first that was never given out

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Bytes of RAM that it takes."""
        arrays = sum(a.nbytes for a in (self.ids, self.offsets, self.sizes, self.sums))
        return arrays + self.sets.nbytes + self.sets.label_nbytes + len(self._free) * self._free.itemsize

    def live(self) -> Ints:
        """Handles in use, by id."""
        live = self.sets.items()
        return live[np.argsort(self.ids[live])]

    def find(self, ids: Sequence[int] | Ints) -> NDArray[np.int32]:
        """The handle of each id; -1 where there is none."""
        wanted = np.asarray(ids, np.int64)
        live = self.live()
        if not len(live):
            return np.full(len(wanted), -1, np.int32)
        known = self.ids[live]
        at = np.minimum(np.searchsorted(known, wanted), len(live) - 1)
        return np.where(known[at] == wanted, live[at], -1).astype(np.int32)

    def where(self, handles: NDArray[np.integer] | list[int]) -> tuple[Ints, Ints]:
        """Offsets and sizes."""
        return self.offsets[handles], self.sizes[handles].astype(np.int64)

    def pieces(self, handles: NDArray[np.integer], count: int = 1024) -> Iterator[slice]:
        """`handles` in parts that may be read at once: of 4 MiB at most, and so many samples."""
        return in_pieces(self.sizes[handles], _PIECE, count)

    def enter(self, births: Entries) -> NDArray[np.int32]:
        """Take samples in, open; returns their handles."""
        n = len(births)
        reused = self._free[len(self._free) - min(n, len(self._free)) :]
        del self._free[len(self._free) - len(reused) :]
        top = self._top
        self._top = need = top + n - len(reused)
        handles = np.concatenate([np.array(reused, np.int32), np.arange(top, need, dtype=np.int32)])
        if need > len(self.ids):
            self.ids = grown(self.ids, need).astype(np.int64, copy=False)
            self.offsets = grown(self.offsets, need).astype(np.int64, copy=False)
            self.sizes = grown(self.sizes, need).astype(np.int32, copy=False)
            self.sums = grown(self.sums, need).astype(np.uint64, copy=False)
        self.sets.reserve(need)
        self.ids[handles], self.offsets[handles] = births["id"], births["offset"]
        self.sizes[handles], self.sums[handles] = births["size"], births["checksum"]
        self.sets.add_each(handles, births["label"].astype(np.int64))
        self._count += n
        self.live_bytes += int(padded_each(births["size"]).sum())
        return handles

    def drop(self, handles: list[int]) -> None:
        """Take samples out."""
        self.sets.remove_each(np.array(handles, np.int64))
        self._free.extend(handles)
        self._count -= len(handles)
        self.live_bytes -= int(padded_each(self.sizes[handles]).sum())

    def same(self, handles: NDArray[np.integer], entries: Entries) -> NDArray[np.bool_]:
        """Which samples `entries` has as they are here."""
        entries = entries[np.argsort(entries["id"], kind="stable")]
        if not len(entries):
            return np.zeros(len(handles), bool)
        found: Any = entries[np.minimum(np.searchsorted(entries["id"], self.ids[handles]), len(entries) - 1)]
        same = (found["id"] == self.ids[handles]) & (found["offset"] == self.offsets[handles])
        return np.asarray(same & (found["checksum"] == self.sums[handles]))
