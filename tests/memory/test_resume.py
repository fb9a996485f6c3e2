"""The same seed gives the same run, and a state brings back the very moment it was taken at."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patterns import FIXED, VARIABLE, audit, keys_of, logits_for, quick_base, samples

from carm.memory import checkpoint
from carm.memory.checkpoint import on_cpu
from carm.memory.errors import CheckpointError, CorruptRecord
from carm.memory.extentfile import NAME as EXTENTS
from carm.memory.gate import Dynamic, Entropy, Random
from carm.memory.memory import Memory
from carm.memory.record import Schema
from carm.memory.select import GreedyBalanced, Herding, Reservoir, Ring

CLASSES = 5
HERE = Path(__file__).parent


@pytest.fixture
def quick() -> Iterator[Path]:
    """A directory where a sync costs nothing: these tests make many small commits."""
    with tempfile.TemporaryDirectory(prefix="carm-resume-", dir=quick_base()) as path:
        yield Path(path)


def size(number: int) -> int:
    return 9 if number % 13 == 5 else 3


def kept_out(steps: int) -> int:
    """How many samples were added with store=False."""
    return sum(size(i) for i in range(steps) if i % 9 == 4)


def step(memory: Memory, number: int, schema: Schema = FIXED) -> Any:
    """One step of a training loop that depends on nothing but the memory and the step's number; what it saw."""
    keys = np.arange(size(number)) + 10 * number
    labels = (keys * 7 + number // 20) % CLASSES
    seen = []
    batch = memory.draw(6)
    if len(batch):
        seen.append((batch.slots.tolist(), batch.ids.tolist(), keys_of(batch, schema).tolist()))
        memory.feedback(batch, logits_for(batch, CLASSES))
    new = samples(keys, labels, schema)
    signals = {"features": np.sin(keys[:, None] * [1.0, 2.0, 3.0])}
    seen.append(memory.add(**new, signals=signals, store=number % 9 != 4).tolist())
    if number % 10 == 7:
        for bundled in memory.bundle(new, batch_size=7):
            seen.append((bundled.slots.tolist(), keys_of(bundled, schema).tolist()))
            memory.feedback(bundled, logits_for(bundled, CLASSES))
    return seen


def picture(memory: Memory) -> dict[str, Any]:
    """Everything that can be seen of a memory."""
    memory.flush()
    stats = memory.stats()
    for name in ("add_wait_seconds", "order_age_mean", "order_age_max", "index_bytes"):
        stats.pop(name, None)
    ram = memory._ram
    assert ram is not None
    out: dict[str, Any] = {"stats": stats, "slots": memory.slots.tolist(), "classes": memory.class_counts()}
    out["ids"] = ram.ids[memory.slots].tolist()
    digest = hashlib.sha256()
    for x in ram.fields(memory.slots)["x"]:  # not `take`: that would be counted
        digest.update(x.tobytes())
    out["bytes"] = digest.hexdigest()
    if memory.store is not None:
        out["stored"] = memory.store.ids.tolist()
    return out


def saved(memory: Memory) -> bytes:
    file = io.BytesIO()
    torch.save(memory.state_dict(), file)
    return file.getvalue()


def loaded(state: bytes) -> dict[str, Any]:
    out: dict[str, Any] = torch.load(io.BytesIO(state), weights_only=True)
    return out


BASE = {"slots": 12, "swap": "sync", "engine": "preadv", "seed": 3, "queue": 8}
KINDS: dict[str, tuple[dict[str, Any], Schema, bool]] = {
    "plain": ({}, FIXED, True),
    "evicting": ({"storage_capacity": 120}, FIXED, True),
    "evicting by bytes": ({"storage_capacity": "70kB"}, FIXED, True),
    "ring and entropy": ({"select": Ring, "gate": lambda: Entropy(0.7)}, FIXED, True),
    "greedy and dynamic": ({"select": GreedyBalanced, "gate": lambda: Dynamic(0.3)}, FIXED, True),
    "herding": ({"select": Herding, "gate": lambda: Random(0.5), "storage_capacity": 120}, FIXED, True),
    "variable": ({}, VARIABLE, True),
    "variable in bytes": ({"slots": None, "ram": "60kB"}, VARIABLE, True),
    "variable, evicting": ({"slots": None, "ram": "60kB", "storage_capacity": 120}, VARIABLE, True),
    "RAM only": ({}, FIXED, False),
    "RAM only, variable": ({"slots": None, "ram": "40kB"}, VARIABLE, False),
}


def make(kind: str, directory: Path, **more: Any) -> Memory:
    arguments, _, storage = KINDS[kind]
    arguments = BASE | arguments | more
    for name, default in (("select", Reservoir), ("gate", lambda: Random(1.0))):
        arguments[name] = arguments.get(name, default)()
    return Memory(**arguments, storage=directory if storage else None)


# -- the same again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_on_exactly(quick: Path, kind: str) -> None:
    """100 steps in one go, twice; and 50 steps, a state, 6 steps that are lost, and 50 steps from the state."""
    schema = KINDS[kind][1]
    with make(kind, quick / "straight") as memory:
        straight = [step(memory, i, schema) for i in range(100)]
        final = picture(memory)
    with make(kind, quick / "again") as memory:
        assert [step(memory, i, schema) for i in range(100)] == straight
        assert picture(memory) == final

    directory = quick / "resumed"
    with make(kind, directory) as memory:
        assert [step(memory, i, schema) for i in range(50)] == straight[:50]
        state = saved(memory)
        moment = picture(memory)
        lost = [step(memory, i, schema) for i in range(50, 56)]
        assert lost == straight[50:56], "taking a state has changed the run"
    with make(kind, directory, seed=99) as memory:  # the state brings its generators along
        memory.load_state_dict(loaded(state))
        assert picture(memory) == moment
        assert [step(memory, i, schema) for i in range(50, 100)] == straight[50:]
        resumed = picture(memory)
        assert resumed == final
    if kind.startswith("evicting"):
        assert final["stats"]["evicted"] > 100
        assert moment["stats"]["evicted"] > 0
    if "bytes" in kind:
        assert final["stats"]["squeezed"] > 0 or schema is FIXED


def test_a_run_goes_on_exactly_after_a_kill(tmp_path: Path) -> None:
    """The process that took the state is killed some steps later, in the middle of whatever it does."""
    script = f"""
        import sys
        sys.path.insert(0, {str(HERE)!r})
        import os
        from test_resume import *
        memory = make("evicting", Path(sys.argv[1]) / "killed")
        for i in range(50):
            step(memory, i)
        Path(sys.argv[1], "state").write_bytes(saved(memory))
        for i in range(50, 56):
            step(memory, i)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert out.returncode == -signal.SIGKILL, out.stderr
    with make("evicting", tmp_path / "straight") as memory:
        straight = [step(memory, i) for i in range(80)]
        final = picture(memory)
    with make("evicting", tmp_path / "killed") as memory:
        memory.load_state_dict(loaded((tmp_path / "state").read_bytes()))
        assert [step(memory, i) for i in range(50, 80)] == straight[50:]
        assert picture(memory) == final
        audit(memory, loose=set(range(400)), unsent=kept_out(80))


def test_a_state_of_a_memory_that_large_samples_have_just_filled(quick: Path) -> None:
    """Slots are about to be renumbered, at the next `add`."""

    def grow(memory: Memory, number: int) -> Any:
        keys = np.arange(6) + 6 * number
        memory.add(**samples(keys, keys % CLASSES, VARIABLE, most=800 + 400 * number))
        batch = memory.draw(5)
        return batch.slots.tolist(), batch.ids.tolist(), memory.capacity

    with make("variable in bytes", quick / "straight", select=Ring) as memory:
        straight = []
        for i in range(20):
            straight.append(grow(memory, i))
            assert memory._keeper is not None
            if memory._keeper.tight and i > 3:
                break
        assert memory._keeper.tight
        state = saved(memory)
        straight = [grow(memory, 20 + i) for i in range(5)]
        memory.load_state_dict(loaded(state))
        assert [grow(memory, 20 + i) for i in range(5)] == straight


def test_one_state_may_be_loaded_again_and_again(quick: Path) -> None:
    with make("evicting", quick) as memory:
        for i in range(50):
            step(memory, i)
        state = saved(memory)
        runs = []
        for _ in range(3):
            runs.append([step(memory, i) for i in range(50, 57)])
            assert memory.stats()["evicted"] > 0
            memory.load_state_dict(loaded(state))
        assert runs[0] == runs[1] == runs[2]


def test_states_one_after_the_other(quick: Path) -> None:
    """A state every ten steps, a crash in between: always the newest one is good."""
    with make("evicting", quick / "straight") as memory:
        straight = [step(memory, i) for i in range(90)]
    memory = make("evicting", quick / "crashing")
    for begin in range(0, 90, 10):
        assert [step(memory, i) for i in range(begin, begin + 10)] == straight[begin : begin + 10]
        state = saved(memory)
        for i in range(begin + 10, begin + 13):
            step(memory, i)
        memory.close()
        memory = make("evicting", quick / "crashing")
        memory.load_state_dict(loaded(state))
    memory.close()


@pytest.mark.parametrize("swap", ["thread", "process"])
def test_a_state_of_an_asynchronous_memory(quick: Path, swap: str) -> None:
    with make("evicting", quick, swap=swap) as memory:
        for i in range(40):
            step(memory, i)
        state, moment = saved(memory), picture(memory)
        for i in range(40, 44):
            step(memory, i)
    with make("evicting", quick, swap=swap) as memory:
        memory.load_state_dict(loaded(state))
        assert picture(memory) == moment
        step(memory, 40)
        audit(memory, loose=set(range(400)), unsent=kept_out(41))


def test_what_waits_for_storage_is_forgotten(quick: Path) -> None:
    """Samples that came after the state need not be written first, and above all may not evict what it needs."""
    with make("plain", quick, write_batch=10_000, storage_capacity=100) as memory:
        for i in range(20):
            step(memory, i)
        state = saved(memory)
        moment = picture(memory)["ids"]
        memory.add(**samples(np.arange(1000, 1090), np.zeros(90, np.int64)))
        memory.load_state_dict(loaded(state))
        assert memory.stats()["stream_samples"] == 0
        assert picture(memory)["ids"] == moment


def test_a_resized_memory_comes_back_with_its_size(quick: Path) -> None:
    with make("plain", quick) as memory:
        for i in range(20):
            step(memory, i)
        memory.resize(20)
        for i in range(20, 25):
            step(memory, i)
        state, moment = saved(memory), picture(memory)
        memory.resize(5)
    with make("plain", quick) as memory:
        memory.load_state_dict(loaded(state))
        assert memory.capacity == 20
        assert picture(memory)["ids"] == moment["ids"]


def test_a_state_of_the_first_moment(quick: Path) -> None:
    for kind in ("plain", "RAM only"):
        with make(kind, quick / kind) as memory:
            state = saved(memory)
            first = [step(memory, i) for i in range(10)]
            with pytest.raises(CheckpointError, match="nothing had been added"):
                memory.load_state_dict(loaded(state))
        with make(kind, quick / (kind + " again"), seed=99) as memory:
            memory.load_state_dict(loaded(state))
            assert [step(memory, i) for i in range(10)] == first


class Elsewhere(torch.Tensor):
    """A tensor on another device, as far as this machine can have one: numpy cannot look at it before `cpu`."""

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    __array__ = numpy

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.as_subclass(torch.Tensor)


def elsewhere(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.as_subclass(Elsewhere)
    if isinstance(state, dict):
        return {name: elsewhere(value) for name, value in state.items()}
    return type(state)(map(elsewhere, state)) if isinstance(state, (list, tuple)) else state


@pytest.mark.parametrize("kind", ["plain", "herding", "ring and entropy", "variable", "RAM only"])
def test_a_state_whose_tensors_are_on_another_device(quick: Path, kind: str) -> None:
    """`torch.load(..., map_location="cuda")` takes all there, also those in lists and tuples."""
    schema = KINDS[kind][1]
    with make(kind, quick) as memory:
        for i in range(25):
            step(memory, i, schema)
        state, before = loaded(saved(memory)), picture(memory)
        there = elsewhere(state)
        assert isinstance(there["ram"]["order"][0][1], Elsewhere)
        for i in range(25, 30):
            step(memory, i, schema)
        memory.load_state_dict(there)
        assert picture(memory) == before
        step(memory, 25, schema)
        memory.state_dict()


def test_tensors_anywhere_in_a_state_come_to_the_cpu() -> None:
    deep = {"a": [{"b": (torch.arange(3), "c", 1.5, None)}], "d": {"e": torch.ones(2)}, 5: [[], ()]}
    there = elsewhere(deep)
    here = on_cpu(there)
    assert isinstance(here["a"], list) and isinstance(here["a"][0]["b"], tuple)
    assert here["a"][0]["b"][0].numpy().tolist() == [0, 1, 2]
    assert here["a"][0]["b"][1:] == ("c", 1.5, None)
    assert here["d"]["e"].numpy().tolist() == [1, 1]
    assert here[5] == [[], ()]
    assert isinstance(there["d"]["e"], Elsewhere), "what was given is left alone"


# -- what is in a state ------------------------------------------------------------------------------------------------


def test_a_state_holds_no_samples_that_are_stored(quick: Path) -> None:
    big = Schema((type(FIXED.fields[0])("x", "uint8", (3, 32, 32)), *FIXED.fields[1:]))
    with Memory(200, storage=quick, engine="preadv", swap="sync") as memory:
        keys = np.arange(600)
        memory.add(**samples(keys, keys % CLASSES, big))
        first = len(saved(memory))
        assert first < 30_000  # ids: 16 bytes for each stored sample, and some; the samples in RAM have 600 kB
        memory.add(**samples(keys[:10], keys[:10] % CLASSES, big), store=False)
        more = len(saved(memory)) - first
        kept = int((memory._ram.handles[memory.slots] < 0).sum()) if memory._ram is not None else 0
        assert kept * 3000 < more + 1 < kept * 3300 + 3000
    with Memory(200) as memory:
        memory.add(**samples(keys, keys % CLASSES, big))
        assert len(saved(memory)) > 600_000


def test_a_state_does_not_change_any_more(quick: Path) -> None:
    with make("plain", quick) as memory:
        for i in range(20):
            step(memory, i)
        state = memory.state_dict()
        before = saved_bytes(state)
        for i in range(20, 40):
            step(memory, i)
        assert saved_bytes(state) == before


def saved_bytes(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


# -- states that do not fit --------------------------------------------------------------------------------------------


def _still_good(memory: Memory, number: int) -> None:
    before = picture(memory)
    step(memory, number)
    after = picture(memory)
    assert after["stats"]["added"] == before["stats"]["added"] + size(number)
    if memory.store is not None:
        assert after["stats"]["stored"] > before["stats"]["stored"]
        assert after["stats"]["swapped"] > before["stats"]["swapped"]
    audit(memory, loose=set(range(2000)), unsent=kept_out(number + 1))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("plain", "another store"),
        ("variable", "the state is of samples"),
        ("RAM only", "without storage"),
        ("ring and entropy", "select=Ring"),
    ],
)
def test_a_state_of_another_memory(quick: Path, other: str, message: str) -> None:
    with make(other, quick / "other") as memory:
        for i in range(10):
            step(memory, i, KINDS[other][1])
        state = saved(memory)
    with make("plain", quick / "this") as memory:
        for i in range(10):
            step(memory, i)
        before = picture(memory)
        with pytest.raises(CheckpointError, match=message):
            memory.load_state_dict(loaded(state))
        assert picture(memory) == before
        _still_good(memory, 10)


def test_a_state_with_storage_for_a_memory_without(quick: Path) -> None:
    with make("plain", quick) as memory:
        for i in range(10):
            step(memory, i)
        state = saved(memory)
    with make("RAM only", quick) as memory:
        for i in range(10):
            step(memory, i)
        with pytest.raises(CheckpointError, match="with storage, and this one has none"):
            memory.load_state_dict(loaded(state))
        _still_good(memory, 10)


def test_a_state_for_an_empty_store(quick: Path) -> None:
    with make("plain", quick / "other") as memory:
        for i in range(10):
            step(memory, i)
        state = saved(memory)
    with make("plain", quick / "new") as memory:
        with pytest.raises(CheckpointError, match="empty"):
            memory.load_state_dict(loaded(state))
        step(memory, 0, VARIABLE)  # and it is not tied to the state's samples
        step(memory, 1, VARIABLE)


def test_a_state_that_is_too_old(quick: Path) -> None:
    with make("evicting", quick) as memory:
        for i in range(50):
            step(memory, i)
        state = saved(memory)
        for i in range(50, 90):  # more samples than the store keeps: there is no way back
            step(memory, i)
        before = picture(memory)
        with pytest.raises(CheckpointError, match="go back"):
            memory.load_state_dict(loaded(state))
        assert picture(memory) == before
        _still_good(memory, 90)


@pytest.mark.parametrize("state", [{}, {"version": 1}, {"version": 3}, {"version": "2"}, {"a": 1}])
def test_something_that_is_no_state(quick: Path, state: dict[str, Any]) -> None:
    with make("plain", quick) as memory:
        for i in range(5):
            step(memory, i)
        with pytest.raises(CheckpointError, match="not a state"):
            memory.load_state_dict(state)
        _still_good(memory, 5)


def test_a_state_whose_samples_are_damaged(quick: Path) -> None:
    with make("plain", quick) as memory:
        for i in range(20):
            step(memory, i)
        state = saved(memory)
        assert memory.store is not None
        assert memory._ram is not None
        handle = int(memory._ram.handles[memory.slots].max())
        offset = int(memory.store.index.offsets[handle])
    with open(quick / EXTENTS, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff\x00\xff")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory = make("plain", quick)
        with pytest.raises(CheckpointError, match="missing from storage or damaged"):
            memory.load_state_dict(loaded(state))
    with memory:
        assert len(memory) == 12
        keys_of(memory.draw(12))
        batch = memory.draw(12)
        assert memory.feedback(batch, logits_for(batch, CLASSES)) > 0
        ids = memory.add(**samples([5000], [0]))
        assert len(ids) == 1
        audit(memory)


def test_a_state_that_cannot_be_taken_in_leaves_a_memory_that_works(quick: Path) -> None:
    """Whatever the error is: half of a state is worse than what storage has."""
    with make("plain", quick) as memory:
        for i in range(20):
            step(memory, i)
        state = loaded(saved(memory))
        state["ram"]["ids"] = None
        with pytest.raises(AttributeError):
            memory.load_state_dict(state)
        assert len(memory) == 12
        keys_of(memory.draw(12))
        audit(memory, loose=set(range(2000)), unsent=kept_out(20))
        batch = memory.draw(12)
        assert memory.feedback(batch, logits_for(batch, CLASSES)) > 0
        memory.add(**samples([5000], [0]))
        memory.flush()


def test_a_state_too_large_for_this_machine_changes_nothing(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the store, which would no longer be the one that RAM knows."""

    def no_memory(*_: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with make("plain", quick) as memory:
        memory.add(**samples(np.arange(30), np.arange(30) % CLASSES))
        state = saved(memory)
        memory.add(**samples(np.arange(30, 60), np.arange(30) % CLASSES))
        memory.flush()
        before = memory.stats()
        monkeypatch.setattr(checkpoint, "make_ram", no_memory)
        with pytest.raises(OSError, match="Cannot allocate memory"):
            memory.load_state_dict(loaded(state))
        assert memory.stats() == before
        audit(memory)


def test_a_state_of_a_store_that_has_lost_its_end(quick: Path) -> None:
    """Samples that were not in RAM are missing: everything else comes back as it was."""
    with make("plain", quick) as memory:
        memory.add(**samples(np.arange(60), np.arange(60) % CLASSES))
        state = saved(memory)
        store, ram = memory.store, memory._ram
        assert store is not None and ram is not None
        live = store.index.live()
        needed = int((store.index.offsets + store.index.sizes)[ram.handles[memory.slots]].max())
        lost = live[store.index.offsets[live] >= needed]
        assert len(lost), "there is nothing behind the last sample in RAM"
        labels = {int(store.index.ids[h]): store.index.sets.label(h) for h in live.tolist() if h not in lost}
        corrupt = store.corrupt
    os.truncate(quick / EXTENTS, needed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CorruptRecord)
        memory = make("plain", quick)
        memory.load_state_dict(loaded(state))
    with memory:
        store = memory.store
        assert store is not None
        assert {int(store.index.ids[h]): store.index.sets.label(h) for h in store.index.live().tolist()} == labels
        assert store.corrupt == corrupt + len(lost)
        audit(memory)
        for _ in range(20):
            batch = memory.draw(6)
            keys_of(batch)
            memory.feedback(batch, logits_for(batch, CLASSES))
            audit(memory)


@pytest.mark.parametrize(
    "damage",
    [
        lambda state: None,
        lambda state: [],
        lambda state: state.pop("rng") and state,
        lambda state: state["storage"].update(next_id=-5) or state,
        lambda state: state["storage"].update(next_id="3") or state,
        lambda state: state["ram"].update(layout=[10, 74, 0, 64]) or state,
        lambda state: state["ram"].update(layout=[0, 74, 3080, 64]) or state,
    ],
)
def test_a_damaged_state_is_refused_and_harms_nothing(quick: Path, damage: Any) -> None:
    directory = quick / "m"
    with Memory(10, storage=directory, swap="sync", gate=Random(1.0)) as memory:
        memory.add(**samples(np.arange(40), np.arange(40) % CLASSES))
        state = damage(memory.state_dict())
        with pytest.raises(CheckpointError):
            memory.load_state_dict(state)
        memory.add(**samples(np.arange(40, 60), np.arange(20) % CLASSES))
        audit(memory)
    with Memory(10, storage=directory, swap="sync") as memory:
        assert memory.stats()["stored_samples"] == 60


def test_ids_are_not_given_twice_whatever_a_state_says(quick: Path) -> None:
    with Memory(10, storage=quick, swap="sync") as memory:
        memory.add(**samples(np.arange(40), np.arange(40) % CLASSES))
        state = memory.state_dict()
        state["storage"]["next_id"] = 3
        memory.load_state_dict(state)
        assert memory.add(**samples(np.arange(5), np.arange(5))).tolist() == [40, 41, 42, 43, 44]


def test_a_state_with_another_label_field_is_refused() -> None:
    with Memory(10) as memory, Memory(10, label="z") as other:
        memory.add(torch.zeros(4, 3), torch.arange(4))
        with pytest.raises(CheckpointError, match=r"label field 'y', not label='z'"):
            other.load_state_dict(memory.state_dict())
