"""Records into the blocks of the RAM tier, with or without a look at their checksums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from carm.memory import native
from carm.memory.checksum import halves, verified
from carm.memory.record import Bytes

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def move(
    arena: Bytes,
    blocks: NDArray[np.integer],
    data: Bytes,
    starts: Ints,
    sizes: Ints,
    sums: NDArray[np.uint64],
    ok: Bools,
) -> Bools:
    """`scatter` those records that are `ok`. Returns which of them match their checksums; the others' blocks may hold
    anything."""
    if native.library is not None:
        found = native.library.move(arena, blocks.astype(np.int64, copy=False), data, starts, sizes, ok, halves())
        return np.asarray(ok & (found == sums))
    ok = verified(data, starts, sizes, sums, ok)
    scatter(arena, blocks, data, starts, sizes)
    return ok


def scatter(arena: Bytes, blocks: NDArray[np.integer], data: Bytes, starts: Ints, sizes: Ints) -> None:
    """Copy records out of `data` into the blocks of `arena` that were allocated for them, in order."""
    n = len(starts)
    if n == 0:
        return
    if native.library is not None:
        native.library.copy(arena, blocks.astype(np.int64, copy=False), data, starts, sizes)
        return
    block = arena.shape[1]
    if len(blocks) == n and int(sizes.min()) == int(sizes.max()) == block:
        stride = int(starts[1] - starts[0]) if n > 1 else block
        if n < 3 or (np.diff(starts) == stride).all():  # evenly spaced: one copy for all
            first = int(starts[0])
            # By words, because numpy copies them faster than bytes.
            arena.view(np.uint64)[blocks] = np.ndarray((n, block // 8), np.uint64, data.data, first, (stride, 8))
            return
    at = 0
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        whole, rest = divmod(size, block)
        if whole:
            arena[blocks[at : at + whole]] = data[start : start + whole * block].reshape(whole, block)
        if rest:
            arena[blocks[at + whole], :rest] = data[start + whole * block : start + size]
        at += whole + (rest > 0)
