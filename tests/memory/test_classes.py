"""ClassSets against plain sets; its choices are uniform."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from carm.memory.classes import ClassSets

LABELS = st.sampled_from([0, 1, -7, 2**40, -(2**62), 2**63 - 1])
UNIFORM = st.floats(0, 1, exclude_max=True)


class Model(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.sets = ClassSets()
        self.model: dict[int, tuple[int, bool]] = {}  # item -> label, open
        self.seen: list[int] = []

    def _members(self, label: int, *, opened: bool | None = None) -> set[int]:
        return {i for i, (c, o) in self.model.items() if c == label and opened in (None, o)}

    @rule(item=st.integers(0, 60), label=LABELS, held=st.booleans())
    def add(self, item: int, label: int, held: bool) -> None:
        if item in self.model:
            return
        self.sets.reserve(item + 1)
        self.sets.add(item, label, held=held)
        self.model[item] = label, not held
        if label not in self.seen:
            self.seen.append(label)

    @rule(data=st.data(), n=st.integers(0, 60), seed=st.integers(0, 99))
    def add_some(self, data: st.DataObject, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        free = rng.permutation([i for i in range(150) if i not in self.model])[:n]
        labels = data.draw(st.lists(LABELS, min_size=len(free), max_size=len(free)))
        self.sets.reserve(150)
        alike = ClassSets()
        alike.restore(self.sets.order())
        alike.reserve(150)
        self.sets.add_each(free, np.array(labels, np.int64))
        for item, label in zip(free.tolist(), labels, strict=True):
            alike.add(item, label)
            self.model[item] = label, True
            if label not in self.seen:
                self.seen.append(label)
        for (a, b, _), (c, d, _) in zip(self.sets.order(), alike.order(), strict=True):
            assert (a, b.tolist()) == (c, d.tolist()), "not what adding one by one gives"

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(sorted(self.model)))
        self.sets.remove(item)
        del self.model[item]

    @rule(n=st.integers(0, 80), seed=st.integers(0, 99))
    def remove_some(self, n: int, seed: int) -> None:
        gone = np.random.default_rng(seed).permutation(sorted(self.model))[:n].astype(np.int64)
        self.sets.remove_each(gone)
        for item in gone.tolist():
            del self.model[item]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def turn(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(sorted(self.model)))
        label, opened = self.model[item]
        if opened:
            self.sets.hold(item)
        else:
            self.sets.release(item)
        self.model[item] = label, not opened

    @rule(label=LABELS, seed=st.integers(0, 99))
    def take(self, label: int, seed: int) -> None:
        candidates = self._members(label, opened=True)
        item = self.sets.take_open(label, np.random.default_rng(seed))
        assert item in candidates if candidates else item == -1
        if item >= 0:
            self.model[item] = label, False

    @precondition(lambda self: self.model)
    @rule(data=st.data(), n=st.integers(0, 80), seed=st.integers(0, 99))
    def take_like(self, data: st.DataObject, n: int, seed: int) -> None:
        like = data.draw(st.lists(st.sampled_from(sorted(self.model)), min_size=n, max_size=n))
        got = self.sets.take_like(np.array(like, np.int64), np.random.default_rng(seed)).tolist()
        assert len(got) == n
        wanted = [self.model[item][0] for item in like]
        for label in set(wanted):  # every open one is given before anybody gets none, and none twice
            given = [item for c, item in zip(wanted, got, strict=True) if c == label]
            there = self._members(label, opened=True)
            taken = [item for item in given if item >= 0]
            assert len(set(taken)) == len(taken) == min(len(given), len(there)) and there.issuperset(taken)
            for item in taken:
                self.model[item] = label, False

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def hold_some(self, data: st.DataObject) -> None:
        opened = [i for i, (_, o) in self.model.items() if o]
        some = data.draw(st.lists(st.sampled_from(opened), unique=True)) if opened else []
        self.sets.hold_each(np.array(some, np.int64))
        for item in some:
            self.model[item] = self.model[item][0], False

    @rule()
    def release_all(self) -> None:
        held = [i for i, (_, opened) in self.model.items() if not opened]
        self.sets.release_each(np.array(held, np.int64))
        self.model = {i: (c, True) for i, (c, _) in self.model.items()}

    @rule(label=LABELS, u=UNIFORM)
    def peek(self, label: int, u: float) -> None:
        members = self._members(label)
        item = self.sets.peek(label, u)
        assert item in members if members else item == -1

    @rule(u=UNIFORM, openly=st.booleans())
    def largest(self, u: float, openly: bool) -> None:
        sizes = {c: len(self._members(c)) for c in self.seen}
        allowed = {c: n for c, n in sizes.items() if n and (not openly or self._members(c, opened=True))}
        best = {c for c, n in allowed.items() if n == max(allowed.values())}
        got = self.sets.largest(openly=openly, u=u)
        assert got in best if best else got is None

    @rule()
    def save_and_restore(self) -> None:
        copy = ClassSets()
        copy.restore(self.sets.order())
        for (a, b, c), (d, e, f) in zip(copy.order(), self.sets.order(), strict=True):
            assert (a, b.tolist(), c.tolist()) == (d, e.tolist(), f.tolist())
        self.sets = copy

    @invariant()
    def same(self) -> None:
        sets = self.sets
        assert sets.items().tolist() == sorted(self.model)
        assert len(sets) == len(self.model)
        assert sets.labels == [c for c in self.seen if self._members(c)]
        for label in [*self.seen, 99]:
            members = sets.members(label).tolist()
            opened = self._members(label, opened=True)
            assert set(members) == self._members(label) and len(members) == sets.count(label)
            assert sets.open_count(label) == len(opened)
        for item, (label, opened) in self.model.items():
            assert item in sets and sets.label(item) == label and sets.is_open(item) == opened
        assert -1 not in sets and 1000 not in sets
        items = np.arange(len(sets._class_of))
        assert sets.contains(items).tolist() == [i in self.model for i in items.tolist()]
        mine = np.array(sorted(self.model), np.int64)
        assert sets.are_open(mine).tolist() == [self.model[i][1] for i in mine.tolist()]


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("every", [2, 19], ids=["half are open", "nearly all are held"])
@pytest.mark.parametrize("many", [0, 3, 40], ids=["one at a time", "several", "all at once"])
def test_choice_is_uniform_among_the_open(every: int, many: int) -> None:
    sets = ClassSets(95)
    for item in range(95):
        sets.add(item, 0, held=item % every != 0)
    opened = np.arange(0, 95, every)
    if many > len(opened):
        pytest.skip("not so many are open")
    rng = np.random.default_rng(0)
    counts = np.zeros(95)
    first = np.zeros(95)
    for _ in range(10_000):
        items = sets.take_like(np.ones(many, np.int64), rng) if many else np.array([sets.take_open(0, rng)])
        assert len(set(items.tolist())) == len(items)
        counts[items] += 1
        first[items[0]] += 1
        sets.release_each(items)
    for drawn in (counts, first):
        assert drawn.sum() == drawn[opened].sum()
        expected = drawn.sum() / len(opened)
        chi2 = ((drawn[opened] - expected) ** 2 / expected).sum()
        assert chi2 < {48: 84.0, 5: 18.5}[len(opened)], drawn[opened]  # 99.9 % of so many degrees of freedom less one


def test_many_classes_that_grow_in_turn_and_one_after_the_other() -> None:
    for labels in (np.arange(6000) % 300, np.repeat(np.arange(300), 20), np.random.default_rng(0).integers(0, 9, 6000)):
        sets = ClassSets()
        for item, label in enumerate(labels.tolist()):
            sets.reserve(item + 1)
            sets.add(item, label)
        for label in np.unique(labels).tolist():
            assert sets.members(label).tolist() == np.flatnonzero(labels == label).tolist()


def test_a_class_that_shrank_keeps_its_room_when_another_grows() -> None:
    sets = ClassSets(2000)
    for item in range(200):
        sets.add(item, 0)
    for item in range(190):
        sets.remove(item)  # 10 members, and room for 200
    sets.add(500, 1)
    items = np.concatenate([np.arange(1000, 1150), np.arange(1200, 1800)])
    sets.add_each(items, np.repeat([0, 1], [150, 600]))  # the one fits; the other makes all move
    assert sorted(sets.members(0).tolist()) == [*range(190, 200), *range(1000, 1150)]
    assert sorted(sets.members(1).tolist()) == [500, *range(1200, 1800)]


def test_memory_per_item() -> None:
    sets = ClassSets()
    for item in range(5000):
        sets.reserve(item + 1)
        sets.add(item, item % 10)
    assert sets.nbytes <= 5000 * 12 * 1.6
