"""Results: one row per comparison, as a table for people and as JSON for everyone else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.table import Table

from carm.bench.timing import Spread, median_interval, ratios

Unit = Literal["items/s", "us", "ms", "s", "bytes"]
_SCALE = {"us": 1e6, "ms": 1e3, "s": 1.0, "bytes": 1.0}


@dataclass(frozen=True)
class Target:
    """What a ratio should be."""

    sense: Literal[">=", "<="]
    value: float

    def reached(self, ratio: float) -> bool:
        return ratio >= self.value if self.sense == ">=" else ratio <= self.value

    def __str__(self) -> str:
        return f"{self.sense} {self.value:g}"


@dataclass(frozen=True)
class Row:
    """One comparison. `ours` and `baseline` are medians, in `unit`; `ratio` is the median of the ratios."""

    name: str
    variant: str
    unit: str
    ours: float
    baseline: float | None
    against: str
    ratio: float
    spread: Spread
    interval: tuple[float, float] | None  # 95 %, of the median
    target: Target | None
    repetitions: int
    note: str = ""

    @property
    def reached(self) -> bool | None:
        return None if self.target is None else self.target.reached(self.ratio)

    def as_dict(self) -> dict[str, Any]:
        fields = asdict(self) | {"reached": self.reached}
        fields["target"] = None if self.target is None else str(self.target)
        return fields


def _shown(seconds: list[float], unit: Unit) -> float:
    median = float(np.median(seconds))
    return 1.0 / median if unit == "items/s" else median * _SCALE[unit]


def compare(
    name: str,
    variant: str,
    ours: list[float],
    baseline: list[float],
    *,
    of: Literal["speed", "cost"],
    unit: Unit,
    against: str,
    target: Target | None = None,
    note: str = "",
) -> Row:
    """A row of two sides' seconds per item. Ratio of speeds: more is better; of costs: less is better."""
    each = ratios(baseline, ours) if of == "speed" else ratios(ours, baseline)
    spread = Spread.of(each)
    return Row(
        name,
        variant,
        unit,
        _shown(ours, unit),
        _shown(baseline, unit),
        against,
        spread.median,
        spread,
        median_interval(each),
        target,
        len(each),
        note,
    )


def amount(
    name: str,
    variant: str,
    values: list[float],
    *,
    unit: Unit,
    against: str,
    target: Target | None = None,
    note: str = "",
) -> Row:
    """A row for a number that has a bound of its own instead of another side; the number takes the ratio's place."""
    spread = Spread.of(values)
    shown = _shown(values, unit)
    return Row(name, variant, unit, shown, None, against, spread.median, spread, None, target, len(values), note)


# -- what is written ---------------------------------------------------------------------------------------------------


def write_json(path: Path, rows: Sequence[Row], circumstances: dict[str, Any]) -> None:
    document = {"machine": circumstances, "rows": [row.as_dict() for row in rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def _number(value: float, unit: str) -> str:
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits}/s" if unit == "items/s" else f"{digits} {unit}"


def table(rows: Sequence[Row]) -> Table:
    """For people: the ratio, the middle half of what was measured, and whether the target is reached."""
    out = Table(title="Carousel Memory, measured", title_justify="left")
    for heading in ("benchmark", "variant", "against"):
        out.add_column(heading, overflow="fold")
    for heading in ("ours", "other", "ratio", "quartiles", "target", "reached"):
        out.add_column(heading, justify="right", no_wrap=True)
    last = ""
    for row in rows:
        if last and row.name != last:
            out.add_section()
        quartiles = f"{row.spread.quartile1:.3g} - {row.spread.quartile3:.3g}"
        out.add_row(
            "" if row.name == last else row.name,
            row.variant,
            row.against,
            _number(row.ours, row.unit),
            "" if row.baseline is None else _number(row.baseline, row.unit),
            "" if row.baseline is None else f"{row.ratio:.3g}",
            "" if row.repetitions == 1 else quartiles,
            "" if row.target is None else str(row.target),
            "" if row.reached is None else "[green]yes" if row.reached else "[red]no",
        )
        last = row.name
    return out


def notes(rows: Sequence[Row]) -> list[str]:
    """What must be said about rows, once each."""
    return list(dict.fromkeys(f"{row.name}: {row.note}" for row in rows if row.note))
