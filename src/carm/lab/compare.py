"""Runs side by side: those that differ only in the seed are one group, with means and standard deviations.

runs, unfinished = load_runs([Path("runs")])
for one in group(runs):
    print(one.title, one.label, one.mean("ci"), one.sd("ci"))
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from carm.lab.config import Config
from carm.methods import TITLES

Metrics = dict[str, Any]

# -- finding runs ------------------------------------------------------------------------------------------------------


def load_runs(paths: Iterable[Path]) -> tuple[list[Metrics], list[Path]]:
    """The metrics of the finished runs in or below `paths`, and the directories of those that are not finished.

    Each metrics dict also says where it comes from, as "directory". A run that two paths lead to is counted once.
    """
    finished: list[Metrics] = []
    unfinished: list[Path] = []
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path} is not there; give the directory of a run, or a folder that has runs in it")
        for directory in _run_directories(path.parent if path.name == "metrics.json" else path):
            if directory.resolve() in seen:
                continue
            seen.add(directory.resolve())
            metrics = _metrics(directory / "metrics.json")
            if metrics is None:
                unfinished.append(directory)
            else:
                finished.append(metrics | {"directory": str(directory)})
    return finished, unfinished


def _run_directories(top: Path) -> list[Path]:
    found = []
    for where, below, files in os.walk(top):
        below.sort()
        if any(name in files and _is_ours(Path(where) / name) for name in ("config.json", "metrics.json")):
            found.append(Path(where))
            below[:] = [name for name in below if name not in ("memory", "events")]  # the run's own
    return found


def _is_ours(path: Path) -> bool:
    """Other programs call their files config.json and metrics.json too."""
    try:
        record = json.loads(path.read_text())
    except ValueError:
        return False
    if isinstance(record, dict) and isinstance(record.get("config"), dict):
        record = record["config"]
    return isinstance(record, dict) and {"method", "data", "seed"} <= record.keys()


def _metrics(path: Path) -> Metrics | None:
    if not path.exists():
        return None
    try:
        record = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}): remove it, and finish the run by --resume") from error
    missing = {"config", "final", "matrix", "incremental"} - (record.keys() if isinstance(record, dict) else set())
    if missing:
        raise ValueError(f"{path} is not the record of a run: it has no entry {sorted(missing)[0]!r}")
    metrics: Metrics = record
    return metrics


# -- what is measured --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number that every run has."""

    name: str
    title: str
    text: str  # what it means, for those who read the table for the first time
    of: Callable[[Metrics], float | None]
    write: Callable[[float], Callable[[float], str]]  # for a mean: how it, and what belongs to it, is written
    best: Callable[[list[float]], float] | None = None  # max or min, if one is better


def _percent(_: float) -> Callable[[float], str]:
    return lambda x: f"{x:.1f}"


def _seconds(mean: float) -> Callable[[float], str]:
    digits = 3 if mean < 0.1 else 2 if mean < 10 else 1 if mean < 100 else 0
    return lambda x: f"{x:,.{digits}f}"


def _count(_: float) -> Callable[[float], str]:
    return lambda x: f"{x:,.0f}"


def _final(kind: str, what: str) -> Callable[[Metrics], float | None]:
    def of(run: Metrics) -> float | None:
        value: float | None = run["final"][kind][what]
        return value

    return of


def _seconds_per_bundle(run: Metrics) -> float | None:
    bundles = run.get("bundles") or []
    return fmean(b["seconds"] for b in bundles) if bundles else None


def _top5(run: Metrics) -> float | None:
    """None where it says nothing: among ten classes nearly every answer is one of the best five in the end."""
    return run["final"].get("top5") if class_count(run) > 10 else None


def class_count(run: Metrics) -> int:
    return len(run.get("classes") or []) or sum(len(t["classes"]) for t in run.get("tasks") or [])


MEASURES: tuple[Measure, ...] = (
    Measure(
        name="ci",
        title="CI accuracy %",
        text="after the last task, on all classes, every class a candidate (class-incremental)",
        of=_final("ci", "accuracy"),
        write=_percent,
        best=max,
    ),
    Measure(
        name="forgetting",
        title="forgetting",
        text="CI accuracy on each task at its best less that at the end, mean over all tasks but the last",
        of=_final("ci", "forgetting"),
        write=_percent,
        best=min,
    ),
    Measure(
        name="ti",
        title="TI accuracy %",
        text="as CI accuracy, only the classes of the sample's own task being candidates (task-incremental)",
        of=_final("ti", "accuracy"),
        write=_percent,
        best=max,
    ),
    Measure(
        name="average",
        title="average %",
        text="average incremental accuracy: mean over the tasks of the CI accuracy after each, on the classes seen",
        of=_final("ci", "average"),
        write=_percent,
        best=max,
    ),
    Measure(
        name="top5",
        title="top-5 %",
        text="as CI accuracy, right if the class is among the best five",
        of=_top5,
        write=_percent,
        best=max,
    ),
    Measure(
        name="seconds",
        title="s/bundle",
        text="seconds of training per task",
        of=_seconds_per_bundle,
        write=_seconds,
    ),
    Measure(
        name="swaps",
        title="swaps",
        text="samples in RAM that were replaced from storage, over the whole run",
        of=lambda run: (run.get("memory") or {}).get("swapped"),
        write=_count,
    ),
)
_BY_NAME = {m.name: m for m in MEASURES}


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are there: in a record, NaN is null."""
    there = [v for v in values if v is not None and math.isfinite(v)]
    return fmean(there) if there else None


def sd(values: Iterable[float | None]) -> float | None:
    """The sample standard deviation (n - 1); None for fewer than two."""
    there = [v for v in values if v is not None and math.isfinite(v)]
    return stdev(there) if len(there) > 1 else None


# -- groups ------------------------------------------------------------------------------------------------------------

# What runs of one group may differ in. A sweep gives its runs as many threads as --jobs leaves for each, so if another
# --jobs has gone on with it, some seeds had one thread and some two.
_NOT_ASKED = ("seed", "root", "threads")
_MANY = 4  # entries in a label
_UNUSED_IN_ORIGINAL = ("ratio", "gate", "storage", "throttle")
_IN_SETTING = ("method", "ratio")  # said by the method and setting columns


@dataclass(frozen=True, kw_only=True)
class Group:
    """Runs that differ only in the seed."""

    method: str
    setting: str  # Original, CarM-50, CarM-100, ...
    differing: dict[str, Any]  # this group's values of the entries in which the groups differ, apart from the above
    apart: dict[str, Any]  # of these, what it takes to tell it from the other groups of its method and data
    config: dict[str, Any]  # the first run's
    runs: list[Metrics]

    @property
    def title(self) -> str:
        """The method, as the papers write it."""
        return method_title(self.method)

    @property
    def label(self) -> str:
        """What tells it from the other groups of its method and data: "CarM-50, em=100"."""
        return ", ".join([self.setting, *([named(self.apart)] if self.apart else [])])

    @property
    def data(self) -> str:
        return str(self.config["data"])

    @property
    def seeds(self) -> list[int]:
        return sorted(run["config"].get("seed", 0) for run in self.runs)

    @property
    def n(self) -> int:
        return len(self.runs)

    def values(self, name: str) -> list[float | None]:
        """Of a measure, one per run."""
        return [_BY_NAME[name].of(run) for run in self.runs]

    def mean(self, name: str) -> float | None:
        return mean(self.values(name))

    def sd(self, name: str) -> float | None:
        return sd(self.values(name))

    def cell(self, name: str) -> str:
        """ "93.1 ± 1.1"; "93.1" for a single run; empty if no run has the measure."""
        middle, spread = self.mean(name), self.sd(name)
        if middle is None:
            return ""
        write = _BY_NAME[name].write(middle)
        return (
            write(middle) if spread is None or (middle == 0 and spread == 0) else f"{write(middle)} ± {write(spread)}"
        )

    def curve(self, kind: str = "ci") -> list[tuple[float | None, float | None]]:
        """Mean and standard deviation of the accuracy on all classes seen, after each task."""
        rows = [run["incremental"].get(kind) or [] for run in self.runs]
        return [(mean(at), sd(at)) for at in zip(*rows, strict=False)]

    def matrix(self, kind: str = "ci") -> list[list[float | None]]:
        """Mean accuracy on task j (column) after task t (row)."""
        matrices = [run["matrix"].get(kind) or [] for run in self.runs]
        return [[mean(cell) for cell in zip(*rows, strict=False)] for rows in zip(*matrices, strict=False)]


def group(runs: Sequence[Metrics]) -> list[Group]:
    """The runs in groups, ordered by method, data and setting."""
    members: dict[str, list[Metrics]] = {}
    configs: dict[str, dict[str, Any]] = {}
    for run in runs:
        config = entries(run)
        key = json.dumps(config, sort_keys=True)
        members.setdefault(key, []).append(run)
        configs[key] = config
    differing = _differing(list(configs.values()))
    groups = []
    for key, config in configs.items():
        rivals = [c for c in configs.values() if all(c[k] == config[k] for k in ("method", "data"))]
        told = {name: value for name, value in config.items() if (name, value) != ("swap", "none")}
        groups.append(
            Group(
                method=config["method"],
                setting=_setting(config),
                differing={name: told[name] for name in differing if name in told},
                apart=_apart(told, _needed(rivals)),
                config=_defaults() | members[key][0]["config"],
                runs=sorted(members[key], key=lambda run: run["config"].get("seed", 0)),
            )
        )
    return sorted(groups, key=_order)


def measures(groups: Sequence[Group]) -> list[Measure]:
    """Those that at least one group has."""
    return [m for m in MEASURES if any(g.mean(m.name) is not None for g in groups)]


def repeated(groups: Sequence[Group]) -> list[str]:
    """A sentence for each group in which a seed occurs more than once: then ± is not the spread over seeds alone."""
    out = []
    for one in groups:
        twice = sorted({s for s in one.seeds if one.seeds.count(s) > 1})
        if twice:
            named = ", ".join(map(str, twice))
            out.append(f"{one.title}, {one.label}: more than one run of seed {named}; all are counted")
    return out


def method_title(method: str) -> str:
    """As the papers write it; of a method of one's own, FILE.py:Class, the class."""
    return TITLES.get(method) or method.rsplit(":", 1)[-1]


def named(entries: dict[str, Any]) -> str:
    """Entries of a configuration: "em=100, lr=0.1"."""
    return ", ".join(f"{name.removeprefix('options.')}={show(value)}" for name, value in entries.items())


def show(value: Any) -> str:
    """A value of a configuration, short."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return "/".join(show(v) for v in value) or "none"
    if isinstance(value, dict):
        return " ".join(f"{k}={show(v)}" for k, v in value.items()) or "none"
    return str(value) if value != "" else "default"


@cache
def _defaults() -> dict[str, Any]:
    """Of entries that a run has not recorded, because there was no such entry when it was made."""
    return Config().as_dict()


def entries(run: Metrics) -> dict[str, Any]:
    """What the run asked for, by name: the method's own options are entries too, and what has no effect is left out."""
    config = _defaults() | run["config"]
    options = {f"options.{k}": v for k, v in (config.pop("options") or {}).items()}
    unused = _UNUSED_IN_ORIGINAL if config["swap"] == "none" else ()
    return {k: v for k, v in config.items() if k not in _NOT_ASKED and k not in unused} | options


def _differing(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The entries in which configurations that have them differ, apart from those the setting tells."""
    names = list(dict.fromkeys(name for config in configs for name in config))
    out = []
    for name in names:
        where = [c for c in configs if name in c and not (name == "swap" and c["swap"] == "none")]
        values = {json.dumps(c[name], sort_keys=True) for c in where}
        some_lack_it = name.startswith("options.") and len(where) < len(configs)
        if name not in _IN_SETTING and (len(values) > 1 or some_lack_it):
            out.append(name)
    return out


def _needed(configs: Sequence[dict[str, Any]]) -> list[str]:
    """The entries that tell these configurations apart: all in which they differ, but of many only what it takes.

    Of many, most go with others (one protocol has another batch, rate and schedule than the next), and a label of
    fifteen entries cannot be read. The later ones are spared first: net, memory and swaps say more than rates.
    """
    names = _differing(configs)

    def known_by(some: Sequence[str]) -> int:
        return len({json.dumps([_setting(c), *(c.get(name) for name in some)], sort_keys=True) for c in configs})

    if len(names) > _MANY:
        every = known_by(names)
        for name in reversed(names):
            fewer = [one for one in names if one != name]
            if known_by(fewer) == every:
                names = fewer
    return names


def _apart(config: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Where many are needed, those go without saying that are as they always are."""
    found = {name: config[name] for name in names if name in config}
    if len(names) <= _MANY:
        return found
    usual = _defaults()
    return {name: value for name, value in found.items() if name not in usual or value != usual[name]}


def _setting(config: dict[str, Any]) -> str:
    """As Config.setting, which a method of one's own may not be at hand for."""
    if config["swap"] == "none":
        return "Original"
    ratio = config["ratio"]
    return f"CarM-{ratio}" if isinstance(ratio, str) else f"CarM-{round(100 * ratio)}"


def _order(one: Group) -> tuple[Any, ...]:
    known = list(TITLES)
    place = known.index(one.method) if one.method in known else len(known)
    ratio = one.config["ratio"]
    share = -1.0 if one.setting == "Original" else 2.0 if isinstance(ratio, str) else float(ratio)
    rest = [(0, v, "") if isinstance(v, (int, float)) else (1, 0, show(v)) for v in one.differing.values()]
    return place, one.method, one.data, share, rest
