"""Pickles read as data.

CIFAR and Mini-ImageNet are published as pickles, and an ordinary unpickler runs whatever code such a file names. This
one knows numbers, strings, lists, dictionaries and plain numeric arrays. Arrays are rebuilt here from their raw bytes
instead of by numpy's own unpickling, which trusts the file about its memory layout. Every stand-in below defines
`__setstate__`, because a pickle may otherwise set attributes on whatever object it gets hold of, classes included.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class _Inert:
    """Something a pickle may name but not change."""

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("asks to change an object that has no state")


class _Dtype(_Inert):
    """Stands in for `numpy.dtype`; plain booleans, integers and floats only."""

    def __init__(self, code: Any, *flags: Any) -> None:
        code = code.decode("ascii") if isinstance(code, bytes) else code
        if not isinstance(code, str) or not re.fullmatch(r"[biuf][1248]", code):
            raise pickle.UnpicklingError(f"holds an array of type {code!r}; only plain numbers are read")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        order: Any = state[1].decode("ascii") if isinstance(state[1], bytes) else state[1]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in state[2:5]):
            raise pickle.UnpicklingError("holds an array of a structured type; only plain numbers are read")
        self.dtype = self.dtype.newbyteorder(order)


def _array(raw: Any, dtype: Any, shape: Any, fortran: bool) -> NDArray[Any]:
    if not isinstance(dtype, _Dtype) or not isinstance(raw, (bytes, bytearray)):
        raise pickle.UnpicklingError("holds an array that is not plain bytes")
    return np.frombuffer(raw, dtype.dtype).reshape(tuple(shape), order="F" if fortran else "C")


class _Array(_Inert):
    """Stands in for an array under construction: `_reconstruct(...)`, then a state with type, shape and bytes."""

    value: NDArray[Any]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, raw = state
        self.value = _array(raw, dtype, shape, bool(fortran))


class _FromBuffer(_Array):
    """The form in which newer pickle protocols store arrays."""

    def __init__(self, raw: Any, dtype: Any, shape: Any, order: Any, *rest: Any) -> None:
        if order not in ("C", "F"):
            raise pickle.UnpicklingError(f"holds an array in memory order {order!r}; only C and F are read")
        self.value = _array(raw, dtype, shape, order == "F")


class _Integer(int):
    """Stands in for a numpy integer."""

    def __new__(cls, dtype: Any, raw: Any) -> _Integer:
        return super().__new__(cls, int(_array(raw, dtype, (), False)))

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("asks to change a number")


class _Bytes(bytes):
    """Stands in for `_codecs.encode`, which is how bytes are spelled in old protocols."""

    def __new__(cls, text: str, encoding: str) -> _Bytes:
        if encoding not in ("latin1", b"latin1"):
            raise pickle.UnpicklingError(f"asks for the codec {encoding!r}; only latin1 is read")
        return super().__new__(cls, text.encode("latin1"))

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("asks to change bytes")


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Inert,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _Bytes,
    ("collections", "OrderedDict"): dict,
}
for _core in ("numpy.core", "numpy._core"):  # the module moved in numpy 2; files of both kinds are about
    _KNOWN[f"{_core}.multiarray", "_reconstruct"] = _Array
    _KNOWN[f"{_core}.multiarray", "scalar"] = _Integer
    _KNOWN[f"{_core}.numeric", "_frombuffer"] = _FromBuffer


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"asks for {module}.{name}") from None


def _text(key: Any) -> Any:
    return key.decode("latin1") if isinstance(key, bytes) else key


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {_text(key): _plain(item) for key, item in value.items()}
    return value.value if isinstance(value, _Array) else value


def read_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in the pickle at `path`, with text keys and read-only arrays. Nothing in the file can run code."""
    try:
        with path.open("rb") as file:
            content = _plain(_Reader(file, encoding="bytes").load())
    except OSError:
        raise
    except Exception as error:  # a broken pickle raises nearly anything: EOFError, KeyError, IndexError, ...
        raise ValueError(
            f"{path} was not read: {str(error) or type(error).__name__}. A data file holds only numbers, text, "
            "lists, dictionaries and arrays; this one is damaged, of another kind or malicious. Get it again"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; a dictionary was expected. Is it the right file?")
    return content
