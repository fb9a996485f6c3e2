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
        carm bench nets
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
    memory.set_defaults(run=_memory)
    nets = command(
        bench_commands.add_parser,
        "nets",
        """
        Measure training on this machine: what share of a step is spent in the net, and what the memory layout,
        compiling, decoding and augmentation bring or cost. It uses CIFAR-100, MNIST and photographs from the data
        folder; made-up images take the place of what is not there.
        """,
        """
        carm bench nets
        carm bench nets --quick                 fewer repetitions
        carm bench nets --only profile decode   a part of it
        carm bench nets --data ~/data --json nets.json
        """,
        summary="measure training",
    )
    nets.add_argument("--json", metavar="FILE", type=Path, help="also write the results to FILE")
    nets.add_argument("--data", metavar="DIR", type=Path, help="data folder (default: the one that CARM_DATA names)")
    nets.add_argument("--quick", action="store_true", help="fewer repetitions")
    nets.add_argument("--only", metavar="NAME", nargs="+", help="only these measurements")
    nets.set_defaults(run=_nets)


def _memory(arguments: argparse.Namespace) -> int:
    bench = importlib.import_module("carm.bench.memory")
    where = {} if arguments.directory is None else {"directory": arguments.directory}
    return int(bench.main(json_path=arguments.json, quick=arguments.quick, only=arguments.only, **where))


def _nets(arguments: argparse.Namespace) -> int:
    bench = importlib.import_module("carm.bench.nets")
    return int(bench.main(json_path=arguments.json, quick=arguments.quick, only=arguments.only, data=arguments.data))
