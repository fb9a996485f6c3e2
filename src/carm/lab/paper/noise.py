"""Whether a difference is more than noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Literal

Verdict = Literal["holds", "holds in part", "within noise", "does not hold"]

MARKS: dict[Verdict, str] = {"holds": "✓", "holds in part": "◐", "within noise": "~", "does not hold": "✗"}
ONE_SEED = "One seed: noise is not known, and every difference counts as it is."
# Student's t, 97.5 %, for 1 to 30 degrees of freedom
_T = [12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13]
_T += [2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04]


@dataclass(frozen=True)
class Difference:
    """A difference of means, and how far off it may be: half of its 95 % interval; None if a side has one seed."""

    mean: float
    noise: float | None

    def __str__(self) -> str:
        return f"{self.mean:+.1f}" if self.noise is None else f"{self.mean:+.1f}±{self.noise:.1f}"


def difference(a: Sequence[float], b: Sequence[float] | float) -> Difference:
    """Of the means of `a` and `b`, by Welch's interval; a number `b` is a mark that has no noise of its own."""
    if isinstance(b, (int, float)):
        noise = t(len(a) - 1) * math.sqrt(variance(a) / len(a)) if len(a) > 1 else None
        return Difference(fmean(a) - b, noise)
    mean = fmean(a) - fmean(b)
    if len(a) < 2 or len(b) < 2:
        return Difference(mean, None)
    u, v = variance(a) / len(a), variance(b) / len(b)
    if u + v == 0:
        return Difference(mean, 0.0)
    freedom = (u + v) ** 2 / (u**2 / (len(a) - 1) + v**2 / (len(b) - 1))
    return Difference(mean, t(freedom) * math.sqrt(u + v))


def t(freedom: float) -> float:
    return _T[min(max(int(freedom), 1), len(_T)) - 1]


@dataclass(frozen=True)
class Part:
    """A claim for one method, say."""

    label: str
    verdict: Verdict
    numbers: str


def more(label: str, a: Sequence[float], b: Sequence[float]) -> Part:
    """`a` is above `b`, by more than noise."""
    d = difference(a, b)
    noise = d.noise or 0.0
    verdict: Verdict = "holds" if d.mean > noise else "does not hold" if d.mean < -noise else "within noise"
    return Part(label, verdict, f"{label} {d}")


def near(label: str, a: Sequence[float], b: Sequence[float] | float, margin: float, *, both: bool = False) -> Part:
    """`a` is not below `b` (with `both`: nor above) by more than `margin`."""
    d = difference(a, b)
    gap = abs(d.mean) if both else -d.mean
    noise = d.noise or 0.0
    verdict: Verdict = "holds" if gap <= margin else "does not hold" if gap - noise > margin else "within noise"
    return Part(label, verdict, f"{label} {d}")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and how it fares here."""

    claim: str
    verdict: Verdict
    numbers: str

    def __str__(self) -> str:
        return f"{self.verdict}: {self.claim} ({self.numbers})"

    @classmethod
    def of(cls, claim: str, parts: Iterable[Part]) -> list[Claim]:
        """No claim if there is nothing to judge. It holds if all parts hold, and in part if some do."""
        parts = list(parts)
        if not parts:
            return []
        held = sum(part.verdict == "holds" for part in parts)
        against = sum(part.verdict == "does not hold" for part in parts)
        verdict: Verdict = "within noise"
        if held == len(parts):
            verdict = "holds"
        elif held:
            verdict = "holds in part"
        elif against:
            verdict = "does not hold"
        marks = {"holds": "", "within noise": " ~", "does not hold": " ✗", "holds in part": ""}
        told = ", ".join(part.numbers + marks[part.verdict] for part in parts)
        count = "" if len(parts) == 1 else f"{held} of {len(parts)}: "
        return [cls(claim, verdict, count + told)]
