"""The allocators against a map of the file, unit by unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from carm.memory.extents import UNIT, FixedExtents, VariableExtents, padded, padded_each

NOTHING = np.zeros(0, np.int64)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_padding() -> None:
    assert [padded(n) for n in (0, 1, 511, 512, 513)] == [0, 512, 512, 512, 1024]
    assert padded_each(np.array([0, 1, 512, 2**31 - 1], np.int64)).tolist() == [0, 512, 512, 2**31]
    assert padded_each(np.array([2**31 - 1], np.int32)).tolist() == [2**31]  # no overflow
    assert padded_each(np.array([2**32 - 1], np.uint32)).tolist() == [2**32]


class Model(RuleBasedStateMachine):
    """A set of extents in use, and a list of free units below the end."""

    def __init__(self) -> None:
        super().__init__()
        self.used: dict[int, int] = {}  # start -> bytes

    @initialize(fixed=st.booleans(), limit=st.one_of(st.none(), st.integers(0, 40)), units=st.integers(1, 3))
    def begin(self, fixed: bool, limit: int | None, units: int) -> None:
        self.fixed = units * UNIT if fixed else 0
        self.limit = None if limit is None else limit * UNIT + 100
        self.extents: Any = FixedExtents(self.fixed, NOTHING) if fixed else VariableExtents(NOTHING, NOTHING)

    @rule(sizes=st.lists(st.integers(1, 5 * UNIT), max_size=6))
    def allocate(self, sizes: list[int]) -> None:
        if self.fixed:
            sizes = [self.fixed - 3] * len(sizes)
        free, end = self._free(), self.extents.end
        got = self.extents.allocate(ints(*sizes), self.limit).tolist()
        assert len(got) == len(sizes)
        for start, size in zip(got, sizes, strict=True):
            if start >= 0:
                self._take(start, padded(size))
            else:  # it was right to say no: neither hole nor end had room for it, even before the others were placed
                assert self.limit is not None and self.extents.end + padded(size) > self.limit
                assert not self._fits(padded(size))
        if self.fixed and free:  # holes first
            assert self.extents.end == end or all(s in got for s in free[:: self.fixed // UNIT])

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(self.used)), unique=True)) if self.used else []
        sizes = [self.used.pop(start) for start in chosen]
        self.extents.release(ints(*chosen), ints(*sizes))

    @rule()
    def reopen(self) -> None:
        """A new allocator, told what is in use, is the same."""
        starts, sizes = ints(*self.used), ints(*self.used.values())
        new: Any = FixedExtents(self.fixed, starts) if self.fixed else VariableExtents(starts, sizes)
        assert (new.end, new.used, new.free) == (self.extents.end, self.extents.used, self.extents.free)
        if not self.fixed:
            old = self.extents
            assert (new._starts, new._sizes, new._by_size) == (old._starts, old._sizes, old._by_size)
        self.extents = new

    @rule()
    def copy(self) -> None:
        """A copy goes its own way."""
        copy = self.extents.copy()
        before = (copy.end, copy.used, copy.free)
        self.extents.allocate(ints(self.fixed or UNIT), None)
        assert (copy.end, copy.used, copy.free) == before
        self.extents = copy

    def _take(self, start: int, size: int) -> None:
        assert start % (self.fixed or UNIT) == 0
        assert self.limit is None or start + size <= self.limit
        assert all(start + size <= s or s + n <= start for s, n in self.used.items()), "extents overlap"
        self.used[start] = size

    def _free(self) -> list[int]:
        taken = {u for s, n in self.used.items() for u in range(s, s + n, UNIT)}
        return [u for u in range(0, self.extents.end, UNIT) if u not in taken]

    def _fits(self, size: int) -> bool:
        free = set(self._free())
        return any(all(u + i in free for i in range(0, size, UNIT)) for u in free)

    @invariant()
    def adds_up(self) -> None:
        if not hasattr(self, "extents"):
            return
        assert self.extents.used == sum(self.used.values())
        assert self.extents.free == len(self._free()) * UNIT
        assert self.extents.end == max((s + n for s, n in self.used.items()), default=0), (
            "free room at the end is no hole"
        )
        holes = len(self.extents._holes if self.fixed else self.extents._starts)
        assert self.extents.nbytes == holes * (8 if self.fixed else 24)


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_best_fit_and_merging() -> None:
    extents = VariableExtents(NOTHING, NOTHING)
    a, b, c, d, e = extents.allocate(ints(2048, 512, 1024, 512, 512), None).tolist()
    extents.release(ints(a), ints(2048))
    extents.release(ints(c), ints(1024))
    assert extents.allocate(ints(1000), None).tolist() == [c]  # the smaller of two holes
    extents.release(ints(c), ints(1000))
    extents.release(ints(b), ints(512))
    assert extents.allocate(ints(3584), None).tolist() == [a]  # three holes in one
    assert extents.free == 0
    extents.release(ints(e, a), ints(512, 3584))
    extents.release(ints(d), ints(512))
    assert (extents.end, extents.free, extents.used) == (0, 0, 0)


def test_holes_larger_than_any_record() -> None:
    """Merged holes pass 2 GiB, where a packed key would overflow."""
    size = 2**31 - 1024
    extents = VariableExtents(NOTHING, NOTHING)
    starts = extents.allocate(ints(*[size] * 5, 512), None)
    extents.release(starts[:5], ints(*[size] * 5))
    assert extents.free == 5 * size
    assert extents.allocate(ints(size, 512, size), None).tolist() == [0, size, size + 512]
    far = ints(2**50)
    extents = VariableExtents(far, ints(512))
    assert extents.allocate(ints(size), None).tolist() == [0]
    assert extents.free == 2**50 - size


@pytest.mark.parametrize(
    ("offsets", "sizes"),
    [([0, 512], [1000, 512]), ([0, 0], [8, 8]), ([100], [8])],
    ids=["overlap", "twice", "unaligned"],
)
def test_impossible_extents_are_refused(offsets: list[int], sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="overlap"):
        VariableExtents(ints(*offsets), ints(*sizes))
    with pytest.raises(ValueError, match="overlap"):
        FixedExtents(1000, ints(*offsets))


@given(st.lists(st.integers(0, 30), unique=True, max_size=30))
def test_a_failed_growth_leaves_no_holes_behind_the_end(taken: list[int]) -> None:
    """Extents given back because the device was full must not be handed out again as if they were there."""
    extents = FixedExtents(512, ints(*taken) * 512)
    end = extents.end
    offsets = extents.allocate(ints(*[512] * 50), None)
    extents.release(offsets, ints(*[512] * 50))
    assert extents.end == end
    got = extents.allocate(ints(*[512] * 50), end)
    assert (got < end).all()
    assert np.count_nonzero(got >= 0) == end // 512 - len(taken)
