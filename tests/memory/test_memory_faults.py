"""What goes wrong around a memory: workers that die or fail, interrupts, forks, full devices, damaged files."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patterns import FIXED, audit, descriptors, keys_of, samples

from carm.memory import extentfile, ring, swap
from carm.memory.errors import CarmError, CorruptRecord, StoreError, StoreFull, StoreLocked, WorkerError
from carm.memory.gate import Random
from carm.memory.memory import Memory
from carm.memory.record import Field, Schema
from carm.memory.select import Ring  # noqa: F401 - for the scripts
from carm.memory.store import Store
from carm.memory.throttle import Throttle

CLASSES = 4
HERE = Path(__file__).parent


def numbered(n: int, begin: int = 0) -> dict[str, Any]:
    keys = np.arange(begin, begin + n)
    return samples(keys, keys % CLASSES)


def stored(directory: Path, n: int, **arguments: Any) -> Memory:
    with Memory(1, storage=directory, engine="preadv") as memory:
        memory.add(**numbered(n))
    return Memory(**({"storage": directory, "engine": "preadv", "gate": Random(1.0)} | arguments))


def feed(memory: Memory, n: int = 10) -> int:
    batch = memory.draw(n)
    return memory.feedback(batch, torch.zeros(len(batch), CLASSES))


def helper_of(memory: Memory) -> int:
    worker = memory._worker
    assert isinstance(worker, swap.ProcessWorker)
    return worker.process.pid


def gone(pid: int, seconds: float = 20) -> bool:
    """Whether the process ends in time (a zombie has ended)."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def flush_in_time(memory: Memory, seconds: float = 15) -> None:
    """`flush`, or a failure instead of a test that never ends."""
    errors: list[BaseException] = []

    def act() -> None:
        try:
            memory.flush()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        memory._closed = True  # ends the waiting, here and wherever else it would be closed
        thread.join(5)
        pytest.fail("flush waits for ever")
    if errors:
        raise errors[0]


def run(script: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own; it can import what tests can."""
    begin = f"import sys\nsys.path.insert(0, {str(HERE)!r})\n"
    command = [sys.executable, "-c", begin + textwrap.dedent(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


# -- the helper process dies -------------------------------------------------------------------------------------------


def test_a_killed_helper_is_replaced_and_its_swaps_are_dropped(tmp_path: Path) -> None:
    with stored(tmp_path, 200, slots=20, swap="process", throttle="100MB/s,200ms") as memory:
        feed(memory)
        memory.flush()
        assert feed(memory, 20) == 20
        assert memory._carousel is not None
        before = memory._carousel.outstanding
        os.kill(helper_of(memory), signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="worker died"):
            memory.flush()
        stats = memory.stats()
        assert stats["worker_restarts"] == 1
        assert stats["dropped"]["worker died"] == before == 20
        audit(memory)
        assert feed(memory, 20) == 20  # the slots can be swapped again, by the new helper
        memory.flush()
        assert memory.stats()["swapped"] == 30
        keys_of(memory.draw(20))
        audit(memory)


def test_a_killed_helper_is_noticed_by_a_training_loop(tmp_path: Path) -> None:
    with stored(tmp_path, 200, slots=20, swap="process") as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step = 0
        for kill in range(4):
            until = memory.stats()["swapped"] + 40
            while memory.stats()["swapped"] < until:
                feed(memory, 8)
                memory.add(**numbered(2, 1000 + 2 * step))
                step += 1
                audit(memory)
                time.sleep(0.001)
            feed(memory, 8)
            if kill < 3:
                os.kill(helper_of(memory), signal.SIGKILL)
        memory.flush()
        stats = memory.stats()
        assert stats["worker_restarts"] == 3
        assert stats["stored_samples"] == 200 + 2 * step
        audit(memory)
        assert memory.store is not None
        ids = memory.store.ids
        assert keys_of(memory.store.read(ids)).tolist() == [i if i < 200 else i + 800 for i in ids.tolist()]


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.15, 0.3])
def test_a_helper_killed_in_a_write_loses_nothing(tmp_path: Path, delay: float) -> None:
    """The write takes 0.2 s; it is sent again to the next helper, and stored once."""
    with Memory(10, storage=tmp_path, engine="preadv", swap="process", schema=FIXED, throttle="200kB/s") as memory:
        feed(memory)
        memory.add(**numbered(10))
        memory.flush()  # the helper is up
        memory.add(**numbered(600, 10))
        time.sleep(delay)
        os.kill(helper_of(memory), signal.SIGKILL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            memory.flush()
        audit(memory)
        assert memory.stats()["stored"] == memory.stats()["stored_samples"] == 610
    with Store(tmp_path, engine="preadv") as store:
        assert keys_of(store.read(np.arange(610))).tolist() == list(range(610))
        assert not [bad for _, bad in store.verify() if bad]


def test_a_killed_helper_where_warnings_are_errors(tmp_path: Path) -> None:
    """The write is sent again before the warning comes; who catches it can go on, and `flush` does not wait in vain."""
    with Memory(10, storage=tmp_path, engine="preadv", swap="process", schema=FIXED, throttle="100kB/s") as memory:
        memory.add(**numbered(10))
        memory.flush()  # the helper is up
        memory.add(**numbered(600, 10))
        os.kill(helper_of(memory), signal.SIGKILL)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(RuntimeWarning, match="worker died"):
                flush_in_time(memory)
            flush_in_time(memory)
        audit(memory)
        assert memory.stats()["stored"] == memory.stats()["stored_samples"] == 610


@pytest.mark.parametrize("kind", ["sync", "thread"])
def test_a_sample_larger_than_the_store_where_warnings_are_errors(tmp_path: Path, kind: str) -> None:
    """Who catches the warning can go on: the others are stored, and nothing is complained about twice."""
    arguments: dict[str, Any] = {"storage": tmp_path, "storage_capacity": "64KiB", "engine": "preadv", "queue": 2}
    with Memory(5, **arguments, swap=kind) as memory, warnings.catch_warnings():
        warnings.simplefilter("error")
        memory.add([b"small"] * 5, [0] * 5)
        memory.flush()

        def add_a_large_one() -> None:
            memory.add([b"small", bytes(70_000), b"small"], [0] * 3)
            memory.flush()

        with pytest.raises(UserWarning, match="larger than the store may be"):
            add_a_large_one()
        memory.add([b"small"] * 5, [0] * 5)
        memory.flush()
        assert memory.stats()["stored"] == 12 and memory.stats()["unstored"] == 1
        audit(memory, loose={6})


@pytest.mark.parametrize("kind", ["sync", "thread", "process"])
def test_the_worker_stays_with_its_store_when_the_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The worker opens the files when it has something to do; another store has the same relative path by then."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    with Memory(10, storage=tmp_path / "there" / "s", engine="preadv") as other:
        other.add(**numbered(20, 500))
    monkeypatch.chdir(tmp_path / "here")
    with Memory(10, storage="s", engine="preadv", swap=kind, schema=FIXED, gate=Random(1.0)) as memory:
        monkeypatch.chdir(tmp_path / "there")
        memory.add(**numbered(100))
        memory.flush()
        assert feed(memory) == 10
        memory.flush()
        assert memory.stats()["swapped"] == 10
        keys_of(memory.draw(10))
        audit(memory)
    for name, keys in (("here", range(100)), ("there", range(500, 520))):
        with Store(tmp_path / name / "s", engine="preadv") as store:
            assert keys_of(store.read(np.arange(len(keys)))).tolist() == list(keys)
            assert len(store) == len(keys)


def test_modules_in_the_current_directory_are_not_the_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit('this is not numpy')")
    monkeypatch.chdir(tmp_path)
    with Memory(10, storage=tmp_path / "s", engine="preadv", swap="process") as memory:
        memory.add(**numbered(30))
        memory.flush()
        assert memory.stats()["worker_restarts"] == 0


def test_a_worker_that_cannot_be_made_is_made_by_the_next_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no interpreter to start, or no more processes: the samples are not taken in, and nothing has begun."""
    with Memory(10, storage=tmp_path, engine="preadv", swap="process") as memory:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(tmp_path / "nothing"))
            for _ in range(2):
                with pytest.raises(FileNotFoundError):
                    memory.add(**numbered(20))
        assert memory.stats()["added"] == len(memory) == 0
        memory.add(**numbered(20))
        flush_in_time(memory)
        assert memory.stats()["stored_samples"] == 20
        audit(memory)


def test_a_helper_that_cannot_start_is_an_error_not_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(10, storage=tmp_path, engine="preadv", swap="process")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory.add(**numbered(300))
        with pytest.raises(WorkerError, match="in a row"):
            memory.flush()
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        memory.flush()  # as soon as it can be started, all is well
    assert memory.stats()["stored_samples"] == memory.stats()["added"]
    audit(memory)
    memory.close()


def test_the_helper_ends_when_the_training_process_is_killed(tmp_path: Path) -> None:
    script = """
        import os, signal, torch
        from test_memory_faults import *
        memory = stored(Path(sys.argv[1]), 100, slots=20, swap="process", throttle="1MB/s,50ms")
        feed(memory)
        print(helper_of(memory), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    out = run(script, str(tmp_path))
    assert out.returncode == -signal.SIGKILL, out.stderr
    assert gone(int(out.stdout))
    with Memory(20, storage=tmp_path, engine="preadv") as memory:  # the lock went with it
        assert memory.stats()["stored_samples"] == 100


def test_a_forked_child_does_not_keep_the_helper_of_a_killed_process(tmp_path: Path) -> None:
    """It has a copy of the pipe, so the helper would wait for more, and hold the lock, for as long as the child is."""
    script = """
        from test_memory_faults import *
        memory = stored(Path(sys.argv[1]), 100, slots=20, swap="process")
        feed(memory)
        memory.flush()
        child = os.fork()
        if not child:
            os.close(1)
            os.close(2)
            time.sleep(60)
            os._exit(0)
        print(helper_of(memory), child, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    out = run(script, str(tmp_path))
    assert out.returncode == -signal.SIGKILL, out.stderr
    helper, child = map(int, out.stdout.split())
    try:
        assert gone(helper, 5), "the helper is still there"
        assert not gone(child, 0.05)
        with Memory(20, storage=tmp_path, engine="preadv") as memory:
            assert memory.stats()["stored_samples"] == 100
    finally:
        os.kill(child, signal.SIGKILL)


def test_the_helper_ends_with_close(tmp_path: Path) -> None:
    memory = stored(tmp_path, 100, slots=20, swap="process")
    feed(memory)
    pid = helper_of(memory)
    memory.close()
    assert gone(pid, 1)


def test_the_thread_ends_with_close(tmp_path: Path) -> None:
    memory = stored(tmp_path, 100, slots=20, swap="thread")
    feed(memory)
    worker = memory._worker
    assert isinstance(worker, swap.ThreadWorker)
    thread = worker._thread
    assert thread.is_alive()
    memory.resize(10)
    assert not thread.is_alive()
    memory.close()
    assert not worker._thread.is_alive()


# -- the worker fails --------------------------------------------------------------------------------------------------


class Faulty:
    """Makes one function of the worker raise for a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.on = False
        original = getattr(swap.Executor, name)

        def wrapped(executor: Any, *arguments: Any) -> Any:
            if self.on:
                raise OSError(errno.EIO, "the device burns")
            return original(executor, *arguments)

        monkeypatch.setattr(swap.Executor, name, wrapped)


def _until_error(call: Any, seconds: float = 20) -> WorkerError:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            call()
        except WorkerError as error:
            return error
        time.sleep(0.002)
    raise AssertionError("the worker's error never reached the caller")


@pytest.mark.parametrize("kind", ["sync", "thread"])
@pytest.mark.parametrize("where", ["begin", "finish"])
def test_an_error_in_a_read_reaches_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, where: str
) -> None:
    with stored(tmp_path, 200, slots=20, swap=kind) as memory:
        fault = Faulty(monkeypatch, where)
        fault.on = True
        error = _until_error(lambda: feed(memory))
        assert "the device burns" in str(error)
        assert "Traceback" in str(error)
        fault.on = False
        audit(memory)
        stats = memory.stats()
        assert stats["worker_restarts"] >= 1
        assert stats["dropped"]["worker died"] >= 1
        feed(memory)
        memory.flush()
        assert memory.stats()["swapped"] > 0
        audit(memory)


@pytest.mark.parametrize("kind", ["sync", "thread"])
def test_an_error_in_a_write_reaches_the_caller_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with stored(tmp_path, 200, slots=20, swap=kind, write_batch=4) as memory:
        fault = Faulty(monkeypatch, "write")
        fault.on = True
        error = _until_error(
            lambda: memory.add(**numbered(50, 1000)) if not memory.stats()["added"] else memory.flush()
        )
        assert "the device burns" in str(error)
        audit(memory)
        with pytest.raises(WorkerError, match="the device burns"):
            memory.flush()
        assert memory.stats()["stream_samples"] == 50
        keys_of(memory.draw(20))
        fault.on = False
        memory.flush()
        audit(memory)
        assert memory.stats()["stored_samples"] == 250


@pytest.mark.parametrize("kind", ["sync", "thread"])
def test_close_with_a_device_that_fails_says_so_and_lets_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    memory = stored(tmp_path, 200, slots=20, swap=kind, write_batch=1000)
    memory.add(**numbered(50, 1000))
    fault = Faulty(monkeypatch, "write")
    fault.on = True
    with pytest.raises(WorkerError, match="the device burns"):
        memory.close()
    memory.close()
    with pytest.raises(CarmError, match="closed"):
        memory.draw(1)
    with Memory(20, storage=tmp_path, engine="preadv") as again:
        assert again.stats()["stored_samples"] == 200


def test_the_store_says_that_a_write_is_under_way(tmp_path: Path) -> None:
    """`memory.store` is there to be looked at; what changes it must wait for the memory's own writes."""
    with stored(tmp_path, 100, slots=10, swap="thread", throttle="20kB/s", write_batch=100) as memory:
        store = memory.store
        assert store is not None
        outside = next(int(store.index.ids[h]) for h in store.index.live().tolist() if store.index.sets.is_open(h))
        memory.add(**numbered(100, 1000))  # 72 bytes each: 0.36 s
        with pytest.raises(StoreError, match=r"a write .* is under way; call flush\(\) of its memory first"):
            store.delete([outside])
        memory.flush()
        store.delete([outside])
        audit(memory)
    with Store(tmp_path, engine="preadv") as store:
        assert len(store) == 199
        assert not [bad for _, bad in store.verify() if bad]


LABELS = Schema((Field("y", "int64"),))


def _about_to_compact(directory: Path) -> Memory:
    """A memory whose last write is done, and not yet heard of; when it is, the catalogue is to be made smaller."""
    memory = Memory(10, storage=directory, storage_capacity=4000, engine="preadv", schema=LABELS, write_batch=1000)
    for _ in range(12):
        memory.add(y=np.arange(1000) % 10)
        memory.flush()
    assert memory.store is not None and not memory.store.wants_compaction
    assert memory.store.buried + 1000 > len(memory.store) + 4096
    memory.add(y=np.arange(1000) % 10)
    worker = memory._worker
    assert isinstance(worker, swap.ThreadWorker)
    until = time.monotonic() + 20
    while worker._reports.empty() and time.monotonic() < until:
        time.sleep(0.002)
    return memory


def test_no_room_to_make_the_catalogue_smaller(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """That is housekeeping: it waits for better times, and `flush` for nothing."""
    with _about_to_compact(tmp_path) as memory:
        with contextlib.closing(sqlite3.connect(tmp_path / "catalogue.db", isolation_level=None)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))  # for the log it would take 160 kB
        try:
            flush_in_time(memory)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "cannot be made smaller now" in caplog.text
        memory.add(y=np.arange(1000) % 10)
        flush_in_time(memory)
        audit(memory)
        assert memory.stats()["worker_restarts"] == 0
        assert memory.stats()["stored"] == 14_000


def test_an_error_in_compaction_reaches_the_caller_once(tmp_path: Path) -> None:
    with _about_to_compact(tmp_path) as memory:
        with contextlib.closing(sqlite3.connect(tmp_path / "catalogue.db", isolation_level=None)) as db:
            db.execute("UPDATE commits SET crc = crc + 1 WHERE seq = (SELECT min(seq) FROM commits)")
        with pytest.raises(WorkerError, match="does not match its checksum"):
            flush_in_time(memory)
        flush_in_time(memory)  # it does not wait for a compaction that nobody makes
        memory.add(y=np.arange(1000) % 10)
        flush_in_time(memory)
        assert memory.stats()["stored"] == 14_000
        assert memory.stats()["worker_restarts"] == 1


def test_an_extent_file_that_cannot_be_read_reaches_the_caller(tmp_path: Path) -> None:
    """The real thing, in the helper process: the file is not there any more when it is opened."""
    with stored(tmp_path, 200, slots=20, swap="process") as memory:
        os.rename(tmp_path / extentfile.NAME, tmp_path / "away")
        error = _until_error(lambda: feed(memory))
        assert "Traceback" in str(error)
        assert extentfile.NAME in str(error)
        os.rename(tmp_path / "away", tmp_path / extentfile.NAME)
        feed(memory)
        memory.flush()
        assert memory.stats()["swapped"] >= 10
        audit(memory)


# -- damaged records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "thread", "process"])
def test_a_damaged_record_is_dropped_and_training_goes_on(tmp_path: Path, kind: str) -> None:
    with stored(tmp_path, 60, slots=20, swap=kind) as memory:
        store = memory.store
        assert store is not None
        assert memory._ram is not None
        outside = [h for h in store.index.live().tolist() if store.index.sets.is_open(h)][:10]
        with open(tmp_path / extentfile.NAME, "r+b") as file:
            for handle in outside:
                file.seek(int(store.index.offsets[handle]) + 5)
                file.write(b"\xff\x00\xff")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # of what another test left behind
            for _ in range(60):
                feed(memory, 10)
                memory.flush()
                keys_of(memory.draw(20))
                audit(memory)
        assert {w.category for w in caught} == {CorruptRecord}
        assert caught[0].filename == __file__, "the warning points at the library, not at the training loop"
        stats = memory.stats()
        assert stats["dropped"]["corrupt"] == stats["corrupt"] == 10
        assert stats["stored_samples"] == 50
        memory.add(**numbered(4, 1000))
    with Memory(60, storage=tmp_path, engine="preadv") as memory:
        assert memory.stats()["stored_samples"] == len(memory) == 54
        assert memory.stats()["corrupt"] == 0


@pytest.mark.parametrize("kind", ["sync", "thread"])
def test_a_damaged_record_where_warnings_are_errors(tmp_path: Path, kind: str) -> None:
    """The warning comes last: who catches it has a memory in which the other swaps of the order are done."""
    with stored(tmp_path, 60, slots=20, swap=kind) as memory:
        store = memory.store
        assert store is not None
        outside = [h for h in store.index.live().tolist() if store.index.sets.is_open(h)]
        with open(tmp_path / extentfile.NAME, "r+b") as file:
            for handle in outside[::2]:
                file.seek(int(store.index.offsets[handle]) + 5)
                file.write(b"\xff\x00\xff")
        told = 0
        with warnings.catch_warnings():
            warnings.simplefilter("error", CorruptRecord)
            for _ in range(40):
                try:
                    feed(memory, 10)
                    memory.flush()
                except CorruptRecord:
                    told += 1
                audit(memory)
                keys_of(memory.draw(20))
        assert told > 1
        assert memory.stats()["dropped"]["corrupt"] == memory.stats()["corrupt"] == len(outside[::2])
        assert memory.stats()["swapped"] > 100


def test_a_damaged_record_of_a_sample_in_ram_is_told_and_kept(tmp_path: Path) -> None:
    """Its copy in RAM is whole, and its slot still refers to it."""
    with stored(tmp_path, 60, slots=20, swap="sync") as memory:
        store, ram = memory.store, memory._ram
        assert store is not None and ram is not None
        slot = int(memory.slots[0])
        inside = int(ram.handles[slot])
        outside = next(h for h in store.index.live().tolist() if store.index.sets.is_open(h))
        with open(tmp_path / extentfile.NAME, "r+b") as file:
            for handle in (inside, outside):
                file.seek(int(store.index.offsets[handle]) + 5)
                file.write(b"\xff\x00\xff")
        both = store.index.ids[[inside, outside]]
        with pytest.warns(CorruptRecord), pytest.raises(StoreError, match="do not match their checksums"):
            store.read(both)
        assert memory.stats()["corrupt"] == 1
        assert int(ram.handles[slot]) == inside and int(both[0]) in store.ids
        audit(memory)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CorruptRecord)
            for _ in range(60):  # until it has left RAM, and was found damaged on its way back
                feed(memory, 10)
                audit(memory)
        assert memory.stats()["corrupt"] == 2


def test_damage_found_when_opening(tmp_path: Path) -> None:
    with Memory(20, storage=tmp_path, engine="preadv") as memory:
        memory.add(**numbered(20))
        memory.flush()
        assert memory.store is not None
        offset = int(memory.store.index.offsets[3])
    with open(tmp_path / extentfile.NAME, "r+b") as file:
        file.seek(offset)
        file.write(b"\xff\x00\xff")
    with pytest.warns(CorruptRecord, match="checksum"):
        memory = Memory(20, storage=tmp_path, engine="preadv")
    with memory:
        assert len(memory) == 19
        keys_of(memory.draw(20))
        audit(memory)


# -- no room on the device ---------------------------------------------------------------------------------------------

BIG = Schema((Field("x", "uint8", (3, 32, 32)), *FIXED.fields[1:]))


def big(n: int, begin: int = 0) -> dict[str, Any]:
    keys = np.arange(begin, begin + n)
    return samples(keys, keys % CLASSES, BIG)


def test_a_full_device_evicts_and_goes_on(tmp_path: Path) -> None:
    """No file may pass 5 MB: about 1400 samples."""
    script = """
        import resource
        from test_memory_faults import *
        resource.setrlimit(resource.RLIMIT_FSIZE, (5_000_000, 5_000_000))
        for kind in ("sync", "thread", "process"):
            directory = Path(sys.argv[1]) / kind
            memory = Memory(50, storage=directory, engine="preadv", swap=kind, write_batch=64, gate=Random(1.0))
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                warnings.simplefilter("ignore", ResourceWarning)  # of what another test left behind
                for step in range(40):
                    memory.add(**big(64, 64 * step))
                    batch = memory.draw(20)
                    assert keys_of(batch, BIG).tolist() == batch.ids.tolist()
                    memory.feedback(batch, torch.zeros(len(batch), CLASSES))
                memory.flush()
            assert [w for w in caught if "device is full" in str(w.message)], caught
            stats = memory.stats()
            assert stats["stored"] + stats["unstored"] == stats["added"] == 64 * 40, stats
            assert 1000 < stats["stored_samples"] < 1400, stats
            assert stats["evicted"] == 2560 - stats["stored_samples"], stats
            ids = memory.store.ids
            assert keys_of(memory.store.read(ids), BIG).tolist() == ids.tolist()
            assert len(memory) == 50
            audit(memory)
            memory.close()
            with Memory(50, storage=directory, engine="preadv") as memory:
                assert len(memory) == 50
                assert memory.stats()["stored_samples"] == stats["stored_samples"]
        print("good")
    """
    out = run(script, str(tmp_path))
    assert out.stdout == "good\n", out.stdout + out.stderr


def test_a_device_too_small_for_ram(tmp_path: Path) -> None:
    """More slots than the device holds samples: what finds no room is in RAM only, and is counted."""
    script = """
        import resource
        from test_memory_faults import *
        memory = Memory(1500, storage=sys.argv[1], engine="preadv", swap="sync", schema=BIG, select=Ring())
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
        warnings.simplefilter("ignore")
        full = 0
        for step in range(15):
            try:
                memory.add(**big(64, 64 * step))
            except StoreFull as error:
                assert "room" in str(error)
                full += 1
        batch = memory.draw(1500)
        assert len(batch) == 960
        assert keys_of(batch, BIG).tolist() == batch.ids.tolist()
        stats = memory.stats()
        assert stats["unstored"] > 300, stats
        assert stats["stored"] + stats["unstored"] == 960, stats
        ids = memory.store.ids
        assert len(ids) > 400
        assert keys_of(memory.store.read(ids), BIG).tolist() == ids.tolist()
        memory.close()
        print("good")
    """
    out = run(script, str(tmp_path))
    assert out.stdout == "good\n", out.stdout + out.stderr


def test_store_full_is_an_error_that_leaves_the_memory_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with stored(tmp_path, 100, slots=20, swap="sync") as memory:
        assert memory.store is not None

        def full(*_: Any) -> Any:
            raise StoreFull("no room")

        monkeypatch.setattr(memory.store, "plan", full)
        with pytest.raises(StoreFull):
            memory.add(**numbered(5, 1000))
        assert memory.stats()["unstored"] == 5
        monkeypatch.undo()
        memory.add(**numbered(5, 1005))
        assert memory.stats()["stored_samples"] == 105
        feed(memory)
        assert len(memory.draw(20)) == 20
        audit(memory, loose=set(range(100, 105)))


# -- interrupts, exits and forks ---------------------------------------------------------------------------------------


class Interrupter(threading.Thread):
    """Presses Ctrl-C now and then, at any point of whatever the main thread is doing, while `armed`."""

    def __init__(self, seed: int) -> None:
        super().__init__(daemon=True)
        self.rng = random.Random(seed)
        self.armed = threading.Event()
        self.stop = False
        self.start()

    def run(self) -> None:
        while not self.stop:
            if self.armed.wait(0.1):
                time.sleep(0.003 * self.rng.random())
                if self.armed.is_set():
                    self.armed.clear()
                    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("kind", ["sync", "thread", "process"])
def test_ctrl_c_leaves_a_memory_that_can_be_used_on(tmp_path: Path, kind: str) -> None:
    """Whatever the interrupt hits, nothing is half done, nothing waits for ever, and nothing is lost."""
    interrupter = Interrupter(5)
    with stored(tmp_path, 100, slots=20, swap=kind, write_batch=8) as memory, warnings.catch_warnings():
        warnings.simplefilter("error")
        added, interrupts = 0, 0
        until = time.monotonic() + 6
        while interrupts < 150 and (interrupts <= 30 or time.monotonic() < until):
            try:
                interrupter.armed.set()
                while True:
                    feed(memory, 8)
                    memory.add(**numbered(3, 1000))
                    if memory.stats()["added"] % 7 == 0:
                        memory.flush()
                    if memory.stats()["added"] % 11 == 0:
                        memory.resize(15 + added % 10)
                        added += 1
            except KeyboardInterrupt:
                interrupts += 1
            audit(memory)
            keys_of(memory.draw(20))
        interrupter.stop = True
        assert interrupts > 30
        memory.flush()
        audit(memory)
        stats = memory.stats()
        assert stats["stored_samples"] == 100 + stats["added"]
        assert stats["worker_restarts"] == 0


def test_memories_left_open_at_exit_are_closed_with_a_warning(tmp_path: Path) -> None:
    script = """
        from test_memory_faults import *
        keep = []
        for kind in ("sync", "thread", "process"):
            memory = stored(Path(sys.argv[1]) / kind, 100, slots=20, swap=kind, throttle="1MB/s,20ms")
            feed(memory)
            memory.add(**numbered(20, 1000))
            keep.append(memory)
        keep.append(keep)  # a cycle: nothing is freed before the very end
    """
    begun = time.monotonic()
    out = run(script, str(tmp_path))
    assert out.returncode == 0, out.stderr
    assert out.stderr.count("was not closed") == 3
    assert "Traceback" not in out.stderr
    assert time.monotonic() - begun < 60
    for kind in ("sync", "thread", "process"):
        with Memory(20, storage=tmp_path / kind, engine="preadv") as memory:
            assert memory.stats()["stored_samples"] == 120


class Collecting(Throttle):
    """A device on which the garbage collector runs, in the middle of a write: it may run in any thread."""

    def __init__(self) -> None:
        super().__init__(1e9)
        self.go, self.collected = threading.Event(), threading.Event()

    def charge(self, size: int) -> float:
        if self.go.wait(20) and not self.collected.is_set():
            gc.collect()
            self.collected.set()
        return super().charge(size)


def _collected_in_its_worker(directory: Path) -> None:
    """A memory that nobody has any more: 30 samples are being written, 30 wait; then its worker collects it."""
    device = Collecting()
    collecting = gc.isenabled()
    gc.disable()
    try:
        memory = Memory(10, storage=directory, engine="preadv", swap="thread", throttle=device, write_batch=20)
        memory.add(**numbered(30))
        memory.add(**numbered(30, 30))
        del memory
        device.go.set()
        assert device.collected.wait(10), "it waits for itself"
    finally:
        if collecting:
            gc.enable()


def test_a_memory_that_is_collected_in_its_own_worker_does_not_wait_for_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """There it cannot wait for the worker, which is the one that would wait."""
    _collected_in_its_worker(tmp_path)
    assert "was not closed" in caplog.text
    until = time.monotonic() + 10
    while True:
        with contextlib.suppress(StoreLocked), Store(tmp_path, engine="preadv"):
            break
        assert time.monotonic() < until, "it was never closed"
        time.sleep(0.01)


def test_a_memory_that_is_collected_in_its_own_worker_writes_everything(tmp_path: Path) -> None:
    _collected_in_its_worker(tmp_path)
    until = time.monotonic() + 10
    while True:
        with contextlib.suppress(StoreLocked), Store(tmp_path, engine="preadv") as store:
            assert keys_of(store.read(np.arange(60))).tolist() == list(range(60))
            break
        assert time.monotonic() < until, "it was never closed"
        time.sleep(0.01)


def test_an_exception_in_the_loop_closes_the_memory(tmp_path: Path) -> None:
    def train() -> float:
        with stored(tmp_path, 100, slots=20) as memory:
            memory.add(**numbered(20, 1000))
            return 1 / 0

    with pytest.raises(ZeroDivisionError):
        train()
    with Memory(20, storage=tmp_path, engine="preadv") as memory:
        assert memory.stats()["stored_samples"] == 120


def test_a_forked_child_is_told_and_does_no_harm(tmp_path: Path) -> None:
    script = """
        from test_memory_faults import *
        for kind in ("sync", "thread", "process"):
            directory = Path(sys.argv[1]) / kind
            memory = stored(directory, 100, slots=20, swap=kind, write_batch=1000)
            memory.add(**numbered(30, 1000))
            feed(memory)
            reader = memory.reader()
            pid = os.fork()
            if pid == 0:
                told = 0
                calls = (lambda: memory.draw(3), lambda: memory.add(**numbered(5, 5000)), memory.flush, memory.refill,
                         memory.state_dict, memory.reader, lambda: memory.resize(5), lambda: feed(memory),
                         lambda: list(memory.bundle()), lambda: memory.load_state_dict({}))
                for call in calls:
                    try:
                        call()
                    except CarmError as error:
                        assert "memory.reader()" in str(error), error
                        told += 1
                keys_of(reader.read(reader.filled()))
                memory.close()
                del memory
                sys.exit(0 if told == len(calls) else 3)  # a full interpreter exit, finalisers and all
            assert os.waitpid(pid, 0)[1] == 0
            feed(memory)
            memory.add(**numbered(30, 1030))
            memory.flush()
            audit(memory)
            assert memory.stats()["stored_samples"] == 160
            keys_of(memory.draw(20))
            memory.close()
            with Store(directory, engine="preadv") as store:
                assert len(store) == 160
                assert not [bad for _, bad in store.verify() if bad]
        print("good")
    """
    out = run(script, str(tmp_path))
    assert out.stdout == "good\n", out.stdout + out.stderr


def test_a_memory_is_not_copied_or_pickled(tmp_path: Path) -> None:
    import copy
    import pickle

    with stored(tmp_path, 100, slots=20) as memory:
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(CarmError, match=r"memory\.reader"):
                call(memory)


def test_two_memories_cannot_have_one_store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with stored(tmp_path, 100, slots=20) as memory:
        with pytest.raises(CarmError, match="open"):
            Memory(20, storage=tmp_path)
        assert len(memory.draw(5)) == 5
    assert "not closed" not in caplog.text


@pytest.mark.parametrize("kind", ["thread", "sync"])
def test_ctrl_c_while_feedback_sends_what_has_waited_long_enough(tmp_path: Path, kind: str) -> None:
    """Steps of a quarter of a second: it is `feedback` that finds the stream buffer due."""
    with stored(tmp_path, 40, slots=10, swap=kind, write_batch=1000) as memory:
        memory.flush()
        intake = memory._intake
        assert intake is not None
        intake.patience, send = 0.01, intake._send

        def interrupted(order: Any) -> None:
            intake._send = send
            os.kill(os.getpid(), signal.SIGINT)  # just before it is sent
            send(order)

        memory.add(**numbered(20, 100))
        time.sleep(0.02)
        intake._send = interrupted
        with pytest.raises(KeyboardInterrupt):
            feed(memory, 4)
        done = threading.Thread(target=memory.flush, daemon=True)
        done.start()
        done.join(30)
        assert not done.is_alive(), "flush waits for a write that was never sent"
        audit(memory)
        assert memory.stats()["stored"] == memory.stats()["added"] == 20
        assert memory.stats()["stored_samples"] == 60


# -- a device that fails for a moment ----------------------------------------------------------------------------------


@contextlib.contextmanager
def failing_reads(engine: str) -> Any:
    """The device reports an error for whatever is read; the file is as it was."""
    with pytest.MonkeyPatch.context() as patch:

        def fails(*_: Any) -> Any:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(os, "pread", fails)
        if engine == "preadv":
            patch.setattr(os, "preadv", fails)
        else:
            wait = ring.Ring.wait_rows
            patch.setattr(ring.Ring, "wait_rows", lambda self, n, size: wait(self, n, size) & False)
        yield


@pytest.mark.parametrize("kind", ["thread", "sync"])
@pytest.mark.parametrize("engine", ["preadv", "aio"])
def test_a_read_error_costs_no_samples(tmp_path: Path, engine: str, kind: str) -> None:
    with stored(tmp_path, 200, slots=20, swap=kind, engine=engine) as memory:

        def rehearse(times: int) -> None:
            for _ in range(times):
                feed(memory, 20)
                memory.flush()

        with failing_reads(engine), pytest.warns(RuntimeWarning, match=r"cannot be read now: .* They are kept"):
            rehearse(8)
        stats = memory.stats()
        assert stats["swapped"] == 0 and stats["dropped"]["unreadable"] == stats["ordered"] >= 100
        assert stats["corrupt"] == stats["dropped"]["corrupt"] == 0
        assert stats["stored_samples"] == 200
        audit(memory)
        rehearse(5)
        assert memory.stats()["swapped"] == 100, "it goes on when the device does"
        audit(memory)
    with Store(tmp_path) as store:
        assert len(store) == 200 and not [bad for _, bad in store.verify() if bad]


def test_a_device_that_stutters_while_a_memory_opens(tmp_path: Path) -> None:
    stored(tmp_path, 100, slots=1).close()
    with failing_reads("preadv"), pytest.warns(RuntimeWarning, match="They are kept"):
        memory = Memory(50, storage=tmp_path, engine="preadv", gate=Random(1.0))
    with memory:
        assert len(memory) == 0 and memory.stats()["stored_samples"] == 100
        audit(memory)
        assert memory.refill() == 50
        audit(memory)
        assert memory.store is not None
        elsewhere = np.setdiff1d(memory.store.ids, memory.take(memory.slots).ids)[:3]
        with failing_reads("preadv"), pytest.raises(StoreError, match="cannot be read now: the device reports"):
            memory.store.read(elsewhere)
        assert memory.store.read(elsewhere)["y"].tolist() == (elsewhere % CLASSES).tolist()


# -- readers while everything is on order ------------------------------------------------------------------------------


def test_a_reader_never_finds_a_slot_empty_that_was_not(tmp_path: Path) -> None:
    """Slow storage, as many swaps under way as may be, and samples that come in meanwhile: they find room of their own,
    so no slot is emptied before it is filled again."""
    with stored(tmp_path, 400, slots=64, throttle="100MB/s,300ms", queue=16, write_batch=10**6) as memory:
        reader, slots = memory.reader(), memory.slots
        assert len(slots) == 64
        child = os.fork()
        if not child:
            code = 1
            with contextlib.suppress(BaseException):
                for _ in range(600):
                    reader.read(slots)
                code = 0
            os._exit(code)
        deepest, ended = 0, (0, 0)
        while not ended[0]:
            feed(memory, 32)
            deepest = max(deepest, memory.stats()["queue_depth"])
            memory.add(**numbered(16, 1000))
            ended = os.waitpid(child, os.WNOHANG)
        assert os.waitstatus_to_exitcode(ended[1]) == 0, "a slot was empty"
        assert deepest == 16
        assert memory._judge is not None and memory._carousel is not None
        memory._judge.forget()


def test_helpers_that_cannot_be_started_leave_no_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    with Memory(10, storage=tmp_path, swap="process", engine="preadv") as memory:
        with monkeypatch.context() as patch:
            patch.setattr(swap.subprocess, "Popen", fails)
            counts = []
            for _ in range(4):
                with pytest.raises(OSError, match="temporarily"):
                    memory.add(**numbered(10))
                gc.collect()
                counts.append(descriptors())
            assert counts[1] == counts[-1]
        memory.add(**numbered(10))
        memory.flush()
        assert memory.stats()["stored"] == 10
