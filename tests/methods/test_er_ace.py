"""The example of a method of one's own does what its paper says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from small import images, learn, log_softmax, make_stream, np_logits, pixels, started, whole

from carm import methods

FILE = f"{Path(__file__).parents[2] / 'examples' / 'er_ace.py'}:ERACE"


def test_new_samples_compete_within_their_task_and_old_ones_with_everything() -> None:
    stream = make_stream()
    with started(methods.make(FILE, weight=0.7)) as method:
        for task in stream.tasks[:2]:
            method.begin(task)
            learn(method, task)
            method.end()
        y = torch.tensor([2, 3, 2, 0, 1, 3])
        old = torch.tensor([False, False, False, True, True, True])
        x = images(np.arange(6), y.numpy())
        logits = method.net(method.views.test(x)).detach().requires_grad_()
        loss = method.asymmetric(logits, y, old)  # type: ignore[attr-defined]
        z = np_logits(method.net, pixels(x))
        new_part = np.mean([-log_softmax(z[i : i + 1, 2:])[0, int(y[i]) - 2] for i in range(3)])
        old_part = np.mean([-log_softmax(z[i : i + 1])[0, int(y[i])] for i in range(3, 6)])
        assert loss.item() == pytest.approx(float(new_part + 0.7 * old_part), rel=1e-4)
        loss.backward()
        assert logits.grad is not None
        assert (logits.grad[:3, :2] == 0).all()  # old classes are not pushed down by new samples
        assert (logits.grad[3:] != 0).all()


@pytest.mark.parametrize("only", [True, False])
def test_a_mini_batch_may_be_all_old_or_all_new(only: bool) -> None:
    stream = make_stream()
    with started(methods.make(FILE)) as method:
        method.begin(stream[0])
        old = torch.full((4,), only)
        loss = method.asymmetric(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), old)  # type: ignore[attr-defined]
        assert loss.item() == pytest.approx(np.log(2))


def test_it_swaps_and_learns_like_the_others() -> None:
    with started(methods.make(FILE), swap="sync", ratio=0.5) as method:
        for notes in whole(method, make_stream()):
            for batch, judged in zip(notes.batches, notes.judged, strict=True):
                assert len(judged) == 1 and judged[0] is batch
        assert method.memory.stats()["swapped"] > 20
    with pytest.raises(ValueError, match="weight=-1"):
        methods.make(FILE, weight=-1)
