"""What the commands have in common: parsers with help that teaches, exit codes, consoles, progress bars."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

OK, DAMAGED, FAILED, INTERRUPTED = 0, 1, 2, 130
"""Exit codes: all well; something is damaged; the command could not do its work; Ctrl-C."""

Commands = Any
"""What `add_subparsers` returns; argparse has no public name for it."""
_Maker = Callable[..., argparse.ArgumentParser]


def command(
    make: _Maker, name: str, text: str, examples: str, *, summary: str | None = None
) -> argparse.ArgumentParser:
    """A parser whose help is a paragraph, the arguments, and examples."""
    options: dict[str, Any] = {
        "description": textwrap.fill(" ".join(text.split()), 78),
        "epilog": "examples:\n" + textwrap.indent(textwrap.dedent(examples).strip("\n"), "  "),
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
    if summary is not None:
        options["help"] = summary
    parser = make(name, **options)
    # SUPPRESS: given before the subcommand, the flag must not be set back by the subcommand's own default.
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show a traceback for errors")
    return parser


def show_help(parser: argparse.ArgumentParser) -> int:
    parser.print_help()
    return FAILED


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=False)


def progress_bar() -> Progress:
    """A progress bar on stderr, if that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    where = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=where, transient=True, disable=not where.is_terminal)
