"""`carm run`: one method on one stream, with a record of everything."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carm.cli.common import INTERRUPTED, OK, Commands, command, console, show_help

if TYPE_CHECKING:
    from carm.lab.config import Config


def register(commands: Commands) -> None:
    run = command(
        commands.add_parser,
        "run",
        """
        Train a method on a stream of tasks, test it after every task, and keep a record: config.json,
        metrics.json, and the store of samples. Settings come from, each over the one before: the method's
        settings for the data set (--scale: the paper's, or small ones for a CPU), a configuration file
        (--config), which may have any part of the entries, and flags.
        Ctrl-C or a kill loses nothing: --resume DIR goes on from the last pass; with --swap sync (or none) the
        result is then the same to the last bit.
        """,
        """
        carm run er                                         digits, seconds
        carm run der++ --data mnist --em 200 --ratio 0.5    CarM-50
        carm run der++ --data mnist --em 200 --swap none    the classic method: RAM only
        carm run icarl --data cifar-100 --scale full        as in the paper
        carm run icarl --option alpha=0.1 --option herding=no
        carm run examples/er_ace.py:ERACE                   a method of your own
        carm run er --data folder --path photos --size 64   your own pictures, a folder for each class
        carm run --resume runs/er-digits-CarM-100-seed0
        """,
        summary="train a method on a stream of tasks",
    )
    run.add_argument(
        "name", metavar="METHOD", nargs="?", help="er, icarl, tiny-er, bic, gdumb, der++, rm, FILE.py:Class"
    )
    run.add_argument("--resume", metavar="DIR", type=Path, help="go on with the run in this directory")
    run.add_argument(
        "--config", metavar="FILE", type=Path, help="settings from a file, such as another run's config.json"
    )
    run.add_argument(
        "--scale", choices=("full", "laptop"), default="laptop", help="the paper's settings, or small ones"
    )
    run.add_argument("--out", metavar="DIR", type=Path, help="where to (default: runs/METHOD-DATA-SETTING-seedN)")
    run.add_argument("--option", metavar="NAME=VALUE", action="append", default=[], help="an option of the method")
    run.add_argument(
        "--every",
        metavar="SECONDS",
        type=float,
        default=0.0,
        help="let so many seconds pass between checkpoints; default: one after every pass, which without a store has "
        "the whole memory in it",
    )
    run.add_argument("--show", action="store_true", help="print the configuration and stop")
    run.set_defaults(run=_run, parser=run)


def add_settings(run: argparse.ArgumentParser) -> None:
    """A flag for every entry of a configuration. Apart, because the configuration loads torch."""
    from carm.lab.config import Config, field_types

    settings = run.add_argument_group(
        "settings", "entries of the configuration; what is not given is as the scale has it"
    )
    types = field_types()
    for field in fields(Config):
        if field.name in ("method", "options"):
            continue
        extra: dict[str, Any] = {"type": _converter(types[field.name])}
        if field.name == "milestones":
            extra |= {"nargs": "*"}
        text = str(field.metadata["help"]).replace("%", "%%")
        settings.add_argument(
            "--" + field.name.replace("_", "-"),
            dest="set_" + field.name,
            metavar=field.metadata["metavar"] or field.name.upper(),
            default=argparse.SUPPRESS,
            help=text,
            **extra,
        )


def _converter(kind: Any) -> Any:
    """How the text of a flag becomes a value of this type."""
    parts = typing.get_args(kind) or (kind,)
    if typing.get_origin(kind) is tuple:
        return float
    if float in parts and len(parts) > 1:  # a number or a word

        def number_or_word(text: str) -> float | str:
            try:
                return float(text)
            except ValueError:
                return text

        return number_or_word
    return kind if kind in (int, float) else str


def _run(arguments: argparse.Namespace) -> int:
    from carm.lab.config import WHERE, Config
    from carm.lab.run import run

    if not arguments.every >= 0:
        raise ValueError(f"--every {arguments.every}: must be a number of seconds, 0 or more")
    if arguments.resume is not None:
        out = arguments.resume
        if not (out / "config.json").is_file():
            raise ValueError(f"{out} is no directory of a run: it has no config.json")
        changed = [name for name in vars(arguments) if name.startswith("set_") and name[4:] not in WHERE]
        if changed or arguments.name or arguments.option or arguments.config:
            raise ValueError(
                "--resume goes on with the settings of the run: give none but " + ", ".join(f"--{n}" for n in WHERE)
            )
        config = Config.load(out / "config.json").replace(**_given(arguments))
    elif arguments.name is None and arguments.config is None:
        return show_help(arguments.parser)
    else:
        config = _configuration(arguments)
        setting = config.setting if config.swap in ("none", "async") else f"{config.setting}-{config.swap}"
        name = config.method.rsplit(":", 1)[-1]
        out = arguments.out or Path("runs") / f"{name}-{config.data}-{setting}-seed{config.seed}"
    if arguments.show:
        print(json.dumps(config.as_dict(), indent=1))
        return OK
    with _terminated(), _watch(config) as watch:
        try:
            metrics = run(config, out, resume=arguments.resume is not None, every=arguments.every, watch=watch)
        except KeyboardInterrupt:
            print(f"carm: stopped; go on with: carm run --resume {out}", file=sys.stderr)
            return INTERRUPTED
    _summary(metrics, out)
    return OK


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name[4:]: value for name, value in vars(arguments).items() if name.startswith("set_")}


def _configuration(arguments: argparse.Namespace) -> Config:
    from carm import methods
    from carm.lab.config import Config
    from carm.lab.presets import preset

    given = _given(arguments)
    entries = Config.entries(arguments.config) if arguments.config is not None else {}
    if arguments.name is not None:
        entries["method"] = arguments.name
    elif "method" not in entries:
        raise ValueError(f"{arguments.config} names no method: give one, as in: carm run er --config FILE")
    data = given.get("data", entries.get("data", "digits"))
    config = preset(entries["method"], data, arguments.scale).replace(**entries)
    options = dict(config.options)
    allowed = methods.find(config.method).options()
    for text in arguments.option:
        name, equals, value = text.partition("=")
        if not equals or name not in allowed:
            raise ValueError(
                f"--option {text}: must be NAME=VALUE, with NAME one of {', '.join(allowed) or '(it has none)'}"
            )
        options[name] = _value(value)
    return config.replace(options=options, **given)


def _value(text: str) -> Any:
    """The value of an option: yes and no, numbers, words."""
    words = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


@contextlib.contextmanager
def _terminated() -> Iterator[None]:
    """A polite `kill` is like Ctrl-C: the store is closed, and the run can be resumed."""

    def stop(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)  # which waits where it would leave something half done

    before = signal.signal(signal.SIGTERM, stop)
    ctrl_c = signal.getsignal(signal.SIGINT)
    if not callable(ctrl_c):  # in the background of a shell it is ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, ctrl_c)


@contextlib.contextmanager
def _watch(config: Config) -> Iterator[Any]:
    """A progress bar with what goes on, on a terminal; a line per task elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from carm.lab.watch import Moment, Pace, Watch

    where = console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn(),
        console=where, transient=True, disable=not where.is_terminal,
    )  # fmt: skip
    line = bar.add_task(f"{config.method} {config.setting}", total=1.0, state="starting")

    class Show(Watch):
        task = 0
        pace = Pace()

        def __call__(self, moment: Moment) -> None:
            rate = self.pace(moment.swapped)
            accuracy = "" if moment.accuracy is None else f"  {moment.accuracy:.1f} %"
            state = (
                f"task {moment.task + 1}/{moment.tasks}  pass {min(moment.number + 1, moment.passes)}/{moment.passes}"
                f"  loss {moment.loss:.3f}{accuracy}  {rate:.0f} swaps/s  queue {moment.queue}"
            )
            bar.update(line, completed=moment.done, state=state)
            if moment.task > self.task:
                self.task = moment.task
                where.print(f"after task {moment.task} of {moment.tasks}: {moment.accuracy:.2f} % of the classes seen")

    with bar:
        yield Show()


def _summary(metrics: dict[str, Any], out: Path) -> None:
    from rich.table import Table

    final, memory = metrics["final"], metrics["memory"]
    table = Table("", "class-incremental", "task-incremental", box=None, pad_edge=False)
    for name, text in (
        ("accuracy", "final accuracy %"),
        ("forgetting", "final forgetting %"),
        ("average", "over the tasks %"),
    ):
        table.add_row(text, *(f"{final[kind][name]:.2f}" for kind in ("ci", "ti")))
    where = console()
    where.print(table)
    per_bundle = metrics["seconds"] / max(len(metrics["bundles"]), 1)
    where.print(
        f"{metrics['setting']}: {memory['drawn']:,} old samples trained on, {memory['swapped']:,} swapped; "
        f"{per_bundle:.2f} s per task. Record: {out}/metrics.json; pictures: carm report {out}"
    )
    if metrics["skipped"]:
        where.print(f"{len(metrics['skipped'])} images could not be decoded and were left out; metrics.json names them")
