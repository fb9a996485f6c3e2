"""The records as tables of text: heads and rows, for the terminal and for Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from carm.lab.paper.groups import Group
from carm.lab.paper.numbers import Number
from carm.lab.paper.perform import Record, groups_of
from carm.methods import TITLES

Sheet = tuple[str, list[str], list[list[str]]]
"""A title, the heads of the columns, and the rows."""
MEASURES = {"ci": "", "ti": " (task-incremental)", "top5": " (top-5)"}
_NOTHING = "–"


def capital(title: str) -> str:
    """A title as the beginning of a sentence."""
    return title if title.startswith("iCaRL") else title[0].upper() + title[1:]


def sheets(one: Record) -> list[Sheet]:
    """The tables of a record, one for each block and measure."""
    if one["name"] == "speed":
        from carm.lab.paper.speed import sheets as speed_sheets

        return speed_sheets(one)
    groups = groups_of(one)
    made = []
    for block in dict.fromkeys(g.block for g in groups):
        mine = [g for g in groups if g.block == block]
        if one["name"] == "incremental":
            made.append(_curves(block, mine))
            continue
        made.append(_sheet(f"{block}: accuracy, percent", mine, "accuracy"))
        if one["name"] in ("table1", "rm-da", "tasks-50"):
            made.append(_sheet(f"{block}: forgetting, points", mine, "forgetting"))
        if one["name"] == "device":
            made.append(_sheet(f"{block}: peak memory of the process, MB", mine, "peak_mb", digits=0))
            made.append(_sheet(f"{block}: seconds to learn a bundle", mine, "bundle"))
    return made


def _sheet(title: str, groups: Sequence[Group], name: str, *, digits: int = 2) -> Sheet:
    """Rows: settings and what varies. Columns: methods; below each row of ours that of the paper, if it has one."""
    methods = list(dict.fromkeys(g.method for g in groups))
    own = {m: next(g.metric for g in groups if g.method == m) for m in methods}
    also = [m for m in methods if own[m] != "ci"] if name == "accuracy" else []
    # Forgetting is of top-1 accuracy, also where accuracy is top-5.
    labelled = {"accuracy": ("ci", "ti", "top5"), "forgetting": ("ci", "ti")}.get(name, ())
    heads = ["", *(TITLES[m] + (MEASURES[own[m]] if own[m] in labelled else "") for m in methods)]
    heads += [f"{TITLES[m]} (class-incremental)" for m in also]
    rows = []
    for label, members in _rows(groups).items():
        row = [label, *_cells(methods, members, lambda g: show(g.ours(name), digits))]
        rows.append(row + _cells(also, members, lambda g: show(g.ours("ci"), digits)))
        if any(g.theirs(name) is not None for g in members):
            source = "published" if "EM" in label else "paper"
            theirs = _cells(methods, members, lambda g: str(g.theirs(name) or _NOTHING))
            rows.append([f"  {source}", *theirs, *([_NOTHING] * len(also))])
    return title, heads, rows


def _rows(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """By what varies. Sizes that differ from method to method (half, whole, twice the EM) keep rows of their own."""
    found: dict[str, list[Group]] = {}
    several = len({g.setting for g in groups}) > 1
    for g in groups:
        label = " ".join(part for part in (g.setting if several or not g.at else "", g.at) if part)
        found.setdefault(label, []).append(g)
    return found


def _cells(methods: Sequence[str], members: Sequence[Group], text: Callable[[Group], str]) -> list[str]:
    by = {g.method: text(g) for g in members}
    return [by.get(m, _NOTHING) for m in methods]


def _curves(block: str, groups: Sequence[Group]) -> Sheet:
    most = max(len(run["curve"]) for g in groups for run in g.runs)
    heads = ["", "", *(f"task {t + 1}" for t in range(most))]
    rows = []
    for g in groups:
        means = mean_curve(g)
        rows.append([TITLES[g.method] + MEASURES[g.metric], g.setting, *(f"{a:.1f}" for a in means)])
        rows[-1] += [""] * (most - len(means))
    return f"{block}: accuracy over the classes seen, after each task, percent", heads, rows


def mean_curve(group: Group) -> list[float]:
    curves = group.curves()
    return [sum(column) / len(column) for column in zip(*curves, strict=True)]


def show(number: Number, digits: int = 2) -> str:
    if math.isnan(number.mean):
        return _NOTHING
    text = f"{number.mean:.{digits}f}"
    return text if number.sd is None else f"{text}±{number.sd:.{digits}f}"
