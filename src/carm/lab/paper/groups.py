"""What came of the runs: a group for each case, small enough to be kept as a result, with the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import Any

from carm.lab.paper import numbers
from carm.lab.paper.cases import Case
from carm.lab.paper.numbers import Number
from carm.lab.sweep import Results

_NOT_TOLD = ("seed", "root", "device", "threads", "path", "method")


@dataclass
class Group:
    """The runs of one case. `runs` has one entry per seed; `config` only what is not the same in all groups."""

    block: str
    method: str
    setting: str
    at: str
    x: float | None
    data: str
    metric: str
    runs: list[dict[str, Any]]
    config: dict[str, Any] = field(default_factory=dict)
    paper: dict[str, list[float | None]] = field(default_factory=dict)

    def values(self, name: str = "accuracy") -> list[float]:
        """One value per seed: accuracy and forgetting by the paper's measure, or any entry of the runs."""
        if name == "accuracy":
            name = self.metric
        elif name == "forgetting":
            name = "forgetting_ti" if self.metric == "ti" else "forgetting_ci"
        return [run[name] for run in self.runs if run.get(name) is not None]

    def curves(self) -> list[list[float]]:
        return [run["curve"] for run in self.runs]

    def mean(self, name: str = "accuracy") -> float:
        values = self.values(name)
        return fmean(values) if values else math.nan

    def sd(self, name: str = "accuracy") -> float | None:
        values = self.values(name)
        return stdev(values) if len(values) > 1 else None

    def ours(self, name: str = "accuracy") -> Number:
        return Number(self.mean(name), self.sd(name))

    def theirs(self, name: str = "accuracy") -> Number | None:
        if name not in self.paper:
            return None
        mean, sd = self.paper[name]
        assert mean is not None
        return Number(mean, sd)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> Group:
        return cls(**record)


def gather(
    experiment: str, cases: Iterable[tuple[Case, Sequence[int]]], results: Results, root: str = ""
) -> tuple[dict[str, Any], list[Group]]:
    """What all runs have in common of their configuration, and the groups."""
    groups, configs = [], []
    for case, seeds in cases:
        runs = []
        for seed in seeds:
            metrics = results.get(case.job(seed, root).key)
            if metrics is not None:
                runs.append(_brief(metrics, case, seed))
        if runs:
            paper = {k: [v.mean, v.sd] for k, v in published(experiment, case).items()}
            place = (case.block, case.method, case.setting, case.at, case.x, case.config.data, case.metric)
            groups.append(Group(*place, runs=runs, paper=paper))
            configs.append(case.config.as_dict())
    common = {k: v for k, v in configs[0].items() if all(c[k] == v for c in configs)} if configs else {}
    for group, config in zip(groups, configs, strict=True):
        group.config = {k: v for k, v in config.items() if k not in common and k not in _NOT_TOLD}
    return {k: v for k, v in common.items() if k not in _NOT_TOLD}, groups


def _brief(metrics: dict[str, Any], case: Case, seed: int) -> dict[str, Any]:
    """The few numbers of a run that are kept."""
    final, memory = metrics["final"], metrics["memory"]
    curve = metrics["incremental"]["ci5" if case.metric == "top5" else case.metric]
    brief = {
        "seed": seed,
        "ci": final["ci"]["accuracy"],
        "ti": final["ti"]["accuracy"],
        "forgetting_ci": final["ci"]["forgetting"],
        "forgetting_ti": final["ti"]["forgetting"],
        "curve": [round(a, 2) for a in curve],
        "seconds": metrics["seconds"],
        "cpu": metrics["cpu_seconds"],
        "swapped": memory["swapped"],
    }
    if case.metric == "top5":
        brief["top5"] = final["top5"]
    if case.cores or case.memory:
        brief["peak_mb"] = metrics["worker"].get("peak_rss", 0) / 1e6
        brief["bundle"] = metrics["seconds"] / max(len(metrics["bundles"]), 1)
    return {k: round(v, 2) if isinstance(v, float) else v for k, v in brief.items()}


def published(experiment: str, case: Case) -> dict[str, Number]:
    """The paper's numbers for a case. A block that the paper does not have (MNIST, digits) stands beside its CIFAR
    numbers: other data, so only the shape can be compared."""
    block = case.block if case.block in numbers.TABLE1 else "cifar"
    method, setting = case.method, case.setting
    if experiment in ("table1", "incremental"):
        return {name: rows[setting][method] for name, rows in numbers.TABLE1[block].items()}
    if experiment == "policies":
        return {"accuracy": numbers.POLICIES[block][case.at][method]} if block in numbers.POLICIES else {}
    if experiment == "rm-da":
        return {name: row[setting] for name, row in numbers.RM_DA.items()}
    if experiment == "device":
        return {"accuracy": numbers.JETSON[setting][method]}
    if experiment in ("reference", "ceiling") and setting == "Original" and case.x is not None:
        number = numbers.REFERENCE.get((method, int(case.x)))
        odd = experiment == "ceiling" and method == "er" and case.x == 200  # another learning rate
        return {} if number is None or odd else {"accuracy": number}
    return {}
