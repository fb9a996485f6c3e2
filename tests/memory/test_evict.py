"""Who goes: the largest class first, uniformly within it, never one that is held; and where room can be made."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from carm.memory.classes import ClassSets
from carm.memory.evict import choose, window


def make(counts: dict[int, int], held: dict[int, int] | None = None) -> ClassSets:
    """`counts[c]` members of class c, of which the first `held[c]` are held. Item numbers are class * 1000 + i."""
    sets = ClassSets(10_000)
    for label, count in counts.items():
        for i in range(count):
            sets.add(label * 1000 + i, label, held=i < (held or {}).get(label, 0))
    return sets


def run(sets: ClassSets, labels: list[int], *, samples: int = 0, room: int = 0, seed: int = 0, **given: Any) -> Any:
    arrivals = np.array(labels, np.int64)
    sizes = np.array(given.get("sizes", [512] * len(labels)), np.int64)
    pinned = np.array(given.get("pinned", [False] * len(labels)), bool)
    size_of = given.get("size_of", lambda _: 512)

    def sizes_of(items: Any) -> Any:
        return np.array([size_of(i) for i in items.tolist()], np.int64)

    rng = np.random.default_rng(seed)
    return choose(sets, arrivals, sizes, pinned, samples=samples, room=room, sizes_of=sizes_of, rng=rng)


def test_largest_class_first() -> None:
    victims, left_out = run(make({0: 10, 1: 30, 2: 20}), [], samples=15)
    assert left_out == []
    assert Counter(v // 1000 for v in victims) in ({1: 13, 2: 2}, {1: 12, 2: 3})  # 10, 17, 18 or 10, 18, 17 are left


def test_arrivals_count() -> None:
    victims, _ = run(make({0: 10, 1: 12}), [0] * 5, samples=3)
    assert {v // 1000 for v in victims} == {0}  # with the five that come, class 0 is the largest


def test_equal_classes_take_turns_and_ties_are_random() -> None:
    firsts: Counter[int] = Counter()
    for seed in range(600):
        victims, _ = run(make({0: 5, 1: 5, 2: 5}), [], samples=3, seed=seed)
        assert {v // 1000 for v in victims} == {0, 1, 2}
        firsts[victims[0] // 1000] += 1
    assert ((np.array(list(firsts.values())) - 200) ** 2 / 200).sum() < 13.8  # 99.9 % of 2 degrees of freedom


def test_uniform_within_the_class() -> None:
    counts = np.zeros(20)
    for seed in range(2000):
        for victim in run(make({3: 20}), [], samples=4, seed=seed)[0]:
            counts[victim - 3000] += 1
    assert ((counts - 400) ** 2 / 400).sum() < 43.8, counts  # 99.9 % of 19 degrees of freedom


def test_held_ones_never_go() -> None:
    sets = make({0: 10, 1: 4}, held={0: 8})
    victims, _ = run(sets, [], samples=100)
    assert sorted(victims) == [8, 9, 1000, 1001, 1002, 1003]
    assert not any(sets.is_open(v) for v in victims), "victims are held, so that nobody else takes them"


def test_a_batch_of_one_class_does_not_drive_out_the_others() -> None:
    """100 of class 0 come to a full store of 10 classes with 10 each: all but 10 of class 0 must go, none of the
    rest."""
    sets = make(dict.fromkeys(range(10), 10))
    victims, left_out = run(sets, [0] * 100, samples=100)
    assert sorted(victims) == list(range(10))
    assert len(left_out) == len(set(left_out)) == 90


def test_arrivals_left_out_are_a_random_choice() -> None:
    counts = np.zeros(20)
    for seed in range(1000):
        victims, left_out = run(make({}), [7] * 20, samples=5, seed=seed)
        assert victims == [] and len(left_out) == 5
        counts[left_out] += 1
    assert ((counts - 250) ** 2 / 250).sum() < 43.8, counts


def test_pinned_arrivals_go_last() -> None:
    pinned = [True, False, True, False]
    assert run(make({}), [1, 1, 1, 1], samples=2, pinned=pinned)[1] in ([1, 3], [3, 1])
    victims, left_out = run(make({2: 3}, held={2: 2}), [1] * 4, samples=4, pinned=pinned)
    assert victims == [2002] and sorted(left_out[:2]) == [1, 3] and left_out[2] in (0, 2)


def test_bytes() -> None:
    for room, count in ((1, 1), (1024, 1), (1025, 2), (2500, 3), (9999, 5)):
        victims, left_out = run(make({0: 5}), [], room=room, size_of=lambda _: 1024)
        assert len(victims) == count and left_out == []
    sizes = {0: 512, 1: 2048, 2: 512}
    for seed in range(10):  # no more than is needed, whichever comes first
        victims, _ = run(make({0: 3}), [], room=2500, size_of=sizes.__getitem__, seed=seed)
        assert sum(sizes[v] for v in victims) >= 2500 > sum(sizes[v] for v in victims[:-1])
    victims, left_out = run(make({}), [0, 0], room=600, sizes=[512, 4096])
    assert victims == [] and left_out in ([0, 1], [1])


def test_victims_are_spared_if_the_arrival_they_made_room_for_is_left_out() -> None:
    sets = make({0: 5, 1: 4}, held={1: 4})
    victims, left_out = run(sets, [1], room=4000, sizes=[4096])  # 2560 bytes of class 0 are not enough
    assert (victims, left_out) == ([], [0])
    assert all(sets.is_open(i) for i in range(5))
    victims, left_out = run(sets, [1], room=5000, sizes=[4096])
    assert len(victims) == 2 and left_out == [0]


def test_nothing_to_do() -> None:
    assert run(make({0: 3}), [0, 1]) == ([], [])
    assert run(make({0: 3}), [0, 1], samples=-5, room=-1) == ([], [])
    assert run(make({}), [], samples=3, room=9) == ([], [])


@given(
    st.dictionaries(st.integers(0, 4), st.integers(1, 8), max_size=4),
    st.dictionaries(st.integers(0, 4), st.integers(0, 8), max_size=4),
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12),
    st.integers(0, 25),
)
def test_what_is_left_is_as_balanced_as_can_be(
    counts: dict[int, int], held: dict[int, int], arrivals: list[tuple[int, bool]], samples: int
) -> None:
    labels, pinned = [a for a, _ in arrivals], [p for _, p in arrivals]
    victims, left_out = run(make(counts, held), labels, samples=samples, pinned=pinned)
    gone = Counter([v // 1000 for v in victims] + [labels[i] for i in left_out])
    total = Counter(counts) + Counter(labels)
    stays = {c: min(held.get(c, 0), n) for c, n in counts.items()}
    least = {c: stays.get(c, 0) + sum(a == (c, True) for a in arrivals) for c in total}  # what may not go
    unpinned = [i for i in left_out if not pinned[i]]
    assert len(victims) + len(left_out) == min(samples, sum(total.values()) - sum(stays.values()))
    if len(unpinned) == len(left_out):  # nothing in RAM had to be left out
        left = {c: total[c] - gone[c] for c in total}
        for c, n in left.items():  # nobody smaller than c was touched while c could have given one more
            if n > least[c]:
                assert all(left[d] >= n - 1 for d in total if gone[d])


@given(
    st.dictionaries(st.integers(0, 4), st.integers(1, 8), max_size=4),
    st.dictionaries(st.integers(0, 4), st.integers(0, 8), max_size=4),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=12),
    st.integers(1, 60),
    st.integers(0, 99),
)
def test_by_bytes_as_one_by_one(
    counts: dict[int, int], held: dict[int, int], arrivals: list[tuple[int, int]], units: int, seed: int
) -> None:
    """However many are guessed at a time: what goes is what would, were it chosen one by one from the largest class."""
    labels, sizes = [a for a, _ in arrivals], [512 * s for _, s in arrivals]
    size_of = {i: 512 * (1 + i % 7) for c, n in counts.items() for i in range(c * 1000, c * 1000 + n)}
    sets = make(counts, held)
    room = 512 * units
    victims, left_out = run(sets, labels, room=room, sizes=sizes, size_of=size_of.__getitem__, seed=seed)
    gone = sum(size_of[v] for v in victims) + sum(sizes[i] for i in left_out)
    may_go = {c: n - min(held.get(c, 0), n) for c, n in counts.items()}
    assert gone >= room or len(victims) + len(left_out) == sum(may_go.values()) + len(labels)
    for last in ([size_of[victims[-1]]] if victims else []) + ([sizes[left_out[-1]]] if left_out else []):
        if gone - last < room:
            break
    else:
        assert not victims and not left_out, "more than is needed"
    went = Counter([v // 1000 for v in victims] + [labels[i] for i in left_out])
    left = {c: n - went[c] for c, n in (Counter(counts) + Counter(labels)).items()}
    for c, n in left.items() if not left_out else ():  # (else victims may have been spared in the end)
        if went[c] < may_go.get(c, 0) + labels.count(c):  # it could have given one more
            assert all(left[d] >= n - 1 for d in left if went[d])
    taken = {i for i in size_of if not sets.is_open(i)} - {c * 1000 + i for c in counts for i in range(held.get(c, 0))}
    assert taken == set(victims), "those that were not needed are open again"


def test_many_classes_take_hardly_longer() -> None:
    """A commit must not wait for a walk over all classes in Python."""
    seconds = []
    for classes in (100, 20_000):
        sets = ClassSets()
        sets.reserve(40_000)
        sets.add_each(np.arange(40_000), np.arange(40_000) % classes)
        best = 1.0
        for seed in range(5):
            begun = time.perf_counter()
            victims, _ = run(sets, list(range(100)), samples=100, seed=seed)
            best = min(best, time.perf_counter() - begun)
            assert len(victims) == 100
            sets.release_each(np.array(victims))
        seconds.append(best)
    assert seconds[1] < 20 * seconds[0]  # in Python it was 100 times


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.booleans()), max_size=8),
    st.integers(0, 6),
    st.integers(1, 9),
    st.integers(0, 5),
)
def test_window_is_the_cheapest(layout: list[tuple[int, int, bool]], tail: int, need: int, seed: int) -> None:
    starts, ends, at = [], [], 0
    for gap, size, _ in layout:
        starts.append(at + gap)
        at = at + gap + size
        ends.append(at)
    may_go = np.array([o for _, _, o in layout], bool)
    end = at + tail
    found = window(need, end, np.array(starts, np.int64), np.array(ends, np.int64), may_go, np.random.default_rng(seed))

    def room(i: int, j: int) -> int:  # in one piece with i..j gone
        return (starts[j + 1] if j + 1 < len(starts) else end) - (ends[i - 1] if i else 0)

    n = len(layout)
    good = [
        (i, j)
        for i, j in itertools.combinations_with_replacement(range(n), 2)
        if may_go[i : j + 1].all() and room(i, j) >= need
    ]
    if not good:
        assert found is None
    else:
        assert found is not None
        assert (found[0], found[-1]) in good and (np.diff(found) == 1).all()
        assert len(found) == min(j - i + 1 for i, j in good)
