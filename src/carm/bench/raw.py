"""The other sides: the plainest code that moves the same bytes.

Nothing here uses the package, and this module imports no torch: `FilePerSample` runs parts of it in a fresh process.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import platform
import signal
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.managers import SyncManager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_IOCB = np.dtype(
    [
        *(("data", "<u8"), ("key", "<u4"), ("flags", "<i4"), ("opcode", "<u2"), ("priority", "<i2"), ("fd", "<u4")),
        *(("buf", "<u8"), ("nbytes", "<u8"), ("offset", "<i8"), ("reserved", "<u8"), ("more", "<u4"), ("resfd", "<u4")),
    ]
)
_EVENT = np.dtype([("data", "<u8"), ("obj", "<u8"), ("res", "<i8"), ("res2", "<i8")])
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}  # io_setup, io_destroy, io_submit, io_getevents


def _together(size: int) -> Bytes:
    """Memory in pages of 2 MB, if there are any: what lies together is read in one transfer."""
    huge = 2 << 20
    memory = mmap.mmap(-1, -(-size // huge) * huge + huge, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, size, -np.frombuffer(memory, np.uint8).ctypes.data % huge)


MOST = 4
"""Requests that may be under way at once: as many as the swap worker has."""


class _Request:
    """The control blocks of one batch of reads, filled but for the offsets."""

    def __init__(self, call: Any, numbers: tuple[int, int, int, int], fd: int, batch: int, size: int) -> None:
        self.call, self.numbers, self.batch, self.size = call, numbers, batch, size
        self.context = ctypes.c_ulong(0)
        if call(ctypes.c_long(numbers[0]), ctypes.c_long(batch), ctypes.byref(self.context)) < 0:
            raise OSError(ctypes.get_errno(), "io_setup failed; is /proc/sys/fs/aio-nr near aio-max-nr?")
        # From page to page: O_DIRECT wants memory to be aligned, and what lies across two pages is read in two parts.
        self.stride = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.data = _together(batch * self.stride)
        self.data[:] = 0  # so that no read pays for a page that was never touched
        self.blocks = np.zeros(batch, _IOCB)
        self.blocks["fd"] = fd
        self.blocks["nbytes"] = size
        self.blocks["buf"] = self.data.ctypes.data + np.arange(batch) * self.stride
        self.pointers = self.blocks.ctypes.data + np.arange(batch, dtype=np.uint64) * 64
        self.events = np.zeros(batch, _EVENT)
        self.pointers_at, self.events_at = self.pointers.ctypes.data, self.events.ctypes.data
        self.offsets = self.blocks["offset"]
        self.results = self.events["res"]

    def submit(self, offsets: Ints) -> None:
        self.offsets[:] = offsets
        done = 0
        while done < self.batch:
            pointers = ctypes.c_void_p(self.pointers_at + 8 * done)
            got = self.call(ctypes.c_long(self.numbers[2]), self.context, ctypes.c_long(self.batch - done), pointers)
            if got < 0:
                raise OSError(ctypes.get_errno(), "io_submit failed")
            done += got

    def wait(self) -> None:
        count = ctypes.c_long(self.batch)
        got = self.call(
            ctypes.c_long(self.numbers[3]),
            self.context,
            count,
            count,
            ctypes.c_void_p(self.events_at),
            ctypes.c_void_p(None),
        )
        if got < self.batch or int(self.results.min()) < self.size:
            raise OSError(ctypes.get_errno(), f"a read of {self.size} bytes gave {int(self.results.min())}")

    def close(self) -> None:
        self.call(ctypes.c_long(self.numbers[1]), self.context)


class RawAio:
    """Linux AIO with O_DIRECT and nothing else: the same extents in requests of the same size, into memory that nobody
    looks at.

    Everything that can be prepared is prepared; per request there remain the offsets, one io_submit and one
    io_getevents. It neither checks the bytes nor puts them where training would find them, so nothing that does can be
    faster.
    """

    def __init__(self, path: Path, *, size: int, batch: int) -> None:
        call: Any = ctypes.CDLL(None, use_errno=True).syscall
        call.restype = ctypes.c_long
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        self._requests = [_Request(call, _CALLS[platform.machine()], self._fd, batch, size) for _ in range(MOST)]

    def read(self, batches: list[Ints], *, in_flight: int) -> float:
        """Read these extents, with so many requests under way at a time (MOST at most); seconds per record."""
        begun = time.perf_counter()
        under_way: deque[_Request] = deque()
        for i, offsets in enumerate(batches):
            if len(under_way) == in_flight:
                under_way.popleft().wait()
            request = self._requests[i % in_flight]
            request.submit(offsets)
            under_way.append(request)
        for request in under_way:
            request.wait()
        return (time.perf_counter() - begun) / sum(map(len, batches))

    def close(self) -> None:
        for request in self._requests:
            request.close()
        os.close(self._fd)


class Gather:
    """`numpy.take` of random rows of a private array: a copy in memory, with no storage behind it."""

    def __init__(self, rows: int, size: int, batch: int) -> None:
        self.array: Bytes = np.ones((rows, size), np.uint8)  # ones: every page is there
        self.out: Bytes = np.ones((batch, size), np.uint8)

    def into(self, batches: list[Ints]) -> float:
        """Copy these rows into memory that is there already; seconds per batch."""
        begun = time.perf_counter()
        for rows in batches:
            np.take(self.array, rows, axis=0, out=self.out, mode="clip")
        return (time.perf_counter() - begun) / len(batches)

    def fresh(self, batches: list[Ints]) -> float:
        """Copy these rows into new arrays, which is what a caller who keeps its batches needs; seconds per batch."""
        begun = time.perf_counter()
        for rows in batches:
            np.take(self.array, rows, axis=0)
        return (time.perf_counter() - begun) / len(batches)


def _copy_on(rows: int, size: int, batch: int, started: Connection) -> None:
    """The process of `Copying`."""
    gather, rng = Gather(rows, size, batch), np.random.default_rng(3)
    chosen = [rng.integers(0, rows, batch) for _ in range(64)]
    started.send(True)
    while True:
        gather.into(chosen)


class Copying:
    """A process that copies random rows of an array of its own, on and on, unless it is paused: what any worker at full
    speed takes from the caches and the memory that the cores share."""

    def __init__(self, rows: int, size: int, batch: int) -> None:
        context = multiprocessing.get_context("spawn")
        started, theirs = context.Pipe()
        self._process = context.Process(target=_copy_on, args=(rows, size, batch, theirs), daemon=True)
        self._process.start()
        theirs.close()
        started.recv()  # when this comes, it copies
        started.close()
        self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def beside(self, measure: Callable[[], float]) -> Callable[[], float]:
        """`measure`, while it copies."""

        def measured() -> float:
            self._signal(signal.SIGCONT)
            try:
                return measure()
            finally:
                self._signal(signal.SIGSTOP)

        return measured

    def __enter__(self) -> Copying:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


class Log:
    """A growing file, synced after every write: what any durable append must at least do."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        self._end = 0

    def append(self, data: list[memoryview]) -> float:
        """Seconds for one batch."""
        begun = time.perf_counter()
        self._end += os.pwritev(self._fd, data, self._end)
        os.fdatasync(self._fd)
        return time.perf_counter() - begun

    def close(self) -> None:
        os.close(self._fd)


# -- the scheme of the published prototype ----------------------------------------------------------------------------


def _carry_out(directory: str, size: int, memory: Any, pipe: Connection) -> None:
    """The helper process: read one file per order and put its bytes into the shared list."""
    while (order := pipe.recv()) is not None:
        for slot, number in order:
            fd = os.open(f"{directory}/{number}", os.O_RDONLY)
            try:
                memory[slot] = os.read(fd, size)
            finally:
                os.close(fd)
        pipe.send(len(order))


class FilePerSample:
    """A file per sample, a helper process that reads them, and a `multiprocessing.Manager` list as the RAM tier.

    Done as well as the scheme allows: orders come in batches with the next one always waiting, a sample is bytes
    (nothing is decoded or unpickled beyond what the manager does), and directory entries and inodes are in the kernel's
    caches. Only the contents are cold, as for the other side.
    """

    def __init__(self, directory: Path, *, size: int, files: int, slots: int) -> None:
        self.directory, self.files, self.slots = directory, files, slots
        directory.mkdir()
        rng = np.random.default_rng(0)
        for number in range(files):
            (directory / str(number)).write_bytes(rng.bytes(size))
        os.sync()
        context = multiprocessing.get_context("spawn")
        self._manager = SyncManager(ctx=context)
        self._manager.start()
        self.memory = self._manager.list([b""] * slots)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_carry_out, args=(str(directory), size, self.memory, theirs), daemon=True
        )
        self._process.start()
        theirs.close()  # so that the helper's death ends a wait for it
        self._pipe.send([(0, 0)])  # when this comes back, the helper is up
        self._pipe.recv()

    def _make_cold(self, numbers: list[int]) -> None:
        for number in numbers:
            fd = os.open(self.directory / str(number), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def swap(self, count: int, batch: int, rng: np.random.Generator) -> float:
        """Bring in `count` samples; seconds per sample."""
        numbers = rng.permutation(self.files)[:count].tolist()
        slots = rng.integers(0, self.slots, len(numbers)).tolist()
        self._make_cold(numbers)
        pairs = list(zip(slots, numbers, strict=True))
        orders = [pairs[at : at + batch] for at in range(0, len(pairs), batch)]
        begun = time.perf_counter()
        for i, order in enumerate(orders):
            self._pipe.send(order)
            if i:
                self._pipe.recv()
        self._pipe.recv()
        return (time.perf_counter() - begun) / len(pairs)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._pipe.close()
        self._process.join(timeout=10)
        self._manager.shutdown()

    def __enter__(self) -> FilePerSample:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
