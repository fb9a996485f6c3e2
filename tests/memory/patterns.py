"""Samples whose every byte follows from a number, and the checks that hold for a memory at any moment."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carm.memory.memory import Memory
from carm.memory.ram import RamTier
from carm.memory.record import Field, Schema

FIXED = Schema((Field("x", "uint8", (3, 4, 4)), Field("y", "int64"), Field("logits", "float32", (4,))))
VARIABLE = Schema((Field("x", "uint8", None), Field("y", "int64"), Field("logits", "float32", (4,))))

_SHM = Path("/dev/shm")


def quick_base() -> Path | None:
    """Where a sync costs nothing, for tests that make many small commits."""
    return _SHM if os.access(_SHM, os.W_OK) else None


def length_of(key: int, most: int = 3000) -> int:
    """Bytes of sample `key` where sizes vary: anything from 0, and not a simple function of the key."""
    return (key * 2654435761 >> 7) % (most + 1)


def pattern(key: int, size: int) -> np.ndarray:
    return ((np.arange(size, dtype=np.int64) * 31 + key * 97 + (key >> 8) * 13) % 251).astype(np.uint8)


def samples(keys: Any, labels: Any, schema: Schema = FIXED, most: int = 3000) -> dict[str, Any]:
    """The samples with these keys. `logits[0]` is the key itself."""
    keys = np.asarray(keys, np.int64)
    logits = (keys[:, None] + np.arange(4)).astype(np.float32)
    x: Any
    if schema.fixed:
        shape = schema.field("x").shape or ()
        x = np.stack([pattern(k, int(np.prod(shape))).reshape(shape) for k in keys.tolist()])
    else:
        x = [pattern(k, length_of(k, most)).tobytes() for k in keys.tolist()]
    return {"x": x, "y": np.asarray(labels, np.int64), "logits": logits}


def keys_of(fields: Any, schema: Schema = FIXED, most: int = 3000) -> np.ndarray:
    """The keys of a batch of samples; fails if any byte of any field is not that of its key."""
    logits = np.asarray(fields["logits"])
    keys = logits[:, 0].astype(np.int64)
    assert (logits == (keys[:, None] + np.arange(4)).astype(np.float32)).all(), "one record has parts of two samples"
    for key, x in zip(keys.tolist(), fields["x"], strict=True):
        got = np.asarray(x).reshape(-1)
        size = got.size if schema.fixed else length_of(key, most)
        assert got.size == size, f"sample {key} has {got.size} bytes, it was added with {size}"
        assert (got == pattern(key, size)).all(), f"sample {key} has other bytes than it was added with"
    return keys


def chain(ram: RamTier, first: int) -> list[int]:
    """The blocks of the record that begins at `first`."""
    if ram.schema.fixed:
        return [first]
    count = -(-int(ram.arrays.sizes[first]) // ram.layout.block)
    out = [first]
    for _ in range(count - 1):
        out.append(int(ram.arrays.successors[out[-1]]))
    assert ram.arrays.successors[out[-1]] == -1, "a chain does not end where its size says"
    return out


def audit_ram(ram: RamTier, under_way: list[int] | None = None) -> None:
    """What must hold for a RAM tier; `under_way` are the first blocks of records that no slot shows yet."""
    used = np.flatnonzero(ram.ids >= 0)
    assert len(ram) == len(used)
    assert used.tolist() == ram.used().tolist()
    assert ram.sets.items().tolist() == used.tolist()
    assert len(np.unique(ram.ids[used])) == len(used), "an id is in two slots"
    assert len(used) <= ram.capacity <= ram.table
    free = ram.free()
    assert len(free) == ram.capacity - len(used)
    assert (ram.ids[free] < 0).all()
    assert (ram.handles[ram.ids < 0] == -1).all()
    for slot in used.tolist():
        assert ram.sets.label(slot) == ram.labels[slot]
    shown = (ram.arrays.entries & 0xFFFFFFFF) - 1
    assert (shown[used] >= 0).all()
    assert (np.delete(shown, used) == -1).all(), "an empty slot shows a record"
    assert (shown[used] == ram.rows(used)).all()
    blocks = list(ram._free[: ram.free_blocks])
    for first in [*shown[used].tolist(), *(under_way or [])]:
        blocks += chain(ram, first)
    assert sorted(blocks) == list(range(ram.layout.blocks)), "free + used + under way are not all blocks, each once"


def audit(memory: Memory, *, loose: set[int] | None = None, unsent: int = 0) -> None:
    """What must hold for a memory between two calls.

    loose    ids that are in RAM only, because they were added with store=False
    unsent   how many samples were ever added so
    """
    ram, store = memory._ram, memory.store
    if ram is None:
        return
    carousel, intake = memory._carousel, memory._intake
    swaps = list(carousel.swaps.values()) if carousel is not None else []
    audit_ram(ram, [int(f) for s in swaps for f in s.first])
    if memory._ram_bytes is not None:
        assert ram.layout.nbytes <= memory._ram_bytes, "more memory is used than was given"
    used = ram.used()
    stats = memory._stats
    if store is None or carousel is None or intake is None:
        assert store is None
        assert (ram.handles == -1).all()
        return
    outstanding = sum(len(s.slots) for s in swaps)
    assert carousel.outstanding == outstanding
    assert outstanding <= ram.spare_records or not ram.schema.fixed, "more orders than spare rows"
    assert stats.ordered == stats.swapped + outstanding + sum(
        stats.dropped[reason] for reason in ("slot changed", "corrupt", "unreadable", "worker died")
    )
    ordered = [int(x) for s in swaps for x in s.slots]
    assert len(set(ordered)) == len(ordered), "a slot has two orders"
    assert sorted(ordered) == np.flatnonzero(carousel.in_flight).tolist()
    assert len(store) == len(store.index.sets) == len(store.index.live())
    stored = used[ram.handles[used] >= 0]
    assert (store.index.ids[ram.handles[stored]] == ram.ids[stored]).all(), "a slot's handle is of another sample"
    waiting = {int(i) for ids in intake.buffer.ids for i in ids}
    if intake.writing is not None:
        waiting |= set(intake.writing[1].tolist())
    for slot in used[ram.handles[used] < 0].tolist():
        assert int(ram.ids[slot]) in waiting | (loose or set()), f"sample {ram.ids[slot]} is in RAM and nowhere else"
    sets = store.index.sets
    held = {h for label in sets.labels for h in sets.members(label).tolist() if not sets.is_open(h)}
    expected = set(ram.handles[stored].tolist()) | {int(h) for s in swaps for h in s.handles}
    if intake.writing is not None:
        expected |= set(intake.writing[0].victims)
    assert held == expected, "the store holds other samples than those in RAM or on their way"
    assert not set(store.ids.tolist()) & waiting, "a sample is stored and waits to be stored"
    waits = memory.stats()["stream_samples"]
    assert stats.added == stats.stored + stats.unstored + waits + unsent, "samples were lost on their way to storage"


def logits_for(batch: Any, classes: int) -> torch.Tensor:
    """Logits that depend on the samples only."""
    key = torch.as_tensor(np.asarray(batch["logits"])[:, :1]).double()
    return torch.sin(key * 12.9898 + torch.arange(classes) * 78.233).float() * 3


def descriptors() -> int:
    """How many this process has open, when those that garbage still holds are closed."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
