"""Which parts of the extent file are free.

Extents begin and end at multiples of UNIT bytes, so that they can be read with O_DIRECT. Two allocators with one
interface: where all records have one size a stack of holes is enough; where sizes vary, best fit with merging of
neighbours. Free space that reaches the end of the file belongs to no hole: `end` comes down instead.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Any

import numpy as np
from numpy.typing import NDArray

UNIT = 512
Ints = NDArray[np.int64]
Sizes = NDArray[np.integer[Any]]


def padded(size: int) -> int:
    """`size` rounded up to whole units."""
    return -(-size // UNIT) * UNIT


def padded_each(sizes: Sizes) -> Ints:
    """`sizes`, each rounded up to whole units."""
    return -(-sizes.astype(np.int64) // UNIT) * UNIT


class FixedExtents:
    """Extents of one size, at multiples of it."""

    def __init__(self, size: int, taken: Ints) -> None:
        """`taken`: offsets of the extents in use."""
        self.size = padded(size)
        numbers = np.asarray(taken, np.int64) // self.size
        count = int(numbers.max(initial=-1)) + 1
        used = np.zeros(count, bool)
        used[numbers] = True
        if np.count_nonzero(used) != len(numbers) or np.any(taken % self.size):
            raise ValueError("extents overlap")
        self._holes = array("q", np.flatnonzero(~used)[::-1].tobytes())  # the lowest is on top
        self.end = count * self.size
        self.used = len(numbers) * self.size

    @property
    def free(self) -> int:
        """Bytes in holes."""
        return len(self._holes) * self.size

    @property
    def nbytes(self) -> int:
        """Bytes of RAM that this takes."""
        return len(self._holes) * self._holes.itemsize

    def copy(self) -> FixedExtents:
        out = FixedExtents(self.size, np.zeros(0, np.int64))
        out._holes, out.end, out.used = self._holes[:], self.end, self.used
        return out

    def allocate(self, sizes: Ints, limit: int | None) -> Ints:
        """Offsets for records of these sizes: holes first, then the end of the file, but not beyond `limit`. -1: no
        room. They are ascending, so that neighbours are written together."""
        out = np.full(len(sizes), -1, np.int64)
        holes = min(len(sizes), len(self._holes))
        if holes:
            out[:holes] = np.sort(np.array(self._holes[-holes:])) * self.size
            del self._holes[-holes:]
        fresh = len(sizes) - holes
        if limit is not None:
            fresh = max(0, min(fresh, (limit - self.end) // self.size))
        out[holes : holes + fresh] = self.end + np.arange(fresh, dtype=np.int64) * self.size
        self.end += fresh * self.size
        self.used += (holes + fresh) * self.size
        return out

    def release(self, offsets: Ints, sizes: Sizes) -> None:
        """Give extents back."""
        if not len(offsets):
            return
        self._holes.frombytes((offsets // self.size).astype(np.int64).tobytes())
        self.used -= len(offsets) * self.size
        if int(offsets.max()) + self.size == self.end:
            self._lower_end()

    def _lower_end(self) -> None:
        """The last extent is free: let `end` come down over it and the holes before it."""
        holes = np.sort(np.array(self._holes))
        last = self.end // self.size - 1
        gaps = np.flatnonzero(holes != np.arange(last - len(holes) + 1, last + 1))
        keep = (
            int(gaps[-1]) + 1 if len(gaps) else 0
        )  # holes up to the last one that is not followed by another, or the end
        self.end -= (len(holes) - keep) * self.size
        self._holes = array("q", holes[:keep][::-1].tobytes())


class VariableExtents:
    """Extents of any size: the smallest hole that fits; freed neighbours are merged."""

    # 24 bytes per hole. Insertion moves what is behind it, which for the holes of a million samples is still
    # microseconds.

    def __init__(self, offsets: Ints, sizes: Ints) -> None:
        """The extents in use."""
        order = np.argsort(offsets)
        starts = np.asarray(offsets, np.int64)[order]
        room = padded_each(np.asarray(sizes, np.int64)[order])
        before = np.concatenate(([0], starts + room))
        gaps = starts - before[:-1]
        if np.any(gaps < 0) or np.any(starts % UNIT):
            raise ValueError("extents overlap")
        holes = gaps > 0
        self.end = int(before[-1])
        self.used = int(room.sum())
        self._starts = array("q", before[:-1][holes].tobytes())  # ascending
        self._sizes = array("q", gaps[holes].tobytes())  # of the hole at the same place in _starts
        self._by_size = array("q", sorted(map(_key, self._sizes, self._starts)))

    @property
    def free(self) -> int:
        return sum(self._sizes)

    @property
    def nbytes(self) -> int:
        return 3 * len(self._starts) * self._starts.itemsize

    def copy(self) -> VariableExtents:
        out = VariableExtents(np.zeros(0, np.int64), np.zeros(0, np.int64))
        out.end, out.used = self.end, self.used
        out._starts, out._sizes, out._by_size = self._starts[:], self._sizes[:], self._by_size[:]
        return out

    def _insert(self, at: int, start: int, size: int) -> None:
        self._starts.insert(at, start)
        self._sizes.insert(at, size)
        key = _key(size, start)
        self._by_size.insert(bisect_left(self._by_size, key), key)

    def _remove(self, at: int) -> int:
        """Take out the hole at this place; returns its size."""
        start, size = self._starts.pop(at), self._sizes.pop(at)
        del self._by_size[bisect_left(self._by_size, _key(size, start))]
        return size

    def allocate(self, sizes: Ints, limit: int | None) -> Ints:
        out = np.full(len(sizes), -1, np.int64)
        for i, need in enumerate(map(padded, sizes.tolist())):
            found = bisect_left(self._by_size, _key(need, 0))
            if found < len(self._by_size):
                start = self._by_size[found] % _STARTS * UNIT
                at = bisect_left(self._starts, start)
                size = self._remove(at)
                if size > need:
                    self._insert(at, start + need, size - need)
            elif limit is None or self.end + need <= limit:
                start = self.end
                self.end += need
            else:
                continue
            self.used += need
            out[i] = start
        return out

    def release(self, offsets: Ints, sizes: Sizes) -> None:
        for start, size in zip(offsets.tolist(), map(padded, sizes.tolist()), strict=True):
            self.used -= size
            at = bisect_left(self._starts, start)
            if at < len(self._starts) and self._starts[at] == start + size:
                size += self._remove(at)
            if at and self._starts[at - 1] + self._sizes[at - 1] == start:
                at -= 1
                start = self._starts[at]
                size += self._remove(at)
            if start + size == self.end:
                self.end = start
            else:
                self._insert(at, start, size)


_STARTS = 2**41  # units in a file: a pebibyte
_LARGEST = (
    2**22 - 1
)  # units in an extent: almost 2 GiB. Holes may be larger; any record fits them, so how much does not matter


def _key(size: int, start: int) -> int:
    """A hole as one number below 2^63, ordered by size, then by start."""
    return min(size // UNIT, _LARGEST) * _STARTS + start // UNIT
