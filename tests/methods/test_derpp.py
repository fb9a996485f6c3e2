"""DER++: three losses a step, and stored outputs that stay with their samples."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from small import Spy, learn, make_stream, marks, np_ce, np_logits, pixels, started, whole

from carm import nets
from carm.memory.batch import Batch
from carm.methods import DERpp, Training


def test_the_loss_is_the_sum_of_three() -> None:
    stream = make_stream()
    with started(DERpp(alpha=0.3, beta=0.7), swap="sync") as method:
        method.begin(stream[0])
        learn(method, stream[0])
        method.end()
        method.begin(stream[1])
        steps = 0
        draw = method.memory.draw
        for number in range(2):
            for batch in method.batches(number):
                drawn: list[Batch] = []

                def drawing(n: int, drawn: list[Batch] = drawn) -> Batch:
                    drawn.append(draw(n))
                    return drawn[-1]

                method.memory.draw = drawing  # type: ignore[method-assign]
                net = copy.deepcopy(method.net)
                loss = method.learn(batch).item()
                said, labelled = drawn
                assert len(said) == len(labelled) == 8 and len(batch) <= 8
                new = np_ce(np_logits(net, pixels(batch.x)), batch.y.numpy())
                gap = ((np_logits(net, pixels(said.x)) - said["logits"].numpy()) ** 2).mean()
                old = np_ce(np_logits(net, pixels(labelled.x)), labelled.y.numpy())
                assert loss == pytest.approx(new + 0.3 * gap + 0.7 * old, rel=1e-4)
                steps += 1
        assert steps == 6


def test_the_first_task_is_plain_cross_entropy() -> None:
    stream = make_stream()
    with started(DERpp()) as method:
        method.begin(stream[0])
        batch = next(iter(method.batches(0)))
        net = copy.deepcopy(method.net)
        expected = np_ce(np_logits(net, pixels(batch.x)), batch.y.numpy())
        assert method.learn(batch).item() == pytest.approx(expected, rel=1e-4)


def test_what_is_stored_was_said_in_the_last_pass() -> None:
    stream = make_stream()
    said: dict[int, np.ndarray] = {}
    with started(DERpp(), em=24, training=Training(passes=3, batch=8, lr=0.1)) as method:
        assert isinstance(method.views, Spy)
        method.begin(stream[0])
        for number in range(3):
            for batch in method.batches(number):
                outputs = np_logits(method.net, pixels(batch.x))
                for mark, row in zip(marks(batch.x).tolist(), outputs, strict=True):
                    said[mark] = row
                method.learn(batch)
        method.end()
        kept = method.memory.take(method.memory.slots)
        assert len(kept) == 24
        for mark, row in zip(marks(kept.x).tolist(), kept["logits"].numpy(), strict=True):
            np.testing.assert_allclose(row, said[mark], atol=1e-4)


def test_outputs_travel_with_their_samples() -> None:
    stream = make_stream(tasks=4, per_class=20)
    places = torch.arange(8)
    checked = 0
    with started(DERpp(), em=16, swap="sync", ratio=0.7, classes=8) as method:
        assert isinstance(method, DERpp)
        for task in stream:
            method.begin(task)
            notes = learn(method, task)
            for drawn in notes.drawn:
                for batch in drawn:
                    expected = torch.from_numpy(marks(batch.x))[:, None] * 10 + places
                    assert torch.equal(batch["logits"], expected.float())
                    checked += len(batch)
            method.said = (torch.from_numpy(marks(method.stream["x"]))[:, None] * 10 + places).float()
            method.end()
        memory = method.memory
        memory.flush()
        assert memory.stats()["swapped"] > 100
        assert memory.store is not None
        stored = memory.store.read(memory.store.ids)
        assert len(stored["y"]) == 160
        assert (np.asarray(stored["logits"])[:, 0] == marks(stored["x"]) * 10).all()
    assert checked == 2 * 8 * 5 * 2 * 3  # two draws of 8, in 5 steps of 2 passes over 3 tasks


def test_online_outputs_travel_too() -> None:
    stream = make_stream()
    said: dict[int, np.ndarray] = {}
    with started(DERpp(), swap="sync", training=Training(passes=2, batch=8, lr=0.01)) as method:
        method.level = "batch"
        for task in stream:
            method.begin(task)
            for number in range(2):
                for batch in method.batches(number):
                    if number == 0:
                        outputs = np_logits(method.net, pixels(batch.x))
                        said |= dict(zip(marks(batch.x).tolist(), outputs, strict=True))
                    method.learn(batch)
            method.end()
        memory = method.memory
        memory.flush()
        assert memory.store is not None
        stored = memory.store.read(memory.store.ids)
        assert sorted(marks(stored["x"]).tolist()) == list(range(72))  # every sample once, though it came by twice
        for mark, row in zip(marks(stored["x"]).tolist(), np.asarray(stored["logits"]), strict=True):
            np.testing.assert_allclose(row, said[mark], atol=1e-4)


def test_a_sample_in_both_draws_is_judged_once() -> None:
    stream = make_stream()
    both = 0
    with started(DERpp(), em=10, swap="sync", ratio=0.5) as method:
        for notes in whole(method, stream)[1:]:
            for drawn, judged in zip(notes.drawn, notes.judged, strict=True):
                ids = np.concatenate([batch.ids for batch in drawn])
                assert len(judged) == 1
                assert sorted(judged[0].ids.tolist()) == np.unique(ids).tolist()
                both += len(ids) - len(set(ids.tolist()))
        assert both > 20
        assert method.memory.stats()["dropped"]["stale"] == 0


def test_outputs_for_all_classes_from_the_start() -> None:
    stream = make_stream()
    with started(DERpp()) as method:
        method.begin(stream[0])
        assert method.net.classes == 6
        x = stream.source.test.fetch([0, 1]).array
        assert method.scores(x).shape == (2, 2)  # but only those seen are candidates
    with started(DERpp(), classes=5) as method, pytest.raises(ValueError, match="fixed head"):
        whole(method, stream)


def test_a_growing_head_is_refused() -> None:
    stream = make_stream()
    with started(DERpp()) as method:
        method._make = lambda number: nets.build("mlp", in_shape=(1, 4, 4), seed=number)
        method.new_net(0)
        with pytest.raises(ValueError, match="fixed head"):
            method.begin(stream[0])


@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_weights_are_not_negative(name: str) -> None:
    options: dict[str, Any] = {name: -1.0}
    with pytest.raises(ValueError, match=f"{name}=-1"):
        DERpp(**options)
