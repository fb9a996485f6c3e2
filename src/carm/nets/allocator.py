"""Memory that training frees, kept for the next step."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_KEPT = 512 << 20
_LARGEST = 32 << 20


def keep_freed_memory() -> bool:
    """Have the C library keep what a training step frees, up to 512 MiB, instead of giving it back to the kernel.

    A step frees its activations, and the next one takes as much again. Where the C library returns them, the kernel has
    to clear and map every page anew, and with threads it interrupts the other cores for it. Returns whether that could
    be set: glibc only, and for the whole process. Tensors of more than 32 MiB are still returned at once.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return bool(mallopt and mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, _KEPT))
