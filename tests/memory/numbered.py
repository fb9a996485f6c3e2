"""Samples whose every byte follows from their number, so that what is read can be checked without a copy. Only
numpy."""

from __future__ import annotations

from typing import Any

import numpy as np

from carm.memory.record import Field, Schema

FIXED = Schema((Field("x", "uint8", (5, 13)), Field("y", "int64"), Field("z", "float32", (3,))))
LARGE = Schema((Field("x", "uint8", (40, 100)), Field("y", "int64"), Field("z", "float32", (3,))))
VARIABLE = Schema(
    (Field("y", "int64"), Field("x", "uint8", None), Field("z", "float32", (3,)), Field("note", "uint8", None))
)


def _bytes(number: int, size: int) -> np.ndarray:
    """`size` bytes that no other number has."""
    words = (np.arange(-(-size // 8), dtype=np.uint64) + np.uint64(number)) * np.uint64(0x9E3779B97F4A7C15)
    return (words ^ (words >> np.uint64(29))).view(np.uint8)[:size]


def length_of(number: int, most: int) -> int:
    """Bytes of `x` where sizes vary: from 0 to `most`, now and then nearly the most."""
    mixed = (number * 2654435761 >> 5) & 0xFFFF
    return mixed % (most + 1) if number % 7 else most - mixed % 64


def samples(numbers: Any, schema: Schema = FIXED, labels: Any = None, most: int = 3000) -> dict[str, Any]:
    """The samples with these numbers. The label is the number modulo 5 unless others are given."""
    numbers = [int(n) for n in numbers]
    x: Any
    if schema.fixed:
        shape = schema.field("x").shape or ()
        x = np.zeros((len(numbers), *shape), np.uint8)
        for i, n in enumerate(numbers):
            x[i] = _bytes(n, x[i].size).reshape(shape)
    else:
        x = [_bytes(n, length_of(n, most)).tobytes() for n in numbers]
    labels = [n % 5 for n in numbers] if labels is None else labels
    z = (np.array(numbers, np.float64).reshape(-1, 1) + np.arange(3)).astype(np.float32)
    out = {"y": np.asarray(labels, np.int64), "x": x, "z": z}
    return out if schema.fixed else out | {"note": [str(n).encode() for n in numbers]}


def check(got: dict[str, Any], numbers: Any, schema: Schema = FIXED, labels: Any = None, most: int = 3000) -> None:
    """Fail unless `got` is bit for bit the samples with these numbers."""
    want = samples(numbers, schema, labels, most)
    assert got.keys() == want.keys()
    for name, values in want.items():
        assert len(got[name]) == len(values)
        for number, a, b in zip(numbers, got[name], values, strict=True):
            a = np.asarray(a)
            b = np.frombuffer(b, np.uint8) if isinstance(b, bytes) else np.asarray(b)
            assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes(), (
                f"{name} of sample {number}"
            )


def extents_of(store: Any) -> np.ndarray:
    """(start, end) of every extent that is in use, ascending: of the living, and of the dead that could come back."""
    live = store.index.live()
    starts = np.concatenate([store.index.offsets[live], *(g[1] for g in store.past.graves)])
    sizes = np.concatenate([store.index.sizes[live].astype(np.int64), *(g[2] for g in store.past.graves)])
    order = np.argsort(starts)
    return np.stack([starts[order], (starts + -(-sizes // 512) * 512)[order]], axis=1)


def check_index(store: Any) -> None:
    """What holds for an open store between two calls."""
    live = store.index.live()
    assert len(store) == len(live) == len(store.index.sets)
    ids = store.index.ids[live]
    assert (np.diff(ids) > 0).all(), "an id twice"
    assert np.array_equal(store.ids, ids)
    assert not len(ids) or int(ids[-1]) < store.next_id
    used = extents_of(store)
    assert (used[1:, 0] >= used[:-1, 1]).all(), "extents overlap"
    assert not (used % 512).any()
    assert store.index.live_bytes == int((-(-store.index.sizes[live].astype(np.int64) // 512) * 512).sum())
    taken = int((used[:, 1] - used[:, 0]).sum())
    doomed = int((-(-store._doomed["size"].astype(np.int64) // 512) * 512).sum())
    assert store.extents.used == taken + doomed
    assert store.extents.used + store.extents.free == store.extents.end, "room is lost"
    assert store.past.retained == taken - store.index.live_bytes
    assert (live < store.index._top).all()
    assert len(live) + len(store.index._free) == store.index._top
