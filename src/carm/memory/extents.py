"""Which parts of the extent file are free.

Extents begin and end at multiples of UNIT bytes, so that they can be read with O_DIRECT. Two allocators with one interface: where
all records have one size a stack of holes is enough; where sizes vary, best fit with merging of neighbours.
"""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

UNIT = 512
Ints = NDArray[np.int64]


def padded(size: int) -> int:
    """`size` rounded up to whole units."""
    return -(-size // UNIT) * UNIT


class FixedExtents:
    """Extents of one size, at multiples of it."""

    def __init__(self, size: int, taken: Ints) -> None:
        """`taken`: offsets of the extents in use."""
        self.size = padded(size)
        numbers = np.asarray(taken, np.int64) // self.size
        count = int(numbers.max(initial=-1)) + 1
        used = np.zeros(count, bool)
        used[numbers] = True
        self._holes = np.flatnonzero(~used)[::-1].tolist()  # the lowest is on top
        self.end = count * self.size
        self.used = len(numbers) * self.size

    @property
    def free(self) -> int:
        """Bytes in holes."""
        return len(self._holes) * self.size

    def allocate(self, sizes: Ints, limit: int | None) -> Ints | None:
        """Offsets for records of these sizes, holes first, then the end of the file; None if the file would pass `limit`."""
        n = len(sizes)
        holes = min(n, len(self._holes))
        end = self.end + (n - holes) * self.size
        if limit is not None and end > limit and n > holes:
            return None
        out = np.empty(n, np.int64)
        if holes:
            out[:holes] = self._holes[len(self._holes) - holes :][::-1]
            del self._holes[len(self._holes) - holes :]
            out[:holes] *= self.size
        out[holes:] = self.end + np.arange(n - holes, dtype=np.int64) * self.size
        self.end = end
        self.used += n * self.size
        return out

    def release(self, offsets: Ints, sizes: Ints) -> None:
        """Give extents back."""
        self._holes.extend((offsets // self.size).tolist())
        self.used -= len(offsets) * self.size


class VariableExtents:
    """Extents of any size: the smallest hole that fits; freed neighbours are merged."""

    def __init__(self, offsets: Ints, sizes: Ints) -> None:
        """The extents in use."""
        self.end = 0
        self.used = 0
        self._starts: dict[int, int] = {}  # hole start -> size
        self._ends: dict[int, int] = {}  # hole end -> start
        self._by_size: list[tuple[int, int]] = []  # (size, start), sorted
        order = np.argsort(offsets)
        for offset, size in zip(offsets[order].tolist(), sizes[order].tolist(), strict=True):
            if offset > self.end:
                self._insert(self.end, offset - self.end)
            self.end = max(self.end, offset + padded(size))
            self.used += padded(size)

    @property
    def free(self) -> int:
        return sum(self._starts.values())

    def _insert(self, start: int, size: int) -> None:
        self._starts[start] = size
        self._ends[start + size] = start
        insort(self._by_size, (size, start))

    def _remove(self, start: int) -> int:
        size = self._starts.pop(start)
        del self._ends[start + size]
        del self._by_size[bisect_left(self._by_size, (size, start))]
        return size

    def allocate(self, sizes: Ints, limit: int | None) -> Ints | None:
        out: list[int] = []
        for need in map(padded, sizes.tolist()):
            at = bisect_left(self._by_size, (need, -1))
            if at < len(self._by_size):
                start = self._by_size[at][1]
                size = self._remove(start)
                if size > need:
                    self._insert(start + need, size - need)
            elif limit is None or self.end + need <= limit:
                start = self.end
                self.end += need
            else:
                self.release(np.array(out, np.int64), sizes[: len(out)])
                return None
            self.used += need
            out.append(start)
        return np.array(out, np.int64)

    def release(self, offsets: Ints, sizes: Ints) -> None:
        for start, size in zip(offsets.tolist(), map(padded, sizes.tolist()), strict=True):
            self.used -= size
            before = self._ends.get(start)
            if before is not None:
                size += self._remove(before)
                start = before
            if start + size in self._starts:
                size += self._remove(start + size)
            if start + size == self.end:
                self.end = start
            else:
                self._insert(start, size)
