"""BiC: its two losses, the fit of scale and shift, and a validation set that nothing is ever trained on."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import (
    Spy,
    images,
    in_ram,
    learn,
    log_softmax,
    make_stream,
    marks,
    np_ce,
    np_logits,
    pixels,
    started,
    whole,
)

from carm.data import Stream, Task
from carm.methods import BiC, Training

X = images(np.arange(18), np.arange(18) % 6, seed=3)
Y = torch.arange(18) % 6


def held_marks(method: BiC) -> set[int]:
    return {int(m) for one in method.held.values() for m in marks(np.stack(one))} if method.held else set()


def np_soft(z: np.ndarray, taught: np.ndarray, temperature: float) -> float:
    q = np.exp(log_softmax(taught / temperature))
    return float(-(q * log_softmax(z / temperature)).sum(1).mean())


@pytest.mark.parametrize(("alpha", "weight"), [("auto", 4 / 6), (0.25, 0.25), (0.0, 0.0)])
def test_soft_and_hard_labels(alpha: Any, weight: float) -> None:
    stream = make_stream()
    with started(BiC(alpha=alpha, temperature=3.0), em=40) as method:
        assert isinstance(method, BiC)
        for task in stream.tasks[:2]:
            method.begin(task)
            learn(method, task)
            method.end()
        fitted = method.correction.numpy().copy()  # of the second task, which the teacher is corrected by too
        assert (fitted[:2] == [1, 0]).all()
        assert np.abs(fitted[2:] - [1, 0]).max() > 1e-3
        teacher = copy.deepcopy(method.net)
        method.begin(stream[2])
        learn(method, stream[2])
        x = method.views.test(X)
        loss = method.loss(method.net(x), Y, x).item()
        pairs = np.concatenate([fitted, [[1, 0], [1, 0]]])  # the newest classes have no correction while they train
        z = np_logits(method.net, pixels(X)) * pairs[:, 0] + pairs[:, 1]
        taught = np_logits(teacher, pixels(X)) * fitted[:, 0] + fitted[:, 1]
        expected = weight * np_soft(z[:, :4], taught, 3.0) + (1 - weight) * np_ce(z, Y.numpy())
        assert loss == pytest.approx(expected, rel=1e-4)


def test_scale_and_shift_are_the_best_there_are() -> None:
    stream = make_stream(tasks=2, per_class=30)
    with started(BiC(), em=120, training=Training(passes=4, batch=8, lr=0.1)) as method:
        assert isinstance(method, BiC)
        whole(method, stream)
        x = np.stack([one for label in sorted(method.held) for one in method.held[label]])
        y = np.array([label for label in sorted(method.held) for _ in method.held[label]])
        z = np_logits(method.net, pixels(x))

        def objective(a: float, b: float) -> float:
            fitted = z.copy()
            fitted[:, 2:] = a * z[:, 2:] + b
            return np_ce(fitted, y) + 0.01 * ((a - 1) ** 2 + b**2)

        a, b = method.correction[2].tolist()
        assert method.correction[3].tolist() == [a, b]
        assert method.correction[:2].tolist() == [[1, 0], [1, 0]]
        best = min(objective(u, v) for u in np.arange(-1, 4, 0.05) for v in np.arange(-4, 4, 0.05))
        assert objective(a, b) <= best + 1e-6
        assert objective(a, b) < objective(1, 0) - 1e-4  # there was something to correct
        corrected = z.copy()
        corrected[:, 2:] = a * z[:, 2:] + b
        np.testing.assert_allclose(method.scores(x).numpy(), corrected, atol=1e-3)


def test_the_net_is_frozen_in_the_second_stage() -> None:
    stream = make_stream(tasks=2)
    with started(BiC(), em=40) as method:
        assert isinstance(method, BiC)
        method.begin(stream[0])
        learn(method, stream[0])
        method.end()
        method.begin(stream[1])
        learn(method, stream[1])
        before = copy.deepcopy(method.net.state_dict())
        method.end()
        assert all(torch.equal(before[name], now) for name, now in method.net.state_dict().items())
        assert method.correction[2].tolist() != [1, 0]


def run_task(method: BiC, task: Task) -> None:
    method.begin(task)
    learn(method, task)
    method.end()


def kept_marks(method: BiC) -> set[int]:
    """What is in RAM and in storage."""
    memory = method.memory
    memory.flush()
    found = {mark for some in in_ram(method).values() for mark in some}
    if memory.store is not None:
        ids = memory.store.ids
        found |= {int(m) for m in marks(memory.store.read(ids)["x"])}
    return found


@pytest.mark.parametrize("swap", ["none", "sync"])
def test_validation_samples_are_never_trained_on_nor_stored(swap: str) -> None:
    stream = make_stream(tasks=4, per_task=2, per_class=24)
    ever: set[int] = set()
    with started(BiC(), em=100, swap=swap, classes=8) as method:
        assert isinstance(method, BiC) and isinstance(method.views, Spy)
        for task, share in zip(stream, (5, 2, 1, 1), strict=True):
            run_task(method, task)
            ever |= held_marks(method)
            # 10 % of 100, equally over the classes so far
            assert {label: len(one) for label, one in method.held.items()} == dict.fromkeys(range(method.seen), share)
            assert not ever & kept_marks(method)
        trained = {int(m) for part in method.views.trained for m in part}
        if swap == "sync":
            assert method.memory.stats()["swapped"] > 100
            assert kept_marks(method) | ever == set(range(8 * 24))  # everything else is stored
    assert len(ever) == 2 * (5 + 2 + 1 + 1)
    assert not ever & trained
    assert len(trained) == 8 * 24 - len(ever)


def test_they_stay_out_through_a_resume(tmp_path: Path) -> None:
    stream = make_stream(tasks=3, per_class=24)
    training = Training(passes=3, batch=8, lr=0.05)
    reference: dict[str, torch.Tensor] = {}
    with started(BiC(), em=60, swap="sync", training=training, storage=tmp_path / "a") as method:
        assert isinstance(method, BiC)
        whole(method, stream)
        reference = {name: one.clone() for name, one in method.net.state_dict().items()}
        expected = held_marks(method), method.correction.clone()

    saved = io.BytesIO()
    with started(BiC(), em=60, swap="sync", training=training, storage=tmp_path / "b") as method:
        assert isinstance(method, BiC)
        run_task(method, stream[0])
        method.before_evaluation()
        method.begin(stream[1])
        for number in range(2):
            for batch in method.batches(number):
                method.learn(batch)
            method.end_pass(number)
        first = held_marks(method)
        torch.save({"method": method.state_dict(), "memory": method.memory.state_dict()}, saved)
        for batch in method.batches(2):  # what the interruption undoes
            method.learn(batch)
    with started(BiC(), em=60, swap="sync", training=training, storage=tmp_path / "b") as method:
        assert isinstance(method, BiC) and isinstance(method.views, Spy)
        saved.seek(0)
        state = torch.load(saved, weights_only=True)
        method.memory.load_state_dict(state["memory"])
        method.load_state_dict(state["method"], stream[1])
        assert held_marks(method) == first
        for batch in method.batches(2):
            method.learn(batch)
        method.end()
        run_task(method, stream[2])
        trained = {int(m) for part in method.views.trained for m in part}
        assert not (first | held_marks(method)) & trained
        assert (held_marks(method), method.correction.tolist()) == (expected[0], expected[1].tolist())
        assert all(torch.equal(reference[name], one) for name, one in method.net.state_dict().items())


def test_a_class_with_one_sample_is_trained_on() -> None:
    stream = make_stream(tasks=2)
    few = [i for i in stream[1].indices.tolist() if stream.source.train.y[i] == 2][:1]
    rest = [i for i in stream[1].indices.tolist() if stream.source.train.y[i] == 3]
    second = Task(1, (2, 3), stream.source.train, np.array(few + rest))
    stream = Stream(stream.source, (stream[0], second))
    with started(BiC(), em=40) as method:
        assert isinstance(method, BiC) and isinstance(method.views, Spy)
        whole(method, stream)
        assert method.held[2] == [] and len(method.held[3]) == 1
        assert few[0] in {int(m) for part in method.views.trained for m in part}


def test_nothing_is_fitted_without_samples_of_new_classes() -> None:
    """On old classes alone, the lower the outputs of new ones the better."""
    stream = make_stream(tasks=2)
    labels = stream.source.train.y[stream[1].indices]
    one_each = stream[1].indices[[int(np.flatnonzero(labels == label)[0]) for label in (2, 3)]]
    second = Task(1, (2, 3), stream.source.train, one_each)
    with started(BiC(), em=40) as method:
        assert isinstance(method, BiC)
        whole(method, Stream(stream.source, (stream[0], second)))
        assert {label: len(one) for label, one in method.held.items()} == {0: 1, 1: 1, 2: 0, 3: 0}
        assert method.correction.tolist() == [[1, 0]] * 4


def test_validation_samples_are_copies() -> None:
    with started(BiC(), em=40) as method:
        assert isinstance(method, BiC)
        method.begin(make_stream()[0])
        assert all(one.base is None for some in method.held.values() for one in some)


def test_a_memory_too_small_for_a_validation_set_does_without(caplog: pytest.LogCaptureFixture) -> None:
    with started(BiC(), em=4) as method:
        assert isinstance(method, BiC)
        whole(method, make_stream())
        assert not any(method.held.values())
        assert method.correction.tolist() == [[1, 0]] * 6
    assert "too few" in caplog.text


def test_blurry_tasks_are_learned_and_corrected() -> None:
    stream = make_stream(tasks=3, per_class=30, blurry=0.3)
    with started(BiC(), em=120) as method:
        assert isinstance(method, BiC)
        for task in stream:
            run_task(method, task)
            assert method.old_share == (0 if task.number == 0 else 4 / 6)
        pairs = method.correction.tolist()
        assert pairs[4] == pairs[5] != [1, 0]  # the newest task's
        assert pairs[2] == pairs[3] != pairs[4]
        assert pairs[0] == pairs[1] == [1, 0]


@pytest.mark.parametrize(("name", "value"), [("validation", 1.0), ("temperature", 0.0), ("alpha", 2), ("alpha", "x")])
def test_options_are_checked(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}="):
        BiC(**{name: value})
