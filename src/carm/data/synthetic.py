"""Made-up images with any number of classes and samples, any shape and difficulty: for tests and demonstrations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from carm.data.source import ArraySplit, Source

_GRID = 4


def _interpolation(length: int, points: int) -> NDArray[np.float32]:
    """The matrix that stretches `points` values linearly over `length` pixels."""
    place = np.linspace(0, points - 1, length)
    weights: NDArray[np.float32] = np.maximum(0, 1 - np.abs(place[:, None] - np.arange(points))).astype(np.float32)
    return weights


def synthetic(
    name: str,
    *,
    classes: int = 10,
    samples: int = 100,
    test_samples: int = 20,
    shape: Sequence[int] = (3, 32, 32),
    difficulty: float = 0.3,
    seed: int = 0,
) -> Source:
    """Smooth coloured patterns, one for each class, with variations of the same kind for each sample.

    A pattern is a coarse grid of random values, stretched to the image; so what there is to learn does not depend on
    the image size. `difficulty` runs from 0 (classes lie 12 standard deviations apart: no confusion) to 1 (nothing
    tells them apart); the distance falls linearly. A sample depends on `seed`, its class, its split and its number
    only: asking for more samples or classes leaves the others as they were.
    """
    for key, value in (("classes", classes), ("samples", samples), ("test_samples", test_samples)):
        if value < 1:
            raise ValueError(f"{key} is {value}; it must be at least 1")
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"shape is {tuple(shape)}; it must be (channels, height, width)")
    if not 0 <= difficulty <= 1:
        raise ValueError(f"difficulty is {difficulty}; it must be between 0 (easy) and 1 (hopeless)")
    channels, height, width = shape
    grid = (channels, min(_GRID, height), min(_GRID, width))
    rows, columns = _interpolation(height, grid[1]), _interpolation(width, grid[2])
    # Two random patterns lie sqrt(2 k) apart in k values. Scale pattern and variation so that half of that is `apart`
    # standard deviations, and so that the variance of a pixel is always the same.
    apart = 6 * (1 - difficulty)
    ratio = 2 * apart / np.sqrt(2 * np.prod(grid))
    strength, variation = ratio / np.hypot(ratio, 1), 1 / np.hypot(ratio, 1)
    splits = []
    for part, count in enumerate((samples, test_samples)):
        x = np.empty((classes, count, *shape), np.uint8)
        for label in range(classes):
            pattern = np.random.default_rng([seed, label]).standard_normal(grid, np.float32)
            noise = np.random.default_rng([seed, label, 1 + part]).standard_normal((count, *grid), np.float32)
            values = np.float32(strength) * pattern + np.float32(variation) * noise
            pixels = rows @ values @ columns.T
            x[label] = (127.5 + 48 * pixels).clip(0, 255)
        splits.append(ArraySplit(x.reshape(-1, *shape), np.repeat(np.arange(classes), count)))
    return Source(name, tuple(f"class {i}" for i in range(classes)), *splits)
