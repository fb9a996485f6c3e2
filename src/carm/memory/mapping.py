"""A file as memory, with room for it to grow.

Where a mapping ends with its file it has to be made anew whenever the file has grown, and then the kernel has forgotten
which of its pages had been looked at: nearly every record that is read is a page fault once more. So more is mapped
than there is, which costs addresses, but no memory. What lies beyond the end of the file must not be touched.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import numpy as np

from carm.memory.record import Bytes

_ROOM = 64 << 20  # bytes, at least; half the file, if that is more
_FAILED = ctypes.c_void_p(-1).value


def mapped(fd: int) -> Bytes:
    """The bytes of a file, for reading, and some that it does not have yet."""
    length = os.fstat(fd).st_size
    if not length:
        return np.zeros(0, np.uint8)
    roomy = _roomy(fd, length + max(length // 2, _ROOM))
    return np.frombuffer(mmap.mmap(fd, length, prot=mmap.PROT_READ), np.uint8) if roomy is None else roomy


def _roomy(fd: int, size: int) -> Bytes | None:
    """A mapping of so many bytes; None where that cannot be had, for a limit of the process's addresses, say. (Python's
    own mmap refuses to map more than there is.)"""
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    except (OSError, AttributeError, TypeError):  # a system without
        return None
    if address is None or address == _FAILED:
        return None
    held = (ctypes.c_uint8 * size).from_address(address)
    # It goes with the last array that looks at it; not when the interpreter goes down, since a worker may still read.
    weakref.finalize(held, libc.munmap, address, size).atexit = False
    out: Bytes = np.frombuffer(memoryview(held), np.uint8)
    out.flags.writeable = False
    return out
