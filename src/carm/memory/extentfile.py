"""The extent file: where the bytes of the stored samples lie. Written here, read by the engines in `aio`.

A store that is full writes new samples where others were, here and there in the file. So all stretches go out in one
system call: between hundreds of them a training loop would have to hand over the interpreter each time. And a store
that is read past the page cache is written past it too: a page that is not in the cache has to be read before a part of
it can be written there. 256 records of 3 KB take 1.5 ms so instead of 17, and a fifteenth of the processor's time.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carm.memory import directory as directories
from carm.memory.extents import UNIT, padded_each
from carm.memory.move import scatter
from carm.memory.record import Bytes
from carm.memory.ring import RING, WRITE, Kernel, Ring, Staging

log = logging.getLogger("carm")

NAME = "extents.dat"
_STEP = 4 << 20  # the file grows by whole steps, so that most appends change no file size
_SPARE = 16 << 20  # of the device, for the catalogue; less on small ones
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the kernel says when there is no room: on the device, in the quota, under the process's file size limit."""

_PIECE = 4 << 20  # bytes that are laid out and written at a time

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Batched:
    """Writes many stretches of a file in one system call, past the page cache (`direct`) or through it. Raises OSError
    where that is not to be had."""

    def __init__(self, path: Path, *, direct: bool) -> None:
        self.direct = direct
        kernel = Kernel()
        self.fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0))
        try:
            self._ring = Ring(kernel, WRITE)
        except OSError:
            os.close(self.fd)
            raise

    def write(self, offsets: Ints, lengths: Ints, addresses: Ints) -> Bools:
        """Write so many bytes of memory at each of `offsets`; returns where all of them were."""
        done = np.zeros(len(offsets), bool)
        for at in range(0, len(offsets), RING):
            part = slice(at, at + RING)
            self._ring.submit(self.fd, offsets[part], lengths[part], addresses[part])
            done[part] = self._ring.wait(len(done[part])) == lengths[part]
        return done

    def close(self) -> None:
        """Wait for what is under way, and let go of the file."""
        self._ring.close()
        os.close(self.fd)


class ExtentFile:
    """The file in `directory`, open for writing; with `direct` past the page cache, where the system can do that."""

    def __init__(self, directory: Path, *, direct: bool = False) -> None:
        self.path = directory / NAME
        created = not self.path.exists()
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if created:
            directories.sync(directory)
        self.size = os.fstat(self.fd).st_size
        self._staging = Staging()
        self._uncached = direct
        self._batched = self._open_batched(direct)

    def _open_batched(self, direct: bool) -> Batched | None:
        """The best way to write that there is here."""
        for way in (True, False) if direct else (False,):
            try:
                return Batched(self.path, direct=way)
            except OSError as error:
                log.info("%s: cannot be written with %s: %s", self.path, "O_DIRECT" if way else "Linux AIO", error)
        return None

    def reserve(self, end: int, limit: int | None = None) -> None:
        """Make the file at least `end` bytes long, blocks included, so that a full device shows before data is written.

        `limit` keeps the growth by steps from passing what the store may take.
        """
        if end <= self.size:
            return
        least = -(-end // UNIT) * UNIT
        for step in (_STEP, 4096):  # near the end of the device, take only what is needed
            size = -(-end // step) * step
            if limit is not None:
                size = max(least, min(size, limit // UNIT * UNIT))
            try:
                self._check_device(size - self.size)
                os.posix_fallocate(self.fd, self.size, size - self.size)
            except OSError as error:
                if error.errno in FULL and step > 4096:
                    continue
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    raise
                os.ftruncate(self.fd, max(size, os.fstat(self.fd).st_size))
            self.size = size
            return

    def _check_device(self, growth: int) -> None:
        """Leave room on the device for the catalogue: where it cannot commit, nothing can even be evicted."""
        device = os.fstatvfs(self.fd)
        spare = min(max(device.f_blocks * device.f_frsize // 16, _SPARE // 16), _SPARE)
        if device.f_blocks and device.f_bavail * device.f_frsize - growth < spare:
            raise OSError(errno.ENOSPC, "no room for the extent file", str(self.path))

    def write(self, data: Bytes, starts: Ints, sizes: Ints, offsets: Ints, limit: int | None = None) -> None:
        """Write record i of `data` at `offsets[i]`, and return when all are on the device."""
        if not len(starts):
            return
        self.reserve(int((offsets + sizes).max()), limit)
        if np.any(offsets[1:] < offsets[:-1]):
            order = np.argsort(offsets, kind="stable")
            offsets, starts, sizes = offsets[order], starts[order], sizes[order]
        room = padded_each(sizes)
        ends = np.cumsum(room)
        at, cached = 0, False
        while at < len(offsets):
            to = int(np.searchsorted(ends, ends[at] - room[at] + _PIECE, side="right"))
            if to <= at:  # a record so large that a copy of it would be the costly part
                self._write_all(data[starts[at] : starts[at] + sizes[at]], int(offsets[at]))
                at, cached = at + 1, True
            else:
                part = slice(at, to)
                cached |= self._write_piece(data, starts[part], sizes[part], offsets[part], room[part])
                at = to
        os.fdatasync(self.fd)
        if cached and self._uncached:
            self._forget()

    def _write_piece(self, data: Bytes, starts: Ints, sizes: Ints, offsets: Ints, room: Ints) -> bool:
        """Write these records, which are in the file's order. Returns whether that left any in the page cache."""
        places = np.cumsum(room) - room
        total = int(room.sum())
        memory = self._staging.reserve(total)[:total]
        _lay_out(memory, data, starts, sizes)
        # Neighbouring extents go out in one stretch.
        first = np.concatenate(([0], np.flatnonzero(offsets[1:] != offsets[:-1] + room[:-1]) + 1))
        offsets, places = offsets[first], places[first]
        lengths = np.diff(places, append=total)
        cached = False
        while self._batched is not None and len(offsets):
            done = self._write_batched(self._batched, offsets, lengths, self._staging.address + places)
            cached |= bool(done.any()) and not self._batched.direct
            offsets, places, lengths = offsets[~done], places[~done], lengths[~done]
            if len(offsets):
                self._next_best(self._batched)
        for offset, place, length in zip(offsets.tolist(), places.tolist(), lengths.tolist(), strict=True):
            self._write_all(memory[place : place + length], offset)
        return cached or len(offsets) > 0

    def _write_batched(self, batched: Batched, offsets: Ints, lengths: Ints, addresses: Ints) -> Bools:
        """Which stretches were written. Those that were not are tried again in other ways, the last of which tells what
        is wrong, if anything is."""
        try:
            return batched.write(offsets, lengths, addresses)
        except OSError as error:
            log.info("%s: %s", self.path, error)
            return np.zeros(len(offsets), bool)
        except BaseException:
            self._next_best(batched)  # waits: the memory may be in use until then
            raise

    def _next_best(self, batched: Batched) -> None:
        batched.close()
        self._batched = self._open_batched(False) if batched.direct else None

    def _write_all(self, data: Bytes, offset: int) -> None:
        view = data.data
        while len(view):
            written = os.pwrite(self.fd, view, offset)
            view, offset = view[written:], offset + written

    def _forget(self) -> None:
        """Ask the kernel not to keep the file in its cache: memory that nobody counts, and that swapping would not
        use."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._batched is not None:
            self._batched.close()
            self._batched = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _lay_out(out: Bytes, data: Bytes, starts: Ints, sizes: Ints) -> None:
    """Records of `data` side by side, each at the beginning of whole units that are zero behind it."""
    n, size = len(starts), int(sizes[0])
    gap = int(starts[1] - starts[0]) if n > 1 else 0
    if gap >= size and (sizes == size).all() and (np.diff(starts) == gap).all():  # evenly spaced: one copy for all
        rows = out.view(np.uint64).reshape(n, -1)
        rows[:, : size // 8] = np.ndarray((n, size // 8), np.uint64, data.data, int(starts[0]), (gap, 8))
        rows[:, size // 8 :] = 0
        return
    out[:] = 0
    scatter(out.reshape(-1, UNIT), np.arange(len(out) // UNIT), data, starts, sizes)
