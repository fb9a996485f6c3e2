"""The storage tier: every sample ever seen, as far as capacity goes.

A directory with three files: the bytes in `extents.dat`, the facts in `catalogue.db`, and `lock`. Data is written and synced
first, then its catalogue entry commits; an extent is reused only after the death of its sample has committed. So after kill -9 or a
power cut at any moment every sample that was acknowledged is there, and none is torn.

`Store` plans and remembers; `perform` does. Planning (which extent, which victims) happens in the thread that trains, doing in the
swap worker: `plan` gives an order, `perform` carries it out anywhere, `confirm` or `fail` ends it. `append` does all three.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import logging
import os
import warnings
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carm.memory import extentfile
from carm.memory.aio import Engine, open_engine
from carm.memory.catalogue import ENTRY, Catalogue, Entries
from carm.memory.checksum import checksum
from carm.memory.errors import CheckpointError, CorruptRecord, SchemaError, StoreError, StoreFull, StoreLocked
from carm.memory.extentfile import ExtentFile
from carm.memory.extents import UNIT, FixedExtents, VariableExtents, padded
from carm.memory.index import ClassSets, grown
from carm.memory.record import Bytes, Records, Schema
from carm.memory.units import format_bytes, parse_bytes, parse_count

log = logging.getLogger("carm")
Ints = NDArray[np.int64]
_NONE = np.zeros(0, np.int64)
_NO_ENTRIES: Entries = np.zeros(0, ENTRY)
_RETAIN = 0.25  # of the capacity: what may be kept beyond it for the way back to the last checkpoint


@dataclass(slots=True)
class WriteOrder:
    """Append these records; in the same commit some samples die. `before` die in a commit of their own, first: their extents
    are needed for the new records."""

    seq: int
    records: Records
    births: Entries
    deaths: Ints
    before: Ints = field(default_factory=lambda: _NONE)
    final: bool = True  # whether the dead are gone for good: no checkpoint is kept that would need them
    limit: int | None = None  # of the extent file's size
    victims: list[int] = field(default_factory=list)  # handles of `deaths`
    indices: Ints = field(default_factory=lambda: _NONE)  # which of the planned records are written

    @property
    def buries(self) -> bool:
        """Whether something dies for good, so that commits before this one cannot be returned to."""
        return self.final and bool(len(self.deaths) or len(self.before))


def perform(order: WriteOrder, file: ExtentFile, catalogue: Catalogue) -> None:
    """Carry out a write order. Doing it again after a crash half-way changes nothing."""
    if len(order.before):
        catalogue.commit(order.seq, _NO_ENTRIES, order.before, floor=order.seq)
    records = order.records
    file.write(records.data, records.starts, records.sizes, order.births["offset"], order.limit)
    catalogue.commit(order.seq + 1, order.births, order.deaths, floor=order.seq + 1 if order.buries else None)


class Store:
    """The storage tier in `directory`, open for writing (or, with `readonly`, for looking).

    capacity: number of samples (int), bytes of the extent file (str such as "2GiB"), or None for no limit but the device's.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        schema: Schema | None = None,
        capacity: int | str | None = None,
        engine: str = "auto",
        readonly: bool = False,
        seed: int = 0,
    ) -> None:
        self.directory = Path(directory)
        self.readonly = readonly
        self.max_samples = parse_count("capacity", capacity, most=2**31 - 2) if isinstance(capacity, int) else None
        self.max_bytes = parse_bytes("capacity", capacity) if isinstance(capacity, str) else None
        if capacity is not None and self.max_samples is None and self.max_bytes is None:
            raise ValueError(f'capacity={capacity!r}: a number of samples, a size such as "2GiB", or None')
        self.rng = np.random.default_rng(seed)
        self.file_limit = self.max_bytes
        self.corrupt = 0  # samples dropped since opening because they could not be read whole
        self.evicted = 0
        self._largest = 0  # bytes of the largest batch
        self._engine_name = engine
        self._engine: Engine | None = None
        self._lock = -1
        self._pid = os.getpid()
        self.file: ExtentFile | None = None
        self.catalogue: Catalogue | None = None
        self.schema: Schema | None = None
        self._open(schema)

    # -- opening and closing -----------------------------------------------------------------------------------------

    def _open(self, schema: Schema | None) -> None:
        if self.readonly:
            if not (self.directory / "catalogue.db").is_file():
                raise StoreError(f"{self.directory} holds no store: there is no catalogue.db in it")
        else:
            self._take_directory()
        try:
            self.catalogue = Catalogue(self.directory, readonly=self.readonly)
            found = self.catalogue.schema()
            if found is not None and schema is not None and found != schema:
                raise SchemaError(f"the store in {self.directory} holds samples {found}, not {schema}")
            if found is not None:
                self._start(found)
            elif schema is not None and not self.readonly:
                self.create(schema)
        except BaseException:
            self.close()
            raise

    def _take_directory(self) -> None:
        path = self.directory / "lock"
        try:
            self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except NotADirectoryError as error:
            raise StoreError(f"{self.directory} cannot be a store: a part of that path is a file") from error
        except FileExistsError as error:
            raise StoreError(f"{self.directory} is a file; a store is a directory") from error
        except (PermissionError, OSError) as error:
            raise StoreError(
                f"cannot write in {self.directory}: {error.strerror}; choose a directory that can be written"
            ) from error
        _FORKED.add(self)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = path.read_text().strip() or "unknown"
            os.close(self._lock)
            self._lock = -1
            raise StoreLocked(
                f"{self.directory} is open for writing in process {owner}; close it there, or use another directory"
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def create(self, schema: Schema) -> None:
        """Make this empty store one for samples of `schema`."""
        assert self.catalogue is not None
        self.catalogue.create(schema)
        self._start(schema)

    def _start(self, schema: Schema) -> None:
        assert self.catalogue is not None
        self.schema = schema
        self.uuid = self.catalogue.uuid()
        path = self.directory / extentfile.NAME
        if not self.readonly:
            if not path.exists() and self.catalogue.load().seq:
                raise StoreError(
                    f"{path} is missing, but the catalogue has samples; restore the file, or use another directory"
                )
            self.file = ExtentFile(self.directory)
            self.file.reserve(8192)  # so that an engine can try how it may be read
        self._load()
        if self.max_bytes is not None and self.max_bytes < 4 * self._unit_size():
            raise ValueError(
                f"capacity={self.max_bytes} bytes does not hold four records of {self._unit_size()} bytes; give more, or a count"
            )

    def _unit_size(self) -> int:
        return padded(self.schema.head_size) if self.schema is not None else UNIT

    def _load(self) -> None:
        """Build the index from the catalogue."""
        assert self.catalogue is not None and self.schema is not None
        contents = self.catalogue.load()
        entries = contents.entries
        try:
            length = os.stat(self.directory / extentfile.NAME).st_size
        except FileNotFoundError:
            length = 0
        whole = entries["offset"] + entries["size"] <= length
        lost = entries[~whole]
        entries = entries[whole]
        n = len(entries)
        self.seq, self.next_id, self.floor = contents.seq, contents.next_id, contents.floor
        self.buried = contents.buried
        self.ids = entries["id"].astype(np.int64)
        self.offsets = entries["offset"].astype(np.int64)
        self.sizes = entries["size"].astype(np.int32)
        self.sums = entries["checksum"].astype(np.uint64)
        self.sets = ClassSets(n)
        labels = entries["label"].astype(np.int64)
        order = np.argsort(labels, kind="stable")
        names, at = np.unique(labels[order], return_index=True)
        groups = np.split(order, at[1:]) if n else []
        # Classes in the order of their first sample, as they would be had the store never been closed.
        self.sets.restore(
            sorted(((int(c), len(g), g) for c, g in zip(names, groups, strict=True)), key=lambda g: int(g[2][0]))
        )
        self.count = n
        self.live_bytes = int(((self.sizes.astype(np.int64) + UNIT - 1) // UNIT).sum()) * UNIT
        self._free_handles: list[int] = []
        self._top_handle = n
        self._grave: list[tuple[int, Ints, Ints]] = []  # (commit, offsets, sizes) of the dead that could come back
        self.retained = 0
        dead = contents.dead
        for seq in np.unique(contents.died).tolist():
            here = dead[contents.died == seq]
            self._bury(seq, here["offset"].astype(np.int64), here["size"].astype(np.int64))
        taken_offsets = np.concatenate([self.offsets, *(g[1] for g in self._grave)])
        taken_sizes = np.concatenate([self.sizes.astype(np.int64), *(g[2] for g in self._grave)])
        self.extents: FixedExtents | VariableExtents = (
            FixedExtents(self.schema.head_size, taken_offsets)
            if self.schema.fixed
            else VariableExtents(taken_offsets, taken_sizes)
        )
        self.mark: int | None = self.floor if self._grave else None
        self._pending_deaths: list[int] = []  # ids that must die in the next commit
        self._first_deaths: list[int] = []  # ids that must die before the next write
        if len(lost):
            self.corrupt += len(lost)
            self._pending_deaths += lost["id"].tolist()
            warnings.warn(
                f"{self.directory}: extents.dat ends before {len(lost)} of the samples in the catalogue; they are dropped",
                CorruptRecord,
                stacklevel=4,
            )

    def close(self) -> None:
        """Commit what is due, and let go of the directory. May be called again."""
        if self._pid != os.getpid():
            return
        if self.catalogue is not None and not self.readonly and self.schema is not None:
            with contextlib.suppress(OSError):
                self.settle()
        for part in (self._engine, self.file, self.catalogue):
            if part is not None:
                part.close()
        self._engine = self.file = self.catalogue = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def settle(self) -> None:
        """Commit deaths that wait for a commit, and merge the catalogue's rows if more than half of it is dead."""
        assert self.catalogue is not None
        if self._pending_deaths:
            self._commit_deaths([])
        if self.wants_compaction:
            self.catalogue.compact(self.floor)
            self.buried = 0

    @property
    def wants_compaction(self) -> bool:
        return self.buried > self.count + 4096

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _writable(self) -> Catalogue:
        if self._pid != os.getpid():
            raise StoreError(
                f"{self.directory} was opened by process {self._pid}, and this is its child {os.getpid()}: a forked process cannot "
                "use it. In DataLoader workers read the RAM tier with memory.reader()"
            )
        if self.catalogue is None:
            raise StoreError(f"the store in {self.directory} is closed")
        if self.readonly:
            raise StoreError(f"the store in {self.directory} was opened with readonly=True")
        return self.catalogue

    # -- asking ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.count

    @property
    def index_bytes(self) -> int:
        """Bytes of RAM that the index takes."""
        return self.sets.nbytes + sum(a.nbytes for a in (self.ids, self.offsets, self.sizes, self.sums))

    def handles_of(self, ids: Sequence[int] | Ints) -> NDArray[np.int32]:
        """The index entry of each id; -1 where there is none."""
        wanted = np.asarray(ids, np.int64)
        live = self.live_handles()
        if not len(live):
            return np.full(len(wanted), -1, np.int32)
        known = self.ids[live]
        at = np.minimum(np.searchsorted(known, wanted), len(live) - 1)
        return np.where(known[at] == wanted, live[at], -1).astype(np.int32)

    def live_handles(self) -> Ints:
        """Index entries in use, by id."""
        live = self.sets.items()
        return live[np.argsort(self.ids[live])]

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine that reads, chosen when it is first needed."""
        if self._engine is None:
            self._engine = self.open_engine()
        return self._engine

    def open_engine(self) -> Engine:
        """A new engine for this store's extents."""
        live = self.live_handles() if self._engine_name == "auto" and self.count >= 32 else None
        if live is not None and len(live) > 4096:
            live = np.random.default_rng().choice(live, 4096, replace=False)
        offsets = None if live is None else self.offsets[live]
        sizes = None if live is None else self.sizes[live].astype(np.int64)
        return open_engine(self._engine_name, self.directory / extentfile.NAME, offsets, sizes)

    def fetch(self, handles: Ints | NDArray[np.int32]) -> tuple[Bytes, Ints, NDArray[np.bool_]]:
        """Read the records of index entries: bytes, where each starts, and which are whole (checksum included)."""
        sizes = self.sizes[handles].astype(np.int64)
        data, starts, ok = self.engine.read(self.offsets[handles], sizes)
        return data, starts, verified(data, starts, sizes, self.sums[handles], ok)

    def read(self, ids: Sequence[int] | Ints) -> dict[str, Any]:
        """The samples with these ids, as a dict of arrays (lists of arrays for variable fields), in the order asked for."""
        if self.schema is None:
            raise KeyError(f"the store in {self.directory} is empty")
        handles = self.handles_of(ids)
        if (handles < 0).any():
            raise KeyError(f"no sample with id {np.asarray(ids)[handles < 0][0]} in {self.directory}")
        data, starts, ok = self.fetch(handles)
        if not ok.all():
            bad = np.asarray(ids)[~ok].tolist()
            if not self.readonly:
                self.discard(handles[~ok].tolist())
            raise StoreError(f"samples {bad} in {self.directory} do not match their checksums; they are dropped")
        sizes = self.sizes[handles].astype(np.int64)
        flat = np.concatenate(
            [data[s : s + n] for s, n in zip(starts.tolist(), sizes.tolist(), strict=True)] or [data[:0]]
        )
        return self.schema.unpack(flat, np.cumsum(sizes) - sizes)

    def verify(self, *, batch: int = 1024) -> Iterator[tuple[int, list[int]]]:
        """Read everything and compare checksums; yields (samples checked, bad ids) batch by batch."""
        live = self.live_handles()
        for at in range(0, len(live), batch):
            handles = live[at : at + batch]
            _, _, ok = self.fetch(handles)
            yield len(handles), self.ids[handles[~ok]].tolist()

    # -- planning ----------------------------------------------------------------------------------------------------

    def plan(self, records: Records, ids: Ints, pinned: NDArray[np.bool_] | None = None) -> WriteOrder:
        """An order that appends `records` under `ids`, with victims as capacity demands. `pinned` ones may not be left out.

        Raises StoreFull if room cannot be made. At most one order may be open.
        """
        self._writable()
        chosen = np.arange(len(records))
        victims, skipped = self._make_room(records, pinned)
        if len(skipped):
            chosen = np.setdiff1d(chosen, skipped)
            self.evicted += len(skipped)
        sizes = records.sizes[chosen]
        offsets = self.extents.allocate(sizes, self._end_limit())
        first: list[int] = []
        while offsets is None:  # the file may not grow, and no hole fits: some must die before the new ones are written
            if self.mark is not None:
                self.forget_checkpoint()
            else:
                more = victims or self._victims(max(1, len(chosen) // 8), records.labels[chosen])
                victims = []
                if not more:
                    raise StoreFull(
                        f"{self.directory}: no room for {len(chosen)} samples ({format_bytes(int(sizes.sum()))}), and nothing may "
                        "be evicted (what is left is in RAM now); give the store more room"
                    )
                self._first_deaths += self.ids[more].tolist()
                self.extents.release(self.offsets[more], self.sizes[more].astype(np.int64))
                self._drop(more)
                first += more
            offsets = self.extents.allocate(sizes, self._end_limit())
        self.evicted += len(first)
        self.buried += len(first)
        births = np.zeros(len(chosen), ENTRY)
        births["id"], births["offset"], births["label"] = ids[chosen], offsets, records.labels[chosen]
        births["size"] = sizes
        births["checksum"] = checksum(records.data, records.starts[chosen], sizes)
        part = records
        if len(chosen) < len(records):
            part = Records(records.data, records.starts[chosen], sizes, records.labels[chosen])
        order = self._order(part, births, victims, chosen)
        order.before = np.array(self._first_deaths, np.int64)
        order.limit = self._end_limit()
        self._first_deaths = []
        return order

    def _end_limit(self) -> int | None:
        return None if self.file_limit is None else self.file_limit + self.retained

    def _order(self, records: Records, births: Entries, victims: list[int], chosen: Ints) -> WriteOrder:
        deaths = np.concatenate([self.ids[victims], np.array(self._pending_deaths, np.int64)]).astype(np.int64)
        self._pending_deaths = []
        return WriteOrder(
            self.seq + 1, records, births, deaths, final=self.mark is None, victims=victims, indices=chosen
        )

    def _make_room(self, records: Records, pinned: NDArray[np.bool_] | None) -> tuple[list[int], Ints]:
        """Victims (held, so that nobody else picks them), and which of the new records are not worth writing at all."""
        n = len(records)
        if self.max_samples is not None:
            over = self.count + n - self.max_samples
        elif self.max_bytes is not None:
            incoming = int((-(-records.sizes // UNIT) * UNIT).sum())
            # The new ones are written before the victims' extents are free. Room for one batch is kept, so that this does not need
            # a commit of its own.
            self._largest = max(self._largest, incoming)
            surplus = self.live_bytes + incoming - self.max_bytes + min(self._largest, self.max_bytes // 8)
            mean = (self.live_bytes + incoming) / max(self.count + n, 1)
            over = int(np.ceil(surplus / mean)) if surplus > 0 else 0
        else:
            return [], _NONE
        if over <= 0:
            return [], _NONE
        victims = self._victims(over, records.labels)
        short = over - len(victims)
        if short <= 0:
            return victims, _NONE
        open_births = np.arange(n) if pinned is None else np.flatnonzero(~pinned)
        skipped = self.rng.permutation(open_births)[:short]
        if (
            len(skipped) < short
        ):  # everything that is left is in RAM: it stays there, unstored, rather than be stored beyond capacity
            rest = np.setdiff1d(np.arange(n), skipped)
            skipped = np.concatenate([skipped, self.rng.permutation(rest)[: short - len(skipped)]])
        return victims, skipped.astype(np.int64)

    def _victims(self, n: int, incoming: Ints) -> list[int]:
        """Up to `n` open samples, always from the class that is largest (new arrivals counted), uniform within it. Held."""
        sets = self.sets
        labels, counts = np.unique(incoming, return_counts=True)
        arriving = dict(zip(labels.tolist(), counts.tolist(), strict=True))
        classes = [c for c in sets.labels if sets.open_count(c)]
        heap = [
            (-(sets.count(c) + arriving.get(c, 0)), u, c)
            for c, u in zip(classes, self.rng.random(len(classes)), strict=True)
        ]
        heapq.heapify(heap)
        out: list[int] = []
        uniform = self.rng.random(n).tolist()
        while heap and len(out) < n:
            size, tie, label = heap[0]
            handle = sets.take_open(label, uniform[len(out)])
            if handle < 0:
                heapq.heappop(heap)
                continue
            out.append(handle)
            heapq.heapreplace(heap, (size + 1, tie, label))
        return out

    def _undo(self, held: list[int]) -> None:
        for handle in held:
            self.sets.release(handle)

    # -- ending an order ---------------------------------------------------------------------------------------------

    def confirm(self, order: WriteOrder) -> NDArray[np.int32]:
        """The order was carried out. Returns the index entries of the new samples, which are open from now on."""
        self.seq = order.seq + 1
        if len(order.deaths):
            self._retire(order)
        if order.buries:
            self.floor = self.seq
        return self._enter(order.births)

    def _retire(self, order: WriteOrder) -> None:
        victims = order.victims
        self.evicted += len(victims)
        offsets, sizes = self.offsets[victims], self.sizes[victims].astype(np.int64)
        if order.final:
            self.extents.release(offsets, sizes)
            self.buried += len(order.deaths)
        else:
            self._bury(self.seq, offsets, sizes)
            bound = self.max_bytes or (self.max_samples or 0) * (self.live_bytes // max(self.count, 1))
            if bound and self.retained > _RETAIN * bound:
                self.forget_checkpoint()
        self._drop(victims)

    def fail(self, order: WriteOrder) -> None:
        """The order could not be carried out: its victims live on. (`before` may have died; their extents are free.)"""
        self._undo(order.victims)
        known = set(self.ids[order.victims].tolist())
        self._pending_deaths += [i for i in order.deaths.tolist() if i not in known]
        self.extents.release(order.births["offset"].astype(np.int64), order.births["size"].astype(np.int64))
        if len(order.before):
            # Whether that first commit was made is not known. Their extents are in use by nobody now and may be chosen again, so
            # the next order must begin with the same deaths; saying them twice does no harm.
            self._first_deaths += order.before.tolist()
            self.seq = order.seq

    def full(self) -> None:
        """The device is full: from now on make do with the file as it is."""
        assert self.file is not None
        size = os.stat(self.file.path).st_size
        first = self.file_limit is None or size < self.file_limit
        self.file_limit = size
        if self.max_bytes is None or size < self.max_bytes:
            self.max_bytes = max(size, UNIT)
        if first:
            warnings.warn(
                f"{self.directory}: the device is full at {format_bytes(size)}; older samples are evicted from now on to make "
                "room for new ones",
                stacklevel=3,
            )

    def _enter(self, births: Entries) -> NDArray[np.int32]:
        n = len(births)
        reused = self._free_handles[len(self._free_handles) - min(n, len(self._free_handles)) :]
        del self._free_handles[len(self._free_handles) - len(reused) :]
        fresh = n - len(reused)
        top = self._top_handle
        handles = np.array(reused + list(range(top, top + fresh)), np.int32)
        if top + fresh > len(self.ids):
            need = top + fresh
            self.ids = grown(self.ids, need).astype(np.int64, copy=False)
            self.offsets = grown(self.offsets, need).astype(np.int64, copy=False)
            self.sizes = grown(self.sizes, need).astype(np.int32, copy=False)
            self.sums = grown(self.sums, need).astype(np.uint64, copy=False)
        self._top_handle = top + fresh
        self.sets.reserve(len(self.ids))
        self.ids[handles], self.offsets[handles] = births["id"], births["offset"]
        self.sizes[handles], self.sums[handles] = births["size"], births["checksum"]
        for handle, label in zip(handles.tolist(), births["label"].tolist(), strict=True):
            self.sets.add(handle, label)
        self.count += n
        self.live_bytes += int((-(-births["size"].astype(np.int64) // UNIT) * UNIT).sum())
        if n:
            self.next_id = max(self.next_id, int(births["id"].max()) + 1)
        return handles

    def _drop(self, handles: list[int]) -> None:
        """Take samples out of the index."""
        for handle in handles:
            self.sets.remove(handle)
        self._free_handles += handles
        self.count -= len(handles)
        self.live_bytes -= int((-(-self.sizes[handles].astype(np.int64) // UNIT) * UNIT).sum())

    def _bury(self, seq: int, offsets: Ints, sizes: Ints) -> None:
        self._grave.append((seq, offsets, sizes))
        self.retained += int((-(-sizes // UNIT) * UNIT).sum())

    # -- the simple way ----------------------------------------------------------------------------------------------

    def append(self, samples: dict[str, Any]) -> Ints:
        """Store a batch of samples; when this returns they are on the device. Returns their ids, -1 where there was no room."""
        catalogue = self._writable()
        if self.schema is None:
            self.create(Schema.infer(samples))
        assert self.schema is not None and self.file is not None
        records = self.schema.pack(samples)
        ids = self.take_ids(len(records))
        for _ in range(3):
            order = self.plan(records, ids)
            try:
                perform(order, self.file, catalogue)
            except OSError as error:
                self.fail(order)
                if error.errno not in extentfile.FULL:
                    raise
                self.full()
                continue
            self.confirm(order)
            stored = np.full(len(ids), -1, np.int64)
            stored[order.indices] = ids[order.indices]
            return stored
        raise StoreFull(
            f"{self.directory}: the device has no room for {len(records)} samples ({format_bytes(records.nbytes)})"
        )

    def take_ids(self, n: int) -> Ints:
        """New ids."""
        first = self.next_id
        self.next_id += n
        return np.arange(first, first + n, dtype=np.int64)

    def delete(self, ids: Sequence[int] | Ints) -> None:
        """Forget samples; when this returns they are gone for good, also after a crash."""
        self._writable()
        handles = self.handles_of(ids)
        if (handles < 0).any():
            raise KeyError(f"no sample with id {np.asarray(ids)[handles < 0][0]} in {self.directory}")
        chosen = np.unique(handles).tolist()
        held = [h for h in chosen if not self.sets.is_open(h)]
        if held:
            raise ValueError(f"sample {int(self.ids[held[0]])} is in RAM now and cannot be deleted")
        for handle in chosen:
            self.sets.hold(handle)
        self._commit_deaths(chosen)
        self.evicted -= len(chosen)

    def _commit_deaths(self, handles: list[int]) -> None:
        """Let these (held) samples die, and those that wait for the next commit."""
        order = self._order(_empty_records(), _NO_ENTRIES, handles, _NONE)
        try:
            self._writable().commit(
                order.seq + 1, _NO_ENTRIES, order.deaths, floor=order.seq + 1 if order.buries else None
            )
        except BaseException:
            self.fail(order)
            raise
        self.confirm(order)

    def discard(self, handles: list[int]) -> None:
        """Drop samples that could not be read whole. Their extents are not used again before the store is reopened."""
        ids = self.ids[handles].tolist()
        self._pending_deaths += ids
        self.corrupt += len(handles)
        self._drop(handles)
        warnings.warn(
            f"{self.directory}: samples {ids[:8]}{' ...' if len(ids) > 8 else ''} do not match their checksums; they are dropped",
            CorruptRecord,
            stacklevel=3,
        )

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self) -> dict[str, Any]:
        """Remember this moment: until the next checkpoint nothing that is stored now is overwritten, so that `restore` can come
        back. What is evicted meanwhile takes room beyond the capacity, at most a quarter of it; then the way back is given up."""
        catalogue = self._writable()
        self.settle()
        catalogue.set_floor(self.seq)
        self._release_until(self.seq)
        self.mark = self.floor = self.seq
        return {"uuid": self.uuid, "seq": self.seq, "next_id": self.next_id}

    def forget_checkpoint(self) -> None:
        """Give up the way back to the last checkpoint, for the room that it takes."""
        catalogue = self._writable()
        log.warning(
            "%s: the samples kept for the last checkpoint are given up to make room; it can no longer be restored",
            self.directory,
        )
        catalogue.set_floor(self.seq)
        self._release_until(self.seq)
        self.floor, self.mark = self.seq, None

    def _release_until(self, seq: int) -> None:
        for died, offsets, sizes in self._grave:
            if died <= seq:
                self.extents.release(offsets, sizes)
                self.retained -= int((-(-sizes // UNIT) * UNIT).sum())
                self.buried += len(offsets)
        self._grave = [g for g in self._grave if g[0] > seq]

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a checkpoint: what was stored since is gone, what was evicted since is back."""
        catalogue = self._writable()
        if state["uuid"] != self.uuid:
            raise CheckpointError(f"the checkpoint is of another store than the one in {self.directory}")
        if not self.floor <= state["seq"] <= self.seq:
            raise CheckpointError(
                f"the store in {self.directory} cannot go back to commit {state['seq']}: it can go back to {self.floor}, and is at "
                f"{self.seq}. Only the newest checkpoint of a store that evicts can be restored"
            )
        catalogue.rollback(state["seq"], state["next_id"])
        self._load()
        self.next_id = state["next_id"]
        self.mark = self.seq


def verified(
    data: Bytes, starts: Ints, sizes: Ints, sums: NDArray[np.uint64], ok: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """`ok`, less the records whose bytes do not match their checksums."""
    if ok.all():
        return np.asarray(checksum(data, starts, sizes) == sums)
    good = np.flatnonzero(ok)
    out = ok.copy()
    out[good] = checksum(data, starts[good], sizes[good]) == sums[good]
    return out


def _empty_records() -> Records:
    return Records(np.zeros(0, np.uint8), _NONE, _NONE, _NONE)


# A forked child has copies of the descriptors; as long as one is open the lock is held, even after the parent's death.
_FORKED: weakref.WeakSet[Store] = weakref.WeakSet()


def _after_fork() -> None:
    for store in list(_FORKED):
        if store._lock >= 0:
            os.close(store._lock)
            store._lock = -1


os.register_at_fork(after_in_child=_after_fork)
