"""TinyER: ten new and ten old a step, one pass, a loss within each sample's task, a reservoir after every step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import images, in_ram, learn, log_softmax, make_stream, marks, np_ce, np_logits, pixels, started

from carm.data import Stream, Task
from carm.methods import TinyER, Training
from carm.methods.losses import within_task

ONLINE = Training(passes=1, batch=10, old_batch=10, lr=0.05)


def masked_ce(z: np.ndarray, y: np.ndarray, table: list[tuple[int, ...]]) -> float:
    """Cross-entropy of each sample over the classes of its own task."""
    total = 0.0
    for row, label in zip(z, y, strict=True):
        own = next(classes for classes in table if label in classes)
        total -= log_softmax(row[None, list(own)])[0, own.index(label)]
    return total / len(y)


@pytest.mark.parametrize("head", ["growing", "fixed"])
def test_the_loss_is_within_the_task(head: str) -> None:
    stream = make_stream()
    x, y = images(np.arange(12), np.arange(12) % 4), torch.arange(12) % 4
    method = TinyER()
    method.head = head  # type: ignore[misc, assignment]
    with started(method, training=ONLINE) as method:
        for task in stream.tasks[:2]:
            method.begin(task)
            learn(method, task)
        z = np_logits(method.net, pixels(x))
        loss = method.loss(method.net(method.views.test(x)), y, x).item()
        assert loss == pytest.approx(masked_ce(z, y.numpy(), [(0, 1), (2, 3)]), rel=1e-4)
        assert loss != pytest.approx(np_ce(z[:, :4], y.numpy()), rel=1e-2)
    with started(TinyER(masked=False), training=ONLINE) as method:
        method.begin(stream[0])
        first = y < 2
        z = np_logits(method.net, pixels(x[first.numpy()]))
        loss = method.loss(method.net(method.views.test(x[first.numpy()])), y[first], x).item()
        assert loss == pytest.approx(np_ce(z, y[first].numpy()), rel=1e-4)


def test_each_sample_competes_with_the_mates_of_its_class() -> None:
    mates = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 0], [0, 0, 0, 1]], dtype=torch.bool)
    z, y = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 4
    slow = []
    for row, label in zip(z.double().numpy(), y.tolist(), strict=True):
        own = [k for k in range(4) if mates[label, k]]
        slow.append(-log_softmax(row[None, own])[0, own.index(label)])
    assert within_task(z, y, mates).item() == pytest.approx(np.mean(slow), rel=1e-5)
    few = y < 3  # an output less than the table has columns
    assert within_task(z[few, :3], y[few], mates).item() == pytest.approx(np.mean(np.array(slow)[few]), rel=1e-5)


def test_other_tasks_outputs_get_no_gradient() -> None:
    stream = make_stream()
    with started(TinyER(), training=ONLINE) as method:
        for task in stream.tasks[:2]:
            method.begin(task)
        logits = torch.randn(5, 4, requires_grad=True)
        method.loss(logits, torch.tensor([0, 1, 0, 1, 0]), logits).backward()
        assert logits.grad is not None
        assert (logits.grad[:, 2:] == 0).all() and (logits.grad[:, :2] != 0).all()


def test_ten_new_and_ten_old_in_order_of_arrival() -> None:
    stream = make_stream(per_class=20)
    arrived: list[int] = []
    with started(TinyER(), em=25, swap="sync", training=ONLINE) as method:
        for task in stream:
            method.begin(task)
            for number in range(method.training.passes):
                for batch in method.batches(number):
                    new = marks(batch.x)[(~batch.old).numpy()].tolist()
                    assert len(new) == 10
                    assert int(batch.old.sum()) == min(len(arrived), 10)
                    assert set(marks(batch.x)[batch.old.numpy()].tolist()) <= set(arrived)
                    assert len(method.memory) == min(len(arrived), 25)  # the present ones are not in yet
                    arrived += new
                    method.learn(batch)
            method.end()
        assert arrived == stream.indices.tolist()
        assert len(method.memory) == 25
        assert method.memory.stats()["added"] == 120


def test_later_passes_bring_nothing_new() -> None:
    stream = make_stream()
    with started(TinyER(), em=25, training=Training(passes=3, batch=10, old_batch=10, lr=0.01)) as method:
        for task in stream:
            method.begin(task)
            learn(method, task)
            method.end()
        assert method.memory.stats()["added"] == 72


def test_classes_that_come_again_belong_to_all_their_tasks() -> None:
    stream = make_stream()
    train = stream.source.train
    middle = [i for i in range(len(train)) if train.y[i] in (1, 2)]
    first = [i for i in range(len(train)) if train.y[i] in (0, 1)]
    half = [i for i in middle if i % 2 or train.y[i] == 2]
    again = Stream(
        stream.source,
        (
            Task(0, (0, 1), train, np.array([i for i in first if i not in half])),
            Task(1, (1, 2), train, np.array(half)),
        ),
    )
    with started(TinyER(), training=ONLINE) as method:
        for task in again:
            method.begin(task)
            learn(method, task)
            method.end()
        assert sorted(in_ram(method)) == [0, 1, 2]
        logits = torch.randn(3, 3)
        found = method.loss(logits, torch.tensor([0, 1, 2]), logits).item()
        z = logits.double().numpy()
        expected = -(log_softmax(z[:1, :2])[0, 0] + log_softmax(z[1:2])[0, 1] + log_softmax(z[2:, 1:])[0, 1]) / 3
        assert found == pytest.approx(float(expected), rel=1e-4)
