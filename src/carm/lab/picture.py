"""The curves as a PNG picture, by matplotlib where that is installed: for places that show neither HTML nor SVG."""

from __future__ import annotations

import math
from pathlib import Path

from carm.lab.canvas import OKABE_ITO
from carm.lab.compare import Metrics, group
from carm.lab.panels import Panels

_MARKS, _DASHES = "os^Dv", ("-", "--", ":")


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
    figure = Figure(figsize=(4.6 * across, 3.6 * down + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
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
            axis.plot(x, y, color=colour, marker=mark, linestyle=dash, markersize=4, label=one.label)
            if one.n > 1:
                spread = [s or 0.0 for _, s in points]
                low, high = ([v + sign * s for v, s in zip(y, spread, strict=True)] for sign in (-1, 1))
                axis.fill_between(x, low, high, color=colour, alpha=0.14, linewidth=0)
        axis.set_title(name)
        axis.set_xlabel("task")
        axis.set_ylabel("accuracy %")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(axis="y", alpha=0.3)
        axis.legend(fontsize="small", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")
