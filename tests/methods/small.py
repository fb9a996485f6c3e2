"""A stream so small that every sample can be followed: its first two pixels are its number."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from carm import methods, nets
from carm.data import ArraySplit, Source, Stream, Task, split_by_class
from carm.data.augment import Recipe
from carm.data.views import Views
from carm.memory.batch import Batch
from carm.memory.gate import Entropy
from carm.memory.memory import Memory
from carm.methods import Method, Training

SIDE = 4
ALL = methods.names()
TASK_LEVEL = tuple(name for name in ALL if name != "tiny-er")


def images(marks: Any, labels: Any, seed: int = 0) -> np.ndarray:
    """Images of SIDE x SIDE: bright where their class says so, and numbered."""
    marks, labels = np.asarray(marks), np.asarray(labels)
    x = np.random.default_rng(seed).integers(0, 60, (len(marks), 1, SIDE, SIDE)).astype(np.uint8)
    x.reshape(len(marks), -1)[np.arange(len(marks)), 2 + labels] += 190
    x[:, 0, 0, 0], x[:, 0, 0, 1] = marks % 256, marks // 256
    return x


def marks(x: Any) -> np.ndarray:
    """The numbers of samples."""
    x = np.asarray(x).reshape(len(x), -1).astype(np.int64)
    return x[:, 0] + 256 * x[:, 1]


def make_stream(tasks: int = 3, per_task: int = 2, per_class: int = 12, blurry: float = 0.0, seed: int = 0) -> Stream:
    classes = tasks * per_task
    y = np.repeat(np.arange(classes), per_class)
    train = ArraySplit(images(np.arange(len(y)), y), y)
    y = np.repeat(np.arange(classes), 4)
    test = ArraySplit(images(5000 + np.arange(len(y)), y, 1), y)
    source = Source("numbered", tuple(f"class {i}" for i in range(classes)), train, test)
    return split_by_class(source, tasks=tasks, order="natural", blurry=blurry, seed=seed)


class Spy(Views):
    """Notes which samples were trained on, and which were only looked at."""

    def __init__(self, recipe: Recipe | None = None, **options: Any) -> None:
        super().__init__(recipe if recipe is not None else Recipe(), **options)
        self.trained: list[np.ndarray] = []
        self.looked_at: list[np.ndarray] = []

    def train(self, x: Any) -> Tensor:
        self.trained.append(marks(x))
        return super().train(x)

    def test(self, x: Any) -> Tensor:
        self.looked_at.append(marks(x))
        return super().test(x)


@dataclass
class Notes:
    """What happened in each step."""

    batches: list[Batch] = field(default_factory=list)
    drawn: list[list[Batch]] = field(default_factory=list)
    judged: list[list[Batch]] = field(default_factory=list)
    modes: list[bool] = field(default_factory=list)


@contextmanager
def started(
    method: Method,
    *,
    em: int = 12,
    swap: str = "none",
    ratio: float = 1.0,
    recipe: Recipe | None = None,
    training: Training | None = None,
    classes: int = 6,
    storage: Path | None = None,
    hidden: tuple[int, ...] = (9, 7),
) -> Iterator[Method]:
    """A method that is ready for its first task, with an MLP of random weights."""

    def make(number: int) -> nets.Net:
        some = classes if method.head == "fixed" else 0
        shape = (1, SIDE, SIDE)
        return nets.build("mlp", in_shape=shape, classes=some, head=method.head, seed=number, hidden=hidden)

    with tempfile.TemporaryDirectory(dir=_quick()) as folder:
        where = None if swap == "none" else storage if storage is not None else Path(folder) / "store"
        with Memory(
            method.slots(em),
            storage=where,
            swap="sync" if swap == "none" else swap,
            select=method.selection(),
            gate=Entropy(ratio),
        ) as memory:
            few = Training(passes=2, batch=8, old_batch=8 if method.name in ("tiny-er", "der++") else 0, lr=0.05)
            method.start(memory=memory, make_net=make, views=Spy(recipe), training=training or few)
            yield method


def _quick() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def learn(method: Method, task: Task, notes: Notes | None = None) -> Notes:
    """Stages T and R of one task, after `begin`; notes what went through."""
    notes = notes if notes is not None else Notes()
    memory, draw, feedback = method.memory, method.memory.draw, method.memory.feedback

    def drawing(n: int) -> Batch:
        out = draw(n)
        notes.drawn[-1].append(out)
        return out

    def judging(batch: Batch, *args: Any, **more: Any) -> int:
        notes.judged[-1].append(batch)
        return feedback(batch, *args, **more)

    memory.feedback = judging  # type: ignore[method-assign]
    try:
        for number in range(method.training.passes):
            for batch in method.batches(number):
                notes.batches.append(batch)
                notes.drawn.append([])
                notes.judged.append([])
                notes.modes.append(method.net.training)
                memory.draw = drawing  # type: ignore[method-assign]
                method.learn(batch)
                memory.draw = draw  # type: ignore[method-assign]
            method.end_pass(number)
    finally:
        memory.draw, memory.feedback = draw, feedback  # type: ignore[method-assign]
    return notes


def whole(method: Method, stream: Stream) -> list[Notes]:
    """All tasks."""
    out = []
    for task in stream:
        method.begin(task)
        out.append(learn(method, task))
        method.end()
        method.before_evaluation()
        method.scores(stream.source.test.fetch([0, 1]).array)
    return out


# -- the same in numpy -------------------------------------------------------------------------------------------------


def pixels(x: Any) -> np.ndarray:
    """What the net is given of unaugmented images."""
    return np.asarray(x).astype(np.float64).reshape(len(x), -1) / 255


def np_features(net: nets.Net, x: np.ndarray) -> np.ndarray:
    for layer in net.backbone.layers:  # type: ignore[union-attr, operator]
        if isinstance(layer, torch.nn.Linear):
            weight, bias = layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()
            x = np.maximum(x @ weight.T + bias, 0)
    return x


def np_logits(net: nets.Net, x: np.ndarray) -> np.ndarray:
    head: Any = net.head
    weight, bias = head.weight.detach().double().numpy(), head.bias.detach().double().numpy()
    return np_features(net, x) @ weight.T + bias


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


def np_bce(z: np.ndarray, targets: np.ndarray) -> float:
    p = sigmoid(z)
    return float(-(targets * np.log(p) + (1 - targets) * np.log(1 - p)).mean())


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def np_ce(z: np.ndarray, y: np.ndarray) -> float:
    return float(-log_softmax(z)[np.arange(len(y)), y].mean())


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def in_ram(method: Method) -> dict[int, list[int]]:
    """The samples of each class in RAM, by number."""
    batch = method.memory.take(method.memory.slots)
    out: dict[int, list[int]] = {}
    for mark, label in zip(marks(batch.x), batch.y.tolist(), strict=True):
        out.setdefault(label, []).append(int(mark))
    return {label: sorted(found) for label, found in sorted(out.items())}
