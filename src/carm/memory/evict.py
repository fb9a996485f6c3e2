"""Who must go when the store is over capacity, and where room for a record can be made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from carm.memory.classes import ClassSets

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def choose(
    sets: ClassSets,
    labels: Ints,
    sizes: Ints,
    pinned: Bools,
    *,
    samples: int,
    room: int,
    sizes_of: Callable[[Ints], Ints],
    rng: np.random.Generator,
) -> tuple[list[int], list[int]]:
    """Choose what goes, until it is at least `samples` samples and `room` bytes: always from the class that is largest,
    new arrivals counted, and uniformly within it.

    `labels` and `sizes` are those of the new arrivals. An arrival is left out, rather than a stored sample evicted,
    only where its class has no stored sample that may go: otherwise a large batch of one class would drive out all
    others. If even that is not enough, `pinned` arrivals are left out too.

    Returns the stored samples that go, held so that nobody else chooses them, and the positions of the arrivals that
    do.
    """
    victims: list[int] = []
    left_out: list[int] = []
    if samples <= 0 and room <= 0:
        return victims, left_out
    classes = _Classes(sets, labels, pinned, rng)
    typical = max(int(sizes.mean()) if len(sizes) else 0, 1)
    while samples > 0 or room > 0:
        who = classes.largest(max(samples, room // typical, 1))  # for bytes a guess, and put right below
        if not len(who):
            break
        stored, arrivals = classes.take(who)
        gone = np.empty(len(who), np.int64)
        gone[stored >= 0], gone[stored < 0] = sizes_of(stored[stored >= 0]), sizes[arrivals[stored < 0]]
        enough = max(samples, 1 + int(np.searchsorted(np.cumsum(gone), room)) if room > 0 else 0)
        classes.give_back(who[enough:], stored[enough:], arrivals[enough:])
        stored, arrivals = stored[:enough], arrivals[:enough]
        victims += stored[stored >= 0].tolist()
        left_out += arrivals[stored < 0].tolist()
        samples -= len(stored)
        room -= int(gone[:enough].sum())
    for i in rng.permutation(np.flatnonzero(pinned)).tolist() if samples > 0 or room > 0 else ():
        if samples <= 0 and room <= 0:
            break
        left_out.append(i)
        samples -= 1
        room -= int(sizes[i])
    return _trimmed(sets, victims, samples, room, sizes_of), left_out


class _Classes:
    """How large each class is, with the arrivals, and who of it may go."""

    def __init__(self, sets: ClassSets, labels: Ints, pinned: Bools, rng: np.random.Generator) -> None:
        self.sets, self.rng = sets, rng
        names, inverse = np.unique(labels, return_inverse=True)
        numbers = sets.numbers(names.tolist())
        size, opened = sets.census()
        stored = len(size)
        unknown = np.flatnonzero(numbers < 0)
        numbers[unknown] = stored + np.arange(len(unknown))
        self._size = np.concatenate([size, np.zeros(len(unknown), np.int64)])
        self._open = np.concatenate([opened, np.zeros(len(unknown), np.int64)])
        self._tie = rng.random(len(self._size))
        class_of = numbers[inverse]
        np.add.at(self._size, class_of, 1)
        # The arrivals that may be left out, class by class, in random order within each.
        loose = rng.permutation(np.flatnonzero(~pinned))
        self._loose = loose[np.argsort(class_of[loose], kind="stable")]
        self._waiting = np.bincount(class_of[loose], minlength=len(self._size))
        self._next = np.cumsum(self._waiting) - self._waiting

    def largest(self, count: int) -> Ints:
        """The classes that `count` samples go from, one by one: each time the largest that has one which may go. Fewer
        if there are not so many."""
        size, able = self._size, self._open + self._waiting
        low, high = 0, int(size.max(initial=0))
        while low < high:  # the level that all are brought down to which can: the highest that gives enough
            level = (low + high + 1) // 2
            if int(np.minimum(np.maximum(size - level, 0), able).sum()) >= count:
                low = level
            else:
                high = level - 1
        go = np.minimum(np.maximum(size - low, 0), able)
        touched = np.flatnonzero(go)
        who = np.repeat(touched, go[touched])
        rank = np.arange(len(who)) - np.repeat(np.cumsum(go[touched]) - go[touched], go[touched])
        order = np.lexsort((self._tie[who], rank - size[who]))
        return who[order[:count]]

    def take(self, who: Ints) -> tuple[Ints, Ints]:
        """A member of each of these classes: a stored one, now held, or -1 and an arrival."""
        order = np.argsort(who, kind="stable")
        rank = np.empty(len(who), np.int64)
        first = np.flatnonzero(np.diff(who[order], prepend=-1))
        rank[order] = np.arange(len(who)) - np.repeat(first, np.diff(first, append=len(who)))
        is_stored = rank < self._open[who]
        stored = np.full(len(who), -1, np.int64)
        stored[is_stored] = self.sets.take_from(who[is_stored], self.rng)
        arrivals = np.zeros(len(who), np.int64)
        late = who[~is_stored]
        arrivals[~is_stored] = self._loose[self._next[late] + rank[~is_stored] - self._open[late]]
        np.subtract.at(self._size, who, 1)
        np.subtract.at(self._open, who[is_stored], 1)
        np.subtract.at(self._waiting, late, 1)
        np.add.at(self._next, late, 1)
        return stored, arrivals

    def give_back(self, who: Ints, stored: Ints, arrivals: Ints) -> None:
        """Those that were taken last need not go."""
        is_stored = stored >= 0
        self.sets.release_each(stored[is_stored])
        np.add.at(self._size, who, 1)
        np.add.at(self._open, who[is_stored], 1)
        np.add.at(self._waiting, who[~is_stored], 1)
        np.subtract.at(self._next, who[~is_stored], 1)


def _trimmed(
    sets: ClassSets, victims: list[int], samples: int, room: int, sizes_of: Callable[[Ints], Ints]
) -> list[int]:
    """`victims`, less the last ones that need not go after all: a large arrival may have been left out since."""
    while victims and samples < 0 and room + (size := int(sizes_of(np.array(victims[-1:]))[0])) <= 0:
        room += size
        samples += 1
        sets.release(victims.pop())
    return victims


def window(need: int, end: int, starts: Ints, ends: Ints, may_go: Bools, rng: np.random.Generator) -> Ints | None:
    """The fewest neighbours in the extent file that, gone, leave `need` bytes in one piece; one of the best at random.

    `starts` and `ends` are those of all extents in use, ascending; `end` is how long the file may be. Returns positions
    in `starts`; None if those that may not go lie too close together everywhere.
    """
    n = len(starts)
    if not n:
        return None
    begin = np.concatenate(([0], ends[:-1]))  # where the free space before each begins
    finish = np.concatenate((starts[1:], [end]))  # where the free space behind each ends
    last = np.maximum(np.searchsorted(finish, begin + need), np.arange(n))  # with i to last[i] gone, the room is there
    blocked = np.concatenate(([0], np.cumsum(~may_go)))
    possible = np.flatnonzero(last < n)
    possible = possible[blocked[last[possible] + 1] == blocked[possible]]
    if not len(possible):
        return None
    price = last[possible] - possible
    first = int(rng.choice(possible[price == price.min()]))
    return np.arange(first, last[first] + 1)
