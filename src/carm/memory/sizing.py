"""How large a RAM tier is: from slots, or from bytes."""

from __future__ import annotations

from carm.memory.ram import RamTier
from carm.memory.record import Schema


def spare_records(slots: int, queue: int | None) -> int:
    """Records that may be on their way in at once: `queue`, or an eighth of the slots, from 64 to 256."""
    return queue if queue is not None else min(max(slots // 8, 64), 256)


def make_ram(
    schema: Schema, typical: float, *, slots: int | None, ram: int | None, queue: int | None, swaps: bool
) -> RamTier:
    """A RAM tier of so many slots, or of so many bytes, for records of typically `typical` bytes.

    Without swaps one spare record is enough: `add` writes there before it gives up what it replaces.
    """
    block = RamTier.block_size(schema, typical)
    each = max(1, -(-int(typical) // block))  # blocks of a typical record
    if slots is not None:
        spare = spare_records(slots, queue) if swaps else 1
        # Where sizes vary, the typical size is a guess. Blocks that are never written cost nothing, so guess high.
        blocks = slots + spare if schema.fixed else (slots + spare) * each * 4
        return RamTier(schema, slots, blocks=blocks, block=block, spare=spare * each)
    assert ram is not None
    overhead = 16 if schema.fixed else 24  # a block's entry, successor and size
    blocks = (ram - 64 - 4096) // (block + overhead)
    rows = blocks // each
    spare = spare_records(rows * 8 // 9, queue) if swaps else 1
    if rows <= spare:
        raise ValueError(
            f"ram={ram} bytes holds {max(rows, 0)} records of {each * block} bytes, and a RAM tier needs room for "
            f"{spare + 1}: one slot, and {spare} for records on their way in. Give more ram, or a smaller queue"
        )
    table = rows - spare if schema.fixed else min(blocks, (rows - spare) * 4)
    return RamTier(schema, table, blocks=blocks, block=block, spare=spare * each)
