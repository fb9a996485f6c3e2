"""Charts made of tiles, as SVG: heat maps, and stacked columns. Used as those in `carm.lab.svg`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carm.lab.canvas import (
    BOLD,
    LARGE,
    LIGHT,
    SMALL,
    Canvas,
    Palette,
    ramp,
    text_width,
    tick_labels,
    ticks,
    whole_ticks,
    wrapped,
)

_BLUE = "#0072b2"
_APART = 20  # with more columns tiles are drawn as one shape for each shade: thousands of elements make a page slow
_CRISP = ' shape-rendering="crispEdges"'  # no fine lines between tiles that touch


@dataclass(frozen=True, kw_only=True)
class Stack:
    """Columns of parts, one over the other; part i has the same colour in all columns."""

    title: str
    columns: Sequence[Sequence[float]]
    names: Sequence[str]  # of the parts


def heat(
    matrix: Sequence[Sequence[float | None]],
    *,
    title: str,
    x_label: str,
    y_label: str,
    description: str = "",
    width: float = 260,
    palette: Palette = LIGHT,
    top: float = 100.0,
) -> str:
    """A matrix as shades of blue, from 0 to `top`; rows may be of different lengths. With few cells, also numbers."""
    rows, columns = len(matrix), max(len(row) for row in matrix)
    canvas = Canvas(width=width, height=0, title=title, description=description, palette=palette)
    head = wrapped(title, LARGE * BOLD, width - 8)
    for i, text in enumerate(head):
        canvas.text(4, 18 + 16 * i, text, size=LARGE, bold=True)
    left, above = 8 + text_width(str(rows), SMALL) + 4, 20.0 + 16 * len(head)
    canvas.text(4, above - 2, y_label, fill=palette.muted)
    above += 6
    size = (width - left - 6) / columns
    tall = size if rows <= 12 else min(size, 220 / rows)
    tall = min(tall, 44.0)
    canvas.height = above + rows * tall + 38
    if columns > _APART:
        _merged_cells(canvas, matrix, left, above, size, tall, top)
    else:
        for t, row in enumerate(matrix):
            for j, value in enumerate(row):
                if value is None:
                    continue
                share = min(max(value / top, 0.0), 1.0)
                x, y = left + j * size, above + t * tall
                tip = f"task {j + 1} after task {t + 1}: {value:.1f}"
                canvas.rect(x + 0.5, y + 0.5, size - 1, tall - 1, _BLUE, opacity=0.06 + 0.94 * share, tip=tip)
                written = f"{value:.0f}"
                if size >= text_width("100", 10.5) and tall >= 13:
                    ink = "#ffffff" if share > 0.8 else palette.ink
                    canvas.text(x + size / 2, y + tall / 2 + 4, written, size=10.5, anchor="middle", fill=ink)
    for t in whole_ticks(1, rows, most=max(2, int(rows * tall / 14))):
        canvas.text(left - 4, above + (t - 0.5) * tall + 4, str(t), fill=palette.muted, anchor="end")
    for j in whole_ticks(1, columns, most=max(2, int(columns * size / 22))):
        canvas.text(left + (j - 0.5) * size, above + rows * tall + 13, str(j), fill=palette.muted, anchor="middle")
    canvas.text(left + columns * size / 2, canvas.height - 8, x_label, fill=palette.muted, anchor="middle")
    return canvas.render()


def stacks(
    parts: Sequence[Stack],
    *,
    title: str,
    x_label: str,
    description: str = "",
    width: float = 360,
    height: float = 200,
    palette: Palette = LIGHT,
) -> str:
    """Stacked columns, several charts side by side, each with its own scale; parts are shaded from first to last."""
    canvas = Canvas(width=width, height=height, title=title, description=description, palette=palette)
    head = wrapped(title, LARGE * BOLD, width - 8)
    for i, text in enumerate(head):
        canvas.text(4, 18 + 16 * i, text, size=LARGE, bold=True)
    above, below = 44.0 + 16 * (len(head) - 1), height - 38
    share = width / 2 if len(parts) < 3 else width / len(parts)
    for i, one in enumerate(parts):
        _stack(canvas, one, share * i, share, above, below, x_label)
    return canvas.render()


# -- pieces ------------------------------------------------------------------------------------------------------------


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{x:.2f} {y:.2f}h{width:.2f}v{height:.2f}h-{width:.2f}z"


def _merged_cells(
    canvas: Canvas,
    matrix: Sequence[Sequence[float | None]],
    left: float,
    above: float,
    size: float,
    tall: float,
    top: float,
) -> None:
    """One shape for all cells of about the same value."""
    levels: dict[int, list[str]] = {}
    for t, row in enumerate(matrix):
        for j, value in enumerate(row):
            if value is not None:
                level = round(40 * min(max(value / top, 0.0), 1.0))
                levels.setdefault(level, []).append(_box(left + j * size, above + t * tall, size, tall))
    for level, cells in sorted(levels.items()):
        clear = f'fill-opacity="{0.06 + 0.94 * level / 40:.2f}"'
        canvas.add(f'<path d="{"".join(cells)}" fill="{_BLUE}" {clear}{_CRISP}/>')


def _stack(canvas: Canvas, one: Stack, x: float, width: float, above: float, below: float, x_label: str) -> None:
    palette = canvas.palette
    highest = max(sum(column) for column in one.columns)
    marks = ticks(0, highest or 1, about=4)
    labels = tick_labels(marks)
    left = x + 8 + max(text_width(text, SMALL) for text in labels)
    right = x + width - 8

    def y(value: float) -> float:
        return below - value / marks[-1] * (below - above)

    canvas.text(left, above - 8, one.title, fill=palette.ink)
    for mark, text in zip(marks, labels, strict=True):
        canvas.line(left, y(mark), right, y(mark), palette.grid if mark else palette.muted)
        canvas.text(left - 4, y(mark) + 4, text, fill=palette.muted, anchor="end")
    slot = (right - left) / len(one.columns)
    gap = 0.15 * slot
    shades = [ramp(i / (len(one.names) - 1) if len(one.names) > 1 else 0) for i in range(len(one.names))]
    merged: dict[int, list[str]] = {}
    for t, column in enumerate(one.columns):
        base = 0.0
        for i, value in enumerate(column):
            if value <= 0:
                continue
            at, tall = y(base + value), y(base) - y(base + value)
            base += value
            if len(one.columns) > _APART:
                merged.setdefault(i, []).append(_box(left + t * slot, at, slot, tall))
                continue
            seam = 0.5 if tall > 2 else 0.0
            tip = f"{x_label} {t + 1}, {one.names[i]}: {value:,.4g}"
            canvas.rect(left + t * slot + gap, at, slot - 2 * gap, tall - seam, shades[i], tip=tip)
    for i, boxes in merged.items():
        canvas.add(f'<path d="{"".join(boxes)}" fill="{shades[i]}"{_CRISP}/>')
    for t in whole_ticks(1, len(one.columns), most=max(2, int((right - left) / 22))):
        canvas.text(left + (t - 0.5) * slot, below + 14, str(t), fill=palette.muted, anchor="middle")
    canvas.text((left + right) / 2, below + 30, x_label, fill=palette.muted, anchor="middle")
