"""Records: one sample, its named fields packed side by side.

The same bytes lie in a RAM row and in a storage extent, so a swap is a copy: nothing is decoded, pickled or rebuilt.

A record is a *head* of fixed size, then the bytes of its variable fields, then zeros up to a multiple of 8:

    head   every fixed field at an offset aligned to its item size, in the schema's order;
           for every variable field its length as a little-endian uint32
    tail   the bytes of the variable fields, in the schema's order

Without variable fields every record has the same size, and a batch of them is one two-dimensional array.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carm.memory.errors import SchemaError

LARGEST = 2**31 - 2**20  # a system call reads a little less than 2^31
"""Bytes of the largest record: sizes are kept in 32 bits."""
WORD = 8
"""Records are padded to whole words of this many bytes; the checksum reads words."""

# numpy has no bfloat16: its two bytes are stored as they are and given back to torch under the right name.
_STORED_AS = {"bfloat16": "uint16"}
DTYPES = (
    *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64"),
)

Bytes = NDArray[np.uint8]

_TAKEN = frozenset(("fields", "ids", "of_pass", "old", "olds", "ram_signals", "signals", "slots", "store", "to"))
"""What `batch.name` and `memory.add(name=...)` are already. (Stores that have such a field still open.)"""


@dataclass(frozen=True, slots=True)
class Field:
    """One named part of a sample: an array of fixed `dtype` and `shape`, or (`shape=None`) bytes of any length."""

    name: str
    dtype: str = "uint8"
    shape: tuple[int, ...] | None = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise SchemaError(f"field name {self.name!r} is not an identifier; use letters, digits and underscores")
        if self.dtype not in DTYPES:
            raise SchemaError(f"field {self.name!r} has dtype {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        if self.shape is None:
            if self.dtype != "uint8":
                raise SchemaError(
                    f"field {self.name!r} has variable length, so its dtype must be uint8, not {self.dtype!r}"
                )
            return
        if not isinstance(self.shape, Sequence) or any(type(d) is not int or d < 1 for d in self.shape):
            raise SchemaError(
                f"field {self.name!r} has shape {self.shape!r}; it must be a tuple of positive whole numbers"
            )
        object.__setattr__(self, "shape", tuple(self.shape))
        if math.prod(self.shape) * self.stored.itemsize > LARGEST:
            raise SchemaError(f"field {self.name!r} has shape {self.shape}; a sample may have at most {LARGEST} bytes")

    @property
    def stored(self) -> np.dtype[Any]:
        """The numpy dtype its items are stored as."""
        kind: np.dtype[Any] = np.dtype(_STORED_AS.get(self.dtype, self.dtype)).newbyteorder("<")
        return kind

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{'[bytes]' if self.shape is None else list(self.shape)}"


@dataclass(frozen=True)
class Schema:
    """The fields of a sample, and which of them is the class label."""

    fields: tuple[Field, ...]
    label: str = "y"

    def __post_init__(self) -> None:
        names = [f.name for f in self.fields]
        if len(set(names)) != len(names):
            raise SchemaError(f"field names {names} are not distinct")
        if Field(self.label, "int64") not in self.fields:
            raise SchemaError(f"the label field {self.label!r} must be there, as one int64; the fields are {names}")
        _ = self.head  # now, while there is somebody to tell

    # -- layout ------------------------------------------------------------------------------------------------------

    @cached_property
    def head(self) -> np.dtype[Any]:
        """The head of a record as a structured dtype."""
        names, formats, offsets, at = [], [], [], 0
        for f in self.fields:
            kind: Any = np.dtype("<u4") if f.shape is None else np.dtype((f.stored, f.shape))
            size = kind.base.itemsize
            at = -(-at // size) * size
            names.append(f.name)
            formats.append(kind)
            offsets.append(at)
            at += kind.itemsize
        if at > LARGEST:
            raise SchemaError(f"a sample {self} has {at} bytes; it may have at most {LARGEST}")
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": -(-at // WORD) * WORD})

    @cached_property
    def variable(self) -> tuple[str, ...]:
        """Names of the fields of variable length."""
        return tuple(f.name for f in self.fields if f.shape is None)

    @property
    def fixed(self) -> bool:
        """Whether all records have the same size."""
        return not self.variable

    @property
    def head_size(self) -> int:
        return self.head.itemsize

    def field(self, name: str) -> Field:
        return next(f for f in self.fields if f.name == name)

    # -- as text -----------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        fields = [
            {"name": f.name, "dtype": f.dtype, "shape": None if f.shape is None else list(f.shape)} for f in self.fields
        ]
        return json.dumps({"label": self.label, "fields": fields})

    @staticmethod
    def from_json(text: str) -> Schema:
        try:
            raw = json.loads(text)
            fields = tuple(
                Field(f["name"], f["dtype"], None if f["shape"] is None else tuple(f["shape"])) for f in raw["fields"]
            )
            return Schema(fields, raw["label"])
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise SchemaError(f"not a schema: {text[:200]!r}") from error

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.fields)) + "}"

    # -- from samples ------------------------------------------------------------------------------------------------

    @staticmethod
    def infer(samples: Mapping[str, Any], label: str = "y") -> Schema:
        """The schema of a batch of samples: arrays with one row per sample, or lists of bytes."""
        if taken := _TAKEN & samples.keys():
            raise SchemaError(
                f"no field can be called {sorted(taken)[0]!r}: batches, or `add`, mean something else by it; choose "
                "another name"
            )
        fields = []
        for name, value in samples.items():
            if name == label:
                fields.append(Field(name, "int64"))
            elif is_bytes_list(value):
                fields.append(Field(name, "uint8", None))
            else:
                array = as_array(name, value)
                fields.append(Field(name, _dtype_name(value, array), array.shape[1:]))
        return Schema(tuple(fields), label)

    # -- packing -----------------------------------------------------------------------------------------------------

    def pack(self, samples: Mapping[str, Any]) -> Records:
        """Pack a batch of samples. Raises SchemaError, naming the field, if one does not fit."""
        if samples.keys() != {f.name for f in self.fields}:
            missing = [f.name for f in self.fields if f.name not in samples]
            unknown = [name for name in samples if name not in {f.name for f in self.fields}]
            raise SchemaError(
                f"a sample has the fields {self}; missing: {missing or 'none'}, unknown: {unknown or 'none'}"
            )
        columns: dict[str, Any] = {}
        count = -1
        for f in self.fields:
            value = samples[f.name]
            column: Any = self._bytes_column(f, value) if f.shape is None else self._array_column(f, value)
            if count >= 0 and len(column) != count:
                raise SchemaError(
                    f"field {f.name!r} has {len(column)} samples, but {self.fields[0].name!r} has {count}"
                )
            count = len(column)
            columns[f.name] = column
        heads = np.zeros(count, self.head)
        for f in self.fields:
            column = columns[f.name]
            heads[f.name] = column if f.shape is not None else [len(b) for b in column]
        labels = np.ascontiguousarray(heads[self.label])
        if self.fixed:
            starts = np.arange(count, dtype=np.int64) * self.head_size
            return Records(heads.view(np.uint8), starts, np.full(count, self.head_size, np.int64), labels)
        return self._pack_variable(heads, labels, [columns[name] for name in self.variable])

    def _array_column(self, f: Field, value: Any) -> NDArray[Any]:
        array = as_array(f.name, value)
        if f.name == self.label:
            if (array.dtype.kind not in "iu" or _dtype_name(value, array) == "bfloat16") and array.size:
                kind = _dtype_name(value, array)
                raise SchemaError(f"the label field {f.name!r} must hold whole numbers; got dtype {kind}")
            if array.dtype == np.uint64 and array.size and int(array.max()) >= 2**63:
                raise SchemaError(f"the label field {f.name!r} has the value {array.max()}; labels are below 2^63")
            if array.ndim != 1:
                raise SchemaError(
                    f"the label field {f.name!r} must have one number per sample; got shape {array.shape}"
                )
            return array
        if array.shape[1:] != f.shape or _dtype_name(value, array) != f.dtype:
            got = f"{_dtype_name(value, array)}{list(array.shape[1:])}"
            raise SchemaError(
                f"field {f.name!r} holds {f.dtype}{list(f.shape or ())} per sample; got {got}. Convert the samples, or "
                "keep them in a memory of their own, with another storage directory"
            )
        return array

    def _bytes_column(self, f: Field, value: Any) -> Sequence[Any]:
        if not is_bytes_list(value) and not (isinstance(value, (list, tuple)) and not value):
            raise SchemaError(
                f"field {f.name!r} holds bytes of any length: pass a list of bytes; got {type(value).__name__}"
            )
        return [as_bytes(v) for v in value]

    def _pack_variable(self, heads: NDArray[Any], labels: NDArray[np.int64], columns: list[Sequence[Any]]) -> Records:
        lengths = np.array([[len(v) for v in column] for column in columns], np.int64).sum(axis=0)
        sizes = -(-(self.head_size + lengths) // WORD) * WORD
        if len(sizes) and int(sizes.max()) > LARGEST:
            raise SchemaError(
                f"a sample has {int(lengths.max())} bytes in the fields {', '.join(self.variable)}; it may have at "
                f"most {LARGEST} in all"
            )
        starts = np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64) if len(sizes) else np.zeros(0, np.int64)
        head = heads.view(np.uint8).data
        gaps = [bytes(n) for n in range(WORD)]
        pieces: list[Any] = []
        for i, gap in enumerate((sizes - self.head_size - lengths).tolist()):
            pieces.append(head[i * self.head_size : (i + 1) * self.head_size])
            pieces += [column[i] for column in columns]
            pieces.append(gaps[gap])
        return Records(np.frombuffer(b"".join(pieces), np.uint8), starts, sizes, labels)

    # -- unpacking ---------------------------------------------------------------------------------------------------

    def unpack(self, data: Bytes, starts: NDArray[np.int64]) -> dict[str, Any]:
        """The fields of the records that begin at `starts` in `data`: numpy arrays, and lists of arrays for variable
        fields.

        They are views of `data` where that is possible: variable fields always, fixed ones if there are no others and
        the records lie side by side.
        """
        side_by_side = np.arange(len(starts)) * self.head_size
        if self.fixed and len(starts) * self.head_size == len(data) and np.array_equal(starts, side_by_side):
            heads = data.view(self.head)
            return {f.name: heads[f.name] for f in self.fields}
        within = np.arange(self.head_size // WORD)
        heads = data.view(np.uint64)[starts[:, None] // WORD + within].reshape(-1).view(self.head)
        out: dict[str, Any] = {f.name: heads[f.name] for f in self.fields if f.shape is not None}
        begin = starts + self.head_size
        for name in self.variable:
            end = begin + heads[name]
            out[name] = [data[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
            begin = end
        return {f.name: out[f.name] for f in self.fields}


@dataclass(slots=True)
class Records:
    """Packed samples: record i is `data[starts[i] : starts[i] + sizes[i]]`."""

    data: Bytes
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())


def in_pieces(sizes: NDArray[np.integer], most: int, count: int | None = None) -> Iterator[slice]:
    """Records that follow each other, as many at a time as take at most `most` bytes, but one at least; and at most
    `count`."""
    ends = np.cumsum(sizes, dtype=np.int64)
    at, n = 0, len(sizes)
    while at < n:
        before = int(ends[at - 1]) if at else 0
        to = max(int(np.searchsorted(ends, before + most, side="right")), at + 1)
        to = to if count is None else min(to, at + count)
        yield slice(at, to)
        at = to


def is_bytes_list(value: Any) -> bool:
    """Whether `value` is a batch of byte strings: a non-array sequence whose items are bytes or one-dimensional
    uint8."""
    if (
        isinstance(value, (str, bytes, bytearray, memoryview, np.ndarray))
        or not isinstance(value, Sequence)
        or not value
    ):
        return False
    return all(
        isinstance(v, (bytes, bytearray, memoryview))
        or (getattr(v, "ndim", 0) == 1 and str(getattr(v, "dtype", "")).removeprefix("torch.") == "uint8")
        for v in value
    )


def as_array(name: str, value: Any) -> NDArray[Any]:
    """`value` (tensor, array, list of numbers) as a numpy array with one row per sample."""
    if isinstance(value, np.ma.MaskedArray):
        raise SchemaError(f"field {name!r} is a masked array, and masks cannot be stored; pass value.filled(...)")
    if hasattr(value, "detach"):
        value = value.detach()
        if value.device.type != "cpu":
            value = value.cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.view(_torch_dtype("uint16"))
    try:
        array: NDArray[Any] = value.numpy() if hasattr(value, "detach") else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # float8 tensors, rows of different lengths, and the like
        raise SchemaError(f"field {name!r} cannot be made an array: {error}") from error
    if array.ndim == 0:
        raise SchemaError(f"field {name!r} needs one row per sample; got the single value {value!r}")
    if array.dtype.hasobject or array.dtype.names is not None or array.dtype.kind in "SUmM":
        raise SchemaError(
            f"field {name!r} has dtype {array.dtype}; arrays of numbers, or lists of bytes, can be stored"
        )
    return array


def as_bytes(value: Any) -> Bytes:
    """A byte string as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, memoryview):
        value = value.tobytes()
    return np.ascontiguousarray(value) if isinstance(value, np.ndarray) else np.frombuffer(value, np.uint8)


def _dtype_name(value: Any, array: NDArray[Any]) -> str:
    if array.dtype == np.uint16 and str(getattr(value, "dtype", "")) == "torch.bfloat16":
        return "bfloat16"
    return _name(array.dtype)


@cache
def _name(dtype: np.dtype[Any]) -> str:
    """Kept, because numpy puts a dtype's name together anew every time."""
    return str(dtype.name)


def _torch_dtype(name: str) -> Any:
    import torch

    return getattr(torch, name)
