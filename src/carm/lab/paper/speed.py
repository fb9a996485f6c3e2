"""What swapping costs in training time: the same run with async and sync swaps, and with none.

The sides go on in turns of a tenth of a second, in one process with one torch thread, so that what else the machine
does meets all of them; each is compared with the run without swapping that was made in the turns between. Timed is the
training of all bundles but the first, before which there is nothing to swap. Storage is warm, cold (the store's files
are dropped from the page cache at every task), or as slow as an SD card. With `one core` the process has no second core
for its swaps: the figure without anything to hide behind. Two runs that differ in nothing still lie a few percent
apart, so the figure that matters most, CarM-100 in the background on warm storage, gets three times the repetitions.

What a swap costs does not depend on the net, so the small CNN of scale `laptop`, whose steps take 7 to 50 ms, shows the
most that it can come to. A second block has that one figure with the nets, batches and gates of the paper. Scale
`full` has the paper's settings but for the passes, of which two tell what a swap costs as well as 250.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from carm.lab.config import Config
from carm.lab.files import plain, write_json
from carm.lab.paper.cases import SWAPS, Plan
from carm.lab.paper.estimate import Estimator
from carm.lab.paper.experiments import EXPERIMENTS
from carm.lab.paper.noise import Claim, Part, Verdict
from carm.lab.paper.numbers import METHODS, SPEED
from carm.lab.paper.turns import Turn, Turns, take_turns
from carm.lab.parts import make_stream
from carm.lab.presets import preset
from carm.lab.run import run
from carm.machine import drop_cache
from carm.methods import TITLES

if TYPE_CHECKING:
    from rich.console import Console

SLOW = "20MB/s,1ms"
LIMIT = 5.5
"""Percent: the most that async swaps cost in the paper."""
GOAL = 3.0
"""Percent: what CarM-100 in the background shall cost at most where a core is free."""
_HEADLINE = ("free core", "warm")
_SIDES = (("none", "Original"), ("async", "CarM-100"), ("sync", "CarM-100"), ("async", "CarM-50"), ("sync", "CarM-50"))
_SHORT: dict[str, dict[str, Any]] = {  # a few seconds for each run
    "cifar-100": {"tasks": 4, "per_class": 20, "test_per_class": 2},
    "cifar-10": {"tasks": 5, "per_class": 200, "test_per_class": 5},
    "mnist": {"tasks": 5, "per_class": 200, "test_per_class": 5},
    "digits": {"tasks": 3, "per_class": 40, "test_per_class": 5},
}
_PASSES = {"tiny-er": 1, "gdumb": 12, "der++": 3, "rm": 12}
"""At scale laptop, so that methods whose passes are short have as long runs; others 2."""
_NETS = "cifar, the paper's nets"
_NETS_SHORT: dict[str, dict[str, Any]] = {  # some twenty steps; old and new as in the paper
    "er": {"tasks": 2, "per_class": 20, "em": 400, "passes": 2},
    "icarl": {"tasks": 2, "per_class": 20, "em": 400, "passes": 2},
    "bic": {"tasks": 2, "per_class": 20, "em": 400, "passes": 2},
    "tiny-er": {"tasks": 4, "per_class": 20, "em": 100, "passes": 1},
    "gdumb": {"tasks": 5, "per_class": 50, "em": 100, "passes": 1},
    "rm": {"tasks": 2, "per_class": 16, "em": 64, "passes": 6},
    "der++": {"tasks": 5, "per_class": 32, "em": 100, "passes": 1},
}
Round = tuple[str, str, int, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Measured:
    """A configuration that is measured under `conditions` (cores, storage), and the block of the table it is in."""

    block: str
    config: Config
    conditions: tuple[tuple[str, str], ...]

    def rounds(self, count: int, more: bool) -> Iterator[Round]:
        """Cores, storage, the number of the repetition, and the sides that are measured."""
        for number in range(count):
            for condition in self.conditions:
                yield *condition, number, _SIDES[:2] if self.block == _NETS else _sides(*condition)
        if more:
            for number in range(count, 3 * count):
                yield *_HEADLINE, number, _SIDES[:2]


@dataclass(frozen=True)
class Measurement:
    """What is measured at a scale."""

    cases: tuple[Measured, ...]
    repetitions: int
    more: bool  # whether the headline has three times as many

    @property
    def configs(self) -> list[Config]:
        return [case.config for case in self.cases]

    def rounds(self, case: Measured, repetitions: int | None = None) -> list[Round]:
        return list(case.rounds(repetitions or self.repetitions, self.more))

    def _runs(self, case: Measured, repetitions: int | None) -> int:
        return sum(len(sides) for *_, sides in self.rounds(case, repetitions))

    def runs(self, repetitions: int | None = None) -> int:
        return sum(self._runs(case, repetitions) for case in self.cases)

    def seconds(self, estimator: Estimator, repetitions: int | None = None) -> float:
        return sum(estimator.seconds(case.config) * self._runs(case, repetitions) for case in self.cases)


def _sides(cores: str, storage: str) -> tuple[tuple[str, str], ...]:
    """CarM-50, which the paper has timed, only where nothing is scarce: it orders half as much as CarM-100."""
    return _SIDES if (cores, storage) == _HEADLINE else _SIDES[:3]


def plan_of(plan: Plan) -> Measurement:
    default = {"full": ("cifar", "imagenet"), "laptop": ("cifar",), "smoke": ("digits",)}[plan.scale]
    smoke, laptop = plan.scale == "smoke", plan.scale == "laptop"
    storages = ("warm", "slow") if smoke else ("warm", "cold", "slow")
    conditions = (*(("free core", storage) for storage in storages), ("one core", "warm"))
    cases = []
    for block, data in plan.chosen(default).items():
        for method in plan.some(["er"], METHODS):
            config = plan.base(method, data[method])
            short = {} if plan.scale == "full" else _SHORT[config.data]
            passes = min(config.passes, _PASSES.get(method, 2) if laptop else 2)
            config = config.replace(passes=passes, threads=1, **short)
            cases.append(Measured(block, config, conditions))
        if laptop and block == "cifar":
            for method in plan.some(METHODS):
                config = preset(method, data[method], "full").replace(device=plan.device, threads=1, test_per_class=1)
                cases.append(Measured(_NETS, config.replace(**_NETS_SHORT[method]), (_HEADLINE,)))
    return Measurement(tuple(cases), 1 if smoke else 3, more=not smoke)


def measure(
    plan: Plan, out: Path, *, repetitions: int | None = None, root: str = "", console: Console | None = None
) -> dict[str, Any]:
    """Measure, or go on measuring, and return the record."""
    from carm.lab.paper.perform import record, require_data
    from carm.lab.sweep import Job

    wanted = plan_of(plan)
    repetitions = repetitions or wanted.repetitions
    require_data([Job(config) for config in wanted.configs], plan.scale, root)
    groups: list[dict[str, Any]] = []
    for number, case in enumerate(wanted.cases):
        config = case.config.replace(root=root)
        taken = _measured(config, wanted.rounds(case, repetitions), out / "speed" / config.key)
        groups += _groups(case.block, config, taken)
        if console is not None:
            console.print(f"[{number + 1}/{len(wanted.cases)}] speed of {config.method} on {config.data} measured")
    shape = [vars(claim) for claim in claims(groups)]
    parts = {"seeds": repetitions, "config": {}, "groups": groups, "shape": shape, "failures": []}
    return record(EXPERIMENTS["speed"], plan, out, **parts)


def _measured(config: Config, rounds: Sequence[Round], directory: Path) -> list[dict[str, Any]]:
    """Every repetition under every condition; kept in a file, so that an interrupted measurement goes on."""
    kept = directory / "speed.json"
    taken: list[dict[str, Any]] = json.loads(kept.read_text()) if kept.exists() else []
    done = {_where(one) for one in taken}
    directory.mkdir(parents=True, exist_ok=True)
    stream = None
    for cores, storage, repetition, sides in rounds:
        if (cores, storage, repetition) in done:
            continue
        stream = stream if stream is not None else make_stream(config)
        if not taken:  # what only the first run pays
            take_turns([partial(_once, config, "none", "Original", "warm", directory, stream)])
        order = sides if repetition % 2 == 0 else sides[::-1]
        with _cores(cores):
            spent = take_turns([partial(_once, config, *side, storage, directory, stream) for side in order])
        where = {"cores": cores, "storage": storage, "repetition": repetition}
        for (swap, setting), (seconds, cpu) in zip(order, spent, strict=True):
            taken.append(plain({**where, "swap": swap, "setting": setting, "seconds": seconds, "cpu": cpu}))  # as kept
        write_json(kept, taken)
    return taken


def _once(
    config: Config,
    swap: str,
    setting: str,
    storage: str,
    directory: Path,
    stream: Any,
    turns: Turns,
    number: int,
) -> tuple[float, float]:
    """Wall-clock and CPU seconds of one run, in its turns."""
    changes = {**SWAPS[setting], "swap": swap}
    if storage == "slow" and swap != "none":
        changes["throttle"] = SLOW
    out = directory / f"run-{number}"
    shutil.rmtree(out, ignore_errors=True)
    cold = partial(drop_cache, out / "memory") if storage == "cold" and swap != "none" else None
    turn = Turn(turns, number, cold)
    try:
        metrics = run(config.replace(**changes), out, every=1e9, keep_store=False, stream=stream, watch=turn)
    finally:
        shutil.rmtree(out, ignore_errors=True)
    later = list(enumerate(metrics["bundles"]))[1:]
    seconds = sum(b["seconds"] - turn.waited.get(task, 0.0) for task, b in later)
    return seconds, sum(b["cpu"] - turn.others.get(task, 0.0) for task, b in later)


@contextlib.contextmanager
def _cores(name: str) -> Iterator[None]:
    """Threads that are started in here have one core between them, or all."""
    if name != "one core" or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# -- what came of it ---------------------------------------------------------------------------------------------------


def _groups(block: str, config: Config, taken: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each side and condition, by how many percent time grew against the run without swaps beside it."""
    none = {_where(one): one for one in taken if one["swap"] == "none"}
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in taken:
        if one["swap"] == "none":
            continue
        key = (one["cores"], one["storage"], one["swap"], one["setting"])
        group = found.setdefault(
            key,
            {
                "block": block,
                "method": config.method,
                **dict(zip(("cores", "storage", "swap", "setting"), key, strict=True)),
                "wall": [],
                "cpu": [],
                "none": [],
            },
        )
        beside = none[_where(one)]
        group["wall"].append(round(100 * (one["seconds"] / beside["seconds"] - 1), 1))
        group["cpu"].append(round(100 * (one["cpu"] / beside["cpu"] - 1), 1))
        group["none"].append(round(beside["seconds"], 3))
    return list(found.values())


def _where(one: dict[str, Any]) -> tuple[str, str, int]:
    return one["cores"], one["storage"], one["repetition"]


def claims(groups: Sequence[dict[str, Any]]) -> list[Claim]:
    made: list[Claim] = []
    for block in dict.fromkeys(g["block"] for g in groups):
        mine = [g for g in groups if g["block"] == block]
        places = dict.fromkeys((g["cores"], g["storage"], g["setting"]) for g in mine)
        for cores, storage, setting in places:
            here = [g for g in mine if (g["cores"], g["storage"], g["setting"]) == (cores, storage, setting)]
            head = (cores, storage, setting) == (*_HEADLINE, "CarM-100")
            for limit in (GOAL, LIMIT) if head else (LIMIT,):
                text = (
                    f"{block}, {cores}, {storage} storage: {setting} in the background costs at most {limit} % of time"
                )
                made += Claim.of(text, [_within(g, limit) for g in here if g["swap"] == "async"])
        slow = [g for g in mine if (g["cores"], g["storage"], g["setting"]) == ("free core", "slow", "CarM-100")]
        sync = {g["method"]: g["wall"] for g in slow if g["swap"] == "sync"}
        parts = [_above(g, sync[g["method"]], g["wall"]) for g in slow if g["swap"] == "async" and g["method"] in sync]
        made += Claim.of(f"{block}, slow storage: waiting for swaps costs more than swapping in the background", parts)
    return made


def _within(group: dict[str, Any], limit: float) -> Part:
    middle = median(group["wall"])
    verdict: Verdict = (
        "holds" if middle <= limit else "within noise" if min(group["wall"]) <= limit else "does not hold"
    )
    return Part(group["method"], verdict, _title(group, _spread(group["wall"])))


def _above(group: dict[str, Any], a: Sequence[float], b: Sequence[float]) -> Part:
    """`a` is above `b`: by more than noise where no repetition of one lies among those of the other."""
    verdict: Verdict = "holds" if min(a) > max(b) else "does not hold" if max(a) < min(b) else "within noise"
    return Part(group["method"], verdict, _title(group, f"{median(a) - median(b):+.0f} %"))


def _title(group: dict[str, Any], text: str) -> str:
    return f"{TITLES[group['method']]} {text}"


def _spread(values: Sequence[float]) -> str:
    middle = f"{median(values):+.1f} %"
    return middle if len(values) == 1 else f"{middle} ({min(values):+.1f} to {max(values):+.1f})"


def sheets(one: dict[str, Any]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Rows: conditions and sides; columns: methods; wall-clock, then CPU time."""
    made = []
    for block in dict.fromkeys(g["block"] for g in one["groups"]):
        mine = [g for g in one["groups"] if g["block"] == block]
        methods = list(dict.fromkeys(g["method"] for g in mine))
        for name, title in (("wall", "wall-clock time"), ("cpu", "CPU time")):
            rows = []
            for where in dict.fromkeys(_label(g) for g in mine):
                cells = {g["method"]: _spread(g[name]) for g in mine if _label(g) == where}
                rows.append([where, *(cells.get(m, "–") for m in methods)])
            if name == "wall":
                for swap in ("async", "sync"):
                    known = SPEED[block if block in SPEED else "cifar"][swap]
                    rows.append([f"  paper, {swap}, CarM-50", *(f"{known[m].mean:+.1f} %" for m in methods)])
            heads = ["", *(TITLES[m] for m in methods)]
            made.append((f"{block}: growth of {title} against no swapping, median (least to most)", heads, rows))
    return made


def _label(group: dict[str, Any]) -> str:
    return f"{group['cores']}, {group['storage']}: {group['swap']} {group['setting']}"
