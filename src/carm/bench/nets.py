"""All measurements of nets and of what surrounds them in a training step, in one run: `carm bench nets`.

    net_profile     what share of a run is spent in the net (the run itself: net_loop)
    net_steps       the memory layout, compiling, augmentation
    net_decode      photographs

Each runs in a process of its own, with OMP_WAIT_POLICY=PASSIVE as the documentation advises, and with nothing that was
compiled before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from carm.bench import net_decode, net_profile, net_steps
from carm.bench.command import carry_out, in_fresh_process, named, present
from carm.bench.net_sizes import FULL, QUICK, NetSizes, Setting
from carm.bench.report import Row
from carm.machine import machine

BENCHMARKS: dict[str, Callable[[Setting], list[Row]]] = {
    "profile": net_profile.profile,
    "channels-last": net_steps.channels_last,
    "compile": net_steps.compiled,
    "decode": net_decode.decode,
    "augment": net_steps.augment,
}


def _apart(benchmark: Callable[[Setting], list[Row]], setting: Setting) -> list[Row]:
    environment = {"OMP_WAIT_POLICY": "PASSIVE", "TORCHINDUCTOR_CACHE_DIR": str(setting.directory / "compiled")}
    return in_fresh_process(benchmark, setting, environment=environment)


def measure(
    names: list[str], sizes: NetSizes, data: Path | None, directory: Path, progress: Console
) -> tuple[list[Row], list[str]]:
    """The rows of these benchmarks, and the names of those that failed; files go into a new folder of `directory`."""
    with tempfile.TemporaryDirectory(prefix="carm-bench-", dir=directory) as folder:
        setting = Setting(sizes, Path(folder), data)
        return carry_out({name: partial(_apart, BENCHMARKS[name], setting) for name in names}, progress)


def main(*, json_path: Path | None, quick: bool, only: list[str] | None, data: Path | None = None) -> int:
    """Measure, print a table, and write the results to `json_path`; returns 0, or 1 if a benchmark failed.

    `data` is the folder with CIFAR-100, MNIST and photographs, None: the one that CARM_DATA names. Made-up images take
    the place of what is not there.
    """
    names = named(only, BENCHMARKS)
    if data is not None and not data.is_dir():
        raise ValueError(f"data={str(data)!r}: there is no such folder")
    place = Path.cwd()
    progress = Console(stderr=True, highlight=False, markup=False)
    circumstances = machine(place)
    rows, failed = measure(names, QUICK if quick else FULL, data, place, progress)
    present(rows, circumstances, json_path)
    return 1 if failed else 0
