"""All measurements of the memory, in one run: `carm bench memory`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rich.console import Console

from carm.bench import append, draw, swap_path, training
from carm.bench.command import carry_out, named, present
from carm.bench.report import Row
from carm.bench.sizes import FULL, QUICK, Sizes
from carm.bench.workspace import Workspace
from carm.machine import file_system, machine

BENCHMARKS: dict[str, Callable[[Workspace], Iterator[Row]]] = {
    "swap-cold-3k": swap_path.cold_3k,
    "swap-cold-110k": swap_path.cold_110k,
    "swap-warm": swap_path.warm,
    "draw-64": draw.draw_64,
    "draw-256": draw.draw_256,
    "add": append.add,
    "open-1m": append.open_many,
    "append": append.append,
    "train-warm": training.warm,
    "train-cold": training.cold,
    "train-full": training.full,
    "train-throttled": training.throttled,
}


def chosen(only: list[str] | None) -> list[str]:
    """The benchmarks that `only` names, each by its name or the beginning of it, in the usual order."""
    return named(only, BENCHMARKS)


def measure(names: list[str], sizes: Sizes, directory: Path, progress: Console) -> tuple[list[Row], list[str]]:
    """The rows of these benchmarks, and the names of those that failed; files go into a new folder of `directory`."""
    with tempfile.TemporaryDirectory(prefix="carm-bench-", dir=directory) as folder:
        work = Workspace(Path(folder), sizes)
        return carry_out({name: partial(BENCHMARKS[name], work) for name in names}, progress)


def main(*, json_path: Path | None, quick: bool, only: list[str] | None, directory: Path | None = None) -> int:
    """Measure, print a table, and write the results to `json_path`; returns 0, or 1 if a benchmark failed.

    Up to 2 GB of files are written to `directory` (the current one if None), which should be on the device that stores
    will be on, and removed again.
    """
    names = chosen(only)
    place = directory if directory is not None else Path.cwd()
    progress = Console(stderr=True, highlight=False, markup=False)
    kind = file_system(place)
    if kind in ("tmpfs", "ramfs", "unknown"):
        progress.print(f"warning: {place} is on {kind}; what is said about storage holds only for a real device")
    circumstances = machine(place)
    rows, failed = measure(names, QUICK if quick else FULL, place, progress)
    present(rows, circumstances, json_path)
    return 1 if failed else 0
