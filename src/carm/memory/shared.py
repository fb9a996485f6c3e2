"""A block of memory that other processes can map.

On Linux it is a memfd: unlike a named segment in /dev/shm it cannot leak (the kernel frees it with its last user, also
after kill -9), is not limited by a container's 64 MB /dev/shm, and costs memory only where it has been written.
Elsewhere it is an unlinked temporary file. Forked children have the mapping already; a spawned child gets the file
descriptor with the pickle.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import threading
from multiprocessing import reduction
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LOCK = threading.Lock()


def _after_fork() -> None:
    """Another thread may have held it, which the child does not have."""
    global _LOCK
    _LOCK = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def fence() -> None:
    """Order memory accesses before the call against those after it, as other processes see them.

    x86 keeps plain loads and plain stores in order; ARM does not. A lock is the only thing in pure Python that does:
    what comes before cannot sink below a release, what comes after cannot rise above the next acquisition, hence twice.
    """
    with _LOCK:
        pass
    with _LOCK:
        pass


class SharedBlock:
    """`size` bytes of zeros, shared with every process that gets this object."""

    fd = -1

    def __init__(self, size: int) -> None:
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        if hasattr(os, "memfd_create"):
            self.fd = os.memfd_create("carm-ram", os.MFD_CLOEXEC)
        else:  # pragma: no cover - not Linux
            handle, path = tempfile.mkstemp(prefix="carm-ram-")
            os.unlink(path)
            self.fd = handle
        os.ftruncate(self.fd, self.size)
        self._map = mmap.mmap(self.fd, self.size)

    @classmethod
    def attach(cls, fd: int, size: int) -> SharedBlock:
        """The block behind a descriptor that another process passed on."""
        self = cls.__new__(cls)
        self.fd, self.size = fd, size
        self._map = mmap.mmap(fd, size)
        return self

    def bytes(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        """Give the descriptor back. The mapping itself goes with the last array that looks at it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __reduce__(self) -> Any:
        if sys.platform == "win32":  # pragma: no cover
            raise NotImplementedError("sharing the RAM tier with other processes needs a POSIX system")
        return _attach, (reduction.DupFd(self.fd), self.size)

    def __del__(self) -> None:
        self.close()


def _attach(dup: Any, size: int) -> SharedBlock:
    return SharedBlock.attach(dup.detach(), size)
