"""What the RAM tier keeps. `Ram` stands in for the RAM tier; every placement goes through its checks."""

from __future__ import annotations

import io
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from carm.memory.classes import ClassSets
from carm.memory.select import (
    EqualShare,
    GreedyBalanced,
    Herding,
    Reservoir,
    Ring,
    Selection,
    UncertaintySpread,
    equal_shares,
    herd,
)

SELECTIONS = [Reservoir, Ring, GreedyBalanced, Herding, UncertaintySpread]
SHARED = [Ring, Herding, UncertaintySpread]


class Ram:
    """The slots, the number of the sample in each, and what every sample's label and signals are."""

    def __init__(self, capacity: int, select: Selection, seed: int = 0) -> None:
        self.capacity = capacity
        self.select = select
        self.sets = ClassSets(capacity)
        self.sample = np.full(capacity, -1)
        self.rng = np.random.default_rng(seed)
        self.labels = np.zeros(0, np.int64)
        self.features = np.zeros((0, 4))
        self.uncertainty = np.zeros(0)
        self.ram_features = False

    def free(self) -> np.ndarray:
        return np.flatnonzero(self.sample < 0)

    def __len__(self) -> int:
        return int(np.count_nonzero(self.sample >= 0))

    def add(self, y: list[int] | np.ndarray, features: np.ndarray | None = None, uncertainty=None) -> np.ndarray:
        y = np.asarray(y, np.int64)
        numbers = len(self.labels) + np.arange(len(y))
        own = np.random.default_rng(len(self.labels))
        features = own.normal(size=(len(y), 4)) if features is None else features
        uncertainty = own.random(len(y)) if uncertainty is None else np.asarray(uncertainty, float)
        self.labels = np.concatenate([self.labels, y])
        self.features = np.concatenate([self.features, features]) if len(self.features) else features
        self.uncertainty = np.concatenate([self.uncertainty, uncertainty])
        ram_signals = {"uncertainty": np.append(self.uncertainty, np.nan)[self.sample]}  # NaN for unused slots
        if self.ram_features:
            ram_signals["features"] = np.pad(self.features, [(0, 1), (0, 0)], constant_values=np.nan)[self.sample]
        before = len(self)
        out = self.select.place(y, self, self.rng, {"features": features, "uncertainty": uncertainty}, ram_signals)
        assert out.shape == y.shape
        assert out.dtype == np.int64
        kept = out[out >= 0].tolist()
        assert out.min(initial=0) >= -1
        assert max(kept, default=0) < self.capacity
        assert len(set(kept)) == len(kept)
        for number, slot, label in zip(numbers.tolist(), out.tolist(), y.tolist(), strict=True):
            if slot >= 0:
                self.clear(slot)
                self.sets.add(slot, label)
                self.sample[slot] = number
        assert len(self) == min(self.capacity, before + len(y)), (
            "a slot stays unused although there was a sample for it"
        )
        return out

    def clear(self, slot: int) -> None:
        if slot in self.sets:
            self.sets.remove(slot)
        self.sample[slot] = -1

    def held(self, label: int | None = None) -> list[int]:
        """The samples in RAM (of one class), ascending."""
        numbers = np.sort(self.sample[self.sample >= 0])
        return [int(i) for i in numbers if label is None or self.labels[i] == label]

    def counts(self) -> dict[int, int]:
        return dict(Counter(self.labels[self.held()].tolist()))


def too_far(observed: np.ndarray, chance: float, trials: int) -> float:
    """By how many standard deviations the chi-square of counts with the given chance each exceeds its mean."""
    chi = float(np.sum((observed - trials * chance) ** 2)) / (trials * chance * (1 - chance))
    return (chi - len(observed)) / np.sqrt(2 * len(observed))


# -- what all have in common -------------------------------------------------------------------------------------------

labels = st.sampled_from([0, 1, 2, 3, -7, 2**62, -(2**63), 1000003])
adds = st.lists(st.lists(labels, max_size=14), max_size=12)


@pytest.mark.parametrize("kind", SELECTIONS)
@settings(max_examples=40, deadline=None)
@given(capacity=st.integers(1, 11), batches=adds, data=st.data())
def test_any_stream_even_with_slots_emptied_and_resized(kind, capacity, batches, data):
    ram = Ram(capacity, kind())
    ram.ram_features = data.draw(st.booleans())
    for batch in batches:
        ram.add(batch)
        if data.draw(st.integers(0, 3)) == 0:
            for slot in data.draw(st.lists(st.integers(0, ram.capacity - 1), max_size=4)):
                ram.clear(slot)
        if data.draw(st.integers(0, 5)) == 0:
            resize(ram, data.draw(st.integers(1, 11)))


def resize(ram: Ram, capacity: int) -> None:
    kept = ram.rng.permutation(np.flatnonzero(ram.sample >= 0))[:capacity]
    sample = ram.sample[kept]
    ram.capacity, ram.sets, ram.sample = capacity, ClassSets(capacity), np.full(capacity, -1)
    for slot, number in enumerate(sample.tolist()):
        ram.sets.add(slot, int(ram.labels[number]))
        ram.sample[slot] = number
    ram.select.resized(kept, capacity)


@pytest.mark.parametrize("kind", SELECTIONS)
def test_a_restored_selection_makes_the_same_choices(kind):
    y = np.random.default_rng(5).integers(-3, 3, (20, 9))
    through, stopped = Ram(17, kind(), seed=1), Ram(17, kind(), seed=1)
    for batch in y[:10]:
        through.add(batch)
        stopped.add(batch)
    stopped.clear(3)
    through.clear(3)
    stopped.add(y[10])
    through.add(y[10])
    file = io.BytesIO()
    torch.save(stopped.select.state_dict(), file)
    file.seek(0)
    stopped.select = kind()
    stopped.select.load_state_dict(torch.load(file, weights_only=True))
    for batch in y[11:]:
        np.testing.assert_array_equal(stopped.add(batch), through.add(batch))


@pytest.mark.parametrize("kind", [Reservoir, Ring, Herding])
def test_a_saved_state_does_not_change_afterwards(kind):
    ram = Ram(4, kind())
    ram.add([0, 0, 1])
    state = ram.select.state_dict()
    before = repr(state)
    ram.add([0, 2, 1, 1])
    assert repr(state) == before


def test_state_of_another_selection_is_refused():
    with pytest.raises(ValueError, match=r"select=Ring\(\) cannot load the state of select=Reservoir\(\)"):
        Ring().load_state_dict(Reservoir().state_dict())


def test_a_selection_of_ones_own_in_five_lines():
    class KeepFirst(Selection):
        def place(self, y, slots, rng, signals, ram_signals):
            out, free = np.full(len(y), -1), slots.free()[: len(y)]
            out[: len(free)] = free
            return out

    ram = Ram(3, KeepFirst())
    ram.add([5, 6])
    ram.add([7, 8])
    assert ram.held() == [0, 1, 2]
    assert ram.select.state_dict() == {"kind": "KeepFirst", "slots": {}}
    with pytest.raises(NotImplementedError, match="Selection must define place"):
        Selection().place(np.zeros(1, np.int64), ram, ram.rng, {}, {})
    with pytest.raises(NotImplementedError, match="EqualShare must define choose"):
        EqualShare().place(np.zeros(1, np.int64), ram, ram.rng, {}, {})


def test_equal_shares_with_an_init_of_ones_own():
    """It need not call that of the base class."""

    class Favoured(EqualShare):
        def __init__(self, label):
            self.label = label  # of this class the last ones stay, of others the first ones

        def choose(self, label, old, new, share, arrival):
            room = share - len(old)
            return old[:0], new[len(new) - room :] if label == self.label else new[:room]

    ram = Ram(4, Favoured(1))
    ram.add([0, 0, 0, 1, 1, 1])
    assert ram.held() == [0, 1, 4, 5]
    ram.select.load_state_dict(ram.select.state_dict())


def test_own_slot_arrays_follow_a_resize():
    class Own(Selection):
        def __init__(self):  # without super().__init__()
            self.note = 1

    own = Own()
    own.slot_array("n", 4)[:] = [10, 11, 12, 13]
    own.resized(np.array([3, 1]), 5)
    assert own.slot_array("n", 5).tolist() == [13, 11, 0, 0, 0]
    own.resized(np.array([1, 4, 0]), 3)
    assert own.slot_array("n", 3).tolist() == [11, 0, 13]
    own.resized(np.zeros(0, np.int64), 2)
    assert own.slot_array("n", 2).tolist() == [0, 0]


# -- reservoir ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 10, 128])
def test_reservoir_is_algorithm_r(batch):
    capacity, total = 7, 256
    select, ram = Reservoir(), Ram(7, Reservoir())
    ram.select = select
    draws, slow = np.random.default_rng(3), []
    ram.rng = np.random.default_rng(3)
    for begin in range(0, total, batch):
        n = min(batch, total - begin)
        ram.add(np.zeros(n))
        for number, u in zip(range(begin, begin + n), draws.random(n), strict=True):
            if number < capacity:
                slow.append(number)
            elif int(u * (number + 1)) < capacity:
                slow[int(u * (number + 1))] = number
        assert ram.sample[ram.sample >= 0].tolist() == slow


@pytest.mark.parametrize("batch", [1, 10, 128])
def test_reservoir_keeps_every_sample_with_the_same_probability(batch):
    capacity, total, trials = 20, 160, 200
    times = np.zeros(total)
    for seed in range(trials):
        rng, select, ram = np.random.default_rng(seed), Reservoir(), Ram(capacity, Reservoir())
        for begin in range(0, total, batch):
            n = min(batch, total - begin)
            out = select.place(np.zeros(n, np.int64), ram, rng, {}, {})
            ram.sample[out[out >= 0]] = begin + np.flatnonzero(out >= 0)
        times[ram.sample] += 1
    assert times.sum() == trials * capacity
    assert abs(too_far(times, capacity / total, trials)) < 4


@pytest.mark.parametrize("total", [4, 6])
def test_reservoir_of_few_samples_in_one_batch(total):
    trials, times = 10_000, np.zeros(total)
    rng, ram, y = np.random.default_rng(0), Ram(3, Reservoir()), np.zeros(total, np.int64)
    for _ in range(trials):
        times += Reservoir().place(y, ram, rng, {}, {}) >= 0
    assert np.all(np.abs(times - trials * 3 / total) < 4.5 * np.sqrt(trials / 4))


def test_reservoir_becomes_uniform_again_after_slots_were_emptied():
    capacity, trials = 20, 200
    old = {200: np.zeros(100), 400: np.zeros(100)}
    new = {200: np.zeros(100), 400: np.zeros(300)}
    for seed in range(trials):
        ram = Ram(capacity, Reservoir(), seed)
        for _ in range(10):
            ram.add(np.zeros(10))
        for slot in ram.rng.permutation(capacity)[:10]:
            ram.clear(int(slot))
        for total in (200, 400):  # 10 slots stood for 100 samples: after 100 more both parts are even
            while len(ram.labels) < total:
                ram.add(np.zeros(20))
                assert len(ram) == capacity
            held = np.array(ram.held())
            old[total][held[held < 100]] += 1
            new[total][held[held >= 100] - 100] += 1
    for total in (200, 400):
        assert abs(too_far(np.concatenate([old[total], new[total]]), capacity / total, trials)) < 4
        assert abs(old[total].sum() / trials - 100 * capacity / total) < 0.7  # mean number of old ones, 10 and 5


def test_reservoir_becomes_uniform_again_after_it_grew_and_stays_so_when_it_shrinks():
    trials, grown, shrunk = 200, np.zeros(160), np.zeros(200)
    for seed in range(trials):
        ram = Ram(10, Reservoir(), seed)
        for _ in range(8):
            ram.add(np.zeros(10))
        resize(ram, 20)
        for _ in range(8):
            ram.add(np.zeros(10))
        assert ram.select.seen == 160
        grown[ram.held()] += 1
        resize(ram, 8)
        for _ in range(4):
            ram.add(np.zeros(10))
        shrunk[ram.held()] += 1
    assert abs(too_far(grown, 20 / 160, trials)) < 4
    assert abs(grown[:80].mean() - grown[80:].mean()) < 4 * np.sqrt(2 * trials * 0.125 * 0.875 / 80)
    assert abs(too_far(shrunk, 8 / 200, trials)) < 4


def test_a_resize_ends_the_reservoirs_recovery():
    ram = Ram(4, Reservoir())
    ram.add(np.zeros(40))
    ram.clear(0)
    ram.clear(1)
    ram.add(np.zeros(10))
    assert (ram.select.seen, ram.select.late) == (40, 10)
    resize(ram, 2)
    assert (ram.select.seen, ram.select.late) == (50, 0)
    ram.add(np.zeros(10))
    assert ram.select.seen == 60


def test_reservoir_counts_what_was_in_ram_before_it():
    ram = Ram(100, Ring())
    ram.add(np.zeros(100))
    ram.select = Reservoir()
    ram.add(np.zeros(1))
    assert ram.select.seen == 101


# -- equal shares ------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(0, 40), st.randoms())
def test_equal_shares_are_what_dealing_out_gives(available, capacity, random):
    keys = np.array(random.sample(range(100), len(available)), np.uint64)
    slow, left = [0] * len(available), capacity
    while left and slow != available:  # deal one slot to every class that can use it, lowest key first
        for c in np.argsort(keys):
            if left and slow[c] < available[c]:
                slow[c] += 1
                left -= 1
    assert equal_shares(np.array(available, np.int64), capacity, keys).tolist() == slow


@pytest.mark.parametrize("kind", SHARED)
@settings(max_examples=40, deadline=None)
@given(capacity=st.integers(1, 20), batches=adds)
def test_shares_are_equal_and_unused_ones_are_lent(kind, capacity, batches):
    ram = Ram(capacity, kind())
    for batch in batches:
        before = Counter(ram.counts())
        ram.add(batch)
        after = ram.counts()
        for label, available in (before + Counter(batch)).items():
            if after.get(label, 0) < available:  # it had to give something up: then nobody has more than one more
                assert after.get(label, 0) >= max(after.values()) - 1


@pytest.mark.parametrize("kind", SHARED)
def test_a_lent_share_is_given_back(kind):
    ram = Ram(12, kind())
    ram.add([0] * 30)
    assert ram.counts() == {0: 12}
    ram.add([1, 1])
    assert ram.counts() == {0: 10, 1: 2}
    for _ in range(6):
        ram.add([1])
    assert ram.counts() == {0: 6, 1: 6}
    ram.add([2, 2, 0, 0, 0])
    assert ram.counts() == {0: 5, 1: 5, 2: 2}


@pytest.mark.parametrize("kind", SHARED)
def test_an_extra_slot_does_not_wander(kind):
    ram = Ram(10, kind())
    ram.add([0] * 9 + [1] * 9 + [2] * 9)
    counts = ram.counts()
    assert sorted(counts.values()) == [3, 3, 4]
    for _ in range(20):
        ram.add([0, 1, 2])
        assert ram.counts() == counts


@pytest.mark.parametrize("kind", SHARED)
def test_with_more_classes_than_slots_the_classes_in_ram_are_a_random_choice(kind):
    trials, times = 100, np.zeros(12)
    for seed in range(trials):
        ram = Ram(3, kind(), seed)
        for label in range(12):
            ram.add([label, label])
            assert max(ram.counts().values()) == 1 or label < 2
        ram.add([0, 1, 2])  # coming back does not help
        times[list(ram.counts())] += 1
    assert times.sum() == 3 * trials
    assert abs(too_far(times, 0.25, trials)) < 4


# -- ring --------------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(capacity=st.integers(1, 15), batches=adds, data=st.data())
def test_ring_holds_the_latest_samples_of_each_class(capacity, batches, data):
    ram = Ram(capacity, Ring())
    for batch in batches:
        ram.add(batch)
        if data.draw(st.integers(0, 5)) == 0:
            resize_to_latest(ram)
        for label, count in ram.counts().items():
            assert ram.held(label) == np.flatnonzero(ram.labels == label)[-count:].tolist()


def resize_to_latest(ram: Ram) -> None:
    """A resize to the same capacity that puts every sample into another slot."""
    resize(ram, ram.capacity)


def test_ring_online():
    ram = Ram(300, Ring())
    y = np.random.default_rng(0).integers(0, 10, 5000)
    y[2000:] = y[2000:] % 3  # seven classes no longer come
    for begin in range(0, 5000, 10):
        ram.add(y[begin : begin + 10])
    assert ram.counts() == dict.fromkeys(range(10), 30)
    assert ram.held(9) == np.flatnonzero(ram.labels == 9)[-30:].tolist()


# -- greedy balanced ---------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(capacity=st.integers(1, 9), stream=st.lists(labels, max_size=60))
def test_greedy_rule_sample_by_sample(capacity, stream):
    ram = Ram(capacity, GreedyBalanced())
    for label in stream:
        before, full = ram.counts(), len(ram) == capacity
        slot = int(ram.add([label])[0])
        if full and before.get(label, 0) == max(before.values()):
            assert slot == -1
        else:
            assert slot >= 0
            gone = Counter(before) + Counter([label]) - Counter(ram.counts())
            assert not full or [before[c] for c in gone] == [max(before.values())]


@pytest.mark.parametrize("batch", [1, 7, 3000])
def test_greedy_evens_out_a_long_tail(batch):
    ram = Ram(100, GreedyBalanced())
    y = np.minimum(np.random.default_rng(0).geometric(0.2, 3000), 20)
    for begin in range(0, len(y), batch):
        ram.add(y[begin : begin + batch])
    seen, counts = Counter(y.tolist()), ram.counts()
    assert set(counts) == set(seen)
    for label, count in counts.items():
        assert count >= min(seen[label], max(counts.values()) - 1)


@pytest.mark.parametrize("batch", [[1] * 6, [0, 1, 1, 0, 1, 1, 1, 0, 1]])
def test_greedy_victims_are_uniform(batch):
    trials, gone, pair = 1200, np.zeros(12), 0
    for seed in range(trials):
        ram = Ram(12, GreedyBalanced(), seed)
        ram.add([0] * 12)
        ram.add(batch)
        assert ram.counts() == {0: 6, 1: 6}
        held = ram.held(0)
        gone += ~np.isin(np.arange(12), held)
        pair += 0 in held and 1 in held
    assert abs(too_far(gone, 0.5, trials)) < 4
    assert abs(pair - trials * 5 / 22) < 4 * np.sqrt(trials * 5 / 22)  # (6/12) * (5/11)


def test_greedy_breaks_ties_between_classes_evenly_and_a_sample_may_leave_within_its_batch():
    trials, kept = 1500, Counter()
    for seed in range(trials):
        ram = Ram(2, GreedyBalanced(), seed)
        ram.add([0, 0])
        ram.add([1, 2])  # 1 takes one of the two slots of 0; 2 takes that of 0 or that of 1
        kept.update(ram.counts())
    assert kept[2] == trials
    assert abs(kept[0] - trials / 2) < 4 * np.sqrt(trials / 4)


# -- herding -----------------------------------------------------------------------------------------------------------


def slow_herding(features: np.ndarray, k: int) -> list[int]:
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    mean, picked = unit.mean(0), []
    for _ in range(k):
        rest = [i for i in range(len(unit)) if i not in picked]
        picked.append(min(rest, key=lambda i: np.linalg.norm(mean - unit[[*picked, i]].mean(0))))
    return picked


@pytest.mark.parametrize("seed", range(5))
def test_herding_is_icarls(seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(60, 8)) * rng.lognormal(size=(60, 1)) + 0.5
    y = rng.permutation([4] * 40 + [-2] * 20)
    ram = Ram(24, Herding())
    ram.add(y, features)
    rank = ram.select.slot_array("rank", 24)
    for label in (4, -2):
        numbers = np.flatnonzero(y == label)
        slow = numbers[slow_herding(features[numbers], 12)].tolist()
        assert ram.held(label) == sorted(slow)
        slots = ram.sets.members(label)
        assert ram.sample[slots[np.argsort(rank[slots])]].tolist() == slow
    ram.add([7] * 30, rng.normal(size=(30, 8)))  # 8 each now: the last picked have gone
    for label in (4, -2):
        numbers = np.flatnonzero(y == label)
        assert ram.held(label) == sorted(numbers[slow_herding(features[numbers], 8)].tolist())


def test_herding_step_by_hand():
    rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6], [0.0, 0.0]])
    # Nearest to (0.6, 0.8) is (0.8, 0.6); then (0, 1), because of all means of two (0.4, 0.8) is nearest.
    assert herd(rows, np.array([0.6, 0.8]), 9).tolist()[:2] == [2, 1]
    assert sorted(herd(rows, np.array([0.6, 0.8]), 9).tolist()) == [0, 1, 2, 3]
    assert herd(rows, np.array([0.0, 0.0]), 1).tolist() == [3]


def test_herding_a_class_that_comes_again_keeps_both_in_proportion():
    ram = Ram(10, Herding())
    first, second = np.random.default_rng(0).normal(size=(2, 60, 4)) + 1
    ram.add([0] * 60, first)
    ram.add([0] * 20, second[:20])
    old, new = ram.held()[:-2], ram.held()[-2:]
    assert sorted(slow_herding(first, 10)[: len(old)]) == old[: len(old)]
    assert len([i for i in ram.held() if i >= 60]) in (2, 3)  # 20 of 80 samples: a quarter of ten slots
    assert set(np.array(new) - 60) <= set(slow_herding(second[:20], 3))
    for _ in range(40):  # online, in tens: the first sixty are 60 of 480
        ram.add([0] * 10)
    assert len([i for i in ram.held() if i < 80]) <= 4
    assert ram.select.counts == {0: 480}


def test_herding_with_features_of_ram_goes_to_the_mean_of_all():
    rng = np.random.default_rng(2)
    features = rng.normal(size=(300, 4))
    features[:, 0] += 2
    features[150:, 1] += 3  # the second half lies elsewhere
    ram = Ram(12, Herding())
    ram.ram_features = True
    ram.add([0] * 150, features[:150])
    ram.add([0] * 150, features[150:])
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    assert np.linalg.norm(unit[ram.held()].mean(0) - unit.mean(0)) < 0.05
    assert 3 <= len([i for i in ram.held() if i < 150]) <= 9


def test_herding_survives_useless_features():
    ram = Ram(4, Herding())
    features = np.ones((9, 4))
    features[:3], features[3:5], features[5] = np.nan, 0.0, np.inf
    ram.add([1] * 9, features)
    assert len(ram) == 4


# -- uncertainty spread ------------------------------------------------------------------------------------------------


def test_uncertainty_is_spread_evenly():
    ram = Ram(10, UncertaintySpread())
    u = np.random.default_rng(0).random(40)
    y = np.array([0, 1] * 20)
    ram.add(y, uncertainty=u)
    for label in (0, 1):
        numbers = np.flatnonzero(y == label)
        ascending = numbers[np.argsort(u[numbers])]
        assert ram.held(label) == sorted(ascending[[0, 4, 8, 12, 16]].tolist())
    held = ram.held(0)
    ram.add([0] * 6, uncertainty=[0.1, 0.2, 0.3, 0.4, 0.5, 0.6])  # RAM's samples and the new ones are one list
    candidates = np.array([*held, *range(40, 46)])
    ascending = candidates[np.argsort(ram.uncertainty[candidates])]
    assert ram.held(0) == sorted(ascending[[0, 2, 4, 6, 8]].tolist())
    old = {label: np.array(ram.held(label)) for label in (0, 1)}
    ram.add([2] * 3)  # 10 slots, now 3 or 4 each: classes that get nothing new are thinned out evenly as well
    for label in (0, 1):
        ascending = old[label][np.argsort(ram.uncertainty[old[label]])]
        kept = len(ram.held(label))
        assert ram.held(label) == sorted(ascending[[i * 5 // kept for i in range(kept)]].tolist())


def test_equal_uncertainties_are_chosen_from_at_random():
    trials, times = 400, np.zeros(24)
    for seed in range(trials):
        ram = Ram(6, UncertaintySpread(), seed)
        ram.add([0] * 24, uncertainty=np.zeros(24))
        times[ram.held()] += 1
    assert abs(too_far(times, 0.25, trials)) < 4


# -- missing signals ---------------------------------------------------------------------------------------------------


def test_missing_signals_are_named():
    ram, y = Ram(4, Ring()), np.zeros(6, np.int64)
    with pytest.raises(ValueError, match=r'Herding needs the signal "features": call memory.add\(..., signals='):
        Herding().place(y, ram, ram.rng, {}, {})
    with pytest.raises(ValueError, match=r'UncertaintySpread needs the signal "uncertainty": call memory.add'):
        UncertaintySpread().place(y, ram, ram.rng, {}, {})
    ram.add(y)
    with pytest.raises(ValueError, match=r'"uncertainty": call memory.add\(..., ram_signals=.*per slot of the RAM'):
        UncertaintySpread().place(y, ram, ram.rng, {"uncertainty": np.zeros(6)}, {})
    with pytest.raises(ValueError, match=r'signals\["features"\] has shape \(5, 2\), 6 entries'):
        Herding().place(y, ram, ram.rng, {"features": np.zeros((5, 2))}, {})
    with pytest.raises(ValueError, match=r'ram_signals\["features"\] has shape \(3, 2\), 4 entries'):
        Herding().place(y, ram, ram.rng, {"features": np.zeros((6, 2))}, {"features": np.zeros((3, 2))})
    with pytest.raises(ValueError, match=r'"uncertainty" has shape \(6, 2\), one number'):
        UncertaintySpread().place(y, ram, ram.rng, {"uncertainty": np.zeros((6, 2))}, {})
    for kind in SELECTIONS:
        assert len(kind().place(y[:0], ram, ram.rng, {}, {})) == 0
