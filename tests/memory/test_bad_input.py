"""What callers may get wrong: every mistake is named, with its value, and leaves the memory as it was."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patterns import FIXED, VARIABLE, audit, keys_of, samples

from carm.memory import ring
from carm.memory.errors import CarmError, SchemaError, StoreError
from carm.memory.gate import Dynamic, Entropy, Gate, Random
from carm.memory.memory import Memory
from carm.memory.record import Field, Schema
from carm.memory.select import Herding, Selection, UncertaintySpread

CLASSES = 4


def numbered(n: int, begin: int = 0) -> dict[str, Any]:
    keys = np.arange(begin, begin + n)
    return samples(keys, keys % CLASSES)


# -- making a memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either slots or ram"),
        ({"slots": 5, "ram": "1MB"}, "either slots or ram"),
        ({"slots": 0}, "slots=0"),
        ({"slots": -3}, "slots=-3"),
        ({"slots": 2.5}, r"slots=2\.5"),
        ({"slots": "5"}, "slots='5'"),
        ({"slots": True}, "slots=True"),
        ({"slots": 2**40}, "slots="),
        ({"ram": 0}, "ram=0"),
        ({"ram": -1}, "ram=-1"),
        ({"ram": "much"}, "ram='much'"),
        ({"ram": 1.5}, "ram="),
        ({"ram": "2000PiB"}, "ram="),
        ({"slots": 5, "storage_capacity": 10}, "needs storage"),
        ({"slots": 5, "storage": "here", "storage_capacity": 4}, "less than slots=5"),
        ({"slots": 5, "storage": "here", "storage_capacity": 0}, "storage_capacity=0|capacity=0"),
        ({"slots": 5, "storage": "here", "storage_capacity": -1}, "capacity=-1"),
        ({"slots": 5, "storage": "here", "storage_capacity": 2.5}, "capacity=2.5"),
        ({"slots": 5, "storage": "here", "storage_capacity": "some"}, "capacity='some'"),
        ({"slots": 5, "swap": "fast"}, "swap='fast'"),
        ({"slots": 5, "swap": None}, "swap=None"),
        ({"slots": 5, "seed": -1}, "seed=-1"),
        ({"slots": 5, "seed": "x"}, "seed='x'"),
        ({"slots": 5, "queue": 0}, "queue=0"),
        ({"slots": 5, "queue": "8"}, "queue='8'"),
        ({"slots": 5, "write_batch": 0}, "write_batch=0"),
        ({"slots": 5, "write_buffer": "0B"}, "write_buffer"),
        ({"slots": 5, "throttle": "fast"}, "throttle"),
        ({"slots": 5, "throttle": "2MB/s,soon"}, "throttle"),
        ({"slots": 5, "throttle": "0MB/s"}, "throttle"),
        ({"slots": 5, "throttle": 2_000_000}, "throttle=2000000: must be a Throttle"),
        ({"slots": 5, "schema": {"x": "uint8"}}, "schema=.*: must be a Schema"),
        ({"slots": 5, "storage": "here", "engine": "warp", "schema": FIXED}, "engine='warp'"),
        ({"slots": 5, "storage": "here", "engine": "warp"}, "engine='warp'"),
        ({"slots": 5, "engine": "warp"}, "engine='warp'"),
        ({"slots": 5, "select": Herding}, r"must be a Selection; did you mean Herding\(\)"),
        ({"slots": 5, "select": "ring"}, "select='ring': must be a Selection"),
        ({"slots": 5, "gate": Random}, r"must be a Gate; did you mean Random\(\)"),
        ({"slots": 5, "gate": 0.5}, r"gate=0\.5: must be a Gate"),
        ({"slots": 5, "storage": "here", "queue": 2**31 - 2, "schema": FIXED}, "slots=5 with queue=2147483646 takes"),
    ],
)
def test_impossible_memories(
    tmp_path: Path, arguments: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    if "storage" in arguments:
        arguments = arguments | {"storage": tmp_path / arguments["storage"]}
    with pytest.raises(ValueError, match=message):
        Memory(**arguments)
    assert "not closed" not in caplog.text
    if "storage" in arguments:  # nothing is left behind that would be in the way
        with Memory(5, storage=arguments["storage"], engine="preadv") as memory:
            memory.add(**numbered(3))


@pytest.mark.parametrize("size", [{"slots": 2**31 - 2}, {"ram": "900TiB"}, {"slots": 10**8}])
def test_more_than_the_machine_has(tmp_path: Path, size: dict[str, Any]) -> None:
    """An error, not a process that the kernel kills."""
    big = Schema((Field("x", "uint8", (3, 256, 256)), Field("y", "int64")))
    with pytest.raises(ValueError, match="this machine has"):
        Memory(**size, schema=big)
    with Memory(**size, storage=tmp_path, engine="preadv") as memory:
        batch = np.zeros((2, 3, 256, 256), np.uint8), np.array([0, 1])
        with pytest.raises(ValueError, match="this machine has"):
            memory.add(*batch)
        memory.resize(4)  # there is a way on
        memory.add(*batch)
        assert len(memory) == 2


def test_ram_too_small_for_a_sample(tmp_path: Path) -> None:
    with Memory(ram=20_000, storage=tmp_path, engine="preadv") as memory:
        with pytest.raises(ValueError, match="Give more ram, or a smaller queue"):
            memory.add(np.zeros((2, 5000), np.uint8), np.array([0, 1]))
        assert memory.store is not None
        assert memory.store.schema is None  # the store is not tied to samples that were never added
        memory.add(np.zeros((2, 5), np.uint8), np.array([0, 1]))
        assert len(memory) == 2


def test_storage_that_is_no_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError, match="file"):
        Memory(5, storage=file)
    assert "not closed" not in caplog.text


def test_more_ram_than_storage(tmp_path: Path) -> None:
    """Storage also keeps what is in RAM; where that cannot be, it must be said, not found out."""
    cases: list[tuple[dict[str, Any], Any]] = [({"ram": "100kB"}, 20), ({"ram": "100kB"}, "20kB")]
    # 72 bytes of a sample take 512 in storage, and an eighth is for what comes before others go: 34 samples in 20 kB.
    for size, capacity in (*cases, ({"slots": 1000}, "20kB"), ({"slots": 100}, "20kB"), ({"slots": 35}, "20kB")):
        storage = tmp_path / str(capacity)
        with (
            Memory(**size, storage=storage, storage_capacity=capacity, engine="preadv", queue=4) as memory,
            pytest.raises(ValueError, match="storage_capacity=20"),
        ):
            memory.add(**numbered(5))
    with Memory(ram="100kB", storage=tmp_path, storage_capacity=20, engine="preadv", queue=4) as memory:
        memory.resize(20)
        memory.add(**numbered(50))
        memory.flush()
        audit(memory)
        assert memory.stats()["stored_samples"] == 20


def test_as_much_ram_as_storage_has_room_for(tmp_path: Path) -> None:
    with Memory(34, storage=tmp_path, storage_capacity="20kB", engine="preadv", queue=4) as memory:
        for step in range(20):
            memory.add(**numbered(10, 10 * step))
        memory.flush()
        audit(memory)
        assert len(memory) == 34
        assert memory._ram is not None and (memory._ram.handles[memory.slots] >= 0).all()


def test_a_store_whose_samples_became_larger_opens_again(tmp_path: Path) -> None:
    """Where sizes vary, what storage has room for is a guess: what was good enough once is so again."""
    arguments: dict[str, Any] = {"storage": tmp_path, "storage_capacity": "20kB", "engine": "preadv", "queue": 2}
    with Memory(10, **arguments) as memory:
        memory.add([b"small"] * 5, [0] * 5)
        memory.flush()
        memory.add([bytes(3000)] * 20, [1] * 20)
    with Memory(10, **arguments) as memory:
        assert len(memory) > 0
        audit(memory)
        with pytest.raises(ValueError, match="give at least"):
            memory.resize(50)


@pytest.mark.parametrize("schema", [None, FIXED], ids=["unknown", "known"])
def test_an_engine_that_does_not_work_here(
    tmp_path: Path, schema: Schema | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is taken in that nobody would store."""

    def refused(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(ring.Kernel, "setup", refused)
    if schema is not None:
        with pytest.raises(ValueError, match="engine='aio' does not work"):
            Memory(5, storage=tmp_path, engine="aio", schema=schema)
        return
    with Memory(5, storage=tmp_path, engine="aio") as memory:
        for _ in range(2):
            with pytest.raises(ValueError, match="engine='aio' does not work"):
                memory.add(**numbered(3))
        assert memory.stats()["added"] == len(memory) == 0


# -- opening with other samples ----------------------------------------------------------------------------------------


def test_another_schema_on_reopening(tmp_path: Path) -> None:
    with Memory(5, storage=tmp_path, engine="preadv") as memory:
        memory.add(**numbered(10))
    with pytest.raises(SchemaError, match="holds samples"):
        Memory(5, storage=tmp_path, schema=VARIABLE)
    with pytest.raises(SchemaError, match="label field 'y'"):
        Memory(5, storage=tmp_path, label="kind")
    with Memory(5, storage=tmp_path, engine="preadv") as memory:
        with pytest.raises(SchemaError, match="'x' holds uint8"):
            memory.add(np.zeros((3, 7), np.float32), [0, 1, 2], logits=np.zeros((3, 4), np.float32))
        assert len(memory) == 5


# -- adding ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.zeros((3, 3, 4, 5), np.uint8)}, "'x' holds uint8"),
        ({"x": np.zeros((3, 3, 4, 4), np.float32)}, "'x' holds uint8"),
        ({"x": np.zeros((2, 3, 4, 4), np.uint8)}, "3 samples|2 samples"),
        ({"x": [b"a", b"b", b"c"]}, "'x'"),
        ({"y": [0.5, 1.0, 2.0]}, "'y' must hold whole numbers"),
        ({"y": [[0], [1], [2]]}, "'y' must have one number"),
        ({"y": 3}, "'y' needs one row per sample"),
        ({"y": np.array(3)}, "'y' needs one row per sample"),
        ({"y": torch.tensor(3)}, "'y' needs one row per sample"),
        ({"y": torch.ones(3, dtype=torch.bfloat16)}, "'y' must hold whole numbers; got dtype bfloat16"),
        ({"y": None}, "missing: .*'y'"),
        ({"logits": None}, "missing: .*'logits'"),
        ({"extra": np.zeros(3)}, "unknown: .*'extra'"),
        ({"x": np.array(["a", "b", "c"])}, "'x'"),
        ({"x": np.array([object()] * 3)}, "'x'"),
    ],
)
def test_samples_that_do_not_fit(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with Memory(5, storage=tmp_path, engine="preadv", swap="sync") as memory:
        memory.add(**numbered(8))
        before = memory.take(memory.slots)
        given = {k: v for k, v in (numbered(3, 100) | change).items() if v is not None}
        with pytest.raises(SchemaError, match=message):
            memory.add(**given)
        assert memory.take(memory.slots).x.equal(before.x)
        assert memory.stats()["added"] == 8
        assert memory.add(**numbered(1, 8)).tolist() == [8]
        audit(memory)


def test_the_first_samples_are_wrong(tmp_path: Path) -> None:
    """A failed first `add` must not decide what samples look like."""
    with Memory(5, storage=tmp_path, engine="preadv") as memory:
        for given in (
            {"x": np.zeros((3, 2)), "y": np.zeros(2, np.int64)},
            {"x": np.zeros((3, 2)), "y": np.zeros(3)},
            {"x": np.zeros((3, 2))},
        ):
            with pytest.raises(SchemaError):
                memory.add(**given)
        assert memory.schema is None
        memory.add(**numbered(3))
        memory.flush()
        assert memory.stats()["stored_samples"] == 3


def test_a_schema_that_was_given_is_kept_to(tmp_path: Path) -> None:
    for schema in (FIXED, VARIABLE):
        for storage in (None, tmp_path / str(schema.fixed)):
            with Memory(5, schema=schema, storage=storage, engine="preadv") as memory:
                with pytest.raises(SchemaError, match="missing"):
                    memory.add(np.zeros((2, 2), np.uint8), [0, 1])
                memory.add(**samples([1, 2], [0, 1], schema))
                assert len(memory) == 2


def test_an_empty_batch_is_nothing(tmp_path: Path) -> None:
    with Memory(5, storage=tmp_path, engine="preadv") as memory:
        assert memory.add(np.zeros((0, 4)), np.zeros(0, np.int64)).tolist() == []
        assert memory.add().tolist() == []
        assert memory.add([], []).tolist() == []
        memory.add(**numbered(3))
        assert memory.add(np.zeros((0, 3, 4, 4), np.uint8), np.zeros(0, np.int64)).tolist() == []
        assert memory.stats()["added"] == 3


class Wrong(Selection):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def place(self, y: Any, slots: Any, rng: Any, signals: Any, ram_signals: Any) -> Any:
        return np.array(self.answer)


NONSENSE = [[0, 0, 1], [0, 1], [0, 1, 2, 3], [0, 1, 99], [0, 1, -99], [[0], [1], [2]], [0.0, np.nan, 1.0], None]


@pytest.mark.parametrize("answer", NONSENSE)
@pytest.mark.parametrize("stored", [False, True])
def test_a_selection_that_answers_nonsense(answer: Any, stored: bool, tmp_path: Path) -> None:
    with Memory(5, select=Wrong(answer), storage=tmp_path if stored else None, engine="preadv") as memory:
        with pytest.raises(ValueError, match=r"Wrong\.place returned"):
            memory.add(**numbered(3))
        assert len(memory) == 0
        memory.select.answer = [4, -1, 2]  # type: ignore[attr-defined]
        memory.add(**numbered(3))
        assert memory.slots.tolist() == [2, 4]
        audit(memory)


def test_store_is_no_field(tmp_path: Path) -> None:
    """It would be found out when RAM has taken the samples in, and storage has not."""
    with Memory(5, storage=tmp_path, engine="preadv") as memory:
        memory.add(**numbered(3))
        with pytest.raises(ValueError, match=r"store=.*: must be True or False"):
            memory.add(**numbered(3, 3), store=np.zeros(3))  # type: ignore[arg-type]
        assert memory.stats()["added"] == len(memory) == 3
        audit(memory)


class Careless(Selection):
    """Answers with the same array again and again, and writes in the one that it is given."""

    def __init__(self) -> None:
        self.out = np.full(3, -1)

    def place(self, y: Any, slots: Any, rng: Any, signals: Any, ram_signals: Any) -> Any:
        y[:] = 77
        self.out[:] = -1
        self.out[0] = len(slots) % slots.capacity
        return self.out


def test_a_selection_that_writes_in_its_arrays(tmp_path: Path) -> None:
    """Labels stay true, and samples in RAM are known to be stored."""
    with Memory(5, select=Careless(), storage=tmp_path, engine="preadv") as memory:
        for step in range(5):
            memory.add(**numbered(3, 3 * step))
        memory.flush()
        audit(memory)
        assert memory._ram is not None and (memory._ram.handles[memory.slots] >= 0).all()
        assert 77 not in memory.class_counts()
        assert memory.store is not None
        live = memory.store.index.live()
        labels = memory.store.read(memory.store.index.ids[live])["y"].tolist()
        assert labels == [memory.store.index.sets.label(h) for h in live.tolist()]


@pytest.mark.parametrize(("select", "signal"), [(Herding, "features"), (UncertaintySpread, "uncertainty")])
def test_selections_that_need_signals(select: type[Selection], signal: str) -> None:
    with Memory(5, select=select()) as memory:
        with pytest.raises(ValueError, match=signal):
            memory.add(**numbered(3))
        with pytest.raises(ValueError, match="2 entries, but there are 3 samples"):
            memory.add(**numbered(3), signals={signal: np.zeros((2, 1))})
        memory.add(**numbered(3), signals={signal: np.arange(3.0).reshape(3, 1)})
        assert len(memory) == 3


def test_signals_in_bfloat16_are_numbers() -> None:
    """numpy has no such type; their bits would be numbers too, in another order."""
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    kept = []
    for given in (features, features.float()):
        with Memory(10, select=Herding()) as memory:
            memory.add(**numbered(20), signals={"features": given[:20]})
            in_ram = given[torch.from_numpy(memory.take(memory.slots).ids)]
            memory.add(**numbered(20, 20), signals={"features": given[20:]}, ram_signals={"features": in_ram})
            kept.append(sorted(keys_of(memory.draw(10)).tolist()))
    assert kept[0] == kept[1]


# -- slots -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, list], ids=["array", "tensor", "list"])
def test_a_mask_is_no_list_of_slots(kind: Any) -> None:
    """As numbers, True would be slot 1, and False slot 0."""
    with Memory(4) as memory:
        memory.add(**numbered(4))
        mask = kind([True, False, True, True])
        for call in (memory.take, memory.reader().read):
            with pytest.raises(IndexError, match=r"this is a mask: pick from memory\.slots with it"):
                call(mask)
        assert keys_of(memory.take(memory.slots[np.asarray(mask)])).tolist() == [0, 2, 3]


def test_slots_are_whole_numbers() -> None:
    with Memory(4) as memory:
        memory.add(**numbered(4))
        for call in (memory.take, memory.reader().read):
            with pytest.raises(IndexError, match="whole numbers; got float64"):
                call(np.array([1.5]))
        assert len(memory.take(np.array([]))) == 0


def test_negative_slots_hold_nothing() -> None:
    with Memory(4) as memory:
        memory.add(**numbered(4))
        assert memory.filled(np.array([-1, 2, -4, 9])).tolist() == [2]


# -- feedback ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def memory(tmp_path: Path) -> Any:
    with Memory(10, storage=tmp_path, engine="preadv", swap="sync", gate=Entropy(0.5), queue=10) as memory:
        memory.add(**numbered(60))
        yield memory


@pytest.mark.parametrize("shape", [(), (6,), (5, 4), (7, 4), (6, 4, 1), (0, 4)])
def test_logits_of_another_shape(memory: Memory, shape: tuple[int, ...]) -> None:
    batch = memory.draw(6)
    with pytest.raises(ValueError, match=r"logits has shape .* each of the 6 samples"):
        memory.feedback(batch, torch.zeros(shape))
    assert memory.stats()["picked"] == 0
    assert memory.feedback(batch, torch.zeros(6, 4)) == 3
    audit(memory)


@pytest.mark.parametrize("shape", [(), (5,), (6, 1)])
def test_targets_of_another_shape(memory: Memory, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="target has shape"):
        memory.feedback(memory.draw(6), torch.zeros(6, 4), target=torch.zeros(shape, dtype=torch.int64))


def test_logits_that_are_missing(memory: Memory) -> None:
    with pytest.raises(ValueError, match=r"memory\.feedback\(batch, logits\)"):
        memory.feedback(memory.draw(6))


def test_logits_as_numpy_or_with_a_graph(memory: Memory) -> None:
    assert memory.feedback(memory.draw(6), np.zeros((6, 4), np.float32)) == 3  # type: ignore[arg-type]
    assert memory.feedback(memory.draw(6), torch.zeros(6, 4, requires_grad=True) * 2) == 3
    assert memory.feedback(memory.draw(6), torch.zeros(6, 4, dtype=torch.bfloat16)) == 3


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e38])
def test_logits_that_are_no_numbers(memory: Memory, value: float) -> None:
    for rows in (slice(0, 3), slice(None)):
        logits = torch.zeros(6, 4)
        logits[rows] = value
        assert memory.feedback(memory.draw(6), logits) == 3
        audit(memory)


@pytest.mark.parametrize("labels", [[-5, 3], [1000, 2000], [2**62, -(2**62)], [7, 7]])
@pytest.mark.parametrize("gate", [Entropy(0.5), Dynamic(0.5), Random(0.5)])
def test_labels_that_are_no_columns(tmp_path: Path, labels: list[int], gate: Gate) -> None:
    with Memory(10, storage=tmp_path, engine="preadv", swap="sync", gate=gate, queue=10) as memory:
        memory.add(**samples(np.arange(60), np.resize(labels, 60)))
        batch = memory.draw(6)
        assert set(batch.y.tolist()) <= set(labels)
        memory.progress = 0.9
        if isinstance(gate, Entropy):
            with pytest.raises(ValueError, match="target="):
                memory.feedback(batch, torch.zeros(6, 4))
        assert memory.feedback(batch, torch.zeros(6, 4), target=torch.zeros(6, dtype=torch.int64)) == 3
        after = memory.take(batch.slots)
        assert after.y.equal(batch.y)
        audit(memory)


def test_feedback_without_storage_does_nothing() -> None:
    with Memory(10) as memory:
        memory.add(**numbered(20))
        assert memory.feedback(memory.draw(5)) == 0
        assert memory.feedback(memory.draw(5), torch.zeros(1, 1)) == 0


def test_feedback_of_new_samples_only(memory: Memory) -> None:
    batch = next(iter(Memory(3).bundle(numbered(5, 100))))
    assert memory.feedback(batch, torch.zeros(5, 4)) == 0


def test_feedback_of_a_batch_of_another_memory(memory: Memory) -> None:
    with Memory(500) as other:
        other.add(**numbered(500))
        for _ in range(5):
            assert memory.feedback(other.draw(50), torch.zeros(50, 4)) <= 10
            keys_of(memory.draw(10))
            audit(memory)


class Odd(Gate):
    def pick(self, signals: Any, rng: Any, *, budget: int | None = None) -> Any:
        raise CarmError("no")


def test_an_error_in_a_gate_leaves_the_memory_usable(memory: Memory) -> None:
    good, memory.gate = memory.gate, Odd()
    with pytest.raises(CarmError, match="no"):
        memory.feedback(memory.draw(5), torch.zeros(5, 4))
    memory.gate = good
    audit(memory)
    assert memory.feedback(memory.draw(6), torch.zeros(6, 4)) == 3


# -- names, and things that would be changed without a word ------------------------------------------------------------


def test_a_field_is_given_once(tmp_path: Path) -> None:
    with Memory(4, storage=tmp_path) as memory:
        with pytest.raises(ValueError, match="y is given twice"):
            memory.add(torch.zeros(1, 3), [0], y=[3])
        with pytest.raises(ValueError, match="x is given twice"):
            memory.add(torch.zeros(1, 3), [0], x=torch.ones(1, 3))
        assert memory.stats()["added"] == 0


@pytest.mark.parametrize("name", ["slots", "ids", "old", "to", "fields"])
def test_names_that_batches_use_are_taken(name: str) -> None:
    with Memory(4) as memory, pytest.raises(SchemaError, match=f"no field can be called '{name}'"):
        memory.add(torch.zeros(2, 3), [0, 1], **{name: [1, 2]})


def test_masked_arrays_are_refused() -> None:
    masked = np.ma.masked_array(np.ones((2, 3), np.float32), mask=np.eye(2, 3))
    with Memory(4) as memory, pytest.raises(SchemaError, match=r"'x' is a masked array, .* pass value\.filled"):
        memory.add(masked, [0, 1])


def test_the_current_directory_is_not_taken_for_want_of_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="the directory of a store is ''"):
        Memory(4, storage="")
    assert not list(tmp_path.iterdir())


def test_a_task_needs_labels(tmp_path: Path) -> None:
    with Memory(4, storage=tmp_path) as memory:
        memory.add(torch.zeros(4, 3), torch.arange(4))
        with pytest.raises(SchemaError, match="the samples have the fields x, and no label field 'y'"):
            next(memory.bundle({"x": torch.zeros(2, 3)}))


def test_all_batches_of_a_bundle_have_the_fields_of_the_task(tmp_path: Path) -> None:
    """Also those that happen to have old samples only."""
    with Memory(60, storage=tmp_path) as memory:
        memory.add(torch.zeros(60, 3), torch.arange(60) % 4, logits=torch.ones(60, 2))
        task = {"x": torch.zeros(6, 3), "y": torch.zeros(6, dtype=torch.int64)}
        batches = list(memory.bundle(task, batch_size=3))
        assert any(batch.old.all() for batch in batches) and {tuple(batch.fields) for batch in batches} == {("x", "y")}
        assert all("logits" in batch.fields for batch in memory.bundle(batch_size=3))
