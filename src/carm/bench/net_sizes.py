"""How much `carm bench nets` does, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NetSizes:
    """Steps, repetitions and batches of the measurements of nets."""

    repetitions: int = 9
    warm_up: int = 2  # steps before anything is timed: buffers grow, kernels are chosen
    # profile: steps of each loop, and the tasks that the memory has taken in before
    steps: tuple[tuple[str, int], ...] = (("resnet32", 24), ("cnn", 60), ("mlp", 200))
    tasks: int = 5
    # channels-last and compile: nets, and samples a step
    layouts: tuple[tuple[str, int], ...] = (
        ("cnn", 128),
        ("resnet32", 32),
        ("resnet18-reduced", 16),
        ("resnet18", 16),
        ("densenet100", 8),
    )
    compiled: tuple[tuple[str, int], ...] = (("mlp", 32), ("cnn", 64), ("resnet32", 64))
    # decode
    photographs: int = 256
    training_steps: int = 6
    # augment
    batch: int = 128
    against: tuple[str, ...] = ("resnet32", "cnn")


FULL = NetSizes()
QUICK = NetSizes(
    repetitions=3,
    warm_up=1,
    steps=(("resnet32", 4), ("cnn", 10), ("mlp", 20)),
    tasks=2,
    layouts=(("cnn", 32), ("resnet32", 8), ("resnet18-reduced", 4), ("resnet18", 2), ("densenet100", 2)),
    compiled=(("mlp", 32), ("cnn", 32)),
    photographs=64,
    training_steps=3,
    batch=32,
)


@dataclass(frozen=True)
class Setting:
    """What a benchmark gets: how much, a folder for its files, and the data folder."""

    sizes: NetSizes
    directory: Path
    data: Path | None = None  # None: the one that CARM_DATA names
