"""Memory against a dict: whatever is done in whatever order, a sample has the bytes it was added with."""

from __future__ import annotations

import copy
import io
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from patterns import FIXED, VARIABLE, audit, keys_of, logits_for, quick_base, samples

from carm.memory.errors import CheckpointError
from carm.memory.extentfile import NAME as EXTENTS
from carm.memory.gate import Entropy, Gate, Random
from carm.memory.memory import Memory
from carm.memory.record import Schema
from carm.memory.select import GreedyBalanced, Reservoir, Ring, Selection

MOST = 1500  # bytes of the largest sample where sizes vary
CLASSES = 3


class MemoryModel(RuleBasedStateMachine):
    schema: Schema = FIXED
    stored = True
    swap = "sync"

    def __init__(self) -> None:
        super().__init__()
        self.memory: Memory | None = None
        self.directory = Path(tempfile.mkdtemp(prefix="carm-model-", dir=quick_base()))

    @initialize(
        slots=st.integers(1, 10),
        in_bytes=st.booleans(),
        room=st.sampled_from([None, 0, 1, 7, 30, "0", "3", "20"]),  # of storage: in samples, or in bytes
        queue=st.integers(1, 5),
        batch=st.sampled_from([1, 3, 8]),
        select=st.sampled_from([Reservoir, Ring, GreedyBalanced]),
        gate=st.sampled_from([Random(1.0), Random(0.5), Entropy(0.6)]),
        seed=st.integers(0, 3),
    )
    def begin(
        self,
        slots: int,
        in_bytes: bool,
        room: int | str | None,
        queue: int,
        batch: int,
        select: type[Selection],
        gate: Gate,
        seed: int,
    ) -> None:
        self.slots = slots
        self.capacity = slots + room if isinstance(room, int) and self.stored else None
        self.limit = None
        record = self.schema.head_size if self.schema.fixed else MOST
        if isinstance(room, str) and self.stored:
            # What RAM may show and have on its way must fit, however large it is.
            self.limit = 8192 + (12 + queue + batch + int(room)) * (-(-(record + 64) // 512) * 512)
        size: dict[str, Any] = {"slots": slots}
        if in_bytes and room is None:
            size = {"ram": 4096 + 64 + (slots + queue + 1) * (record + 300)}
        self.arguments = size | {
            "storage": self.directory / "store" if self.stored else None,
            "storage_capacity": self.capacity if self.limit is None else str(self.limit),
            "queue": queue,
            "write_batch": batch,
            "engine": "preadv",  # quick to open and close
            "swap": self.swap,
            "seed": seed,
        }
        self.evicts = self.capacity is not None or self.limit is not None
        self.make = lambda: Memory(**self.arguments, select=select(), gate=copy.deepcopy(gate), schema=None)
        self.memory = self.make()
        self.samples: dict[int, tuple[int, int]] = {}  # id -> key, label
        self.kept_out: set[int] = set()  # ids that were added with store=False
        self.unsent = 0
        self.key = 0
        self.saved: tuple[bytes, Any, dict[str, Any]] | None = None

    # -- what users do -----------------------------------------------------------------------------------------------

    @rule(labels=st.lists(st.integers(0, CLASSES - 1), max_size=8), store=st.sampled_from([True, True, True, False]))
    def add(self, labels: list[int], store: bool) -> None:
        assert self.memory is not None
        keys = np.arange(self.key, self.key + len(labels))
        self.key += len(labels)
        if not labels:
            assert len(self.memory.add(np.zeros((0, 3, 4, 4), np.uint8), np.zeros(0, np.int64))) == 0
            return
        ids = self.memory.add(**samples(keys, labels, self.schema, MOST), store=store).tolist()
        assert len(set(ids)) == len(labels)
        if not store:
            self.kept_out |= set(ids)
            self.unsent += len(ids)
        else:
            self.kept_out -= set(ids)
        self.samples |= dict(zip(ids, zip(keys.tolist(), labels, strict=True), strict=True))

    @rule(n=st.integers(1, 12), late=st.booleans())
    def train(self, n: int, late: bool) -> None:
        memory = self.memory
        assert memory is not None
        batch = memory.draw(n)
        assert len(batch) == min(n, len(memory))
        assert len(set(batch.slots.tolist())) == len(batch)
        self._check(batch)
        if len(batch):
            if late:  # the slots change hands between draw and feedback
                self.add([0, 1, 2], True)
            memory.feedback(batch, logits_for(batch, CLASSES))

    @rule(places=st.lists(st.integers(0, 1000), min_size=1, max_size=5))
    def take(self, places: list[int]) -> None:
        assert self.memory is not None
        slots = self.memory.slots
        if len(slots):
            chosen = [int(slots[place % len(slots)]) for place in places]
            batch = self.memory.take(np.array(chosen))
            assert batch.slots.tolist() == chosen
            self._check(batch)

    @rule(size=st.sampled_from([1, 3, 100]), new=st.integers(0, 4))
    def bundle(self, size: int, new: int) -> None:
        memory = self.memory
        assert memory is not None
        if not len(memory):
            return
        task = samples(np.arange(new) + 10**6, [0] * new, self.schema, MOST) if new else None
        old: list[int] = []
        for batch in memory.bundle(task, batch_size=size):
            assert 1 <= len(batch) <= size
            old += batch.slots[batch.slots >= 0].tolist()
        assert sorted(old) == memory.slots.tolist()

    @rule()
    def flush(self) -> None:
        memory = self.memory
        assert memory is not None
        memory.flush()
        assert memory.stats()["stream_samples"] == memory.stats()["queue_depth"] == 0
        if self.stored and memory.store is not None and memory.store.schema is not None and not self.evicts:
            ids = set(memory.store.ids.tolist())
            assert ids == set(self.samples) - self.kept_out, "not everything that was added is stored"

    @rule(slots=st.integers(1, 12))
    def resize(self, slots: int) -> None:
        memory = self.memory
        assert memory is not None
        if self.capacity is not None and slots > self.capacity:
            with pytest.raises(ValueError, match="storage_capacity"):
                memory.resize(slots)
            return
        held = {int(i) for i in (memory._ram.ids[memory.slots] if memory._ram is not None else [])}
        memory.resize(slots)
        self.arguments = {k: v for k, v in self.arguments.items() if k not in ("slots", "ram")} | {"slots": slots}
        assert memory.capacity == slots
        if memory._ram is not None and memory.schema is not None and memory.schema.fixed and self.swap == "sync":
            kept = set(memory._ram.ids[memory.slots].tolist())
            assert kept <= held
            assert len(kept) == min(len(held), slots)

    # -- saving ------------------------------------------------------------------------------------------------------

    @rule()
    def save(self) -> None:
        memory = self.memory
        assert memory is not None
        file = io.BytesIO()
        torch.save(memory.state_dict(), file)
        model = copy.deepcopy((self.samples, self.kept_out, self.unsent, self.arguments))
        self.saved = file.getvalue(), model, self._picture()

    def _picture(self) -> dict[str, Any]:
        memory = self.memory
        assert memory is not None
        out: dict[str, Any] = {"stats": memory.stats(), "capacity": memory.capacity, "classes": memory.class_counts()}
        for name in ("add_wait_seconds", "order_age_mean", "order_age_max", "index_bytes"):
            out["stats"].pop(name, None)
        if memory._ram is not None:
            out |= {"ids": memory._ram.ids.tolist(), "labels": memory.labels.tolist(), "layout": memory._ram.layout}
        if memory.store is not None and memory.store.schema is not None:
            out["stored"] = sorted(memory.store.ids.tolist())
        return out

    @precondition(lambda self: self.saved is not None)
    @rule()
    def load(self) -> None:
        memory = self.memory
        assert memory is not None
        assert self.saved is not None
        state, model, picture = self.saved
        try:
            memory.load_state_dict(torch.load(io.BytesIO(state), weights_only=True))
        except CheckpointError:
            # A store that evicts keeps the way back as long as there is room for it; a state of the very first moment
            # fits an empty memory only.
            assert self.evicts or "ids" not in picture
            return
        self.samples, self.kept_out, self.unsent, self.arguments = copy.deepcopy(model)
        assert len(memory) == 0 if "ids" not in picture else self._picture() == picture

    @rule(forget=st.booleans())
    def reopen(self, forget: bool) -> None:
        assert self.memory is not None
        self.memory.close()
        if not self.stored:
            self.samples, self.saved = {}, None
        for lost in self.kept_out:
            self.samples.pop(lost, None)
        self.kept_out, self.unsent = set(), 0
        self.memory = self.make()
        if forget:
            self.saved = None
        store = self.memory.store
        if store is not None and store.schema is not None and self.schema.fixed:
            assert len(self.memory) == min(self.memory.capacity, len(store)), "RAM was not filled from storage"

    # -- what must hold ----------------------------------------------------------------------------------------------

    def _check(self, batch: Any) -> None:
        if not len(batch):
            return
        expected = [self.samples[i] for i in batch.ids.tolist()]
        assert keys_of(batch, self.schema, MOST).tolist() == [key for key, _ in expected]
        assert batch.y.tolist() == [label for _, label in expected]

    @invariant()
    def consistent(self) -> None:
        memory = self.memory
        if memory is None:
            return
        audit(memory, loose=self.kept_out, unsent=self.unsent)
        self._check(memory.take(memory.slots) if len(memory) else [])
        assert memory._stats.dropped["corrupt"] == 0
        assert memory._stats.worker_restarts == 0
        if memory.store is not None and memory.store.schema is not None:
            if self.capacity is not None:
                assert len(memory.store) <= self.capacity
            elif self.limit is not None:
                assert memory.store.index.live_bytes <= self.limit
                # What has died stays for checkpoints that may be gone back to, up to a quarter beyond the limit.
                assert (self.directory / "store" / EXTENTS).stat().st_size <= self.limit * 5 // 4
            else:
                assert memory._stats.unstored == 0

    def teardown(self) -> None:
        try:
            if self.memory is not None:
                self._check_store(self.memory)
        finally:
            if self.memory is not None:
                self.memory.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    def _check_store(self, memory: Memory) -> None:
        memory.flush()
        store = memory.store
        if store is not None and store.schema is not None and len(store):
            ids = store.ids
            expected = [self.samples[i][0] for i in ids.tolist()]
            assert keys_of(store.read(ids), self.schema, MOST).tolist() == expected


class Fixed(MemoryModel):
    pass


class Variable(MemoryModel):
    schema = VARIABLE


class RamOnly(MemoryModel):
    stored = False


class RamOnlyVariable(MemoryModel):
    schema = VARIABLE
    stored = False


class Threaded(MemoryModel):
    swap = "thread"


class ThreadedVariable(MemoryModel):
    schema = VARIABLE
    swap = "thread"


def _case(machine: type[MemoryModel], examples: int) -> type:
    case = machine.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=25, deadline=None, derandomize=True)
    return case


TestFixed = _case(Fixed, 120)
TestVariable = _case(Variable, 120)
TestRamOnly = _case(RamOnly, 50)
TestRamOnlyVariable = _case(RamOnlyVariable, 50)
TestThreaded = _case(Threaded, 60)
TestThreadedVariable = _case(ThreadedVariable, 50)
