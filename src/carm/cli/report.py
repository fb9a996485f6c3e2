"""`carm report`: tables and pictures of runs in one file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from carm.cli.common import OK, Commands, command
from carm.cli.compare import finished_runs

_FORMATS = ("html", "md", "csv", "png")


def register(commands: Commands) -> None:
    report = command(
        commands.add_parser,
        "report",
        """
        A report on the runs in the directories named, as one file: the table of `carm compare`, accuracy after
        each task with its spread over the seeds, accuracy on each task over time, swaps, what the memory holds,
        and the configuration. The HTML needs no network and no scripts, and can be sent to others as it is. A
        DIR is a run, or a folder with runs anywhere in it.
        """,
        """
        carm report runs                        writes report.html
        carm report runs/er runs/icarl --out cifar.html --title CIFAR-100
        carm report runs --out er.md            tables and text only
        carm report runs --format csv --out -   one row per run, on standard output
        carm report runs --out er.png           the curves as a picture; needs matplotlib
        """,
        summary="tables and pictures of runs in one HTML file",
    )
    report.add_argument("directories", metavar="DIR", nargs="+", type=Path, help="a run, or a folder with runs")
    report.add_argument(
        "--out", metavar="FILE", type=Path, help="the file (default: report.html, .md, ...); -: standard output"
    )
    report.add_argument("--format", choices=_FORMATS, help="html, md, csv or png (default: as FILE ends, or html)")
    report.add_argument("--title", metavar="TEXT", help="heading (default: the names of the directories)")
    report.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> int:
    out: Path | None = arguments.out
    kind = arguments.format or _kind(out)
    out = out or Path(f"report.{kind}")
    printed = str(out) == "-"
    if printed and kind == "png":
        raise ValueError("--out -: a picture is not written to standard output; name a file")
    if out.is_dir():
        raise ValueError(f"--out {out}: that is a directory; name a file in it, such as {out / 'report.html'}")
    unfinished: list[Path] = []
    runs = finished_runs(arguments.directories, unfinished=unfinished)
    title = arguments.title or "Runs in " + ", ".join(str(d) for d in arguments.directories)

    if kind == "png":
        from carm.lab.picture import write_png

        write_png(runs, out, title=title)
    else:
        from carm.lab import report, tables

        if kind == "csv":
            text = tables.runs_csv(runs)
        elif kind == "md":
            text = report.markdown(runs, title=title, unfinished=unfinished)
        else:
            text = report.html(runs, title=title, unfinished=unfinished)
        if printed:
            sys.stdout.write(text)
        else:
            report.write_text(out, text)
    if not printed:
        print(f"{out}: {len(runs)} run{'' if len(runs) == 1 else 's'}")
    return OK


def _kind(out: Path | None) -> str:
    if out is None or str(out) == "-":
        return "html"
    ending = out.suffix.lstrip(".").lower()
    if ending in ("htm", "markdown"):
        return {"htm": "html", "markdown": "md"}[ending]
    if ending not in _FORMATS:
        raise ValueError(f"--out {out}: cannot tell the format from the name; give --format html, md, csv or png")
    return ending
