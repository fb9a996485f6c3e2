from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carm.data import (
    ArraySplit,
    Batch,
    Decoder,
    EncodedSplit,
    Offline,
    Online,
    Source,
    Stream,
    StreamBuffer,
    Task,
    class_order,
    load,
    split_by_class,
    stream_of,
)
from carm.data.stream import task_sizes


def numbered(counts: list[int], name: str = "numbered") -> Source:
    """A source whose sample i has the pixel value i, so that a sample can be told from every other."""
    y = np.repeat(np.arange(len(counts)), counts)
    x = np.arange(len(y), dtype=np.int32).reshape(-1, 1, 1, 1)
    order = np.random.default_rng(7).permutation(len(y))
    test = ArraySplit(np.zeros((len(counts), 1, 1, 1)), np.arange(len(counts)))
    return Source(name, tuple(map(str, range(len(counts)))), ArraySplit(x[order], y[order]), test)


def values(batches: Any) -> list[int]:
    return [int(v) for batch in batches for v in np.ravel(batch.x)]


# -- class orders and task sizes ------------------------------------------------------------------------------------


def test_the_order_of_icarl() -> None:
    """The first classes of the published CIFAR-100 order."""
    order = class_order("icarl", 100)
    assert order[:10].tolist() == [68, 56, 78, 8, 23, 84, 90, 65, 74, 76]
    assert sorted(order) == list(range(100))


def test_orders_of_the_paper() -> None:
    for name in ("cifar-100", "imagenet-100"):
        assert np.array_equal(class_order("paper", 100, name=name), np.random.RandomState(1993).permutation(100))
    for name in ("cifar-10", "tiny-imagenet", "anything"):
        assert class_order("paper", 20, name=name).tolist() == list(range(20))


def test_shuffled_orders_follow_the_seed() -> None:
    one, same, other = (class_order("shuffled", 50, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    with pytest.raises(ValueError, match="order is 'random'"):
        class_order("random", 5)


@pytest.mark.parametrize(
    ("tasks", "classes", "sizes"),
    [
        (10, 100, [10] * 10),
        (20, 100, [5] * 20),
        (50, 100, [2] * 50),
        (3, 10, [4, 3, 3]),
        (1, 4, [4]),
        ([50, 25, 25], 100, [50, 25, 25]),
    ],
)
def test_task_sizes(tasks: int | list[int], classes: int, sizes: list[int]) -> None:
    assert task_sizes(tasks, classes) == sizes


@pytest.mark.parametrize("tasks", [0, -1, 11, [5, 4], [5, 0, 5], [], [6, 5]])
def test_impossible_task_sizes_are_refused(tasks: int | list[int]) -> None:
    with pytest.raises(ValueError, match="tasks is"):
        task_sizes(tasks, 10)


# -- planning -------------------------------------------------------------------------------------------------------


def test_every_task_brings_its_own_classes_and_all_samples_arrive_once() -> None:
    source = numbered([5] * 10)
    stream = split_by_class(source, tasks=[4, 3, 3])
    assert [task.classes for task in stream] == [(0, 1, 2, 3), (4, 5, 6), (7, 8, 9)]
    for task in stream:
        assert set(task.y.tolist()) == set(task.classes)
    assert sorted(stream.indices) == list(range(50))


def test_labels_are_numbered_in_order_of_arrival_in_both_splits() -> None:
    source = numbered([3, 3, 3, 3])
    stream = split_by_class(source, tasks=2, order=[3, 1, 0, 2])
    original = {int(v): int(y) for v, y in zip(np.ravel(source.train.fetch(range(12)).x), source.train.y, strict=True)}
    for task in stream:
        for value, label in zip(np.ravel(task.x), task.y, strict=True):
            assert original[int(value)] == [3, 1, 0, 2][label]
    assert stream.source.classes == ("3", "1", "0", "2")
    assert stream.source.test.y[stream.test_indices(1)].tolist() == [2, 3]
    assert [stream.source.classes[label] for label in stream[0].classes] == ["3", "1"]


def test_samples_of_a_task_arrive_shuffled_by_the_seed() -> None:
    source = numbered([40, 40])
    orders = [split_by_class(source, tasks=1, seed=seed).indices.tolist() for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    labels = source.train.y[orders[0]]
    assert 10 < np.count_nonzero(np.diff(labels)) < 70  # classes are mixed, not one after the other


def test_planning_leaves_the_global_generator_alone() -> None:
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.RandomState(3).random()
    split_by_class(numbered([3] * 100, "cifar-100"), tasks=10)
    assert np.random.random() == expected  # noqa: NPY002


def test_class_and_task_incremental_differ_in_the_candidates() -> None:
    source = numbered([2] * 6)
    by_class, by_task = (split_by_class(source, tasks=3, scenario=s) for s in ("class", "task"))
    assert by_class.indices.tolist() == by_task.indices.tolist()
    assert by_class.candidates(0, after=1) == (0, 1, 2, 3) == by_class.seen(1)
    assert by_task.candidates(0, after=1) == (0, 1)
    with pytest.raises(ValueError, match="scenario is 'domain'"):
        split_by_class(source, scenario="domain", tasks=3)  # type: ignore[arg-type]


def test_a_blurry_stream_spreads_its_share_evenly() -> None:
    stream = split_by_class(numbered([100] * 10), tasks=5, blurry=0.1, seed=3)
    counts = np.array([np.bincount(task.y, minlength=10) for task in stream])
    assert (counts.sum(0) == 100).all()
    for label in range(10):
        mine = label // 2
        assert counts[mine, label] == 90
        others = np.delete(counts[:, label], mine)
        assert set(others.tolist()) == {2, 3}  # ten samples over four tasks
    assert sorted(stream.indices) == list(range(1000))
    assert stream[0].classes == (0, 1)
    assert stream.seen(0) == tuple(range(10))


def test_remainders_of_a_blurry_stream_do_not_favour_the_first_tasks() -> None:
    stream = split_by_class(numbered([20] * 100), tasks=10, blurry=0.05)  # one sample of each class is spread
    minor = [len(task) - 190 for task in stream]
    assert sum(minor) == 100
    assert max(minor) < 30


def test_blurry_streams_keep_one_sample_at_home() -> None:
    stream = split_by_class(numbered([1, 1, 2, 2]), tasks=2, blurry=0.9)
    assert {0, 1} <= set(stream[0].y.tolist())
    assert {2, 3} <= set(stream[1].y.tolist())


def test_impossible_blurry_streams_are_refused() -> None:
    with pytest.raises(ValueError, match=r"blurry is 1\.0"):
        split_by_class(numbered([2, 2]), tasks=2, blurry=1.0)
    with pytest.raises(ValueError, match="cannot be task-incremental"):
        split_by_class(numbered([2, 2]), tasks=2, blurry=0.1, scenario="task")


def test_samples_per_class_is_an_upper_limit_and_nested() -> None:
    source = numbered([50, 1, 7])
    few, more = (split_by_class(source, tasks=3, samples_per_class=n, seed=5) for n in (5, 20))
    assert [len(task) for task in few] == [5, 1, 5]
    assert [len(task) for task in more] == [20, 1, 7]
    assert set(few.indices) < set(more.indices)
    assert set(few.indices) != set(split_by_class(source, tasks=3, samples_per_class=5, seed=6).indices)
    with pytest.raises(ValueError, match="samples_per_class is 0"):
        split_by_class(source, tasks=3, samples_per_class=0)


def test_a_class_without_samples_is_named() -> None:
    with pytest.raises(ValueError, match=r"class 1 of the stream \('1'\) has no training samples; leave it out"):
        split_by_class(numbered([3, 0, 3]), tasks=3)
    assert len(split_by_class(numbered([3, 0, 3]), tasks=2, order=[0, 2])) == 2


def test_a_stream_refuses_samples_that_come_twice_or_do_not_exist() -> None:
    source = numbered([4, 4])

    def stream(*indices: list[int]) -> Stream:
        return Stream(source, tuple(Task(n, (0,), source.train, np.array(i, np.int64)) for n, i in enumerate(indices)))

    assert len(stream([0, 1], [2])) == 2
    with pytest.raises(ValueError, match="sample 1 is in the stream twice"):
        stream([0, 1], [1, 2])
    with pytest.raises(ValueError, match="there are 0 to 7"):
        stream([0, 8])
    with pytest.raises(ValueError, match=r"task 1, with the classes .* has no samples"):
        stream([0], [])
    with pytest.raises(ValueError, match="has the number 5"):
        Stream(source, (Task(5, (0,), source.train, np.array([0])),))
    with pytest.raises(ValueError, match="not over the training split"):
        Stream(source, (Task(0, (0,), source.test, np.array([0])),))


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=12),
    data=st.data(),
    blurry=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    limit=st.one_of(st.none(), st.integers(1, 6)),
)
def test_any_plan_delivers_every_chosen_sample_once(
    counts: list[int], data: st.DataObject, blurry: float, limit: int | None
) -> None:
    tasks = data.draw(st.integers(1, len(counts)))
    stream = split_by_class(numbered(counts), tasks=tasks, blurry=blurry, samples_per_class=limit, order="shuffled")
    got = values(Online(stream, size=data.draw(st.integers(1, 9))))
    assert len(got) == len(set(got)) == sum(min(count, limit or count) for count in counts)


# -- delivering -----------------------------------------------------------------------------------------------------


def test_online_batches_are_of_one_task() -> None:
    stream = split_by_class(numbered([5] * 4), tasks=2)
    batches = list(Online(stream, size=4))
    assert [(batch.task, len(batch)) for batch in batches] == [(0, 4), (0, 4), (0, 2), (1, 4), (1, 4), (1, 2)]
    assert sorted(values(batches)) == list(range(20))
    x, y = batches[0]
    assert len(x) == len(y) == 4


def test_offline_delivers_whole_tasks() -> None:
    stream = split_by_class(numbered([5] * 4), tasks=2)
    assert [task.number for task in Offline(stream)] == [0, 1]
    assert sorted(values(Offline(stream))) == list(range(20))
    task = stream[0]
    assert np.array_equal(np.concatenate([batch.x for batch in task.batches(3)]), task.x)
    assert all(batch.task == 0 for batch in task.batches(3))


@pytest.mark.parametrize("delivery", [lambda s: Online(s, size=3), Offline])
def test_a_delivery_makes_one_pass(delivery: Callable[[Any], Any]) -> None:
    feed = delivery(split_by_class(numbered([5] * 4), tasks=2))
    assert len(list(feed)) > 1
    assert list(feed) == []


def test_iterating_again_goes_on_where_it_stopped() -> None:
    feed = Online(split_by_class(numbered([5] * 4), tasks=2), size=3)
    first = [next(feed)]
    for batch in feed:
        first.append(batch)
        break
    assert sorted(values(first) + values(feed)) == list(range(20))


@pytest.mark.parametrize("blurry", [0.0, 0.3])
@pytest.mark.parametrize("steps", range(9))
def test_a_run_resumes_exactly(steps: int, blurry: float) -> None:
    def feed() -> Online:
        return Online(split_by_class(numbered([5] * 4), tasks=2, seed=1, blurry=blurry), size=3)

    whole = values(feed())
    begun = feed()
    before = list(islice(begun, steps))
    resumed = feed()
    resumed.load_state_dict(json.loads(json.dumps(begun.state_dict())))
    assert values(before) + values(resumed) == whole


def test_offline_resumes_with_the_next_task() -> None:
    stream = split_by_class(numbered([5] * 6), tasks=3)
    begun = Offline(stream)
    next(begun)
    resumed = Offline(split_by_class(numbered([5] * 6), tasks=3))
    resumed.load_state_dict(begun.state_dict())
    assert [task.number for task in resumed] == [1, 2]


def test_the_position_is_small() -> None:
    feed = Online(split_by_class(numbered([500] * 10), tasks=5), size=10)
    next(feed)
    assert len(json.dumps(feed.state_dict())) < 100


@pytest.mark.parametrize(
    "change", [{"seed": 2}, {"tasks": 4}, {"order": [3, 2, 1, 0]}, {"samples_per_class": 3}, {"blurry": 0.4}]
)
def test_a_position_of_another_stream_is_refused(change: dict[str, Any]) -> None:
    source = numbered([5] * 4)
    state = Online(split_by_class(source, tasks=2, seed=1), size=3).state_dict()
    with pytest.raises(ValueError, match="comes from another stream"):
        Online(split_by_class(source, **{"tasks": 2, "seed": 1, **change}), size=3).load_state_dict(state)


def test_skipping_to_the_position_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = split_by_class(numbered([100] * 4), tasks=2)
    feed = Online(stream, size=10)
    feed.load_state_dict({"delivered": 395, "fingerprint": stream.fingerprint})
    fetched: list[int] = []
    whole = ArraySplit.fetch

    def counting(self: ArraySplit, indices: Any) -> Batch:
        fetched.append(len(indices))
        return whole(self, indices)

    monkeypatch.setattr(ArraySplit, "fetch", counting)
    assert [len(batch) for batch in feed] == [5]
    assert fetched == [5]


# -- streams of one's own -------------------------------------------------------------------------------------------


def pairs(sizes: list[int]) -> Iterator[tuple[Any, Any]]:
    start = 0
    for size in sizes:
        yield np.arange(start, start + size).reshape(-1, 1), np.zeros(size, np.int64)
        start += size


@pytest.mark.parametrize("capacity", [None, 4, 7, 100])
def test_pairs_of_any_size_are_regrouped(capacity: int | None) -> None:
    feed = Online(pairs([1, 10, 0, 2, 30, 3]), size=4, capacity=capacity)
    batches = list(feed)
    assert [len(batch) for batch in batches] == [4] * 11 + [2]
    assert values(batches) == list(range(46))


@pytest.mark.parametrize("steps", [0, 1, 3, 11, 12])
def test_a_stream_of_ones_own_resumes_exactly(steps: int) -> None:
    begun = Online(pairs([1, 10, 0, 2, 30, 3]), size=4)
    before = [next(begun) for _ in range(steps)]
    resumed = Online(pairs([1, 10, 0, 2, 30, 3]), size=4)
    resumed.load_state_dict(begun.state_dict())
    assert values(before) + values(resumed) == list(range(46))


def test_a_begun_iterator_cannot_be_searched_for_a_position() -> None:
    feed = Online(pairs([5, 5]), size=3)
    next(feed)
    feed.load_state_dict({"delivered": 6})
    with pytest.raises(ValueError, match="make the stream again"):
        next(feed)


def test_a_position_behind_the_end_is_refused() -> None:
    feed = Online(list(pairs([5, 5])), size=3)
    feed.load_state_dict({"delivered": 12})
    with pytest.raises(ValueError, match="ends 2 before that"):
        next(feed)


def test_batches_with_task_numbers_are_not_mixed() -> None:
    items = [(np.zeros((3, 1)), [0, 0, 0], 0), (np.ones((5, 1)), [1] * 5, 1), (np.ones((1, 1)), [1], 1)]
    assert [(b.task, len(b)) for b in Online(items, size=4)] == [(0, 3), (1, 4), (1, 2)]
    tasks = list(Offline(items))
    assert [(task.number, len(task), task.classes) for task in tasks] == [(0, 3, (0,)), (1, 6, (1,))]


def test_tensors_and_tasks_of_ones_own() -> None:
    torch = pytest.importorskip("torch")
    tasks = [Task.of(torch.full((3, 2), float(n)), torch.tensor([n, n, n]), number=n) for n in range(2)]
    assert [(b.task, b.y.tolist()) for b in Online(tasks, size=2)] == [(0, [0, 0]), (0, [0]), (1, [1, 1]), (1, [1])]
    assert [task.classes for task in Offline(tasks)] == [(0,), (1,)]
    mixed: list[Any] = [(np.zeros((1, 2)), [0]), tasks[1], (np.zeros((1, 2)), [0])]
    assert [len(b) for b in Online(mixed, size=8)] == [1, 3, 1]


def test_empty_tasks_and_batches_of_ones_own_are_passed_over() -> None:
    empty = Task.of(np.zeros((0, 2)), np.zeros(0, np.int64))
    items: list[Any] = [empty, (np.zeros((2, 2)), [0, 1]), empty]
    assert [len(task) for task in Offline(items)] == [2]
    assert [len(batch) for batch in Online(items, size=4)] == [2]


def test_other_things_are_refused() -> None:
    with pytest.raises(ValueError, match="delivered a int"):
        next(Online([3], size=1))  # type: ignore[list-item]
    with pytest.raises(ValueError, match="one size"):
        Task.of([np.zeros((3, 4, 4)), np.zeros((3, 5, 4))], [0, 1])


def test_an_error_in_the_stream_is_not_taken_for_its_end() -> None:
    class Flaky:
        broken = True

        def __iter__(self) -> Iterator[tuple[Any, Any]]:
            yield from pairs([4])
            if self.broken:
                raise OSError("disk")
            yield np.full((4, 1), 9), np.zeros(4, np.int64)

    stream = Flaky()
    feed = Online(stream, size=4)
    assert len(next(feed)) == 4
    with pytest.raises(OSError, match="disk"):
        next(feed)
    stream.broken = False
    assert values(feed) == [9, 9, 9, 9]


# -- the buffer -----------------------------------------------------------------------------------------------------


def test_the_buffer_is_bounded_and_first_in_first_out() -> None:
    buffer = StreamBuffer(5)
    batch = Batch.of(np.arange(8).reshape(-1, 1), np.zeros(8, np.int64))
    assert buffer.put(batch.part(0, 3)) == 3
    assert buffer.put(batch.part(3)) == 2  # only two more fit; the caller keeps the rest
    assert buffer.put(batch.part(5)) == 0
    assert len(buffer) == 5
    assert values([buffer.take(2)]) == [0, 1]
    assert buffer.put(batch.part(5)) == 2
    assert values([buffer.take()]) == [2, 3, 4, 5, 6]
    with pytest.raises(ValueError, match="holds 0"):
        buffer.take()


@pytest.mark.parametrize("capacity", [3, 4, 9])
def test_online_never_holds_more_than_the_capacity(capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    put = StreamBuffer.put

    def watched(self: StreamBuffer, batch: Batch) -> int:
        count = put(self, batch)
        held.append(len(self))
        return count

    monkeypatch.setattr(StreamBuffer, "put", watched)
    assert values(Online(pairs([20, 1, 20]), size=3, capacity=capacity)) == list(range(41))
    assert max(held) <= capacity


def test_bounds_that_cannot_be_kept_are_errors() -> None:
    with pytest.raises(ValueError, match="at least one batch of 4"):
        Online([], size=4, capacity=3)
    with pytest.raises(ValueError, match="size is 0"):
        Online([], size=0)
    stream = split_by_class(numbered([5] * 4), tasks=2)
    assert len(list(Offline(stream, capacity=10))) == 2
    with pytest.raises(ValueError, match="task 0 has 10 samples or more, but the stream buffer holds 9"):
        next(Offline(stream, capacity=9))
    with pytest.raises(ValueError, match="learn from batches"):
        list(Offline(pairs([5, 5]), capacity=9))


# -- corrupt images in a stream -------------------------------------------------------------------------------------


def test_corrupt_images_do_not_end_a_stream(encode: Callable[..., bytes]) -> None:
    blobs = [encode() if i % 4 else b"broken" for i in range(16)]
    names = tuple(f"{i}.jpg" for i in range(16))
    train = EncodedSplit(Path("/nowhere"), names, np.zeros(16, np.int64), Decoder(crop=8), tuple(blobs))
    stream = split_by_class(Source("s", ("a",), train, train), tasks=1)
    feed = Online(stream, size=2)
    batches = list(feed)
    assert sum(map(len, batches)) == 12
    assert all(len(batch) for batch in batches)
    assert feed.delivered == 16  # the position counts them, or resuming would deliver others twice
    assert len(train.skipped) == 4


@pytest.mark.data
@pytest.mark.parametrize("tasks", [10, 20, 50])
def test_split_cifar_100(data_root: Path, tasks: int) -> None:
    source = load("cifar-100", data_root)
    stream = split_by_class(source, tasks=tasks)
    assert [len(task) for task in stream] == [50000 // tasks] * tasks
    first = [source.classes[i] for i in (68, 56)]
    assert list(stream.source.classes[:2]) == first
    assert sum(len(stream.test_indices(n)) for n in range(tasks)) == 10000
    assert sum(len(b) for b in Online(stream, size=10)) == 50000


# -- from anything -----------------------------------------------------------------------------------------------------


def _pairs() -> Iterator[tuple[Any, Any]]:
    for number, labels in enumerate(([7, 7, 30], [30, 2], [9])):
        yield np.full((len(labels), 4), number, np.float32), labels


def test_a_stream_of_pairs() -> None:
    stream = stream_of(_pairs(), test=(np.zeros((2, 4), np.float32), [9, 30]))
    assert [task.y.tolist() for task in stream] == [[0, 0, 1], [1, 2], [3]]
    assert [task.x[:, 0].tolist() for task in stream] == [[0, 0, 0], [1, 1], [2]]
    assert stream.source.classes == ("7", "30", "2", "9")
    assert stream.source.test.y.tolist() == [3, 1]
    assert stream.seen(1) == (0, 1, 2)


def test_a_stream_of_batches_with_task_numbers() -> None:
    batches = [(np.zeros((2, 3)), [0, 1], 0), (np.ones((2, 3)), [1, 0], 0), (np.ones((1, 3)), [2], 1)]
    stream = stream_of(batches, test=(np.zeros((1, 3)), [2]))
    assert [len(task) for task in stream] == [4, 1]


def test_what_stream_of_refuses() -> None:
    with pytest.raises(ValueError, match="tasks is empty"):
        stream_of([], test=(np.zeros((1, 4)), [0]))
    with pytest.raises(ValueError, match="test has the label 5, which no task has"):
        stream_of(_pairs(), test=(np.zeros((1, 4)), [5]))
