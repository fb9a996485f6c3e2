"""`Memory`: RAM tier, storage tier, selection, gate and swap worker, joined into the five stages.

All decisions are made here, in the thread that trains: who is in RAM, who is swapped, by whom, who is evicted. The
worker only moves bytes. Between the two run orders (bounded by the spare blocks of the RAM tier) and reports, which are
looked at whenever the training loop calls, so that a slot changes only between two steps.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from carm.memory import checkpoint, samples
from carm.memory.aio import check_engine
from carm.memory.batch import Batch, UnknownFields
from carm.memory.bundle import mixed_pass, paired_pass
from carm.memory.carousel import Carousel
from carm.memory.draws import Draws
from carm.memory.errors import CarmError, SchemaError, WorkerError
from carm.memory.extents import padded
from carm.memory.gate import Entropy, Gate
from carm.memory.intake import Intake
from carm.memory.interrupt import uninterrupted
from carm.memory.judge import Judge
from carm.memory.keep import Keeper, choose_balanced, load_stored
from carm.memory.orders import Compacted, Failure, Order, ReadDone, Report, WriteDone
from carm.memory.ram import RamReader, RamTier, slot_numbers
from carm.memory.record import Records, Schema
from carm.memory.select import Arrays, Reservoir, Selection
from carm.memory.sizing import make_ram
from carm.memory.stats import Stats
from carm.memory.store import Store
from carm.memory.swap import WORKERS, Plan, Worker
from carm.memory.tensors import to_tensors
from carm.memory.throttle import Throttle
from carm.memory.units import format_bytes, parse_bytes, parse_count, parse_seed

log = logging.getLogger("carm")
Ints = NDArray[np.int64]
_NOBODY = np.zeros(0, np.int64)
_PATIENCE = 0.2  # seconds after which samples go to storage even if they are few
# Each has a generator of its own, so that swapping does not change what is drawn or kept.
_STREAMS = ("draw", "shuffle", "select", "gate", "swap")


class Memory:
    """A two-level episodic memory.

    slots             samples in the RAM tier; or
    ram               its size in bytes, such as "64MiB", everything included
    storage           directory of the storage tier; None: RAM only, the classic episodic memory
    storage_capacity  number of samples, a size such as "2GiB", or None: as much as the device holds
    select            what the RAM tier keeps (default: Reservoir())
    gate              which samples that were trained on may be swapped (default: Entropy(ratio=1.0))
    swap              "async": swaps happen in the background; "sync": `feedback` waits for them, and runs repeat
                      exactly. "thread" and "process" name the kind of worker; "async" is a thread (the docs say why)
    seed              of all random choices
    schema            fields of a sample; None: taken from the store, or from the first `add`
    label             name of the label field
    engine            how storage is read: "auto", "aio", "mapped" or "preadv"
    queue             most swaps that may be under way; None: an eighth of the slots, from 64 to 256
    write_batch       samples that are collected before they go to storage together; None: a quarter of the slots, from
                      256 to 512, but 1 with swap="sync", so that a run is the same whether or not a `state_dict`, which
                      waits for storage, is taken in it (but in a store that is full, with a capacity in bytes and
                      samples that differ in size: there what a checkpoint keeps changes where others find room)
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
        write_batch: int | None = None,
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
        throttle = Throttle.parse(throttle) if isinstance(throttle, str) else throttle
        parts = ("select", select, Selection), ("gate", gate, Gate), ("schema", schema, Schema)
        for name, given, kind in (*parts, ("throttle", throttle, Throttle)):
            if given is not None and not isinstance(given, kind):
                hint = f"; did you mean {given.__name__}()?" if isinstance(given, type) else ""
                raise ValueError(f"{name}={given!r}: must be a {kind.__name__}{hint}")
        check_engine(engine)
        if storage is None and storage_capacity is not None:
            raise ValueError(f"storage_capacity={storage_capacity!r} needs storage: name a directory")
        if isinstance(storage_capacity, int) and self._slots is not None and storage_capacity < self._slots:
            raise ValueError(
                f"storage_capacity={storage_capacity} is less than slots={self._slots}: storage also keeps what is in "
                "RAM, so it must hold at least as many samples"
            )
        self.select = select if select is not None else Reservoir()
        self.gate = gate if gate is not None else Entropy(1.0)
        self.label = label if schema is None else schema.label
        self.progress = 0.0
        """How far through the passes over the present bundle, for the Dynamic gate. `bundle` sets it when it makes
        several passes; whoever calls it once for each sets it too."""
        self._kind = kinds[swap]
        self._queue = None if queue is None else parse_count("queue", queue)
        self._write_batch = None if write_batch is None else parse_count("write_batch", write_batch)
        self._write_buffer = parse_bytes("write_buffer", write_buffer)
        self._throttle = throttle
        sequence = np.random.SeedSequence(parse_seed(seed)).spawn(len(_STREAMS) + 1)
        self._rng = {name: np.random.default_rng(s) for name, s in zip(_STREAMS, sequence, strict=False)}
        self._draws = Draws(self._rng["draw"])
        self._pid = os.getpid()
        self._closed = False
        self._stats = Stats()
        self._next_id = 0  # without storage, ids are counted here
        self._ram: RamTier | None = None
        self._keeper: Keeper | None = None
        self._carousel: Carousel | None = None
        self._judge: Judge | None = None
        self._intake: Intake | None = None
        self._worker: Worker | None = None
        self._seen_labels: set[int] = set()
        self._seen_columns: torch.Tensor | None = None
        self._engine = "none"
        self._deaths = 0  # of workers in a row that reported nothing
        self._known = schema
        self.store: Store | None = None
        try:
            if storage is not None:
                self.store = Store(storage, schema=schema, capacity=storage_capacity, engine=engine)
                self.store.owned = True
                self.store.rng = np.random.default_rng(sequence[-1])
                self._known = self.store.schema
            if self._known is not None and self._known.label != self.label:
                raise SchemaError(
                    f"label={label!r}, but the samples in storage have the label field {self._known.label!r}"
                )
            if self._known is not None and (self._known.fixed or (self.store is not None and len(self.store))):
                self._begin(self._known, self._mean_size(self._known))
                self.refill()
        except BaseException:
            self.close()
            raise
        _OPEN.add(self)

    # -- setting up --------------------------------------------------------------------------------------------------

    def _mean_size(self, schema: Schema) -> float:
        if self.store is not None and len(self.store):
            return float(self.store.index.sizes[self.store.index.live()].mean())
        return float(schema.head_size)

    def _begin(self, schema: Schema, mean: float) -> None:
        """It is known how large samples are: make the RAM tier, the store's files, and the worker."""
        # Where sizes vary, `mean` changes: a store that was good enough for this RAM tier must still open with it.
        opening = not schema.fixed and self.store is not None and len(self.store) > 0
        ram = self._make_ram(schema, mean, self._slots, self._ram_bytes, opening=opening)
        if self.store is not None and self.store.schema is None:
            self.store.create(schema)
        if self.store is not None:
            self._engine = self.store.engine.name  # may not work here; if so, nothing has begun
        try:
            self._connect(ram)
        except BaseException:
            self._ram = None  # no worker could be started; the next `add` tries again
            raise

    def _connect(self, ram: RamTier) -> None:
        """Use this RAM tier from now on: everything that works on it is made anew."""
        self._ram = ram
        self._keeper = Keeper(ram, self.store, self._stats, self._rng["select"], self._drain)
        if self.store is not None:
            self._carousel = Carousel(
                ram, self.store, self._stats, self._rng["swap"], self._send, lambda: self.gate.auto
            )
            self._judge = Judge(
                ram, self._carousel, self._stats, self._rng["gate"], self._columns, at_once=self._kind == "sync"
            )
            batch, most = self._write_batch, self._write_buffer
            if batch is None:
                batch = 1 if self._kind == "sync" else min(max(ram.capacity // 4, 256), 512)
            patience = math.inf if self._kind == "sync" else _PATIENCE  # what depends on time does not repeat
            self._intake = Intake(
                ram, self.store, self._stats, self._send, self._carousel, batch=batch, most=most, patience=patience
            )
            self._start_worker()

    def _make_ram(
        self, schema: Schema, typical: float, slots: int | None, ram: int | None, *, opening: bool = False
    ) -> RamTier:
        store = self.store
        tier = make_ram(schema, typical, slots=slots, ram=ram, queue=self._queue, swaps=store is not None)
        if store is not None:
            n, most, room = tier.capacity, store.max_samples, store.max_bytes
            if most is not None and n > most:
                raise ValueError(
                    f"the RAM tier has {n} slots, and storage_capacity={most} is less: storage also keeps what is in "
                    "RAM, so it must hold at least as much"
                )
            # (An eighth is kept for what is written before something else is gone.)
            bytes_in_ram = n * padded(int(typical))
            if room is not None and bytes_in_ram > room - room // 8 and not opening:
                raise ValueError(
                    f"the RAM tier has {n} slots, and storage_capacity={room} bytes is too little: storage also keeps "
                    f"what is in RAM, and some room to write; give at least {-(-bytes_in_ram * 8 // 7)} bytes"
                )
        return tier

    def _start_worker(self) -> None:
        assert self.store is not None and self._ram is not None
        self._engine = self.store.engine.name
        lock = -1 if self.store.lock is None else self.store.lock.fd
        plan = Plan(self.store.directory, self._engine, self._ram.layout, self._throttle, lock)
        self._worker = WORKERS[self._kind](plan, self._ram.shared)

    def _send(self, order: Order) -> None:
        assert self._worker is not None
        self._worker.send(order)

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise CarmError(
                f"this memory belongs to process {self._pid}; in process {os.getpid()} (a DataLoader worker?) read it "
                "with a memory.reader() that was made before"
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
        """The fields of a sample; None until they are known."""
        return self._known if self._ram is None else self._ram.schema

    @property
    def labels(self) -> Ints:
        """Labels of the samples in the RAM tier, by slot; see `slots`."""
        return _NOBODY if self._ram is None else self._ram.labels[self._ram.used()]

    @property
    def slots(self) -> Ints:
        """Slots that hold a sample."""
        return _NOBODY if self._ram is None else self._ram.used().copy()

    def filled(self, slots: Ints) -> Ints:
        """Those of `slots` that hold a sample."""
        if self._ram is None:
            return _NOBODY
        slots = slots[(slots >= 0) & (slots < self._ram.table)]
        return slots[self._ram.ids[slots] >= 0]

    def class_counts(self) -> dict[int, tuple[int, int]]:
        """Samples of every class as (in RAM, in storage)."""
        ram = self._ram.sets if self._ram is not None else None
        stored = self.store.index.sets if self.store is not None and self.store.schema is not None else None
        labels = [*(ram.labels if ram else []), *(stored.labels if stored else [])]
        return {c: (ram.count(c) if ram else 0, stored.count(c) if stored else 0) for c in dict.fromkeys(labels)}

    def stats(self) -> dict[str, Any]:
        """Counters and sizes, as plain numbers; docs/architecture.md says what each means."""
        extra: dict[str, Any] = {
            "ram_samples": len(self),
            "ram_capacity": self.capacity,
            "ram_bytes": self._ram.layout.nbytes if self._ram is not None else 0,
            "queue_depth": self._carousel.outstanding if self._carousel else 0,
            "stream_samples": self._intake.samples if self._intake else 0,
            "worker": self._worker.kind if self._worker else "none",
        }
        if self.store is not None and self.store.schema is not None:
            extra |= {
                "stored_samples": len(self.store),
                "stored_bytes": self.store.index.live_bytes,
                "index_bytes": self.store.index_bytes,
                "evicted": self.store.evicted,
                "corrupt": self.store.corrupt,
                "engine": self._engine,
            }
        return self._stats.as_dict() | extra

    def reader(self) -> RamReader:
        """A view of the RAM tier for other processes: give it to a DataLoader."""
        self._check()
        if self._ram is None:
            raise CarmError(
                "nothing has been added yet, so there is nothing to read; add samples first, or give schema="
            )
        return self._ram.reader()

    # -- T: training draws -------------------------------------------------------------------------------------------

    def draw(self, n: int) -> Batch:
        """`n` different samples of the RAM tier, chosen uniformly; all of them if it holds fewer.

        Draws only read. Samples that have come in are published by `feedback`, `add` and `poll`.
        """
        if self._closed or self._pid != os.getpid():
            self._check()
        if type(n) is not int or n < 1:
            n = parse_count("n", n)
        ram = self._ram
        count = 0 if ram is None else len(ram)
        if ram is None or count == 0:
            return self._empty_batch()
        chosen = self._draws.subset(count, min(n, count))
        self._stats.drawn += len(chosen)
        return self._take(chosen if count == ram.table else ram.used()[chosen])

    def poll(self) -> None:
        """Publish what has come in since the last call. `feedback`, `add`, `bundle` and `flush` do it anyway."""
        self._collect()

    def take(self, slots: Ints) -> Batch:
        """The samples in these slots. They do not count as drawn."""
        self._collect()
        chosen = slot_numbers(slots)
        if self._ram is None or (len(chosen) and (chosen.min() < 0 or chosen.max() >= self._ram.table)):
            raise IndexError(f"slots must be from 0 to {self.capacity - 1}")
        if (self._ram.ids[chosen] < 0).any():
            raise IndexError(f"slot {int(chosen[self._ram.ids[chosen] < 0][0])} is empty; see memory.slots")
        return self._take(chosen)

    def _take(self, slots: Ints) -> Batch:
        ram = self._ram
        assert ram is not None
        return Batch(to_tensors(ram.schema, ram.fields(slots)), slots, ram.ids[slots], len(slots))

    def _empty_batch(self) -> Batch:
        schema = self.schema
        if schema is None:
            return Batch(UnknownFields(), _NOBODY, _NOBODY)
        return Batch(to_tensors(schema, schema.unpack(np.zeros(0, np.uint8), _NOBODY)), _NOBODY, _NOBODY)

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
        old_per_batch   None: every pass goes over all new and all old samples once, in one shuffled order.
                        A number: every mini-batch gets so many old samples, drawn afresh

        Old samples are read when their mini-batch is made, so what was swapped in meanwhile is used at once.
        `batch.old` tells old from new; after the forward pass call `feedback(batch, logits)`. All batches have the
        fields of the task, or without one those of the samples in memory.

        With several passes `progress` says how far they are. With one it is left alone, so that a caller who makes the
        passes one by one may say it: `memory.progress = number / passes`.
        """
        self._check()
        parse_count("batch_size", batch_size)
        parse_count("passes", passes)
        new = samples.prepared(task, self.label, self.schema) if task is not None else {}
        if new:  # the model is about to learn these classes, and may take old samples for them: gates must see that
            self._see(set(new[self.label].tolist()))
        if old_per_batch is not None:
            parse_count("old_per_batch", old_per_batch)
            if task is None:
                raise ValueError(
                    f"old_per_batch={old_per_batch} goes with new samples, and task is None; give a task, or "
                    "batch_size alone for passes over old samples only"
                )
        try:
            for number in range(passes):
                if passes > 1:
                    self.progress = number / passes
                if old_per_batch is None:
                    for batch in mixed_pass(self, new, batch_size, self._rng["shuffle"]):
                        self._stats.drawn += batch.olds
                        yield batch
                else:
                    yield from paired_pass(self, new, batch_size, old_per_batch, self._rng["shuffle"])
        finally:
            if passes > 1:
                self.progress = 0.0

    # -- R: gate, orders ---------------------------------------------------------------------------------------------

    def feedback(self, batch: Batch, logits: torch.Tensor | None = None, *, target: torch.Tensor | None = None) -> int:
        """Tell the gate what training made of the old samples in `batch`; orders swaps and returns how many.

        Where steps follow each other fast, several small batches are judged together: some calls order nothing, the
        next one more.

        logits   one row per sample of the batch, or per old sample of it. Gates that score by them need them
        target   columns of the right answers, where they are not the labels themselves
        """
        self._collect()
        if self._intake is not None:
            with uninterrupted():
                self._intake.pump()
        if self._judge is None:
            return 0
        ordered = self._judge.hear(self.gate, batch, logits, target, self.progress)
        if self._kind == "sync":
            self._collect()
        return ordered

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

    # -- reports -----------------------------------------------------------------------------------------------------

    def _collect(self, timeout: float = 0.0) -> None:
        """Look at the worker's reports: publish what was read, confirm what was written, notice if it died."""
        self._check()
        worker, carousel = self._worker, self._carousel
        if worker is None or carousel is None:
            return
        if self._judge is not None and self._judge.waits:
            self._judge.judge_due()
        inbox = worker.receive(timeout)
        if inbox:
            with uninterrupted():
                while inbox:
                    self._handle(inbox.popleft())
                    self._deaths = 0
                    if not inbox:
                        worker.receive()
        if not worker.alive and not worker.receive():
            with uninterrupted():
                self._repair(None)

    def _handle(self, report: Report) -> None:
        assert self._carousel is not None and self._intake is not None
        if isinstance(report, ReadDone):
            self._carousel.publish(report)
        elif isinstance(report, WriteDone):
            self._intake.written(report)
        elif isinstance(report, Compacted):
            self._intake.compacted()
        elif isinstance(report, Failure):
            self._repair(report.traceback)

    def _repair(self, trace: str | None) -> None:
        """The worker is gone: drop its reads, start another, send the write again. With a traceback, raise it."""
        assert self._carousel is not None and self._intake is not None and self._worker is not None
        self._stats.worker_restarts += 1
        self._worker.close()
        self._carousel.cancel()
        self._intake.compacting = False
        self._start_worker()
        self._deaths += 1
        if trace is None and self._deaths > 3:
            trace = f"it died {self._deaths} times in a row without a report; its messages are on stderr"
            self._deaths = 0
        if trace is not None:  # it may be the write that failed: do not send it for ever
            self._intake.requeue()
            raise WorkerError(f"the swap worker failed and was started again:\n{trace}")
        self._intake.resend()  # before the warning, which may be made an error
        warnings.warn("the swap worker died; another has been started", RuntimeWarning, stacklevel=4)

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
        """Take in samples that training is done with: the selection says which RAM keeps, and all go to storage.

        x, y          arrays with one row per sample (lists of bytes for encoded ones): field "x" and the label field
        fields        more fields: `add(x, y, logits=...)`. Without x: `add(audio=..., y=...)`
        signals       what the selection needs of the new samples, such as {"features": ...}; it is not stored
        ram_signals   the same of the samples in RAM, by slot
        store         False: keep these in RAM only; they are never swapped

        Returns the samples' ids. Those that the selection keeps are in RAM when this returns; all are on the device
        some time later: `flush` waits for that.
        """
        self._collect()
        if not isinstance(store, (bool, np.bool_)):
            raise ValueError(f"store={store!r}: must be True or False; no field can be called store")
        given = {"x": x} if x is not None else {}
        given |= {self.label: y} if y is not None else {}
        if twice := given.keys() & fields.keys():
            raise ValueError(f"{', '.join(sorted(twice))} is given twice: by its place, and by its name")
        given |= fields
        n = samples.count(given)
        if n == 0:
            return _NOBODY
        records = self._pack(given, n)
        hints = samples.as_signals("signals", signals, n), samples.as_signals("ram_signals", ram_signals, None)
        with uninterrupted():
            ids = self._take_in(records, hints, store)
        if self._intake is not None and store:
            self._hold_back()
        return ids

    def _take_in(self, records: Records, hints: tuple[Arrays, Arrays], store: bool) -> Ints:
        ram, keeper, n = self._ram, self._keeper, len(records)
        assert ram is not None and keeper is not None
        signals, ram_signals = hints
        if keeper.tight:
            before, came_from = ram.capacity, self._settle()
            came_from = came_from[: ram.capacity]
            ram_signals = {k: v[came_from] if len(v) == before else v for k, v in ram_signals.items()}
        # It gets labels of its own: whatever it does with them, those of the records stay true.
        slots = self._places(
            self.select.place(records.labels.copy(), ram, self._rng["select"], signals, ram_signals), n
        )
        self._see(set(records.labels.tolist()))
        ids = self._take_ids(n)
        keeper.keep(records, slots, ids)
        self._stats.added += n
        if self._intake is not None and store:
            self._intake.buffer.push(records, ids, slots)
            self._intake.pump()
        return ids

    def _pack(self, given: dict[str, Any], n: int) -> Records:
        if self._ram is not None:
            return self._ram.schema.pack(given)
        schema = self._known or Schema.infer(given, self.label)
        records = schema.pack(given)
        with uninterrupted():
            self._begin(schema, records.nbytes / n)
        return records

    def _see(self, labels: Iterable[int]) -> None:
        if not self._seen_labels.issuperset(labels):
            self._seen_labels.update(labels)
            self._seen_columns = None

    def _take_ids(self, n: int) -> Ints:
        if self.store is not None:
            return self.store.take_ids(n)
        self._next_id += n
        return np.arange(self._next_id - n, self._next_id, dtype=np.int64)

    def _places(self, answer: Any, n: int) -> Ints:
        """What the selection answered, in an array of our own: we look at it again when the samples are stored, and the
        selection may have used its own for the next answer by then."""
        assert self._ram is not None
        given = np.asarray(answer)
        if given.dtype.kind in "iu" and given.shape == (n,) and given.min() >= -1 and given.max() < self._ram.table:
            slots = given.astype(np.int64)
            kept = slots[slots >= 0]
            if len(set(kept.tolist())) == len(kept):
                return slots
        raise ValueError(
            f"{type(self.select).__name__}.place returned {given.tolist()}: it must give each of the {n} samples a "
            f"different slot below {self._ram.table}, or -1"
        )

    def _settle(self) -> Ints:
        """Large records have filled the RAM tier before its slots: count only as many slots as there was room for.

        Returns for each slot the slot whose sample it has now.
        """
        assert self._ram is not None and self._keeper is not None
        came_from = self._ram.settle()
        self.select.resized(came_from, self._ram.table)
        if self._intake is not None:
            self._intake.moved(np.argsort(came_from))
        self._keeper.tight = False
        return came_from

    def _hold_back(self) -> None:
        """Wait while more than the write buffer allows is on its way to storage: nothing is lost, RAM is bounded."""
        assert self._intake is not None
        if self._kind == "sync":
            self._collect()
        begun = time.monotonic()
        while self._intake.nbytes > self._write_buffer:
            self._pump()
            self._collect(timeout=1.0)
            self._stats.add_wait_seconds += time.monotonic() - begun
            begun = time.monotonic()

    def flush(self) -> None:
        """Wait until every sample added so far is on the device, and every swap that was ordered is done."""
        self._write_out()
        if self._judge is not None:
            self._judge.judge()
        self._drain()

    def _write_out(self) -> None:
        self._collect()
        while self._intake is not None and not self._intake.idle:
            self._pump()
            self._collect(timeout=1.0)
            if self._kind == "sync" and self._intake.writing is not None:
                # Its report was lost to an exception from outside (of a test's time limit, say): write it again.
                self._intake.resend()

    def _pump(self) -> None:
        assert self._intake is not None
        with uninterrupted():
            self._intake.pump(force=True)

    def _drain(self) -> None:
        while self._carousel is not None and self._carousel.swaps:
            self._collect(timeout=1.0)

    def refill(self) -> int:
        """Fill empty slots from storage, class-balanced and random within a class; returns how many samples came in.

        Opening a store that has samples does this, so that training goes on with a full memory after a crash.
        """
        self._check()
        ram, store = self._ram, self.store
        if ram is None or store is None or not len(store):
            return 0
        fits = (ram.free_blocks - ram.spare) // max(1, ram.typical(store.index.sizes[store.index.live()]))
        handles = choose_balanced(ram, store, max(min(ram.capacity - len(ram), fits), 0), self._rng["swap"])
        self._see(store.index.sets.labels)
        came = load_stored(ram, store, ram.free()[: len(handles)], handles)
        self.select.refilled(store.next_id)
        return came

    # -- resizing ----------------------------------------------------------------------------------------------------

    def resize(self, slots: int | None = None, *, ram: int | str | None = None) -> None:
        """Give the RAM tier another size. Samples that no longer fit leave RAM, from the largest classes first; storage
        keeps them. Readers in other processes must be made anew."""
        if (slots is None) == (ram is None):
            raise ValueError(f"give either slots or ram; got slots={slots!r}, ram={ram!r}")
        new_slots = None if slots is None else parse_count("slots", slots)
        new_bytes = None if ram is None else parse_bytes("ram", ram)
        if new_slots is not None and self.store is not None and (self.store.max_samples or new_slots) < new_slots:
            raise ValueError(
                f"slots={new_slots} is more than storage_capacity={self.store.max_samples}, and storage also keeps "
                "what is in RAM"
            )
        old = self._ram
        if old is None:
            self._slots, self._ram_bytes = new_slots, new_bytes
            return
        self.flush()
        mean = float(old.arrays.sizes[old.rows(old.used())].mean()) if len(old) else self._mean_size(old.schema)
        new = self._make_ram(old.schema, mean, new_slots, new_bytes)
        with uninterrupted():
            self._slots, self._ram_bytes = new_slots, new_bytes
            self._move(old, new)

    def _move(self, old: RamTier, new: RamTier) -> None:
        """Take the samples in `old` to `new`, as many as fit, and use that from now on."""
        assert self._keeper is not None
        old.retire()  # first, so that readers do not take it for one with empty slots
        rng = self._rng["select"]
        while len(old) > new.capacity or old.blocks_in_use(new.layout.block) > new.free_blocks - new.spare:
            label = old.sets.largest(u=rng.random())
            assert label is not None
            self._keeper.empty(old.sets.peek(label, rng.random()))
        kept = old.used()
        data, starts = old.read(kept)
        sizes = old.arrays.sizes[old.rows(kept)].astype(np.int64)
        blocks = new.allocate(sizes)
        assert blocks is not None
        new.write(Records(data, starts, sizes, old.labels[kept]), np.arange(len(kept)), blocks)
        first = new.first_blocks(blocks, sizes)
        new.publish(np.arange(len(kept)), first, old.labels[kept], old.ids[kept], old.handles[kept])
        if self._worker is not None:
            self._worker.close()
        self._connect(new)
        self.select.resized(kept, new.table)

    # -- saving and restoring ----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on exactly from here: ids, counters and generator states, but no sample bytes, which are
        in storage. (Samples that are only in RAM are the exception: with storage=None their bytes are included.)

        Waits until everything added is on the device. Until the next `state_dict` the store keeps what it needs to come
        back.
        """
        self.flush()
        ram, store = self._ram, self.store
        return {
            "version": checkpoint.VERSION,
            "slots": self._slots,
            "ram_bytes": self._ram_bytes,
            "schema": None if ram is None else ram.schema.to_json(),
            "select": self.select.state_dict(),
            "gate": self.gate.state_dict(),
            "rng": {name: dict(generator.bit_generator.state) for name, generator in self._rng.items()},
            "draws": self._draws.state_dict(),
            "stats": self._stats.state_dict(),
            "seen": sorted(self._seen_labels),
            "next_id": self._next_id,
            "storage": None if store is None or store.schema is None else checkpoint.store_state(store),
            "ram": None if ram is None else checkpoint.ram_state(ram),
            "tight": self._keeper is not None and self._keeper.tight,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become the memory that `state` was taken from. The store goes back to that moment too: samples added since
        are removed, samples evicted since come back."""
        self._collect()
        while self._intake is not None and self._intake.busy:
            self._collect(timeout=1.0)
        self._drain()
        state = checkpoint.on_cpu(state)
        checkpoint.check(state, self.label, self.schema, self._ram, self.store, self.select)
        with uninterrupted():
            self._become(state)

    def _become(self, state: Mapping[str, Any]) -> None:
        if state["schema"] is not None:
            self._load(Schema.from_json(state["schema"]), state)
        self._slots, self._ram_bytes = state["slots"], state["ram_bytes"]
        self._stats.load_state_dict(state["stats"])
        self.select.load_state_dict(state["select"])
        self.gate.load_state_dict(state["gate"])
        for name, generator in self._rng.items():
            generator.bit_generator.state = state["rng"][name]
        self._draws.load_state_dict(state["draws"])
        self._seen_labels, self._seen_columns = set(state["seen"]), None
        self._next_id = state["next_id"]

    def _load(self, schema: Schema, state: Mapping[str, Any]) -> None:
        """Take the store and the RAM tier back. What waits for storage came later, and is forgotten."""
        ram = checkpoint.make_ram(schema, state["ram"])  # first: if this machine cannot hold it, nothing has changed
        if self.store is not None:
            checkpoint.load_store(self.store, state["storage"])
        if self._worker is not None:
            self._worker.close()
        if self._ram is not None:
            self._ram.retire()
        self._connect(ram)
        assert self._ram is not None and self._keeper is not None
        try:
            checkpoint.load_ram(self._ram, self.store, state["ram"])
        except Exception:
            self._start_over(schema)
            raise
        self._keeper.tight = state["tight"]

    def _start_over(self, schema: Schema) -> None:
        """After a failure half-way: an empty RAM tier, filled with what storage has."""
        assert self._ram is not None
        if self._worker is not None:
            self._worker.close()
        self._ram.retire()
        if self.store is not None:
            self.store.index.sets.restore([(c, items, None) for c, items, _ in self.store.index.sets.order()])
        self._begin(schema, self._mean_size(schema))
        self.refill()

    # -- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is waiting, stop the worker, and let go of the store. May be called again."""
        if self._closed or self._pid != os.getpid():
            return
        if self._judge is not None:
            self._judge.forget()  # swaps that nobody would see
        try:
            try:
                self._write_out()
            except WorkerError:  # perhaps of a read, which does not matter any more
                self._write_out()
        finally:
            with uninterrupted():
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

    def __reduce__(self) -> Any:
        raise CarmError(
            "a Memory cannot be copied, pickled or sent to another process; in a DataLoader worker read it with a "
            "memory.reader()"
        )

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self._pid != os.getpid():
            return
        log.warning("a Memory was not closed; use `with Memory(...) as memory:` or call memory.close()")
        if self._worker is not None and self._worker.is_here:
            threading.Thread(target=self._close_at_last).start()  # this one is needed for it
        else:
            self._close_at_last()

    def _close_at_last(self) -> None:
        try:
            self.close()
        except Exception:
            log.exception("while closing a Memory")

    def __repr__(self) -> str:
        where = f"storage={str(self.store.directory)!r}" if self.store is not None else "RAM only"
        size = format_bytes(self._ram.layout.nbytes) if self._ram is not None else "empty"
        return f"Memory({len(self)} of {self.capacity} slots, {size}, {where})"


_OPEN: weakref.WeakSet[Memory] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Threads do not run any more when the interpreter takes objects apart, and a memory that waits for one would wait
    for ever; so what is still open is closed before that."""
    for memory in list(_OPEN):
        memory.__del__()
