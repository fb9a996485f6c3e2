"""`carm demo`: three methods on digits, without and with a store."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from carm.cli.common import OK, Commands, command, console


def register(commands: Commands) -> None:
    demo = command(
        commands.add_parser,
        "demo",
        """
        Train three methods on handwritten digits that arrive two classes at a time, with a memory of a few
        samples: once in RAM only (Original), then with a store behind it from which half or all of the rehearsed
        samples are replaced (CarM-50, CarM-100). Shows a table over several seeds and writes a report to look at
        in a browser. Takes about a minute on two cores; needs scikit-learn for the digits.
        """,
        """
        carm demo
        carm demo --em 20 --seeds 5
        """,
        summary="three methods on digits, without and with a store",
    )
    demo.add_argument("--em", metavar="N", type=int, default=30, help="samples in the RAM tier (default: 30)")
    demo.add_argument("--seeds", metavar="N", type=int, default=3, help="runs of each setting (default: 3)")
    demo.add_argument("--jobs", metavar="N", type=int, help="runs at a time (default: one for each core, 4 at most)")
    demo.add_argument(
        "--report", metavar="FILE", type=Path, default=Path("runs/demo.html"), help="default: runs/demo.html"
    )
    demo.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from carm import demo
    from carm.cli.compare import print_table
    from carm.lab import compare, report, tables

    configs = demo.configurations(em=arguments.em, seeds=arguments.seeds, methods=demo.METHODS)
    jobs = arguments.jobs or min(os.cpu_count() or 1, 4)
    out = console()
    out.print(
        f"Digits in 5 tasks of 2 classes, {arguments.em} samples in RAM: {len(configs)} runs, {jobs} at a time.",
        soft_wrap=True,
    )
    runs = demo.run(configs, jobs=jobs, console=console(stderr=True))
    out.print()
    head, rows = tables.results(compare.group(runs))
    last = -1 if head[-1] == tables.OTHERS else None  # the methods' own settings
    print_table((head[:last], [row[:last] for row in rows]))
    out.print(
        "\nAccuracy is in percent, over all ten digits after the last task, ± the standard deviation over the seeds. "
        "Original: what does not fit in RAM is thrown away. CarM-50, CarM-100: it is stored, and half or all of the "
        "samples that were just rehearsed are replaced from the store, beside the training.",
        soft_wrap=True,
    )
    report.write_html(runs, arguments.report, title="Three methods on digits, without and with a store")
    out.print(f"Report: {arguments.report}", soft_wrap=True)
    return OK
