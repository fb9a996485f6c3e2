"""The RAM tier on its own: sizes, blocks, publishing, settling, and what readers see."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys

import numpy as np
import pytest
from patterns import FIXED, VARIABLE, audit_ram, descriptors, keys_of, samples

from carm.memory.errors import CarmError
from carm.memory.ram import RamTier
from carm.memory.record import Field, Schema
from carm.memory.shared import SharedBlock


def tier(schema: Schema = FIXED, slots: int = 8, *, spare: int = 4, blocks: int | None = None) -> RamTier:
    block = RamTier.block_size(schema, 1000)
    blocks = blocks or (slots + spare) * (1 if schema.fixed else 8)
    return RamTier(schema, slots, blocks=blocks, block=block, spare=spare)


def put(ram: RamTier, slots: list[int], keys: list[int], label: int = 0) -> None:
    records = ram.schema.pack(samples(keys, [label] * len(keys), ram.schema))
    blocks = ram.allocate(records.sizes)
    assert blocks is not None
    ram.write(records, np.arange(len(keys)), blocks)
    first = ram.first_blocks(blocks, records.sizes)
    none = np.full(len(keys), -1, np.int32)
    ram.publish(np.array(slots, np.int64), first, records.labels, np.array(keys, np.int64), none)


@pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])
def test_what_is_published_is_read(schema: Schema) -> None:
    ram = tier(schema)
    put(ram, [3, 0, 7], [11, 12, 13])
    audit_ram(ram)
    assert keys_of(ram.fields(np.array([0, 3, 7])), schema).tolist() == [12, 11, 13]
    data, starts = ram.read(np.array([7, 7, 3]))
    assert keys_of(schema.unpack(data, starts), schema).tolist() == [13, 13, 11]
    assert ram.read(np.zeros(0, np.int64))[1].tolist() == []


@pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])
def test_a_flip_frees_the_old_blocks_and_the_copy_stays(schema: Schema) -> None:
    ram = tier(schema)
    put(ram, [0, 1], [1, 2])
    before = ram.fields(np.array([0]))
    for key in range(3, 60):  # far more records than there are blocks
        put(ram, [0], [key], label=key % 3)
        audit_ram(ram)
    assert keys_of(before, schema).tolist() == [1]
    assert keys_of(ram.fields(np.array([0, 1])), schema).tolist() == [59, 2]
    assert ram.labels[0] == 59 % 3


def test_allocate_takes_all_or_nothing() -> None:
    ram = tier(slots=4, spare=2)
    assert ram.allocate(np.full(7, FIXED.head_size)) is None
    assert ram.free_blocks == 6
    blocks = ram.allocate(np.full(6, FIXED.head_size))
    assert blocks is not None
    assert ram.allocate(np.full(1, FIXED.head_size)) is None
    empty = ram.allocate(np.zeros(0, np.int64))
    assert empty is not None
    assert len(empty) == 0
    ram.release(blocks.astype(np.int64))
    audit_ram(ram)


def test_sizes_at_the_edges_of_blocks() -> None:
    ram = tier(VARIABLE, slots=8, blocks=200)
    block = ram.layout.block
    head = VARIABLE.head_size
    for slot, size in enumerate([0, 1, block - head, block - head + 1, 2 * block - head, 5 * block + 3]):
        x = [bytes([slot + 1]) * size]
        records = VARIABLE.pack({"x": x, "y": np.array([0]), "logits": np.zeros((1, 4), np.float32)})
        blocks = ram.allocate(records.sizes)
        assert blocks is not None
        assert len(blocks) == -(-int(records.sizes[0]) // block)
        ram.write(records, np.array([0]), blocks)
        first = ram.first_blocks(blocks, records.sizes)
        ram.publish(np.array([slot]), first, records.labels, np.array([slot]), np.array([-1], np.int32))
        audit_ram(ram)
        assert bytes(ram.fields(np.array([slot]))["x"][0]) == x[0]


def test_generations_survive_their_limit() -> None:
    ram = tier()
    ram.arrays.entries[2] = ((1 << 31) - 2) << 32  # as after two thousand million swaps
    reader = ram.reader()
    for key in range(1, 6):
        put(ram, [2], [key])
        audit_ram(ram)
        assert keys_of(reader.read([2])).tolist() == [key]
    ram.clear(np.array([2]))
    audit_ram(ram)
    assert reader.filled().tolist() == []


def test_settle_moves_samples_to_the_lowest_slots() -> None:
    ram = tier(VARIABLE, slots=8, blocks=100)
    put(ram, [1, 4, 6, 7], [11, 14, 16, 17], label=3)
    came_from = ram.settle()
    audit_ram(ram)
    assert ram.capacity == len(ram) == 4
    assert ram.used().tolist() == [0, 1, 2, 3]
    assert sorted(came_from.tolist()) == list(range(8))
    old = {1: 11, 4: 14, 6: 16, 7: 17}
    assert ram.ids[:4].tolist() == [old[int(s)] for s in came_from[:4]]
    assert keys_of(ram.fields(np.arange(4)), VARIABLE).tolist() == ram.ids[:4].tolist()
    assert len(ram.free()) == 0


def test_settling_an_empty_tier_leaves_a_slot() -> None:
    ram = tier(VARIABLE)
    ram.settle()
    assert ram.capacity == 1
    put(ram, [0], [5])
    audit_ram(ram)


# -- readers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])
def test_reader_reads_what_the_tier_shows(schema: Schema) -> None:
    ram = tier(schema)
    put(ram, [0, 2, 5], [10, 12, 15])
    reader = ram.reader()
    assert len(reader) == 8
    assert reader.filled().tolist() == [0, 2, 5]
    assert keys_of(reader.read([5, 0]), schema).tolist() == [15, 10]
    assert int(reader[2]["logits"][0]) == 12
    assert [int(s["logits"][0]) for s in reader.__getitems__([0, 2])] == [10, 12]
    put(ram, [2], [99])
    assert int(reader[2]["logits"][0]) == 99


@pytest.mark.parametrize("slots", [[1], [0, 1], [-1], [8], [0, 10**9]])
def test_reader_refuses_slots_that_show_nothing(slots: list[int]) -> None:
    ram = tier()
    put(ram, [0], [1])
    with pytest.raises(IndexError, match="slot"):
        ram.reader().read(slots)


def test_reader_of_a_retired_tier_says_so() -> None:
    ram = tier()
    put(ram, [0], [1])
    reader = ram.reader()
    reader.read([0])
    ram.retire()
    with pytest.raises(CarmError, match=r"make a new one with memory\.reader"):
        reader.read([0])
    with pytest.raises(CarmError, match=r"make a new one with memory\.reader"):
        pickle.dumps(reader)
    with pytest.raises(CarmError, match=r"make a new one with memory\.reader"):
        pickle.dumps(ram.reader())


def test_reader_survives_a_pickle() -> None:
    ram = tier()
    put(ram, [0, 1], [1, 2])
    copy = pickle.loads(pickle.dumps(ram.reader()))
    assert keys_of(copy.read([0, 1])).tolist() == [1, 2]
    put(ram, [1], [7])
    assert keys_of(copy.read([0, 1])).tolist() == [1, 7]


def test_reader_of_every_slot_ends_though_slots_keep_changing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of which some slot changes during every copy must be done again in part, not as a whole for ever."""
    import carm.memory.ram as module

    ram = tier(slots=32, spare=4)
    put(ram, list(range(32)), list(range(100, 132)))
    reader = ram.reader()
    copy, copies = module.copy_records, []

    def copy_while_swapping(arrays: module.Arrays, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        out = copy(arrays, first)
        copies.append(len(first))
        assert len(copies) < 200, "the reader never comes to an end"
        key = 1000 + len(copies)
        monkeypatch.setattr(module, "copy_records", copy)
        put(ram, [len(copies) % 32], [key])
        monkeypatch.setattr(module, "copy_records", copy_while_swapping)
        return out

    monkeypatch.setattr(module, "copy_records", copy_while_swapping)
    keys_of(reader.read(np.arange(32)))
    assert sum(copies) < 5 * 32


# -- the block itself --------------------------------------------------------------------------------------------------


def test_shared_block_gives_its_descriptor_and_memory_back() -> None:
    def open_files() -> int:
        return descriptors()

    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum("carm-ram" in line for line in maps)

    gc.collect()
    files, maps = open_files(), mapped()
    for _ in range(5):
        ram = tier()
        put(ram, [0], [1])
        ram.retire()
        del ram
    gc.collect()
    assert open_files() == files
    assert mapped() == maps


def test_unwritten_blocks_cost_nothing() -> None:
    script = (
        "from carm.memory.shared import SharedBlock\n"
        "b = SharedBlock(1 << 33)\nb.bytes()[:4096] = 1\n"
        "print(open('/proc/self/status').read().split('VmRSS:')[1].split()[0])"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(out.stdout) < 200_000  # KiB


def test_closed_block_may_be_closed_again() -> None:
    block = SharedBlock(100)
    block.close()
    block.close()


def test_arrays_are_aligned() -> None:
    for slots in (1, 2, 7, 64):
        for schema in (FIXED, VARIABLE, Schema((Field("z", "bool", (3,)), Field("y", "int64")))):
            ram = RamTier(schema, slots, blocks=slots + 3, block=RamTier.block_size(schema, 500), spare=1)
            arrays = ram.arrays
            for array in (arrays.header, arrays.entries, arrays.successors, arrays.sizes):
                assert array.ctypes.data % array.itemsize == 0
            assert arrays.arena.ctypes.data % 4096 == 0
            assert ram.shared.size >= ram.layout.nbytes
