"""The store in ordinary use: what its methods promise, and what they say when they cannot."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered import FIXED, VARIABLE, check, check_index, samples
from patterns import descriptors

from carm.memory.errors import CheckpointError, SchemaError, StoreError, StoreFull
from carm.memory.orders import perform
from carm.memory.record import Field, Schema
from carm.memory.store import Store

ROOM = 512  # bytes that a sample of FIXED takes


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "store"


def fill(store: Store, n: int, *, batch: int = 64, label: int | None = None) -> list[int]:
    """Append n samples whose contents follow from their ids; returns the ids of those that were stored."""
    out: list[int] = []
    schema = store.schema or FIXED
    for at in range(0, n, batch):
        ids = range(store.next_id, store.next_id + min(batch, n - at))
        labels = None if label is None else [label] * len(ids)
        got = store.append(samples(ids, schema, labels)).tolist()
        assert all(g in (i, -1) for g, i in zip(got, ids, strict=True))
        out += [g for g in got if g >= 0]
    return out


def living(store: Store) -> list[int]:
    return store.ids.tolist()


def counts(store: Store) -> dict[int, int]:
    return {label: store.index.sets.count(label) for label in store.index.sets.labels}


# -- storing and reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])
def test_what_goes_in_comes_out(base: Path, schema: Schema) -> None:
    with Store(base, schema=schema) as store:
        ids = fill(store, 200)
        assert ids == list(range(200)) and len(store) == 200
        check(store.read([7, 3, 3, 199, 0]), [7, 3, 3, 199, 0], schema)
        assert len(store.read([])["y"]) == 0
    with Store(base) as store:
        assert store.schema == schema and len(store) == 200 and store.next_id == 200
        check(store.read(ids), ids, schema)
        assert [n for n, bad in store.verify(batch=64)] == [64, 64, 64, 8]
        check_index(store)


def test_the_schema_may_come_with_the_first_sample(base: Path) -> None:
    with Store(base) as store:
        assert store.schema is None and len(store) == 0 and living(store) == []
        assert store.index.find([1, 2]).tolist() == [-1, -1] and store.index_bytes < 200
        assert list(store.verify()) == []
        with pytest.raises(KeyError, match="no sample with id 5"):
            store.read([5])
        with pytest.raises(StoreError, match="empty"):
            store.checkpoint()
        store.settle()
        store.delete([])
        fill(store, 3)
    with Store(base) as store:
        assert store.schema is not None and set(store.schema.fields) == set(FIXED.fields)


def test_an_empty_store_may_be_closed_and_opened(base: Path) -> None:
    for _ in range(3):
        Store(base).close()
    for _ in range(3):
        with Store(base, schema=FIXED) as store:
            assert len(store) == 0
    with Store(base, readonly=True) as store:
        assert len(store) == 0 and list(store.verify()) == []


def test_empty_batches(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        before = store.seq
        assert store.append(samples([])).tolist() == []
        assert store.seq == before, "nothing is not worth a commit"
        fill(store, 2)
        assert store.append(samples([])).tolist() == []
        assert len(store) == 2
    with Store(base.with_name("variable"), schema=VARIABLE) as store:
        assert store.append({"x": [], "y": [], "z": np.zeros((0, 3), np.float32), "note": []}).tolist() == []


def test_no_samples_say_nothing_about_the_schema(base: Path) -> None:
    with Store(base) as store:
        assert store.append({"x": np.zeros((0, 4), np.float32), "y": []}).tolist() == []
        assert store.schema is None and store.next_id == 0
        with pytest.raises(SchemaError, match="'x'"):
            store.append({"x": 5, "y": 3})
        assert fill(store, 3) == [0, 1, 2]
    with Store(base) as store:
        check(store.read(range(3)), range(3))


def test_labels_of_every_kind(base: Path) -> None:
    labels = [0, -1, 2**40 + 3, -(2**63), 2**63 - 1, 7]
    with Store(base, schema=FIXED, capacity=5) as store:
        store.append(samples(range(6), FIXED, labels))
        assert len(store) == 5  # of six classes with one sample each, one had to go
    with Store(base, capacity=5) as store:
        ids = living(store)
        check(store.read(ids), ids, FIXED, [labels[i] for i in ids])
        assert set(store.index.sets.labels) == {labels[i] for i in ids}


def test_large_and_tiny_records(base: Path) -> None:
    schema = Schema((Field("x", "uint8", None), Field("y", "int64")))
    big = np.random.default_rng(0).integers(0, 256, 9_000_001, dtype=np.uint8).tobytes()
    with Store(base, schema=schema) as store:
        store.append({"x": [b"", big, b"a"], "y": [1, 2, 3]})
    with Store(base) as store:
        assert [bytes(v) for v in store.read([2, 1, 0])["x"]] == [b"a", big, b""]


def test_many_records_in_one_batch(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        ids = store.append(samples(range(5000))).tolist()
        check(store.read(ids[::7]), ids[::7])


# -- capacity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])
@pytest.mark.parametrize("capacity", [100, "100kB"])
def test_in_the_steady_state_the_file_does_not_grow(base: Path, schema: Schema, capacity: Any) -> None:
    with Store(base, schema=schema, capacity=capacity) as store:
        fill(store, 400, batch=16)
        ends = []
        for _ in range(30):
            fill(store, 16)
            ends.append(store.extents.end)
        check_index(store)
        size = os.path.getsize(base / "extents.dat")
        if isinstance(capacity, str):
            assert size <= 100_000
            assert store.index.live_bytes > (0.8 if schema.fixed else 0.6) * 100_000, "capacity is wasted"
        else:
            assert len(store) == 100
            assert max(ends) <= 1.1 * min(ends) + 16 * 4096
        ids = living(store)
        check(store.read(ids), ids, schema)
        assert store.evicted == store.next_id - len(store)


def test_in_the_steady_state_one_commit_is_enough(base: Path) -> None:
    """Room for a batch is kept free, so that new samples need not wait for the death of old ones."""
    with Store(base, schema=FIXED, capacity="100kB") as store:
        fill(store, 400, batch=16)
        for _ in range(20):
            order = store.plan(FIXED.pack(samples(range(16))), store.take_ids(16))
            assert not len(order.before) and not order.afresh
            perform(order, store.file, store.catalogue)  # type: ignore[arg-type]
            store.confirm(order)


def test_capacity_is_exact_in_samples(base: Path) -> None:
    with Store(base, schema=FIXED, capacity=10) as store:
        for n in (7, 3, 1, 9, 10, 25, 1):
            fill(store, n)
            assert len(store) == min(10, store.next_id)
    with Store(base, capacity=4) as store:  # smaller than before: the rest goes with the next append
        assert len(store) == 10
        fill(store, 1)
        assert len(store) == 4
    with Store(base, capacity=None) as store:
        fill(store, 20)
        assert len(store) == 24


def test_one_class_does_not_drive_out_the_others(base: Path) -> None:
    with Store(base, schema=FIXED, capacity=100) as store:
        fill(store, 100)
        fill(store, 1000, batch=1000, label=0)  # far more than the capacity, in one batch
        assert counts(store) == dict.fromkeys(range(5), 20)
        fill(store, 1000, label=9)
        assert sorted(counts(store).values()) == [16, 16, 17, 17, 17, 17]


def test_eviction_is_uniform_within_a_class(base: Path) -> None:
    """Of 40 samples, 10 are to make way for 10 of another class: every one of them equally often."""
    gone = np.zeros(40)
    with Store(base, schema=FIXED, capacity=40, seed=1) as store:
        fill(store, 40, label=0)
        records = FIXED.pack(samples(range(10), FIXED, [1] * 10))
        for _ in range(1000):
            order = store.plan(records, np.arange(40, 50))
            assert len(order.deaths) == len(set(order.deaths.tolist())) == 10 and len(order.indices) == 10
            gone[order.deaths] += 1
            store.fail(order)
            check_index(store)
    chi2 = ((gone - 250) ** 2 / (250 * 0.75)).sum()  # 10 of 40 without replacement: a variance of 1000 * 1/4 * 3/4
    assert chi2 < 72.1, gone  # 99.9 % of 39 degrees of freedom


def test_held_samples_are_never_evicted(base: Path) -> None:
    with Store(base, schema=FIXED, capacity=20) as store:
        held = fill(store, 12, label=3)[:12]
        for handle in store.index.find(held).tolist():
            store.index.sets.hold(handle)
        for _ in range(30):
            fill(store, 8, label=3)
            assert set(held) <= set(living(store)) and len(store) == 20
        with pytest.raises(ValueError, match=f"sample {held[0]} is in RAM"):
            store.delete([held[0]])


def test_the_room_of_unreadable_samples_is_used_before_that_of_others(base: Path) -> None:
    """They still occupy it when the next batch comes; nobody of another class must pay for that."""
    with Store(base, schema=FIXED, capacity="8199") as store:
        fill(store, 10, batch=5)
        with pytest.warns(UserWarning, match="dropped"):
            store.discard(store.index.find([0, 1, 2]).tolist())
        fill(store, 8, batch=8, label=0)
        assert [i for i in range(10) if i not in living(store) and i % 5] == [1, 2]
        check_index(store)
        ids = living(store)
        check(store.read(ids), ids, FIXED, [i % 5 if i < 10 else 0 for i in ids])


def test_when_everything_is_held_new_ones_are_left_out(base: Path) -> None:
    with Store(base, schema=FIXED, capacity=10) as store:
        ids = fill(store, 10)
        for handle in store.index.find(ids).tolist():
            store.index.sets.hold(handle)
        assert store.append(samples(range(10, 13))).tolist() == [-1, -1, -1]
        assert living(store) == ids and store.evicted == 3


def test_pinned_ones_are_left_out_last(base: Path) -> None:
    with Store(base, schema=FIXED, capacity=4) as store:
        records, ids = FIXED.pack(samples(range(8), FIXED, [0] * 8)), store.take_ids(8)
        pinned = np.array([True, False] * 4)
        order = store.plan(records, ids, pinned)
        assert order.indices.tolist() == [0, 2, 4, 6] and order.left_out == 4
        perform(order, store.file, store.catalogue)  # type: ignore[arg-type]
        handles = store.confirm(order)
        assert store.index.ids[handles].tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    "capacity", [0, -1, 2**31, 10**30, True, 1.5, float("nan"), [1], b"1MB", "0", "-5", "many", "1e3MB"]
)
def test_capacities_that_make_no_sense(base: Path, capacity: Any) -> None:
    with pytest.raises(ValueError, match="capacity="):
        Store(base, schema=FIXED, capacity=capacity)
    assert not base.exists()


def test_capacities_that_are_too_small(base: Path) -> None:
    with pytest.raises(ValueError, match="capacity=100 bytes is too little"):
        Store(base, schema=FIXED, capacity="100")
    with Store(base, schema=FIXED, capacity=np.int64(1)) as store:  # type: ignore[arg-type]
        fill(store, 5)
        assert len(store) == 1
    with pytest.raises(ValueError, match="too little"):
        Store(base, capacity="8191")
    with Store(base, capacity="8192") as store:
        fill(store, 100, batch=3)
        assert os.path.getsize(base / "extents.dat") == 8192 and len(store) > 10


def test_a_sample_larger_than_the_store_does_not_empty_it(base: Path) -> None:
    with Store(base, schema=VARIABLE, capacity="200kB") as store:
        fill(store, 60)
        before = living(store)
        big = {"x": [bytes(300_000), b"small"], "y": [0, 1], "z": np.zeros((2, 3), np.float32), "note": [b"", b""]}
        with pytest.warns(UserWarning, match=r"1 samples are larger than the store may be \(195 KiB\)"):
            got = store.append(big)
        assert got.tolist() == [-1, 61]
        assert len(set(before) - set(living(store))) <= 3


def test_a_sample_larger_than_the_store_holds_nobody_where_warnings_are_errors(base: Path) -> None:
    """The warning comes before victims are chosen: as an error, it leaves everything as it was."""
    with Store(base, schema=VARIABLE, capacity="64KiB") as store:
        fill(store, 40)
        before = living(store)
        both = {"x": [bytes(70_000), bytes(9_000)], "y": [1, 1], "z": np.zeros((2, 3), np.float32), "note": [b"", b""]}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="larger than the store may be"):
                store.append(both)
        assert living(store) == before
        assert store.index.sets.are_open(store.index.live()).all()
        check_index(store)


def test_a_large_sample_takes_the_place_of_neighbours_only(base: Path) -> None:
    """Where sizes vary, room in one piece is what counts: it must not cost more samples than lie in that piece."""
    with Store(base, schema=VARIABLE, capacity="1MB") as store:
        fill(store, 1500)
        while store.index.live_bytes < 850_000:
            fill(store, 16)
        before, bytes_before = len(store), store.index.live_bytes
        large = {"x": [bytes(100_000)], "y": [0], "z": np.zeros((1, 3), np.float32), "note": [b""]}
        assert store.append(large).tolist() != [-1]
        evicted = bytes_before - (store.index.live_bytes - 100_352)
        assert evicted < 220_000, "much more was evicted than the sample needs"
        assert before - len(store) < 200
        check_index(store)


def test_no_room_between_held_ones(base: Path) -> None:
    """Held samples lie everywhere, so there is no room in one piece: StoreFull, and nothing is lost."""
    with Store(base, schema=VARIABLE, capacity="100kB") as store:
        while store.index.live_bytes < 80_000:
            fill(store, 4)
        ids = living(store)
        handles = store.index.find(ids)
        order = np.argsort(store.index.offsets[handles])
        for handle in handles[order][::3].tolist():
            store.index.sets.hold(handle)
        before, opened = living(store), [store.index.sets.is_open(h) for h in handles.tolist()]
        large = {"x": [bytes(30_000)], "y": [99], "z": np.zeros((1, 3), np.float32), "note": [b""]}
        with pytest.raises(StoreFull, match="too little may be evicted"):
            store.append(large)
        assert living(store) == before and [store.index.sets.is_open(h) for h in handles.tolist()] == opened
        assert store.append(large | {"x": [bytes(90_000)]}).tolist() == [-1], "all that may go would not be enough"
        assert living(store) == before and [store.index.sets.is_open(h) for h in handles.tolist()] == opened
        check_index(store)
        fill(store, 8)
        check_index(store)


def test_index_takes_at_most_64_bytes_a_sample(base: Path) -> None:
    schema = Schema((Field("y", "int64"),))
    with Store(base, schema=schema, capacity=6000) as store:
        while store.next_id < 6000:
            store.append({"y": np.arange(500) % 10})
            assert len(store) < 3000 or store.index_bytes <= 64 * len(store)
        for _ in range(10):
            store.append({"y": np.arange(500) % 7})
            assert store.index_bytes <= 64 * len(store)
    with Store(base, capacity=6000) as store:
        assert store.index_bytes <= 64 * len(store)


def test_index_of_varying_sizes_takes_at_most_64_bytes_a_sample(base: Path) -> None:
    schema = Schema((Field("x", "uint8", None), Field("y", "int64")))
    rng = np.random.default_rng(0)
    with Store(base, schema=schema, capacity="8MB") as store:
        for _ in range(40):
            store.append({"x": [bytes(int(n)) for n in rng.integers(0, 3000, 250)], "y": np.arange(250) % 10})
        assert len(store) > 3000 and len(store.extents._starts) > 100  # type: ignore[union-attr]
        assert store.index_bytes <= 64 * len(store)


# -- deleting ----------------------------------------------------------------------------------------------------------


def test_delete(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        fill(store, 10)
        store.delete([3, 3, np.int64(5)])
        assert living(store) == [0, 1, 2, 4, 6, 7, 8, 9] and store.evicted == 0
        with pytest.raises(KeyError, match="no sample with id 5"):
            store.delete([1, 5])
        with pytest.raises(KeyError, match="no sample with id 77"):
            store.read([1, 77])
        assert len(store) == 8, "all or nothing"
        end = store.extents.end
        fill(store, 2)
        assert store.extents.end == end, "their room was not used again"
        store.delete(living(store))
        assert len(store) == 0 and store.extents.end == 0
        fill(store, 1)
    with Store(base) as store:
        assert living(store) == [12]


def test_ids_are_never_given_twice(base: Path) -> None:
    seen: Counter[int] = Counter()
    for _ in range(6):
        with Store(base, schema=FIXED, capacity=5) as store:
            seen.update(fill(store, 7))
            store.delete(living(store))
            store.settle()
            assert store.catalogue is not None
            store.catalogue.compact(store.past.floor)
    assert set(seen.values()) == {1}


# -- in the middle of a write ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["append", "delete", "settle", "checkpoint", "restore"])
@pytest.mark.parametrize("end", ["confirmed", "failed"])
def test_no_other_commit_in_the_middle_of_a_write(base: Path, change: str, end: str) -> None:
    """It would take the number of the write's own commit, and one of the two would be lost."""
    with Store(base, schema=FIXED) as store:
        fill(store, 10)
        state = store.checkpoint()
        act: Any = {
            "append": lambda: store.append(samples([10])),
            "delete": lambda: store.delete([3]),
            "settle": store.settle,
            "checkpoint": store.checkpoint,
            "restore": lambda: store.restore(state),
        }[change]
        ids = store.take_ids(5)
        order = store.plan(FIXED.pack(samples(ids)), ids)
        before = living(store)
        with pytest.raises(StoreError, match=r"a write to .*store is under way; call flush\(\) of its memory first"):
            act()
        assert living(store) == before and store.next_id == 15
        assert store.file is not None and store.catalogue is not None
        if end == "confirmed":
            perform(order, store.file, store.catalogue)
            store.confirm(order)
            before += ids.tolist()
        else:
            store.fail(order)
        assert living(store) == before
        act()  # afterwards it may be
        check_index(store)
        before = living(store)
    with Store(base) as store:
        assert living(store) == before


# -- compaction --------------------------------------------------------------------------------------------------------


def test_the_catalogue_does_not_grow_for_ever(base: Path) -> None:
    schema = Schema((Field("y", "int64"),))
    with Store(base, schema=schema, capacity=1000) as store:
        sizes = []
        for round in range(60):
            store.append({"y": np.arange(500) % 10})
            store.settle()
            assert store.buried <= len(store) + 4096 + 500
            if round % 10 == 9:
                assert store.catalogue is not None
                store.catalogue.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                sizes.append(os.path.getsize(base / "catalogue.db"))
        before = living(store)
        assert sizes[-1] <= sizes[2] * 1.3, sizes
    with Store(base, capacity=1000) as store:
        assert living(store) == before


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])
def test_restore_brings_back_what_was_evicted(base: Path, schema: Schema) -> None:
    with Store(base, schema=schema, capacity=200) as store:
        fill(store, 200)
        state = store.checkpoint()
        before = living(store)
        fill(store, 30)
        assert living(store) != before and store.past.retained > 0
        store.restore(state)
        assert living(store) == before and store.next_id == 200
        check(store.read(before), before, schema)
        check_index(store)
        again = fill(store, 30)
        assert again == list(range(200, 230)), "the same ids as the first time"
        check(store.read(living(store)), living(store), schema)
        store.restore(state)
        assert living(store) == before


def test_restore_after_reopening(base: Path) -> None:
    """Nothing was evicted between the checkpoint and the end of the first process, but after it: still no reason to
    forget."""
    with Store(base, schema=FIXED, capacity=100) as store:
        fill(store, 100)
        state = store.checkpoint()
    with Store(base, capacity=100) as store:
        fill(store, 10)
    with Store(base, capacity=100) as store:
        store.restore(state)
        assert living(store) == list(range(100))
        check(store.read(range(100)), range(100))


def test_the_checkpoint_before_the_last_can_be_restored(base: Path) -> None:
    """Whoever is killed between making a checkpoint and saving it has only the one before."""
    with Store(base, schema=FIXED, capacity=100) as store:
        fill(store, 100)
        first, at_first = store.checkpoint(), living(store)
        fill(store, 8)
        second, at_second = store.checkpoint(), living(store)
        fill(store, 8)
        store.restore(second)
        assert living(store) == at_second
        store.restore(first)
        assert living(store) == at_first
        with pytest.raises(CheckpointError, match="cannot go back"):
            store.restore(second)  # that is now the future
        fill(store, 8)
        third = store.checkpoint()
        assert third["seq"] == second["seq"]
        with pytest.raises(CheckpointError):
            store.restore(second)  # the same number, but another moment
        store.restore(third)


def test_older_checkpoints_while_nothing_is_evicted(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        states = []
        for _ in range(5):
            fill(store, 10)
            states.append((store.checkpoint(), living(store)))
    with Store(base) as store:
        for state, before in reversed(states):
            store.restore(state)
            assert living(store) == before
            check_index(store)


def test_two_checkpoints_of_one_moment_are_one(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        fill(store, 10)
        a, b = store.checkpoint(), store.checkpoint()
        fill(store, 10)
        for state in (a, b, a):
            store.restore(state)
            assert len(store) == 10


def test_what_checkpoints_retain_is_bounded(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Store(base, schema=FIXED, capacity="100kB") as store:
        fill(store, 300)
        state = store.checkpoint()
        with caplog.at_level(logging.INFO, "carm"):
            fill(store, 400, batch=8)
        assert os.path.getsize(base / "extents.dat") <= 125_000
        assert store.past.retained == 0
        assert "can no longer be restored" in caplog.text
        with pytest.raises(CheckpointError, match="It can go back to none"):
            store.restore(state)
        ids = living(store)
        check(store.read(ids), ids)
        check_index(store)


def test_checkpoints_of_others_are_refused(base: Path) -> None:
    with Store(base, schema=FIXED) as store, Store(base.with_name("other"), schema=FIXED) as other:
        fill(store, 3)
        fill(other, 3)
        with pytest.raises(CheckpointError, match="another store"):
            store.restore(other.checkpoint())
        state = store.checkpoint()
        with pytest.raises(CheckpointError):
            store.restore(state | {"seq": 99})
        with pytest.raises(CheckpointError):
            store.restore(state | {"token": "0" * 32})
        assert len(store) == 3


def test_restore_then_reopen(base: Path) -> None:
    with Store(base, schema=FIXED, capacity=50) as store:
        fill(store, 50)
        state = store.checkpoint()
        fill(store, 5)
        store.restore(state)
    with Store(base, capacity=50) as store:
        assert living(store) == list(range(50)) and store.next_id == 50
        store.restore(state)
        check(store.read(range(50)), range(50))


# -- schemas -----------------------------------------------------------------------------------------------------------


def test_schema_mismatch(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        fill(store, 3)
        with pytest.raises(SchemaError, match="'x'"):
            store.append(samples(range(3)) | {"x": np.zeros((3, 5, 12), np.uint8)})
        with pytest.raises(SchemaError, match="whole numbers"):
            store.append(samples(range(3)) | {"y": [0.5, 1.0, 2.0]})
        with pytest.raises(SchemaError, match="unknown"):
            store.append(samples(range(3)) | {"extra": [1, 2, 3]})
        assert len(store) == 3 and store.next_id == 3
    with pytest.raises(SchemaError, match=r"holds samples .*not "):
        Store(base, schema=VARIABLE)
    with Store(base, schema=FIXED) as store:
        assert len(store) == 3


# -- who may use it ----------------------------------------------------------------------------------------------------


def test_after_close(base: Path) -> None:
    store = Store(base, schema=FIXED)
    fill(store, 40)
    store.read([0])
    before = descriptors()
    store.close()
    store.close()
    assert descriptors() < before
    after = descriptors()
    for use in (
        lambda: store.append(samples([1])),
        lambda: store.read([0]),
        lambda: store.fetch(np.array([0])),
        lambda: list(store.verify()),
        lambda: store.delete([0]),
        lambda: store.checkpoint(),
        lambda: store.settle(),
        lambda: store.open_engine(),
    ):
        with pytest.raises(StoreError, match="is closed"):
            use()
    assert descriptors() == after, "a closed store opened something"


def test_descriptors_are_given_back(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        fill(store, 40)
    before = descriptors()
    for options in ({}, {"readonly": True}, {"engine": "mapped"}, {"engine": "preadv"}):
        with Store(base, **options) as store:  # type: ignore[arg-type]
            store.read([0])
    for bad in ({"schema": VARIABLE}, {"capacity": "8191"}):
        with pytest.raises(ValueError):
            Store(base, **bad)  # type: ignore[arg-type]
    assert descriptors() == before


def test_readonly(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        fill(store, 40)
        with Store(base, readonly=True) as other:  # beside the writer
            check(other.read(range(40)), range(40))
            fill(store, 40)
            assert len(other) == 40
            for use in (
                lambda: other.append(samples([1])),
                lambda: other.delete([0]),
                lambda: other.checkpoint(),
                lambda: other.create(FIXED),
            ):
                with pytest.raises(StoreError, match="readonly=True"):
                    use()
    with pytest.raises(StoreError, match="holds no store"):
        Store(base.with_name("nothing"), readonly=True)
    assert not base.with_name("nothing").exists()


def test_modes(base: Path) -> None:
    old = os.umask(0)
    try:
        with Store(base / "deep" / "er", schema=FIXED) as store:
            fill(store, 3)
            store.read([0])
            names = {p.name: p.stat().st_mode & 0o777 for p in (base / "deep" / "er").iterdir()}
    finally:
        os.umask(old)
    assert names.keys() == {"lock", "catalogue.db", "catalogue.db-wal", "catalogue.db-shm", "extents.dat"}
    assert set(names.values()) == {0o600}
    assert (base / "deep" / "er").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])
def test_nothing_is_unpickled(base: Path, schema: Schema, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write in a store could else run code in the process that reads it."""

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("something is unpickled")

    with Store(base, schema=schema) as store:
        fill(store, 40)
    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, refused)
    for readonly in (False, True):
        with Store(base, readonly=readonly) as store:
            check(store.read(range(40)), range(40), schema)
            assert not any(bad for _, bad in store.verify())


def test_warnings_point_at_the_user(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        fill(store, 40)
    os.truncate(base / "extents.dat", 1000)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Store(base).close()
    assert [w.filename for w in caught] == [__file__]


def test_two_threads_may_look_at_two_stores(base: Path) -> None:
    """Stores share nothing: no module-level state that threads could trip over."""
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with Store(base / name, schema=FIXED, capacity=50) as store:
                for _ in range(10):
                    fill(store, 20)
                    ids = living(store)
                    check(store.read(ids), ids)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_no_pickle_and_no_torch(base: Path) -> None:
    """What storage holds is never unpickled, and the swap helper, which imports this, starts without torch."""
    code = f"""
        import pickle, sys
        sys.path.insert(0, {os.path.dirname(__file__)!r})
        from numbered import FIXED, check, samples
        from carm.memory.store import Store
        def alarm(*_, **__):
            raise SystemExit("something is unpickled")
        pickle.load = pickle.loads = pickle.Unpickler = alarm
        sys.modules["_pickle"] = None
        with Store({str(base)!r}, schema=FIXED, engine="preadv") as store:
            store.append(samples(range(50)))
        with Store({str(base)!r}) as store:
            check(store.read(range(50)), range(50))
            assert all(not bad for _, bad in store.verify())
            store.restore(store.checkpoint())
        print("torch" in sys.modules)
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
    package = Path(sys.modules["carm.memory.store"].__file__ or "").parent
    for name in ("store", "catalogue", "record", "extentfile", "extents", "evict", "directory", "checksum", "aio"):
        source = (package / f"{name}.py").read_text()
        assert not any(
            word in source for word in ("import pickle", "from pickle", "torch.load", "np.load", "allow_pickle")
        )


@pytest.mark.slow
def test_opening_200_000_samples_is_fast(base: Path) -> None:
    schema = Schema((Field("y", "int64"),))
    with Store(base, schema=schema, capacity=200_000) as store:
        for _ in range(100):
            store.append({"y": np.arange(2500) % 100})
        before = living(store)
    begun = time.process_time()
    with Store(base, capacity=200_000) as store:
        seconds = time.process_time() - begun
        assert len(store) == 200_000 and living(store) == before
        assert store.index_bytes <= 64 * 200_000
    assert seconds < 2.0, f"{seconds:.2f} s"


def test_an_engine_that_there_is_not_is_refused_before_anything_is_made(base: Path) -> None:
    with pytest.raises(ValueError, match=r"engine='warp': must be 'auto' or one of 'aio', 'mapped', 'preadv'"):
        Store(base, engine="warp")
    assert not base.exists()


def test_a_relative_path_means_the_directory_of_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Store("s", schema=FIXED, engine="preadv") as store:
        monkeypatch.chdir(tmp_path / "elsewhere")
        fill(store, 3)
        check(store.read(range(3)), range(3))  # the file is opened for reading only now
        assert store.directory == tmp_path / "s"
    assert not (tmp_path / "elsewhere" / "s").exists()


# -- a reader beside a writer ------------------------------------------------------------------------------------------


def test_samples_that_were_evicted_under_a_reader(base: Path) -> None:
    """Their room has other samples now. That is no damage."""
    with Store(base, schema=FIXED, capacity=20, engine="preadv") as store:
        fill(store, 20)
        with Store(base, readonly=True, engine="preadv") as reader:
            fill(store, 100, batch=10)
            gone = sorted(set(range(20)) - set(living(store)))
            assert gone
            with pytest.raises(StoreError, match=r"were evicted by the process that writes to it; open it again"):
                reader.read(gone)
            assert list(reader.verify()) == [(20, [])]
            kept = sorted(set(range(20)) - set(gone))
            check(reader.read(kept), kept)
        store.delete(living(store))
        fill(store, 20)
        with Store(base, readonly=True, engine="preadv") as reader:
            store.delete(living(store))  # nobody is left in the catalogue
            fill(store, 20)
            store.delete(living(store))
            assert list(reader.verify()) == [(20, [])]


def test_damage_is_told_from_eviction(base: Path) -> None:
    with Store(base, schema=FIXED, capacity=20, engine="preadv") as store:
        fill(store, 20)
        with Store(base, readonly=True, engine="preadv") as reader:
            fill(store, 10)
            bad = living(store)[0]
            with (base / "extents.dat").open("r+b") as file:
                file.seek(int(store.index.offsets[store.index.find([bad])[0]]))
                file.write(b"\xff\x00\xff\x00")
            assert list(reader.verify()) == [(20, [bad])]
            with pytest.raises(StoreError, match=rf"samples \[{bad}\] .* do not match their checksums"):
                reader.read([bad])


def test_ids_that_were_given_again_are_no_damage(base: Path) -> None:
    with Store(base, schema=FIXED, engine="preadv") as store:
        fill(store, 10)
        state = store.checkpoint()
        store.append(samples(range(10, 20), FIXED))
        with Store(base, readonly=True, engine="preadv") as reader:
            store.restore(state)
            store.append(samples(range(100, 110), FIXED))
            assert living(store) == list(range(20))
            assert list(reader.verify()) == [(20, [])]
            with pytest.raises(StoreError, match="evicted by the process that writes to it; open it again"):
                reader.read([15])
