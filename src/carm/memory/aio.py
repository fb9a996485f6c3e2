"""Reading many extents at once.

Three engines with one interface; `choose` times them on the store's own extents and takes the fastest.

    aio      Linux AIO with O_DIRECT: one system call for a whole request. The device sees all of it at once, and the
             page cache stays empty.
    mapped   copies out of a mapping of the file: fastest by far where the file is in the page cache, slow where it is
             not (every page is a fault), and an unreadable page kills the process (SIGBUS) instead of giving an error.
    preadv   a few threads that call preadv: works everywhere.

A read has two halves, `begin` and `finish`, so that several can be under way. What `finish` returns is valid until the
engine's next `begin`. Records of one size, which most are, have a pair of their own, `begin_rows` and `finish_rows`:
hardly anything has to be worked out per request.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carm.memory.mapping import mapped
from carm.memory.record import Bytes
from carm.memory.ring import RING, Kernel, Ring, Staging

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
DEPTH = 4
"""How many reads may be under way."""


class Engine(ABC):
    """Reads extents of one file."""

    name: str

    def __init__(self, path: Path) -> None:
        self.path = path
        self._staging: list[Staging] = []
        self._taken: set[int] = set()

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Take what it needs to read DEPTH orders at a time, or raise OSError and be closed."""

    @abstractmethod
    def begin(self, offsets: Ints, sizes: Ints) -> Any:
        """Start reading `sizes[i]` bytes at `offsets[i]`; returns a ticket for `finish`. At most DEPTH may be open."""

    @abstractmethod
    def finish(self, ticket: Any, *, in_place: bool = False) -> tuple[Bytes, Ints, Bools]:
        """Wait. Returns the bytes, where each record starts in them (a multiple of 8), and which arrived whole.

        With `in_place` the bytes may be those of the file itself: the caller knows that nobody writes there meanwhile.
        """

    def begin_rows(self, offsets: Ints, size: int) -> Any:
        """`begin`, where all records have one size and lie at multiples of the units that this takes."""
        return self.begin(offsets, np.full(len(offsets), size, np.int64))

    def finish_rows(self, ticket: Any, *, in_place: bool = False) -> tuple[Bytes, Ints, Bools]:
        """`finish`, for what `begin_rows` has begun."""
        return self.finish(ticket, in_place=in_place)

    def read(self, offsets: Ints, sizes: Ints) -> tuple[Bytes, Ints, Bools]:
        """Both halves. What it returns is a copy, whatever is written to the file."""
        if len(sizes) and sizes[0] and (sizes == sizes[0]).all():
            return self.finish_rows(self.begin_rows(offsets, int(sizes[0])))
        return self.finish(self.begin(offsets, sizes))

    @abstractmethod
    def close(self) -> None:
        """Let go of the file."""

    def _take(self, size: int, *, whole: bool = False) -> tuple[int, Bytes]:
        """A place for a read: its number, and `size` bytes of staging memory, `whole` if records are larger than
        pages."""
        place = next(p for p in range(DEPTH + 1) if p not in self._taken)
        if place == DEPTH:
            raise RuntimeError(f"more than {DEPTH} reads begun and not finished")
        self._taken.add(place)
        while place >= len(self._staging):
            self._staging.append(Staging())
        return place, self._staging[place].reserve(size, whole=whole)


def _padded(size: int) -> int:
    return -(-size // 512) * 512


def _spread(sizes: Ints, unit: int = 512) -> tuple[Ints, int]:
    """Starting points for records of these sizes, each at a multiple of `unit`, and the end of the last."""
    room = -(-sizes // unit) * unit
    ends = np.cumsum(room)
    return ends - room, int(ends[-1]) if len(ends) else 0


# -- Linux AIO ---------------------------------------------------------------------------------------------------------
#
# What is read goes to as few pages as it can: one that lies across two pages is two transfers for the device. (Reading
# 3.5 KB at a time, that alone makes 180,000 reads a second of 130,000.)

_PAGE = 4096


def _spacing(size: int) -> int:
    """How far apart records of one size are put, so that none that fits in a page lies in two."""
    return 512 << max(0, (-(-size // 512) - 1).bit_length()) if size <= _PAGE else -(-size // _PAGE) * _PAGE


class AioEngine(Engine):
    """Linux AIO on a descriptor opened with O_DIRECT."""

    name = "aio"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fd = -1
        self._rings: list[Ring] = []
        self._kernel = Kernel()
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
            self._align = self._alignment()
            self.read(np.zeros(1, np.int64), np.full(1, self._align, np.int64))  # some file systems refuse only now
        except OSError:
            self.close()
            raise

    def _alignment(self) -> int:
        """The smallest unit that the device reads without the page cache."""
        page = mmap.mmap(-1, mmap.PAGESIZE)
        for unit in (512, 4096):
            try:
                os.preadv(self.fd, [memoryview(page)[:unit]], unit)
                return unit
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        raise OSError(errno.EINVAL, f"{self.path}: O_DIRECT wants more than 4096-byte alignment")

    def prepare(self) -> None:
        try:
            self._ring(DEPTH - 1)
        except OSError:
            self.close()
            raise

    def _ring(self, place: int) -> Ring:
        """The ring of a place, made when first needed: the kernel gives out a limited number (fs.aio-max-nr)."""
        while place >= len(self._rings):
            self._rings.append(Ring(self._kernel))
        return self._rings[place]

    def begin(self, offsets: Ints, sizes: Ints) -> Any:
        unit = self._align
        first = offsets // unit * unit
        length = -(-(offsets + sizes) // unit) * unit - first
        starts, end = _spread(length, _PAGE)
        place, data = self._take(end, whole=int(length.max(initial=0)) > _PAGE)
        ring = self._ring(place)
        under_way = min(len(offsets), RING)
        addresses = data.ctypes.data + starts
        ring.submit(self.fd, first[:under_way], length[:under_way], addresses[:under_way])
        skip = offsets - first
        return place, ring, data, starts + skip, first, length, addresses, sizes + skip, under_way

    def finish(self, ticket: Any, *, in_place: bool = False) -> tuple[Bytes, Ints, Bools]:
        place, ring, data, starts, first, length, addresses, needed, under_way = ticket
        got = ring.wait(under_way)
        for at in range(under_way, len(first), RING):
            part = slice(at, at + RING)
            ring.submit(self.fd, first[part], length[part], addresses[part])
            got = np.concatenate((got, ring.wait(len(first[part]))))
        self._taken.remove(place)
        return data, starts, got >= needed

    def begin_rows(self, offsets: Ints, size: int) -> Any:
        if self._align > 512:  # more is read than asked for, and records do not begin where rows do
            return super().begin_rows(offsets, size)
        place, data = self._take(len(offsets) * _spacing(size), whole=size > _PAGE)
        ring, address = self._ring(place), self._staging[place].address
        ring.submit_rows(self.fd, offsets[:RING], _padded(size), address, _spacing(size))
        return place, ring, data, offsets, size, address

    def finish_rows(self, ticket: Any, *, in_place: bool = False) -> tuple[Bytes, Ints, Bools]:
        if self._align > 512:
            return super().finish_rows(ticket)
        place, ring, data, offsets, size, address = ticket
        n, stride = len(offsets), _spacing(size)
        ok = ring.wait_rows(min(n, RING), size)
        for at in range(RING, n, RING):
            part = offsets[at : at + RING]
            ring.submit_rows(self.fd, part, _padded(size), address + at * stride, stride)
            ok = np.concatenate((ok, ring.wait_rows(len(part), size)))
        self._taken.remove(place)
        return data, np.arange(0, n * stride, stride), ok

    def close(self) -> None:
        for ring in self._rings:
            ring.close()
        self._rings = []
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


# -- the page cache ----------------------------------------------------------------------------------------------------


class MappedEngine(Engine):
    """Copies out of a mapping."""

    name = "mapped"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._data: Bytes = np.zeros(0, np.uint8)

    def begin(self, offsets: Ints, sizes: Ints) -> Any:
        return offsets, sizes

    def finish(self, ticket: Any, *, in_place: bool = False) -> tuple[Bytes, Ints, Bools]:
        offsets, sizes = ticket
        ends = offsets + sizes
        ok = ends <= self._map(int(ends.max(initial=0)))
        if in_place:
            return self._data, offsets, ok
        starts, end = _spread(sizes)
        out = self._copies(end)
        for offset, size, start, fits in zip(
            offsets.tolist(), sizes.tolist(), starts.tolist(), ok.tolist(), strict=True
        ):
            if fits:
                out[start : start + size] = self._data[offset : offset + size]
        return out, starts, ok

    def _copies(self, size: int) -> Bytes:
        """Memory for the copies of one read; there is only ever one, since all of it happens in `finish`."""
        place, data = self._take(size)
        self._taken.remove(place)
        return data

    def _map(self, end: int) -> int:
        """Make sure that the file is mapped up to `end`, or as far as it goes; returns how far that is.

        Touching a page beyond the end of the file would kill the process, so its length is asked for every time.
        """
        length = os.fstat(self.fd).st_size
        if len(self._data) < length and end > len(self._data):
            self._data = mapped(self.fd)
        return length

    def begin_rows(self, offsets: Ints, size: int) -> Any:
        return offsets, size

    def finish_rows(self, ticket: Any, *, in_place: bool = False) -> tuple[Bytes, Ints, Bools]:
        offsets, size = ticket
        n, stride = len(offsets), _padded(size)
        last = int(offsets.max(initial=0))
        length = self._map(last + size)
        if in_place and last + size <= length:
            return self._data, offsets, np.ones(n, bool)
        whole = min(length, len(self._data)) // stride
        numbers = offsets // stride
        # (A record may end the file where its last unit does not: then it is in no whole row.)
        if not n or in_place or last >= whole * stride or not np.array_equal(numbers * stride, offsets):
            return self.finish((offsets, np.full(n, size, np.int64)), in_place=in_place)
        out = self._copies(n * stride)
        rows = self._data[: whole * stride].reshape(-1, stride)
        np.take(rows, numbers, axis=0, out=out[: n * stride].reshape(n, stride), mode="clip")
        return out, np.arange(0, n * stride, stride), np.ones(n, bool)

    def close(self) -> None:
        self._data = np.zeros(0, np.uint8)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class PreadvEngine(Engine):
    """A few threads that call preadv."""

    name = "preadv"
    threads = 4

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="carm-read")

    def begin(self, offsets: Ints, sizes: Ints) -> Any:
        starts, end = _spread(sizes)
        place, data = self._take(end)
        ok = np.zeros(len(offsets), bool)
        view = data.data
        share = -(-len(offsets) // self.threads) or 1
        jobs: list[Future[None]] = []
        try:
            for part in (slice(at, at + share) for at in range(0, len(offsets), share)):
                jobs.append(
                    self._pool.submit(self._read_some, view, offsets[part], sizes[part], starts[part], ok[part])
                )
        except RuntimeError:  # the interpreter is going down, and pools take no more
            self._read_some(view, offsets, sizes, starts, ok)
        return place, jobs, data, starts, ok

    def _read_some(self, view: memoryview, offsets: Ints, sizes: Ints, starts: Ints, ok: Bools) -> None:
        for i, (offset, size, start) in enumerate(zip(offsets.tolist(), sizes.tolist(), starts.tolist(), strict=True)):
            with contextlib.suppress(OSError):  # an unreadable record is not ok; the others are read
                ok[i] = os.preadv(self.fd, [view[start : start + size]], offset) == size

    def finish(self, ticket: Any, *, in_place: bool = False) -> tuple[Bytes, Ints, Bools]:
        place, jobs, data, starts, ok = ticket
        for job in jobs:
            job.result()
        self._taken.remove(place)
        return data, starts, ok

    def close(self) -> None:
        self._pool.shutdown()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


# -- choosing ----------------------------------------------------------------------------------------------------------

ENGINES: dict[str, type[Engine]] = {"aio": AioEngine, "mapped": MappedEngine, "preadv": PreadvEngine}


def check_engine(name: str) -> None:
    """Complain about the name of an engine that there is none of."""
    if name != "auto" and name not in ENGINES:
        raise ValueError(f"engine={name!r}: must be 'auto' or one of {', '.join(map(repr, ENGINES))}")


def open_engine(name: str, path: Path, offsets: Ints | None = None, sizes: Ints | None = None) -> Engine:
    """The engine called `name`; with "auto" the one that reads these extents fastest.

    Without extents to time (a new store) "auto" is the first that works of aio and preadv: what has just been written
    is in the page cache, so a timing would say little about later, and these two do not turn the page cache into a
    second memory.
    """
    check_engine(name)
    if name != "auto":
        try:
            return ENGINES[name](path)
        except OSError as error:
            raise ValueError(
                f"engine={name!r} does not work for {path}: {error.strerror}; use engine='auto'"
            ) from error
    if offsets is None or sizes is None or len(offsets) < 32:
        try:
            return AioEngine(path)
        except OSError:
            return PreadvEngine(path)
    return _fastest(path, offsets, sizes)


def _fastest(path: Path, offsets: Ints, sizes: Ints) -> Engine:
    """Time each engine on different, randomly spread extents of about 1 MB in all, and keep the best."""
    rng = np.random.default_rng()
    count = int(np.clip((1 << 20) // max(int(sizes.mean()), 1), 8, 128))
    best: tuple[float, Engine] | None = None
    for kind in ENGINES.values():
        try:
            engine = kind(path)
        except OSError:
            continue
        seconds = []
        for _ in range(3):
            chosen = rng.integers(0, len(offsets), count)
            begun = time.perf_counter()
            engine.read(offsets[chosen], sizes[chosen])
            seconds.append(time.perf_counter() - begun)
        taken = sorted(seconds)[1]
        if best is None or taken < best[0]:
            if best is not None:
                best[1].close()
            best = taken, engine
        else:
            engine.close()
    if best is None:
        raise OSError(errno.EIO, f"no engine can read {path}")
    return best[1]
