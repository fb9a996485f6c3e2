"""Linux AIO: many reads or writes of a file in one system call.

The control blocks of a whole request are filled as one numpy array, then there is one io_submit and one io_getevents,
through ctypes. Both want O_DIRECT (without it the kernel does one after the other), and so memory and offsets that are
aligned.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import platform
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carm.memory.record import Bytes

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Staging:
    """Page-aligned memory that grows to the largest request it has seen.

    Memory that is `whole` comes in pages of 2 MB, if the kernel has any: a device takes what lies together in memory in
    one transfer, and what lies in pages of 4 KB in as many as there are. (Records of 110 KB are read three times as
    fast.)
    """

    def __init__(self) -> None:
        self.data: Bytes = np.zeros(0, np.uint8)
        self.address = 0
        self._whole = False

    def reserve(self, size: int, *, whole: bool = False) -> Bytes:
        if size > len(self.data) or (whole and not self._whole):
            whole = self._whole = (whole or self._whole) and _HUGE is not None
            self.data = _huge_pages(size) if whole else _pages(size + size // 4)
            self.address = self.data.ctypes.data
        return self.data


def _pages(size: int) -> Bytes:
    return np.frombuffer(mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE), np.uint8)


_HUGE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)
_HUGE_PAGE = 2 << 20
_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, for which Python has no name


def _huge_pages(size: int) -> Bytes:
    """Such memory is private to a process, where the other kind is shared with its children. When a process forks while
    the device writes to private memory, older kernels may give the page that is written to the child; so children get
    none of it."""
    whole = -(-size // _HUGE_PAGE) * _HUGE_PAGE
    memory = mmap.mmap(-1, whole + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # one more, to align
    try:
        memory.madvise(_WIPE_ON_FORK)
        memory.madvise(_HUGE or 0)
    except OSError:  # a kernel without
        return _pages(size)
    start = -np.frombuffer(memory, np.uint8).ctypes.data % _HUGE_PAGE
    return np.frombuffer(memory, np.uint8, whole, start)


_IOCB = np.dtype(
    [
        *[("data", "<u8"), ("key", "<u4"), ("rw_flags", "<i4"), ("opcode", "<u2"), ("priority", "<i2"), ("fd", "<u4")],
        *[("buf", "<u8"), ("nbytes", "<u8"), ("offset", "<i8"), ("unused", "<u8"), ("flags", "<u4"), ("resfd", "<u4")],
    ]
)
_EVENT = np.dtype([("data", "<u8"), ("obj", "<u8"), ("res", "<i8"), ("res2", "<i8")])
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}  # io_setup, io_destroy, io_submit, io_getevents
RING = 256
"""Requests that a ring takes at once."""
READ, WRITE = 0, 1


class Kernel:
    """The four system calls. glibc has no wrappers for them."""

    def __init__(self) -> None:
        numbers = _CALLS.get(platform.machine())
        if platform.system() != "Linux" or numbers is None:
            raise OSError(errno.ENOSYS, f"Linux AIO is not available on {platform.system()} {platform.machine()}")
        libc = ctypes.CDLL(None, use_errno=True)
        self._syscall = libc.syscall
        self._syscall.restype = ctypes.c_long
        self._setup, self._destroy, self._submit, self._events = (ctypes.c_long(n) for n in numbers)

    def _call(self, *arguments: Any) -> int:
        while True:
            result = int(self._syscall(*arguments))
            if result >= 0:
                return result
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))

    def setup(self, events: int) -> ctypes.c_ulong:
        context = ctypes.c_ulong(0)
        self._call(self._setup, ctypes.c_long(events), ctypes.byref(context))
        return context

    def destroy(self, context: ctypes.c_ulong) -> None:
        self._call(self._destroy, context)

    def submit(self, context: ctypes.c_ulong, count: int, pointers: int) -> int:
        return self._call(self._submit, context, ctypes.c_long(count), ctypes.c_void_p(pointers))

    def events(self, context: ctypes.c_ulong, count: int, out: int) -> int:
        return self._call(
            self._events,
            context,
            ctypes.c_long(count),
            ctypes.c_long(count),
            ctypes.c_void_p(out),
            ctypes.c_void_p(None),
        )


class Ring:
    """One kernel context with its control blocks, for reading or for writing."""

    def __init__(self, kernel: Kernel, operation: int = READ) -> None:
        self.kernel = kernel
        self.context = kernel.setup(RING)
        self.blocks = np.zeros(RING, _IOCB)
        self.blocks["opcode"] = operation
        self.blocks["data"] = np.arange(RING)
        address = self.blocks.ctypes.data
        self.pointers = np.arange(address, address + 64 * RING, 64, dtype=np.uint64)
        self.pointers_at = self.pointers.ctypes.data
        self.results = np.zeros(RING, _EVENT)
        self.results_at = self.results.ctypes.data
        self._offsets, self._got = self.blocks["offset"], self.results["res"]
        self._aim: tuple[int, int, int, int] | None = None

    def submit(self, fd: int, offsets: Ints, sizes: Ints, addresses: Ints) -> None:
        """Begin to read or write `sizes[i]` bytes at `offsets[i]`, to or from `addresses[i]`."""
        n = len(offsets)
        blocks = self.blocks[:n]
        self._aim = None
        blocks["fd"] = fd
        blocks["nbytes"] = sizes
        blocks["buf"] = addresses
        self._submit(offsets)

    def submit_rows(self, fd: int, offsets: Ints, size: int, address: int, stride: int) -> None:
        """`submit` for `size` bytes each, and addresses that lie `stride` apart. Mostly it is the same rows again."""
        aim = fd, size, address, stride
        if self._aim != aim:
            self.blocks["fd"] = fd
            self.blocks["nbytes"] = size
            self.blocks["buf"] = address + np.arange(RING) * stride
            self._aim = aim
        self._submit(offsets)

    def _submit(self, offsets: Ints) -> None:
        n = len(offsets)
        self._offsets[:n] = offsets
        done = 0
        while done < n:
            done += self.kernel.submit(self.context, n - done, self.pointers_at + 8 * done)

    def wait(self, n: int) -> Ints:
        """Bytes moved (or a negative error number) for each of the n submitted blocks."""
        self._wait(n)
        out = np.empty(n, np.int64)
        out[self.results["data"][:n].astype(np.int64)] = self._got[:n]
        return out

    def wait_rows(self, n: int, size: int) -> Bools:
        """Of which of the n submitted blocks at least `size` bytes were moved."""
        self._wait(n)
        if self._got[:n].min(initial=size) >= size:  # in whatever order they came
            return np.ones(n, bool)
        ok = np.zeros(n, bool)
        ok[self.results["data"][:n].astype(np.int64)] = self._got[:n] >= size
        return ok

    def _wait(self, n: int) -> None:
        got = 0
        while got < n:
            got += self.kernel.events(self.context, n - got, self.results_at + 32 * got)

    def close(self) -> None:
        """Let go of the context; waits for what is still under way."""
        with contextlib.suppress(OSError):
            self.kernel.destroy(self.context)
