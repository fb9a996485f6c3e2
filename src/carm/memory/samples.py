"""Samples as callers give them: dicts of fields, pairs (x, y), tensors, arrays, lists of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from carm.memory.batch import Batch
from carm.memory.errors import SchemaError
from carm.memory.record import Schema, as_array, as_bytes, is_bytes_list

Ints = NDArray[np.int64]


def as_fields(samples: Mapping[str, Any] | tuple[Any, Any], label: str) -> dict[str, Any]:
    """Samples as a dict of fields."""
    if isinstance(samples, Mapping):
        return dict(samples)
    if isinstance(samples, (tuple, list)) and len(samples) == 2:
        return {"x": samples[0], label: samples[1]}
    raise ValueError(f"samples are a dict of fields or a pair (x, y); got {type(samples).__name__}")


class Blobs(list[Any]):
    """Byte strings that were looked at already."""


def prepared(samples: Mapping[str, Any] | tuple[Any, Any], label: str, schema: Schema | None) -> dict[str, Any]:
    """Samples as a dict of fields from which `take` can take many times; SchemaError if they do not go with `schema`,
    which is that of the samples they are mixed with."""
    fields: dict[str, Any] = {}
    for name, value in as_fields(samples, label).items():
        if is_bytes_list(value):
            fields[name] = Blobs(value)
        else:
            fields[name] = value if isinstance(value, torch.Tensor) else _native(as_array(name, value))
            if name == label:
                fields[name] = _as_labels(fields[name])
    if label not in fields:
        raise SchemaError(f"the samples have the fields {', '.join(fields) or 'none'}, and no label field {label!r}")
    known = {} if schema is None else {f.name: f for f in schema.fields}
    for name, value in fields.items() if known else ():
        if name not in known:
            raise SchemaError(f"the samples in memory have the fields {', '.join(known)}, and no {name!r}")
        shape = None if isinstance(value, Blobs) else tuple(value.shape[1:])
        if shape != known[name].shape:
            ours, theirs = (
                "bytes of any length" if s is None else f"shape {list(s)}" for s in (known[name].shape, shape)
            )
            raise SchemaError(f"field {name!r} holds {ours} per sample in memory; got {theirs}")
        kind = "uint8" if shape is None else str(value.dtype).removeprefix("torch.")
        if kind != known[name].dtype:  # torch would make both the wider type, but only in batches that have both
            raise SchemaError(f"field {name!r} is {known[name].dtype} in memory; got {kind}")
    return fields


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """In this machine's byte order: torch knows no other."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _as_labels(value: Any) -> Any:
    """Whole numbers of any width as int64, which is what `add` makes of them."""
    if isinstance(value, torch.Tensor):
        whole = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
        return value.long() if whole else value
    return value.astype(np.int64, copy=False) if value.dtype.kind in "iu" else value


def count(fields: Mapping[str, Any]) -> int:
    """How many samples there are."""
    if not fields:
        return 0
    for name, value in fields.items():
        if not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
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
        if isinstance(value, Blobs) or is_bytes_list(value):
            picked[name] = [torch.from_numpy(as_bytes(value[i]).copy()) for i in rows.tolist()]
        elif isinstance(value, torch.Tensor):
            picked[name] = value[index.to(value.device)]
        else:
            picked[name] = torch.from_numpy(as_array(name, value)[rows])
    nowhere = np.full(len(rows), -1, np.int64)
    return Batch(picked, nowhere, nowhere, 0)


def as_signals(name: str, given: Mapping[str, Any] | None, n: int | None) -> dict[str, NDArray[Any]]:
    """Signals for a selection as arrays; with `n`, each must have so many entries."""
    out = {}
    for key, value in (given or {}).items():
        wide = value.float() if getattr(value, "dtype", None) == torch.bfloat16 else value  # numpy has no bfloat16
        out[key] = as_array(key, wide)
    for key, value in out.items():
        if n is not None and len(value) != n:
            raise ValueError(f"{name}[{key!r}] has {len(value)} entries, but there are {n} samples")
    return out
