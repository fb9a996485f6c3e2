"""Random subsets: uniform, different within a draw, and the same again after a restore."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from carm.memory import draws as module
from carm.memory.draws import Draws


def _draws(seed: int = 0) -> Draws:
    return Draws(np.random.default_rng(seed))


def _saved(draws: Draws) -> dict[str, Any]:
    """The state as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(draws.state_dict(), file)
    file.seek(0)
    return dict(torch.load(file, weights_only=True))


@pytest.mark.parametrize(("count", "n"), [(1, 1), (5, 1), (5, 5), (40, 7), (40, 30), (5000, 64), (10**6, 10)])
def test_numbers_are_in_range_and_different(count: int, n: int) -> None:
    draws = _draws()
    for _ in range(40):
        subset = draws.subset(count, n)
        assert len(set(subset.tolist())) == n and subset.min() >= 0 and subset.max() < count


@pytest.mark.parametrize(("count", "n"), [(6, 2), (6, 4)])
def test_every_subset_is_as_likely_as_every_other(count: int, n: int) -> None:
    draws, times = _draws(1), 15 * 600
    seen = Counter(frozenset(draws.subset(count, n).tolist()) for _ in range(times))
    assert len(seen) == 15  # 6 over 2, and 6 over 4
    assert sum((k - times / 15) ** 2 / (times / 15) for k in seen.values()) < 36.1  # 0.1 % of cases


def test_draws_of_several_sizes_do_not_undo_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    draws, made = _draws(), []
    draw = Draws._draw

    def counted(self: Draws, count: int, n: int) -> Any:
        made.append(n)
        return draw(self, count, n)

    monkeypatch.setattr(Draws, "_draw", counted)
    for _ in range(64):
        draws.subset(1000, 32)
        draws.subset(1000, 16)
    assert Counter(made) == {32: 2, 16: 2}
    for n in range(1, 40):  # and what is drawn ahead is bounded
        draws.subset(1000, n)
        assert len(draws._blocks) <= module._SIZES


def test_a_restored_one_goes_on_with_the_same_draws() -> None:
    sizes = [3, 8, 3, 3, 20, 8, 3]
    for before in (0, 1, 10, 100, 333):
        draws = _draws(5)
        for i in range(before):
            draws.subset(100, sizes[i % 7])
        other = _draws(6)
        other.subset(50, 4)
        other.load_state_dict(_saved(draws))
        for i in range(before, before + 300):
            assert other.subset(100, sizes[i % 7]).tolist() == draws.subset(100, sizes[i % 7]).tolist()
        assert other.subset(101, 3).tolist() == draws.subset(101, 3).tolist()
