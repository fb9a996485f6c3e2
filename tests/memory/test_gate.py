"""What may leave the RAM tier, and how many: scores, picks, and flow control against a simulated storage."""

from __future__ import annotations

import io
import math
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from carm.memory.gate import AutoRatio, Dynamic, Entropy, Gate, Random, Signals
from carm.memory.memory import Memory


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def labels(*y: int) -> Signals:
    return Signals(np.array(y, np.int64))


class Fixed(Gate):
    """Scores that the test names."""

    def __init__(self, scores, ratio=0.5, **options):
        super().__init__(ratio, **options)
        self.scores = np.array(scores, np.float64)

    def score(self, signals, rng):
        return self.scores


# -- how many ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0.0, 0.05, 0.2, 1 / 3, 0.5, 0.8, 0.999, 1.0])
@pytest.mark.parametrize("n", [1, 3, 32])
def test_the_share_is_exact_whatever_the_batch(ratio, n):
    gate, generator, signals = Random(ratio), rng(), labels(*range(n))
    taken = 0
    for steps in range(1, 301):
        taken += len(gate.pick(signals, generator))
        assert abs(taken - ratio * n * steps) < 1
    assert taken == int(ratio * n * 300 + 1e-6)


def test_a_fifth_of_five_is_one_every_time():
    gate = Random(0.2)
    assert [len(gate.pick(labels(*range(5)), rng())) for _ in range(100)] == [1] * 100
    gate = Random(0.1)
    assert [len(gate.pick(labels(0), rng())) for _ in range(30)] == ([0] * 9 + [1]) * 3


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1), st.lists(st.integers(0, 20), max_size=40), st.booleans())
def test_batches_of_any_size(ratio, sizes, balanced):
    gate, taken = Random(ratio, balanced=balanced), 0
    for n in sizes:
        picked = gate.pick(labels(*(i % 3 for i in range(n))), rng())
        assert len(set(picked.tolist())) == len(picked)
        assert all(0 <= i < n for i in picked)
        taken += len(picked)
    assert abs(taken - ratio * sum(sizes)) < 1 + 1e-6


def test_a_budget_caps_and_what_it_cuts_off_is_not_made_up_for():
    gate, signals = Random(0.5), labels(*range(9))
    counts = [len(gate.pick(signals, rng(), budget=2)) for _ in range(10)]
    counts += [len(gate.pick(signals, rng(), budget=100)) for _ in range(10)]
    assert counts == [2] * 10 + [4, 5] * 5
    assert len(Random(1.0).pick(signals, rng(), budget=4)) == 4
    assert len(Random(1.0).pick(signals, rng(), budget=0)) == 0
    assert len(Random(1.0).pick(signals, rng(), budget=-3)) == 0


def test_auto_takes_the_budget():
    gate, signals = Random("auto"), labels(*range(9))
    assert isinstance(gate.auto, AutoRatio)
    assert Random(0.5).auto is None
    assert [len(gate.pick(signals, rng(), budget=b)) for b in (0, 1, 8, 9, 20)] == [0, 1, 8, 9, 9]
    assert len(gate.pick(signals, rng())) == 9


@pytest.mark.parametrize("ratio", [-0.1, 1.1, math.nan, "half", None, "0.5"])
def test_a_ratio_that_is_none_is_named(ratio):
    with pytest.raises(ValueError, match=r'ratio=.* is neither a number from 0 to 1 nor "auto"') as error:
        Entropy(ratio)
    assert repr(ratio) in str(error.value)


def test_numbers_from_numpy_are_ratios():
    assert Random(np.float32(0.5)).ratio == 0.5
    assert Random(np.float64(1)).ratio == 1.0
    assert Random(0).ratio == 0.0


def test_all_or_none_need_no_scores():
    class Never(Gate):
        def score(self, signals, rng):
            raise AssertionError

    signals = labels(1, 2, 3)
    assert Never(1.0).pick(signals, rng()).tolist() == [0, 1, 2]
    assert Never(0.0).pick(signals, rng()).tolist() == []
    assert Never("auto").pick(signals, rng(), budget=3).tolist() == [0, 1, 2]
    assert Never(0.5).pick(labels(), rng()).tolist() == []
    with pytest.raises(NotImplementedError, match="Gate must define score"):
        Gate(0.7).pick(signals, rng())


def test_the_fraction_is_in_the_state():
    gate, other, signals = Random(0.3), Random(0.3), labels(0, 0)
    gate.pick(signals, rng())
    file = io.BytesIO()
    torch.save(gate.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert [len(gate.pick(signals, rng())) for _ in range(9)] == [len(other.pick(signals, rng())) for _ in range(9)]
    assert gate.state_dict() == other.state_dict() != Random(0.3).state_dict()


# -- which -------------------------------------------------------------------------------------------------------------


def test_the_lowest_scores_are_swapped_lowest_first():
    assert Fixed([0.5, 0.1, 0.9, 0.3, 0.2, 0.7]).pick(labels(*range(6)), rng()).tolist() == [1, 4, 3]


def test_ties_are_broken_evenly():
    gate, times, generator = Fixed([0.1, 0.5, 0.5, 0.5, 0.5, 0.9]), np.zeros(6), rng()
    for _ in range(3000):
        times[gate.pick(labels(*range(6)), generator)] += 1
    assert times[0] == 3000
    assert times[5] == 0
    assert np.all(np.abs(times[1:5] - 1500) < 4 * math.sqrt(3000 / 4))


def test_random_is_uniform_also_in_pairs():
    gate, generator, times, pairs = Random(0.25), rng(1), np.zeros(8), Counter()
    for _ in range(6000):
        picked = gate.pick(labels(*range(8)), generator)
        times[picked] += 1
        pairs[tuple(sorted(picked.tolist()))] += 1
    assert np.all(np.abs(times - 1500) < 4 * math.sqrt(6000 * 0.25 * 0.75))
    assert len(pairs) == 28
    assert sum((count - 6000 / 28) ** 2 / (6000 / 28) for count in pairs.values()) < 27 + 4 * math.sqrt(54)


def test_a_score_of_the_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"Fixed.score returned shape \(2,\), \(3,\) is expected"):
        Fixed([1, 2]).pick(labels(0, 0, 0), rng())


def test_a_gate_of_ones_own_in_five_lines():
    class Shortest(Gate):
        needs_logits = True

        def score(self, signals, rng):
            return signals.logits.norm(dim=1).double().cpu().numpy()

    signals = Signals(np.zeros(4, np.int64), torch.tensor([[3.0, 4.0], [0.0, 1.0], [2.0, 0.0], [9.0, 9.0]]))
    assert Shortest(0.5).pick(signals, rng()).tolist() == [1, 2]


def test_a_gate_with_an_init_of_its_own():
    """It need not call that of the base class."""

    class Above(Gate):
        def __init__(self, least):
            self.least = least

        def score(self, signals, rng):
            return signals.y >= self.least

    gate = Above(3)
    assert gate.pick(labels(1, 5), rng()).tolist() == [0, 1]  # the ratio is 1
    assert gate.pick(labels(5, 1), rng(), budget=1).tolist() == [1]
    gate.load_state_dict(gate.state_dict())
    assert gate.auto is None and not gate.balanced


def test_balanced_takes_turns():
    scores = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    y = [5, 5, 5, 5, -1, -1, 9]
    plain = Fixed(scores, 4 / 7).pick(labels(*y), rng()).tolist()
    turns = Fixed(scores, 4 / 7, balanced=True).pick(labels(*y), rng()).tolist()
    assert plain == [0, 1, 2, 3]
    assert turns == [0, 4, 6, 1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-2, 3), min_size=1, max_size=20), st.integers(0, 20), st.integers(0, 99))
def test_balanced_is_as_even_as_can_be(y, budget, seed):
    scores = rng(seed).random(len(y)).round(1)
    picked = Fixed(scores, "auto", balanced=True).pick(labels(*y), rng(), budget=budget).tolist()
    assert len(picked) == len(set(picked)) == min(budget, len(y))
    taken, there = Counter(y[i] for i in picked), Counter(y)
    for label in there:
        if taken[label] < there[label]:
            assert taken[label] >= max(taken.values(), default=0) - 1
        left = [scores[i] for i in range(len(y)) if y[i] == label and i not in picked]
        assert max((scores[i] for i in picked if y[i] == label), default=0.0) <= min(left, default=1.0)


# -- equation 2 --------------------------------------------------------------------------------------------------------


def entropy(*p: float) -> float:
    return -sum(x * math.log(x) for x in p if x > 0)


def test_scores_by_hand():
    p = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [1 / 3, 1 / 3, 1 / 3], [0.1, 0.1, 0.8]])
    signals = Signals(np.array([0, 1, 2, 2]), p.log() + 3.0, torch.tensor([0, 1, 0, 2]), None, 0.0)
    h, u = entropy(0.7, 0.2, 0.1), math.log(3)
    assert h == pytest.approx(0.801819, abs=1e-6)
    expected = [h / u, 1 - h / u, 1.0, entropy(0.1, 0.1, 0.8) / u]
    np.testing.assert_allclose(Entropy().score(signals, rng()), expected, atol=1e-5)
    # 0.730, 0.270, 1, 0.582: equation 2 does not put all right answers before all wrong ones
    assert Entropy(0.5).pick(signals, rng()).tolist() == [1, 3]


def test_sure_and_right_goes_first_sure_and_wrong_stays():
    logits = torch.tensor([[9.0, 0, 0], [9.0, 0, 0], [0.5, 0, 0], [0.5, 0, 0]])
    signals = Signals(np.zeros(4, np.int64), logits, torch.tensor([0, 1, 0, 1]))
    assert Entropy(0.999).pick(signals, rng()).tolist() == [0, 3, 2]


def test_only_the_columns_seen_count():
    p = torch.tensor([[0.6, 0.4], [0.6, 0.4]])
    logits = torch.full((2, 5), 50.0)
    logits[:, [1, 3]] = p.log()
    target = torch.tensor([1, 3])
    scores = Entropy().score(Signals(np.array([10, 30]), logits, target, torch.tensor([1, 3])), rng())
    share = entropy(0.6, 0.4) / math.log(2)
    np.testing.assert_allclose(scores, [share, 1 - share], atol=1e-6)
    unseen = Entropy().score(Signals(np.array([0, 0]), logits, torch.tensor([0, 4]), torch.tensor([1, 3])), rng())
    np.testing.assert_allclose(unseen, [1 - share, 1 - share], atol=1e-6)


def test_one_class_seen():
    signals = Signals(np.array([4, 0]), torch.randn(2, 6), None, torch.tensor([4]))
    assert Entropy().score(signals, rng()).tolist() == [0.0, 1.0]
    assert Entropy().score(Signals(np.array([0, 0]), torch.randn(2, 1)), rng()).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_any_float_type(dtype):
    logits = torch.tensor([[3.0, 1.0, 0.5], [0.25, 2.0, 0.125]], requires_grad=True)
    expected = Entropy().score(Signals(np.array([0, 2]), logits), rng())
    scores = Entropy().score(Signals(np.array([0, 2]), logits.to(dtype)), rng())
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_useless_logits_score_one_half_and_a_masked_class_is_no_class():
    logits = torch.tensor([[1.0, 2, 3], [1, math.nan, 3], [math.inf, 0, 0], [2.0, 1.0, -math.inf], [-math.inf] * 3])
    scores = Entropy().score(Signals(np.array([2, 2, 0, 0, 1]), logits), rng())
    assert scores[[1, 2, 4]].tolist() == [0.5, 0.5, 0.5]
    p = 1 / (1 + math.e)
    np.testing.assert_allclose(scores[3], entropy(p, 1 - p) / math.log(3), atol=1e-6)
    for balanced in (False, True):
        gate = Entropy(0.5, balanced=balanced)
        nothing = Signals(np.zeros(8, np.int64), torch.full((8, 3), math.nan))
        assert len(gate.pick(nothing, rng())) == 4


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 9), st.floats(-6, 6), st.integers(0, 99))
def test_scores_lie_between_0_and_1(columns, n, scale, seed):
    torch.manual_seed(seed)
    y = rng(seed).integers(0, columns, n)
    scores = Entropy().score(Signals(y, torch.randn(n, columns) * 10**scale), rng())
    assert np.all((scores >= 0) & (scores <= 1))


def test_complaints_say_what_to_do():
    y = np.array([0, 7])
    with pytest.raises(ValueError, match=r"Entropy needs logits: call memory.feedback\(batch, logits\)"):
        Entropy(0.5).pick(labels(0, 1), rng())
    with pytest.raises(ValueError, match=r"the right answer 7 is none of the 3 columns .* target="):
        Entropy(0.5).pick(Signals(y, torch.zeros(2, 3)), rng())
    with pytest.raises(ValueError, match=r"the right answer -1 is none of the 3 columns .* target="):
        Entropy(0.5).pick(Signals(y, torch.full((2, 3), math.nan), torch.tensor([0, -1])), rng())
    with pytest.raises(ValueError, match=r"logits has shape \(3, 3\), one row for each of 2 old samples"):
        Entropy(0.5).pick(Signals(y, torch.zeros(3, 3)), rng())
    for seen in ([1, 3], [-1, 0], []):
        with pytest.raises(ValueError, match=r"seen=\[.*\] is expected to be columns of the logits"):
            Entropy(0.5).pick(Signals(y, torch.zeros(2, 3), None, torch.tensor(seen, dtype=torch.int64)), rng())
    assert len(Random(0.5).pick(labels(0, 1), rng())) == 1
    assert [gate.needs_logits for gate in (Gate, Random, Entropy, Dynamic)] == [False, False, True, True]


def test_dynamic_is_random_first_and_entropy_then():
    logits = torch.tensor([[9.0, 0], [3.0, 0], [1.0, 0], [0.1, 0]])
    gate, times = Dynamic(0.25), np.zeros((2, 4))
    for i, progress in enumerate((0.49, 0.5)):
        for seed in range(400):
            signals = Signals(np.zeros(4, np.int64), logits, None, None, progress)
            times[i, gate.pick(signals, rng(seed))] += 1
    assert np.all(np.abs(times[0] - 100) < 4 * math.sqrt(75))
    assert times[1].tolist() == [400, 0, 0, 0]
    assert len(gate.pick(Signals(np.zeros(4, np.int64)), rng())) == 1  # the first half works without logits


# -- flow control ------------------------------------------------------------------------------------------------------


class Storage:
    """Transfers one record after another at `rate` records per second; each is there `latency` seconds later.

    With `whole`, the records of one order are there when the last of them is, as from a worker that reports per order.
    """

    def __init__(self, whole: bool) -> None:
        self.rate = self.latency = self.clock = 0.0
        self.whole = whole
        self.left = 1.0  # of the record under transfer
        self.waiting: deque[tuple[float, bool]] = deque()  # when it was ordered; is it the last of its order
        self.transferred: list[float] = []  # of an order that is not whole yet
        self.arriving: deque[tuple[float, float]] = deque()

    def order(self, k: int, now: float) -> None:
        self.waiting.extend((now, i == k - 1) for i in range(k))

    def run(self, now: float) -> None:
        while self.waiting and self.clock < now:
            done = self.clock + self.left / self.rate if self.rate else math.inf
            if done > now:
                self.left -= (now - self.clock) * self.rate
                break
            self.clock, self.left = done, 1.0
            ordered, last = self.waiting.popleft()
            self.transferred.append(ordered)
            if last or not self.whole:
                self.arriving.extend((done + self.latency, each) for each in self.transferred)
                self.transferred.clear()
        self.clock = now

    def completed(self, now: float) -> list[float]:
        """When those were ordered that have arrived since the last call."""
        self.run(now)
        out = []
        while self.arriving and self.arriving[0][0] <= now:
            out.append(self.arriving.popleft()[1])
        return out


@dataclass
class Part:
    """What happened in one span of time."""

    ratio: float  # share of the old samples that were ordered
    throughput: float  # swaps per second
    age: float  # 99th percentile of the oldest ages
    most: int  # most orders that were outstanding
    ordered: int


class Run:
    """A training loop with `n` old samples in every step, beside a storage whose speed the test changes."""

    def __init__(self, *, n: int = 32, step: float = 0.01, jitter: float = 0.0, whole: bool = False) -> None:
        self.auto, self.storage, self.rng = AutoRatio(), Storage(whole), rng()
        self.n, self.step, self.jitter = n, step, jitter
        self.now, self.outstanding = 100.0, 0
        self.storage.clock = self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds

    def run(self, seconds: float, rate: float, latency: float) -> Part:
        self.storage.run(self.now)
        self.storage.rate, self.storage.latency = rate, latency
        begin, steps, ordered, done, ages, most = self.now, 0, 0, 0, [0.0], 0
        while self.now < begin + seconds:
            self.now += self.step * (1 + self.jitter * self.rng.uniform(-1, 1))
            back = self.storage.completed(self.now)
            if back:
                self.outstanding -= len(back)
                done += len(back)
                ages.append(self.now - min(back))
                self.auto.completed(len(back), self.now, ages[-1])
            k = self.auto.allow(self.n, self.outstanding, self.now)
            assert 0 <= k <= self.n
            self.storage.order(k, self.now)
            self.outstanding += k
            steps, ordered, most = steps + 1, ordered + k, max(most, self.outstanding)
        took = self.now - begin
        return Part(ordered / steps / max(self.n, 1), done / took, float(np.percentile(ages, 99)), most, ordered)


SLOW, LATENCY = 2e6 / 3e3, 0.005  # 2 MB/s in records of 3 KB


@pytest.mark.parametrize("jitter", [0.0, 0.5])
def test_fast_storage_is_used_for_every_sample_within_a_few_steps(jitter):
    run = Run(jitter=jitter)
    run.run(0.2, 50_000, 0.0005)  # 20 steps
    assert run.run(5, 50_000, 0.0005).ratio == 1.0


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("jitter", [0.0, 0.5])
def test_slow_storage_is_fully_used_and_orders_stay_young(jitter, whole):
    run = Run(jitter=jitter, whole=whole)
    run.run(1, SLOW, LATENCY)
    part = run.run(20, SLOW, LATENCY)
    assert part.throughput > 0.95 * SLOW
    assert part.age <= 5 * run.step + LATENCY
    assert part.most <= 32


@pytest.mark.parametrize(("step", "latency", "rate"), [(0.001, 0.005, 700), (0.1, 0.005, 100), (0.01, 0.1, 700)])
def test_steps_and_latencies_of_other_orders_of_magnitude(step, latency, rate):
    run = Run(step=step)
    run.run(4, rate, latency)
    part = run.run(30, rate, latency)
    assert part.throughput > 0.9 * rate
    assert part.age <= 5 * step + 1.25 * latency + 2 / rate


def test_a_long_latency_alone_does_not_hold_back():
    run = Run()
    run.run(3, 50_000, 0.1)
    part = run.run(10, 50_000, 0.1)
    assert part.ratio > 0.97
    assert part.age <= 0.1 + 2 * run.step


@pytest.mark.parametrize("whole", [False, True])
def test_speed_changes_are_followed(whole):
    run = Run(whole=whole)
    run.run(4, SLOW, LATENCY)
    for rate in (SLOW / 10, SLOW, 10 * SLOW, SLOW):
        run.run(3, rate, LATENCY)
        part = run.run(8, rate, LATENCY)
        expected = min(rate, run.n / run.step)
        assert part.throughput > 0.95 * expected
        assert part.age <= 5 * run.step + LATENCY + 1 / rate


@pytest.mark.parametrize("whole", [False, True])
def test_a_latency_that_changes_is_followed(whole):
    run = Run(whole=whole)
    for latency in (0.005, 0.08, 0.005):
        run.run(6, 2000, latency)
        part = run.run(8, 2000, latency)
        assert part.throughput > 0.9 * 2000
        assert part.age <= 5 * run.step + 1.25 * latency


@pytest.mark.parametrize("whole", [False, True])
def test_a_stall_orders_next_to_nothing_and_is_recovered_from(whole):
    run = Run(whole=whole)
    fresh = run.run(5, 0, LATENCY)
    assert fresh.ordered <= 8
    run.run(2, SLOW, LATENCY)
    for _ in range(2):
        part = run.run(20, 0, LATENCY)
        assert part.ordered <= run.n
        assert part.most <= run.n
        run.run(1, SLOW, LATENCY)
        assert run.run(5, SLOW, LATENCY).throughput > 0.95 * SLOW
    run.run(10, 0, LATENCY)
    run.run(0.5, 50_000, 0.0005)
    assert run.run(3, 50_000, 0.0005).ratio == 1.0


def test_orders_that_are_lost_with_their_worker_do_not_end_it_all():
    run = Run()
    run.run(1, SLOW, LATENCY)
    run.run(200, 0, LATENCY)  # so long that the rate is 0, not only next to it
    run.outstanding = 0
    run.storage = Storage(whole=False)
    run.storage.clock = run.now
    run.run(0.5, 50_000, 0.0005)
    assert run.run(3, 50_000, 0.0005).ratio == 1.0


@pytest.mark.parametrize(("rate", "latency"), [(50_000, 0.0005), (SLOW, LATENCY)])
def test_a_pause_in_training_is_not_taken_for_slow_storage(rate, latency):
    run = Run()
    before = run.run(3, rate, latency)
    run.pause(30)
    run.run(0.1, rate, latency)
    after = run.run(3, rate, latency)
    assert after.throughput > 0.95 * before.throughput
    assert after.age <= before.age + run.step


def test_nothing_to_swap_for_a_while():
    run = Run()
    run.run(2, 50_000, 0.0005)
    run.n = 0
    assert run.run(5, 50_000, 0.0005).ordered == 0
    run.n = 32
    run.run(0.2, 50_000, 0.0005)
    assert run.run(2, 50_000, 0.0005).ratio == 1.0


# -- in a memory -------------------------------------------------------------------------------------------------------


def test_classes_of_the_task_in_training_count_as_seen(tmp_path: Path) -> None:
    """An old sample that is taken for one of a new class is sure and wrong: it stays."""
    scores: list[np.ndarray] = []

    class Spy(Entropy):
        def score(self, signals: Signals, rng: np.random.Generator) -> np.ndarray:
            scores.append(super().score(signals, rng))
            return scores[-1]

    with Memory(10, storage=tmp_path, swap="sync", gate=Spy(0.5)) as memory:
        memory.add(torch.randn(40, 3), torch.arange(40) % 2)
        task = {"x": torch.randn(10, 3), "y": torch.full((10,), 2)}
        for batch in memory.bundle(task, batch_size=20):
            logits = torch.zeros(len(batch), 10)
            logits[:, 2] = 20.0
            logits[torch.arange(len(batch)), batch.y] += 5.0  # the right one comes second
            memory.feedback(batch, logits)
    assert len(scores) == 1 and (scores[0] > 0.9).all()


def test_the_ratio_may_be_set_later_and_is_looked_at() -> None:
    gate = Random(0.5)
    gate.ratio = np.float32(0.25)
    assert gate.ratio == 0.25 and type(gate.ratio) is float and gate.auto is None
    gate.ratio = "auto"
    assert gate.auto is not None
    for wrong in ("half", 7, -0.1, float("nan"), None):
        with pytest.raises(ValueError, match="ratio="):
            gate.ratio = wrong  # type: ignore[assignment]
    assert gate.ratio == "auto"
    gate.ratio = 1
    assert gate.ratio == 1.0 and gate.auto is None
