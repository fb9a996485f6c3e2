"""Store against a dict: whatever is done in whatever order, what was acknowledged is there, bit for bit."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numbered import FIXED, VARIABLE, check, check_index, samples

from carm.memory.errors import CheckpointError, CorruptRecord, StoreFull
from carm.memory.orders import perform
from carm.memory.record import Schema
from carm.memory.store import Store

MOST = 1500  # bytes of the largest field where sizes vary


def _base() -> str | None:
    """Where a sync costs nothing."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class Interrupted(Exception):
    pass


class Stop:
    """Lets an order be carried out up to one of its steps: writes of data and commits."""

    def __init__(self, steps: int, late: bool) -> None:
        self.steps, self.late = steps, late

    def of(self, part: Any) -> Any:
        stop = self

        class Proxy:
            def __getattr__(self, name: str) -> Any:
                def call(*args: Any, **more: Any) -> None:
                    if stop.steps == 0 and not stop.late:
                        raise Interrupted
                    getattr(part, name)(*args, **more)
                    stop.steps -= 1
                    if stop.steps < 0:
                        raise Interrupted

                return call

        return Proxy()


class StoreModel(RuleBasedStateMachine):
    schema: Schema = FIXED

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="carm-store-", dir=_base()))
        self.store: Any = None
        self.labels: dict[int, int] = {}  # id -> label of what is stored; the contents follow from the id
        self.held: set[int] = set()
        self.uncertain: dict[int, int] = {}  # id -> label of what failed orders may have stored or evicted all the same
        self.saved: list[tuple[dict[str, Any], dict[int, int]]] = []
        self.promised: list[dict[str, Any]] = []  # the last two checkpoints
        self.path = self.directory / "store"
        self.crashes = 0
        self.ever_saved = False

    @initialize(
        capacity=st.one_of(st.none(), st.integers(1, 40), st.integers(16, 120).map(lambda n: f"{n * 512 + 7}")),
        engine=st.sampled_from(["preadv", "preadv", "mapped", "aio"]),
        seed=st.integers(0, 3),
    )
    def begin(self, capacity: Any, engine: str, seed: int) -> None:
        self.options = {"capacity": capacity, "engine": engine, "seed": seed}
        self.limit = int(capacity) if isinstance(capacity, str) else None
        self._open(schema=self.schema)

    def _open(self, **more: Any) -> None:
        self.corrupt = 0
        self.store = Store(self.path, **self.options, **more)
        try:
            _ = self.store.engine
        except ValueError:  # no O_DIRECT here
            self.store.close()
            self.options["engine"] = "auto"
            self.store = Store(self.path, **self.options, **more)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _batch(self, n: int, label: int | None) -> tuple[list[int], dict[str, Any], list[int]]:
        ids = list(range(self.store.next_id, self.store.next_id + n))
        labels = [i % 5 if label is None else label for i in ids]
        return ids, samples(ids, self.schema, labels, MOST), labels

    @rule(n=st.integers(0, 12), label=st.one_of(st.none(), st.sampled_from([0, -3, 2**40])))
    def append(self, n: int, label: int | None) -> None:
        ids, batch, labels = self._batch(n, label)
        before, opened = dict(self.labels), set(self.labels) - self.held
        try:
            got = self.store.append(batch).tolist()
        except StoreFull:
            assert self.limit is not None and self.held, "there was room, or something that could have gone"
            self._same()
            return
        assert [g for g in got if g >= 0] == [i for i in ids if i in got]
        new = {i: c for i, c, g in zip(ids, labels, got, strict=True) if g >= 0}
        living = set(self.store.ids.tolist())
        gone = set(before) - living
        assert set(new) <= living <= set(before) | set(new)
        assert gone <= opened, "one that is held was evicted"
        self.labels = {i: c for i, c in (before | new).items() if i in living}
        self.uncertain = {} if new or gone else self.uncertain
        assert not n or not (self.store._first_deaths or self.store._in_doubt or len(self.store._doomed)), "left undone"
        if self.options["capacity"] is None:
            assert not gone and len(new) == n
        elif self.limit is None:
            assert len(living) == max(min(self.options["capacity"], len(before) + n), len(self.held))
        else:
            assert self.store.index.live_bytes <= self.limit
        if self.schema.fixed or self.limit is None:
            self._balanced(
                Counter([before[i] for i in gone] + [c for i, c in zip(ids, labels, strict=True) if i not in new])
            )

    def _balanced(self, gone: Counter[int]) -> None:
        """No class that gave something up is smaller, by more than one, than one that still has something to give."""
        left = Counter(self.labels.values())
        rich = {self.labels[i] for i in set(self.labels) - self.held}
        for poor in gone:
            assert all(left[c] <= left[poor] + 1 for c in rich), (left, gone)

    @rule(n=st.integers(1, 8), steps=st.integers(0, 3), late=st.booleans())
    def fail(self, n: int, steps: int, late: bool) -> None:
        """An order that fails at its `steps`-th step, before it or after it: nobody must be able to tell afterwards."""
        ids, batch, labels = self._batch(n, None)
        records = self.schema.pack(batch)
        self.store.take_ids(n)
        try:
            order = self.store.plan(records, np.array(ids, np.int64))
        except StoreFull:
            return
        stop = Stop(steps, late)
        with contextlib.suppress(Interrupted):
            perform(order, stop.of(self.store.file), stop.of(self.store.catalogue))
        self.store.fail(order)
        dead = set(order.before.tolist()) | set(order.deaths.tolist())
        self.uncertain |= {i: self.labels[i] for i in dead if i in self.labels}
        self.uncertain |= {i: labels[ids.index(i)] for i in order.births["id"].tolist()}
        for i in order.before.tolist():
            self.labels.pop(i, None)  # these have made way already
            assert i not in self.held
        self._same()

    @rule()
    def crash(self) -> None:
        """As kill -9 would leave it: a copy of the files as they are now. Only what failed may have happened or not."""
        new = self.directory / f"store-{self.crashes}"
        shutil.copytree(self.path, new)
        self.store.close()
        shutil.rmtree(self.path)
        self.path = new
        self.crashes += 1
        self._open()
        self.held = set()
        found = set(self.store.ids.tolist())
        everyone = self.uncertain | self.labels
        assert set(self.labels) - set(self.uncertain) <= found <= set(everyone)
        self.labels = {i: everyone[i] for i in sorted(found)}
        self.uncertain = {}

    @precondition(lambda self: set(self.labels) - self.held)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        chosen = data.draw(st.lists(st.sampled_from(sorted(set(self.labels) - self.held)), max_size=5))
        evicted = self.store.evicted
        self.store.delete(chosen)
        assert self.store.evicted == evicted
        for i in set(chosen):
            del self.labels[i]
        self.uncertain = {} if chosen else self.uncertain

    @precondition(lambda self: set(self.labels) - self.held)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        """As if it could not be read: gone at once, and dead with the next commit."""
        i = data.draw(st.sampled_from(sorted(set(self.labels) - self.held)))
        with pytest.warns(CorruptRecord):
            self.store.discard(self.store.index.find([i]).tolist())
        self.corrupt += 1
        self.uncertain[i] = self.labels.pop(i)

    @precondition(lambda self: self.labels)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        """As if RAM showed it; or no longer."""
        i = data.draw(st.sampled_from(sorted(self.labels)))
        (handle,) = self.store.index.find([i]).tolist()
        if i in self.held:
            self.store.index.sets.release(handle)
        else:
            self.store.index.sets.hold(handle)
            with pytest.raises(ValueError, match="in RAM"):
                self.store.delete([i])
        self.held ^= {i}

    # -- coming back -------------------------------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self._open()
        self.held, self.uncertain = set(), {}
        self._same()

    @rule()
    def checkpoint(self) -> None:
        self.saved.append((self.store.checkpoint(), dict(self.labels)))
        self.promised = [*self.promised, self.saved[-1][0]][-2:]
        self.ever_saved = True
        self.uncertain = {}

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        back = data.draw(st.integers(1, min(4, len(self.saved))))
        state, labels = self.saved[-back]
        try:
            self.store.restore(state)
        except CheckpointError:
            assert self.options["capacity"] is not None or state not in self.promised, "nothing was short of room"
            self._same()
            return
        self.labels, self.held = dict(labels), set()
        self.saved = self.saved[: len(self.saved) - back + 1]
        self.promised = [s for s in self.promised if s["seq"] <= state["seq"]]
        self.uncertain = {}
        assert self.store.next_id == state["next_id"]
        self._same()

    @rule()
    def compact(self) -> None:
        self.store.settle()
        self.uncertain = {}
        self.store.catalogue.compact(self.store.past.floor)
        self.store.buried = 0

    # -- what always holds -------------------------------------------------------------------------------------------

    def _same(self) -> None:
        live = self.store.index.live()
        assert self.store.index.ids[live].tolist() == sorted(self.labels)

    @invariant()
    def consistent(self) -> None:
        store = self.store
        if store is None:
            return
        self._same()
        check_index(store)
        ids = sorted(self.labels)
        check(store.read(ids), ids, self.schema, [self.labels[i] for i in ids], MOST)
        assert all(not bad for _, bad in store.verify(batch=7))
        for i, handle in zip(ids, store.index.live().tolist(), strict=True):
            assert store.index.sets.label(handle) == self.labels[i]
            assert store.index.sets.is_open(handle) == (i not in self.held)
        size = os.path.getsize(store.file.path)
        if self.limit is not None:
            assert size <= self.limit * (1.25 if self.ever_saved else 1)
        assert store.corrupt == self.corrupt

    def teardown(self) -> None:
        if self.store is not None:
            self.store.close()
        shutil.rmtree(self.directory)


class VariableModel(StoreModel):
    schema = VARIABLE


def _case(model: type[StoreModel], examples: int) -> Any:
    case = model.TestCase
    case.settings = settings(max_examples=examples, stateful_step_count=30, deadline=None)
    return case


TestFixed = _case(StoreModel, 60)
TestVariable = _case(VariableModel, 60)
