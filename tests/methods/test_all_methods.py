"""What holds for every method: who is trained, in which mode, with which images, and what the gate hears of it."""

from __future__ import annotations

import copy
import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from small import ALL, SIDE, Spy, in_ram, learn, make_stream, started, whole

from carm import methods, nets
from carm.data import EncodedSplit, Source, Stream, Task, split_by_class
from carm.data.augment import Recipe, photographs, random_crop, random_flip
from carm.data.views import Views
from carm.memory.gate import Entropy
from carm.memory.memory import Memory
from carm.methods import Method, Training

OPTIONS: dict[str, dict[str, Any]] = {"rm": {"copies": 3}}


def make(name: str) -> Method:
    return methods.make(name, **OPTIONS.get(name, {}))


@pytest.mark.parametrize("name", ALL)
def test_everything_is_in_the_optimizer(name: str) -> None:
    stream = make_stream()
    with started(make(name)) as method:
        for task in stream:
            method.begin(task)
            listed = {id(p) for group in method.optimizer.param_groups for p in group["params"]}
            assert listed == {id(p) for p in method.net.parameters()}
            assert method.net.classes == (6 if method.head == "fixed" else method.seen)
            before = {n: p.detach().clone() for n, p in method.net.named_parameters()}
            learn(method, task)
            still = [n for n, p in method.net.named_parameters() if torch.equal(p, before[n])]
            # TinyER's loss leaves the heads of tasks alone of which no old sample was drawn
            assert not still or name == "tiny-er"
            assert not any(n.startswith("backbone") for n in still)
            method.end()


@pytest.mark.parametrize("name", ALL)
def test_momentum_ends_with_the_task(name: str) -> None:
    stream = make_stream()
    training = Training(passes=2, batch=8, old_batch=8 if name in ("tiny-er", "der++") else 0, lr=0.01, momentum=0.9)
    with started(make(name), training=training) as method:
        method.begin(stream[0])
        learn(method, stream[0])
        assert method.optimizer.state
        method.end()
        method.begin(stream[1])
        assert not method.optimizer.state


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("swap", ["none", "sync"])
def test_every_old_sample_is_judged_once(name: str, swap: str) -> None:
    stream = make_stream()
    with started(make(name), swap=swap, ratio=0.5) as method:
        for notes in whole(method, stream):
            for batch, drawn, judged in zip(notes.batches, notes.drawn, notes.judged, strict=True):
                old = {int(i) for part in (batch, *drawn) for i in part.ids if i >= 0}
                heard = [int(i) for part in judged for i in part.ids if i >= 0]
                assert sorted(heard) == sorted(old)
        assert method.memory.stats()["dropped"]["stale"] == 0


@pytest.mark.parametrize("name", ALL)
def test_the_net_learns_in_train_mode_and_is_tested_in_eval_mode(name: str) -> None:
    stream = make_stream()
    with started(make(name)) as method:
        for task in stream:
            method.begin(task)
            notes = learn(method, task)
            assert notes.modes and all(notes.modes)
            method.end()
            method.before_evaluation()
            method.net.train()
            method.scores(stream.source.test.fetch([0]).array)
            assert not method.net.training


@pytest.mark.parametrize("name", ALL)
def test_scores_in_the_middle_of_a_pass_leave_training_alone(name: str) -> None:
    stream = make_stream()
    modes: list[bool] = []
    with started(make(name)) as method:
        method.begin(stream[0])
        method.net.register_forward_pre_hook(lambda net, _: modes.append(net.training))
        for batch in method.batches(0):
            method.scores(stream.source.test.fetch([0, 1]).array)
            modes.clear()
            method.learn(batch)
            assert modes == [True]


@pytest.mark.parametrize("name", ["er", "tiny-er"])
def test_batch_by_batch_as_many_old_as_new_unless_told_otherwise(name: str) -> None:
    stream = make_stream()
    method = make(name)
    method.level = "batch"
    with started(method, em=20, training=Training(passes=1, batch=10, lr=0.01)) as method:
        counts = []
        for task in stream:
            method.begin(task)
            counts += [(len(batch), int(batch.old.sum())) for batch in learn(method, task).batches]
            method.end()
    assert counts == [(10, 0), (20, 10), (8, 4), *[(20, 10), (20, 10), (8, 4)] * 2]


@pytest.mark.parametrize("name", ["icarl", "bic"])
def test_the_teacher_does_not_learn(name: str) -> None:
    stream = make_stream()
    with started(make(name), em=40) as method:
        for task in stream.tasks[:2]:
            last = {n: one.clone() for n, one in method.net.state_dict().items()}
            method.begin(task)
            learn(method, task)
            method.end()
        teacher = method.teacher  # type: ignore[attr-defined]
        assert not teacher.training
        assert not any(p.requires_grad for p in teacher.parameters())
        assert all(torch.equal(last[n], one) for n, one in teacher.state_dict().items())


@pytest.mark.parametrize("name", ALL)
def test_test_images_are_never_augmented(name: str) -> None:
    stream = make_stream()
    recipe = Recipe(augment=(partial(random_crop, padding=2), random_flip))
    with started(make(name), recipe=recipe) as method:
        assert isinstance(method.views, Spy)
        whole(method, stream)
        drawn = method.views.generator.get_state()
        method.views.trained.clear()
        method.before_evaluation()
        x = stream.source.test.fetch(np.arange(12)).array
        first, second = method.scores(x), method.scores(x)
        assert torch.equal(first, second)
        assert not method.views.trained
        assert torch.equal(method.views.generator.get_state(), drawn)  # nothing random happened
        expected = torch.from_numpy(x).float() / 255
        assert torch.allclose(method.views.test(x), expected)


@pytest.mark.parametrize("name", ALL)
def test_training_images_are_augmented(name: str) -> None:
    stream = make_stream()
    recipe = Recipe(augment=(partial(random_crop, padding=2),))
    given: list[torch.Tensor] = []
    with started(make(name), recipe=recipe) as method:
        method.begin(stream[0])
        method.net.register_forward_pre_hook(lambda net, inputs: given.append(inputs[0]) if net.training else None)
        learn(method, stream[0])
        framed = torch.cat(given).flatten(1).eq(0).sum(1)  # a shifted image has a black edge
        assert (framed >= SIDE).float().mean() > 0.5


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("swap", ["none", "sync"])
def test_blurry_streams(name: str, swap: str) -> None:
    stream = make_stream(per_class=20, blurry=0.3)
    with started(make(name), em=18, swap=swap) as method:
        whole(method, stream)
        kept = in_ram(method)
        assert sorted(kept) == list(range(6))
        assert sum(map(len, kept.values())) == method.memory.capacity
        if name not in ("tiny-er", "der++"):  # a reservoir is balanced on average only
            sizes = [len(one) for one in kept.values()]
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", ALL)
def test_few_samples_and_few_slots(name: str) -> None:
    """One sample of a class, fewer slots than classes, and classes that come again."""
    stream = make_stream(per_class=6)
    train = stream.source.train
    parts = [[0, 6, 7, 8], [12, 18, 19, 1], [24, 30, 31, 13, 2]]
    classes = [(0, 1), (0, 2, 3), (0, 2, 4, 5)]
    tasks = tuple(Task(i, classes[i], train, np.array(part)) for i, part in enumerate(parts))
    with started(make(name), em=3, swap="sync") as method:
        for notes in whole(method, Stream(stream.source, tasks)):
            assert notes.batches
        assert len(method.memory) == 3
        method.before_evaluation()
        scores = method.scores(stream.source.test.fetch(np.arange(8)).array)
        assert scores.shape == (8, 6) and not scores.isnan().any()
        assert all(torch.isfinite(p).all() for p in method.net.parameters())


@pytest.mark.parametrize("name", ALL)
def test_a_state_dict_continues_exactly(name: str, tmp_path: Path) -> None:
    """From the end of a pass in the middle of a task, with everything that a checkpoint is allowed to hold."""
    stream = make_stream()
    recipe = Recipe(augment=(partial(random_crop, padding=1), random_flip))
    passes = 3
    batch = 8 if name in ("tiny-er", "der++") else 0
    training = Training(passes=passes, batch=8, old_batch=batch, lr=0.05, momentum=0.5, cutmix=0.5)
    saved, ends = io.BytesIO(), []
    with started(make(name), em=20, swap="sync", recipe=recipe, training=training, storage=tmp_path) as method:
        whole(method, Stream(stream.source, stream.tasks[:1]))
        method.begin(stream[1])
        for number in range(passes):
            for some in method.batches(number):
                method.learn(some)
            method.end_pass(number)
            if number == 0:
                torch.save({"method": method.state_dict(), "memory": method.memory.state_dict()}, saved)
        method.end()
        method.begin(stream[2])
        learn(method, stream[2])
        ends.append((copy.deepcopy(method.net.state_dict()), method.views.generator.get_state()))
    with started(make(name), em=20, swap="sync", recipe=recipe, training=training, storage=tmp_path) as method:
        saved.seek(0)
        state = torch.load(saved, weights_only=True)
        method.memory.load_state_dict(state["memory"])
        method.load_state_dict(state["method"], stream[1])
        for number in range(1, passes):
            for some in method.batches(number):
                method.learn(some)
            method.end_pass(number)
        method.end()
        method.begin(stream[2])
        learn(method, stream[2])
        ends.append((method.net.state_dict(), method.views.generator.get_state()))
    assert ends[0][0].keys() == ends[1][0].keys()
    assert all(torch.equal(one, ends[1][0][key]) for key, one in ends[0][0].items())
    assert torch.equal(ends[0][1], ends[1][1])


def photo_stream(folder: Path) -> Stream:
    """Encoded photographs of different sizes, some of them grey, one broken."""
    rng = np.random.default_rng(0)
    names, y = [], []
    for label in range(4):
        for number in range(8):
            size = (12 + 3 * number, 10 + 2 * label)
            colour = np.full((*size, 3), 60 * label, np.uint8) + rng.integers(0, 40, (*size, 3), np.uint8)
            name = f"{label}-{number}.png"
            image = Image.fromarray(colour)
            (image.convert("L") if number == 3 else image).save(folder / name)
            names.append(name)
            y.append(label)
    (folder / names[9]).write_bytes(b"no image")
    split = EncodedSplit(folder, tuple(names), np.array(y))
    return split_by_class(Source("photographs", tuple("abcd"), split, split), tasks=2, order="natural")


@pytest.mark.parametrize("name", ALL)
def test_photographs_stay_encoded(name: str, tmp_path: Path) -> None:
    stream = photo_stream(tmp_path)
    recipe = photographs((0.5, 0.5, 0.5), (0.2, 0.2, 0.2), size=8)
    method = make(name)
    decoder = stream.source.train.decoder  # type: ignore[attr-defined]

    def net(number: int) -> nets.Net:
        some = 4 if method.head == "fixed" else 0
        return nets.build("cnn", in_shape=(3, 8, 8), classes=some, head=method.head, seed=number, width=4)

    with Memory(
        method.slots(20), storage=tmp_path / "s", swap="sync", select=method.selection(), gate=Entropy(0.5)
    ) as memory:
        training = Training(passes=2, batch=6, old_batch=6 if name in ("tiny-er", "der++") else 0, lr=0.01)
        views = Views(recipe, decoder=decoder, channels_last=True)
        method.start(memory=memory, make_net=net, views=views, training=training)
        for task in stream:
            method.begin(task)
            learn(method, task)
            torch.save(method.state_dict(), io.BytesIO())
            method.end()
            method.before_evaluation()
            scores = method.scores(stream.source.test.fetch(np.arange(32)).encoded)
            assert scores.shape == (31, 2 * task.number + 2)
        memory.flush()
        assert memory.schema is not None and not memory.schema.fixed
        stored = memory.store.read(memory.store.ids)  # type: ignore[union-attr]
        assert len(stored["y"]) == 31 - (2 if name == "bic" else 0)  # two were held out for validation
        for blob in stored["x"]:
            assert bytes(blob)[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", ALL)
def test_batch_norm_bears_a_last_batch_of_one_sample(name: str) -> None:
    stream = make_stream(tasks=1, per_task=2, per_class=9)  # 18 samples
    training = Training(passes=2, batch=17, old_batch=1 if name == "der++" else 0, lr=0.01)
    with started(make(name), em=17, training=training) as method:
        fixed = method.head == "fixed"

        def net(number: int) -> nets.Net:
            torch.manual_seed(number)
            layers = (torch.nn.Flatten(), torch.nn.Linear(SIDE * SIDE, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
            return nets.wrap(torch.nn.Sequential(*layers), 8, classes=2 * fixed, head=method.head, seed=number)

        method._make = net
        method.new_net(0)
        sizes = [len(batch) for notes in whole(method, stream) for batch in notes.batches]
        assert 1 in sizes or name in ("bic", "gdumb", "tiny-er")
        method.net.train()
        x = method.views.train(stream.source.test.fetch([0]).array)
        with pytest.raises(ValueError, match="more than 1 value"):
            method.net(x)
        assert torch.isfinite(method.forward(x)).all()
        assert method.net.training


@pytest.mark.parametrize("name", ["icarl", "bic"])
def test_a_resumed_teacher_lies_in_memory_like_the_first(name: str) -> None:
    """Convolutions sum in another order where it does not, and the last bits differ."""
    stream = make_stream()
    found = []
    for resumed in (False, True):
        with started(make(name), em=20) as method:
            method.views.channels_last = True
            method._make = lambda number: nets.wrap(torch.nn.Conv2d(1, 4, 3), 16, seed=number)
            method.new_net(0)
            whole(method, Stream(stream.source, stream.tasks[:1]))
            method.begin(stream[1])
            if resumed:
                method.load_state_dict(method.state_dict(), stream[1])
            found.append([p.stride() for p in method.teacher.parameters()])  # type: ignore[attr-defined]
            assert found[-1][0] == (9, 1, 3, 1)
    assert found[0] == found[1]


def test_levels_are_checked() -> None:
    for name in ALL:
        cls = methods.find(name)
        if "batch" not in cls.levels:
            with started(make(name)) as method, pytest.raises(ValueError, match="level='batch'"):
                method.start(
                    memory=method.memory, make_net=method._make, views=method.views, training=Training(), level="batch"
                )


def test_a_task_of_broken_images_is_named(tmp_path: Path) -> None:
    stream = photo_stream(tmp_path)
    for file in tmp_path.glob("[23]-*.png"):
        file.write_bytes(b"broken")
    with started(methods.make("er")) as method:
        method.begin(stream[0])
        method.end()
        with pytest.raises(ValueError, match="task 2 has 16 samples, and none can be decoded"):
            method.begin(stream[1])
