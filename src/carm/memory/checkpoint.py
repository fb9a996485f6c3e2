"""What `Memory.state_dict` holds, and how a memory becomes what it was."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from carm.memory.errors import CheckpointError
from carm.memory.keep import load_stored
from carm.memory.ram import RamTier
from carm.memory.record import Records, Schema
from carm.memory.select import Selection
from carm.memory.store import Store

VERSION = 2
_KEYS = frozenset(
    ("slots", "ram_bytes", "schema", "select", "gate", "rng", "draws", "stats", "seen", "next_id", "storage", "ram")
)


def on_cpu(state: Any) -> Any:
    """The same with all tensors on the CPU: `torch.load(..., map_location=...)` may have put them elsewhere."""
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, Mapping):
        return {name: on_cpu(value) for name, value in state.items()}
    if isinstance(state, list):
        return [on_cpu(value) for value in state]
    return tuple(on_cpu(value) for value in state) if isinstance(state, tuple) else state


def store_state(store: Store) -> dict[str, Any]:
    """The store's moment, and the order of its index: random choices depend on it."""
    index = store.index
    order = [(c, torch.from_numpy(index.ids[items]), torch.from_numpy(held)) for c, items, held in index.sets.order()]
    counters = {"evicted": store.evicted, "corrupt": store.corrupt, "largest": store._largest}
    return store.checkpoint() | counters | {"order": order, "evict": dict(store.rng.bit_generator.state)}


def load_store(store: Store, state: Mapping[str, Any]) -> None:
    """Take the store back to that moment, without what it has lost since (to a file that was cut short, say)."""
    before = store.corrupt
    store.restore(dict(state))
    lost, order = store.corrupt - before, []
    for label, ids, held in state["order"]:
        handles = store.index.find(ids.numpy())
        there = handles >= 0
        order.append((int(label), handles[there], held.numpy()[there]))
    store.index.sets.restore(order)
    store.rng.bit_generator.state = state["evict"]
    store.evicted, store.corrupt, store._largest = state["evicted"], state["corrupt"] + lost, state["largest"]


def ram_state(ram: RamTier) -> dict[str, Any]:
    """Which sample is in which slot; bytes only of samples that are nowhere else."""
    used = ram.used()
    loose = used[ram.handles[used] < 0]
    data, starts = ram.read(loose)
    layout = ram.layout
    return {
        "layout": [layout.capacity, layout.blocks, layout.block, ram.spare],
        "ids": torch.from_numpy(ram.ids.copy()),
        "limit": ram.limit,
        "order": [(label, torch.from_numpy(items)) for label, items, _ in ram.sets.order()],
        "loose": torch.from_numpy(loose),
        "loose_labels": torch.from_numpy(ram.labels[loose]),
        "loose_bytes": torch.from_numpy(data.copy()),
        "loose_starts": torch.from_numpy(starts),
        "loose_sizes": torch.from_numpy(ram.arrays.sizes[ram.rows(loose)].astype(np.int64)),
    }


def make_ram(schema: Schema, state: Mapping[str, Any]) -> RamTier:
    """An empty RAM tier of the size that it had: from typical sizes of samples now, it would get another."""
    slots, blocks, block, spare = map(int, state["layout"])
    return RamTier(schema, slots, blocks=blocks, block=block, spare=spare)


def load_ram(ram: RamTier, store: Store | None, state: Mapping[str, Any]) -> None:
    """Fill an empty RAM tier: stored samples are read from the store, which holds them already."""
    ids, loose = state["ids"].numpy(), state["loose"].numpy()
    stored = np.setdiff1d(np.flatnonzero(ids >= 0), loose)
    if len(stored):
        handles = store.index.find(ids[stored]) if store is not None else np.full(len(stored), -1)
        if (
            store is None
            or (handles < 0).any()
            or load_stored(ram, store, stored, handles.astype(np.int32)) < len(stored)
        ):
            raise CheckpointError(
                "samples that were in RAM are missing from storage or damaged; this is no exact way back"
            )
    if len(loose):
        sizes, labels = state["loose_sizes"].numpy(), state["loose_labels"].numpy()
        blocks = ram.allocate(sizes)
        if blocks is None:
            raise CheckpointError(f"the state has {int(sizes.sum())} bytes of samples, and there is no room for them")
        records = Records(state["loose_bytes"].numpy(), state["loose_starts"].numpy(), sizes, labels)
        ram.write(records, np.arange(len(loose)), blocks)
        ram.publish(loose, ram.first_blocks(blocks, sizes), labels, ids[loose], np.full(len(loose), -1, np.int32))
    ram.sets.restore([(int(c), items.numpy(), None) for c, items in state["order"]])
    ram.limit = int(state["limit"])


def check(
    state: Any, label: str, schema: Schema | None, ram: RamTier | None, store: Store | None, select: Selection
) -> None:
    """Raise CheckpointError if `state` cannot be loaded into a memory of these parts."""
    version = state.get("version") if isinstance(state, Mapping) else None
    if version != VERSION:
        raise CheckpointError(f"not a state of carm.Memory, or one of another version: version={version!r}")
    missing = _KEYS - state.keys()
    if missing:
        raise CheckpointError(f"the state is damaged: it lacks {', '.join(sorted(missing))}")
    kind = state["select"].get("kind", type(select).__name__)
    if kind != type(select).__name__:
        raise CheckpointError(f"the state is of select={kind}(), and this memory has select={type(select).__name__}()")
    if state["schema"] is None:
        if ram is not None:
            raise CheckpointError("the state is of a memory to which nothing had been added; open a new one instead")
        return
    if (state["storage"] is None) != (store is None):
        had = "without storage" if state["storage"] is None else "with storage"
        raise CheckpointError(f"the state is of a memory {had}, and this one has {'none' if store is None else 'some'}")
    saved = Schema.from_json(state["schema"])
    if schema is not None and saved != schema:
        raise CheckpointError(f"the state is of samples {saved}, and this memory holds {schema}")
    if saved.label != label:
        raise CheckpointError(f"the state is of samples with the label field {saved.label!r}, not label={label!r}")
    slots, blocks, block, spare = map(int, state["ram"]["layout"])
    if not (slots > 0 and 0 <= spare < blocks and (block == saved.head_size if saved.fixed else block >= 8)):
        raise CheckpointError(f"the state is damaged: its RAM tier has the layout {state['ram']['layout']}")
    if store is not None and store.schema is None:
        raise CheckpointError(f"the state is of another store than the one in {store.directory}, which is empty")
