"""Runs in turns: one at a time, all of them to the end, and what others took is known."""

from __future__ import annotations

import itertools
import threading
import time
from functools import partial
from typing import Any

import pytest

from carm.lab.paper.turns import Stopped, Turn, Turns, take_turns
from carm.lab.watch import Moment


def moment(task: int) -> Moment:
    return Moment(0.0, task, 2, 0, 1, 0.0, None, 0, 0)


def job(steps: int, log: list[int], inside: list[int], worked: dict[int, float], turns: Turns, number: int) -> Turn:
    turn = Turn(turns, number)
    turn.seconds = 0.01
    for step in range(steps):
        begun = time.perf_counter()
        inside.append(number)
        log.append(number)
        time.sleep(0.004)
        worked[number] = worked.get(number, 0.0) + time.perf_counter() - begun
        assert inside == [number], "two sides at once"
        inside.clear()
        turn(moment(2 * step // steps))
    return turn


def test_one_at_a_time_in_turns_and_all_to_the_end() -> None:
    log: list[int] = []
    inside: list[int] = []
    worked: dict[int, float] = {}
    begun = time.perf_counter()
    sides = take_turns([partial(job, steps, log, inside, worked) for steps in (30, 30, 9)])
    wall = time.perf_counter() - begun
    assert [log.count(n) for n in range(3)] == [30, 30, 9]
    changes = sum(a != b for a, b in itertools.pairwise(log))
    assert changes >= 12, "they did not take turns"
    for side, steps in zip(sides, (30, 30, 9), strict=True):
        waited = sum(side.waited.values())
        assert set(side.waited) == {0, 1}
        assert waited < wall
        assert waited >= 0.004 * 6, f"others worked while a side of {steps} steps waited"
    # What the others worked, a side has waited; but for their last turns, after it was done.
    assert sum(sides[0].waited.values()) > 0.5 * (worked[1] + worked[2])


def test_something_is_done_at_every_task_but_the_first() -> None:
    seen: list[str] = []

    def one(turns: Turns, number: int) -> None:
        turn = Turn(turns, number, lambda: seen.append("cold"))
        for task in (0, 0, 1, 1, 2):
            turn(moment(task))

    take_turns([one])
    assert seen == ["cold", "cold"]


def test_a_failure_stops_the_others() -> None:
    ended: list[Any] = []

    def fails(turns: Turns, number: int) -> None:
        raise ValueError("no good")

    def goes_on(turns: Turns, number: int) -> None:
        turn = Turn(turns, number)
        turn.seconds = 0.0
        try:
            for _ in range(10_000):
                turn(moment(0))
        except Stopped:
            ended.append(number)
            raise

    with pytest.raises(ValueError, match="no good"):
        take_turns([goes_on, fails, goes_on])
    assert set(ended) <= {0, 2} and ended
    assert not [t for t in threading.enumerate() if t.name.startswith("carm-side")]
