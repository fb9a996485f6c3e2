"""`carm compare`: runs side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carm.cli.common import OK, Commands, command, console

if TYPE_CHECKING:
    from carm.lab.tables import Table


def register(commands: Commands) -> None:
    compare = command(
        commands.add_parser,
        "compare",
        """
        One table of the runs in the directories named: a row for each method and setting, with mean and
        standard deviation over the runs that differ only in the seed. A DIR is a run, or a folder with runs
        anywhere in it. Whatever else the rows differ in is named in them, so that unlike is not compared with
        like. Runs that are not finished are named, and not counted.
        """,
        """
        carm compare runs                       all runs in a folder
        carm compare runs/er runs/icarl         some of them
        carm compare runs --format md           for a document
        carm compare runs --format csv > t.csv  for a spreadsheet; unrounded
        """,
        summary="one table of many runs: mean ± standard deviation over the seeds",
    )
    compare.add_argument("directories", metavar="DIR", nargs="+", type=Path, help="a run, or a folder with runs")
    compare.add_argument(
        "--format",
        choices=("text", "md", "csv", "json"),
        default="text",
        help="text (the default), md, csv or json",
    )
    compare.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from carm.lab import compare, tables

    runs = finished_runs(arguments.directories)
    groups = compare.group(runs)
    for sentence in compare.repeated(groups):
        print(f"carm: {sentence}", file=sys.stderr)
    if arguments.format == "csv":
        sys.stdout.write(tables.groups_csv(groups))
    elif arguments.format == "json":
        sys.stdout.write(tables.groups_json(groups))
    elif arguments.format == "md":
        sys.stdout.write(tables.markdown(tables.results(groups)))
    else:
        print_table(tables.results(groups))
    return OK


def finished_runs(directories: list[Path], *, unfinished: list[Path] | None = None) -> list[dict[str, Any]]:
    """The runs to work on. Those that are not finished are named on stderr, and added to `unfinished`."""
    from carm.lab.compare import load_runs

    runs, others = load_runs(directories)
    if unfinished is not None:
        unfinished += others
    named = ", ".join(map(str, directories))
    if not runs and others:
        rest = f" and {len(others) - 1} more" if len(others) > 1 else ""
        raise ValueError(
            f"no run in {named} is finished: {others[0]}{rest} can be gone on with by `carm run --resume {others[0]}`"
        )
    if not runs:
        raise ValueError(f"there are no runs in {named}: make one with `carm run`, or name the folder that has them")
    for directory in others:
        print(f"carm: not finished, and not counted: {directory}", file=sys.stderr)
    return runs


def print_table(table: Table) -> None:
    """Where it is narrow, heads and the last column, of other differences, are folded; numbers never are: in pieces
    they cannot be read."""
    from rich.measure import Measurement
    from rich.table import Table as Rich

    from carm.lab.tables import OTHERS, WORDS

    head, rows = table
    out = console()
    shown = Rich(box=None, pad_edge=False)
    for name, *cells in zip(head, *rows, strict=True):
        width = None if name == OTHERS else max(map(len, cells))
        shown.add_column(name, justify="left" if name in WORDS else "right", min_width=width)
    for row in rows:
        shown.add_row(*row)
    needed = Measurement.get(out, out.options.update(max_width=1000), shown)
    out.width = max(out.width, needed.minimum) if out.is_terminal else needed.maximum
    out.print(shown, crop=False)
