"""Tables of runs and groups of runs, for people (text, Markdown) and for programs (CSV, JSON)."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from carm.lab.compare import MEASURES, Group, Metrics, group, measures, show

Table = tuple[list[str], list[list[str]]]
"""The heads of the columns, and the rows."""

MISSING = "–"


def results(groups: Sequence[Group]) -> Table:
    """One row per group: method, setting, what else differs, and mean ± sd of every measure."""
    shown = measures(groups)
    differ = any(g.differing for g in groups)
    head = ["method", "setting", *(["differs in"] if differ else []), *(m.title for m in shown), "n"]
    rows = []
    for one in groups:
        named = [", ".join(f"{k}={show(v)}" for k, v in one.differing.items())] if differ else []
        rows.append([one.title, one.setting, *named, *(one.cell(m.name) or MISSING for m in shown), str(one.n)])
    return head, rows


def explained(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """What the columns mean."""
    several = any(g.n > 1 for g in groups)
    spread = "number of runs" + ("; ± is the standard deviation over them, which differ in the seed" if several else "")
    return [*((m.title, m.text) for m in measures(groups)), ("n", spread)]


def curves(groups: Sequence[Group], kind: str = "ci") -> Table:
    """One row per group: the accuracy on all classes seen after each task."""
    tasks = max((len(g.curve(kind)) for g in groups), default=0)
    rows = []
    for one in groups:
        points = [_cell(middle, spread) for middle, spread in one.curve(kind)]
        rows.append([one.title, _full_label(one), *points, *[MISSING] * (tasks - len(points))])
    return ["method", "setting", *(str(t + 1) for t in range(tasks))], rows


def configurations(groups: Sequence[Group]) -> tuple[Table | None, Table]:
    """What the groups differ in, a row for each (None if in nothing); and what they have in common."""
    names = list(dict.fromkeys(name for g in groups for name in g.differing))
    differing = None
    if names:
        rows = [
            [g.title, g.setting, *(show(g.differing[n]) if n in g.differing else MISSING for n in names)]
            for g in groups
        ]
        differing = (["method", "setting", *names], rows)
    first = {k: v for k, v in groups[0].config.items() if k not in ("options", "seed", "root")}
    same = {k: v for k, v in first.items() if all(g.config.get(k) == v for g in groups) and k not in names}
    options = groups[0].config.get("options") or {}
    same |= {f"options.{k}": v for k, v in options.items() if f"options.{k}" not in names}
    seeds = sorted({seed for g in groups for seed in g.seeds})
    return differing, (
        ["entry", "value"],
        [[k, show(v)] for k, v in same.items()] + [["seed", ", ".join(map(str, seeds))]],
    )


def markdown(table: Table) -> str:
    head, rows = table
    words = ("method", "setting", "differs in", "entry", "value")
    rule = ["---" if name in words else "---:" for name in head]
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
    entries = list(dict.fromkeys(name for g in groups for name in g.config if name not in ("method", "seed")))
    head = ["directory", "method", "setting", "seed", *(m.name for m in MEASURES), *entries]
    rows = []
    for one in groups:
        for run in one.runs:
            config = one.config | run["config"]
            values = [m.of(run) for m in MEASURES]
            named = [json.dumps(v) if isinstance(v, (dict, list)) else v for v in (config.get(e) for e in entries)]
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


def _full_label(one: Group) -> str:
    """With what tells it from all other groups, those on other data included."""
    data = [f"data={one.data}"] if "data" in one.differing else []
    return ", ".join([*data, one.label])


def _cell(middle: float | None, spread: float | None) -> str:
    if middle is None:
        return MISSING
    return f"{middle:.1f}" if spread is None else f"{middle:.1f} ± {spread:.1f}"
