"""The figures of a record, as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import median, stdev
from typing import Any

from carm.lab.paper.experiments import EXPERIMENTS
from carm.lab.paper.groups import Group
from carm.lab.paper.layout import MEASURES, capital, mean_curve
from carm.lab.paper.perform import Record, groups_of
from carm.lab.svg import Bars, Line, bars, lines
from carm.methods import TITLES

Figure = tuple[str, str, str]
"""A name for its file, what it shows, and the picture."""


def figures(one: Record) -> Iterator[Figure]:
    """One for each block, or for each method in it where lines would be too many."""
    name = one["name"]
    if name == "speed":
        yield from _speed(one)
        return
    groups = groups_of(one)
    for block in dict.fromkeys(g.block for g in groups):
        mine = [g for g in groups if g.block == block]
        title = mine[0].at if name == "tasks-50" else EXPERIMENTS[name].title.replace(" and forgetting", "")
        stem, title = f"{name}-{block}", f"{capital(title)} ({block})"
        if name == "incremental":
            for method in _methods(mine):
                own = [g for g in mine if g.method == method]
                yield f"{stem}-{_plain(method)}", f"{TITLES[method]}, {block}", _curves(own, block)
        elif name == "em-size":
            for method in _methods(mine):
                own = [g for g in mine if g.method == method]
                picture = _over(own, f"{TITLES[method]} ({block})", EXPERIMENTS[name].figure, by="setting")
                yield f"{stem}-{_plain(method)}", f"{TITLES[method]}, {block}", picture
        elif name in ("distill", "swap-ratio", "storage-size"):
            yield stem, title, _over(mine, title, EXPERIMENTS[name].figure, by="method")
        elif name == "icarl-features":
            yield stem, title, _bars(mine, title, by="at")
        elif name == "policies":
            yield stem, title, _bars(mine, title, by="method", series="at")
        elif name in ("table1", "tasks-50", "rm-da", "device"):
            yield stem, title, _bars(mine, title, by="method", series="setting")


def _measured(groups: Sequence[Group]) -> str:
    """What is on the axis: not the same for all methods, as in the paper."""
    own = {m: next(g.metric for g in groups if g.method == m) for m in _methods(groups)}
    found = []
    for metric, words in MEASURES.items():
        named = [TITLES[m] for m, one in own.items() if one == metric]
        if words and named:
            found.append(f"{', '.join(named)}: {words.strip(' ()')}")
    return "; ".join(["accuracy, percent", *found])


def _methods(groups: Sequence[Group]) -> list[str]:
    return list(dict.fromkeys(g.method for g in groups))


def _plain(method: str) -> str:
    return method.replace("+", "p")


def _name(group: Group, by: str) -> str:
    return TITLES[group.method] if by == "method" else str(getattr(group, by)) or "ours"


def _curves(groups: Sequence[Group], block: str) -> str:
    series = []
    for g in groups:
        columns = list(zip(*g.curves(), strict=True))
        spread = [stdev(column) if len(column) > 1 else None for column in columns]
        x = [float(t + 1) for t in range(len(columns))]
        series.append(Line(name=g.setting, x=x, y=mean_curve(g), spread=spread))
    title = f"{TITLES[groups[0].method]} ({block})"
    return lines(
        series, x_label="tasks", y_label=_measured(groups), title=title, description="accuracy over the classes seen"
    )


def _over(groups: Sequence[Group], title: str, x_label: str, *, by: str) -> str:
    """A line for each method or setting over what varies, evenly apart; what has no number comes last."""
    labels = {_place(g): _tick(g) for g in groups}
    known = sorted(labels)
    series = []
    for name in dict.fromkeys(_name(g, by) for g in groups):
        mine = sorted((g for g in groups if _name(g, by) == name), key=_place)
        x = [float(known.index(_place(g))) for g in mine]
        alone = [at for at, g in zip(x, mine, strict=True) if g.at == "alpha auto"]
        series.append(Line(name=name, x=x, y=[g.mean() for g in mine], spread=[g.sd() for g in mine], alone=alone))
    names = [labels[place] for place in known]
    return lines(series, x_label=x_label, y_label=_measured(groups), title=title, x_names=names, height=320)


def _place(group: Group) -> float:
    return float("inf") if group.x is None else group.x


def _tick(group: Group) -> str:
    return group.at.removeprefix("alpha ") if group.x is None else f"{group.x:g}"


def _bars(groups: Sequence[Group], title: str, *, by: str, series: str = "") -> str:
    categories = list(dict.fromkeys(_name(g, by) for g in groups))
    drawn = []
    for name in dict.fromkeys(_name(g, series) if series else "iCaRL" for g in groups):
        mine = {_name(g, by): g for g in groups if not series or _name(g, series) == name}
        values = [mine[c].mean() if c in mine else None for c in categories]
        drawn.append(Bars(name=name, values=values, spread=[mine[c].sd() if c in mine else None for c in categories]))
    return bars(categories, drawn, y_label=_measured(groups), title=title, width=560, show_legend=bool(series))


def _speed(one: Record) -> Iterator[Figure]:
    for block in dict.fromkeys(g["block"] for g in one["groups"]):
        for cores, storage in dict.fromkeys((g["cores"], g["storage"]) for g in one["groups"] if g["block"] == block):
            mine = [g for g in one["groups"] if (g["block"], g["cores"], g["storage"]) == (block, cores, storage)]
            title = f"Growth of training time ({block}, {cores}, {storage} storage)"
            words = re.findall("[a-z0-9]+", f"speed {block} {cores} {storage}".replace("'", ""))
            yield "-".join(words), title, _growth(mine, title)


def _growth(groups: Sequence[dict[str, Any]], title: str) -> str:
    methods = list(dict.fromkeys(g["method"] for g in groups))
    drawn = []
    for swap, setting in dict.fromkeys((g["swap"], g["setting"]) for g in groups):
        mine = {g["method"]: median(g["wall"]) for g in groups if (g["swap"], g["setting"]) == (swap, setting)}
        drawn.append(Bars(name=f"{swap} {setting}", values=[mine.get(m) for m in methods]))
    return bars([TITLES[m] for m in methods], drawn, y_label="percent of the time without swapping", title=title)
