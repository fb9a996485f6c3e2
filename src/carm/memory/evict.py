"""Who must go when the store is over capacity, and where room for a record can be made."""

from __future__ import annotations

import heapq
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
    size_of: Callable[[int], int],
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
    names, counts = np.unique(labels, return_counts=True)
    arriving = dict(zip(names.tolist(), counts.tolist(), strict=True))
    classes = list(dict.fromkeys([*sets.labels, *arriving]))
    ties = rng.random(len(classes)).tolist()
    heap = [(-(sets.count(c) + arriving.get(c, 0)), tie, c) for c, tie in zip(classes, ties, strict=True)]
    heapq.heapify(heap)
    arrivals: dict[int, list[int]] = {}  # of the classes that have no stored ones left to go, in random order
    victims: list[int] = []
    left_out: list[int] = []
    while heap and (samples > 0 or room > 0):
        size, tie, label = heap[0]
        handle = sets.take_open(label, rng)
        if handle >= 0:
            victims.append(handle)
            room -= size_of(handle)
        else:
            if label not in arrivals:
                arrivals[label] = rng.permutation(np.flatnonzero((labels == label) & ~pinned)).tolist()
            if not arrivals[label]:
                heapq.heappop(heap)
                continue
            left_out.append(arrivals[label].pop())
            room -= int(sizes[left_out[-1]])
        samples -= 1
        heapq.heapreplace(heap, (size + 1, tie, label))
    for i in rng.permutation(np.flatnonzero(pinned)).tolist() if samples > 0 or room > 0 else ():
        if samples <= 0 and room <= 0:
            break
        left_out.append(i)
        samples -= 1
        room -= int(sizes[i])
    return _trimmed(sets, victims, samples, room, size_of), left_out


def _trimmed(sets: ClassSets, victims: list[int], samples: int, room: int, size_of: Callable[[int], int]) -> list[int]:
    """`victims`, less the last ones that need not go after all: a large arrival may have been left out since."""
    while victims and samples < 0 and room + size_of(victims[-1]) <= 0:
        room += size_of(victims[-1])
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
