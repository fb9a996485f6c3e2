"""The pictures of a report, from groups of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from carm.lab import svg, tiles
from carm.lab.compare import Group, Metrics, class_count

_CLASSES_APART = 12  # with more classes, those of a task are taken together
Floats = NDArray[np.float64]


class Panels:
    """Pictures of the same groups: each label has the same colour in all, and accuracies have the same scale."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups
        self._several = len({g.data for g in groups}) > 1
        self._styles = _styles(groups)

    def by_method(self) -> Iterator[tuple[str, list[Group]]]:
        """The groups that belong into one picture, and its title."""
        for (_, data), members in groupby(self.groups, key=lambda g: (g.method, g.data)):
            found = list(members)
            yield found[0].title + (f" on {data}" if self._several else ""), found

    def style(self, one: Group) -> int:
        return self._styles[one.label]

    def name(self, one: Group) -> str:
        """For a picture of one group."""
        return f"{one.title}{f' on {one.data}' if self._several else ''}, {one.label}"

    # -- accuracy ----------------------------------------------------------------------------------------------------

    def curves(self, kind: str, *, named: str = "", scale: tuple[str, ...] = ()) -> list[str]:
        """Accuracy on the classes seen, after each task; no picture where there is only one task.

        `named` is added to the titles; `scale` are the kinds of accuracy that the axis has to have room for.
        """
        reach = self._reach(scale or (kind,))
        out = []
        for title, members in self.by_method():
            found = [(g, g.curve(kind)) for g in members]
            series = [
                svg.Line(
                    name=g.label,
                    x=[t + 1 for t in range(len(points))],
                    y=[middle for middle, _ in points],
                    spread=[s for _, s in points] if g.n > 1 else (),
                    style=self.style(g),
                )
                for g, points in found
                if len(points) > 1 and any(middle is not None for middle, _ in points)
            ]
            if series:
                last = "; ".join(f"{one.name} {one.y[-1]:.1f}" for one in series if one.y[-1] is not None)
                out.append(
                    svg.lines(
                        series,
                        title=f"{title}, {named}" if named else title,
                        x_label="task",
                        y_label="accuracy %",
                        description=f"Accuracy on the classes seen after each task. After the last: {last}.",
                        y_range=reach,
                        width=360,
                        height=270,
                        palette=svg.PAGE,
                    )
                )
        return out

    def _reach(self, kinds: tuple[str, ...]) -> tuple[float, float]:
        points = [point for g in self.groups for kind in kinds for point in g.curve(kind)]
        low = [middle - (spread or 0.0) for middle, spread in points if middle is not None]
        high = [middle + (spread or 0.0) for middle, spread in points if middle is not None]
        return (max(min(low), 0.0), min(max(high), 100.0)) if low else (0.0, 100.0)

    def matrices(self, kind: str) -> list[str]:
        """Accuracy on each task over time; no picture where there is only one task."""
        return [
            tiles.heat(
                matrix,
                title=self.name(g),
                x_label="accuracy on task",
                y_label="after task",
                description=f"Accuracy in percent on each task after each task, {_mean_of(g.n)}.",
                palette=svg.PAGE,
            )
            for g in self.groups
            if len(matrix := g.matrix(kind)) > 1
        ]

    # -- the memory over time ----------------------------------------------------------------------------------------

    def traffic(self) -> list[str]:
        """Swaps per step over the steps, where there were any."""
        return self._over_steps("swaps per step", _swaps_per_step)

    def queues(self) -> list[str]:
        """Orders under way at the ends of passes, where there were any."""
        return self._over_steps("swaps in the queue", lambda run, at: _at_steps(run, "queue", at))

    def _over_steps(self, label: str, of: Callable[[Metrics, Floats], Floats]) -> list[str]:
        out = []
        for title, members in self.by_method():
            series = []
            for g in members:
                runs = [run for run in g.runs if len((run.get("series") or {}).get("step") or []) > 1]
                if not runs:
                    continue
                steps = np.asarray(runs[0]["series"]["step"], float)
                values = np.stack([of(run, steps) for run in runs])
                if values.any():
                    spread = values.std(0, ddof=1).tolist() if len(runs) > 1 else ()
                    middle = values.mean(0).tolist()
                    line = svg.Line(name=g.label, x=steps.tolist(), y=middle, spread=spread, style=self.style(g))
                    series.append(line)
            if series:
                highest = max(max(y for y in one.y if y is not None) for one in series)
                out.append(
                    svg.lines(
                        series,
                        title=title,
                        x_label="step",
                        y_label=label,
                        description=f"{label.capitalize()} over the steps of the run, at most {highest:.3g}.",
                        y_range=(0.0, max(_top(one) for one in series)),
                        x_whole=False,
                        width=360,
                        height=230,
                        palette=svg.PAGE,
                    )
                )
        return out

    # -- what is in the memory ---------------------------------------------------------------------------------------

    def composition(self, one: Group) -> str | None:
        """How many samples of each class, or of each task's classes, are in RAM and in storage after each task."""
        runs = [run for run in one.runs if run.get("composition")]
        if not runs:
            return None
        found = []
        for tier, title in (("ram", "RAM"), ("storage", "storage")):
            tables = [_tier(run, tier) for run in runs]
            if not any(table.any() for table in tables):
                continue
            columns = np.mean([table for table in tables if table.shape == tables[0].shape], axis=0)
            found.append(tiles.Stack(title=title, columns=columns.tolist(), names=_part_names(runs[0])))
        if not found:
            return None
        grouped = "class" if class_count(runs[0]) <= _CLASSES_APART else "task's classes"
        return tiles.stacks(
            found,
            title=self.name(one),
            x_label="after task",
            description=f"Samples of each {grouped} after each task, {_mean_of(len(runs))}.",
            palette=svg.PAGE,
        )


def _styles(groups: Sequence[Group]) -> dict[str, int]:
    """Colours, dashes and marks by label: a colour for each setting, and dashes for what there is of each; or, where
    that would be too many dashes, a colour for each label. Grey is the Original, which the others are measured against.
    """
    of_setting: dict[str, list[str]] = {"Original": []}
    for g in groups:
        labels = of_setting.setdefault(g.setting, [])
        if g.label not in labels:
            labels.append(g.label)
    shown = [labels for labels in of_setting.values() if labels]
    if len(shown) > 1 and max(map(len, shown)) <= svg.DASHES:
        return {
            label: colour + svg.COLOURS * dash
            for colour, labels in enumerate(of_setting.values())
            for dash, label in enumerate(labels)
        }
    labels = ["Original", *(label for found in of_setting.values() for label in found if label != "Original")]
    return {label: i for i, label in enumerate(labels)}


def _mean_of(n: int) -> str:
    return f"mean of {n} runs" if n > 1 else "one run"


def _top(one: svg.Line) -> float:
    spread = one.spread or [0.0] * len(one.y)
    return max((y or 0.0) + (s or 0.0) for y, s in zip(one.y, spread, strict=True))


def _at_steps(run: Metrics, name: str, at: Floats) -> Floats:
    """A series at these steps: where runs of a group have been thinned unlike, in between."""
    series = run["series"]
    found: Floats = np.interp(at, np.asarray(series["step"], float), np.asarray(series[name], float))
    return found


def _swaps_per_step(run: Metrics, at: Floats) -> Floats:
    swapped = _at_steps(run, "swapped", at)
    rate: Floats = np.diff(swapped, prepend=0.0) / np.maximum(np.diff(at, prepend=0.0), 1.0)
    return rate


def _tier(run: Metrics, tier: str) -> Floats:
    """Samples in a tier: (tasks, parts)."""
    part = _part_of(run)
    table = np.zeros((len(run["composition"]), max(part.values(), default=0) + 1))
    for row, moment in zip(table, run["composition"], strict=True):
        for label, count in zip(moment["labels"], moment[tier], strict=True):
            row[part.get(label, 0)] += count
    return table


def _part_of(run: Metrics) -> dict[int, int]:
    """Which part of a column each class belongs to."""
    if class_count(run) <= _CLASSES_APART:
        labels = sorted({label for moment in run["composition"] for label in moment["labels"]})
        return {label: i for i, label in enumerate(labels)}
    part: dict[int, int] = {}
    for i, task in enumerate(run["tasks"]):
        for label in task["classes"]:
            part.setdefault(label, i)
    return part


def _part_names(run: Metrics) -> list[str]:
    part = _part_of(run)
    if class_count(run) <= _CLASSES_APART:
        names = run.get("classes") or []
        return [f"class {names[label] if label < len(names) else label}" for label in part]
    return [f"classes of task {i + 1}" for i in range(max(part.values(), default=0) + 1)]
