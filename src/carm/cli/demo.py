"""`carm demo`."""

from __future__ import annotations

import argparse

from carm.cli.common import OK, Commands, command


def register(commands: Commands) -> None:
    demo = command(
        commands.add_parser,
        "demo",
        """
        Train a small classifier on handwritten digits that arrive two classes at a time, with a memory of a
        few samples: once in RAM only, then with a store behind it. Prints accuracies over several seeds,
        times, and how many samples were swapped. Takes less than a minute on two cores; needs scikit-learn
        for the digits. The code, carm/demo.py, is meant to be read.
        """,
        """
        carm demo
        carm demo --slots 20 --seeds 5
        """,
        summary="a small continual-learning run, with and without storage",
    )
    demo.add_argument("--slots", metavar="N", type=int, default=30, help="samples in the RAM tier (default: 30)")
    demo.add_argument("--seeds", metavar="N", type=int, default=3, help="runs of each setting (default: 3)")
    demo.set_defaults(run=_demo)


def _demo(arguments: argparse.Namespace) -> int:
    from carm import demo

    demo.main(slots=arguments.slots, seeds=arguments.seeds)
    return OK
