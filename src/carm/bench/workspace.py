"""The directory that a run works in, and the stores in it, each made when first asked for."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carm.bench.sizes import Sizes
from carm.memory.batch import Batch
from carm.memory.extentfile import NAME as EXTENTS
from carm.memory.gate import Entropy, Gate
from carm.memory.memory import Memory
from carm.memory.record import Field, Schema
from carm.memory.store import Store

CLASSES = 100
SMALL = Schema((Field("x", "uint8", (3, 32, 32)), Field("y", "int64")))
"""A CIFAR image and its label, 3,080 bytes."""
LARGE = Schema((Field("x", "uint8", (110 * 1024,)), Field("y", "int64")))
"""About what a JPEG of ImageNet takes, at a fixed size so that both sides copy the same."""
TINY = Schema((Field("x", "uint8", (56,)), Field("y", "int64")))
"""64 bytes, to have a million of them."""
NOTHING = Batch({}, np.zeros(0, np.int64), np.zeros(0, np.int64))
"""Feedback on this orders nothing, and looks at the worker's reports."""


def samples(schema: Schema, count: int, rng: np.random.Generator) -> dict[str, NDArray[np.generic]]:
    """Random samples of `schema`, with labels that go round."""
    shape = schema.field("x").shape
    assert shape is not None
    x = np.frombuffer(rng.bytes(count * int(np.prod(shape))), np.uint8).reshape(count, *shape)
    return {"x": x, "y": np.arange(count) % CLASSES}


class Workspace:
    """Files of one run."""

    def __init__(self, directory: Path, sizes: Sizes) -> None:
        self.directory = directory
        self.sizes = sizes
        self._made: set[str] = set()

    def store(self, name: str, schema: Schema, count: int, *, batch: int) -> Path:
        """The directory of a store with `count` samples, appended `batch` at a time."""
        path = self.directory / name
        if name not in self._made:
            rng = np.random.default_rng(0)
            with Store(path, schema=schema) as store:
                part = samples(schema, min(batch, count), rng)
                for at in range(0, count, batch):
                    n = min(batch, count - at)
                    store.append({key: value[:n] for key, value in part.items()})
            self._made.add(name)
        return path

    def small(self) -> Path:
        return self.store("small", SMALL, self.sizes.small_records, batch=4096)

    def large(self) -> Path:
        return self.store("large", LARGE, self.sizes.large_records, batch=256)

    def discard(self, name: str) -> None:
        """Delete a store that is no longer needed: a run should not take more disk than it must."""
        shutil.rmtree(self.directory / name, ignore_errors=True)
        self._made.discard(name)


def offsets_of(store: Path) -> tuple[NDArray[np.int64], int]:
    """Where the extents of a store with records of one size begin, and how many bytes each takes on the device."""
    with Store(store, readonly=True) as opened:
        assert opened.schema is not None
        return opened.index.offsets.copy(), -(-opened.schema.head_size // 512) * 512


@contextlib.contextmanager
def open_memory(
    store: Path, slots: int, *, queue: int, swap: str, engine: str, gate: Gate | None = None
) -> Iterator[Memory]:
    """A memory over a store that has samples already: its RAM tier fills itself. Everything that is drawn may be
    swapped.
    """
    with Memory(
        slots=slots,
        storage=store,
        gate=gate if gate is not None else Entropy(1.0),
        swap=swap,
        engine=engine,
        queue=queue,
    ) as memory:
        yield memory


def fill_cache(directory: Path) -> None:
    """Bring a store's extents into the page cache."""
    with open(directory / EXTENTS, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass
