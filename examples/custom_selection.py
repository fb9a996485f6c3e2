"""A selection of your own: what RAM keeps. Here every new sample comes in, each at a random slot: the recent past."""

from typing import Any

import numpy as np
import torch

import carm


class Recent(carm.Selection):
    def place(self, y: np.ndarray, slots: Any, rng: np.random.Generator, signals: Any, ram_signals: Any) -> np.ndarray:
        out, k = np.full(len(y), -1), min(len(y), slots.capacity)  # -1: not kept in RAM
        out[-k:] = rng.permutation(slots.capacity)[:k]  # the newest k samples, each at a slot of its own
        return out


if __name__ == "__main__":
    with carm.Memory(slots=6, select=Recent(), seed=0) as memory:
        for day in range(10):
            memory.add(x=torch.tensor([day * 2.0, day * 2.0 + 1]), y=torch.tensor([0, 1]))
        print("of samples 0 to 19 RAM holds", sorted(memory.take(memory.slots).x.int().tolist()))
