"""The curves as a PNG picture, by matplotlib where that is installed: for places that show neither HTML nor SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

from carm.lab.canvas import OKABE_ITO
from carm.lab.compare import Group, Metrics, group
from carm.lab.panels import Panels

_MARKS, _DASHES = "os^Dv", ("-", "--", ":")
_SHORT = 16  # letters of a label of which three have room beside each other
_LINE = 52  # letters of a label in one line
_INCHES = 0.19  # that a line of a legend is high


def write_png(runs: list[Metrics], path: Path, *, title: str) -> None:
    """Accuracy after each task, a chart for each method."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ValueError(
            "a PNG picture needs matplotlib: install the extra `report` (pip install 'carousel-memory[report]'), or "
            "make the report with --format html, which needs nothing"
        ) from error
    pictures = Panels(group(runs))
    charts = [(name, [g for g in members if len(g.curve()) > 1]) for name, members in pictures.by_method()]
    charts = [(name, members) for name, members in charts if members]
    if not charts:
        raise ValueError("there are no curves to draw: every run has only one task")
    across = min(len(charts), 3)
    down = math.ceil(len(charts) / across)
    rows = [charts[i : i + across] for i in range(0, len(charts), across)]
    legends = sum(max(_legend_lines(members) for _, members in row) for row in rows)
    figure = Figure(figsize=(4.6 * across, 3.4 * down + _INCHES * legends + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    bands = "; band: one standard deviation" if any(one.n > 1 for _, members in charts for one in members) else ""
    figure.suptitle(
        f"{title}\nclass-incremental accuracy on the classes seen, after each task{bands}", fontsize="medium"
    )
    axes = figure.subplots(down, across, squeeze=False, sharey=True)
    for axis in list(axes.flat)[len(charts) :]:
        axis.set_visible(False)
    for axis, (name, members) in zip(axes.flat, charts, strict=False):
        for one in members:
            style, points = pictures.style(one), one.curve()
            x = list(range(1, len(points) + 1))
            y = [math.nan if middle is None else middle for middle, _ in points]
            colour = OKABE_ITO[style % len(OKABE_ITO)]
            mark = _MARKS[style % len(_MARKS)] if len(points) <= 12 else None
            dash = _DASHES[style // len(OKABE_ITO) % len(_DASHES)]
            axis.plot(x, y, color=colour, marker=mark, linestyle=dash, markersize=4, label=fill(one.label, _LINE))
            if one.n > 1:
                spread = [s or 0.0 for _, s in points]
                low, high = ([v + sign * s for v, s in zip(y, spread, strict=True)] for sign in (-1, 1))
                axis.fill_between(x, low, high, color=colour, alpha=0.14, linewidth=0)
        axis.set_title(name)
        axis.set_xlabel("task")
        axis.set_ylabel("accuracy %")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(axis="y", alpha=0.3)
        # Below, where it covers no curve however long the labels are.
        beside = {"ncols": 3, "columnspacing": 1.0} if _short(members) else {}
        axis.legend(fontsize="small", frameon=False, loc="upper left", bbox_to_anchor=(-0.08, -0.16), **beside)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")


def _short(members: Sequence[Group]) -> bool:
    return all(len(one.label) <= _SHORT for one in members)


def _legend_lines(members: Sequence[Group]) -> int:
    if _short(members):
        return math.ceil(len(members) / 3)
    return sum(fill(one.label, _LINE).count("\n") + 1 for one in members)
