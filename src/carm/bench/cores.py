"""Which core a device interrupts, and running on a certain one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from carm.bench.raw import RawAio
from carm.bench.workspace import offsets_of
from carm.machine import drop_cache
from carm.memory.extentfile import NAME as EXTENTS

_BATCH, _BATCHES = 128, 32
_CLEARLY = 0.8  # of the interrupts


def _interrupts() -> dict[int, int]:
    """How often devices have interrupted each core."""
    head, *lines = Path("/proc/interrupts").read_text().splitlines()
    cores = [int(name.removeprefix("CPU")) for name in head.split()]
    out = dict.fromkeys(cores, 0)
    for line in lines:
        name, *words = line.split()
        if name.rstrip(":").isdigit():  # the others are not of devices
            for core, count in zip(cores, words, strict=False):
                out[core] += int(count)
    return out


def interrupted_core(store: Path) -> int | None:
    """The core that is interrupted when records of this store are read from the device; None if it is not clearly one
    of several that we may run on."""
    offsets, size = offsets_of(store)
    drop_cache(store)
    rng = np.random.default_rng(5)
    try:
        before = _interrupts()
        aio = RawAio(store / EXTENTS, size=size, batch=min(_BATCH, len(offsets)))
        aio.read([rng.choice(offsets, min(_BATCH, len(offsets)), replace=False) for _ in range(_BATCHES)], in_flight=2)
        aio.close()
        came = {core: count - before.get(core, 0) for core, count in _interrupts().items()}
        ours = os.sched_getaffinity(0)
    except (OSError, KeyError, ValueError, AttributeError):  # not on this system
        return None
    most = max(came, key=lambda core: came[core])
    clear = came[most] >= max(_CLEARLY * sum(came.values()), _BATCHES)
    return most if clear and most in ours and len(ours) > 1 else None


@contextlib.contextmanager
def kept_on(*cores: int) -> Iterator[None]:
    """This thread on these cores; others go where they like."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def kept_from(core: int | None) -> contextlib.AbstractContextManager[None]:
    """This thread on all cores but this one."""
    return contextlib.nullcontext() if core is None else kept_on(*(os.sched_getaffinity(0) - {core}))
