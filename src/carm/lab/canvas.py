"""What charts are drawn with: a canvas that becomes SVG, colours, and axes with round numbers.

Colours are written as attributes, not as style sheets, so that a picture looks the same wherever it is shown. Those of
a picture in a page are CSS variables, which the page sets for light and for dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
SMALL, LARGE = 11.0, 13.0
BOLD = 1.18  # so much wider

OKABE_ITO = ("#666c73", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8500")
"""Colours that people with any kind of colour vision can tell apart, after Okabe and Ito; grey is
for what the others are measured against, and the yellow is darkened, for lines on white."""
OKABE_ITO_DARK = ("#b9bfc6", "#56b4e9", "#ee7733", "#2bbd92", "#dd92bb", "#e69f00", "#3a8fd0", "#f0e442")
"""The same for a dark ground."""


@dataclass(frozen=True, kw_only=True)
class Palette:
    """The colours of a picture."""

    ink: str
    muted: str
    grid: str
    ground: str
    series: tuple[str, ...]
    own_ground: bool = True  # paint it; False in a page, which has one


LIGHT = Palette(ink="#1b1b1b", muted="#5a5f66", grid="#dfe2e6", ground="#ffffff", series=OKABE_ITO)
"""For a file of its own."""
PAGE = Palette(
    ink="var(--ink)",
    muted="var(--muted)",
    grid="var(--grid)",
    ground="var(--ground)",
    series=tuple(f"var(--c{i})" for i in range(len(OKABE_ITO))),
    own_ground=False,
)
"""For a page that sets the variables."""

_STOPS = ((0, 114, 178), (122, 170, 165), (230, 190, 40))


def ramp(share: float) -> str:
    """A colour between blue (0) and yellow (1): an order that is seen with any kind of colour vision."""
    at = min(max(share, 0.0), 1.0) * (len(_STOPS) - 1)
    low = min(int(at), len(_STOPS) - 2)
    mixed = (a + (b - a) * (at - low) for a, b in zip(_STOPS[low], _STOPS[low + 1], strict=True))
    return "#" + "".join(f"{round(c):02x}" for c in mixed)


def text_width(text: str, size: float) -> float:
    """About as wide as the text is in a common font; rather more than less."""
    wide = sum(
        0.34 if c in "iIljtf.,:;'|! ()[]" else 0.92 if c in "mwMW%" else 0.7 if c.isupper() else 0.58 for c in text
    )
    return wide * size


def wrapped(text: str, size: float, width: float) -> list[str]:
    """The text in lines that are not wider than `width`, as far as its words allow."""
    lines: list[str] = []
    for word in text.split():
        if lines and text_width(f"{lines[-1]} {word}", size) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


def number(value: float) -> str:
    """Coordinates, short."""
    return f"{value:.1f}".removesuffix(".0")


class Canvas:
    """Shapes and text that become an SVG picture. `height` may change until it is rendered."""

    def __init__(self, *, width: float, height: float, title: str, description: str, palette: Palette) -> None:
        self.width, self.height = width, height
        self.title, self.description, self.palette = title, description, palette
        self._parts: list[str] = []

    def add(self, element: str) -> None:
        self._parts.append(element)

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str, *, width: float = 1) -> None:
        ends = f'x1="{number(x1)}" y1="{number(y1)}" x2="{number(x2)}" y2="{number(y2)}"'
        self.add(f'<line {ends} stroke="{stroke}" stroke-width="{number(width)}"/>')

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, *, opacity: float = 1, tip: str = ""
    ) -> None:
        box = f'x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"'
        clear = "" if opacity >= 1 else f' fill-opacity="{opacity:.2f}"'
        self.add(f'<rect {box} fill="{fill}"{clear}' + (f"><title>{escape(tip)}</title></rect>" if tip else "/>"))

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = SMALL,
        fill: str = "",
        anchor: str = "start",
        bold: bool = False,
        turn: float = 0,
    ) -> None:
        extra = (' font-weight="600"' if bold else "") + (
            f' transform="rotate({number(turn)} {number(x)} {number(y)})"' if turn else ""
        )
        where = f'x="{number(x)}" y="{number(y)}" font-size="{number(size)}" text-anchor="{anchor}"'
        self.add(f'<text {where} fill="{fill or self.palette.ink}"{extra}>{escape(text)}</text>')

    def render(self) -> str:
        size = f'viewBox="0 0 {number(self.width)} {number(self.height)}"'
        ground = ""
        if self.palette.own_ground:
            size += f' width="{number(self.width)}" height="{number(self.height)}"'
            ground = f'<rect width="100%" height="100%" fill="{self.palette.ground}"/>'
        described = f"<desc>{escape(self.description)}</desc>" if self.description else ""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(self.title)}" '
            f'font-family="{FONT}"><title>{escape(self.title)}</title>{described}{ground}'
            + "".join(self._parts)
            + "</svg>\n"
        )


# -- axes --------------------------------------------------------------------------------------------------------------


def ticks(low: float, high: float, *, about: int = 5, whole: bool = False) -> list[float]:
    """Round numbers from at most `low` to at least `high`."""
    if not high > low:
        high = low + (abs(low) or 1)
    raw = (high - low) / max(about - 1, 1)
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(s * scale for s in (1, 2, 2.5, 5, 10) if s * scale >= raw * 0.999)
    if whole:
        step = max(1.0, math.ceil(step))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def whole_ticks(low: int, high: int, *, most: int) -> list[int]:
    """Whole numbers from `low` to `high`, both among them, evenly apart as far as that goes; for task numbers."""
    if high - low + 1 <= most:
        return list(range(low, high + 1))
    step = next(s for s in (2, 5, 10, 20, 25, 50, 100, 200, 500, 1000, 10**9) if (high - low) / s + 2 <= most)
    inner = [t for t in range((low // step + 1) * step, high, step) if high - t >= step * 0.6]
    return [low, *[t for t in inner if t - low >= step * 0.6], high]


def tick_labels(marks: Sequence[float]) -> list[str]:
    """Thousands and millions are shortened, alike on the whole axis: 0, 5k, 10k."""
    highest = max(abs(m) for m in marks)
    scales = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, suffix = next(((s, t) for s, t in scales if highest >= s * (10 if t == "k" else 1)), (1.0, ""))
    return [f"{m / size:,.10g}{suffix if m else ''}" for m in marks]


@dataclass(frozen=True)
class Legend:
    """Entries in rows: how many rows there are, and where each entry goes."""

    places: list[tuple[float, int, list[str]]]  # x, row, and the name in lines, each a row below the one before
    rows: int


def legend(names: Sequence[str], *, width: float, mark: float = 24) -> Legend:
    """Entries of `mark` and a name, side by side as far as there is room; a name that is too long takes more rows."""
    places: list[tuple[float, int, list[str]]] = []
    x, row, last = 0.0, 0, 0
    for name in names:
        lines = wrapped(name, SMALL, width - mark - 4) or [""]
        needed = mark + 4 + max(text_width(line, SMALL) for line in lines) + 12
        if x and (x + needed - 12 > width or len(lines) > 1 or last > row):
            x, row = 0.0, last + 1
        places.append((x, row, lines))
        x, last = x + needed, row + len(lines) - 1
    return Legend(places, last + 1 if places else 0)
