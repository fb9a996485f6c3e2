"""All measurements of the memory, in one run: `carm bench memory`."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from carm.bench import append, draw, swap_path, training
from carm.bench.report import Row, file_system, machine, notes, table, write_json
from carm.bench.sizes import FULL, QUICK, Sizes
from carm.bench.workspace import Workspace
from carm.memory.errors import CarmError

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
    "train-throttled": training.throttled,
}


def chosen(only: list[str] | None) -> list[str]:
    """The benchmarks that `only` names, each by its name or the beginning of it, in the usual order."""
    if not only:
        return list(BENCHMARKS)
    for name in only:
        if not any(known.startswith(name) for known in BENCHMARKS):
            raise ValueError(f"only={name!r}: there is no such benchmark; there are {', '.join(BENCHMARKS)}")
    return [known for known in BENCHMARKS if known.startswith(tuple(only))]


def measure(names: list[str], sizes: Sizes, directory: Path, progress: Console) -> tuple[list[Row], list[str]]:
    """The rows of these benchmarks, and the names of those that failed; files go into a new folder of `directory`."""
    rows: list[Row] = []
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="carm-bench-", dir=directory) as folder:
        work = Workspace(Path(folder), sizes)
        for name in names:
            begun = time.perf_counter()
            progress.print(f"measuring {name} ...", end=" ")
            try:
                rows += BENCHMARKS[name](work)
            except (OSError, ValueError, CarmError) as error:  # such as a kernel without Linux AIO: the others can run
                progress.print(f"failed: {error}")
                failed.append(name)
            else:
                progress.print(f"{time.perf_counter() - begun:.0f} s")
    return rows, failed


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
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    console.print(table(rows))
    for note in notes(rows):
        console.print(note)
    judged = [row for row in rows if row.target is not None]
    reached = sum(row.reached is True for row in judged)
    console.print(f"{reached} of {len(judged)} targets reached. A ratio is the median of the repetitions' ratios.")
    if json_path is not None:
        write_json(json_path, rows, circumstances)
        console.print(f"written to {json_path}")
    return 1 if failed else 0
