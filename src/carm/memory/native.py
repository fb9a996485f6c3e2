"""The compiled part of the memory: native.c, called through ctypes.

It is made when the package is installed, if there is a C compiler (hatch_build.py), and is not needed: `checksum`,
`move` and `ram`, its only users, do the same with numpy, in two to five times the time. CARM_NATIVE=0 in the
environment does without.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger("carm")
Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Halves = tuple[NDArray[np.uint32], NDArray[np.uint32]]
NAME = "_native.so"
ABI = 2
"""That of native.c: a library left over from another version is not used."""
_ADDRESS, _COUNT = ctypes.c_void_p, ctypes.c_int64


class Native:
    """The functions of one compiled library."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if there is none, or it is of another version."""
        library = ctypes.CDLL(str(path))
        abi = library.carm_abi
        abi.restype = _COUNT
        if abi() != ABI:
            raise OSError(f"{path} is of version {abi()}, not {ABI}; install the package again")
        self._checksum = _function(library.carm_checksum, "ACAACAAA")
        self._move = _function(library.carm_move, "ACCACACAAACAAA")
        self._gather = _function(library.carm_gather, "ACCAAACAC")

    def checksum(self, data: Bytes, starts: Ints, sizes: Ints, constants: Halves) -> NDArray[np.uint64]:
        """The checksums of the records `data[starts[i] : starts[i] + sizes[i]]`."""
        n = len(starts)
        out = np.empty(n, np.uint64)
        low, high = constants
        bad = self._checksum(
            _of(data, np.uint8), len(data), _of(starts, np.int64), _of(sizes, np.int64), n,
            low.ctypes.data, high.ctypes.data, out.ctypes.data,
        )  # fmt: skip
        if bad >= 0:
            raise IndexError(f"record {bad} is at {starts[bad]}, with {sizes[bad]} bytes, of {len(data)}")
        return out

    def copy(self, arena: Bytes, blocks: Ints, data: Bytes, starts: Ints, sizes: Ints) -> None:
        """Copy records into the blocks of `arena` that were allocated for them, in order."""
        self._copy(arena, blocks, data, starts, sizes, None, (None, None, None))

    def move(
        self,
        arena: Bytes,
        blocks: Ints,
        data: Bytes,
        starts: Ints,
        sizes: Ints,
        whole: NDArray[np.bool_],
        constants: Halves,
    ) -> NDArray[np.uint64]:
        """`copy` those that are `whole`; returns their checksums."""
        sums = np.zeros(len(starts), np.uint64)
        low, high = constants
        self._copy(arena, blocks, data, starts, sizes, whole, (low.ctypes.data, high.ctypes.data, sums.ctypes.data))
        return sums

    def gather(self, arena: Bytes, successors: NDArray[np.int32], first: Ints, counts: Ints) -> Bytes:
        """Copies of the records that begin at the blocks `first`, and take `counts` blocks each, side by side."""
        room = int(counts.sum())
        out = np.empty(room * arena.shape[1], np.uint8)
        if len(successors) != len(arena) or not len(arena):
            raise IndexError(f"{len(successors)} successors of {len(arena)} blocks")
        self._gather(
            _of(arena, np.uint8), *arena.shape, _of(successors, np.int32), _of(first, np.int64), _of(counts, np.int64),
            len(first), out.ctypes.data, room,
        )  # fmt: skip
        return out

    def _copy(
        self,
        arena: Bytes,
        blocks: Ints,
        data: Bytes,
        starts: Ints,
        sizes: Ints,
        whole: NDArray[np.bool_] | None,
        summing: tuple[int | None, int | None, int | None],
    ) -> None:
        n = len(starts)
        bad = self._move(
            _of(arena, np.uint8), *arena.shape, _of(blocks, np.int64), len(blocks), _of(data, np.uint8), len(data),
            _of(starts, np.int64), _of(sizes, np.int64), None if whole is None else _of(whole, np.bool_), n, *summing,
        )  # fmt: skip
        if bad >= 0:
            raise IndexError(
                f"record {bad} is at {starts[bad]}, with {sizes[bad]} bytes, of {len(data)}; or it has blocks that are "
                f"none of {len(arena)}"
            )


def _function(function: Any, arguments: str) -> Any:
    """A function of the library that returns a count: A stands for an address, C for a count."""
    function.argtypes = [_ADDRESS if kind == "A" else _COUNT for kind in arguments]
    function.restype = _COUNT
    return function


def _of(array: NDArray[Any], dtype: type[np.generic]) -> int:
    """Where the items of an array lie, one after the other."""
    if array.dtype != dtype or not array.flags.c_contiguous:
        raise TypeError(f"expected a contiguous array of {np.dtype(dtype)}, got {array.dtype} with {array.strides}")
    return int(array.ctypes.data)


def _load() -> Native | None:
    path = Path(__file__).with_name(NAME)
    if os.environ.get("CARM_NATIVE") == "0" or sys.byteorder != "little" or not path.exists():
        return None
    try:
        return Native(path)
    except (OSError, AttributeError) as error:  # of another machine, say, or of another version
        log.warning("the compiled part of the memory cannot be used, and numpy takes its place: %s", error)
        return None


library = _load()
"""None where there is no compiled part."""


@contextlib.contextmanager
def without() -> Iterator[None]:
    """Do without the compiled part for a while, for comparison; in this process, not in helpers."""
    global library
    kept, library = library, None
    try:
        yield
    finally:
        library = kept
