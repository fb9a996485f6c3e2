"""Short runs on real data sets: MNIST, CIFAR, photographs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from carm.lab import Config, run
from carm.lab.presets import preset

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif("CARM_DATA" not in os.environ, reason="CARM_DATA names no folder with data sets"),
]


def accuracy(config: Config, out: Path) -> float:
    return float(run(config.replace(threads=1), out, every=60.0)["final"]["ci"]["accuracy"])


@pytest.mark.slow
def test_swapping_helps_er_on_mnist(tmp_path: Path) -> None:
    base = preset("er", "mnist").replace(per_class=150, passes=12, em=50, swap="sync", test_per_class=200)
    original = accuracy(base.replace(swap="none"), tmp_path / "original")
    assert accuracy(base, tmp_path / "carm") > original + 4  # 17 points at laptop scale


@pytest.mark.slow
@pytest.mark.parametrize("method", ["tiny-er", "gdumb"])
def test_cifar(method: str, tmp_path: Path) -> None:
    data = "cifar-100" if method == "tiny-er" else "cifar-10"
    small = {"per_class": 20, "test_per_class": 10, "em": 40, "tasks": 5}
    metrics = run(preset(method, data).replace(swap="async", passes=1, threads=1, **small), tmp_path / "r")
    assert [len(row) for row in metrics["matrix"]["ci"]] == [1, 2, 3, 4, 5]
    assert metrics["memory"]["stored_samples"] == 20 * len(metrics["classes"])
    assert metrics["final"]["ti"]["accuracy"] > metrics["final"]["ci"]["accuracy"]  # fewer candidates


@pytest.mark.slow
def test_photographs_stay_encoded(tmp_path: Path) -> None:
    """JPEGs of any size in both tiers, decoded when a mini-batch is made."""
    config = Config(
        method="er", data="folder", path="photos", size=32, tasks=4, em=60, net="cnn", width=4, batch=32, lr=0.5,
        swap="sync", per_class=10, test_per_class=2, threads=1,
    )  # fmt: skip
    metrics = run(config, tmp_path / "r")
    held = metrics["memory"]
    assert held["stored_samples"] == 400 and held["swapped"] > 0
    assert held["stored_bytes"] / held["stored_samples"] > 3 * 32 * 32  # files, not the small arrays made of them
