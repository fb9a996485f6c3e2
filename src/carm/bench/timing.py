"""Alternating the sides of a comparison, and summing up what came out."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

Measure = Callable[[], float]
"""Runs one repetition of one side and returns its seconds per item."""


def alternate(sides: Mapping[str, Measure], repetitions: int, *, seed: int = 0) -> dict[str, list[float]]:
    """Run every side once per repetition, in a new random order each time; returns the sides' seconds per item.

    Whatever drifts (clock, neighbours, a disk's burst allowance) then touches all sides alike, and no side is always
    the one that comes after a certain other.
    """
    rng = np.random.default_rng(seed)
    names = list(sides)
    out: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repetitions):
        for i in rng.permutation(len(names)):
            out[names[i]].append(sides[names[i]]())
    return out


def better(measured: Mapping[str, list[float]], names: list[str]) -> str:
    """The one of `names` with the lowest median: a baseline may be run in several ways, and its best one counts."""
    return min(names, key=lambda name: float(np.median(measured[name])))


@dataclass(frozen=True)
class Spread:
    """A sample of numbers in short."""

    median: float
    low: float
    high: float
    quartile1: float
    quartile3: float

    @staticmethod
    def of(values: list[float]) -> Spread:
        q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75])
        return Spread(float(median), min(values), max(values), float(q1), float(q3))


def ratios(numerator: list[float], denominator: list[float]) -> list[float]:
    """Ratios of what was measured in the same repetition."""
    return [a / b for a, b in zip(numerator, denominator, strict=True)]


def median_interval(values: list[float], *, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Where the median lies, with this confidence (bootstrap)."""
    rng = np.random.default_rng(seed)
    drawn = np.median(rng.choice(values, (4000, len(values))), axis=1)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def cpu_seconds() -> float:
    """Processor time of this process and of the children that its main thread has started, running or not.

    `getrusage(RUSAGE_CHILDREN)` counts a child only after it has ended, so a helper process would be free of charge
    until then; the kernel has a clock for every process, which counts at once.
    """
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The clock's number for a process, as clock_getcpuclockid(3) makes it.
    running = sum(time.clock_gettime((~int(child) << 3) | 2) for child in children)
    return time.process_time() + ended.ru_utime + ended.ru_stime + running
