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
from carm.memory.record import Bytes, in_pieces
from carm.memory.ring import RING, WRITE, Kernel, Ring, Staging

log = logging.getLogger("carm")

NAME = "extents.dat"
_STEP = 4 << 20  # the file grows by whole steps, so that most appends change no file size
_SPARE = 16 << 20  # of the device, for the catalogue; less on small ones
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the kernel says when there is no room: on the device, in the quota, under the process's file size limit."""

_PIECE = 4 << 20  # bytes that are laid out and written at a time
_FEW = 4  # stretches that are written one after the other

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


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
        self._ring: Ring | None = None  # made when there is much to do at once: to let go of one takes 30 ms
        self._uncached = direct
        self._direct = -1  # a descriptor past the page cache
        if direct:
            try:
                self._direct = os.open(self.path, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)
            except (OSError, AttributeError) as error:
                log.info("%s: written through the page cache: %s", self.path, error)

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
        cached = False
        for part in in_pieces(room, _PIECE):
            if room[part.start] > _PIECE:  # a record so large that a copy of it would be the costly part
                start, size = int(starts[part.start]), int(sizes[part.start])
                self._write_all(data[start : start + size], int(offsets[part.start]))
                cached = True
            else:
                cached |= self._write_piece(data, starts[part], sizes[part], offsets[part], room[part])
        os.fdatasync(self.fd)
        if cached and self._uncached:
            self._forget()

    def _write_piece(self, data: Bytes, starts: Ints, sizes: Ints, offsets: Ints, room: Ints) -> bool:
        """Write these records, which are in the file's order. Returns whether that left any in the page cache."""
        places = np.cumsum(room) - room
        total = int(room.sum())
        memory = self._staging.reserve(total, whole=self._direct >= 0)[:total]
        _lay_out(memory, data, starts, sizes)
        # Neighbouring extents go out in one stretch.
        first = np.concatenate(([0], np.flatnonzero(offsets[1:] != offsets[:-1] + room[:-1]) + 1))
        offsets, places = offsets[first], places[first]
        lengths = np.diff(places, append=total)
        if self._direct >= 0:
            done = self._write_some(self._direct, memory, offsets, places, lengths)
            offsets, places, lengths = offsets[~done], places[~done], lengths[~done]
            if len(offsets):
                self._close_direct()  # a device with larger sectors, say
        cached = len(offsets) > 0
        if len(offsets) > _FEW:
            done = self._write_some(self.fd, memory, offsets, places, lengths)
            offsets, places, lengths = offsets[~done], places[~done], lengths[~done]
        for offset, place, length in zip(offsets.tolist(), places.tolist(), lengths.tolist(), strict=True):
            self._write_all(memory[place : place + length], offset)
        return cached

    def _write_some(self, fd: int, memory: Bytes, offsets: Ints, places: Ints, lengths: Ints) -> Bools:
        """Write what is at `places` of the staging memory; returns which stretches were written whole. Why others were
        not shows when they are written in the plainest way."""
        done = np.zeros(len(offsets), bool)
        try:
            if len(offsets) <= _FEW:
                for i, (offset, place, length) in enumerate(zip(offsets, places, lengths, strict=True)):
                    done[i] = os.pwrite(fd, memory[place : place + length].data, int(offset)) == length
                return done
            if self._ring is None:
                self._ring = Ring(Kernel(), WRITE)
            for at in range(0, len(offsets), RING):
                part = slice(at, at + RING)
                self._ring.submit(fd, offsets[part], lengths[part], self._staging.address + places[part])
                done[part] = self._ring.wait(len(done[part])) == lengths[part]
        except OSError as error:
            log.info("%s: %s", self.path, error)
            self._close_ring()
        except BaseException:
            self._close_ring()
            raise
        return done

    def _close_ring(self) -> None:
        """Waits for what is under way: until then the memory is in use."""
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()

    def _close_direct(self) -> None:
        if self._direct >= 0:
            os.close(self._direct)
            self._direct = -1

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
        self._close_ring()
        self._close_direct()
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
