"""How a sweep shows what it is doing: one display for all its runs, or a line per finished run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from carm.lab.watch import Pace

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from carm.lab.sweep import Job


class Progress:
    """On a terminal, a bar over all runs and a line for each that is running; elsewhere a line for each that ended."""

    def __init__(self, *, total: int, cached: int, console: Console | None = None) -> None:
        from rich.console import Console

        self.console = console if console is not None else Console(stderr=True, highlight=False, markup=False)
        self.total, self.cached, self.done = total, cached, cached
        self.begun = time.monotonic()
        self.running: dict[str, _Line] = {}
        self._live: Any = None

    def __enter__(self) -> Progress:
        if self.cached:
            self.console.print(f"{self.cached} of {self.total} runs were finished before")
        if self.console.is_terminal and self.total > self.cached:
            from rich.live import Live

            self._live = Live(get_renderable=self._render, console=self.console, refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live is not None:
            self._live.__exit__(*error)

    def begin(self, job: Job) -> None:
        self.running[job.key] = _Line(job.title)

    def moment(self, job: Job, moment: dict[str, Any]) -> None:
        if job.key in self.running:
            self.running[job.key].update(moment)

    def end(self, job: Job, metrics: dict[str, Any] | None, error: str | None) -> None:
        line = self.running.pop(job.key, None)
        self.done += 1
        took = f"{time.monotonic() - line.begun:.0f} s" if line else ""
        if metrics is None:
            outcome = f"FAILED after {took}: {error}"
        else:
            final = metrics["final"]
            outcome = f"{final['ci']['accuracy']:.2f} % ({final['ti']['accuracy']:.2f} % task-incremental) in {took}"
        self.console.print(f"[{self.done}/{self.total}] {job.title}: {outcome}", soft_wrap=True)

    def eta(self) -> float | None:
        """Seconds to go, if the runs to come take as long as those so far."""
        made = self.done - self.cached + sum(line.done for line in self.running.values())
        if made < 0.02:
            return None
        return (time.monotonic() - self.begun) / made * (self.total - self.cached - made)

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        eta = self.eta()
        head = Table.grid(padding=(0, 1))
        now = self.done + sum(line.done for line in self.running.values())
        bar = ProgressBar(total=self.total, completed=now, width=40)
        head.add_row(bar, f"{self.done}/{self.total} runs", "" if eta is None else f"{duration(eta)} to go")
        return Group(head, *(Text(str(line), no_wrap=True, overflow="ellipsis") for line in self.running.values()))


class _Line:
    """A run that is running."""

    def __init__(self, title: str) -> None:
        self.title, self.text, self.done = title, "starting", 0.0
        self.begun = time.monotonic()
        self._pace = Pace()

    def update(self, moment: dict[str, Any]) -> None:
        self.done = float(moment["done"])
        parts = [
            f"task {moment['task'] + 1}/{moment['tasks']}",
            f"pass {min(moment['number'] + 1, moment['passes'])}/{moment['passes']}",
            f"loss {moment['loss']:.3f}",
        ]
        if moment["accuracy"] is not None:
            parts.append(f"{moment['accuracy']:.1f} %")
        parts += [f"{self._pace(moment['swapped']):.0f} swaps/s", f"queue {moment['queue']}"]
        self.text = "  ".join(parts)

    def __str__(self) -> str:
        return f"{100 * self.done:3.0f} %  {self.title}  {self.text}"


def duration(seconds: float) -> str:
    """For people: 45 s, 12 min, 3.5 h, 4 days."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} days"
