"""Sets of small integers, one set per class, with O(1) random choice and removal.

The memory keeps two of them: the slots of the RAM tier by class, and the entries of the storage tier by class. Each
class's members lie side by side in one array, split in two: first the *open* members, then the *held* ones. For the
storage tier "held" means "in RAM now, or on its way": a replacement and an eviction victim are both drawn from the open
part, so neither can ever touch a sample that RAM shows. Moving a member across the split, like removing it, is one
exchange of two array items.

Items are read and written one at a time, through memoryviews: for single items they are three times as fast as numpy
indexing.
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


class _Members:
    """The members of one class: `items[:open]` are open, `items[open:total]` are held."""

    __slots__ = ("items", "open", "total", "view")

    def __init__(self) -> None:
        self.items = np.zeros(8, np.int32)
        self.view = self.items.data
        self.open = 0
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
        self._views()

    def _views(self) -> None:
        self._c = self._class_of.data
        self._p = self._position.data

    def reserve(self, capacity: int) -> None:
        """Make room for integers below `capacity`."""
        old = len(self._class_of)
        if capacity > old:
            self._class_of = grown(self._class_of, capacity).astype(np.int32, copy=False)
            self._class_of[old:] = -1
            self._position = grown(self._position, capacity).astype(np.int32, copy=False)
            self._views()

    # -- changing ----------------------------------------------------------------------------------------------------

    def add(self, item: int, label: int, *, held: bool = False) -> None:
        """Put `item`, which is in no set, into the set of `label`."""
        number = self._numbers.get(label)
        if number is None:
            number = self._numbers[label] = len(self._names)
            self._names.append(label)
            self._classes[number] = _Members()
        members = self._classes[number]
        total = members.total
        members.reserve(total + 1)
        view = members.view
        self._c[item] = number
        if held or members.open == total:
            view[total] = item
            self._p[item] = total
        else:  # the first held member makes way
            first = view[members.open]
            view[total] = first
            self._p[first] = total
            view[members.open] = item
            self._p[item] = members.open
        members.total = total + 1
        if not held:
            members.open += 1

    def remove(self, item: int) -> None:
        """Take `item` out of its set."""
        members = self._classes[self._c[item]]
        view, position = members.view, self._p
        hole = position[item]
        if hole < members.open:
            members.open -= 1
            last = view[members.open]
            view[hole] = last
            position[last] = hole
            hole = members.open
        members.total -= 1
        if hole != members.total:  # the last held member fills the hole
            last = view[members.total]
            view[hole] = last
            position[last] = hole
        self._c[item] = -1

    def hold(self, item: int) -> None:
        """Move an open `item` behind the split."""
        members = self._classes[self._c[item]]
        members.open -= 1
        self._exchange(members, item, members.open)

    def release(self, item: int) -> None:
        """Move a held `item` before the split."""
        members = self._classes[self._c[item]]
        self._exchange(members, item, members.open)
        members.open += 1

    def _exchange(self, members: _Members, item: int, place: int) -> None:
        view, position = members.view, self._p
        here, other = position[item], view[place]
        view[here] = other
        position[other] = here
        view[place] = item
        position[item] = place

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
        return self._p[item] < self._classes[self._c[item]].open

    def are_open(self, items: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which of these members are open."""
        opened = np.array([m.open for m in self._classes.values()], np.int32)
        return np.asarray(self._position[items] < opened[self._class_of[items]])

    def count(self, label: int) -> int:
        """How many members `label` has."""
        number = self._numbers.get(label)
        return 0 if number is None else self._classes[number].total

    def open_count(self, label: int) -> int:
        """How many open members `label` has."""
        number = self._numbers.get(label)
        return 0 if number is None else self._classes[number].open

    def members(self, label: int) -> NDArray[np.int32]:
        """A copy of the members of `label`, open ones first."""
        number = self._numbers.get(label)
        if number is None:
            return np.zeros(0, np.int32)
        members = self._classes[number]
        return np.array(members.items[: members.total])

    # -- choosing ----------------------------------------------------------------------------------------------------

    def take_open(self, label: int, u: float) -> int:
        """Choose an open member of `label` with `u` uniform in [0, 1), and hold it. -1 if there is none."""
        number = self._numbers.get(label)
        if number is None:
            return -1
        members = self._classes[number]
        n = members.open
        if n == 0:
            return -1
        view, position = members.view, self._p
        here = int(u * n)
        n -= 1
        item, last = view[here], view[n]
        view[here] = last
        position[last] = here
        view[n] = item
        position[item] = n
        members.open = n
        return item

    def take_open_each(self, labels: Iterable[int], uniform: Iterable[float]) -> list[int]:
        """`take_open` for each label in turn. The same steps, written out: a swap makes this choice for every
        sample."""
        out: list[int] = []
        numbers, classes, position = self._numbers, self._classes, self._p
        for label, u in zip(labels, uniform, strict=True):
            number = numbers.get(label)
            if number is None or not (n := classes[number].open):
                out.append(-1)
                continue
            members = classes[number]
            view = members.view
            here = int(u * n)
            n -= 1
            item = view[here]
            last = view[n]
            view[here] = last
            position[last] = here
            view[n] = item
            position[item] = n
            members.open = n
            out.append(item)
        return out

    def release_each(self, items: Iterable[int]) -> None:
        """`release` for each item in turn, written out for the same reason."""
        classes, position, class_of = self._classes, self._p, self._c
        for item in items:
            members = classes[class_of[item]]
            view = members.view
            place = members.open
            here = position[item]
            other = view[place]
            view[here] = other
            position[other] = here
            view[place] = item
            position[item] = place
            members.open = place + 1

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
            if members.total < best or members.total == 0 or (openly and members.open == 0):
                continue
            if members.total > best:
                best, ties = members.total, []
            ties.append(name)
        return ties[int(u * len(ties))] if ties else None

    # -- saving ------------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes of RAM that the arrays take."""
        arrays = [self._class_of, self._position, *(m.items for m in self._classes.values())]
        return sum(a.nbytes for a in arrays)

    def order(self) -> list[tuple[int, int, NDArray[np.int32]]]:
        """Every class as (label, number of open members, members in order): what `restore` needs for identical
        choices."""
        return [
            (name, m.open, m.items[: m.total].copy())
            for name, m in zip(self._names, self._classes.values(), strict=True)
        ]

    def restore(self, order: Iterable[tuple[int, int, Sequence[int] | NDArray[np.integer]]]) -> None:
        """Become the sets that `order` describes."""
        self._classes, self._names, self._numbers = {}, [], {}
        self._class_of[:] = -1
        for label, opened, items in order:
            array = np.asarray(items, np.int32)
            members = _Members()
            members.reserve(len(array))
            members.items[: len(array)] = array
            members.open, members.total = int(opened), len(array)
            number = self._numbers[int(label)] = len(self._names)
            self._names.append(int(label))
            self._classes[number] = members
            self.reserve(int(array.max(initial=-1)) + 1)
            self._class_of[array] = number
            self._position[array] = np.arange(len(array), dtype=np.int32)
