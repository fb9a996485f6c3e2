"""Stage T: a bundle of new and old samples, as shuffled mini-batches for several passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from carm.memory import samples
from carm.memory.batch import Batch, concatenate

if TYPE_CHECKING:
    from carm.memory.memory import Memory


def mixed_pass(memory: Memory, new: dict[str, Any], batch_size: int, rng: np.random.Generator) -> Iterator[Batch]:
    """All new and all old samples once, in one shuffled order. Old ones are read when their mini-batch is made.

    All batches have the same fields: those of the new samples, if there are any."""
    count = samples.count(new)
    slots = memory.slots
    order = rng.permutation(count + len(slots))
    for at in range(0, len(order), batch_size):
        chosen = order[at : at + batch_size]
        fresh = chosen[chosen < count]
        old = memory.filled(slots[chosen[chosen >= count] - count])  # slots may have been emptied since the pass began
        parts = []
        if len(fresh):
            parts.append(samples.take(new, fresh))
        if len(old):
            held = memory.take(old)
            if new:
                held.fields = {name: held.fields[name] for name in new}
            parts.append(held)
        if parts:
            batch = concatenate(parts)
            batch.of_pass = True
            yield batch


def paired_pass(
    memory: Memory, new: dict[str, Any], batch_size: int, old_per_batch: int, rng: np.random.Generator
) -> Iterator[Batch]:
    """All new samples once; every mini-batch gets `old_per_batch` old ones, drawn afresh."""
    order = rng.permutation(samples.count(new))
    for at in range(0, len(order), batch_size):
        part = samples.take(new, order[at : at + batch_size])
        memory.poll()
        yield concatenate([part, memory.draw(old_per_batch)]) if len(memory) else part
