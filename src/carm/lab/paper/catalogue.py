"""What there is: the experiments with what they run, what they need, and how long they take here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carm.data.registry import locate
from carm.lab.paper.cases import Plan
from carm.lab.paper.experiments import EXPERIMENTS
from carm.lab.paper.perform import cases_of, jobs_of
from carm.lab.progress import duration

if TYPE_CHECKING:
    from rich.console import Console


def show_list(plan: Plan, console: Console, *, root: str = "", seeds: int | None = None, jobs: int = 1) -> None:
    """A table of the experiments. The times come from timing a few steps of every net on this machine."""
    from rich.table import Table

    from carm.lab.paper.estimate import Estimator
    from carm.lab.paper.speed import plan_of

    planned = {name: jobs_of(cases_of(one, plan, seeds)) for name, one in EXPERIMENTS.items()}
    needed = sorted({job.config.data for jobs_ in planned.values() for job in jobs_})
    found = {name: _found(name, root) for name in needed}
    estimator = Estimator(jobs=jobs)
    table = Table(title=f"The paper's experiments at scale {plan.scale}", title_justify="left")
    table.add_column("name", no_wrap=True)
    for head in ("what it runs", "data"):
        table.add_column(head, overflow="fold")
    for head in ("runs", "new", "here, about"):
        table.add_column(head, justify="right", no_wrap=True)
    seen: set[str] = set()
    total = 0.0
    for name, experiment in EXPERIMENTS.items():
        if name == "speed":
            measured = plan_of(plan)
            names, runs, new = sorted({c.data for c in measured.configs}), measured.runs(seeds), measured.runs(seeds)
            seconds = measured.seconds(Estimator(threads=1), seeds)  # one run after another, each with one thread
        else:
            wanted = {job.key: job for job in planned[name]}
            fresh = [job for key, job in wanted.items() if key not in seen]
            seen |= wanted.keys()
            names, runs, new = sorted({job.config.data for job in wanted.values()}), len(wanted), len(fresh)
            seconds = sum(estimator.seconds(job.config) for job in fresh) / jobs
        total += seconds
        data = ", ".join(n if found.get(n, True) else f"{n} (not found)" for n in names)
        table.add_row(name, experiment.title, data, str(runs), str(new), duration(seconds) if new else "shared")
    console.print(table)
    console.print(
        f"Together about {duration(total)} on this machine with --jobs {jobs}. Runs that an experiment shares with one "
        "above it are made once, if both have the same --out.",
        soft_wrap=True,
    )
    missing = [n for n, there in found.items() if not there]
    if missing:
        try:
            locate(missing[0], root or None)
        except FileNotFoundError as error:
            console.print(str(error), soft_wrap=True)


def _found(name: str, root: str) -> bool:
    try:
        locate(name, root or None)
    except FileNotFoundError:
        return False
    return True
