"""`carm paper`: the paper's tables and figures, and checks of our own."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carm.cli.common import DAMAGED, INTERRUPTED, OK, Commands, command, console

if TYPE_CHECKING:
    from carm.lab.paper.cases import Plan

_SCALES = ("full", "laptop", "smoke")


def register(commands: Commands) -> None:
    paper = command(
        commands.add_parser,
        "paper",
        """
        Run the paper's experiments again and show our numbers beside the paper's, with a line for each of its
        claims: whether it holds, does not hold, or is within noise. Absolute accuracies can only be compared at
        --scale full, which has the paper's settings and wants GPUs and ImageNet; laptop is real data on two CPU
        cores; smoke takes seconds and only shows that everything works. Runs are kept in --out: the same command
        goes on after an interruption, and runs nothing twice. Experiments share runs: after table1, incremental
        costs nothing.
        """,
        """
        carm paper list                                 what there is, how long it takes here
        carm paper reference --data ~/data              the methods against published numbers
        carm paper table1 --only mnist --jobs 2         a part of Table 1, two runs at a time
        carm paper policies --methods er bic --seeds 5  other methods, more seeds
        carm paper table1 --results results             also write results/table1.json
        carm paper render                               docs/results.md and figures from results/
        carm paper all --scale smoke                    every experiment, tiny
        """,
        summary="run the paper's experiments again, and compare",
    )
    paper.add_argument("name", metavar="NAME", help="list, render, all, or an experiment: `carm paper list` has them")
    paper.add_argument("--scale", choices=_SCALES, default="laptop", help="full, laptop (default) or smoke")
    paper.add_argument("--data", metavar="DIR", default="", help="data folder (default: the one that CARM_DATA names)")
    paper.add_argument("--seeds", metavar="N", type=int, help="runs of every case (speed: repetitions)")
    paper.add_argument("--jobs", metavar="N", type=int, default=1, help="runs at a time (default: 1)")
    paper.add_argument("--out", metavar="DIR", type=Path, help="where runs are kept (default: runs/paper/SCALE)")
    paper.add_argument("--results", metavar="DIR", type=Path, help="also write DIR/NAME.json; of render: read them")
    paper.add_argument("--methods", metavar="METHOD", nargs="+", default=[], help="only these methods")
    paper.add_argument("--only", metavar="WHAT", nargs="+", default=[], help="only these blocks (mnist) or methods")
    paper.add_argument("--device", metavar="DEVICE", default="cpu", help="cpu (default), cuda, cuda:1, ...")
    paper.add_argument("--docs", metavar="DIR", type=Path, default=Path("docs"), help="render: where to write")
    paper.set_defaults(run=_paper)


def _paper(arguments: argparse.Namespace) -> int:
    experiments: Any = importlib.import_module("carm.lab.paper.experiments")
    name = arguments.name
    if name == "list":
        return _list(arguments)
    if name == "render":
        render: Any = importlib.import_module("carm.lab.paper.render")
        for path in render.render(arguments.results or Path("results"), arguments.docs):
            console().print(f"wrote {path}")
        return OK
    if name != "all" and name not in experiments.NAMES:
        from difflib import get_close_matches

        near = get_close_matches(name, experiments.NAMES, 1, 0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"there is no experiment {name!r}.{hint} There are: {', '.join(experiments.NAMES)}; all; list and render"
        )
    plan = _plan(arguments)
    try:
        failed = _perform(experiments.NAMES if name == "all" else (name,), plan, arguments)
    except KeyboardInterrupt as stopped:
        console(stderr=True).print(f"carm: {stopped}" if str(stopped) else "carm: interrupted", soft_wrap=True)
        return INTERRUPTED
    return DAMAGED if failed else OK


def _plan(arguments: argparse.Namespace) -> Plan:
    """--only takes blocks and methods, whichever they are."""
    from carm import methods
    from carm.lab.paper.cases import BLOCKS, Plan

    blocks = [what for what in arguments.only if what in BLOCKS[arguments.scale]]
    try:
        named = [methods.canonical(what) for what in [*arguments.methods, *(set(arguments.only) - set(blocks))]]
    except ValueError as error:
        raise ValueError(f"{error}. --only also knows: {', '.join(BLOCKS[arguments.scale])}") from None
    if arguments.seeds is not None and arguments.seeds < 1:
        raise ValueError(f"--seeds {arguments.seeds}: must be at least 1")
    if arguments.jobs < 1:
        raise ValueError(f"--jobs {arguments.jobs}: must be at least 1")
    if own := [name for name in named if name not in methods.names()]:
        raise ValueError(f"{own[0]}: the experiments have the paper's methods only; run one of your own by `carm run`")
    ordered = tuple(m for m in methods.names() if m in named)
    return Plan(arguments.scale, tuple(blocks), ordered, arguments.device)


def _perform(names: Sequence[str], plan: Plan, arguments: argparse.Namespace) -> bool:
    """Run, show, write; returns whether runs failed."""
    from carm.lab.paper.perform import perform, perform_all, save
    from carm.lab.paper.show import show

    out = arguments.out or Path("runs") / "paper" / plan.scale
    root = str(Path(arguments.data).expanduser().resolve()) if arguments.data else ""
    how = {"seeds": arguments.seeds, "jobs": arguments.jobs, "root": root, "console": console(stderr=True)}
    made = [perform(names[0], plan, out, **how)] if len(names) == 1 else perform_all(names, plan, out, **how)
    failures: list[str] = []
    for one in made:
        show(one, console())
        if arguments.results is not None:
            path = save(one, arguments.results, part="-".join([*plan.blocks, *plan.methods]))
            console().print(f"wrote {path}")
        failures += one["failures"]
    for failure in dict.fromkeys(failures):
        console(stderr=True).print(f"carm: failed: {failure}", soft_wrap=True)
    if failures:
        console(stderr=True).print(f"carm: the logs of failed runs are in {out}/KEY/log.txt", soft_wrap=True)
    return bool(failures)


def _list(arguments: argparse.Namespace) -> int:
    from carm.lab.paper.catalogue import show_list

    root = str(Path(arguments.data).expanduser().resolve()) if arguments.data else ""
    show_list(_plan(arguments), console(), root=root, seeds=arguments.seeds, jobs=arguments.jobs)
    return OK
