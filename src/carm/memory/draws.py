"""Random subsets, many at a time.

A training loop draws the same numbers of slots from the same number of slots again and again. `Generator.choice` spends
most of its time on the call, not on the numbers, and would cost as much as copying the samples; so a block of subsets
of each size is drawn with a few vectorised steps, and handed out one by one. What is left of the blocks is part of the
state, so that a restored run goes on with the very same draws.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import length_hint
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_BLOCK = 32  # subsets per block
_SIZES = 8  # of which there are blocks at once
_SCRATCH = 1 << 20  # most cells of scratch memory


class Draws:
    """Uniform random subsets of {0, ..., count - 1}, independent of each other."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._count = 0
        self._blocks: dict[int, tuple[Ints, Iterator[Ints]]] = {}  # by size: those drawn ahead, and those of them left

    def subset(self, count: int, n: int) -> Ints:
        """`n` different numbers below `count`, in no particular order."""
        if count != self._count:
            self._count, self._blocks = count, {}
        try:
            return next(self._blocks[n][1])
        except (KeyError, StopIteration):
            if n not in self._blocks and len(self._blocks) >= _SIZES:
                self._blocks = {}
            return next(self._hold(n, self._draw(count, n)))

    def _hold(self, n: int, block: Ints) -> Iterator[Ints]:
        left = iter(block)
        self._blocks[n] = block, left
        return left

    def _draw(self, count: int, n: int) -> Ints:
        rows = min(_BLOCK, _SCRATCH // count)
        if rows < 4 or n > count // 2:  # hard to do in one go, and the copy dwarfs the call anyway
            return self.rng.choice(count, n, replace=False)[None, :]
        # Every cell takes a random number; where two of a row are equal, one of them tries again until all differ. This
        # treats all numbers alike, so every subset is equally likely. (Every call on so many numbers hands the
        # interpreter to a swap thread that waits for it, so there are as few as possible, and `owner` is not even
        # cleared: what it says of a number that nobody has taken is not true, and that shows.)
        shift = np.repeat(np.arange(rows, dtype=np.int64) * count, n)
        uniform = self.rng.random(rows * n)
        uniform *= count
        values = uniform.astype(np.int64)
        values += shift
        cells = np.arange(rows * n)
        owner = np.empty(rows * count, np.int64)
        owner[values] = cells
        todo = cells[owner[values] != cells]
        while len(todo):
            wanted = (self.rng.random(len(todo)) * count).astype(np.int64) + shift[todo]
            values[todo] = -1
            free = values.take(owner[wanted], mode="clip") != wanted
            values[todo] = wanted
            owner[wanted[free]] = todo[free]
            todo = todo[owner[wanted] != todo]
        values -= shift
        return values.reshape(rows, n)

    def state_dict(self) -> dict[str, Any]:
        left = {n: block[len(block) - length_hint(rest) :] for n, (block, rest) in self._blocks.items()}
        state = dict(self.rng.bit_generator.state)
        return {"rng": state, "count": self._count, "left": {n: torch.from_numpy(b.copy()) for n, b in left.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        self._count, self._blocks = int(state["count"]), {}
        for n, left in state["left"].items():
            self._hold(int(n), left.numpy().copy())
