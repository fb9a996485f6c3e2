"""`carm bench`: measurements on this machine."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from carm.cli.common import Commands, command, show_help


def register(commands: Commands) -> None:
    bench = command(
        commands.add_parser,
        "bench",
        "Measure the library on this machine.",
        """
        carm bench memory
        """,
        summary="measure the library on this machine",
    )
    bench.set_defaults(run=lambda _: show_help(bench))
    bench_commands = bench.add_subparsers(title="commands", metavar="COMMAND")
    memory = command(
        bench_commands.add_parser,
        "memory",
        """
        Measure the memory on this machine: what drawing, swapping and storing cost, and what they cost a
        training loop. Files are made in the current directory, or in the one that --directory names: it should
        be on the device that stores will be on. The numbers also depend on what else the machine does.
        """,
        """
        carm bench memory
        carm bench memory --quick               fewer repetitions
        carm bench memory --json memory.json    also as a file
        carm bench memory --directory /mnt/sd   on another device
        """,
        summary="measure the memory",
    )
    memory.add_argument("--json", metavar="FILE", type=Path, help="also write the results to FILE")
    memory.add_argument("--directory", metavar="DIR", type=Path, help="where to measure (default: here)")
    memory.add_argument("--quick", action="store_true", help="fewer repetitions")
    memory.add_argument("--only", metavar="NAME", nargs="+", help="only these measurements")
    memory.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    bench = importlib.import_module("carm.bench.memory")
    where = {} if arguments.directory is None else {"directory": arguments.directory}
    return int(bench.main(json_path=arguments.json, quick=arguments.quick, only=arguments.only, **where))
