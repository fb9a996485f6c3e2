"""GDumb and RM, which train on the memory: what they see, CutMix, fresh nets, uncertainty."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from small import images, in_ram, learn, log_softmax, make_stream, marks, np_logits, started, whole

from carm.data import Stream
from carm.data.augment import Recipe, random_crop
from carm.methods import RM, GDumb, Training
from carm.methods.rm import agreement


@pytest.mark.parametrize("swap", ["none", "sync"])
def test_gdumb_trains_a_fresh_net_on_the_memory_alone(swap: str) -> None:
    stream = make_stream(per_class=20)
    with started(GDumb(), em=12, swap=swap) as method:
        for task in stream:
            old = method.net
            method.begin(task)
            assert method.net is not old
            fresh = method._make(task.number)
            fresh.grow(method.seen)
            for name, one in fresh.state_dict().items():
                assert torch.equal(one, method.net.state_dict()[name])
            assert not method.optimizer.state
            assert method.stream == {}
            kept = in_ram(method)
            assert {len(some) for some in kept.values()} == {12 // method.seen}
            notes = learn(method, task)
            for batch in notes.batches:
                assert batch.old.all()
            seen = {int(m) for batch in notes.batches for m in marks(batch.x)}
            everything = {mark for some in kept.values() for mark in some}
            assert seen == everything if swap == "none" else seen > everything
            before = in_ram(method)
            method.end()
            assert in_ram(method) == before  # nothing is taken in twice
        assert method.memory.stats()["added"] == 120


def test_nets_of_different_tasks_differ() -> None:
    with started(GDumb()) as method:
        stream = make_stream()
        method.begin(stream[0])
        first = [p.clone() for p in method.net.backbone.parameters()]
        method.begin(stream[1])
        weights = [(a, b) for a, b in zip(first, method.net.backbone.parameters(), strict=True) if a.ndim > 1]
        assert weights and not any(torch.equal(a, b) for a, b in weights)


@pytest.mark.parametrize("name", ["gdumb", "rm"])
def test_cutmix_weighs_both_labels_by_their_pixels(name: str) -> None:
    """Every image shows its number in all its pixels, so that the mixture tells what went into it."""
    stream = make_stream()
    method = GDumb() if name == "gdumb" else RM(copies=2)
    training = Training(passes=2, batch=12, lr=0.0, cutmix=0.7)
    mixed = 0
    with started(method, em=12, training=training) as method:
        method.begin(stream[0])
        labels = torch.tensor([0, 1] * 6)
        plain = (20 * torch.arange(1, 13)).to(torch.uint8).view(12, 1, 1, 1).expand(12, 1, 4, 4).contiguous()
        batch = next(iter(method.batches(0)))
        batch.fields["x"], batch.fields["y"] = plain, labels
        given: list[torch.Tensor] = []
        method.net.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
        for _ in range(40):
            loss = method.learn(batch).item()
            numbers = (given[-1] * 255 / 20).round().long().flatten(1).numpy() - 1
            z = log_softmax(np_logits(method.net, given[-1].flatten(1).double().numpy()))
            expected = np.mean([-z[i, labels[numbers[i]].numpy()].mean() for i in range(12)])
            assert loss == pytest.approx(float(expected), rel=1e-4)
            shares = {float((numbers[i] == i).mean()) for i in range(12)}
            mixed += min(shares) < 1
            if min(shares) < 1:
                assert len(shares - {1.0}) <= 1  # one box for the batch; an image may be mixed with itself
    assert 15 < mixed < 40


def test_rm_goes_over_the_stream_once_and_then_over_the_memory() -> None:
    stream = make_stream(per_class=20)
    with started(RM(copies=3), em=12, training=Training(passes=3, batch=8, lr=0.05)) as method:
        for task in stream:
            method.begin(task)
            before = {mark for some in in_ram(method).values() for mark in some} if len(method.memory) else set()
            seen: list[Counter[int]] = []
            for number in range(3):
                batches = []
                for batch in method.batches(number):
                    batches.append(batch)
                    method.learn(batch)
                method.end_pass(number)
                seen.append(Counter(int(m) for batch in batches for m in marks(batch.x)))
                olds = [bool(batch.old.all()) for batch in batches]
                assert all(olds) == (number > 0)
            assert seen[0] == Counter([*task.indices.tolist(), *before])
            kept = Counter(mark for some in in_ram(method).values() for mark in some)
            assert seen[1] == seen[2] == kept
            assert sum(kept.values()) == 12 and set(kept) <= {*before, *task.indices.tolist()}
            net = method.net
            method.end()
        assert method.memory.stats()["added"] == 120
        assert method.net is net  # RM goes on with its net


def test_uncertainty_is_the_share_of_votes_against_the_majority() -> None:
    stream = make_stream()
    recipe = Recipe(augment=(partial(random_crop, padding=2),))
    x = images(np.arange(50), np.arange(50) % 6, seed=4)
    with started(RM(copies=7), recipe=recipe) as method:
        assert isinstance(method, RM)
        whole(method, stream)
        method.net.train()
        start = method.views.generator.get_state()
        found = method.uncertainty(x)
        method.views.generator.set_state(start)
        votes = [np_logits(method.net, method.views.perturbed(x).flatten(1).double().numpy()) for _ in range(7)]
        tops = [vote.argmax(1).tolist() for vote in votes]
        slow = [1 - Counter(t[i] for t in tops).most_common(1)[0][1] / 7 for i in range(50)]
        near = [min(np.diff(np.sort(vote[i])[-2:])[0] for vote in votes) < 1e-4 for i in range(50)]
        assert sum(near) < 5
        for i in range(50):
            assert near[i] or float(found[i]) == pytest.approx(slow[i], abs=1e-6)
        assert len(set(found.tolist())) > 2


def test_agreement_counts_votes() -> None:
    rng = np.random.default_rng(0)
    votes = rng.integers(0, 5, (9, 40))
    slow = [Counter(column).most_common(1)[0][1] / 9 for column in votes.T.tolist()]
    np.testing.assert_allclose(agreement(torch.from_numpy(votes)).numpy(), slow, rtol=1e-6)
    assert agreement(torch.zeros(4, 3, dtype=torch.long)).tolist() == [1, 1, 1]


def test_rm_tells_the_memory_how_uncertain_each_slot_is() -> None:
    stream = make_stream()
    told: dict[int, float] = {}
    checked: list[int] = []
    with started(RM(copies=5), em=10, swap="sync", training=Training(passes=1, batch=8, lr=0.05)) as method:
        assert isinstance(method, RM)
        whole(method, Stream(stream.source, stream.tasks[:1]))
        memory, add = method.memory, method.memory.add

        def numbered(x: Any) -> torch.Tensor:
            """Another uncertainty for each sample."""
            told.update({int(mark): 0.001 * mark for mark in marks(x)})
            return torch.from_numpy(0.001 * marks(x)).float()

        def adding(x: Any, y: Any, **more: Any) -> Any:
            in_slots = marks(memory.take(memory.slots).x).tolist()
            for slot, mark in zip(memory.slots.tolist(), in_slots, strict=True):
                assert more["ram_signals"]["uncertainty"][slot].item() == pytest.approx(told[mark])
            for mark, value in zip(marks(x).tolist(), more["signals"]["uncertainty"].tolist(), strict=True):
                assert value == pytest.approx(told[mark])
            checked.extend([*in_slots, *marks(x).tolist()])
            return add(x, y, **more)

        method.uncertainty, memory.add = numbered, adding  # type: ignore[method-assign, assignment]
        method.begin(stream[1])
        learn(method, stream[1])
    assert len(checked) == 10 + 24


def test_swaps_are_done_before_rm_looks_at_the_memory() -> None:
    """What came into a slot while the net votes would have the uncertainty of what was there before."""
    stream = make_stream()
    with started(RM(copies=2), em=10, swap="async", training=Training(passes=1, batch=8, lr=0.05)) as method:
        assert isinstance(method, RM)
        whole(method, Stream(stream.source, stream.tasks[:1]))
        memory, add = method.memory, method.memory.add
        memory.flush()  # the first task is in storage
        checked: list[int] = []

        def slow(x: Any) -> torch.Tensor:
            """Takes so long that every swap that was ordered is done meanwhile."""
            memory.flush()
            return torch.from_numpy(0.001 * marks(x)).float()

        def adding(x: Any, y: Any, **more: Any) -> Any:
            now = 0.001 * marks(memory.take(memory.slots).x)
            np.testing.assert_allclose(more["ram_signals"]["uncertainty"][memory.slots], now, rtol=1e-5)
            checked.extend(memory.slots.tolist())
            return add(x, y, **more)

        method.uncertainty, memory.add = slow, adding  # type: ignore[method-assign, assignment]
        method.begin(stream[1])
        for batch in method.batches(0):
            method.learn(batch)
        old = memory.draw(10)
        memory.feedback(old, torch.zeros(10, 4))
        method.end_pass(0)
        assert len(checked) == 10 and memory.stats()["swapped"] > 0


def test_one_copy_cannot_disagree() -> None:
    with pytest.raises(ValueError, match="copies=1"):
        RM(copies=1)
