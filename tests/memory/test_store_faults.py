"""The store when things go wrong: a full device, damaged files, other processes. Real files and processes
throughout."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import pickle
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered import FIXED, LARGE, VARIABLE, check, check_index, samples

from carm.memory.aio import DEPTH
from carm.memory.catalogue import ENTRY, Catalogue
from carm.memory.errors import CorruptRecord, StoreError, StoreFull, StoreLocked
from carm.memory.orders import WriteOrder, perform
from carm.memory.record import Field, Schema
from carm.memory.ring import Ring
from carm.memory.store import Store

HERE = os.path.dirname(__file__)
both = pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "store"


def living(store: Store) -> list[int]:
    return store.ids.tolist()


def fill(store: Store, n: int, batch: int = 64) -> list[int]:
    out: list[int] = []
    for at in range(0, n, batch):
        ids = range(store.next_id, store.next_id + min(batch, n - at))
        out += store.append(samples(ids, store.schema or FIXED)).tolist()
    return [i for i in out if i >= 0]


def check_all(store: Store) -> None:
    ids = living(store)
    check(store.read(ids), ids, store.schema or FIXED)
    assert all(not bad for _, bad in store.verify())
    check_index(store)


def in_child(act: Callable[[], Any]) -> None:
    """Run `act` in a forked process, and fail if it fails. What it does to itself (limits, users) ends with it."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            act()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@contextlib.contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# -- no room -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def mounted(where: Path, kind: str, size: int, *, sector: int = 512) -> Iterator[Path]:
    """A small file system at `where`, on a device with sectors of so many bytes; skips the test where that is not
    allowed."""
    if os.geteuid() or not shutil.which("mount"):
        pytest.skip("only root may mount a file system")
    where.mkdir()
    with contextlib.ExitStack() as stack:
        if kind == "tmpfs":
            command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs"]
        else:
            if not shutil.which("mkfs.ext4"):
                pytest.skip("there is no mkfs.ext4")
            image = where.with_suffix(".img")
            with image.open("wb") as file:
                file.truncate(size)
            device = _run("losetup", "--sector-size", str(sector), "--find", "--show", str(image)).strip()
            stack.callback(_run, "losetup", "--detach", device)
            _run("mkfs.ext4", "-q", "-F", "-m", "0", "-b", str(max(sector, 1024)), device)
            command = ["mount", device]
        _run(*command, str(where))
        stack.callback(_run, "umount", "-l", str(where))
        yield where


def _run(*command: str) -> str:
    """What a command prints; skips the test where it is not permitted."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


@pytest.mark.parametrize(
    ("kind", "schema", "capacity", "engine"),
    [
        pytest.param("tmpfs", LARGE, None, "auto", id="tmpfs-fixed-unlimited"),
        pytest.param("tmpfs", VARIABLE, "1GiB", "auto", id="tmpfs-variable-bytes"),
        pytest.param("ext4", LARGE, 10**6, "preadv", id="ext4-fixed-samples"),
        pytest.param("ext4", VARIABLE, None, "preadv", id="ext4-variable-unlimited"),
        pytest.param("ext4", LARGE, 10**6, "aio", id="ext4-fixed-samples-direct"),
        pytest.param("ext4", VARIABLE, None, "aio", id="ext4-variable-unlimited-direct"),
    ],
)
def test_a_full_device(tmp_path: Path, kind: str, schema: Schema, capacity: Any, engine: str) -> None:
    """The store goes on with the room that it has, says so once, and loses nothing that it does not evict."""
    with mounted(tmp_path / "device", kind, 16 << 20) as device:
        store = Store(device / "s", schema=schema, capacity=capacity, engine=engine)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # of what another test left behind
            while not store.evicted:
                fill(store, 256, batch=256)
                assert len(store) == store.next_id or store.evicted
            fill(store, 1500, batch=256)
        assert ["the device is full at" in str(w.message) for w in caught] == [True], [str(w.message) for w in caught]
        assert caught[0].filename == __file__
        size = os.path.getsize(device / "s" / "extents.dat")
        assert size > 8 << 20, "most of the device could be used"
        assert store.index.live_bytes > 0.7 * size
        check_all(store)
        before = living(store)
        store.close()
        with Store(device / "s", capacity=capacity) as store:
            assert living(store) == before
            check_all(store)


@both
def test_a_device_with_large_sectors(tmp_path: Path, schema: Schema) -> None:
    """Extents are multiples of 512 bytes, and such a device writes no less than 4096 without the page cache."""
    with mounted(tmp_path / "device", "ext4", 32 << 20, sector=4096) as device:
        with Store(device / "s", schema=schema, capacity=700, engine="aio") as store:
            assert store.file is not None and store.file._direct >= 0
            fill(store, 2000, batch=256)
            assert len(store) == 700
            assert store.file._direct < 0, "it has refused, and is not asked again"
            check_all(store)
            before = living(store)
        with Store(device / "s", capacity=700, engine="aio") as store:
            assert living(store) == before
            check_all(store)


def test_a_device_that_others_have_filled(tmp_path: Path) -> None:
    """Not even the catalogue can grow: StoreFull, everything still there; and all is well once there is room again."""
    with mounted(tmp_path / "device", "tmpfs", 12 << 20) as device, Store(device / "s", schema=LARGE) as store:
        fill(store, 300)
        ballast = device / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(StoreFull, match="free some"):
                fill(store, 50_000, batch=256)
        check_all(store)
        assert len(store) >= 200
        before = living(store)
        ballast.unlink()
        new = fill(store, 64)
        assert new and set(new) <= set(living(store))
        check_all(store)
        assert len(set(before) - set(living(store))) <= 3 * 64
        store.close()
        with Store(device / "s") as store:
            check_all(store)
            kept = living(store)
            grown = fill(store, 1000)  # reopened, it uses the room that there is
            assert len(grown) == 1000 and living(store) == kept + grown


def test_no_room_for_a_new_store(tmp_path: Path) -> None:
    with mounted(tmp_path / "device", "tmpfs", 64 << 10) as device:
        with contextlib.suppress(OSError):
            (device / "ballast").write_bytes(bytes(64 << 10))
        with pytest.raises(StoreError, match=r"full|No space"):
            Store(device / "s", schema=FIXED)
        (device / "ballast").unlink()


@pytest.mark.parametrize("schema", [LARGE, VARIABLE], ids=["fixed", "variable"])
def test_a_file_size_limit(base: Path, schema: Schema) -> None:
    """RLIMIT_FSIZE, as a batch system may set it, is a full device too."""

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, 5 << 20))
        with Store(base, schema=schema) as store, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ResourceWarning)  # of what another test left behind
            while not store.evicted:
                fill(store, 256, batch=256)
            fill(store, 1000, batch=256)
            assert "the device is full at" in str(caught[0].message) and len(caught) == 1
            assert 4 << 20 < os.path.getsize(base / "extents.dat") <= 5 << 20
            check_all(store)

    in_child(child)
    with Store(base, schema=schema) as store:
        check_all(store)
        before = len(store)
        fill(store, 1000)
        assert len(store) == before + 1000


def test_a_file_size_limit_that_the_catalogue_meets_first(base: Path) -> None:
    """SQLite calls it an I/O error, as it does with a quota."""

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (128 << 10, 128 << 10))
        with contextlib.closing(Catalogue(base)) as catalogue:
            catalogue.create(FIXED)
            entries = np.zeros(100, ENTRY)

            def commit_many() -> None:
                for seq in range(1, 200):
                    entries["id"] = np.arange(100) + 100 * seq
                    catalogue.commit(seq, entries, np.zeros(0, np.int64))

            with pytest.raises(OSError, match="no room for the catalogue") as caught:
                commit_many()
            assert caught.value.errno == errno.ENOSPC
            assert len(catalogue.load().entries) >= 500

    base.mkdir()
    in_child(child)


def test_full_with_a_checkpoint(tmp_path: Path) -> None:
    """What is kept for a checkpoint is given up before samples that are alive."""
    with mounted(tmp_path / "device", "tmpfs", 12 << 20) as device, Store(device / "s", schema=LARGE) as store:
        fill(store, 1600, batch=256)
        store.checkpoint()
        store.delete(living(store)[:800])
        assert store.past.retained > 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while not store._device_full:
                fill(store, 256, batch=256)
        assert store.past.retained == 0
        fill(store, 1000, batch=256)
        check_all(store)
        assert len(store) > 1800


def test_an_interrupt_while_writing(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come at any moment, also after the commit; the store must not be confused, now or when it is
    reopened."""
    with Store(base, schema=FIXED, capacity=50) as store:
        fill(store, 50)
        assert store.catalogue is not None and store.file is not None
        for victim, name, late in (
            (store.file, "write", False),
            (store.file, "write", True),
            (store.catalogue, "commit", False),
            (store.catalogue, "commit", True),
        ):
            before, real = living(store), getattr(victim, name)

            def interrupted(*args: Any, real: Any = real, late: bool = late, **more: Any) -> None:
                if late:
                    real(*args, **more)
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                patch.setattr(victim, name, interrupted)
                with pytest.raises(KeyboardInterrupt):
                    fill(store, 8)
            assert living(store) == before
            assert all(store.index.sets.is_open(h) for h in store.index.live().tolist())
            check_all(store)
            if late:
                fill(store, 8)
                check_all(store)
        patch.undo()
        before = living(store)
    with Store(base, capacity=50) as store:
        assert living(store) == before
        check_all(store)


@pytest.mark.parametrize("step", ["plan", "confirm"])
def test_ctrl_c_between_the_steps_of_an_append(base: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a write is planned and not begun, or done and not confirmed."""
    with Store(base, schema=FIXED, capacity=50) as store:
        fill(store, 50)
        real = getattr(store, step)

        def pressed(*args: Any) -> Any:
            out = real(*args) if step == "plan" else None
            os.kill(os.getpid(), signal.SIGINT)
            return out if step == "plan" else real(*args)

        with monkeypatch.context() as patch:
            patch.setattr(store, step, pressed)
            with pytest.raises(KeyboardInterrupt):
                fill(store, 8)
        fill(store, 8)
        assert store.index.sets.are_open(store.index.live()).all()
        check_all(store)


@pytest.mark.parametrize("engine", ["aio", "mapped", "preadv"])
def test_an_interrupt_while_reading(base: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel or a thread still reads for the call that was broken off does not get in the way of others."""

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with Store(base, schema=VARIABLE, engine=engine) as store:
        fill(store, 60)
        try:
            store.read([0])
        except ValueError as error:
            pytest.skip(str(error))
        for _ in range(DEPTH + 2):
            with monkeypatch.context() as patch:
                patch.setattr(store.engine, "finish", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    store.read(range(60))
            check(store.read([7, 3]), [7, 3], VARIABLE)
        check_all(store)


def test_no_room_to_make_the_catalogue_smaller(base: Path) -> None:
    """Merging is housekeeping: the samples are safe without it, so `settle` and `close` do not fail for it."""
    with Store(base, schema=Schema((Field("y", "int64"),)), capacity=4000) as store:
        for _ in range(15):
            store.append({"y": np.arange(1000) % 10})
        assert store.wants_compaction and store.catalogue is not None
        before = living(store)
        store.catalogue.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with file_limit(64 << 10):  # the log must not become longer
            store.settle()
        assert living(store) == before
        assert store.catalogue.load().buried > 4096, "there was room all the same"
    with Store(base, capacity=4000) as store:
        assert living(store) == before


class _Stop:
    """The extent file, but the process dies as soon as the data is written."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, *args: Any) -> None:
        self.file.write(*args)
        raise KeyboardInterrupt


def _planned(store: Store, n: int) -> WriteOrder:
    ids = store.take_ids(n)
    return store.plan((store.schema or FIXED).pack(samples(ids, store.schema or FIXED)), ids)


def test_a_write_that_nobody_heard_of_and_then_a_crash(base: Path) -> None:
    """The first order was carried out, but its worker did not live to say so. The second gets the same extents, and the
    process dies when the data is there and the commit is not: the samples of the first must not come back with the data
    of the second."""
    with Store(base, schema=FIXED, capacity=20) as store:
        fill(store, 20)
        first = _planned(store, 5)
        perform(first, store.file, store.catalogue)  # type: ignore[arg-type]
        store.fail(first)
        second = _planned(store, 5)
        assert set(second.births["offset"].tolist()) == set(first.births["offset"].tolist())
        with pytest.raises(KeyboardInterrupt):
            perform(second, _Stop(store.file), store.catalogue)  # type: ignore[arg-type]
        shutil.copytree(base, base.with_name("crashed"))
        store.fail(second)
    with Store(base.with_name("crashed"), capacity=20) as store:
        assert living(store) == list(range(20))
        check_all(store)


def test_deaths_that_were_due_before_a_write_that_failed(base: Path) -> None:
    """The first order fails before those have died whose room it was to have. That room is given to the second."""
    with Store(base, schema=FIXED, capacity="16384") as store:
        fill(store, 28, batch=4)
        first = _planned(store, 12)
        assert len(first.before), "there was room for all without a death"
        store.fail(first)
        second = _planned(store, 12)
        assert set(first.before.tolist()) <= set(second.before.tolist())
        with pytest.raises(KeyboardInterrupt):
            perform(second, _Stop(store.file), store.catalogue)  # type: ignore[arg-type]
        shutil.copytree(base, base.with_name("crashed"))
        store.fail(second)
        check_all(store)
        left = living(store)
    for directory in (base, base.with_name("crashed")):
        with Store(directory, capacity="16384") as store:
            assert living(store) == left
            check_all(store)


def test_names_are_synced_before_anything_is_acknowledged(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file whose name was not synced is not there after a power cut, however well its contents were."""
    synced: list[tuple[str, set[str]]] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        real(fd)
        if os.path.isdir(path):
            synced.append((path, set(os.listdir(path))))

    monkeypatch.setattr(os, "fsync", fsync)
    directory = base / "a" / "b"
    with Store(directory, schema=FIXED) as store:
        fill(store, 1)
    for parent, name in ((base.parent, "store"), (base, "a"), (base / "a", "b")):
        assert any(path == str(parent) and name in names for path, names in synced), f"{parent}/{name} was not synced"
    for name in ("catalogue.db", "extents.dat"):
        assert any(path == str(directory) and name in names for path, names in synced), f"{name} was not synced"
    synced.clear()
    with Store(directory) as store:
        fill(store, 1)
    assert synced == [], "nothing new, nothing to sync"


@pytest.mark.parametrize("engine", ["aio", "preadv"])  # past the page cache, and through it
@pytest.mark.parametrize("scattered", [True, False])
def test_data_is_synced_before_it_is_committed(
    base: Path, monkeypatch: pytest.MonkeyPatch, engine: str, scattered: bool
) -> None:
    events: list[str] = []

    def spy(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def spied(*args: Any, **more: Any) -> Any:
            out = real(*args, **more)
            events.append(name)
            return out

        monkeypatch.setattr(owner, name, spied)

    with Store(base, schema=FIXED, engine=engine) as store:
        fill(store, 40)
        if scattered:
            store.delete(np.arange(0, 40, 2))
        for name in ("pwrite", "fdatasync"):
            spy(os, name)
        spy(Ring, "wait")
        spy(store.catalogue, "commit")
        fill(store, 20)
    assert events == ["wait" if scattered else "pwrite", "fdatasync", "commit"]


# -- damaged data ------------------------------------------------------------------------------------------------------


def _flip(base: Path, store: Store, sample: int, at: int = 9) -> None:
    """Flip a bit of a stored sample behind the store's back, and behind the page cache's."""
    (handle,) = store.index.find([sample]).tolist()
    with (base / "extents.dat").open("r+b") as file:
        file.seek(int(store.index.offsets[handle]) + at)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 0x10]))
        file.flush()
        os.fsync(file.fileno())


@both
@pytest.mark.parametrize("engine", ["aio", "mapped", "preadv"])
def test_a_flipped_bit(base: Path, schema: Schema, engine: str) -> None:
    try:
        store = Store(base, schema=schema, engine=engine)
        fill(store, 60)
        store.read([0])
    except ValueError as error:
        pytest.skip(str(error))
    _flip(base, store, 17)
    _flip(base, store, 40)
    assert [bad for _, bad in store.verify(batch=20)] == [[17], [], [40]]
    assert len(store) == 60 and store.corrupt == 0, "verify drops nothing"
    _, _, ok = store.fetch(store.index.find([16, 17, 18]))
    assert ok.tolist() == [True, False, True]
    with (
        pytest.warns(CorruptRecord, match=r"samples \[17\] do not match their checksums; they are dropped") as caught,
        pytest.raises(StoreError, match=r"samples \[17\].*cannot be read"),
    ):
        store.read([16, 17, 17, 18])
    assert caught[0].filename == __file__
    assert store.corrupt == 1 and len(store) == 59
    with pytest.warns(CorruptRecord, match="40"):
        store.discard(store.index.find([40]).tolist())
    assert store.corrupt == 2
    with pytest.raises(KeyError, match="17"):
        store.read([17])
    check_all(store)
    ids = fill(store, 10)  # life goes on, and the room is used again
    check_all(store)
    store.close()
    with Store(base) as store:
        assert living(store) == [i for i in range(60) if i not in (17, 40)] + ids
        assert store.corrupt == 0
        check_all(store)


def test_dropped_samples_stay_dropped_even_if_nothing_else_happens(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        fill(store, 10)
        _flip(base, store, 3)
        with pytest.warns(CorruptRecord), pytest.raises(StoreError):
            store.read([3])
    with Store(base) as store:
        assert living(store) == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_flipped_bit_seen_by_a_reader(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        fill(store, 10)
        _flip(base, store, 3)
    with Store(base, readonly=True) as store:
        assert [bad for _, bad in store.verify()] == [[3]]
        with pytest.raises(StoreError, match=r"samples \[3\]"):
            store.read([2, 3])
        assert len(store) == 10, "who may only look, drops nothing"


@both
def test_a_truncated_extent_file(base: Path, schema: Schema) -> None:
    with Store(base, schema=schema) as store:
        fill(store, 100)
        offsets = store.index.offsets[store.index.live()]
        sizes = store.index.sizes[store.index.live()].astype(np.int64)
    cut = int(np.sort(offsets)[60]) + 40  # within a sample
    os.truncate(base / "extents.dat", cut)
    whole = [i for i in range(100) if offsets[i] + sizes[i] <= cut]
    assert 0 < len(whole) < 100
    with pytest.warns(CorruptRecord, match=f"ends before {100 - len(whole)} of the samples"):
        store = Store(base)
    assert living(store) == whole and store.corrupt == 100 - len(whole)
    check_all(store)
    fill(store, 100)
    check_all(store)
    store.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Store(base) as store:
            assert living(store)[: len(whole)] == whole and len(store) == len(whole) + 100
            check_all(store)


def test_an_extent_file_cut_to_nothing(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        fill(store, 20)
    os.truncate(base / "extents.dat", 0)
    with pytest.warns(CorruptRecord, match="20 of the samples"):
        store = Store(base)
    with store:
        assert len(store) == 0
        fill(store, 5)
        check_all(store)


def test_a_missing_extent_file(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        fill(store, 20)
    (base / "extents.dat").rename(base / "elsewhere")
    for options in ({}, {"readonly": True}):
        with pytest.raises(StoreError, match=r"extents\.dat is missing, but the catalogue has samples"):
            Store(base, **options)  # type: ignore[arg-type]
        assert not (base / "extents.dat").exists()
    (base / "elsewhere").rename(base / "extents.dat")
    with Store(base) as store:
        assert len(store) == 20
        check_all(store)


def test_a_crash_between_the_two_files(base: Path) -> None:
    """The catalogue was laid out, but the extent file never made: a new store, nothing is missing."""
    with Store(base, schema=FIXED):
        pass
    (base / "extents.dat").unlink()
    with Store(base) as store:
        fill(store, 3)
        check_all(store)


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "garbage", "newer", "foreign"])
def test_a_damaged_catalogue(base: Path, damage: str) -> None:
    """A clear error, whatever is wrong, and not a byte of what is left is changed."""
    with Store(base, schema=FIXED) as store:
        for _ in range(30):
            fill(store, 40)
    path = base / "catalogue.db"
    good = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "truncated":
        os.truncate(path, len(good) // 2 // 4096 * 4096)
    elif damage == "garbage":
        path.write_bytes(os.urandom(len(good)))
    elif damage == "newer":
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
    else:
        path.unlink()
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE precious (data)")
        db.close()
    before = {p.name: p.read_bytes() for p in base.iterdir() if p.name != "lock"}
    for _ in range(2):
        with pytest.raises(StoreError, match=r"catalogue\.db"):
            Store(base)
    after = {p.name: p.read_bytes() for p in base.iterdir() if p.name != "lock"}
    assert after == before
    path.write_bytes(good)  # with its catalogue back, the store is whole
    with Store(base) as store:
        assert len(store) == 1200
        check_all(store)


# -- directories -------------------------------------------------------------------------------------------------------


def test_a_path_that_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(StoreError, match="file is a file; a store is a directory"):
        Store(file, schema=FIXED)
    with pytest.raises(StoreError, match="a part of that path is a file"):
        Store(file / "store", schema=FIXED)
    with pytest.raises(StoreError, match="holds no store"):
        Store(file, readonly=True)
    assert file.read_text() == "precious"


def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root may become another user")
    os.chmod(tmp_path, 0o755)
    for parent in tmp_path.parents:
        if parent.stat().st_mode & 0o005 != 0o005 and parent != Path("/"):
            os.chmod(parent, parent.stat().st_mode | 0o055)  # pytest's own directories, which the other user must pass
    with Store(tmp_path / "store", schema=FIXED) as store:
        fill(store, 3)

    def child() -> None:
        os.setgid(65534)
        os.setuid(65534)
        with pytest.raises(StoreError, match=r"cannot write in .*Permission denied; choose a directory"):
            Store(tmp_path / "new", schema=FIXED)
        with pytest.raises(StoreError, match=r"cannot write in .*Permission denied|holds no store|cannot be opened"):
            Store(tmp_path / "store")
        with pytest.raises((StoreError, PermissionError)):
            Store(tmp_path / "store", readonly=True)  # it is the owner's only

    in_child(child)


def test_a_read_only_file_system(tmp_path: Path) -> None:
    """Looking needs no right to write, not even SQLite's."""
    with mounted(tmp_path / "device", "tmpfs", 48 << 20) as device:
        with Store(device / "s", schema=FIXED) as store:
            fill(store, 50)
        killed = Store(device / "hot", schema=FIXED)
        fill(killed, 50)
        shutil.copytree(device / "hot", device / "unfinished")  # as if the machine had died now
        killed.close()
        subprocess.run(["mount", "-o", "remount,ro", str(device)], check=True)
        with pytest.raises(StoreError, match=r"cannot write in .*Read-only file system"):
            Store(device / "s")
        with pytest.raises(StoreError, match=r"cannot write in .*Read-only file system"):
            Store(device / "new", schema=FIXED)
        with Store(device / "s", readonly=True) as store:
            ids = living(store)
            assert ids == list(range(50))
            check(store.read(ids), ids)
        with contextlib.suppress(StoreError), Store(device / "unfinished", readonly=True) as store:
            assert len(store) == 50, "the log was ignored"


# -- other processes ---------------------------------------------------------------------------------------------------


def _spawn(code: str) -> subprocess.Popen[str]:
    """A fresh interpreter that runs `code`, with the store's helpers imported."""
    head = f"import os, sys, time\nsys.path.insert(0, {HERE!r})\n"
    head += "from numbered import *\nfrom carm.memory.store import Store\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(code)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


def test_one_writer_at_a_time(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        fill(store, 5)
        with pytest.raises(StoreLocked, match=f"open for writing in process {os.getpid()}; close it there"):
            Store(base)
        fill(store, 5)

    other = _spawn(f"""
        store = Store({str(base)!r})
        print("open", flush=True)
        sys.stdin.readline()
    """)
    assert other.stdout is not None and other.stdout.readline() == "open\n"
    with pytest.raises(StoreLocked, match=f"process {other.pid}"):
        Store(base)
    with Store(base, readonly=True) as store:
        assert len(store) == 10
    begun = time.monotonic()
    other.send_signal(signal.SIGKILL)
    other.wait()
    with Store(base) as store:  # the kernel has given the lock back
        assert time.monotonic() - begun < 5
        check_all(store)
        fill(store, 5)


def test_the_lock_goes_with_the_owner_though_a_forked_child_lives_on(base: Path) -> None:
    owner = _spawn(f"""
        store = Store({str(base)!r}, schema=FIXED)
        store.append(samples(range(5)))
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
        print(child, flush=True)
        sys.stdin.readline()
    """)
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    try:
        with pytest.raises(StoreLocked, match=f"process {owner.pid}"):
            Store(base)
        owner.kill()
        owner.wait()
        os.kill(child, 0)  # it is there, with copies of all descriptors that it did not close
        with Store(base) as store:
            check_all(store)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_lock_of_a_store_that_nobody_has_any_more(base: Path) -> None:
    """As in a notebook, where a cell is run again: what is unreachable does not keep the directory."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        store = Store(base, schema=FIXED)
        fill(store, 3)
        cycle: list[Any] = [store]
        cycle.append(cycle)
        with pytest.raises(StoreLocked, match=f"process {os.getpid()}"):
            Store(base)
        del store, cycle
        with Store(base) as again:
            check_all(again)
            fill(again, 3)
    finally:
        if collecting:
            gc.enable()


def test_a_helper_that_outlives_its_owner_is_waited_for(base: Path) -> None:
    """A swap helper that was given the lock may still finish a write after its owner was killed."""
    owner = _spawn(f"""
        import subprocess
        store = Store({str(base)!r}, schema=FIXED)
        helper = subprocess.Popen(["sleep", "60"], pass_fds=(store.lock.fd,))
        print(helper.pid, flush=True)
        sys.stdin.readline()
    """)
    assert owner.stdout is not None
    helper = int(owner.stdout.readline())
    owner.kill()
    owner.wait()
    begun = time.monotonic()
    threading.Timer(0.5, os.kill, (helper, signal.SIGKILL)).start()
    with Store(base) as store:
        assert time.monotonic() - begun > 0.4, "it was opened while somebody could still write"
        fill(store, 3)


def test_a_forked_child_is_told(base: Path) -> None:
    with Store(base, schema=FIXED) as store:
        fill(store, 40)
        store.read([0])

        def child() -> None:
            for use in (
                lambda: store.append(samples([1])),
                lambda: store.read([0]),
                lambda: store.fetch(np.array([0])),
                lambda: list(store.verify()),
                lambda: store.delete([0]),
                lambda: store.checkpoint(),
            ):
                with pytest.raises(StoreError, match=f"opened by process {os.getppid()}, and this is its child"):
                    use()
            store.close()
            del use

        in_child(child)
        fill(store, 40)  # and has done no harm
        check_all(store)
        with pytest.raises(StoreLocked):
            Store(base)


def test_a_forked_child_that_ends_normally_does_no_harm(base: Path) -> None:
    """Its interpreter tears down its copies of everything: connections, rings, mappings."""
    owner = _spawn(f"""
        import gc
        store = Store({str(base)!r}, schema=FIXED)
        for round in range(5):
            store.append(samples(range(store.next_id, store.next_id + 20)))
            store.read([0])
            child = os.fork()
            if not child:
                if round % 2:
                    store.catalogue = store.file = store._engine = None
                    del store
                    gc.collect()
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
            store.append(samples(range(store.next_id, store.next_id + 20)))
            check(store.read(range(len(store))), range(len(store)))
        print(len(store), flush=True)
        os.kill(os.getpid(), 9)
    """)
    assert owner.stdout is not None and owner.stdout.readline() == "200\n"
    owner.wait()
    with Store(base) as store:
        assert len(store) == 200
        check_all(store)


def test_a_catalogue_that_cannot_be_written_while_planning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room is wanted that a checkpoint holds, and its mark cannot be taken back: nobody stays held for it."""
    with Store(tmp_path, schema=FIXED, capacity="40kB", engine="preadv") as store:
        for begin in range(0, 72, 12):
            store.append(samples(np.arange(begin, begin + 12), labels=np.arange(12) % 4))
        store.checkpoint()
        assert store.catalogue is not None
        used = store.extents.used

        def locked(*_: object) -> None:
            raise StoreError("the catalogue is locked")

        with monkeypatch.context() as patch:
            patch.setattr(store.catalogue, "set_marks", locked)
            for _ in range(3):
                with pytest.raises(StoreError, match="locked"):
                    store.append(samples(np.arange(1000, 1048), labels=np.arange(48) % 4))
        assert store.extents.used == used
        assert all(store.index.sets.is_open(handle) for handle in store.index.live().tolist())
        assert (store.append(samples(np.arange(1000, 1048), labels=np.arange(48) % 4)) >= 0).sum() > 20


@pytest.mark.parametrize("ids", [np.array([True, False]), [2.9], [[0, 1]], 3, ["1"], [2**70]])
def test_ids_are_whole_numbers(tmp_path: Path, ids: Any) -> None:
    """A mask, above all, would delete others than those that it chooses."""
    with Store(tmp_path, schema=FIXED) as store:
        store.append(samples(np.arange(5)))
        for act in (store.delete, store.read):
            with pytest.raises(ValueError, match=r"must be a list of whole numbers; for those of a mask, store\.ids"):
                act(ids)
        assert store.ids.tolist() == [0, 1, 2, 3, 4]


def test_a_store_is_not_sent_to_other_processes(tmp_path: Path) -> None:
    with Store(tmp_path, schema=FIXED) as store, pytest.raises(StoreError, match="open it anew, with readonly=True"):
        pickle.dumps(store)


def test_a_smaller_capacity_is_announced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Store(tmp_path, schema=FIXED) as store:
        store.append(samples(np.arange(30)))
    with Store(tmp_path, capacity=20) as store:
        assert "holds 30 samples, and its capacity is 20 from now on" in caplog.text
        assert len(store) == 30
        store.append(samples(np.arange(30, 32)))
        assert len(store) == 20


@pytest.mark.parametrize("act", ["checkpoint", "delete"])
def test_a_device_that_is_full_is_called_so(tmp_path: Path, act: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(tmp_path, schema=FIXED) as store:
        store.append(samples(np.arange(5)))
        assert store.catalogue is not None

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, "no room for the catalogue")

        with monkeypatch.context() as patch:
            patch.setattr(store.catalogue, "set_marks" if act == "checkpoint" else "commit", full)
            with pytest.raises(StoreFull, match=r"the device is full; free some room\. Everything stored before"):
                store.checkpoint() if act == "checkpoint" else store.delete([1])
        assert store.ids.tolist() == [0, 1, 2, 3, 4] and store.index.sets.open_count(1) == 1
        store.delete([1])
        assert store.checkpoint()["next_id"] == 5
