"""Charts as SVG: lines with bands, and grouped bars with error bars. No library, no scripts.

    picture = lines([Line(name="CarM-50", x=[1, 2, 3], y=[99, 95, 93], spread=[0.2, 0.5, 1.1])],
                    title="ER", x_label="task", y_label="accuracy %")
    Path("er.svg").write_text(picture)

Every function returns a whole <svg> element. With the palette LIGHT, the default, it is a picture of its own, with its
ground and fonts; with PAGE it belongs into a page that sets the colours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from carm.lab.canvas import (
    BOLD,
    LARGE,
    LIGHT,
    OKABE_ITO,
    PAGE,
    SMALL,
    Canvas,
    Palette,
    legend,
    number,
    text_width,
    tick_labels,
    ticks,
    whole_ticks,
    wrapped,
)

__all__ = ["COLOURS", "DASHES", "LIGHT", "PAGE", "Bars", "Line", "Palette", "bars", "lines"]

_DASHES = ("", "6 3", "2 3")
COLOURS, DASHES = len(OKABE_ITO), len(_DASHES)
"""A style is a colour + COLOURS * a dash."""
_ROW = 16.0  # of a legend
_MARKED = 12  # so many points at most are marked one by one; of more, some
_Place = Callable[[float], float]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line of a chart, with a band of y ± spread. A point whose y is None is left out."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    spread: Sequence[float | None] = ()
    style: int | None = None  # colour, dash and mark; None: by its place in the chart
    alone: Collection[float] = ()  # x of points that no line leads to, because x is no number there


@dataclass(frozen=True, kw_only=True)
class Bars:
    """The bars of one colour: a value for each category, with error bars of ± spread."""

    name: str
    values: Sequence[float | None]
    spread: Sequence[float | None] = ()
    style: int | None = None


class _Frame:
    """Title, legend and axes of a chart, and where values go in it."""

    def __init__(
        self,
        canvas: Canvas,
        *,
        names: Sequence[tuple[str, int]],
        x_label: str,
        y_label: str,
        y_range: tuple[float, float],
        boxes: bool,
        foot: float = 0.0,
    ) -> None:
        self.canvas = canvas
        palette, y = canvas.palette, 4.0
        for text in wrapped(canvas.title, LARGE * BOLD, canvas.width - 8):
            y += 16
            canvas.text(4, y - 2, text, size=LARGE, bold=True)
        y += 4
        if names:
            placed = legend([name for name, _ in names], width=canvas.width - 8, mark=12 if boxes else 24)
            for (_, style), (x, row, lines) in zip(names, placed.places, strict=True):
                self._key(4 + x, y + row * _ROW + 8, lines, style, boxes=boxes)
            y += placed.rows * _ROW + 4
        if y_label:
            canvas.text(4, y + 10, y_label, fill=palette.muted)
            y += 18
        self.top = y + 4
        self.bottom = max(canvas.height - 24 - foot - (16 if x_label else 0), self.top + 130)
        canvas.height = self.bottom + 24 + foot + (16 if x_label else 0)
        marks = ticks(*y_range, about=max(3, min(6, int((self.bottom - self.top) / 32))))
        while len(marks) > 2 and marks[-2] >= y_range[1] - 1e-9:
            marks.pop()
        self.low, self.high = marks[0], marks[-1]
        labels = tick_labels(marks)
        self.left = 10 + max(text_width(text, SMALL) for text in labels)
        self.right = canvas.width - 10
        for mark, text in zip(marks, labels, strict=True):
            at = self.y(mark)
            canvas.line(self.left, at, self.right, at, palette.grid if mark != marks[0] else palette.muted)
            canvas.text(self.left - 5, at + 4, text, fill=palette.muted, anchor="end")
        if x_label:
            middle = (self.left + self.right) / 2
            canvas.text(middle, canvas.height - 8, x_label, fill=palette.muted, anchor="middle")

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.bottom - min(max(share, 0.0), 1.0) * (self.bottom - self.top)

    def _key(self, x: float, y: float, lines: Sequence[str], style: int, *, boxes: bool) -> None:
        canvas, colour = self.canvas, _colour(self.canvas.palette, style)
        if boxes:
            canvas.rect(x, y - 6, 12, 12, colour)
        else:
            dash = f' stroke-dasharray="{_dash(style)}"' if _dash(style) else ""
            canvas.add(f'<path d="M{number(x)} {number(y)}h24" stroke="{colour}" stroke-width="2"{dash}/>')
            _mark(canvas, x + 12, y, style)
        for i, text in enumerate(lines):
            canvas.text(x + (16 if boxes else 28), y + 4 + i * _ROW, text)


def lines(
    series: Sequence[Line],
    *,
    x_label: str,
    y_label: str,
    title: str,
    description: str = "",
    width: float = 480,
    height: float = 300,
    y_range: tuple[float, float] | None = None,
    x_whole: bool = True,
    x_names: Sequence[str] = (),
    palette: Palette = LIGHT,
    show_legend: bool = True,
) -> str:
    """A line chart.

    y_range   from and to at least; None: as the values and their bands need
    x_whole   x are whole numbers, such as those of tasks, the first and last of which are named
    x_names   names for the values of x that occur, in order, which then are evenly apart: ("500", "1k", "all")
    """
    series = [one for one in series if any(y is not None for y in one.y)]
    if not series:
        raise ValueError("series: there is no point to draw")
    canvas = Canvas(width=width, height=height, title=title, description=description, palette=palette)
    styles = [one.style if one.style is not None else i for i, one in enumerate(series)]
    frame = _Frame(
        canvas,
        names=[(one.name, style) for one, style in zip(series, styles, strict=True)] if show_legend else [],
        x_label=x_label,
        y_label=y_label,
        y_range=y_range or _range([_reach(one.y, one.spread) for one in series]),
        boxes=False,
    )
    known = sorted({x for one in series for x in one.x})
    places = {x: float(i) for i, x in enumerate(known)} if x_names else {x: float(x) for x in known}
    low, high = min(places.values()), max(places.values())
    if not x_names and not x_whole and 0 < low < 0.2 * high:
        low = 0.0  # so near that the axis may as well begin there
    pad = 8.0 if len(known) <= _MARKED else 0.0

    def at(x: float) -> float:
        share = (places[x] - low) / (high - low) if high > low else 0.5
        return frame.left + pad + share * (frame.right - frame.left - 2 * pad)

    if x_names:
        _x_names(frame, [(at(x), name) for x, name in zip(known, x_names, strict=True)])
    else:
        _x_numbers(frame, low, high, pad, whole=x_whole)
    for one, style in zip(series, styles, strict=True):
        _band(frame, one, style, at)
    told = dict(zip(known, x_names, strict=True)) if x_names else {x: f"{x:g}" for x in known}
    for one, style in zip(series, styles, strict=True):
        _line(frame, one, style, at, {x: f"{x_label} {name}" for x, name in told.items()})
    return canvas.render()


def bars(
    categories: Sequence[str],
    series: Sequence[Bars],
    *,
    y_label: str,
    title: str,
    x_label: str = "",
    description: str = "",
    width: float = 480,
    height: float = 300,
    y_range: tuple[float, float] | None = None,
    palette: Palette = LIGHT,
    show_legend: bool = True,
    show_values: bool = False,
) -> str:
    """Grouped bars with error bars: for each category a bar of each series. They begin at 0 unless `y_range` says
    otherwise. `show_values` writes the value over each bar, where there is room."""
    for one in series:
        if len(one.values) != len(categories):
            raise ValueError(f"series {one.name!r} has {len(one.values)} values for {len(categories)} categories")
    if not any(v is not None for one in series for v in one.values):
        raise ValueError("series: there is no bar to draw")
    canvas = Canvas(width=width, height=height, title=title, description=description, palette=palette)
    styles = [one.style if one.style is not None else i for i, one in enumerate(series)]
    slot = (width - 60) / max(len(categories), 1)
    folded = [wrapped(name, SMALL, slot - 6) for name in categories]
    turned = any(text_width(word, SMALL) > slot - 4 for name in folded for word in name)
    broad = min(max(text_width(name, SMALL) for name in categories), 110.0)
    frame = _Frame(
        canvas,
        names=[(one.name, style) for one, style in zip(series, styles, strict=True)] if show_legend else [],
        x_label=x_label,
        y_label=y_label,
        y_range=y_range or _range([(0.0, 0.0), *(_reach(one.values, one.spread) for one in series)]),
        boxes=True,
        foot=broad * 0.6 if turned else 14.0 * (max(len(name) for name in folded) - 1),
    )
    slot = (frame.right - frame.left) / len(categories)
    bar = min(slot * 0.8 / len(series), 44.0)
    for i, category in enumerate(categories):
        middle = frame.left + (i + 0.5) * slot
        if turned:
            name = _cut(category, min(broad, (middle - 2) / math.cos(math.radians(35))))
            canvas.text(middle + 4, frame.bottom + 14, name, fill=palette.muted, anchor="end", turn=-35)
        else:
            for k, name in enumerate(folded[i]):
                canvas.text(middle, frame.bottom + 16 + 14 * k, name, fill=palette.muted, anchor="middle")
        for j, (one, style) in enumerate(zip(series, styles, strict=True)):
            value, spread = one.values[i], _at(one.spread, i)
            if value is None:
                continue
            x, zero = middle + (j - len(series) / 2) * bar, frame.y(max(frame.low, 0.0))
            y = frame.y(value)
            tip = f"{category}, {one.name}: {_told(value, spread)}"
            inner = max(bar - 2, 1.0)
            canvas.rect(x + (bar - inner) / 2, min(y, zero), inner, abs(zero - y), _colour(palette, style), tip=tip)
            top = y
            if spread:
                top = _whisker(frame, x + bar / 2, value, spread, min(bar * 0.3, 5))
            written = f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
            if show_values and text_width(written, 10) <= bar + 2:
                canvas.text(x + bar / 2, top - 4, written, size=10, anchor="middle")
    return canvas.render()


# -- pieces ------------------------------------------------------------------------------------------------------------


def _colour(palette: Palette, style: int) -> str:
    return palette.series[style % len(palette.series)]


def _dash(style: int) -> str:
    return _DASHES[style // COLOURS % DASHES]


def _cut(text: str, width: float) -> str:
    while len(text) > 2 and text_width(text, SMALL) > width:
        text = text[:-2] + "…"
    return text


def _at(values: Sequence[float | None], i: int) -> float | None:
    return values[i] if i < len(values) else None


def _told(value: float, spread: float | None) -> str:
    return f"{value:,.4g}" if spread is None else f"{value:,.4g} ± {spread:,.2g}"


def _reach(values: Sequence[float | None], spread: Sequence[float | None]) -> tuple[float, float]:
    there = [(v, _at(spread, i) or 0.0) for i, v in enumerate(values) if v is not None]
    return min((v - s for v, s in there), default=0.0), max((v + s for v, s in there), default=0.0)


def _range(reaches: Sequence[tuple[float, float]]) -> tuple[float, float]:
    low, high = min(r[0] for r in reaches), max(r[1] for r in reaches)
    return (low, high) if high > low else (min(low, 0.0), high if high > min(low, 0.0) else 1.0)


def _x_numbers(frame: _Frame, low: float, high: float, pad: float, *, whole: bool) -> None:
    room = frame.right - frame.left - 2 * pad
    if whole and low == int(low) and high == int(high):
        marks = [float(t) for t in whole_ticks(int(low), int(high), most=max(2, int(room / 26)))]
    else:
        marks = [m for m in ticks(low, high, about=max(2, int(room / 45))) if low <= m <= high]
    for mark, label in zip(marks, tick_labels(marks), strict=True):
        x = frame.left + pad + ((mark - low) / (high - low) if high > low else 0.5) * room
        over = x + text_width(label, SMALL) / 2 - frame.canvas.width
        x -= max(over, 0.0)
        frame.canvas.text(x, frame.bottom + 16, label, fill=frame.canvas.palette.muted, anchor="middle")


def _x_names(frame: _Frame, names: Sequence[tuple[float, str]]) -> None:
    """As many of the names as there is room for; the first always."""
    end = -math.inf
    for x, name in names:
        half = text_width(name, SMALL) / 2
        if x - half > end:
            frame.canvas.text(x, frame.bottom + 16, name, fill=frame.canvas.palette.muted, anchor="middle")
            end = x + half + 6


def _band(frame: _Frame, one: Line, style: int, at: _Place) -> None:
    edge = [
        (at(x), frame.y(y + s), frame.y(y - s))
        for i, (x, y) in enumerate(zip(one.x, one.y, strict=True))
        if y is not None and (s := _at(one.spread, i)) is not None and x not in one.alone
    ]
    if len(edge) < 2:
        return
    points = [(x, up) for x, up, _ in edge] + [(x, down) for x, _, down in reversed(edge)]
    path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    frame.canvas.add(f'<polygon points="{path}" fill="{_colour(frame.canvas.palette, style)}" fill-opacity="0.14"/>')


def _line(frame: _Frame, one: Line, style: int, at: _Place, names: Mapping[float, str]) -> None:
    canvas, colour = frame.canvas, _colour(frame.canvas.palette, style)
    there = [(x, y, _at(one.spread, i)) for i, (x, y) in enumerate(zip(one.x, one.y, strict=True)) if y is not None]
    path = "L".join(f"{number(at(x))} {number(frame.y(y))}" for x, y, _ in there if x not in one.alone)
    dash = f' stroke-dasharray="{_dash(style)}"' if _dash(style) else ""
    if path:
        joined = f'stroke-width="1.8" stroke-linejoin="round"{dash}'
        canvas.add(f'<path d="M{path}" fill="none" stroke="{colour}" {joined}/>')
    for x, y, spread in there:
        if x in one.alone and spread is not None:
            canvas.line(at(x), frame.y(y - spread), at(x), frame.y(y + spread), colour)
    every = 1 if len(there) <= _MARKED else math.ceil(len(there) / 8)
    for i, (x, y, spread) in enumerate(there):
        if i % every == every // 2:
            _mark(canvas, at(x), frame.y(y), style, tip=f"{one.name}, {names[x]}: {_told(y, spread)}")


def _mark(canvas: Canvas, x: float, y: float, style: int, *, tip: str = "") -> None:
    """A shape for each style, so that lines are told apart without colours too."""
    colour = _colour(canvas.palette, style)
    shape = (style % COLOURS + style // COLOURS) % 5
    if shape == 0:
        element, path = "circle", f'cx="{number(x)}" cy="{number(y)}" r="3"'
    else:
        moves = {
            1: f"M{number(x - 3)} {number(y - 3)}h6v6h-6z",
            2: f"M{number(x)} {number(y - 4)}l4 7h-8z",
            3: f"M{number(x)} {number(y - 4.2)}l4.2 4.2l-4.2 4.2l-4.2 -4.2z",
            4: f"M{number(x)} {number(y + 4)}l4 -7h-8z",
        }
        element, path = "path", f'd="{moves[shape]}"'
    inner = f"<title>{escape(tip)}</title>" if tip else ""
    canvas.add(f'<{element} {path} fill="{colour}">{inner}</{element}>')


def _whisker(frame: _Frame, x: float, value: float, spread: float, half: float) -> float:
    """An error bar; returns where it ends at the top."""
    up, down, ink = frame.y(value + spread), frame.y(value - spread), frame.canvas.palette.ink
    frame.canvas.line(x, up, x, down, ink)
    frame.canvas.line(x - half, up, x + half, up, ink)
    frame.canvas.line(x - half, down, x + half, down, ink)
    return up
