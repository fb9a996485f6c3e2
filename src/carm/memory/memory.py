"""`Memory`: RAM tier, storage tier, selection, gate and swap worker, joined into the five stages.

All decisions are made here, in the thread that trains: who is in RAM, who is swapped, by whom, who is evicted. The worker only
moves bytes. Between the two run orders (bounded by the spare blocks of the RAM tier) and reports, which are looked at whenever the
training loop calls in, so that a slot changes only between two steps.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from carm.memory.batch import Batch, concatenate
from carm.memory.errors import CarmError, CheckpointError, SchemaError, StoreFull, WorkerError
from carm.memory.gate import Entropy, Gate, Signals
from carm.memory.ram import RamReader, RamTier
from carm.memory.record import Records, Schema, as_array, is_bytes_list
from carm.memory.select import Reservoir, Selection
from carm.memory.stats import Stats
from carm.memory.store import Store, WriteOrder
from carm.memory.swap import WORKERS, CompactOrder, Compacted, Failure, Plan, ReadDone, ReadOrder, Report, Worker, WriteDone
from carm.memory.tensors import to_tensors
from carm.memory.throttle import Throttle
from carm.memory.units import format_bytes, parse_bytes, parse_count

log = logging.getLogger("carm")
Ints = NDArray[np.int64]
_NOBODY = np.zeros(0, np.int64)
_STREAMS = ("draw", "select", "gate", "swap")  # each has a generator of its own: swapping does not change what is drawn


@dataclass(slots=True)
class _Swap:
    """A read order that has not been reported yet."""

    slots: Ints
    old_ids: Ints
    handles: NDArray[np.int32]
    first: Ints  # first block of each incoming record
    ordered: float


@dataclass(slots=True)
class _Stream:
    """The stream buffer: packed samples on their way to storage."""

    records: list[Records] = field(default_factory=list)
    ids: list[Ints] = field(default_factory=list)
    slots: list[Ints] = field(default_factory=list)
    samples: int = 0
    nbytes: int = 0

    def push(self, records: Records, ids: Ints, slots: Ints) -> None:
        self.records.append(records)
        self.ids.append(ids)
        self.slots.append(slots)
        self.samples += len(ids)
        self.nbytes += records.nbytes

    def joined(self) -> tuple[Records, Ints, Ints]:
        if len(self.records) > 1:
            shifts = np.cumsum([0] + [len(r.data) for r in self.records[:-1]])
            joined = Records(
                np.concatenate([r.data for r in self.records]),
                np.concatenate([r.starts + s for r, s in zip(self.records, shifts, strict=True)]),
                np.concatenate([r.sizes for r in self.records]),
                np.concatenate([r.labels for r in self.records]),
            )
            self.records, self.ids, self.slots = [joined], [np.concatenate(self.ids)], [np.concatenate(self.slots)]
        return self.records[0], self.ids[0], self.slots[0]


class Memory:
    """A two-level episodic memory.

    slots             samples in the RAM tier; or
    ram               its size in bytes, such as "64MiB", everything included
    storage           directory of the storage tier; None: RAM only, the classic episodic memory
    storage_capacity  number of samples, a size such as "2GiB", or None: as much as the device holds
    select            what the RAM tier keeps (default: Reservoir())
    gate              which samples that were trained on may be swapped (default: Entropy(ratio=1.0))
    swap              "async": swaps happen in the background; "sync": `feedback` waits for them, and runs repeat exactly.
                      "thread" and "process" choose the kind of worker, "async" takes the better one (a thread; see the docs)
    seed              of all random choices
    schema            fields of a sample; None: taken from the store, or from the first `add`
    label             name of the label field
    engine            how storage is read: "auto", "aio", "mapped" or "preadv"
    queue             most swaps that may be under way; None: an eighth of the slots, from 64 to 256
    write_batch       samples that are collected before they go to storage together
    write_buffer      most bytes waiting for storage; `add` waits when there are more
    throttle          e.g. "2MB/s,5ms": make storage as slow as that, for experiments
    """

    def __init__(
        self,
        slots: int | None = None,
        *,
        ram: int | str | None = None,
        storage: str | os.PathLike[str] | None = None,
        storage_capacity: int | str | None = None,
        select: Selection | None = None,
        gate: Gate | None = None,
        swap: str = "async",
        seed: int = 0,
        schema: Schema | None = None,
        label: str = "y",
        engine: str = "auto",
        queue: int | None = None,
        write_batch: int = 256,
        write_buffer: int | str = "32MiB",
        throttle: str | Throttle | None = None,
    ) -> None:
        if (slots is None) == (ram is None):
            raise ValueError(f"give either slots or ram; got slots={slots!r}, ram={ram!r}")
        self._slots = None if slots is None else parse_count("slots", slots)
        self._ram_bytes = None if ram is None else parse_bytes("ram", ram)
        kinds = {"async": "thread", "thread": "thread", "process": "process", "sync": "sync"}
        if swap not in kinds:
            raise ValueError(f"swap={swap!r}: must be one of {', '.join(map(repr, kinds))}")
        if storage is None and storage_capacity is not None:
            raise ValueError(f"storage_capacity={storage_capacity!r} needs storage: name a directory")
        if isinstance(storage_capacity, int) and self._slots is not None and storage_capacity < self._slots:
            raise ValueError(
                f"storage_capacity={storage_capacity} is less than slots={self._slots}: storage also keeps what is in RAM, "
                "so it must hold at least as many samples"
            )
        self.select = select if select is not None else Reservoir()
        self.gate = gate if gate is not None else Entropy(1.0)
        self.label = label if schema is None else schema.label
        self.progress = 0.0
        """How far through the passes over the present bundle, for the Dynamic gate. `bundle` sets it."""
        self._kind = kinds[swap]
        self._queue = None if queue is None else parse_count("queue", queue)
        self._write_batch = parse_count("write_batch", write_batch)
        self._write_buffer = parse_bytes("write_buffer", write_buffer)
        self._throttle = Throttle.parse(throttle) if isinstance(throttle, str) else throttle
        sequence = np.random.SeedSequence(parse_seed(seed)).spawn(len(_STREAMS) + 1)
        self._rng = {name: np.random.default_rng(s) for name, s in zip(_STREAMS, sequence, strict=False)}
        self._pid = os.getpid()
        self._closed = False
        self._stats = Stats()
        self._stream = _Stream()
        self._writing: tuple[WriteOrder, Ints, Ints] | None = None  # order, ids and slots of its births
        self._write_sent = 0.0
        self._compacting = False
        self._swaps: dict[int, _Swap] = {}
        self._ticket = 0
        self._outstanding = 0
        self._tight = False
        self._next_id = 0  # without storage, ids are counted here
        self._worker: Worker | None = None
        self._ram: RamTier | None = None
        self._in_flight: NDArray[np.bool_] = np.zeros(0, bool)
        self._seen_labels: set[int] = set()
        self._seen_columns: torch.Tensor | None = None
        self.store: Store | None = None
        if storage is not None:
            self.store = Store(storage, schema=schema, capacity=storage_capacity, engine=engine)
            self.store.rng = np.random.default_rng(sequence[-1])
        try:
            known = self.store.schema if self.store is not None else schema
            if known is not None:
                if known.label != self.label:
                    raise SchemaError(f"label={label!r}, but the samples in storage have the label field {known.label!r}")
                self._begin(known, self._mean_size(known))
                self.refill()
        except BaseException:
            self.close()
            raise

    # -- setting up --------------------------------------------------------------------------------------------------

    def _mean_size(self, schema: Schema) -> float:
        if self.store is not None and self.store.count:
            return float(self.store.sizes[self.store.live_handles()].mean())
        return float(schema.head_size if schema.fixed else schema.head_size + 4096)

    def _begin(self, schema: Schema, mean: float) -> None:
        """The schema is known: make the RAM tier, the store's files, and the worker."""
        if self.store is not None and self.store.schema is None:
            self.store.create(schema)
        self._ram = self._make_ram(schema, mean, self._slots, self._ram_bytes)
        self._in_flight = np.zeros(self._ram.table, bool)
        self._start_worker()

    def _make_ram(self, schema: Schema, mean: float, slots: int | None, ram_bytes: int | None) -> RamTier:
        block = RamTier.block_size(schema, mean)
        each = max(1, -(-int(mean) // block))  # blocks of a typical record
        if slots is not None:
            spare = self._spare(slots)
            # With variable sizes the typical size is a guess. Blocks that are never written cost nothing, so guess high.
            blocks = slots + spare if schema.fixed else (slots + spare) * each * 4
            return RamTier(schema, slots, blocks=blocks, block=block, spare=spare * each)
        assert ram_bytes is not None
        blocks = (ram_bytes - 64 - 4096) // (block + (16 if schema.fixed else 24))  # entry, successor and size included
        rows = blocks // each
        spare = self._spare(rows * 8 // 9)
        if rows - spare < 1:
            raise ValueError(
                f"ram={ram_bytes} bytes holds {max(rows, 0)} records of {each * block} bytes; a RAM tier needs room for at least "
                f"{spare + 1} (one slot and {spare} spare rows for swaps): give more, or choose queue={max(1, rows // 2)}"
            )
        table = rows - spare if schema.fixed else min(blocks, (rows - spare) * 4)
        return RamTier(schema, table, blocks=blocks, block=block, spare=spare * each)

    def _spare(self, slots: int) -> int:
        if self.store is None:
            return 1
        return self._queue if self._queue is not None else min(max(slots // 8, 64), 256)

    def _start_worker(self) -> None:
        if self.store is None or self._ram is None:
            return
        plan = Plan(self.store.directory, self.store.engine.name, self._ram.layout, self._throttle)
        self._worker = WORKERS[self._kind](plan, self._ram.shared)

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise CarmError(
                f"this memory belongs to process {self._pid}; in process {os.getpid()} (a DataLoader worker?) read it with a "
                "memory.reader() that was made before"
            )
        if self._closed:
            raise CarmError("this memory is closed")

    # -- asking ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Samples in the RAM tier."""
        return 0 if self._ram is None else len(self._ram)

    @property
    def capacity(self) -> int:
        """Slots of the RAM tier; 0 until the first samples tell how large they are, if it was given in bytes."""
        return self._ram.capacity if self._ram is not None else self._slots or 0

    @property
    def schema(self) -> Schema | None:
        return None if self._ram is None else self._ram.schema

    @property
    def labels(self) -> Ints:
        """Labels of the samples in the RAM tier, by slot; see `slots`."""
        return _NOBODY if self._ram is None else self._ram.labels[self._ram.used()]

    @property
    def slots(self) -> Ints:
        """Slots that hold a sample."""
        return _NOBODY if self._ram is None else self._ram.used().copy()

    def class_counts(self) -> dict[int, tuple[int, int]]:
        """Samples of every class as (in RAM, in storage)."""
        ram = self._ram.sets if self._ram is not None else None
        stored = self.store.sets if self.store is not None and self.store.schema is not None else None
        labels = [*(ram.labels if ram else []), *(stored.labels if stored else [])]
        return {c: (ram.count(c) if ram else 0, stored.count(c) if stored else 0) for c in dict.fromkeys(labels)}

    def stats(self) -> dict[str, Any]:
        """Counters and sizes, as plain numbers; docs/architecture.md says what each means."""
        extra: dict[str, Any] = {
            "ram_samples": len(self),
            "ram_capacity": self.capacity,
            "ram_bytes": self._ram.layout.nbytes if self._ram is not None else 0,
            "queue_depth": self._outstanding,
            "stream_samples": self._stream.samples + (len(self._writing[1]) if self._writing else 0),
            "worker": self._worker.kind if self._worker else "none",
        }
        if self.store is not None and self.store.schema is not None:
            extra |= {
                "stored_samples": self.store.count,
                "stored_bytes": self.store.live_bytes,
                "index_bytes": self.store.index_bytes,
                "evicted": self.store.evicted,
                "corrupt": self.store.corrupt,
                "engine": self.store.engine.name,
            }
        return self._stats.as_dict() | extra

    def reader(self) -> RamReader:
        """A view of the RAM tier for other processes: give it to a DataLoader."""
        self._check()
        if self._ram is None:
            raise CarmError("nothing has been added yet, so there is nothing to read; add samples first, or give schema=")
        return self._ram.reader()

    # -- T: training draws -------------------------------------------------------------------------------------------

    def draw(self, n: int) -> Batch:
        """`n` different samples of the RAM tier, chosen uniformly; all of them if it holds fewer."""
        self._collect()
        ram = self._ram
        if ram is None or not len(ram):
            return self._empty_batch()
        count = len(ram)
        n = min(parse_count("n", n), count)
        chosen = self._rng["draw"].choice(count, n, replace=False)
        return self._take(chosen if count == ram.table else ram.used()[chosen])

    def take(self, slots: Ints) -> Batch:
        """The samples in these slots."""
        self._collect()
        chosen = np.asarray(slots, np.int64)
        if self._ram is None or len(chosen) and (chosen.min() < 0 or chosen.max() >= self._ram.table):
            raise IndexError(f"slots must be from 0 to {self.capacity - 1}")
        if (self._ram.ids[chosen] < 0).any():
            raise IndexError(f"slot {int(chosen[self._ram.ids[chosen] < 0][0])} is empty; see memory.slots")
        return self._take(chosen)

    def _take(self, slots: Ints) -> Batch:
        ram = self._ram
        assert ram is not None
        data, starts = ram.read(slots)
        self._stats.drawn += len(slots)
        fields = to_tensors(ram.schema, ram.schema.unpack(data, starts))
        return Batch(fields, slots, ram.ids[slots])

    def _empty_batch(self) -> Batch:
        fields: dict[str, Any] = {}
        if self._ram is not None:
            schema = self._ram.schema
            fields = to_tensors(schema, schema.unpack(np.zeros(0, np.uint8), _NOBODY))
        return Batch(fields, _NOBODY, _NOBODY)

    def bundle(
        self,
        task: Mapping[str, Any] | tuple[Any, Any] | None = None,
        *,
        batch_size: int = 128,
        passes: int = 1,
        old_per_batch: int | None = None,
    ) -> Iterator[Batch]:
        """Shuffled mini-batches of the new samples in `task` and the old ones in RAM, for several passes.

        task            the stream buffer: a dict of fields, or (x, y); None: old samples only
        batch_size      samples per mini-batch; with `old_per_batch`, new samples per mini-batch
        old_per_batch   None: every pass goes over all new and all old samples once, in one shuffled order. A number: every
                        mini-batch gets so many old samples, drawn afresh

        Old samples are read when their mini-batch is made, so what was swapped in meanwhile is used at once. `batch.old` tells
        old from new; after the forward pass call `feedback(batch, logits)`.
        """
        self._check()
        parse_count("batch_size", batch_size)
        parse_count("passes", passes)
        new = self._as_fields(task) if task is not None else {}
        count = _length(new) if new else 0
        rng = self._rng["draw"]
        try:
            for number in range(passes):
                self.progress = number / passes
                if old_per_batch is None:
                    yield from self._mixed_pass(new, count, batch_size, rng)
                else:
                    order = rng.permutation(count)
                    for at in range(0, count, batch_size):
                        part = _rows(new, order[at : at + batch_size])
                        yield concatenate([part, self.draw(old_per_batch)] if len(self) else [part])
        finally:
            self.progress = 0.0

    def _mixed_pass(self, new: dict[str, Any], count: int, batch_size: int, rng: np.random.Generator) -> Iterator[Batch]:
        slots = self._ram.used() if self._ram is not None else _NOBODY
        order = rng.permutation(count + len(slots))
        for at in range(0, len(order), batch_size):
            chosen = order[at : at + batch_size]
            fresh = chosen[chosen < count]
            old = slots[chosen[chosen >= count] - count]
            self._collect()
            if len(old) and self._ram is not None:
                old = old[self._ram.ids[old] >= 0]  # slots may have been emptied since the pass began
            parts = []
            if len(fresh):
                parts.append(_rows(new, fresh))
            if len(old):
                parts.append(self._take(old))
            if parts:
                yield concatenate(parts)

    # -- R: gate, orders ---------------------------------------------------------------------------------------------

    def feedback(self, batch: Batch, logits: torch.Tensor | None = None, *, target: torch.Tensor | None = None) -> int:
        """Tell the gate what training made of the old samples in `batch`; orders swaps and returns how many.

        logits   one row per sample of the batch, or per old sample of it. Gates that score by them need them
        target   columns of the right answers, where they are not the labels themselves
        """
        self._collect()
        ram, store, gate = self._ram, self.store, self.gate
        if ram is None or store is None or self._worker is None:
            return 0
        slots, ids = batch.slots, batch.ids
        rows = None
        if len(slots) and slots.min() < 0:
            rows = np.flatnonzero(slots >= 0)
            slots, ids = slots[rows], ids[rows]
        n = len(slots)
        if n == 0 or gate.ratio == 0.0:
            return 0
        budget = None
        if gate.auto is not None:
            budget = gate.auto.allow(n, self._outstanding, time.monotonic())
        signals = self._signals(slots, rows, len(batch), logits, target)
        picked = gate.pick(signals, self._rng["gate"], budget=budget)
        if not len(picked):
            return 0
        ordered = self._order(slots[picked], ids[picked])
        if ordered and self._worker.kind == "sync":
            self._collect()
        return ordered

    def _signals(
        self, slots: Ints, rows: Ints | None, total: int, logits: torch.Tensor | None, target: torch.Tensor | None
    ) -> Signals:
        assert self._ram is not None
        y = self._ram.labels[slots]
        gate = self.gate
        if not gate.needs_logits or gate.ratio == 1.0:
            return Signals(y, progress=self.progress)
        if logits is not None:
            logits = logits.detach()
            if logits.ndim != 2 or len(logits) not in (len(slots), total):
                raise ValueError(
                    f"logits has shape {tuple(logits.shape)}; it needs one row for each of the {total} samples of the batch "
                    f"(or of its {len(slots)} old ones)"
                )
            if rows is not None and len(logits) == total:
                logits = logits[torch.from_numpy(rows)]
        if target is not None:
            if len(target) not in (len(slots), total):
                raise ValueError(f"target has {len(target)} entries; the batch has {total} samples, {len(slots)} of them old")
            if rows is not None and len(target) == total:
                target = target[torch.from_numpy(rows)]
        return Signals(y, logits, target, self._columns(logits) if target is None else None, self.progress)

    def _columns(self, logits: torch.Tensor | None) -> torch.Tensor | None:
        """Columns of the classes seen so far; None where that is all of them."""
        if logits is None:
            return None
        if self._seen_columns is None:
            self._seen_columns = torch.tensor(sorted(self._seen_labels), dtype=torch.int64)
        seen, width = self._seen_columns, logits.shape[1]
        if len(seen) == width or not len(seen) or int(seen[0]) < 0 or int(seen[-1]) >= width:
            return None
        return seen.to(logits.device)

    def _order(self, slots: Ints, ids: Ints) -> int:
        """Order a replacement for each of `slots`, as far as there is one and room for it."""
        ram, store, stats, worker = self._ram, self.store, self._stats, self._worker
        assert ram is not None and store is not None and worker is not None
        stats.picked += len(slots)
        busy = self._in_flight[slots]
        stale = ram.ids[slots] != ids
        unstored = ram.handles[slots] < 0
        unfit = busy | stale | unstored
        if unfit.any():
            stats.dropped["stale"] += int(stale.sum())
            stats.dropped["in flight"] += int((busy & ~stale).sum())
            stats.dropped["not stored yet"] += int((unstored & ~busy & ~stale).sum())
            slots, ids = slots[~unfit], ids[~unfit]
        if len(slots) > 1 and len(np.unique(slots)) < len(slots):
            _, once = np.unique(slots, return_index=True)
            stats.dropped["in flight"] += len(slots) - len(once)
            slots, ids = slots[once], ids[once]
        room = ram.spare_records - self._outstanding
        if len(slots) > room:
            stats.dropped["queue full"] += len(slots) - max(room, 0)
            slots, ids = slots[: max(room, 0)], ids[: max(room, 0)]
        n = len(slots)
        if n == 0:
            return 0
        take = store.sets.take_open
        uniform = self._rng["swap"].random(n).tolist()
        found = [take(label, u) for label, u in zip(ram.labels[slots].tolist(), uniform, strict=True)]
        handles = np.array(found, np.int32)
        if handles.min() < 0:
            none = handles < 0
            stats.dropped["no other sample"] += int(none.sum())
            slots, ids, handles = slots[~none], ids[~none], handles[~none]
        sizes = store.sizes[handles].astype(np.int64)
        blocks = ram.allocate(sizes)
        while blocks is None:  # only where sizes vary: the last orders make way until the rest fits
            store.sets.release(int(handles[-1]))
            stats.dropped["no room"] += 1
            slots, ids, handles, sizes = slots[:-1], ids[:-1], handles[:-1], sizes[:-1]
            blocks = ram.allocate(sizes)
        n = len(slots)
        if n == 0:
            return 0
        self._ticket += 1
        self._in_flight[slots] = True
        self._outstanding += n
        stats.ordered += n
        stats.deepest = max(stats.deepest, self._outstanding)
        self._swaps[self._ticket] = _Swap(slots, ids, handles, ram.first_blocks(blocks, sizes), time.monotonic())
        worker.send(ReadOrder(self._ticket, store.offsets[handles], sizes, store.sums[handles], blocks))
        return n

    # -- reports -----------------------------------------------------------------------------------------------------

    def _collect(self, timeout: float = 0.0) -> None:
        """Look at the worker's reports: publish what was read, confirm what was written, notice if it died."""
        self._check()
        worker = self._worker
        if worker is None:
            return
        reports = worker.receive(timeout)
        for report in reports:
            self._handle(report)
        if not reports and not worker.alive and worker is self._worker:
            for report in worker.receive():  # what it said last
                self._handle(report)
            if worker is self._worker:
                self._repair(None)

    def _handle(self, report: Report) -> None:
        if isinstance(report, ReadDone):
            self._publish(report)
        elif isinstance(report, WriteDone):
            self._written(report)
        elif isinstance(report, Compacted):
            self._compacting = False
        elif isinstance(report, Failure):
            self._repair(report.traceback)

    def _publish(self, report: ReadDone) -> None:
        ram, store, stats = self._ram, self.store, self._stats
        swap = self._swaps.pop(report.ticket, None)
        if swap is None or ram is None or store is None:
            return
        slots, handles, first = swap.slots, swap.handles, swap.first
        n = len(slots)
        self._in_flight[slots] = False
        self._outstanding -= n
        now = time.monotonic()
        stats.aged(now - swap.ordered)
        stats.bytes_read += int(store.sizes[handles].sum())
        good = report.ok & (ram.ids[slots] == swap.old_ids)
        if not good.all():
            bad, late = ~report.ok, report.ok & ~good
            ram.release(first[~good])
            for handle in handles[late].tolist():
                store.sets.release(handle)
            stats.dropped["slot changed"] += int(late.sum())
            if bad.any():
                stats.dropped["corrupt"] += int(bad.sum())
                store.discard(handles[bad].tolist())
            slots, handles, first = slots[good], handles[good], first[good]
        if len(slots):
            release = store.sets.release
            for handle in ram.handles[slots].tolist():
                release(handle)
            ram.swap(slots, first, store.ids[handles], handles)
            stats.swapped += len(slots)
        if self.gate.auto is not None:
            self.gate.auto.completed(n, now, now - swap.ordered)

    def _repair(self, trace: str | None) -> None:
        """The worker is gone: drop its reads, start another, send the write again. With a traceback, raise it."""
        self._stats.worker_restarts += 1
        if self._worker is not None:
            self._worker.close()
        for swap in self._swaps.values():
            self._cancel(swap)
        self._swaps.clear()
        self._compacting = False
        self._start_worker()
        if trace is None:
            warnings.warn("the swap worker died; another has been started", RuntimeWarning, stacklevel=4)
        if self._writing is not None and self._worker is not None:
            if trace is not None:  # it may be the write that failed: do not send it for ever
                order, ids, slots = self._writing
                self._writing = None
                assert self.store is not None
                self.store.fail(order)
                self._stream.push(order.records, ids, slots)
            else:
                self._worker.send(self._writing[0])
        if trace is not None:
            raise WorkerError(f"the swap worker failed and was started again:\n{trace}")

    def _cancel(self, swap: _Swap) -> None:
        assert self._ram is not None and self.store is not None
        self._in_flight[swap.slots] = False
        self._outstanding -= len(swap.slots)
        self._stats.dropped["worker died"] += len(swap.slots)
        self._ram.release(swap.first)
        for handle in swap.handles.tolist():
            self.store.sets.release(handle)

    # -- M and S: new samples ----------------------------------------------------------------------------------------

    def add(
        self,
        x: Any = None,
        y: Any = None,
        /,
        *,
        signals: Mapping[str, Any] | None = None,
        ram_signals: Mapping[str, Any] | None = None,
        store: bool = True,
        **fields: Any,
    ) -> Ints:
        """Take in samples that training is done with: the selection says which of them RAM keeps, and all go to storage.

        x, y          arrays with one row per sample (lists of bytes for encoded ones), stored as the fields "x" and the label
        fields        more fields: `add(x, y, logits=...)`. Without x: `add(audio=..., y=...)`
        signals       what the selection needs of the new samples, such as {"features": ...}; it is not stored
        ram_signals   the same of the samples in RAM, by slot
        store         False: keep these in RAM only; they are never swapped

        Returns the samples' ids. They are in RAM when this returns, and on the device some time later: `flush` waits for that.
        """
        self._collect()
        samples = dict(fields)
        if y is not None:
            samples = {self.label: y} | samples
        if x is not None:
            samples = {"x": x} | samples
        samples = self._as_fields(samples)
        n = _length(samples)
        if n == 0:
            return _NOBODY
        if self._ram is None:
            schema = Schema.infer(samples, self.label)
            records = schema.pack(samples)
            self._begin(schema, records.nbytes / n)
        else:
            records = self._ram.schema.pack(samples)
        ram = self._ram
        assert ram is not None
        if self._tight:
            self._settle()
        new = set(np.unique(records.labels).tolist()) - self._seen_labels
        if new:
            self._seen_labels |= new
            self._seen_columns = None
        slots = np.asarray(
            self.select.place(
                records.labels, ram, self._rng["select"], _arrays("signals", signals, n), _arrays("ram_signals", ram_signals, None)
            ),
            np.int64,
        )
        self._check_places(slots, n)
        if self.store is not None:
            ids = self.store.take_ids(n)
        else:
            ids = np.arange(self._next_id, self._next_id + n, dtype=np.int64)
            self._next_id += n
        self._keep(records, slots, ids)
        self._stats.added += n
        if self.store is not None and store:
            self._stream.push(records, ids, slots)
            self._pump()
            self._hold_back()
        return ids

    def _check_places(self, slots: Ints, n: int) -> None:
        assert self._ram is not None
        kept = slots[slots >= 0]
        if len(slots) != n or (len(kept) and kept.max() >= self._ram.table) or len(np.unique(kept)) < len(kept):
            raise ValueError(
                f"{type(self.select).__name__}.place returned {slots.tolist()}: it must give each of the {n} samples a different slot "
                f"below {self._ram.table}, or -1"
            )

    def _keep(self, records: Records, slots: Ints, ids: Ints) -> None:
        """Put the chosen samples into RAM."""
        ram = self._ram
        assert ram is not None
        chosen = np.flatnonzero(slots >= 0)
        sizes = ram.blocks_for(records.sizes) if len(chosen) else _NOBODY
        at = 0
        while at < len(chosen):
            # As many at a time as there are free blocks: each piece frees the blocks of what it replaces.
            fits = int(np.searchsorted(np.cumsum(sizes[chosen[at:]]), ram.free_blocks, side="right"))
            if fits == 0:
                if not self._make_room(slots[chosen[at:]], slots[chosen[:at]], int(sizes[chosen[at]])):
                    self._stats.dropped["too large for RAM"] += 1
                    slots[chosen[at]] = -1
                    at += 1
                continue
            part = chosen[at : at + fits]
            blocks = ram.allocate(records.sizes[part])
            assert blocks is not None
            ram.write(records, part, blocks)
            self._leave(slots[part])
            first = ram.first_blocks(blocks, records.sizes[part])
            ram.publish(slots[part], first, records.labels[part], ids[part], np.full(len(part), -1, np.int32))
            at += fits

    def _make_room(self, coming: Ints, placed: Ints, need: int) -> bool:
        """Empty slots until `need` blocks are free: first those that will be overwritten anyway, then those of the largest class."""
        ram = self._ram
        assert ram is not None
        spared = set(placed.tolist())
        for slot in coming.tolist():
            if ram.free_blocks >= need:
                return True
            if ram.ids[slot] >= 0:
                self._leave(np.array([slot]))
                ram.clear(np.array([slot]))
        if ram.free_blocks < need and self._swaps:
            self._drain()  # blocks on order come free, one way or the other
        while ram.free_blocks < need:
            label = ram.sets.largest(u=self._rng["select"].random())
            members = [] if label is None else [s for s in ram.sets.members(label).tolist() if s not in spared]
            if not members:
                return False
            slot = members[int(self._rng["select"].random() * len(members))]
            self._leave(np.array([slot]))
            ram.clear(np.array([slot]))
            self._stats.squeezed += 1
        self._tight = True
        return True

    def _settle(self) -> None:
        """Large records have filled the RAM tier before its slots: count only as many slots as there was room for."""
        assert self._ram is not None
        came_from = self._ram.settle()
        now_at = np.argsort(came_from)
        self.select.resized(came_from, self._ram.table)
        self._stream.slots = [np.where(s >= 0, now_at[s], s) for s in self._stream.slots]
        if self._writing is not None:
            order, ids, slots = self._writing
            self._writing = order, ids, np.where(slots >= 0, now_at[slots], slots)
        self._tight = False

    def _leave(self, slots: Ints) -> None:
        """The samples in `slots` leave RAM: storage may choose them again."""
        assert self._ram is not None
        if self.store is not None:
            for handle in self._ram.handles[slots].tolist():
                if handle >= 0:
                    self.store.sets.release(handle)

    def _pump(self, *, force: bool = False) -> None:
        """Send the stream buffer to storage if it is worth a commit and none is under way."""
        stream, store, worker = self._stream, self.store, self._worker
        if store is None or worker is None or self._writing is not None or not stream.samples:
            return
        if not force and stream.samples < self._write_batch and stream.nbytes < self._write_buffer // 4:
            return
        records, ids, slots = stream.joined()
        self._stream = _Stream()
        try:
            order = store.plan(records, ids, self._in_ram(ids, slots))
        except StoreFull:
            self._stats.unstored += len(ids)
            raise
        self._stats.unstored += len(ids) - len(order.indices)
        self._writing = order, ids[order.indices], slots[order.indices]
        self._write_sent = time.monotonic()
        worker.send(order)
        if worker.kind == "sync":
            self._collect()

    def _in_ram(self, ids: Ints, slots: Ints) -> NDArray[np.bool_]:
        assert self._ram is not None
        return (slots >= 0) & (self._ram.ids[slots] == ids)

    def _written(self, report: WriteDone) -> None:
        assert self._writing is not None and self.store is not None and self._ram is not None
        order, ids, slots = self._writing
        self._writing = None
        store = self.store
        if report.error is not None:
            store.fail(order)
            store.full()
            self._stream.push(order.records, ids, slots)
            self._pump(force=True)  # again, with victims; StoreFull if there are none
            return
        handles = store.confirm(order)
        here = self._in_ram(ids, slots)
        self._ram.handles[slots[here]] = handles[here]
        for handle in handles[here].tolist():
            store.sets.hold(handle)
        self._stats.stored += len(ids)
        self._stats.bytes_written += order.records.nbytes
        if store.wants_compaction and not self._compacting and self._worker is not None:
            self._compacting = True
            store.buried = 0
            self._worker.send(CompactOrder(store.floor))
        self._pump()

    def _hold_back(self) -> None:
        """Wait while more than the write buffer allows is on its way to storage: nothing is lost, and RAM use stays bounded."""
        waited = 0.0
        while self._buffered() > self._write_buffer:
            begun = time.monotonic()
            self._pump(force=True)
            self._collect(timeout=1.0)
            waited += time.monotonic() - begun
        self._stats.add_wait_seconds += waited

    def _buffered(self) -> int:
        return self._stream.nbytes + (self._writing[0].records.nbytes if self._writing else 0)

    def flush(self) -> None:
        """Wait until every sample added so far is on the device, and every swap that was ordered is done."""
        self._collect()
        while self._stream.samples or self._writing is not None:
            self._pump(force=True)
            self._collect(timeout=1.0)
        self._drain()

    def _drain(self) -> None:
        while self._swaps or self._compacting:
            self._collect(timeout=1.0)

    def refill(self) -> int:
        """Fill empty slots from storage, class-balanced and random within a class; returns how many samples came in.

        Opening a store that has samples does this, so that training goes on with a full memory after a crash.
        """
        self._check()
        ram, store = self._ram, self.store
        if ram is None or store is None or not store.count:
            return 0
        room = min(ram.capacity - len(ram), max((ram.free_blocks - ram.spare) // max(1, ram.typical(store.sizes)), 0))
        handles = np.array(_balanced(store, ram, room, self._rng["swap"]), np.int32)
        self._seen_labels |= set(store.sets.labels)
        self._seen_columns = None
        came = self._load_slots(ram.free()[: len(handles)], handles)
        seen = getattr(self.select, "seen", None)
        if isinstance(seen, int):
            self.select.seen = max(seen, store.next_id)  # type: ignore[attr-defined]
        return came

    def _load_slots(self, slots: Ints, handles: NDArray[np.int32]) -> int:
        """Read stored samples (held already) into empty slots."""
        ram, store = self._ram, self.store
        assert ram is not None and store is not None
        came = 0
        for at in range(0, len(handles), 1024):
            here, into = handles[at : at + 1024], slots[at : at + 1024]
            data, starts, ok = store.fetch(here)
            if not ok.all():
                store.discard(here[~ok].tolist())
                here, into, starts = here[ok], into[ok], starts[ok]
            sizes = store.sizes[here].astype(np.int64)
            labels = np.array([store.sets.label(int(h)) for h in here], np.int64)
            blocks = ram.allocate(sizes)
            if blocks is None:
                for handle in handles[at:].tolist():
                    if handle in store.sets:
                        store.sets.release(handle)
                break
            ram.write(Records(data, starts, sizes, labels), np.arange(len(here)), blocks)
            ram.publish(into, ram.first_blocks(blocks, sizes), labels, store.ids[here], here)
            came += len(here)
        return came

    # -- resizing ----------------------------------------------------------------------------------------------------

    def resize(self, slots: int | None = None, *, ram: int | str | None = None) -> None:
        """Give the RAM tier another size. Samples that no longer fit leave RAM, from the largest classes first; storage keeps
        them. Readers in other processes must be made anew."""
        if (slots is None) == (ram is None):
            raise ValueError(f"give either slots or ram; got slots={slots!r}, ram={ram!r}")
        new_slots = None if slots is None else parse_count("slots", slots)
        new_bytes = None if ram is None else parse_bytes("ram", ram)
        if new_slots is not None and self.store is not None and (self.store.max_samples or new_slots) < new_slots:
            raise ValueError(f"slots={new_slots} is more than storage_capacity={self.store.max_samples}, which also keeps what is in RAM")
        old = self._ram
        if old is None:
            self._slots, self._ram_bytes = new_slots, new_bytes
            return
        self.flush()
        mean = float(old.arrays.sizes[old.rows(old.used())].mean()) if len(old) else self._mean_size(old.schema)
        new = self._make_ram(old.schema, mean, new_slots, new_bytes)
        self._slots, self._ram_bytes = new_slots, new_bytes
        rng = self._rng["select"]
        room = (new.free_blocks - new.spare) if not old.schema.fixed else new.capacity
        while len(old) > new.capacity or (not old.schema.fixed and old.blocks_in_use(new.layout.block) > room):
            label = old.sets.largest(u=rng.random())
            assert label is not None
            slot = np.array([old.sets.peek(label, rng.random())])
            self._leave(slot)
            old.clear(slot)
        kept = old.used()
        data, starts = old.read(kept)
        sizes = old.arrays.sizes[old.rows(kept)].astype(np.int64)
        if self._worker is not None:
            self._worker.close()
        self._ram = new
        self._in_flight = np.zeros(new.table, bool)
        blocks = new.allocate(sizes)
        assert blocks is not None
        new.write(Records(data, starts, sizes, old.labels[kept]), np.arange(len(kept)), blocks)
        first = new.first_blocks(blocks, sizes)
        new.publish(np.arange(len(kept)), first, old.labels[kept], old.ids[kept], old.handles[kept])
        old.retire()
        self.select.resized(kept, new.table)
        self._start_worker()

    # -- saving and restoring ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on exactly from here: ids, counters and generator states, but no sample bytes, which are in
        storage. (Samples that are only in RAM are the exception: with storage=None their bytes are included.)

        Waits until everything added is on the device. Until the next `state_dict` the store keeps what it needs to come back.
        """
        self.flush()
        ram, store = self._ram, self.store
        state: dict[str, Any] = {
            "version": 1,
            "slots": self._slots,
            "ram_bytes": self._ram_bytes,
            "schema": None if ram is None else ram.schema.to_json(),
            "select": self.select.state_dict(),
            "gate": self.gate.state_dict(),
            "rng": {name: _generator_state(g) for name, g in self._rng.items()},
            "stats": self._stats.state_dict(),
            "seen": sorted(self._seen_labels),
            "next_id": self._next_id,
            "storage": None,
        }
        if store is not None and store.schema is not None:
            order = [(label, opened, torch.from_numpy(store.ids[items])) for label, opened, items in store.sets.order()]
            state["storage"] = store.checkpoint() | {"order": order, "evict": _generator_state(store.rng)}
        if ram is not None:
            used = ram.used()
            loose = used[ram.handles[used] < 0]  # in RAM only
            data, starts = ram.read(loose)
            state["ram"] = {
                "ids": torch.from_numpy(ram.ids.copy()),
                "limit": ram.capacity,
                "order": [(label, opened, torch.from_numpy(items)) for label, opened, items in ram.sets.order()],
                "loose": torch.from_numpy(loose),
                "loose_labels": torch.from_numpy(ram.labels[loose]),
                "loose_bytes": torch.from_numpy(data.copy()),
                "loose_starts": torch.from_numpy(starts),
                "loose_sizes": torch.from_numpy(ram.arrays.sizes[ram.rows(loose)].astype(np.int64)),
            }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the memory that `state` was taken from. The store goes back to that moment too: samples added since are
        removed, samples evicted since come back."""
        self._check()
        self._load_check(state)
        self.flush()
        if state["schema"] is None:
            return
        schema = Schema.from_json(state["schema"])
        store = self.store
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        if store is not None:
            if store.schema is None:
                store.create(schema)
            saved = state["storage"]
            store.restore(saved)
            order = [(int(c), int(o), store.handles_of(ids.numpy())) for c, o, ids in saved["order"]]
            store.sets.restore(order)
            store.rng.bit_generator.state = saved["evict"]
        if self._ram is not None:
            self._ram.retire()
        self._slots, self._ram_bytes = state["slots"], state["ram_bytes"]
        self._ram = self._make_ram(schema, self._mean_size(schema), self._slots, self._ram_bytes)
        self._in_flight = np.zeros(self._ram.table, bool)
        self._load_ram(state["ram"])
        self.select.load_state_dict(state["select"])
        self.gate.load_state_dict(state["gate"])
        for name, generator in self._rng.items():
            generator.bit_generator.state = state["rng"][name]
        self._stats.load_state_dict(state["stats"])
        self._seen_labels, self._seen_columns = set(state["seen"]), None
        self._next_id = state["next_id"]
        self._start_worker()

    def _load_check(self, state: Mapping[str, Any]) -> None:
        if state.get("version") != 1:
            raise CheckpointError(f"this is not a state of carm.Memory, or one of a newer version: version={state.get('version')!r}")
        if (state["storage"] is None) != (self.store is None) and state["schema"] is not None:
            had = "no storage" if state["storage"] is None else "storage"
            raise CheckpointError(f"the state is of a memory with {had}, this one has {'none' if self.store is None else 'some'}")
        if self.schema is not None and state["schema"] is not None and Schema.from_json(state["schema"]) != self.schema:
            raise CheckpointError(f"the state is of samples {Schema.from_json(state['schema'])}, this memory holds {self.schema}")

    def _load_ram(self, saved: Mapping[str, Any]) -> None:
        ram, store = self._ram, self.store
        assert ram is not None
        ids = saved["ids"].numpy()
        loose = saved["loose"].numpy()
        if len(ids) > ram.table:
            raise CheckpointError(f"the state has {len(ids)} slots, this memory {ram.table}; sizes of samples must have changed")
        stored = np.setdiff1d(np.flatnonzero(ids >= 0), loose)
        if len(stored):
            assert store is not None
            handles = store.handles_of(ids[stored])
            if (handles < 0).any() or self._load_slots(stored, handles) < len(stored):
                raise CheckpointError("samples that were in RAM are missing from storage or damaged; the state cannot be restored exactly")
        if len(loose):
            sizes = saved["loose_sizes"].numpy()
            labels = saved["loose_labels"].numpy()
            blocks = ram.allocate(sizes)
            assert blocks is not None
            records = Records(saved["loose_bytes"].numpy(), saved["loose_starts"].numpy(), sizes, labels)
            ram.write(records, np.arange(len(loose)), blocks)
            ram.publish(loose, ram.first_blocks(blocks, sizes), labels, ids[loose], np.full(len(loose), -1, np.int32))
        ram.sets.restore([(int(c), int(o), items.numpy()) for c, o, items in saved["order"]])
        ram.limit = int(saved["limit"])

    # -- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is waiting, stop the worker, and let go of the store. May be called again."""
        if self._closed or self._pid != os.getpid():
            return
        try:
            if self._worker is not None and self.store is not None:
                self.flush()
        finally:
            self._closed = True
            if self._worker is not None:
                self._worker.close()
            if self.store is not None:
                self.store.close()
            if self._ram is not None:
                self._ram.retire()

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._pid != os.getpid():
            return
        log.warning("a Memory was not closed; use `with Memory(...) as memory:` or call memory.close()")
        try:
            self.close()
        except Exception:
            log.exception("while closing a Memory")

    def __repr__(self) -> str:
        where = f"storage={str(self.store.directory)!r}" if self.store is not None else "RAM only"
        size = format_bytes(self._ram.layout.nbytes) if self._ram is not None else "empty"
        return f"Memory({len(self)} of {self.capacity} slots, {size}, {where})"

    def _as_fields(self, task: Mapping[str, Any] | tuple[Any, Any]) -> dict[str, Any]:
        if isinstance(task, Mapping):
            return dict(task)
        if isinstance(task, (tuple, list)) and len(task) == 2:
            return {"x": task[0], self.label: task[1]}
        raise ValueError(f"samples are a dict of fields or a pair (x, y); got {type(task).__name__}")


def parse_seed(seed: object) -> int:
    """A seed as a whole number that is not negative."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or int(seed.__index__()) < 0:
        raise ValueError(f"seed={seed!r}: must be a whole number, 0 or more")
    return int(seed.__index__())


def _balanced(store: Store, ram: RamTier, room: int, rng: np.random.Generator) -> list[int]:
    """Up to `room` open samples of the store, held from now on, such that the classes in RAM become as equal as possible."""
    counts = {label: ram.sets.count(label) for label in store.sets.labels}
    out: list[int] = []
    uniform = rng.random(room).tolist()
    while len(out) < room and counts:
        label = min(counts, key=lambda c: counts[c])
        handle = store.sets.take_open(label, uniform[len(out)])
        if handle < 0:
            del counts[label]
            continue
        counts[label] += 1
        out.append(handle)
    return out


def _length(fields: Mapping[str, Any]) -> int:
    first = next(iter(fields.values()), None)
    if first is None:
        return 0
    if not hasattr(first, "__len__"):
        raise SchemaError(f"field {next(iter(fields))!r} needs one row per sample; got {first!r}")
    return len(first)


def _rows(fields: dict[str, Any], rows: Ints) -> Batch:
    """New samples as a batch."""
    picked: dict[str, Any] = {}
    index = torch.from_numpy(rows)
    for name, value in fields.items():
        if is_bytes_list(value):
            picked[name] = [torch.frombuffer(bytearray(value[i]), dtype=torch.uint8) for i in rows.tolist()]
        elif isinstance(value, torch.Tensor):
            picked[name] = value[index.to(value.device)]
        else:
            picked[name] = torch.from_numpy(as_array(name, value)[rows])
    nowhere = np.full(len(rows), -1, np.int64)
    return Batch(picked, nowhere, nowhere)


def _arrays(name: str, given: Mapping[str, Any] | None, n: int | None) -> dict[str, NDArray[Any]]:
    out = {key: as_array(key, value) for key, value in (given or {}).items()}
    for key, value in out.items():
        if n is not None and len(value) != n:
            raise ValueError(f"{name}[{key!r}] has {len(value)} entries, but there are {n} samples")
    return out


def _generator_state(generator: np.random.Generator) -> dict[str, Any]:
    return dict(generator.bit_generator.state)


