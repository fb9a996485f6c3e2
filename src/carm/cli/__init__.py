"""The command `carm`, a module for each of its commands.

What is slow to load is imported where it is used: `carm --help` loads neither torch nor numpy, and the `store` commands
need no torch at all.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence

from carm import __version__
from carm.cli import bench, compare, demo, paper, report, run, store
from carm.cli.common import FAILED, INTERRUPTED, command, show_help

_COMMANDS = (demo, run, compare, report, paper, store, bench)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (those of the process if None) and return its exit code."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # or torch's threads spin, and take the swap worker's core
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = _parser(next((word for word in words if not word.startswith("-")), "")).parse_args(words)
    from carm.memory.errors import CarmError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = _show_warning
            carry_out: Callable[[argparse.Namespace], int] = arguments.run
            return carry_out(arguments)
    except (CarmError, ValueError, OSError, ImportError) as error:
        if arguments.debug:
            traceback.print_exc()
        else:
            print(f"carm: {_sentence(error)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("carm: interrupted", file=sys.stderr)
        return INTERRUPTED


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return " ".join(str(error).split())


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"carm: warning: {' '.join(str(message).split())}", file=sys.stderr)


def _parser(wanted: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands. Flags that are slow to make are there only for the command that is `wanted`."""
    top = command(
        argparse.ArgumentParser,
        "carm",
        """
        Carousel Memory keeps a small set of training samples in RAM and every sample it has seen in a store
        on disk, and exchanges the two in the background while a model trains. This command looks into such
        stores, and shows and measures what the library does. The library itself is used from Python: import
        carm.
        """,
        """
        carm demo                               a small continual-learning run, with and without storage
        carm run er --data mnist                one method, with a record of everything
        carm compare runs                       one table of many runs, over their seeds
        carm report runs                        tables and pictures of them in one HTML file
        carm paper list                         the paper's experiments, to be run again
        carm store info runs/memory             what a store holds
        carm store verify runs/memory           read every sample and compare checksums
        carm store export runs/memory out.npz   take samples out, for other tools
        carm bench memory --quick               measure the memory on this machine
        """,
    )
    top.add_argument("--version", action="version", version=f"carm {__version__}")
    top.set_defaults(run=lambda _: show_help(top), debug=False)
    commands = top.add_subparsers(title="commands", metavar="COMMAND")

    for module in _COMMANDS:
        module.register(commands)
    if wanted in (None, "run"):
        run.add_settings(commands.choices["run"])
    return top
