"""How a run tells what it is doing: moments for whoever watches, and a short series for the record."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

_POINTS = 120  # of a series: enough for a plot


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a run is."""

    done: float  # 0 to 1
    task: int
    tasks: int
    number: int  # passes over the task that are done
    passes: int
    loss: float
    accuracy: float | None  # after the last task, over the classes seen
    swapped: int
    queue: int


class Watch:
    """Base class of watchers: override `__call__`. It is called at the end of a pass, and every `seconds` between."""

    seconds = 0.2

    def __init__(self) -> None:
        self._last = time.monotonic()

    def due(self) -> bool:
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True

    def __call__(self, moment: Moment) -> None:
        """Nobody watches."""


class Pace:
    """Swaps per second, between one call and the next."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None

    def __call__(self, swapped: int) -> float:
        now, before = time.monotonic(), self._last
        self._last = (now, swapped)
        return 0.0 if before is None or now <= before[0] else max(swapped - before[1], 0) / (now - before[0])


class Series:
    """Loss, swaps and queue over the steps of a run, at the ends of passes; at most so many points, evenly thinned."""

    _names = ("step", "loss", "swapped", "queue", "drawn")

    def __init__(self) -> None:
        self._points: list[list[float]] = []
        self._stride, self._seen, self._step = 1, 0, 0

    def add(self, steps: int, loss: float, swapped: int, queue: int, drawn: int) -> None:
        self._step += steps
        self._seen += 1
        if self._seen % self._stride == 0:
            self._points.append([self._step, round(loss, 5), swapped, queue, drawn])
        if len(self._points) > _POINTS:
            self._points = self._points[1::2]
            self._stride *= 2

    def as_dict(self) -> dict[str, Any]:
        columns = {name: [p[i] for p in self._points] for i, name in enumerate(self._names)}
        return columns | {"thinned": [self._stride, self._seen, self._step]}

    def load(self, state: dict[str, Any]) -> None:
        self._points = [list(p) for p in zip(*(state[name] for name in self._names), strict=True)]
        self._stride, self._seen, self._step = state["thinned"]
