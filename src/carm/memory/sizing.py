"""How large a RAM tier is: from slots, or from bytes."""

from __future__ import annotations

import os

from carm.memory.ram import RamTier
from carm.memory.record import Schema
from carm.memory.units import format_bytes

_PER_SLOT = 56  # bytes: entry, label, id, handle, row, and membership in the set of its class
_PER_BLOCK = 12  # bytes: successor, size, and place in the stack of free blocks


def spare_records(slots: int, queue: int | None, swaps: bool) -> int:
    """Swaps that may be under way at once: `queue`, or an eighth of the slots, from 64 to 256."""
    if not swaps:
        return 0
    return queue if queue is not None else min(max(slots // 8, 64), 256)


def at_hand(slots: int) -> int:
    """Records that only `add` has room for: it writes so many before it gives up what they replace, whatever is on
    order, so that readers in other processes never find a slot empty that was not."""
    return min(max(slots // 16, 1), 32)


def make_ram(
    schema: Schema, typical: float, *, slots: int | None, ram: int | None, queue: int | None, swaps: bool
) -> RamTier:
    """A RAM tier of so many slots, or of so many bytes, for records of typically `typical` bytes."""
    block = RamTier.block_size(schema, typical)
    each = max(1, -(-int(typical) // block))  # blocks of a typical record
    if slots is not None:
        spare = spare_records(slots, queue, swaps)
        # Where sizes vary, the typical size is a guess. Blocks that are never written cost nothing, so guess high.
        blocks = slots + spare + at_hand(slots) if schema.fixed else (slots + spare) * each * 4
        given = f"slots={slots}" + ("" if queue is None else f" with queue={queue}")
        _check_machine(given, (slots + spare) * (each * block + _PER_SLOT))
        return RamTier(schema, slots, blocks=blocks, block=block, spare=spare * each)
    assert ram is not None
    _check_machine(f"ram={ram}", ram)
    slots_per_block = 1.0 if schema.fixed else min(1.0, 4 / each)
    blocks = int((ram - 64 - 4096) / (block + _PER_BLOCK + _PER_SLOT * slots_per_block))
    rows = blocks // each
    spare = spare_records(rows * 8 // 9, queue, swaps)
    coming = spare + (at_hand(rows * 8 // 9) if schema.fixed else 0)
    if rows <= coming:
        raise ValueError(
            f"ram={ram} bytes holds {max(rows, 0)} records of {each * block} bytes, and a RAM tier needs room for "
            f"{coming + 1}: one slot, and {coming} for records on their way in. Give more ram, or a smaller queue"
        )
    table = rows - coming if schema.fixed else min(blocks, (rows - coming) * 4)
    tier = RamTier(schema, table, blocks=blocks, block=block, spare=spare * each)
    tier.limit = rows - coming  # grows if records turn out to be smaller
    return tier


def _check_machine(given: str, size: int) -> None:
    """Refuse what this machine cannot hold: better now than when the kernel ends the process."""
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > there:
        raise ValueError(f"{given} takes {format_bytes(size)}, and this machine has {format_bytes(there)} of memory")
