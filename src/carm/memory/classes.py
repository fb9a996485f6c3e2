"""Sets of small integers, one set per class, with random choice and removal in constant time.

The memory keeps two of them: the slots of the RAM tier by class, and the entries of the storage tier by class. A member
is *open* or *held*. For the storage tier "held" means "in RAM now, or on its way": replacements and eviction victims
are both chosen among the open members, so neither can ever touch a sample that RAM shows.

To choose, pick any member of the class, and again if it is held: every open one is equally likely, and to hold or
release a member is to set a flag, for a whole batch of them at once. (Keeping open and held members apart in their
array spares the second tries, but then every swap moves four array items, and most of its time is spent on that.) The
choices of a whole order are made at once: all of them are tried, and those that have met a held member, or each other,
again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray


def grown(array: NDArray[np.generic], length: int, least: int = 64) -> NDArray[np.generic]:
    """A copy of `array` with at least `length` items; a quarter larger than asked, so that growth is amortised."""
    out = np.zeros(max(length + length // 4, least), array.dtype)
    out[: len(array)] = array
    return out


_Number = TypeVar("_Number", int, NDArray[np.int64])


def _room(total: _Number) -> _Number:
    """For so many members and a quarter more."""
    return total + total // 4 + 4


_TRIES = 8
_FEW = 32  # choices that are made faster one by one than all at once


class ClassSets:
    """Disjoint sets of integers below `capacity`, keyed by class label (any integer).

    The members of all classes lie in one array, each class in a stretch of its own with some room to grow, so that
    members of many classes can be chosen at once. Single items are read and written through memoryviews, three times as
    fast as numpy indexing.
    """

    def __init__(self, capacity: int = 0) -> None:
        self._names: list[int] = []  # label of each class number, in order of first appearance
        self._numbers: dict[int, int] = {}
        self._class_of = np.full(capacity, -1, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._held = np.zeros(capacity, bool)
        self._forget()

    def _forget(self) -> None:
        self._names, self._numbers = [], {}
        self._pool = np.zeros(0, np.int32)
        self._end = 0  # of the part of the pool that has been given to classes
        # by class number:
        self._open = np.zeros(0, np.int64)  # open members
        self._total = np.zeros(0, np.int64)  # members
        self._base = np.zeros(0, np.int64)  # where they begin in the pool
        self._room = np.zeros(0, np.int64)  # how many there is room for
        self._views()

    def _views(self) -> None:
        self._c = self._class_of.data
        self._p = self._position.data
        self._h = self._held.data
        self._m = self._pool.data
        self._o, self._t, self._b, self._r = (a.data for a in (self._open, self._total, self._base, self._room))

    def reserve(self, capacity: int) -> None:
        """Make room for integers below `capacity`."""
        old = len(self._class_of)
        if capacity > old:
            self._class_of = grown(self._class_of, capacity).astype(np.int32, copy=False)
            self._class_of[old:] = -1
            self._position = grown(self._position, capacity).astype(np.int32, copy=False)
            self._held = grown(self._held, capacity).astype(bool, copy=False)
            self._views()

    def _class(self, label: int) -> int:
        """The number of a class, which is made if there is none."""
        number = self._numbers.get(label)
        if number is None:
            number = self._numbers[label] = len(self._names)
            self._names.append(label)
            if number >= len(self._open):
                self._open, self._total, self._base, self._room = (
                    grown(a, number + 1, 4).astype(np.int64, copy=False)
                    for a in (self._open, self._total, self._base, self._room)
                )
                self._views()
        return number

    def _grow(self, number: int, total: int) -> None:
        """Room for `total` members of a class, and some more: at the end of the pool, if there is any left."""
        room = _room(total)
        if self._end + room > len(self._pool):
            totals = self._total[: len(self._names)].copy()
            totals[number] = total
            self._repack(totals)
            return
        n, old, new = self._t[number], self._b[number], self._end
        self._pool[new : new + n] = self._pool[old : old + n]
        self._b[number], self._r[number] = new, room
        self._end += room

    def _repack(self, totals: NDArray[np.int64]) -> None:
        """A larger pool, with all classes side by side and room for so many members of each. A quarter of it is left
        for those that grow first."""
        count = len(totals)
        rooms = _room(totals)
        base, old, members = np.cumsum(rooms) - rooms, self._base[:count], self._total[:count]
        within = np.arange(int(members.sum())) - np.repeat(np.cumsum(members) - members, members)
        end = int(rooms.sum())
        pool = np.zeros(end + end // 4, np.int32)
        pool[np.repeat(base, members) + within] = self._pool[np.repeat(old, members) + within]
        self._pool, self._end = pool, end
        self._base[:count], self._room[:count] = base, rooms
        self._views()

    def _members(self, number: int) -> NDArray[np.int32]:
        """A view of the members of a class."""
        base = self._b[number]
        return self._pool[base : base + self._t[number]]

    # -- changing ----------------------------------------------------------------------------------------------------

    def add(self, item: int, label: int, *, held: bool = False) -> None:
        """Put `item`, which is in no set, into the set of `label`."""
        number = self._class(label)
        total = self._t[number]
        if total == self._r[number]:
            self._grow(number, total + 1)
        self._m[self._b[number] + total] = item
        self._t[number] = total + 1
        self._c[item] = number
        self._p[item] = total
        self._h[item] = held
        if not held:
            self._o[number] += 1

    def add_each(self, items: NDArray[np.integer], labels: NDArray[np.int64]) -> None:
        """`add`, for different open items at once, in this order."""
        n = len(items)
        if n <= _FEW:
            for item, label in zip(items.tolist(), labels.tolist(), strict=True):
                self.add(item, label)
            return
        names, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
        if not self._numbers.keys() >= set(names.tolist()):
            for name in names[np.argsort(first)].tolist():  # classes are numbered in the order in which they appear
                self._class(name)
        numbers = np.array([self._numbers[name] for name in names.tolist()], np.int64)
        come = np.bincount(inverse)
        before = self._total[numbers]
        after = before + come
        small = np.flatnonzero(after > self._room[numbers])
        if len(small) > 2:
            totals = self._total[: len(self._names)].copy()
            totals[numbers] = after
            self._repack(totals)
        else:
            # Those that fit count at once: whoever grows may move all classes, and leaves each the room that it needs.
            fits = after <= self._room[numbers]
            self._total[numbers[fits]] = after[fits]
            for number, total in zip(numbers[small].tolist(), after[small].tolist(), strict=True):
                self._grow(number, total)
                self._t[number] = total
        self._total[numbers] = after
        order = np.argsort(inverse, kind="stable")
        rank = np.empty(n, np.int64)
        rank[order] = np.arange(n) - np.repeat(np.cumsum(come) - come, come)
        number, position = numbers[inverse], before[inverse] + rank
        self._pool[self._base[number] + position] = items
        self._open[numbers] += come
        self._class_of[items], self._position[items], self._held[items] = number, position, False

    def remove(self, item: int) -> None:
        """Take `item` out of its set."""
        number = self._c[item]
        base, total = self._b[number], self._t[number] - 1
        self._t[number] = total
        hole, last = self._p[item], self._m[base + total]
        self._m[base + hole] = last  # the last member fills the hole
        self._p[last] = hole
        self._c[item] = -1
        if not self._h[item]:
            self._o[number] -= 1

    def remove_each(self, items: NDArray[np.integer]) -> None:
        """`remove`, for different items at once. (Which members fill the holes may differ.)"""
        if len(items) <= _FEW:
            for item in items.tolist():
                self.remove(item)
            return
        order = np.argsort(self._class_of[items], kind="stable")
        items = items[order].astype(np.int64)
        numbers, position = self._class_of[items].astype(np.int64), self._position[items]
        np.subtract.at(self._open, numbers[~self._held[items]], 1)
        np.subtract.at(self._total, numbers, 1)
        self._class_of[items] = -1
        # A class that loses k members gives up the last k places. Members there that stay take the places, further to
        # the front, of those that go: there are as many, and both are in the order of the classes here.
        first = np.flatnonzero(np.diff(numbers, prepend=-1))
        within = np.arange(len(items)) - np.repeat(first, np.diff(first, append=len(items)))
        last = self._pool[self._base[numbers] + self._total[numbers] + within]
        stay = last[self._class_of[last] >= 0]
        hole = position < self._total[numbers]
        self._pool[self._base[numbers[hole]] + position[hole]] = stay
        self._position[stay] = position[hole]

    def hold(self, item: int) -> None:
        """Make an open `item` a held one."""
        self._h[item] = True
        self._o[self._c[item]] -= 1

    def release(self, item: int) -> None:
        """Make a held `item` an open one."""
        self._h[item] = False
        self._o[self._c[item]] += 1

    def hold_each(self, items: NDArray[np.integer]) -> None:
        """`hold`, for different items at once."""
        self._held[items] = True
        np.subtract.at(self._open, self._class_of[items], 1)

    def release_each(self, items: NDArray[np.integer]) -> None:
        """`release`, for different items at once."""
        self._held[items] = False
        np.add.at(self._open, self._class_of[items], 1)

    # -- asking ------------------------------------------------------------------------------------------------------

    def __contains__(self, item: int) -> bool:
        return 0 <= item < len(self._class_of) and self._c[item] >= 0

    def contains(self, items: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which of `items` are in a set."""
        return np.asarray(self._class_of[items] >= 0)

    def items(self) -> NDArray[np.int64]:
        """All members of all classes, ascending."""
        return np.flatnonzero(self._class_of >= 0)

    def __len__(self) -> int:
        return int(self._total.sum())

    @property
    def labels(self) -> list[int]:
        """The labels that have members, in the order in which they first appeared."""
        return [name for name, total in zip(self._names, self._t, strict=False) if total]

    def label(self, item: int) -> int:
        return self._names[self._c[item]]

    def is_open(self, item: int) -> bool:
        return not self._h[item]

    def are_open(self, items: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which of these members are open."""
        return np.asarray(~self._held[items])

    def count(self, label: int) -> int:
        """How many members `label` has."""
        number = self._numbers.get(label)
        return 0 if number is None else self._t[number]

    def open_count(self, label: int) -> int:
        """How many open members `label` has."""
        number = self._numbers.get(label)
        return 0 if number is None else int(self._open[number])

    def census(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many members, and how many open ones, each class has, by class number."""
        count = len(self._names)
        return self._total[:count].copy(), self._open[:count].copy()

    def numbers(self, labels: Iterable[int]) -> NDArray[np.int64]:
        """The class numbers of these labels; -1 where there is no class."""
        return np.array([self._numbers.get(label, -1) for label in labels], np.int64)

    def members(self, label: int) -> NDArray[np.int32]:
        """A copy of the members of `label`."""
        number = self._numbers.get(label)
        return np.zeros(0, np.int32) if number is None else self._members(number).copy()

    # -- choosing ----------------------------------------------------------------------------------------------------

    def take_open(self, label: int, rng: np.random.Generator) -> int:
        """Choose an open member of `label`, and hold it. -1 if there is none."""
        number = self._numbers.get(label)
        return -1 if number is None else self._take_open(number, rng)

    def _take_open(self, number: int, rng: np.random.Generator) -> int:
        if not self._o[number]:
            return -1
        base, total = self._b[number], self._t[number]
        for u in rng.random(_TRIES).tolist():
            item = self._m[base + int(u * total)]
            if not self._h[item]:
                break
        else:  # nearly all are held
            items = self._members(number)
            item = int(rng.choice(items[~self._held[items]]))
        self.hold(item)
        return item

    def take_like(self, items: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Choose for each of `items`, which are members, an open member of its class, and hold it; -1 where there is
        none."""
        # (numpy takes three times as long to index with 32 bits)
        return self.take_from(self._class_of[items].astype(np.int64), rng)

    def take_from(self, numbers: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """The same for each of these class numbers."""
        n = len(numbers)
        if n <= _FEW:
            return np.array(self._take_each(numbers.tolist(), rng), np.int64)
        at = (rng.random(n) * self._total[numbers]).astype(np.int64)
        at += self._base[numbers]
        out = self._pool[at].astype(np.int64)
        lost = self._held[out]
        ascending = np.sort(out)
        same = ascending[1:] == ascending[:-1]
        if np.count_nonzero(same):
            # Several have chosen the same: the first of them has it. Who is first has nothing to do with what was
            # chosen, so the choice is still uniform.
            lost[np.argsort(out, kind="stable")[1:][same]] = True
        if not np.count_nonzero(lost):
            self._held[out] = True
            np.subtract.at(self._open, numbers, 1)
            return out
        won, lost = ~lost, np.flatnonzero(lost)
        self._held[out[won]] = True
        np.subtract.at(self._open, numbers[won], 1)
        rest = numbers[lost]
        out[lost] = self.take_from(rest, rng) if _FEW < 2 * len(rest) < n else self._take_each(rest.tolist(), rng)
        return out

    def _take_each(self, numbers: list[int], rng: np.random.Generator) -> list[int]:
        """`_take_open` for each of these classes. The usual case is written out."""
        out: list[int] = []
        pool, base, total, held, opened = self._m, self._b, self._t, self._h, self._o
        uniform = iter(
            rng.random(2 * len(numbers)).tolist()
        )  # enough for a second try each; `_take_open` does the rest
        for number in numbers:
            if not opened[number]:
                out.append(-1)
                continue
            for u in uniform:
                item = pool[base[number] + int(u * total[number])]
                if not held[item]:
                    held[item] = True
                    opened[number] -= 1
                    out.append(item)
                    break
            else:
                out.append(self._take_open(number, rng))
        return out

    def peek(self, label: int, u: float) -> int:
        """Choose any member of `label` with `u` uniform in [0, 1); -1 if there is none."""
        number = self._numbers.get(label)
        if number is None or not self._t[number]:
            return -1
        return self._m[self._b[number] + int(u * self._t[number])]

    def largest(self, *, openly: bool = False, u: float = 0.0) -> int | None:
        """The label with most members (with `openly`: among those that have an open one); ties are broken with `u`."""
        total, opened = self.census()
        if openly:
            total[opened == 0] = 0
        best = int(total.max(initial=0))
        ties = np.flatnonzero(total == best)
        return self._names[ties[int(u * len(ties))]] if best else None

    # -- saving ------------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes of RAM that the arrays take."""
        arrays = (self._class_of, self._position, self._held, self._pool, self._open, self._total, self._base)
        return sum(a.nbytes for a in arrays) + self._room.nbytes

    @property
    def label_nbytes(self) -> int:
        """Bytes that the labels take besides: Python keeps a label and a number of each class as objects."""
        objects = 2 * sys.getsizeof(2**31) * len(self._names)
        return sys.getsizeof(self._numbers) + sys.getsizeof(self._names) + objects

    def order(self) -> list[tuple[int, NDArray[np.int32], NDArray[np.bool_]]]:
        """Every class as (label, members, which are held), in order: what `restore` needs for identical choices."""
        return [(name, self.members(name), self._held[self.members(name)]) for name in self._names]

    def restore(
        self, order: Iterable[tuple[int, Sequence[int] | NDArray[np.integer], NDArray[np.bool_] | None]]
    ) -> None:
        """Become the sets that `order` describes; None: all members are open."""
        self._forget()
        self._class_of[:] = -1
        self._held[:] = False
        for label, given, held in order:
            items = np.asarray(given, np.int32)
            self.reserve(int(items.max(initial=-1)) + 1)
            number = self._class(int(label))
            self._grow(number, len(items))
            self._t[number] = len(items)
            self._members(number)[:] = items
            self._class_of[items] = number
            self._position[items] = np.arange(len(items), dtype=np.int32)
            if held is not None:
                self._held[items] = held
            self._open[number] = len(items) - (0 if held is None else int(np.count_nonzero(held)))
