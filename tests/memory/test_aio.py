"""The engines: whichever reads, the same bytes come."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patterns import descriptors

from carm.memory import aio, ring
from carm.memory.aio import DEPTH, ENGINES, AioEngine, Engine, open_engine

SIZE = 1 << 20


def _ints(values: Any) -> np.ndarray:
    return np.asarray(values, np.int64)


@pytest.fixture(scope="module")
def content() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, SIZE + 1000, dtype=np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, content: np.ndarray) -> Path:
    """A file whose length is no multiple of anything."""
    out = tmp_path_factory.mktemp("engines") / "extents.dat"
    out.write_bytes(content.tobytes())
    return out


def _open(name: str, path: Path) -> Engine:
    try:
        return open_engine(name, path)
    except ValueError as error:
        pytest.skip(str(error))


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest, path: Path) -> Iterator[Engine]:
    out = _open(request.param, path)
    yield out
    out.close()


def _check(read: tuple[Any, Any, Any], content: np.ndarray, offsets: Any, sizes: Any) -> None:
    data, starts, ok = read
    offsets, sizes = list(offsets), list(sizes)
    assert len(starts) == len(ok) == len(offsets)
    assert not (np.asarray(starts) % 8).any()
    for offset, size, start, fine in zip(offsets, sizes, starts.tolist(), ok.tolist(), strict=True):
        assert fine == (offset + size <= len(content)), (offset, size)
        if fine:
            assert data[start : start + size].tobytes() == content[offset : offset + size].tobytes(), (offset, size)


@pytest.mark.parametrize("count", [0, 1, 2, 5, 255, 256, 257, 512, 1000])
@pytest.mark.parametrize("record", [8, 520, 3104, 4096, 5000])
def test_batches_of_equal_records(engine: Engine, content: np.ndarray, count: int, record: int) -> None:
    """One and more than the ring holds, at multiples of their padded size, as in a fixed store."""
    stride = -(-record // 512) * 512
    offsets = np.random.default_rng(count).integers(0, SIZE // stride, count) * stride
    _check(engine.read(_ints(offsets), np.full(count, record, np.int64)), content, offsets, [record] * count)


@given(st.integers(1, 40_000), st.integers(0, 300))
def test_what_is_read_lies_in_as_few_pages_as_it_can(size: int, row: int) -> None:
    size = -(-size // 512) * 512
    begin = row * aio._spacing(size)
    assert aio._spacing(size) >= size and begin % 512 == 0
    assert (begin + size - 1) // 4096 - begin // 4096 == (size - 1) // 4096


extent = st.tuples(st.integers(0, SIZE // 512 + 10), st.integers(1, 20_000))


@settings(deadline=None, max_examples=40)
@given(extents=st.lists(extent, max_size=60))
def test_any_extents(path: Path, content: np.ndarray, extents: list[tuple[int, int]]) -> None:
    """Any size, in any order, overlapping, up to the end of the file and beyond it."""
    offsets, sizes = _ints([o * 512 for o, _ in extents]), _ints([s * 8 % 20_000 + 8 for _, s in extents])
    for name in ENGINES:
        engine = _open(name, path)
        _check(engine.read(offsets, sizes), content, offsets, sizes)
        engine.close()


def test_the_end_of_the_file(engine: Engine, content: np.ndarray) -> None:
    """A record whose last unit the file cuts off, but not its bytes, is whole; one byte less and it is not."""
    last = SIZE  # the file goes on for 1000 bytes
    for size in (488, 512, 992, 1000, 1008, 1024, 1536):
        _check(engine.read(_ints([last]), _ints([size])), content, [last], [size])
        _check(engine.read(_ints([last, 0, 512]), _ints([size] * 3)), content, [last, 0, 512], [size] * 3)
    far = [SIZE + 512 * 8, SIZE * 3, 2**40]
    _check(engine.read(_ints([0, *far, 512]), _ints([512] * 5)), content, [0, *far, 512], [512] * 5)


def test_several_under_way(engine: Engine, content: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        wanted = []
        for _ in range(DEPTH):
            n = int(rng.integers(1, 400))
            offsets, sizes = rng.integers(0, SIZE // 512 - 10, n) * 512, rng.integers(1, 400, n) * 8
            wanted.append((offsets, sizes, engine.begin(offsets, sizes)))
        for offsets, sizes, ticket in wanted:
            _check(engine.finish(ticket), content, offsets, sizes)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("align", [512, 4096])
def test_rows_and_others_under_way_together(engine: Engine, content: np.ndarray, align: int, in_place: bool) -> None:
    """Also where the device reads no less than 4096 bytes, and records begin anywhere in what it gives."""
    if isinstance(engine, AioEngine):
        if align < engine._align:
            pytest.skip("the device reads no less than 4096 bytes")
        engine._align = align
    rng = np.random.default_rng(2)
    for _ in range(10):
        wanted = []
        for size in (488, 3080, 0, 1024):
            n = int(rng.integers(1, 400))
            offsets = rng.integers(0, SIZE // 4096 - 1, n) * max(-(-size // 512), 1) * 512
            sizes = np.full(n, size) if size else rng.integers(1, 400, n) * 8
            wanted.append((offsets, sizes, engine.begin_rows(offsets, size) if size else engine.begin(offsets, sizes)))
        for offsets, sizes, ticket in wanted:
            finish = engine.finish_rows if (sizes == sizes[0]).all() else engine.finish
            _check(finish(ticket, in_place=in_place), content, offsets, sizes)


def test_the_file_grows_under_the_engine(tmp_path: Path) -> None:
    for name in ENGINES:
        path = tmp_path / name
        path.write_bytes(bytes(8192))
        engine = _open(name, path)
        assert not engine.read(_ints([8192]), _ints([4096]))[2].any()
        with path.open("ab") as file:
            file.write(b"\x07" * 8192)
        data, starts, ok = engine.read(_ints([8192, 12288]), _ints([4096, 4096]))
        assert ok.all() and all((data[s : s + 4096] == 7).all() for s in starts.tolist())
        os.truncate(path, 8192)  # and shrinks: no crash, no stale bytes
        assert engine.read(_ints([8192, 0]), _ints([4096, 4096]))[2].tolist() == [False, True]
        engine.close()


def test_what_was_just_written_is_read(tmp_path: Path) -> None:
    """O_DIRECT looks past the page cache; a write that was synced must be seen all the same."""
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 16))
    engines = [_open(name, path) for name in ENGINES]
    fd = os.open(path, os.O_RDWR)
    for value in range(1, 20):
        os.pwrite(fd, bytes([value]) * 3000, 4096 * (value % 8))
        os.fdatasync(fd)
        for engine in engines:
            data, starts, _ = engine.read(_ints([4096 * (value % 8)]), _ints([3000]))
            assert (data[starts[0] : starts[0] + 3000] == value).all(), engine.name
    os.close(fd)
    for engine in engines:
        engine.close()


def test_engines_give_back_everything(path: Path) -> None:
    def contexts() -> int:
        return int(Path("/proc/sys/fs/aio-nr").read_text())

    for name in ENGINES:
        _open(name, path).close()
    before, rounds = (descriptors(), contexts()), 8
    for _ in range(rounds):
        for name in ENGINES:
            engine = _open(name, path)
            tickets = [engine.begin(_ints([0]), _ints([8])) for _ in range(DEPTH)]
            for ticket in tickets:
                engine.finish(ticket)
            engine.close()
            engine.close()
    assert descriptors() == before[0]
    # The kernel counts for all processes, and others may be at work; a leak would be DEPTH rings in every round.
    assert contexts() - before[1] < rounds * DEPTH * ring.RING // 2


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for name in ENGINES:
        with pytest.raises(ValueError, match=f"engine='{name}' does not work for .*No such file.*engine='auto'"):
            open_engine(name, tmp_path / "nothing")
    with pytest.raises(OSError):
        open_engine("auto", tmp_path / "nothing")


def test_an_engine_that_there_is_not(path: Path) -> None:
    with pytest.raises(ValueError, match=r"engine='io_uring': must be 'auto' or one of 'aio', 'mapped', 'preadv'"):
        open_engine("io_uring", path)


def test_without_aio(path: Path, content: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel has no AIO, or a sandbox forbids it, asking for it says so, and auto takes another."""

    def refused(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(ring.Kernel, "setup", refused)
    before = descriptors()
    with pytest.raises(ValueError, match=r"engine='aio' does not work for .*not permitted; use engine='auto'"):
        open_engine("aio", path)
    assert descriptors() == before
    few = open_engine("auto", path)
    assert few.name == "preadv"
    offsets = np.arange(64, dtype=np.int64) * 512
    many = open_engine("auto", path, offsets, np.full(64, 512, np.int64))
    assert many.name in ("preadv", "mapped")
    for engine in (few, many):
        _check(engine.read(offsets, np.full(64, 512, np.int64)), content, offsets, [512] * 64)
        engine.close()


def test_where_o_direct_does_not_work(tmp_path: Path) -> None:
    """tmpfs knows O_DIRECT since Linux 6.6 or so: either it works, or the error says that it does not."""
    shm = Path("/dev/shm")
    if not os.access(shm, os.W_OK):
        pytest.skip("/dev/shm cannot be written")
    path = shm / f"carm-test-{os.getpid()}"
    try:
        path.write_bytes(b"\x01" * 8192)
        try:
            engine = open_engine("aio", path)
        except ValueError:
            with pytest.raises(ValueError, match=r"engine='aio' does not work for .*; use engine='auto'"):
                open_engine("aio", path)
            engine = open_engine("auto", path)
            assert engine.name == "preadv"
        data, starts, ok = engine.read(_ints([512, 4096]), _ints([1000, 4096]))
        assert ok.all() and (data[starts[0] : starts[0] + 1000] == 1).all()
        engine.close()
    finally:
        path.unlink(missing_ok=True)


def test_reading_while_the_interpreter_goes_down(path: Path) -> None:
    """What is closed last, at exit, may still read; by then pools of threads take no more work."""
    script = f"""
        import atexit, sys
        from pathlib import Path
        import numpy as np
        from carm.memory.aio import open_engine
        path = Path({str(path)!r})
        engine = open_engine("preadv", path)
        def last():
            try:
                engine._pool.submit(print)
            except RuntimeError:
                data, starts, ok = engine.read(np.arange(64) * 1024, np.full(64, 1000))
                content = np.fromfile(path, np.uint8)
                for i, start in enumerate(starts.tolist()):
                    assert ok[i] and (data[start : start + 1000] == content[1024 * i : 1024 * i + 1000]).all()
                print("good")
        atexit.register(last)
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert out.stdout == "good\n", out.stdout + out.stderr


def test_auto_picks_one_that_reads_right(path: Path, content: np.ndarray) -> None:
    offsets = np.arange(100, dtype=np.int64) * 1024
    sizes = np.full(100, 1000, np.int64)
    before = descriptors()
    engine = open_engine("auto", path, offsets, sizes)
    assert engine.name in ENGINES
    _check(engine.read(offsets, sizes), content, offsets, sizes)
    engine.close()
    assert descriptors() == before, "an engine that lost the race was left open"


# -- memory ------------------------------------------------------------------------------------------------------------


def test_staging_memory_is_aligned_and_kept() -> None:
    staging = ring.Staging()
    small = staging.reserve(5000)
    assert staging.address % 4096 == 0 and len(small) >= 5000
    assert staging.reserve(3000) is small
    whole = staging.reserve(5000, whole=True)
    assert len(whole) >= 5000 and staging.address == whole.ctypes.data
    if ring._HUGE is not None:
        assert staging.address % (2 << 20) == 0 and len(whole) == 2 << 20
        assert len(staging.reserve((4 << 20) + 1)) == 6 << 20, "once whole, always whole"
    staging.reserve(9 << 20, whole=True)[:] = 1
    assert staging.reserve(1, whole=True) is staging.reserve(8 << 20)


def test_a_fork_while_the_device_writes(tmp_path: Path) -> None:
    """Children get none of the staging memory: what is being read arrives with us, whoever touches it first."""
    rng = np.random.default_rng(0)
    size, count = 112_640, 256
    data = rng.integers(0, 256, size * count, dtype=np.uint8)
    path = tmp_path / "extents.dat"
    data.tofile(path)
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    try:
        engine = open_engine("aio", path)
    except ValueError as error:
        pytest.skip(str(error))
    for _ in range(20):
        chosen = [rng.integers(0, count, 16) for _ in range(DEPTH)]
        tickets = [engine.begin_rows(rows * size, size) for rows in chosen]
        child = os.fork()
        if not child:
            clean = not any(staging.data.any() for staging in engine._staging)
            os._exit(0 if clean or ring._HUGE is None else 1)
        for rows, ticket in zip(chosen, tickets, strict=True):
            found, starts, ok = engine.finish_rows(ticket)
            assert ok.all()
            for row, start in zip(rows.tolist(), starts.tolist(), strict=True):
                assert np.array_equal(found[start : start + size], data[row * size : (row + 1) * size])
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "the child sees what we read"
    engine.close()
