"""The extent file: where the bytes of the stored samples lie. Written here, read by the engines in `aio`."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carm.memory import directory as directories
from carm.memory.extents import UNIT
from carm.memory.record import Bytes

NAME = "extents.dat"
_STEP = 4 << 20  # the file grows by whole steps, so that most appends change no file size
_SPARE = 16 << 20  # of the device, for the catalogue; less on small ones
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What the kernel says when there is no room: on the device, in the quota, under the process's file size limit."""

Ints = NDArray[np.int64]


class ExtentFile:
    """The file in `directory`, open for writing."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        created = not self.path.exists()
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if created:
            directories.sync(directory)
        self.size = os.fstat(self.fd).st_size

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
        order = np.argsort(offsets, kind="stable")
        offsets, starts, sizes = offsets[order], starts[order], sizes[order]
        room = -(-sizes // 512) * 512
        # Neighbouring extents go out in one call, with zeros between a record's end and the next extent.
        breaks = np.flatnonzero(offsets[1:] != offsets[:-1] + room[:-1]) + 1
        for first, last in zip([0, *breaks.tolist()], [*breaks.tolist(), len(offsets)], strict=True):
            self._write_all(
                _side_by_side(data, starts[first:last], sizes[first:last], room[first:last]), offsets[first]
            )
        os.fdatasync(self.fd)

    def _write_all(self, data: Bytes, offset: int) -> None:
        view = data.data
        while len(view):
            written = os.pwrite(self.fd, view, offset)
            view, offset = view[written:], offset + written

    def forget(self) -> None:
        """Ask the kernel not to keep the file in its cache: memory that nobody counts, and that swapping would not
        use."""
        if hasattr(os, "posix_fadvise"):
            with contextlib.suppress(OSError):
                os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _side_by_side(data: Bytes, starts: Ints, sizes: Ints, room: Ints) -> Bytes:
    """Records of `data`, each at the beginning of so much room; the last without what is left of its own."""
    n, size = len(starts), int(sizes[0])
    if n == 1:
        return data[int(starts[0]) : int(starts[0]) + size]
    out = np.zeros(int(room.sum()), np.uint8)
    gaps = np.diff(starts)
    if (sizes == size).all() and (gaps == gaps[0]).all() and gaps[0] >= size:  # evenly spaced: one copy for all
        rows = np.ndarray((n, size // 8), np.uint64, data.data, int(starts[0]), (int(gaps[0]), 8))
        out.view(np.uint64).reshape(n, -1)[:, : size // 8] = rows
    else:
        places = np.cumsum(room) - room
        for start, length, place in zip(starts.tolist(), sizes.tolist(), places.tolist(), strict=True):
            out[place : place + length] = data[start : start + length]
    return out[: len(out) - int(room[-1] - sizes[-1])]
