"""Carousel Memory: a hierarchical episodic memory for continual learning.

    import carm

    memory = carm.Memory(slots=2000, storage="runs/memory", gate=carm.Entropy(ratio=0.5))

Names are resolved when first used: the swap worker's helper process imports this package too, and needs neither torch
nor anything else that is slow to load.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carm.memory.batch import Batch
    from carm.memory.errors import (
        CarmError,
        CheckpointError,
        CorruptRecord,
        SchemaError,
        StoreError,
        StoreFull,
        StoreLocked,
        WorkerError,
    )
    from carm.memory.gate import AutoRatio, Dynamic, Entropy, Gate, Random, Signals
    from carm.memory.memory import Memory
    from carm.memory.ram import RamReader
    from carm.memory.record import Field, Schema
    from carm.memory.select import GreedyBalanced, Herding, Reservoir, Ring, Selection, UncertaintySpread
    from carm.memory.store import Store

__version__ = "0.1.0"

_HOME = {
    "carm.memory.memory": ("Memory",),
    "carm.memory.batch": ("Batch",),
    "carm.memory.record": ("Field", "Schema"),
    "carm.memory.ram": ("RamReader",),
    "carm.memory.store": ("Store",),
    "carm.memory.select": ("Selection", "Reservoir", "Ring", "GreedyBalanced", "Herding", "UncertaintySpread"),
    "carm.memory.gate": ("Gate", "Random", "Entropy", "Dynamic", "Signals", "AutoRatio"),
    "carm.memory.errors": (
        "CarmError",
        "SchemaError",
        "StoreError",
        "StoreLocked",
        "StoreFull",
        "CorruptRecord",
        "CheckpointError",
        "WorkerError",
    ),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "AutoRatio",
    "Batch",
    "CarmError",
    "CheckpointError",
    "CorruptRecord",
    "Dynamic",
    "Entropy",
    "Field",
    "Gate",
    "GreedyBalanced",
    "Herding",
    "Memory",
    "RamReader",
    "Random",
    "Reservoir",
    "Ring",
    "Schema",
    "SchemaError",
    "Selection",
    "Signals",
    "Store",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "UncertaintySpread",
    "WorkerError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        value = getattr(importlib.import_module(_WHERE[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'carm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
