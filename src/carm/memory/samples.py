"""Samples as callers give them: dicts of fields, pairs (x, y), tensors, arrays, lists of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from carm.memory.batch import Batch
from carm.memory.errors import SchemaError
from carm.memory.record import as_array, is_bytes_list

Ints = NDArray[np.int64]


def as_fields(samples: Mapping[str, Any] | tuple[Any, Any], label: str) -> dict[str, Any]:
    """Samples as a dict of fields."""
    if isinstance(samples, Mapping):
        return dict(samples)
    if isinstance(samples, (tuple, list)) and len(samples) == 2:
        return {"x": samples[0], label: samples[1]}
    raise ValueError(f"samples are a dict of fields or a pair (x, y); got {type(samples).__name__}")


def count(fields: Mapping[str, Any]) -> int:
    """How many samples there are."""
    if not fields:
        return 0
    for name, value in fields.items():
        if not hasattr(value, "__len__"):
            raise SchemaError(f"field {name!r} needs one row per sample; got {value!r}")
    counts = {name: len(value) for name, value in fields.items()}
    name, first = next(iter(counts.items()))
    for other, n in counts.items():
        if n != first:
            raise SchemaError(f"field {other!r} has {n} samples, but {name!r} has {first}")
    return first


def take(fields: Mapping[str, Any], rows: Ints) -> Batch:
    """Some of the samples, which are in no memory yet, as a batch."""
    picked: dict[str, Any] = {}
    index = torch.from_numpy(rows)
    for name, value in fields.items():
        if is_bytes_list(value):
            picked[name] = [torch.frombuffer(bytearray(value[i]), dtype=torch.uint8) for i in rows.tolist()]
        elif isinstance(value, torch.Tensor):
            picked[name] = value[index.to(value.device)]
        else:
            picked[name] = torch.from_numpy(as_array(name, value)[rows])
    nowhere = np.full(len(rows), -1, np.int64)
    return Batch(picked, nowhere, nowhere, 0)


def as_signals(name: str, given: Mapping[str, Any] | None, n: int | None) -> dict[str, NDArray[Any]]:
    """Signals for a selection as arrays; with `n`, each must have so many entries."""
    out = {key: as_array(key, value) for key, value in (given or {}).items()}
    for key, value in out.items():
        if n is not None and len(value) != n:
            raise ValueError(f"{name}[{key!r}] has {len(value)} entries, but there are {n} samples")
    return out
