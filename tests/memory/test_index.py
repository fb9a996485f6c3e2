"""ClassSets against plain sets; its choices are uniform."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from carm.memory.index import ClassSets

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

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        item = data.draw(st.sampled_from(sorted(self.model)))
        self.sets.remove(item)
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

    @rule(label=LABELS, u=UNIFORM)
    def take(self, label: int, u: float) -> None:
        candidates = self._members(label, opened=True)
        item = self.sets.take_open(label, u)
        assert item in candidates if candidates else item == -1
        if item >= 0:
            self.model[item] = label, False

    @rule(draws=st.lists(st.tuples(LABELS, UNIFORM), max_size=8))
    def take_each(self, draws: list[tuple[int, float]]) -> None:
        """Many at once is the same as one after the other."""
        twin = ClassSets()
        twin.restore(self.sets.order())
        got = self.sets.take_open_each([c for c, _ in draws], [u for _, u in draws])
        assert got == [twin.take_open(c, u) for c, u in draws]
        for (label, _), item in zip(draws, got, strict=True):
            if item >= 0:
                self.model[item] = label, False

    @rule()
    def release_all(self) -> None:
        held = [i for i, (_, opened) in self.model.items() if not opened]
        self.sets.release_each(held)
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
            assert (a, b, c.tolist()) == (d, e, f.tolist())
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
            assert set(members[: len(opened)]) == opened and sets.open_count(label) == len(opened)
        for item, (label, opened) in self.model.items():
            assert item in sets and sets.label(item) == label and sets.is_open(item) == opened
        assert -1 not in sets and 1000 not in sets
        items = np.arange(len(sets._class_of))
        assert sets.contains(items).tolist() == [i in self.model for i in items.tolist()]
        mine = np.array(sorted(self.model), np.int64)
        assert sets.are_open(mine).tolist() == [self.model[i][1] for i in mine.tolist()]


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_choice_is_uniform_among_the_open() -> None:
    sets = ClassSets(20)
    for item in range(20):
        sets.add(item, 0, held=item % 2 == 0)
    rng = np.random.default_rng(0)
    counts = np.zeros(20)
    for u in rng.random(20_000).tolist():
        item = sets.take_open(0, u)
        counts[item] += 1
        sets.release(item)
    assert (counts[::2] == 0).all()
    chi2 = ((counts[1::2] - 2000) ** 2 / 2000).sum()
    assert chi2 < 27.9, counts  # 99.9 % of 9 degrees of freedom


def test_memory_per_item() -> None:
    sets = ClassSets()
    for item in range(5000):
        sets.reserve(item + 1)
        sets.add(item, item % 10)
    assert sets.nbytes <= 5000 * 12 * 1.6
