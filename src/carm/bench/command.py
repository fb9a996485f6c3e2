"""What the benchmark commands have in common: which measurements, one after the other, and what is shown at the end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from carm.bench.report import Row, notes, table, write_json
from carm.memory.errors import CarmError

Out = TypeVar("Out")


def named(only: Sequence[str] | None, known: Iterable[str]) -> list[str]:
    """The benchmarks that `only` names, each by its name or the beginning of it, in the usual order."""
    names = list(known)
    if not only:
        return names
    for name in only:
        if not any(one.startswith(name) for one in names):
            raise ValueError(f"only={name!r}: there is no such benchmark; there are {', '.join(names)}")
    return [one for one in names if one.startswith(tuple(only))]


def carry_out(benchmarks: Mapping[str, Callable[[], Iterable[Row]]], progress: Console) -> tuple[list[Row], list[str]]:
    """The rows of these benchmarks, and the names of those that failed."""
    rows: list[Row] = []
    failed: list[str] = []
    for name, benchmark in benchmarks.items():
        begun = time.perf_counter()
        progress.print(f"measuring {name} ...", end=" ")
        try:
            rows += benchmark()
        except (OSError, ValueError, ImportError, RuntimeError, CarmError) as error:
            # such as a kernel without Linux AIO, or a machine without a compiler: the others can run
            progress.print(f"failed: {error}")
            failed.append(name)
        else:
            progress.print(f"{time.perf_counter() - begun:.0f} s")
    return rows, failed


def present(rows: Sequence[Row], circumstances: dict[str, Any], json_path: Path | None) -> None:
    """Print a table, and write the results to `json_path`."""
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


def in_fresh_process(function: Callable[..., Out], *arguments: Any, environment: Mapping[str, str]) -> Out:
    """`function(*arguments)` in a process of its own: what OpenMP and the compiler read from `environment` they read
    when they are loaded.
    """
    with _environment(environment), ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
