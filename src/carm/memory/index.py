"""Sets of small integers, one set per class, with random choice and removal in constant time.

The memory keeps two of them: the slots of the RAM tier by class, and the entries of the storage tier by class. A member
is *open* or *held*. For the storage tier "held" means "in RAM now, or on its way": replacements and eviction victims
are both chosen among the open members, so neither can ever touch a sample that RAM shows.

To choose, pick any member of the class, and again if it is held: every open one is equally likely, and to hold or
release a member is to set a flag, for a whole batch of them at once. (Keeping open and held members apart in their
array spares the second tries, but then every swap moves four array items, and most of its time is spent on that.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


def grown(array: NDArray[np.generic], length: int) -> NDArray[np.generic]:
    """A copy of `array` with at least `length` items; a quarter larger than asked, so that growth is amortised."""
    out = np.zeros(max(length + length // 4, 64), array.dtype)
    out[: len(array)] = array
    return out


_TRIES = 8


class _Members:
    """The members of one class: `items[:total]`.

    Single items are read and written through `view`, a memoryview: three times as fast as numpy indexing.
    """

    __slots__ = ("items", "total", "view")

    def __init__(self) -> None:
        self.items = np.zeros(8, np.int32)
        self.view = self.items.data
        self.total = 0

    def reserve(self, total: int) -> None:
        if total > len(self.items):
            self.items = grown(self.items, total).astype(np.int32, copy=False)
            self.view = self.items.data


class ClassSets:
    """Disjoint sets of integers below `capacity`, keyed by class label (any integer)."""

    def __init__(self, capacity: int = 0) -> None:
        self._classes: dict[int, _Members] = {}
        self._names: list[int] = []  # label of each class number, in order of first appearance
        self._numbers: dict[int, int] = {}
        self._class_of = np.full(capacity, -1, np.int32)
        self._position = np.zeros(capacity, np.int32)
        self._held = np.zeros(capacity, bool)
        self._open = np.zeros(8, np.int64)  # open members by class number
        self._views()

    def _views(self) -> None:
        self._c = self._class_of.data
        self._p = self._position.data
        self._h = self._held.data
        self._o = self._open.data

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
            self._classes[number] = _Members()
            if number >= len(self._open):
                self._open = grown(self._open, number + 1).astype(np.int64, copy=False)
                self._o = self._open.data
        return number

    # -- changing ----------------------------------------------------------------------------------------------------

    def add(self, item: int, label: int, *, held: bool = False) -> None:
        """Put `item`, which is in no set, into the set of `label`."""
        number = self._class(label)
        members = self._classes[number]
        total = members.total
        members.reserve(total + 1)
        members.view[total] = item
        members.total = total + 1
        self._c[item] = number
        self._p[item] = total
        self._h[item] = held
        if not held:
            self._o[number] += 1

    def remove(self, item: int) -> None:
        """Take `item` out of its set."""
        number = self._c[item]
        members = self._classes[number]
        members.total -= 1
        hole, last = self._p[item], members.view[members.total]
        members.view[hole] = last  # the last member fills the hole
        self._p[last] = hole
        self._c[item] = -1
        if not self._h[item]:
            self._o[number] -= 1

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
        self._open -= np.bincount(self._class_of[items], minlength=len(self._open))

    def release_each(self, items: NDArray[np.integer]) -> None:
        """`release`, for different items at once."""
        self._held[items] = False
        self._open += np.bincount(self._class_of[items], minlength=len(self._open))

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
        return sum(m.total for m in self._classes.values())

    @property
    def labels(self) -> list[int]:
        """The labels that have members, in the order in which they first appeared."""
        return [name for name, m in zip(self._names, self._classes.values(), strict=True) if m.total]

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
        return 0 if number is None else self._classes[number].total

    def open_count(self, label: int) -> int:
        """How many open members `label` has."""
        number = self._numbers.get(label)
        return 0 if number is None else int(self._open[number])

    def members(self, label: int) -> NDArray[np.int32]:
        """A copy of the members of `label`."""
        number = self._numbers.get(label)
        if number is None:
            return np.zeros(0, np.int32)
        members = self._classes[number]
        return np.array(members.items[: members.total])

    # -- choosing ----------------------------------------------------------------------------------------------------

    def take_open(self, label: int, rng: np.random.Generator) -> int:
        """Choose an open member of `label`, and hold it. -1 if there is none."""
        number = self._numbers.get(label)
        if number is None or not self._o[number]:
            return -1
        members = self._classes[number]
        for u in rng.random(_TRIES).tolist():
            item = members.view[int(u * members.total)]
            if not self._h[item]:
                break
        else:  # nearly all are held
            items = members.items[: members.total]
            item = int(rng.choice(items[~self._held[items]]))
        self.hold(item)
        return item

    def take_open_each(self, labels: list[int], rng: np.random.Generator) -> NDArray[np.int32]:
        """`take_open` for each of `labels`, in turn. The usual case is written out: every swap makes this choice."""
        out: list[int] = []
        numbers, classes, held, opened = self._numbers, self._classes, self._h, self._o
        uniform = iter(rng.random(2 * len(labels)).tolist())  # enough for a second try each; `take_open` does the rest
        for label in labels:
            number = numbers.get(label)
            if number is None or not opened[number]:
                out.append(-1)
                continue
            members = classes[number]
            for u in uniform:
                item = members.view[int(u * members.total)]
                if not held[item]:
                    held[item] = True
                    opened[number] -= 1
                    out.append(item)
                    break
            else:
                out.append(self.take_open(label, rng))
        return np.array(out, np.int32)

    def peek(self, label: int, u: float) -> int:
        """Choose any member of `label` with `u` uniform in [0, 1); -1 if there is none."""
        number = self._numbers.get(label)
        if number is None:
            return -1
        members = self._classes[number]
        return members.view[int(u * members.total)] if members.total else -1

    def largest(self, *, openly: bool = False, u: float = 0.0) -> int | None:
        """The label with most members (with `openly`: among those that have an open one); ties are broken with `u`."""
        best = 0
        ties: list[int] = []
        for name, members in zip(self._names, self._classes.values(), strict=True):
            if members.total < best or members.total == 0 or (openly and not self._open[self._numbers[name]]):
                continue
            if members.total > best:
                best, ties = members.total, []
            ties.append(name)
        return ties[int(u * len(ties))] if ties else None

    # -- saving ------------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes of RAM that the arrays take."""
        arrays = [self._class_of, self._position, self._held, self._open, *(m.items for m in self._classes.values())]
        return sum(a.nbytes for a in arrays)

    def order(self) -> list[tuple[int, NDArray[np.int32], NDArray[np.bool_]]]:
        """Every class as (label, members, which are held), in order: what `restore` needs for identical choices."""
        out = []
        for name, members in zip(self._names, self._classes.values(), strict=True):
            items = members.items[: members.total].copy()
            out.append((name, items, self._held[items]))
        return out

    def restore(
        self, order: Iterable[tuple[int, Sequence[int] | NDArray[np.integer], NDArray[np.bool_] | None]]
    ) -> None:
        """Become the sets that `order` describes; None: all members are open."""
        self._classes, self._names, self._numbers = {}, [], {}
        self._class_of[:] = -1
        self._held[:] = False
        self._open[:] = 0
        for label, given, held in order:
            items = np.asarray(given, np.int32)
            self.reserve(int(items.max(initial=-1)) + 1)
            number = self._class(int(label))
            members = self._classes[number]
            members.reserve(len(items))
            members.items[: len(items)] = items
            members.total = len(items)
            self._class_of[items] = number
            self._position[items] = np.arange(len(items), dtype=np.int32)
            if held is not None:
                self._held[items] = held
            self._open[number] = len(items) - (0 if held is None else int(np.count_nonzero(held)))
