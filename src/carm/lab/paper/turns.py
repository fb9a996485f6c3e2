"""Several runs in one process, of which one goes on at a time, each for a moment, in turns.

A machine that others use too is faster in one minute and slower in the next, by more than what is to be measured. Runs
that take turns of a tenth of a second all meet the same minutes. What a run has left for its swap worker to do is done
during the turn of the next one: some ten milliseconds at most, and only where storage is slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from carm.lab.watch import Moment, Watch


class Stopped(Exception):
    """Another run has failed, or Ctrl-C was pressed."""


class Turns:
    """Whose turn it is."""

    def __init__(self, count: int) -> None:
        self._changed = threading.Condition()
        self._left = list(range(count))
        self._now = 0
        self._stopped = False

    def wait(self, number: int) -> None:
        """Until it is the turn of this one."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._now == number)
            if self._stopped:
                raise Stopped

    def end(self, number: int, *, for_good: bool = False) -> None:
        """The next one's turn."""
        with self._changed:
            at = self._left.index(number)
            following = self._left[(at + 1) % len(self._left)]
            if for_good:
                self._left.remove(number)
            if self._now == number:
                self._now = following
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()


class Turn(Watch):
    """Watches a run, and gives the turn to the others when it has lasted `seconds`; knows how long they then took.

    `at_task` is called early in every task but the first, off the clock.
    """

    seconds = 0.1

    def __init__(self, turns: Turns, number: int, at_task: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.turns, self.number, self.at_task = turns, number, at_task
        self.waited: dict[int, float] = {}
        """Seconds that were others', by task."""
        self.others: dict[int, float] = {}
        """CPU seconds of theirs."""
        self._task = 0

    def due(self) -> bool:
        return time.monotonic() - self._last >= self.seconds

    def __call__(self, moment: Moment) -> None:
        begun, cpu = time.perf_counter(), time.process_time()
        if self.at_task is not None and moment.task != self._task:
            self.at_task()
        self._task = moment.task
        if self.due():
            self.turns.end(self.number)
            self.turns.wait(self.number)
            self._last = time.monotonic()
        self.waited[moment.task] = self.waited.get(moment.task, 0.0) + time.perf_counter() - begun
        self.others[moment.task] = self.others.get(moment.task, 0.0) + time.process_time() - cpu


def take_turns(jobs: Sequence[Callable[[Turns, int], Any]]) -> list[Any]:
    """Carry the jobs out in turns, each in a thread of its own; their results. The first failure stops all."""
    turns = Turns(len(jobs))
    results: list[Any] = [None] * len(jobs)
    failures: list[BaseException] = []

    def carry_out(number: int) -> None:
        try:
            turns.wait(number)
            results[number] = jobs[number](turns, number)
        except Stopped:
            pass
        except BaseException as error:
            failures.append(error)
            turns.stop()
        finally:
            turns.end(number, for_good=True)

    threads = [threading.Thread(target=carry_out, args=(n,), name=f"carm-side-{n}") for n in range(len(jobs))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:
        turns.stop()
        for thread in threads:
            thread.join()
        raise
    if failures:
        raise failures[0]
    return results
