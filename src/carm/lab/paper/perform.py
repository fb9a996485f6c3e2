"""Carry out an experiment, and make the record of it that is kept."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carm.data.registry import locate
from carm.lab.code import digest
from carm.lab.paper.cases import Case, Plan
from carm.lab.paper.experiments import EXPERIMENTS, Experiment
from carm.lab.paper.groups import Group, gather
from carm.lab.paper.shape import claims
from carm.lab.sweep import Job, Results, sweep
from carm.machine import machine

if TYPE_CHECKING:
    from rich.console import Console

Record = dict[str, Any]
_PLACES = ("--data", "--out", "--results", "--docs")
LARGEST = 200_000  # bytes of a result file: they are kept with the sources


def cases_of(experiment: Experiment, plan: Plan, seeds: int | None = None) -> list[tuple[Case, Sequence[int]]]:
    """The cases, and the seeds that each is run with."""
    return [(case, range(experiment.count(case, plan.scale, seeds))) for case in experiment.cases(plan)]


def jobs_of(cases: Sequence[tuple[Case, Sequence[int]]], root: str = "") -> list[Job]:
    """The runs, the first seed of every case first: an interrupted experiment has something of everything."""
    most = max((len(seeds) for _, seeds in cases), default=0)
    return [case.job(seeds[i], root) for i in range(most) for case, seeds in cases if i < len(seeds)]


def require_data(jobs: Sequence[Job], scale: str, root: str = "") -> None:
    """Complain before the first run about data that the last one would miss."""
    for name in dict.fromkeys(job.config.data for job in jobs):
        try:
            locate(name, root or None)
        except FileNotFoundError as error:
            smaller = {
                "full": "--scale laptop needs only MNIST and CIFAR, --scale smoke no files at all",
                "laptop": "--scale smoke needs no files at all; --only mnist or --only cifar runs a part",
            }.get(scale, "")
            raise FileNotFoundError(f"{error}. {smaller}".rstrip()) from None


def perform(
    name: str,
    plan: Plan,
    out: Path,
    *,
    seeds: int | None = None,
    jobs: int = 1,
    root: str = "",
    console: Console | None = None,
    results: Results | None = None,
) -> Record:
    """Run an experiment (what is finished in `out` is not run again) and return its record.

    `results` are those of a sweep that has been made already, by `perform_all`.
    """
    if name == "speed":
        from carm.lab.paper.speed import measure

        return measure(plan, out, repetitions=seeds, root=root, console=console)
    experiment = EXPERIMENTS[name]
    cases = cases_of(experiment, plan, seeds)
    if not cases:
        raise ValueError(f"{name} has nothing of what --only and --methods ask for")
    wanted = jobs_of(cases, root)
    require_data(wanted, plan.scale, root)
    if results is None:
        results = sweep(wanted, out, jobs=jobs, console=console)
    codes = Counter(results[job.key].get("code", "unknown") for job in wanted if job.key in results)
    other = codes.total() - codes[digest()]
    if other and console is not None:
        console.print(
            f"{other} of {codes.total()} runs of {name} were made by another version of the code; to make them again, "
            f"remove them from {out}",
            soft_wrap=True,
        )
    common, groups = gather(name, cases, results, root)
    titles = {job.key: job.title for job in wanted}
    return record(
        experiment,
        plan,
        out,
        code=dict(codes),
        seeds=max(len(s) for _, s in cases),
        config=common,
        groups=[g.as_dict() for g in groups],
        shape=[vars(claim) for claim in claims(name, groups)],
        failures=[f"{titles[key]}: {why}" for key, why in results.failures.items() if key in titles],
    )


def perform_all(
    names: Sequence[str],
    plan: Plan,
    out: Path,
    *,
    seeds: int | None = None,
    jobs: int = 1,
    root: str = "",
    console: Console | None = None,
) -> Iterator[Record]:
    """Several experiments as one sweep, so that the progress is that of all; the runs in the order of the names."""
    planned = {n: cases_of(EXPERIMENTS[n], plan, seeds) for n in names if n != "speed"}
    wanted = [job for cases in planned.values() for job in jobs_of(cases, root)]
    require_data(wanted, plan.scale, root)
    results = sweep(wanted, out, jobs=jobs, console=console)
    for name in names:
        if name == "speed" or planned[name]:
            yield perform(name, plan, out, seeds=seeds, root=root, console=console, results=results)


def record(experiment: Experiment, plan: Plan, out: Path, **parts: Any) -> Record:
    """With the circumstances."""
    found = machine(out if out.exists() else Path.cwd())
    return {
        "name": experiment.name,
        "title": experiment.title,
        "note": experiment.note,
        "scale": plan.scale,
        "date": found.pop("date"),
        "command": command(found.pop("command")),
        "machine": found,
        **parts,
    }


def command(text: str) -> str:
    """A command without the directories that it was given, which are of this machine only."""
    kept, skip = [], False
    for word in shlex.split(text):
        if not skip and word not in _PLACES and word.partition("=")[0] not in _PLACES:
            kept.append(word)
        skip = word in _PLACES
    return shlex.join(kept)


def groups_of(one: Record) -> list[Group]:
    return [Group.from_dict(group) for group in one["groups"]]


def save(one: Record, directory: Path, *, part: str = "") -> Path:
    """Write DIRECTORY/<name>.json (of a part, <name>-<part>.json), not larger than what belongs with sources."""
    text = json.dumps(one, separators=(",", ":"), allow_nan=False)
    text = (
        text.replace('},{"block"', '},\n{"block"').replace('},{"seed"', '},\n {"seed"') + "\n"
    )  # lines that diff well
    if len(text) > LARGEST:
        raise ValueError(f"the results of {one['name']} take {len(text)} bytes, more than {LARGEST}")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{one['name']}{'-' + part if part else ''}.json"
    path.write_text(text)
    return path
