"""Writing records to their extents: past the page cache, through it, and from one to the other when the device will
not."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carm.memory import extentfile, ring
from carm.memory.aio import open_engine
from carm.memory.extentfile import ExtentFile
from carm.memory.extents import padded_each

Ints = np.ndarray[Any, np.dtype[np.int64]]


def records(count: int, rng: np.random.Generator, size: int | None = None, most: int = 3000) -> Any:
    """Random records (`size` bytes, or of 8 to `most`), with what lies between them: data, starts, sizes."""
    sizes = np.full(count, size) if size else rng.integers(1, most // 8, count) * 8
    gap = 0 if size else 8
    starts = np.cumsum(sizes + gap) - sizes - gap
    data = np.frombuffer(rng.bytes(int((sizes + gap).sum())), np.uint8)
    return data, starts.astype(np.int64), sizes.astype(np.int64)


def places(sizes: Ints, rng: np.random.Generator, holes: float) -> Ints:
    """An extent for each record, in random order; before some of them there is a hole."""
    order = rng.permutation(len(sizes))
    room = padded_each(sizes)[order] + (rng.random(len(sizes)) < holes) * 1536
    out = np.empty(len(sizes), np.int64)
    out[order] = np.cumsum(room) - padded_each(sizes)[order]
    return out


def check(path: Path, data: Any, starts: Ints, sizes: Ints, offsets: Ints) -> None:
    written = np.fromfile(path / extentfile.NAME, np.uint8)
    for start, size, offset in zip(starts.tolist(), sizes.tolist(), offsets.tolist(), strict=True):
        assert (written[offset : offset + size] == data[start : start + size]).all()
        assert not written[offset + size : offset + -(-size // 512) * 512].any(), "zeros to the end of the extent"


def pages_cached(path: Path) -> int:
    """How many pages of a file the kernel keeps."""
    fd = os.open(path, os.O_RDWR)  # RDWR: ctypes wants a writable buffer
    length = os.fstat(fd).st_size
    mapped = mmap.mmap(fd, length)
    os.close(fd)
    pages = (ctypes.c_ubyte * -(-length // mmap.PAGESIZE))()
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(length), pages) == 0
    return sum(page & 1 for page in pages)


@pytest.fixture
def direct(tmp_path: Path) -> ExtentFile:
    """A file that is written past the page cache, or skip."""
    file = ExtentFile(tmp_path, direct=True)
    if file._direct < 0:
        pytest.skip("no O_DIRECT, or no Linux AIO, here")
    return file


@pytest.mark.parametrize("past_the_cache", [True, False])
@pytest.mark.parametrize("size", [8, 512, 3080, None])
@pytest.mark.parametrize("holes", [0.0, 0.5])
def test_every_byte_arrives(tmp_path: Path, past_the_cache: bool, size: int | None, holes: float) -> None:
    rng = np.random.default_rng(0)
    file = ExtentFile(tmp_path, direct=past_the_cache)
    for count in (1, 2, 700):  # more than a ring takes
        data, starts, sizes = records(count, rng, size)
        offsets = places(sizes, rng, holes)
        file.write(data, starts, sizes, offsets)
        check(tmp_path, data, starts, sizes, offsets)
    file.close()


@pytest.mark.parametrize("past_the_cache", [True, False])
def test_what_lies_between_is_left_alone(tmp_path: Path, past_the_cache: bool) -> None:
    """Records that are written into holes do not touch their neighbours."""
    rng = np.random.default_rng(1)
    file = ExtentFile(tmp_path, direct=past_the_cache)
    data, starts, sizes = records(600, rng, 3080)
    offsets = np.arange(600) * 3584
    file.write(data, starts, sizes, offsets)
    holes = rng.choice(600, 200, replace=False)
    new, new_starts, new_sizes = records(200, rng, 3080)
    file.write(new, new_starts, new_sizes, offsets[holes])
    check(tmp_path, new, new_starts, new_sizes, offsets[holes])
    rest = np.setdiff1d(np.arange(600), holes)
    check(tmp_path, data, starts[rest], sizes[rest], offsets[rest])
    file.close()


def test_in_pieces(tmp_path: Path, direct: ExtentFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory for a write is bounded, and records that are larger than a piece are written from where they are."""
    monkeypatch.setattr(extentfile, "_PIECE", 1 << 14)
    rng = np.random.default_rng(2)
    data, starts, sizes = records(300, rng, most=40_000)
    assert (padded_each(sizes) > 1 << 14).sum() > 50 < (padded_each(sizes) < 1 << 14).sum()
    offsets = places(sizes, rng, 0.3)
    direct.write(data, starts, sizes, offsets)
    check(tmp_path, data, starts, sizes, offsets)
    assert len(direct._staging.data) <= 2 << 20  # a huge page
    direct.close()


def test_the_page_cache_stays_empty(tmp_path: Path, direct: ExtentFile) -> None:
    data, starts, sizes = records(512, np.random.default_rng(3), 3080)
    cached = ExtentFile(tmp_path)
    cached.write(data, starts, sizes, np.arange(512) * 3584)
    assert pages_cached(tmp_path / extentfile.NAME) >= 400
    direct.write(data, starts, sizes, np.arange(512) * 3584)
    assert pages_cached(tmp_path / extentfile.NAME) <= 2  # pages that were only partly written over
    for file in (cached, direct):
        file.close()


def test_a_reader_of_the_cache_sees_what_was_written_past_it(tmp_path: Path, direct: ExtentFile) -> None:
    rng = np.random.default_rng(4)
    offsets, sizes = np.arange(64) * 3584, np.full(64, 3080)
    direct.reserve(64 * 3584)
    engine = open_engine("mapped", tmp_path / extentfile.NAME)
    for _ in range(3):
        data, starts, _ = records(64, rng, 3080)
        direct.write(data, starts, sizes, offsets)
        found, at, ok = engine.read(offsets, sizes)
        assert ok.all()
        assert all((found[a : a + 3080] == data[s : s + 3080]).all() for a, s in zip(at, starts, strict=True))
    engine.close()
    direct.close()


# -- when it cannot be done so -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", [1, 2])  # one stretch, or hundreds
def test_a_device_that_refuses(tmp_path: Path, direct: ExtentFile, monkeypatch: pytest.MonkeyPatch, apart: int) -> None:
    """One with larger sectors, say: everything is written through the cache, now and later, and does not stay there."""
    asked: list[int] = []
    past_the_cache, submit, pwrite = direct._direct, ring.Ring.submit, os.pwrite

    def refuse(self: ring.Ring, fd: int, offsets: Ints, sizes: Ints, addresses: Ints) -> None:
        asked.append(fd)
        submit(self, fd, offsets + (fd == past_the_cache), sizes, addresses)  # which are no multiples of anything

    def refuse_one(fd: int, data: Any, offset: int) -> int:
        asked.append(fd)
        return pwrite(fd, data, offset + (fd == past_the_cache))

    monkeypatch.setattr(ring.Ring, "submit", refuse)
    monkeypatch.setattr(os, "pwrite", refuse_one)
    for seed in (5, 6):
        data, starts, sizes = records(200, np.random.default_rng(seed), 3080)
        offsets = np.arange(200) * 3584 * apart
        direct.write(data, starts, sizes, offsets)
        check(tmp_path, data, starts, sizes, offsets)
        direct._forget()
        assert pages_cached(tmp_path / extentfile.NAME) <= 2
    assert asked.count(past_the_cache) == 1, "it is not asked again"
    direct.close()


def test_some_are_refused(tmp_path: Path, direct: ExtentFile, monkeypatch: pytest.MonkeyPatch) -> None:
    submit, past_the_cache = ring.Ring.submit, direct._direct

    def some(self: ring.Ring, fd: int, offsets: Ints, sizes: Ints, addresses: Ints) -> None:
        wrong = np.arange(len(offsets)) % 3 == 1 if fd == past_the_cache else 0
        submit(self, fd, offsets + wrong, sizes, addresses)

    monkeypatch.setattr(ring.Ring, "submit", some)
    data, starts, sizes = records(100, np.random.default_rng(7), 3080)
    offsets = np.arange(100) * 2 * 3584
    direct.write(data, starts, sizes, offsets)
    check(tmp_path, data, starts, sizes, offsets)
    direct.close()


def test_an_error_of_the_kernel(tmp_path: Path, direct: ExtentFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> int:
        raise OSError(errno.EAGAIN, "no room in the queue")

    monkeypatch.setattr(ring.Kernel, "submit", refused)
    data, starts, sizes = records(100, np.random.default_rng(8), 3080)
    direct.write(data, starts, sizes, np.arange(100) * 3584 * 2)
    check(tmp_path, data, starts, sizes, np.arange(100) * 3584 * 2)
    direct.close()


def test_no_contexts_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise OSError(errno.EAGAIN, "fs.aio-max-nr")

    monkeypatch.setattr(ring.Kernel, "setup", refused)
    before = len(os.listdir("/proc/self/fd"))
    file = ExtentFile(tmp_path, direct=True)
    data, starts, sizes = records(100, np.random.default_rng(9), 3080)
    file.write(data, starts, sizes, np.arange(100) * 3584 * 2)
    check(tmp_path, data, starts, sizes, np.arange(100) * 3584 * 2)
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_interrupted_between_two_rings(tmp_path: Path, direct: ExtentFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is under way is waited for before its memory is used again, and the next write finds everything in order."""
    waits = iter([None])
    real = ring.Ring.wait

    def interrupted(self: ring.Ring, n: int) -> Any:
        if next(waits, 0) is None:
            raise KeyboardInterrupt
        return real(self, n)

    monkeypatch.setattr(ring.Ring, "wait", interrupted)
    data, starts, sizes = records(600, np.random.default_rng(10), 3080)
    offsets = np.arange(600) * 2 * 3584
    with pytest.raises(KeyboardInterrupt):
        direct.write(data, starts, sizes, offsets)
    direct.write(data, starts, sizes, offsets)
    check(tmp_path, data, starts, sizes, offsets)
    direct.close()


def test_a_file_size_limit_is_told(tmp_path: Path, direct: ExtentFile) -> None:
    """Past what a process may write, the error is the kernel's own, whichever way was tried first."""
    import resource

    data, starts, sizes = records(64, np.random.default_rng(11), 3080)
    direct.write(data, starts, sizes, np.arange(64) * 3584)
    direct.reserve(8 << 20)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, before[1]))
    try:
        with pytest.raises(OSError) as error:
            direct.write(data, starts, sizes, (5 << 20) + np.arange(64) * 3584)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.errno in extentfile.FULL
    check(tmp_path, data, starts, sizes, np.arange(64) * 3584)
    direct.close()
