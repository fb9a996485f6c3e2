"""iCaRL, and ER, whose loss it shares: losses, herding and nearest mean against what numpy makes of the formulas."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from small import (
    SIDE,
    images,
    in_ram,
    learn,
    make_stream,
    marks,
    np_bce,
    np_ce,
    np_features,
    np_logits,
    pixels,
    sigmoid,
    started,
    unit,
    whole,
)

from carm.data.augment import Recipe, random_crop, random_flip
from carm.methods import ER, ICaRL

X = images(np.arange(16), np.arange(16) % 4, seed=3)
Y = torch.arange(16) % 4


def one_hot(y: Any, columns: int) -> np.ndarray:
    return np.eye(columns)[np.asarray(y)]


@pytest.mark.parametrize("head", ["growing", "fixed"])
def test_er_is_binary_cross_entropy_over_the_classes_seen(head: str) -> None:
    method = ER()
    method.head = head  # type: ignore[misc, assignment]
    stream = make_stream()
    with started(method) as er:
        er.begin(stream[0])
        learn(er, stream[0])
        er.end()
        er.begin(stream[1])
        x = er.views.test(X)
        logits = er.net(x)
        assert logits.shape[1] == (4 if head == "growing" else 6)
        expected = np_bce(np_logits(er.net, pixels(X))[:, :4], one_hot(Y, 4))
        assert er.loss(logits, Y, x).item() == pytest.approx(expected, rel=1e-4)
    with started(ER(loss="ce")) as er:
        er.begin(stream[0])
        x = er.views.test(X[Y < 2])
        expected = np_ce(np_logits(er.net, pixels(X[Y < 2])), Y[Y < 2].numpy())
        assert er.loss(er.net(x), Y[Y < 2], x).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "alpha"),
    [({}, 1.0), ({"alpha": 0.3}, 0.3), ({"alpha": "auto"}, 2 / 3), ({"alpha": 0.0}, 0.0), ({"distill": False}, 0.0)],
)
def test_old_classes_are_taught_by_the_old_net(options: dict[str, Any], alpha: float) -> None:
    stream = make_stream()
    y = torch.arange(16) % 6
    with started(ICaRL(**options)) as method:
        for task in stream.tasks[:2]:
            method.begin(task)
            learn(method, task)
            method.end()
        teacher = copy.deepcopy(method.net)
        method.begin(stream[2])
        learn(method, stream[2])  # the net is another one now, the teacher must not be
        x = method.views.test(X)
        loss = method.loss(method.net(x), y, x).item()
        z, truth = np_logits(method.net, pixels(X)), one_hot(y, 6)
        targets = truth.copy()
        targets[:, :4] = sigmoid(np_logits(teacher, pixels(X)))
        assert abs(np_bce(z, targets) - np_bce(z, truth)) > 1e-3
        assert loss == pytest.approx(alpha * np_bce(z, targets) + (1 - alpha) * np_bce(z, truth), rel=1e-4)


def test_the_first_task_has_no_teacher() -> None:
    with started(ICaRL(alpha=0.3)) as method:
        stream = make_stream()
        method.begin(stream[0])
        x = method.views.test(X[Y < 2])
        expected = np_bce(np_logits(method.net, pixels(X[Y < 2])), one_hot(Y[Y < 2], 2))
        assert method.loss(method.net(x), Y[Y < 2], x).item() == pytest.approx(expected, rel=1e-4)


def test_what_a_blurry_task_is_about_is_learned_from_labels() -> None:
    stream = make_stream(tasks=3, per_class=20, blurry=0.4)
    with started(ICaRL()) as method:
        method.begin(stream[0])
        learn(method, stream[0])
        method.end()
        assert method.seen == 6  # samples of all classes came with the first task
        teacher = copy.deepcopy(method.net)
        method.begin(stream[1])
        assert method.old.tolist() == [0, 1, 4, 5]
        x = method.views.test(X)
        y = torch.full((16,), 2)
        targets = one_hot(y, 6)
        old = [0, 1, 4, 5]
        targets[:, old] = sigmoid(np_logits(teacher, pixels(X)))[:, old]
        expected = np_bce(np_logits(method.net, pixels(X)), targets)
        assert method.loss(method.net(x), y, x).item() == pytest.approx(expected, rel=1e-4)


def slow_herding(features: np.ndarray, k: int) -> list[int]:
    """iCaRL, algorithm 4, as it is written."""
    mean, chosen = features.mean(0), []
    for step in range(1, k + 1):
        left = [i for i in range(len(features)) if i not in chosen]
        so_far = features[chosen].sum(0)
        chosen.append(min(left, key=lambda i: float(np.linalg.norm(mean - (so_far + features[i]) / step))))
    return chosen


def test_ram_keeps_what_herding_picks() -> None:
    stream = make_stream(tasks=2, per_task=2, per_class=15)
    picked: dict[int, list[int]] = {}  # of each class, in the order of picking
    with started(ICaRL(), em=12) as method:
        for task, share in zip(stream, (6, 3), strict=True):
            method.begin(task)
            learn(method, task)
            x, y = method.stream["x"], method.stream["y"]
            method.end()
            for label in task.classes:
                members = x[y == label]
                order = slow_herding(unit(np_features(method.net, pixels(members))), share)
                picked[label] = marks(members)[order].tolist()
            assert in_ram(method) == {label: sorted(order[:share]) for label, order in picked.items()}


@pytest.mark.parametrize("mirrored", [True, False])
def test_prediction_is_the_nearest_mean_of_exemplars(mirrored: bool) -> None:
    stream = make_stream()
    recipe = Recipe(augment=(partial(random_crop, padding=1), *([random_flip] if mirrored else [])))
    with started(ICaRL(), swap="sync", recipe=recipe) as method:
        whole(method, stream)
        method.before_evaluation()
        test = stream.source.test.fetch(np.arange(24)).array
        exemplars = method.memory.take(method.memory.slots)
        x, y = np.asarray(exemplars.x), exemplars.y.numpy()
        features = unit(np_features(method.net, pixels(x)))
        if mirrored:
            features = features + unit(np_features(method.net, pixels(x[..., ::-1])))
        means = np.stack([unit(features[y == label].sum(0)) for label in range(6)])
        probes = unit(np_features(method.net, pixels(test)))
        distance = np.array([[np.linalg.norm(p - m) for m in means] for p in probes])
        scores = method.scores(test)
        np.testing.assert_allclose(-scores.numpy(), distance, atol=2e-4)
        ordered = np.sort(distance, 1)
        clear = ordered[:, 1] - ordered[:, 0] > 1e-3
        assert clear.sum() > 5
        assert (scores.argmax(1).numpy() == distance.argmin(1))[clear].all()


def test_a_class_without_exemplars_is_never_the_answer() -> None:
    stream = make_stream()
    with started(ICaRL(), em=4) as method:
        whole(method, stream)
        method.before_evaluation()
        scores = method.scores(stream.source.test.fetch(np.arange(24)).array)
        assert not scores.isnan().any()
        assert set(scores.argmax(1).tolist()) <= set(in_ram(method))
        assert len(in_ram(method)) == 4


@pytest.mark.parametrize("count", [5, 48])  # many distances are computed in another way than a few
def test_a_class_without_exemplars_is_infinitely_far(count: int) -> None:
    stream = make_stream()
    with started(ICaRL(), em=4) as method:
        whole(method, stream)
        scores = method.scores(np.resize(stream.source.test.fetch(np.arange(24)).array, (count, 1, SIDE, SIDE)))
        without = [label not in in_ram(method) for label in range(6)]
        assert sum(without) == 2
        assert torch.isinf(scores).all(0).tolist() == without


@pytest.mark.parametrize("event", ["begin", "step", "store", "load"])
def test_means_are_those_of_the_present_net_and_memory(event: str) -> None:
    stream = make_stream()
    with started(ICaRL(), em=12) as method:
        for task in stream.tasks[:2]:
            method.begin(task)
            learn(method, task)
            method.end()
        if event != "begin":
            method.begin(stream[2])
        state = copy.deepcopy(method.state_dict())
        if event in ("store", "load"):
            learn(method, stream[2])
        x = stream.source.test.fetch(np.arange(24)).array
        method.before_evaluation()
        stale = method.scores(x)
        if event == "begin":
            method.begin(stream[2])
        elif event == "step":
            method.learn(next(iter(method.batches(0))))
        elif event == "store":
            method.end()
        else:
            method.load_state_dict(state, stream[2])
        found = method.scores(x)
        assert found.shape == (24, 6) and not torch.equal(found, stale)
        method.before_evaluation()
        assert torch.equal(found, method.scores(x))


def test_the_parts_can_be_switched_off() -> None:
    stream = make_stream()
    with started(ICaRL(distill=False, herding=False, nearest_mean=False), em=12) as method:
        whole(method, stream)
        assert method.teacher is None  # type: ignore[attr-defined]
        for label, kept in in_ram(method).items():  # a ring keeps what came last
            arrived = [i for i in stream.indices.tolist() if stream.source.train.y[i] == label]
            assert kept == sorted(arrived[-2:])
        x = stream.source.test.fetch(np.arange(24)).array
        np.testing.assert_allclose(method.scores(x).numpy(), np_logits(method.net, pixels(x)), atol=1e-4)


@pytest.mark.parametrize("alpha", ["half", -0.1, 1.5, float("nan")])
def test_alpha_must_be_a_share(alpha: Any) -> None:
    with pytest.raises(ValueError, match="alpha="):
        ICaRL(alpha=alpha)
