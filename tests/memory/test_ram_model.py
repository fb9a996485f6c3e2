"""The RAM tier against a dict: any sequence of writes, swaps, clears and settlings shows what was put in last."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from patterns import FIXED, VARIABLE, audit_ram, keys_of, samples

from carm.memory.ram import RamTier
from carm.memory.record import Schema

MOST = 1500


class RamModel(RuleBasedStateMachine):
    schema: Schema

    @initialize(slots=st.integers(1, 12), spare=st.integers(1, 6))
    def begin(self, slots: int, spare: int) -> None:
        block = RamTier.block_size(self.schema, 600)
        each = 1 if self.schema.fixed else 4
        blocks = (slots + spare) * each
        self.ram = RamTier(self.schema, slots, blocks=blocks, block=block, spare=spare * each)
        self.reader = self.ram.reader()
        self.model: dict[int, tuple[int, int]] = {}  # slot -> key, label
        self.loading: list[tuple[int, int, int]] = []  # first block, key, label: written, shown by no slot
        self.key = 0

    def _write(self, labels: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """New records in free blocks: first blocks, keys, labels."""
        keys = np.arange(self.key, self.key + len(labels))
        self.key += len(labels)
        records = self.schema.pack(samples(keys, labels, self.schema, MOST))
        blocks = self.ram.allocate(records.sizes)
        if blocks is None:
            assert int(self.ram.blocks_for(records.sizes).sum()) > self.ram.free_blocks
            return None
        self.ram.write(records, np.arange(len(keys)), blocks)
        return self.ram.first_blocks(blocks, records.sizes), keys, records.labels

    @rule(data=st.data(), n=st.integers(1, 5))
    def publish(self, data: st.DataObject, n: int) -> None:
        usable = [*self.model, *self.ram.free().tolist()]
        slots = data.draw(st.lists(st.sampled_from(usable), min_size=1, max_size=n, unique=True))
        written = self._write(data.draw(st.lists(st.integers(-2, 3), min_size=len(slots), max_size=len(slots))))
        if written is None:
            return
        first, keys, labels = written
        handles = keys.astype(np.int32) + 7
        self.ram.publish(np.array(slots), first, labels, keys, handles)
        self.model |= dict(zip(slots, zip(keys.tolist(), labels.tolist(), strict=True), strict=True))
        assert self.ram.handles[slots].tolist() == handles.tolist()

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        """A record of the class of some slot arrives in free blocks, as a swap worker would bring it."""
        slot = data.draw(st.sampled_from(sorted(self.model)))
        written = self._write([self.model[slot][1]])
        if written is not None:
            first, keys, labels = written
            self.loading.append((int(first[0]), int(keys[0]), int(labels[0])))

    @precondition(lambda self: self.loading)
    @rule(data=st.data(), keep=st.booleans())
    def swap(self, data: st.DataObject, keep: bool) -> None:
        first, key, label = self.loading.pop(data.draw(st.integers(0, len(self.loading) - 1)))
        slots = [s for s, (_, c) in self.model.items() if c == label]
        if not keep or not slots:
            self.ram.release(np.array([first]))
            return
        slot = data.draw(st.sampled_from(slots))
        self.ram.swap(np.array([slot]), np.array([first]), np.array([key]), np.array([3], np.int32))
        self.model[slot] = key, label

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        slots = data.draw(st.lists(st.sampled_from(sorted(self.model)), min_size=1, max_size=4, unique=True))
        self.ram.clear(np.array(slots))
        for slot in slots:
            del self.model[slot]

    @rule()
    def settle(self) -> None:
        came_from = self.ram.settle()
        assert sorted(came_from.tolist()) == list(range(self.ram.table))
        where = {int(old): new for new, old in enumerate(came_from)}
        self.model = {where[slot]: sample for slot, sample in self.model.items()}

    @invariant()
    def same_as_the_model(self) -> None:
        ram = self.ram
        audit_ram(ram, [first for first, _, _ in self.loading])
        used = sorted(self.model)
        assert ram.used().tolist() == used == self.reader.filled().tolist()
        slots = np.array(used, np.int64)
        keys = [self.model[s][0] for s in used]
        assert keys_of(ram.fields(slots), self.schema, MOST).tolist() == keys == ram.ids[slots].tolist()
        assert ram.labels[slots].tolist() == [self.model[s][1] for s in used]
        if used:
            assert keys_of(self.reader.read(slots), self.schema, MOST).tolist() == keys
        in_use = int(ram.blocks_for(ram.arrays.sizes[ram.rows(slots)].astype(np.int64)).sum())
        assert in_use == ram.blocks_in_use(ram.layout.block)


class FixedModel(RamModel):
    schema = FIXED


class VariableModel(RamModel):
    schema = VARIABLE


class TestFixed(FixedModel.TestCase):
    settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)


class TestVariable(VariableModel.TestCase):
    settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)
