"""Readers of the RAM tier in other processes: DataLoader workers, forked and spawned."""

from __future__ import annotations

import multiprocessing
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patterns import FIXED, VARIABLE, keys_of, samples
from torch.utils.data import DataLoader, Dataset

from carm.memory.errors import CarmError
from carm.memory.gate import Random
from carm.memory.memory import Memory
from carm.memory.ram import RamReader
from carm.memory.select import Selection

CLASSES = 4


def numbered(n: int, begin: int = 0) -> dict[str, Any]:
    keys = np.arange(begin, begin + n)
    return samples(keys, keys % CLASSES)


class OneByOne(Dataset[Any]):
    """Hides `__getitems__`, as a wrapper with transforms would."""

    def __init__(self, reader: RamReader) -> None:
        self.reader = reader

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, slot: int) -> Any:
        return self.reader[slot]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("single", [False, True], ids=["batches", "one by one"])
def test_data_loader_workers(tmp_path: Path, method: str, single: bool) -> None:
    with Memory(
        60, storage=tmp_path, engine="preadv", swap="thread", gate=Random(1.0), queue=64, write_batch=32
    ) as memory:
        memory.add(**numbered(50))
        reader: Any = memory.reader()
        loader: Any = DataLoader(
            OneByOne(reader) if single else reader,
            batch_size=8,
            sampler=reader.filled().tolist(),
            num_workers=2,
            multiprocessing_context=method,
            persistent_workers=True,
        )
        keys = []
        for batch in loader:
            keys += keys_of(batch).tolist()
            assert batch["y"].tolist() == [k % CLASSES for k in keys[-len(batch["y"]) :]]
        assert sorted(keys) == list(range(50))
        # The same workers see what changes.
        memory.add(**numbered(200, 50))
        memory.flush()
        memory.feedback(memory.draw(40), torch.zeros(40, CLASSES))
        memory.flush()
        now = memory.take(np.array(reader.filled()[:50]))
        keys = np.concatenate([keys_of(batch) for batch in loader]).tolist()
        assert sorted(keys) == sorted(now.ids.tolist())
        assert memory.stats()["swapped"] > 0


def _read(reader: RamReader, queue: Any) -> None:
    queue.put(sorted(keys_of(reader.read(reader.filled()), VARIABLE).tolist()))
    while True:
        queue.put("ready")
        try:
            reader.read(reader.filled())
        except CarmError as error:
            queue.put(str(error))
            return


@pytest.mark.parametrize(
    ("method", "end"), [("fork", "resize"), ("spawn", "close"), ("forkserver", "load"), ("fork", "close")]
)
def test_a_reader_elsewhere_is_told_when_the_tier_is_replaced(tmp_path: Path, method: str, end: str) -> None:
    context: Any = multiprocessing.get_context(method)
    memory = Memory(30, storage=tmp_path, engine="preadv")
    memory.add(**samples(np.arange(30), np.zeros(30, np.int64), VARIABLE))
    memory.flush()
    queue = context.SimpleQueue()
    process = context.Process(target=_read, args=(memory.reader(), queue))
    process.start()
    assert queue.get() == list(range(30))
    assert queue.get() == "ready"
    if end == "resize":
        memory.resize(10)
    elif end == "load":
        memory.load_state_dict(memory.state_dict())
    memory.close()
    answer = "ready"
    while answer == "ready":
        assert process.is_alive() or not queue.empty(), "the reader failed"
        answer = queue.get()
    assert "make a new one with memory.reader()" in answer
    process.join(timeout=20)
    assert process.exitcode == 0


def test_a_reader_here_is_told_too(tmp_path: Path) -> None:
    memory = Memory(10, storage=tmp_path, engine="preadv")
    memory.add(**numbered(20))
    reader = memory.reader()
    keys_of(reader.read(range(10)))
    memory.resize(5)
    with pytest.raises(CarmError, match="resized, restored or closed"):
        reader[0]
    with pytest.raises(CarmError, match="resized, restored or closed"):
        reader.filled()
    reader = memory.reader()
    keys_of(reader.read(range(5)))
    memory.close()
    for call in (lambda: reader[0], lambda: reader.__getitems__([0, 1]), lambda: pickle.dumps(reader)):
        with pytest.raises(CarmError, match="resized, restored or closed"):
            call()


def test_a_reader_and_an_open_batch_outlive_the_memory() -> None:
    """What was read is a copy; the mapping is let go of only when nobody looks at it any more."""
    memory = Memory(10)
    memory.add(**numbered(10))
    reader = memory.reader()
    batch = reader.read(range(10))
    drawn = memory.draw(10)
    memory.close()
    del memory, reader
    assert keys_of(batch).tolist() == list(range(10))
    assert sorted(keys_of(drawn).tolist()) == list(range(10))


def test_slots_as_lists_arrays_and_tensors() -> None:
    with Memory(10) as memory:
        memory.add(**numbered(10))
        reader = memory.reader()
        for slots in ([3, 1], (3, 1), np.array([3, 1]), torch.tensor([3, 1])):
            assert keys_of(reader.read(slots)).tolist() == [3, 1]  # type: ignore[arg-type]
        assert reader.read([])["x"].shape == (0, *(FIXED.field("x").shape or ()))
        assert reader.__getitems__([]) == []
        assert int(reader[np.int64(4)]["y"]) == 0
        assert len(reader) == 10


class Placed(Selection):
    """Puts new samples into these slots."""

    def __init__(self, slots: list[int]) -> None:
        self.slots = slots

    def place(self, y: Any, slots: Any, rng: Any, signals: Any, ram_signals: Any) -> Any:
        return np.array(self.slots)


def test_iterating_goes_over_the_samples_there_are() -> None:
    """Slots may be empty, also the first ones."""
    with Memory(10, select=Placed([2, 5, 9])) as memory:
        memory.add(**numbered(3))
        assert [int(sample["logits"][0]) for sample in memory.reader()] == [0, 1, 2]


def test_a_fork_while_another_thread_reads() -> None:
    """What that thread holds is nobody's in the child."""
    script = """
import os, threading
import torch
from carm.memory import shared
from carm.memory.memory import Memory
memory = Memory(8)
memory.add(torch.zeros(8, 3), torch.arange(8) % 2)
reader = memory.reader()
held, done = threading.Event(), threading.Event()
def hold():
    with shared._LOCK:
        held.set()
        done.wait()
threading.Thread(target=hold).start()
held.wait()
child = os.fork()
if not child:
    reader.read([1, 2])
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n", done.stderr
