"""Tables of runs and groups of runs, for people (text, Markdown) and for programs (CSV, JSON)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from carm.lab.compare import MEASURES, Group, Metrics, entries, group, measures, named, show

Table = tuple[list[str], list[list[str]]]
"""The heads of the columns, and the rows."""

MISSING = "–"
OTHERS = "other differences"
WORDS = ("method", "data", "setting", OTHERS, "entry", "value")
"""Columns that hold words; the others hold numbers."""


def results(groups: Sequence[Group]) -> Table:
    """One row per group: method, setting, mean ± sd of every measure, and what else differs.

    What tells the groups of one method apart is named with the setting. What differs between methods only, such as
    their learning rates, comes last: it is needed for a fair look, not to find one's way.
    """
    shown = measures(groups)
    several = "data" in groups[0].differing
    others = [{k: v for k, v in g.differing.items() if k not in g.apart and k != "data"} for g in groups]
    head = ["method", *(["data"] if several else []), "setting", *(m.title for m in shown), "n"]
    rows = []
    for one, rest in zip(groups, others, strict=True):
        row = [one.title, *([one.data] if several else []), one.label]
        row += [*(one.cell(m.name) or MISSING for m in shown), str(one.n)]
        rows.append([*row, named(rest)] if any(others) else row)
    return [*head, *([OTHERS] if any(others) else [])], rows


def explained(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """What the columns mean."""
    several = any(g.n > 1 for g in groups)
    spread = "number of runs" + ("; ± is the standard deviation over them, which differ in the seed" if several else "")
    return [*((m.title, m.text) for m in measures(groups)), ("n", spread)]


def curves(groups: Sequence[Group], kind: str = "ci") -> Table:
    """One row per group: the accuracy on all classes seen after each task."""
    tasks = max((len(g.curve(kind)) for g in groups), default=0)
    several = "data" in groups[0].differing
    rows = []
    for one in groups:
        points = [_cell(middle, spread) for middle, spread in one.curve(kind)]
        data = [one.data] if several else []
        rows.append([one.title, *data, one.label, *points, *[MISSING] * (tasks - len(points))])
    return ["method", *(["data"] if several else []), "setting", *(str(t + 1) for t in range(tasks))], rows


def configurations(groups: Sequence[Group]) -> tuple[Table | None, Table]:
    """What the groups differ in, a row for each (None if in nothing); and the rest, which they have in common."""
    each = [entries(g.runs[0]) for g in groups]
    common: dict[str, str] = {}
    names = []
    for name in dict.fromkeys(name for one in each for name in one):
        values = {show(one[name]) if name in one else MISSING for one in each}
        if not name.startswith("options."):
            values -= {MISSING}  # without swaps there is no ratio; that is no difference
        if len(values) == 1:
            common[name] = values.pop()
        elif name != "method":
            names.append(name)
    rows = [
        [g.title, g.setting, *(show(one[n]) if n in one else MISSING for n in names)]
        for g, one in zip(groups, each, strict=True)
    ]
    for name in ("threads", "seed"):  # in which the runs of a group may differ
        values = {run["config"].get(name, 0) for g in groups for run in g.runs}
        common[name] = ", ".join(map(str, sorted(values)))
    same = (["entry", "value"], [[k, v] for k, v in common.items()])
    return (["method", "setting", *names], rows) if names else None, same


def markdown(table: Table) -> str:
    head, rows = table
    rule = ["---" if name in WORDS else "---:" for name in head]
    lines = [head, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def groups_csv(groups: Sequence[Group]) -> str:
    """One row per group; means and standard deviations in columns of their own, unrounded."""
    records = [_record(g) for g in groups]
    names = list(dict.fromkeys(name for g in groups for name in g.differing))
    head = ["method", "setting", *names]
    rows = [[r["method"], r["setting"], *(r["differing"].get(n, "") for n in names)] for r in records]
    for m in measures(groups):
        head += [m.name, f"{m.name}_sd"]
        for row, record in zip(rows, records, strict=True):
            row += [record[m.name]["mean"], record[m.name]["sd"]]
    return _csv([*head, "n"], [[*row, r["n"]] for row, r in zip(rows, records, strict=True)])


def groups_json(groups: Sequence[Group]) -> str:
    return json.dumps([_record(g) for g in groups], indent=1, ensure_ascii=False) + "\n"


def runs_csv(runs: Sequence[Metrics]) -> str:
    """One row per run: its measures, and its whole configuration."""
    groups = group(runs)
    names = list(dict.fromkeys(name for g in groups for name in g.config if name not in ("method", "seed")))
    head = ["directory", "method", "setting", "seed", *(m.name for m in MEASURES), *names]
    rows = []
    for one in groups:
        for run in one.runs:
            config = one.config | run["config"]
            values = [m.of(run) for m in MEASURES]
            named = [json.dumps(v) if isinstance(v, (dict, list)) else v for v in (config.get(e) for e in names)]
            rows.append([run.get("directory", ""), one.method, one.setting, config.get("seed"), *values, *named])
    return _csv(head, rows)


def _record(one: Group) -> dict[str, Any]:
    record: dict[str, Any] = {"method": one.method, "setting": one.setting, "differing": one.differing}
    for m in MEASURES:
        record[m.name] = {"mean": one.mean(m.name), "sd": one.sd(m.name), "values": one.values(m.name)}
    directories = [run["directory"] for run in one.runs if "directory" in run]
    return record | {"n": one.n, "seeds": one.seeds, "directories": directories}


def _csv(head: list[str], rows: list[list[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    return out.getvalue()


def _cell(middle: float | None, spread: float | None) -> str:
    if middle is None:
        return MISSING
    return f"{middle:.1f}" if spread is None else f"{middle:.1f} ± {spread:.1f}"
