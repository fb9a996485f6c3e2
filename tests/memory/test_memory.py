"""Memory: what training draws, what a bundle holds, what goes to storage, what opening and resizing do."""

from __future__ import annotations

import gc
import itertools
import math
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patterns import FIXED, VARIABLE, audit, keys_of, samples

import carm.memory
from carm.memory.errors import CarmError, SchemaError
from carm.memory.gate import Dynamic, Entropy, Random
from carm.memory.keep import choose_balanced
from carm.memory.memory import Memory
from carm.memory.record import Field, Schema
from carm.memory.select import GreedyBalanced, Reservoir, Ring, UncertaintySpread
from carm.memory.store import Store

CLASSES = 4


def numbered(n: int, begin: int = 0, schema: Schema = FIXED, classes: int = CLASSES) -> dict[str, Any]:
    keys = np.arange(begin, begin + n)
    return samples(keys, keys % classes, schema)


def filled(n: int = 40, **arguments: Any) -> Memory:
    arguments.setdefault("engine", "preadv")
    memory = Memory(**({"slots": 10, "queue": 8} | arguments))
    memory.add(**numbered(n))
    memory.flush()
    return memory


def chi_square(counts: Any) -> float:
    counts = np.asarray(counts, float)
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


# -- drawing -----------------------------------------------------------------------------------------------------------


def test_draw_gives_different_samples_uniformly() -> None:
    with Memory(20, seed=3) as memory:
        memory.add(**numbered(20))
        times = Counter[int]()
        for _ in range(3000):
            batch = memory.draw(5)
            assert len(set(batch.slots.tolist())) == 5
            assert (batch["logits"][:, 0].long() == torch.from_numpy(batch.ids)).all()
            times.update(batch.slots.tolist())
        assert len(times) == 20
        assert (
            chi_square(list(times.values())) < 45.3
        )  # 0.1 % of cases with 19 degrees of freedom; less here, as n is 5


def test_draw_of_more_than_there_are_gives_all() -> None:
    with Memory(20) as memory:
        memory.add(**numbered(6))
        batch = memory.draw(100)
        assert sorted(keys_of(batch).tolist()) == list(range(6))
        assert batch.x.shape == (6, 3, 4, 4)
        assert batch.x.dtype == torch.uint8
        assert batch.y.dtype == torch.int64


def test_draw_from_an_empty_memory() -> None:
    with Memory(20) as memory:
        assert len(memory.draw(5)) == 0
    with Memory(20, schema=FIXED) as memory:
        batch = memory.draw(5)
        assert batch.x.shape == (0, 3, 4, 4)
        assert memory.feedback(batch, torch.zeros(0, 4)) == 0


def test_an_empty_batch_of_unknown_fields_goes_to_any_device() -> None:
    with Memory(20) as memory:
        batch = memory.draw(5).to("meta")
        assert len(batch) == 0
        assert batch.x.device.type == batch["anything"].device.type == "meta"
        assert torch.cat([torch.ones(3, 2, device="meta"), batch.x]).shape == (3, 2)
        assert memory.draw(5).x.device.type == "cpu"


def test_what_counts_as_drawn() -> None:
    with Memory(10) as memory:
        memory.add(**numbered(10))
        memory.draw(4)
        assert memory.stats()["drawn"] == 4
        memory.take(memory.slots)
        assert memory.stats()["drawn"] == 4
        for _ in memory.bundle(numbered(6, 100), batch_size=4, passes=2):
            pass
        assert memory.stats()["drawn"] == 24
        for _ in memory.bundle(numbered(6, 100), batch_size=2, old_per_batch=3):
            pass
        assert memory.stats()["drawn"] == 33


@pytest.mark.parametrize("n", [0, -1, 1.5, "3", None, True])
def test_draw_of_no_number(n: Any) -> None:
    with Memory(20) as memory:
        with pytest.raises(ValueError, match="n="):
            memory.draw(n)
        memory.add(**numbered(5))
        with pytest.raises(ValueError, match="n="):
            memory.draw(n)


def test_batches_are_copies() -> None:
    with Memory(4) as memory:
        memory.add(**numbered(4))
        batch = memory.draw(4)
        batch.x.zero_()
        batch["logits"].fill_(-1)
        assert sorted(keys_of(memory.draw(4)).tolist()) == [0, 1, 2, 3]


def test_swapping_changes_neither_what_is_drawn_nor_what_is_kept(tmp_path: Path) -> None:
    """The slots that are drawn, and those that new samples get, are the same with any gate and without storage."""
    runs = []
    for gate, storage in ((Random(0.0), None), (Random(0.0), "a"), (Random(1.0), "b"), (Entropy(0.5), "c")):
        where = None if storage is None else tmp_path / storage
        with Memory(10, storage=where, gate=gate, swap="sync", engine="preadv", seed=5) as memory:
            slots = []
            for step in range(15):
                memory.add(**numbered(5, 5 * step))
                batch = memory.draw(4)
                memory.feedback(batch, torch.zeros(len(batch), CLASSES))
                slots.append((batch.slots.tolist(), memory.labels.tolist()))
            runs.append(slots)
    assert all(run == runs[0] for run in runs)


def test_batch_tells_its_fields() -> None:
    with Memory(4) as memory:
        memory.add(**numbered(4))
        batch = memory.draw(2)
        with pytest.raises(AttributeError, match="x, y, logits, and no 'z'"):
            _ = batch.z
        assert "2 samples, 2 old" in repr(batch)
        assert batch.to("cpu").x.equal(batch.x)
        assert batch.old.tolist() == [True, True]


# -- bundles -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])
def test_bundle_goes_over_everything_once_per_pass(schema: Schema) -> None:
    with Memory(7) as memory:
        memory.add(**numbered(7, schema=schema))
        task = numbered(12, 100, schema)
        seen = []
        passes = Counter[int]()
        for batch in memory.bundle(task, batch_size=5, passes=3):
            assert len(batch) == 5 or len(seen) % 19 == 15
            keys = keys_of(batch, schema)
            assert batch.old.tolist() == (keys < 100).tolist()
            assert (
                batch.slots[batch.slots >= 0] == batch.ids[batch.slots >= 0]
            ).all()  # 7 samples in 7 slots, in order
            seen += keys.tolist()
            passes[round(3 * memory.progress)] += 1
            assert memory.progress in (0.0, 1 / 3, 2 / 3)
        assert memory.progress == 0.0
        assert passes == {0: 4, 1: 4, 2: 4}
        each = [seen[i : i + 19] for i in range(0, 57, 19)]
        for one in each:
            assert sorted(one) == [*range(7), *range(100, 112)]
        assert each[0] != each[1] != each[2]


def test_bundle_with_so_many_old_samples_per_batch() -> None:
    with Memory(20) as memory:
        memory.add(**numbered(20))
        task = numbered(25, 100)
        new = []
        for batch in memory.bundle((task["x"], task["y"]), batch_size=10, old_per_batch=6):
            assert int(batch.old.sum()) == 6
            assert len(set(batch.slots[batch.slots >= 0].tolist())) == 6
            assert set(batch.fields) == {"x", "y"}
            new += batch.x[~batch.old].reshape(-1, 48).tolist()
        assert sorted(new) == sorted(task["x"].reshape(-1, 48).tolist())


def test_bundle_of_old_samples_only_and_of_new_ones_only() -> None:
    with Memory(6) as memory:
        task = numbered(5, 100)
        keys = np.concatenate([keys_of(batch) for batch in memory.bundle(task, batch_size=2)])
        assert sorted(keys.tolist()) == list(range(100, 105))
        memory.add(**numbered(6))
        keys = np.concatenate([keys_of(batch) for batch in memory.bundle(batch_size=4)])
        assert sorted(keys.tolist()) == list(range(6))


def test_bundle_shows_what_was_swapped_in_meanwhile(tmp_path: Path) -> None:
    with filled(40, storage=tmp_path, swap="sync", gate=Random(1.0)) as memory:
        last: dict[int, int] = {}
        for batch in memory.bundle(batch_size=5, passes=2):
            for slot, sample in zip(batch.slots.tolist(), batch.ids.tolist(), strict=True):
                assert last.get(slot) != sample, "this was swapped out in the first pass"
                last[slot] = sample
            memory.feedback(batch, torch.zeros(len(batch), CLASSES))
        assert memory.stats()["swapped"] == 20


def test_bundle_that_is_broken_off_resets_progress() -> None:
    with Memory(6) as memory:
        memory.add(**numbered(6))
        bundle = memory.bundle(numbered(6, 100), batch_size=3, passes=2)
        for _ in range(5):
            next(bundle)
        assert memory.progress == 0.5
        bundle.close()  # type: ignore[attr-defined]
        assert memory.progress == 0.0


def test_bundle_goes_on_while_slots_are_emptied_or_removed() -> None:
    with Memory(12) as memory:
        memory.add(**numbered(12))
        drawn = 0
        for i, batch in enumerate(memory.bundle(batch_size=2)):
            drawn += len(keys_of(batch))
            if i == 1:
                memory.resize(3)
        assert 4 <= drawn <= 7


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0},
        {"batch_size": 2.5},
        {"passes": 0},
        {"passes": "2"},
        {"old_per_batch": 0},
        {"old_per_batch": -3},
    ],
)
def test_bundle_refuses_numbers_at_once(arguments: dict[str, Any]) -> None:
    with Memory(6) as memory, pytest.raises(ValueError, match=next(iter(arguments))):
        next(iter(memory.bundle(numbered(6), **arguments)))


@pytest.mark.parametrize("task", [5, (1, 2, 3), "xy", [np.zeros(3)]])
def test_bundle_of_something_else(task: Any) -> None:
    with Memory(6) as memory, pytest.raises(ValueError, match="dict of fields or a pair"):
        next(iter(memory.bundle(task)))


def test_bundle_of_empty_bytes() -> None:
    with Memory(3) as memory:
        memory.add([b"", b"abc", b""], [0, 1, 2])
        (batch,) = memory.bundle(([b"", b"de"], [3, 4]))
        assert {int(y): bytes(x.tolist()) for x, y in zip(batch.x, batch.y, strict=True)} == {
            0: b"", 1: b"abc", 2: b"", 3: b"", 4: b"de",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"x": np.zeros((3, 2), np.uint8)}, r"'x' holds shape \[3, 4, 4\] per sample in memory; got shape \[2\]"),
        ({"x": [b"a", b"b", b"c"]}, r"'x' holds shape \[3, 4, 4\] per sample in memory; got bytes of any length"),
        ({"y": np.zeros((3, 1), np.int64)}, r"'y' holds shape \[\] per sample in memory; got shape \[1\]"),
        ({"z": np.zeros(3)}, "the samples in memory have the fields x, y, logits, and no 'z'"),
        ({"x": torch.zeros(3, 3, 4, 4)}, "'x' is uint8 in memory; got float32"),
        ({"logits": np.zeros((3, 4))}, "'logits' is float32 in memory; got float64"),
        ({"y": np.zeros(3)}, "'y' is int64 in memory; got float64"),
    ],
)
def test_bundle_of_samples_that_do_not_go_with_the_old_ones(task: dict[str, Any], message: str) -> None:
    with Memory(6) as memory:
        memory.add(**numbered(6))
        with pytest.raises(SchemaError, match=message):
            next(iter(memory.bundle(numbered(3, 100) | task)))
        assert memory.stats()["drawn"] == 0


@pytest.mark.parametrize("y", [torch.arange(20, dtype=torch.int32), np.arange(20, dtype=np.uint8), list(range(20))])
def test_bundle_has_one_type_of_labels(y: Any) -> None:
    """Also in batches that have no old samples, whose labels are int64 in any case."""
    with Memory(2) as memory:
        for _ in range(2):  # nothing is known of the samples the first time
            task = numbered(20) | {"y": y}
            assert {batch.y.dtype for batch in memory.bundle(task, batch_size=2)} == {torch.int64}
            memory.add(**task)


def test_bundle_of_arrays_in_another_byte_order() -> None:
    with Memory(6) as memory:
        task = numbered(6)
        task["logits"] = task["logits"].astype(">f4")
        memory.add(**task)
        (batch,) = memory.bundle(task)
        assert sorted(keys_of(batch).tolist()) == sorted([*range(6), *range(6)])


def test_bundle_of_fields_with_different_lengths() -> None:
    with Memory(6) as memory, pytest.raises(ValueError, match=r"'y'.*3"):
        next(iter(memory.bundle((np.zeros((4, 2)), np.zeros(3, np.int64)))))


def test_dynamic_gate_sees_the_progress(tmp_path: Path) -> None:
    seen: list[float] = []

    class Spy(Dynamic):
        def score(self, signals: Any, rng: Any) -> Any:
            seen.append(signals.progress)
            return super().score(signals, rng)

    with filled(40, storage=tmp_path, swap="sync", gate=Spy(0.5)) as memory:
        for batch in memory.bundle(batch_size=5, passes=4):
            memory.feedback(batch, torch.zeros(len(batch), CLASSES))
    assert seen == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]


def test_passes_made_one_by_one_say_their_progress_themselves(tmp_path: Path) -> None:
    seen: list[float] = []

    class Spy(Dynamic):
        def score(self, signals: Any, rng: Any) -> Any:
            seen.append(signals.progress)
            return super().score(signals, rng)

    with filled(40, storage=tmp_path, swap="sync", gate=Spy(0.5)) as memory:
        for number in range(4):
            memory.progress = number / 4
            for batch in memory.bundle(batch_size=5):
                memory.feedback(batch, torch.zeros(len(batch), CLASSES))
            assert memory.progress == number / 4
    assert seen == [0.0, 0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]


class Own(Random):
    """Picks for itself, by logits."""

    needs_logits = True
    given: Any = None

    def pick(self, signals: Any, rng: Any, *, budget: int | None = None) -> Any:
        self.given = signals.logits
        return np.zeros(1, np.int64)


def test_a_gate_that_picks_itself_gets_the_logits(tmp_path: Path) -> None:
    gate = Own(1.0)
    with filled(40, storage=tmp_path, swap="sync", gate=gate) as memory:
        batch = memory.draw(5)
        logits = torch.randn(5, CLASSES)
        assert memory.feedback(batch, logits) == 1
        assert torch.equal(gate.given, logits)


@pytest.mark.parametrize("gate", [Own(1.0), Entropy(0.5), Entropy("auto")], ids=["own", "entropy", "auto"])
def test_a_gate_that_needs_logits_insists_on_them(tmp_path: Path, gate: Any) -> None:
    with filled(40, storage=tmp_path, gate=gate) as memory:
        with pytest.raises(ValueError, match=f"{type(gate).__name__} needs logits"):
            memory.feedback(memory.draw(5))
        memory.feedback(memory.draw(5), torch.zeros(5, CLASSES))


def test_a_gate_that_comes_later_learns_what_storage_does(tmp_path: Path) -> None:
    with filled(40, storage=tmp_path, swap="sync", gate=Random(1.0)) as memory:
        memory.gate = Random("auto")
        for _ in range(30):
            memory.feedback(memory.draw(8))
        assert memory.feedback(memory.draw(8)) > 2


def test_a_memory_that_is_closed_judges_nothing_and_stores_everything(tmp_path: Path) -> None:
    class Broken(Random):
        def score(self, signals: Any, rng: Any) -> Any:
            raise RuntimeError("a gate with a mistake")

    memory = filled(40, storage=tmp_path, gate=Broken(0.5), slots=400, queue=300, write_batch=10_000)
    memory.add(**numbered(5, 40))
    judge = memory._judge
    assert judge is not None
    batch = next(memory.bundle(batch_size=3))
    judge._last = time.monotonic()  # as if another step had been made just now
    memory.feedback(batch)
    assert judge.waits
    memory.close()
    with Memory(400, storage=tmp_path, engine="preadv") as again:
        assert len(again) == 45


def test_old_samples_alone_are_not_counted_by_the_batch(tmp_path: Path) -> None:
    with filled(40) as memory, pytest.raises(ValueError, match="old_per_batch=3 goes with new samples"):
        next(memory.bundle(batch_size=5, old_per_batch=3))


# -- adding ------------------------------------------------------------------------------------------------------------


def test_ids_are_given_in_order_and_never_again(tmp_path: Path) -> None:
    for storage in (None, tmp_path):
        with Memory(4, storage=storage, engine="preadv") as memory:
            assert memory.add(**numbered(3)).tolist() == [0, 1, 2]
            assert memory.add(**numbered(0 + 2, 3)).tolist() == [3, 4]
            assert memory.add(np.zeros((0, 3, 4, 4), np.uint8), np.zeros(0, np.int64)).tolist() == []
            assert memory.add(**numbered(1, 5), store=False).tolist() == [5]
            assert memory.add(**numbered(1, 6)).tolist() == [6]
    with Memory(4, storage=tmp_path, engine="preadv") as memory:
        assert memory.add(**numbered(1, 7)).tolist() == [7]


def test_everything_added_is_stored(tmp_path: Path) -> None:
    with Memory(5, storage=tmp_path, engine="preadv", write_batch=16) as memory:
        for step in range(20):
            memory.add(**numbered(7, 7 * step))
            audit(memory)
        memory.flush()
        audit(memory)
        stats = memory.stats()
        assert stats["stored"] == stats["added"] == stats["stored_samples"] == 140
        assert stats["stream_samples"] == 0
        assert memory.store is not None
        assert keys_of(memory.store.read(np.arange(140))).tolist() == list(range(140))


def test_samples_that_are_not_stored_stay_in_ram_and_are_never_swapped(tmp_path: Path) -> None:
    with filled(40, storage=tmp_path, swap="sync", gate=Random(1.0), select=Ring()) as memory:
        ids = set(memory.add(**numbered(3, 1000, classes=1), store=False).tolist())
        for _ in range(10):
            batch = memory.draw(10)
            assert ids <= set(batch.ids.tolist())
            memory.feedback(batch, torch.zeros(10, CLASSES))
            audit(memory, loose=ids, unsent=3)
        stats = memory.stats()
        assert stats["dropped"]["not stored yet"] == 30
        assert stats["stored"] == 40
        assert stats["added"] == 43


def test_a_fresh_sample_is_swapped_only_once_it_is_stored(tmp_path: Path) -> None:
    with Memory(10, storage=tmp_path, swap="sync", gate=Random(1.0), engine="preadv", write_batch=100) as memory:
        memory.add(**numbered(30))
        batch = memory.draw(10)
        assert memory.feedback(batch, torch.zeros(10, CLASSES)) == 0
        assert memory.stats()["dropped"]["not stored yet"] == 10
        memory.flush()
        assert memory.feedback(batch, torch.zeros(10, CLASSES)) == 10
        assert memory.stats()["swapped"] == 10


@pytest.mark.parametrize("select", [Reservoir, Ring, GreedyBalanced])
def test_fewer_slots_than_classes(tmp_path: Path, select: Any) -> None:
    with Memory(
        3, storage=tmp_path, select=select(), swap="sync", engine="preadv", queue=2, gate=Random(1.0), write_batch=1
    ) as memory:
        for step in range(20):
            memory.add(**numbered(4, 4 * step, classes=11))
            batch = memory.draw(3)
            assert (batch.y == batch["logits"][:, 0].long() % 11).all()
            memory.feedback(batch, torch.zeros(len(batch), 11))
            audit(memory)
        assert len(memory) == 3
        assert memory.stats()["stored_samples"] == 80
        assert sum(ram for ram, _ in memory.class_counts().values()) == 3
        assert sum(stored for _, stored in memory.class_counts().values()) == 80


def test_tensors_arrays_lists_and_other_field_names() -> None:
    with Memory(8, label="kind") as memory:
        x = torch.arange(8, dtype=torch.bfloat16).reshape(4, 2)
        memory.add(audio=x, kind=[0, 1, 0, 1], flag=np.array([True, False, True, True]))
        batch = memory.draw(4)
        order = torch.from_numpy(batch.slots)
        assert batch.audio.dtype == torch.bfloat16
        assert batch.audio.equal(x[order])
        assert batch.kind.tolist() == (order % 2).tolist()
        assert batch.flag.tolist() == torch.tensor([True, False, True, True])[order].tolist()


def test_the_callers_arrays_are_not_kept() -> None:
    with Memory(4) as memory:
        given = numbered(4)
        memory.add(**given)
        given["x"][:] = 0
        given["logits"][:] = 0
        assert sorted(keys_of(memory.draw(4)).tolist()) == [0, 1, 2, 3]


# -- the write buffer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swap", ["thread", "process"])
def test_the_write_buffer_is_bounded_and_add_waits(tmp_path: Path, swap: str) -> None:
    """2000 samples of 72 bytes at 100 kB/s take 1.4 s; the buffer holds 20 kB of them."""
    with Memory(
        5, storage=tmp_path, engine="preadv", swap=swap, write_batch=8, write_buffer=20_000, throttle="100kB/s"
    ) as memory:
        assert memory._intake is None
        size = FIXED.head_size
        most = 0
        begun = time.monotonic()
        for step in range(50):
            memory.add(**numbered(40, 40 * step))
            assert memory._intake is not None
            most = max(most, memory._intake.nbytes)
            if step % 10 == 0:
                audit(memory)
        taken = time.monotonic() - begun
        assert most <= 20_000
        assert most > 5_000
        stats = memory.stats()
        assert taken > (2000 * size - 20_000) / 100e3 * 0.9
        assert 0 < stats["add_wait_seconds"] <= taken
        memory.flush()
        assert memory.stats()["stored_samples"] == 2000


def test_one_batch_larger_than_the_buffer(tmp_path: Path) -> None:
    with Memory(5, storage=tmp_path, engine="preadv", write_buffer=100) as memory:
        memory.add(**numbered(50))
        assert memory.stats()["stream_samples"] == 0  # more than the buffer holds: waited for
        assert memory.stats()["stored_samples"] == 50
        audit(memory)


def test_small_adds_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("carm.memory.memory._PATIENCE", math.inf)
    with Memory(5, storage=tmp_path, engine="preadv", write_batch=64, schema=FIXED) as memory:
        assert memory.store is not None
        for i in range(63):
            memory.add(**numbered(1, i))
        assert memory.store.seq == 0
        assert memory.stats()["stream_samples"] == 63
        memory.add(**numbered(1, 63))
        memory.flush()
        assert memory.store.seq <= 2  # one commit (the store counts it twice)
        assert memory.stats()["stored_samples"] == 64


def test_sync_storage_holds_everything_at_once(tmp_path: Path) -> None:
    with Memory(5, storage=tmp_path, engine="preadv", swap="sync") as memory:
        for i in range(5):
            memory.add(**numbered(2, 2 * i))
            assert memory.stats()["stored_samples"] == 2 * i + 2
            audit(memory)


# -- memory promised ---------------------------------------------------------------------------------------------------


def _bytes_of(memory: Memory) -> int:
    """Everything that grows with the RAM tier."""
    ram = memory._ram
    assert ram is not None
    own = [ram.labels, ram.ids, ram.handles, ram._row, ram._free]
    extra = memory._carousel.in_flight.nbytes if memory._carousel is not None else 0
    return ram.layout.nbytes + sum(a.nbytes for a in own) + ram.sets.nbytes + extra


@pytest.mark.parametrize("given", ["64kB", "300kB", "2MiB"])
@pytest.mark.parametrize("storage", [False, True])
@pytest.mark.parametrize("schema", [FIXED, VARIABLE, Schema((Field("x", "uint8", (3, 32, 32)), Field("y", "int64")))])
def test_bytes_given_are_bytes_used(tmp_path: Path, given: str, storage: bool, schema: Schema) -> None:
    from carm.memory.units import parse_bytes

    promised = parse_bytes("ram", given)
    where = tmp_path if storage else None
    with Memory(ram=given, storage=where, engine="preadv", queue=4 if storage else None) as memory:
        most = promised // schema.head_size if schema.fixed else promised // 1000
        for step in range(3):
            keys = np.arange(most // 2) + most // 2 * step
            fields = samples(keys, keys % 4, schema)
            memory.add(**{f.name: fields[f.name] for f in schema.fields})
        memory.flush()
        assert _bytes_of(memory) <= promised
        ram = memory._ram
        assert ram is not None
        assert len(memory) > 0.95 * memory.capacity - 3
        shown = int(ram.arrays.sizes[ram.rows(ram.used())].sum())
        assert shown > 0.4 * promised  # and not much less: the rest is spare rows and bookkeeping
        audit(memory)


def test_slots_given_are_slots_used() -> None:
    for slots in (1, 2, 33, 500):
        with Memory(slots) as memory:
            memory.add(**numbered(slots + 5))
            assert memory.capacity == len(memory) == slots


def test_variable_samples_larger_than_the_first_ones_still_get_their_slots(tmp_path: Path) -> None:
    """A schema says nothing about sizes: the first samples do."""
    with Memory(20, schema=VARIABLE, storage=tmp_path, engine="preadv", queue=4) as memory:
        assert memory.schema == VARIABLE
        assert len(memory) == 0
        x = [bytes([i]) * 100_000 for i in range(30)]
        memory.add(x=x, y=np.zeros(30, np.int64), logits=np.zeros((30, 4), np.float32))
        assert len(memory) == memory.capacity == 20
        assert memory.stats()["squeezed"] == 0
        assert sorted(len(v) for v in memory.draw(20).x) == [100_000] * 20


def test_large_samples_do_not_drive_out_other_classes() -> None:
    """A task sorted by class, into a RAM tier that holds a part of it: no class may be missing."""
    with Memory(ram="200kB", select=Ring()) as memory:
        keys = np.arange(1000)
        memory.add(**samples(keys, keys // 100, VARIABLE))
        counts = [ram for ram, _ in memory.class_counts().values()]
        assert len(counts) == 10
        assert min(counts) > 0.5 * max(counts)
        audit(memory)


def test_one_huge_sample_does_not_empty_the_memory(tmp_path: Path) -> None:
    with Memory(ram="100kB", storage=tmp_path, engine="preadv", queue=4, select=Ring()) as memory:
        memory.add(**numbered(200, schema=VARIABLE))
        before = len(memory)
        huge = [bytes(1_000_000)]
        ids = memory.add(x=huge, y=np.array([0]), logits=np.zeros((1, 4), np.float32))
        assert memory.stats()["dropped"]["too large for RAM"] == 1
        assert len(memory) >= before - 1
        memory.flush()
        assert memory.store is not None
        assert len(memory.store.read(ids)["x"][0]) == 1_000_000
        audit(memory)


def test_swaps_find_room_where_sizes_vary(tmp_path: Path) -> None:
    """The RAM tier is full of samples, and yet what swaps need is kept free."""
    with Memory(ram="1MB", storage=tmp_path, engine="preadv", swap="sync", gate=Random(1.0)) as memory:
        for step in range(10):
            memory.add(**numbered(150, 150 * step, VARIABLE))
        for _ in range(20):
            batch = memory.draw(32)
            keys_of(batch, VARIABLE)
            memory.feedback(batch, torch.zeros(32, CLASSES))
            audit(memory)
        stats = memory.stats()
        assert stats["swapped"] > 0.95 * stats["picked"] > 600


def test_slots_come_back_when_samples_become_smaller() -> None:
    with Memory(ram="200kB", select=Ring()) as memory:
        big = [bytes(4000)] * 50
        logits = np.zeros((50, 4), np.float32)
        memory.add(x=big, y=np.arange(50) % 5, logits=logits)
        first = memory.capacity
        for _ in range(20):
            memory.add(x=[bytes(400)] * 50, y=np.arange(50) % 5, logits=logits)
            audit(memory)
        assert memory.capacity > 3 * first


# -- opening again -----------------------------------------------------------------------------------------------------


def test_opening_a_store_fills_ram_class_by_class(tmp_path: Path) -> None:
    with Memory(10, storage=tmp_path, engine="preadv") as memory:
        y = np.repeat([0, 1, 2, 3], [200, 50, 3, 1])
        memory.add(**samples(np.arange(254), y))
    chosen = set()
    for seed in range(6):
        with Memory(20, storage=tmp_path, engine="preadv", seed=seed) as memory:
            assert memory.class_counts() == {0: (8, 200), 1: (8, 50), 2: (3, 3), 3: (1, 1)}
            batch = memory.draw(20)
            assert keys_of(batch).tolist() == batch.ids.tolist()
            chosen |= set(batch.ids[np.asarray(batch.y) == 0].tolist())
            audit(memory)
    assert len(chosen) > 30  # of 48: random within a class


def test_opening_a_store_of_many_classes(tmp_path: Path) -> None:
    """One of each, and the time goes with the samples, not with samples times classes."""
    schema = Schema((Field("y", "int64"),))
    with Store(tmp_path, schema=schema, engine="preadv") as store:
        store.append({"y": np.arange(12_000) % 4000})
    with Memory(4000, storage=tmp_path, engine="preadv") as memory:
        assert set(memory.class_counts().values()) == {(1, 3)}
        audit(memory)
        ram, store = memory._ram, memory.store
        assert ram is not None and store is not None
        begun = time.process_time()
        chosen = choose_balanced(ram, store, 6000, np.random.default_rng(0))
        seconds = time.process_time() - begun
        _, times = np.unique(store.index.ids[chosen] % 4000, return_counts=True)
        assert sorted(times.tolist()) == [1] * 2000 + [2] * 2000
        assert seconds < 0.7, f"{seconds:.2f} s"
        for handle in chosen.tolist():
            store.index.sets.release(handle)


@pytest.mark.parametrize("size", [{"ram": "150kB", "queue": 4}, {"slots": 30}], ids=["ram", "slots"])
def test_opening_a_store_of_variable_samples(tmp_path: Path, size: dict[str, Any]) -> None:
    with Memory(**size, storage=tmp_path, engine="preadv") as memory:
        memory.add(**numbered(300, schema=VARIABLE))
        before = len(memory)
    with Memory(**size, storage=tmp_path, engine="preadv") as memory:
        assert len(memory) >= 0.8 * before
        keys_of(memory.draw(1000), VARIABLE)
        audit(memory)


def test_reservoir_goes_on_after_opening(tmp_path: Path) -> None:
    with Memory(10, storage=tmp_path, engine="preadv") as memory:
        memory.add(**numbered(1000))
    with Memory(10, storage=tmp_path, engine="preadv") as memory:
        before = set(memory.draw(10).ids.tolist())
        memory.add(**numbered(20, 1000))
        assert len(before - set(memory.draw(10).ids.tolist())) <= 3  # 0.2 are expected; 10 if it had begun anew


def test_a_memory_without_samples_may_be_opened_again(tmp_path: Path) -> None:
    for schema in (None, FIXED, FIXED):
        with Memory(10, storage=tmp_path, engine="preadv", schema=schema) as memory:
            assert len(memory) == 0
            assert memory.refill() == 0


# -- resizing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])
@pytest.mark.parametrize("storage", [False, True])
def test_resize_keeps_what_fits(tmp_path: Path, schema: Schema, storage: bool) -> None:
    with Memory(
        20, storage=tmp_path if storage else None, engine="preadv", queue=5, select=Ring(), gate=Random(1.0)
    ) as memory:
        memory.add(**samples(np.arange(60), np.repeat([0, 1, 2], [40, 15, 5]), schema))
        for slots in (30, 9, 1, 12):
            before = set(memory.draw(100).ids.tolist())
            memory.resize(slots)
            after = memory.draw(100)
            assert set(after.ids.tolist()) <= before
            assert len(after) == min(len(before), slots)
            assert memory.capacity == slots
            keys_of(after, schema)
            audit(memory)
            if slots == 9:  # the largest class goes first
                assert sorted(ram for ram, _ in memory.class_counts().values()) == [3, 3, 3]
        memory.add(**numbered(30, 1000, schema))
        assert len(memory) == 12
        memory.resize(ram="200kB")
        audit(memory)
        assert _bytes_of(memory) <= 200_000
        memory.add(**numbered(2000, 2000, schema))
        assert len(memory) > 60


def test_a_batch_from_before_a_resize_is_stale(tmp_path: Path) -> None:
    with filled(40, storage=tmp_path, swap="sync", gate=Entropy(0.9), select=Ring()) as memory:
        batch = memory.draw(10)
        memory.resize(4)
        ordered = memory.feedback(batch, torch.zeros(10, CLASSES))
        audit(memory)
        stats = memory.stats()
        assert ordered <= 4
        assert stats["dropped"]["stale"] >= 6
        keys_of(memory.draw(10))


def test_resize_before_the_first_sample() -> None:
    with Memory(20) as memory:
        memory.resize(5)
        assert memory.capacity == 5
        memory.add(**numbered(20))
        assert len(memory) == 5


@pytest.mark.parametrize("arguments", [{}, {"slots": 3, "ram": "1MB"}, {"slots": 0}, {"ram": "nothing"}, {"ram": 100}])
def test_resize_to_nonsense_changes_nothing(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with filled(40, storage=tmp_path) as memory:
        before = memory.take(memory.slots)
        with pytest.raises(ValueError, match=r"slots|ram"):
            memory.resize(**arguments)
        assert memory.take(memory.slots).x.equal(before.x)
        assert memory.capacity == 10
        memory.add(**numbered(5, 100))
        audit(memory)


# -- closing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swap", ["sync", "thread", "process"])
def test_close_writes_everything_and_may_be_repeated(tmp_path: Path, swap: str) -> None:
    memory = Memory(10, storage=tmp_path, engine="preadv", swap=swap, gate=Random(1.0))
    memory.add(**numbered(30))
    memory.feedback(memory.draw(10), torch.zeros(10, CLASSES))
    memory.close()
    memory.close()
    with pytest.raises(CarmError, match="closed"):
        memory.draw(3)
    for call in (memory.flush, memory.state_dict, memory.reader, lambda: memory.add(**numbered(2)), memory.refill):
        with pytest.raises(CarmError, match="closed"):
            call()
    assert memory.stats()["stored_samples"] == 30
    assert "10 of 10 slots" in repr(memory)
    with Memory(10, storage=tmp_path, engine="preadv") as again:
        assert again.stats()["stored_samples"] == 30


def test_close_and_stats_leave_no_files_open(tmp_path: Path) -> None:
    def links() -> list[str]:
        gc.collect()
        found = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                found.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue
        return sorted(link for link in found if str(tmp_path) in link or "carm" in link or "aio" in link)

    before = links()
    for swap, engine in itertools.product(("sync", "thread", "process"), ("preadv", "mapped", "auto")):
        memory = Memory(10, storage=tmp_path / swap, engine=engine, swap=swap)
        memory.add(**numbered(30))
        memory.feedback(memory.draw(10), torch.zeros(10, CLASSES))
        memory.resize(5)
        memory.load_state_dict(memory.state_dict())
        memory.close()
        assert memory.stats()["engine"] in ("preadv", "mapped", "aio")
        del memory
    assert links() == before


def test_a_memory_that_is_forgotten_is_closed_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    memory = Memory(10, storage=tmp_path, engine="preadv")
    memory.add(**numbered(30))
    del memory
    gc.collect()
    assert "was not closed" in caplog.text
    with Memory(10, storage=tmp_path, engine="preadv") as again:
        assert again.stats()["stored_samples"] == 30


@pytest.mark.parametrize("swap", ["sync", "thread", "process"])
def test_a_memory_that_is_forgotten_does_not_keep_its_store_from_the_next(tmp_path: Path, swap: str) -> None:
    """As in a notebook, where a cell is run again; nobody has called the garbage collector yet."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        memory = Memory(10, storage=tmp_path, engine="preadv", swap=swap)
        memory.add(**numbered(30))
        del memory
        with Memory(10, storage=tmp_path, engine="preadv") as again:
            assert again.stats()["stored_samples"] == 30
    finally:
        if collecting:
            gc.enable()


def test_repr_and_asking() -> None:
    with Memory(10) as memory:
        assert repr(memory) == "Memory(0 of 10 slots, empty, RAM only)"
        assert memory.schema is None
        assert memory.class_counts() == {}
        assert memory.slots.tolist() == memory.labels.tolist() == []
        with pytest.raises(CarmError, match="add samples first"):
            memory.reader()
        memory.add(**numbered(4))
        assert memory.slots.tolist() == [0, 1, 2, 3]
        assert memory.labels.tolist() == [0, 1, 2, 3]
        assert memory.filled(np.array([0, 5, 3])).tolist() == [0, 3]
        assert memory.schema is not None
        with pytest.raises(IndexError, match="slot 5 is empty"):
            memory.take(np.array([0, 5]))
        with pytest.raises(IndexError, match="from 0 to 9"):
            memory.take(np.array([10]))
        with pytest.raises(IndexError, match="from 0 to 9"):
            memory.take(np.array([-1]))
        assert len(memory.take(np.zeros(0, np.int64))) == 0


def test_ram_signals_follow_the_slots_when_large_records_come() -> None:
    """After the tier was squeezed, the next `add` numbers the slots anew; signals by the old numbers go along."""
    seen: list[tuple[list[float], int]] = []

    class Spy(UncertaintySpread):
        def place(self, y: Any, slots: Any, rng: Any, signals: Any, ram_signals: Any) -> Any:
            held = [slot for label in slots.sets.labels for slot in slots.sets.members(label).tolist()]
            seen.append(([float(ram_signals["uncertainty"][slot]) for slot in held], slots.capacity))
            return super().place(y, slots, rng, signals, ram_signals)

    with Memory(ram="64KiB", select=Spy(), seed=0) as memory:
        rng = np.random.default_rng(0)
        for size in (50, 3000, 3000, 3000):
            known = np.full(memory.capacity, -1.0)
            known[memory.slots] = 1.0  # what is known of the samples in RAM; nothing of empty slots
            uncertainty = {"uncertainty": rng.random(40)}
            x = [rng.bytes(size) for _ in range(40)]
            memory.add(x, np.arange(40) % 4, signals=uncertainty, ram_signals={"uncertainty": known})
    assert len({capacity for _, capacity in seen}) > 1  # it was squeezed
    assert all(value == 1.0 for values, _ in seen for value in values)


def test_every_module_is_in_the_table_of_the_docs() -> None:
    source, docs = Path(carm.memory.__file__).parent, Path(__file__).parents[2] / "docs" / "architecture.md"
    table = docs.read_text().split("| module in `carm.memory` |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) >= {path.stem for path in source.glob("*.py")} - {"__init__"}


@pytest.mark.parametrize(
    ("slots", "swap", "batch"), [(10, "thread", 256), (1500, "thread", 375), (9000, "thread", 512), (9000, "sync", 1)]
)
def test_how_many_go_into_a_commit(tmp_path: Path, slots: int, swap: str, batch: int) -> None:
    with Memory(slots, storage=tmp_path, engine="preadv", swap=swap) as memory:
        memory.add(**numbered(1))
        assert memory._intake is not None and memory._intake.batch == batch
    with Memory(slots, storage=tmp_path, engine="preadv", swap=swap, write_batch=7) as memory:
        assert memory._intake is not None and memory._intake.batch == 7
