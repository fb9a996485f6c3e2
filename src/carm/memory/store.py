"""The storage tier: every sample ever seen, as far as capacity goes.

A directory with three files: the bytes in `extents.dat`, the facts in `catalogue.db`, and `lock`. Data is written and
synced first, then its catalogue entry commits; an extent is reused only after the death of its sample has committed. So
after kill -9 or a power cut at any moment every sample that was acknowledged is there, and none is torn.

`Store` plans and remembers; `perform` does. Planning (which extent, which victims) happens in the thread that trains,
doing in the swap worker: `plan` gives an order, `perform` carries it out anywhere, `confirm` or `fail` ends it.
`append` does all three.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from carm.memory import catalogue, evict, extentfile
from carm.memory import directory as directories
from carm.memory.aio import Engine, check_engine, open_engine
from carm.memory.catalogue import ENTRY, Catalogue, Contents, Entries
from carm.memory.checksum import checksum, verified
from carm.memory.errors import CheckpointError, CorruptRecord, SchemaError, StoreError, StoreFull, warn
from carm.memory.extentfile import ExtentFile
from carm.memory.extents import UNIT, FixedExtents, VariableExtents, padded, padded_each
from carm.memory.index import Index
from carm.memory.interrupt import uninterrupted
from carm.memory.orders import WriteOrder, compact, perform
from carm.memory.past import Past
from carm.memory.record import Bytes, Records, Schema
from carm.memory.units import format_bytes, parse_bytes, parse_count

log = logging.getLogger("carm")
Ints = NDArray[np.int64]
_NONE = np.zeros(0, np.int64)
_NO_ENTRIES: Entries = np.zeros(0, ENTRY)
_NOTHING = Contents(_NO_ENTRIES, _NO_ENTRIES, _NONE, 0, 0, 0, (), 0)
_RETAIN = 0.25  # of the capacity: what may be kept beyond it for the way back to checkpoints
_LEAST_FILE = 8192  # bytes of a new extent file: enough for an engine to try how it may be read


class Store:
    """The storage tier in `directory`, open for writing (or, with `readonly`, for looking).

    capacity: number of samples (int), bytes of the extent file (str such as "2GiB"), or None for no limit but the
    device's.
    """

    owned = False
    """Whether a Memory has it, which closes it when everything that waits has been written."""

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
        if not os.fspath(directory):
            raise ValueError("the directory of a store is ''; give it a name, or '.' for the current one")
        self.directory = Path(directory).absolute()  # the worker opens files later, wherever the process is then
        self.readonly = readonly
        self.max_samples: int | None = None
        self.max_bytes: int | None = None
        if isinstance(capacity, str):
            self.max_bytes = parse_bytes("capacity", capacity)
        elif capacity is not None:
            self.max_samples = parse_count("capacity", capacity)
        self.rng = np.random.default_rng(seed)
        self.file_limit = self.max_bytes
        self.corrupt = 0  # samples dropped since opening because they could not be read whole
        self.evicted = 0
        self._device_full = False
        self._refusals = 0  # of the device, since it last took something
        self._largest = 0  # bytes of the largest batch
        check_engine(engine)
        self._engine_name = engine
        self._engine: Engine | None = None
        self._pid = os.getpid()
        self.lock: directories.Lock | None = None
        self.file: ExtentFile | None = None
        self.catalogue: Catalogue | None = None
        self.schema: Schema | None = None
        self._ready = False  # whether what is in the catalogue is known, and so may be changed
        self._adopt(_NOTHING, 0)
        self._open(schema)

    # -- opening and closing -----------------------------------------------------------------------------------------

    def _open(self, schema: Schema | None) -> None:
        if self.readonly:
            if not (self.directory / catalogue.NAME).is_file():
                raise StoreError(f"{self.directory} holds no store: there is no catalogue.db in it")
        else:
            self._take_directory()
        try:
            self._check_pair()
            self.catalogue = Catalogue(self.directory, readonly=self.readonly)
            found = self.catalogue.schema()
            if found is not None and schema is not None and found != schema:
                raise SchemaError(f"the store in {self.directory} holds samples {found}, not {schema}")
            if found is not None:
                self._start(found)
            elif schema is not None and not self.readonly:
                self.create(schema)
        except BaseException as error:
            self.close()
            self._tell_if_full(error)
            raise

    def _tell_if_full(self, error: BaseException) -> None:
        """Raise StoreFull if that is what this error is."""
        if _is_full(error):
            raise StoreFull(
                f"{self.directory}: the device is full; free some room. Everything stored before is still there"
            ) from error

    def _check_pair(self) -> None:
        """The catalogue is made first: extents without one are not those of a new store."""
        path = self.directory / catalogue.NAME
        if self._file_length() and not (path.exists() and path.stat().st_size):
            raise StoreError(
                f"{path} is missing or empty, but {extentfile.NAME} is not; bring back a copy of it, or use another "
                "directory"
            )

    def _take_directory(self) -> None:
        try:
            directories.make(self.directory)
            self.lock = directories.Lock(self.directory)
        except NotADirectoryError as error:
            raise StoreError(f"{self.directory} cannot be a store: a part of that path is a file") from error
        except FileExistsError as error:
            raise StoreError(f"{self.directory} is a file; a store is a directory") from error
        except OSError as error:
            raise StoreError(
                f"cannot write in {self.directory}: {error.strerror}; choose a directory that can be written"
            ) from error

    def create(self, schema: Schema) -> None:
        """Make this empty store one for samples of `schema`."""
        self._check_capacity(schema)
        catalogue = self._writable()
        try:
            catalogue.create(schema)
            found = catalogue.schema()
            if found != schema:  # laid out by an attempt that got no further
                raise SchemaError(f"the store in {self.directory} is for samples {found}, not {schema}")
            self._start(schema)
        except OSError as error:
            self._tell_if_full(error)
            raise

    def _check_capacity(self, schema: Schema) -> None:
        least = max(4 * padded(schema.head_size), _LEAST_FILE)
        if self.max_bytes is not None and self.max_bytes < least:
            raise ValueError(
                f"capacity={self.max_bytes} bytes is too little for records of {schema.head_size} bytes or more; give "
                f"at least {least}, or a number of samples"
            )

    def _start(self, schema: Schema) -> None:
        assert self.catalogue is not None
        self._check_capacity(schema)
        contents = self.catalogue.load()
        length = self._file_length()
        if length is None and len(contents.entries):
            raise StoreError(
                f"{self.directory / extentfile.NAME} is missing, but the catalogue has samples; bring the file back, "
                "or use another directory"
            )
        if not self.readonly:
            self.file = self.file or ExtentFile(self.directory, direct=self._engine_name == "aio")
            self.file.reserve(_LEAST_FILE, _LEAST_FILE)
        self.uuid = self.catalogue.uuid()
        self.schema = schema
        self._adopt(contents, length or 0)
        self._ready = True
        if self.max_samples is not None and len(self) > self.max_samples and not self.readonly:
            log.warning(
                "%s holds %d samples, and its capacity is %d from now on: others are evicted with the next write",
                self.directory, len(self), self.max_samples,
            )  # fmt: skip

    def _file_length(self) -> int | None:
        try:
            return os.stat(self.directory / extentfile.NAME).st_size
        except FileNotFoundError:
            return None

    def _adopt(self, contents: Contents, length: int) -> None:
        """Build the index. `length` is that of the extent file."""
        whole = contents.entries["offset"] + contents.entries["size"].astype(np.int64) <= length
        entries, lost = contents.entries[whole], contents.entries[~whole]
        self.seq, self.next_id = contents.seq, contents.next_id
        self.buried = contents.buried
        self.index = Index(entries)
        self.past = Past(self.directory, contents)
        taken = np.concatenate([contents.entries[["offset", "size"]], contents.dead[["offset", "size"]]])
        self.extents = self._free_space(taken["offset"].astype(np.int64), taken["size"].astype(np.int64))
        self._doomed = lost  # gone from the index, and to die in the next commit
        self._first_deaths: list[int] = []  # ids that must die before the next write: their extents count as free
        self._in_doubt = False  # whether a commit may have been made that we do not know of
        self._open_order = False  # whether a write is planned, and has neither been confirmed nor failed
        if len(lost):
            self.corrupt += len(lost)
            warn(
                f"{self.directory}: {extentfile.NAME} ends before {len(lost)} of the samples in the catalogue; they "
                "are dropped",
                CorruptRecord,
            )

    def _free_space(self, offsets: Ints, sizes: Ints) -> FixedExtents | VariableExtents:
        try:
            if self.schema is None or self.schema.fixed:
                return FixedExtents(self.schema.head_size if self.schema else UNIT, offsets)
            return VariableExtents(offsets, sizes)
        except ValueError as error:
            raise StoreError(f"{self.directory}: the catalogue is damaged: {error}") from error

    def close(self) -> None:
        """Commit what is due, and let go of the directory. May be called again."""
        if self._pid != os.getpid():
            return
        try:
            if self._ready and not self.readonly and not self._open_order:
                self.settle()
        except (OSError, StoreError) as error:
            log.warning(
                "%s: the last deaths were not committed, so these samples will be back: %s", self.directory, error
            )
        finally:
            for part in (self._engine, self.file, self.catalogue, self.lock):
                if part is not None:
                    part.close()
            self.file = self.catalogue = self.lock = None
            self._ready = False

    def settle(self) -> None:
        """Commit deaths that wait for a commit, take back what a failed order may have said, and merge the catalogue's
        rows if more than half of it is dead."""
        catalogue = self._changeable()
        with uninterrupted():
            if len(self._doomed) or self._first_deaths or self._in_doubt:
                self._commit_deaths([])
            if self.wants_compaction:
                compact(catalogue, self.past.floor)
                self.buried = 0

    @property
    def wants_compaction(self) -> bool:
        return self.buried > len(self) + 4096

    def __reduce__(self) -> Any:
        raise StoreError(
            "a Store cannot be copied, pickled or sent to another process; in a DataLoader worker open it anew, with "
            "readonly=True"
        )

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self.owned:  # else the garbage collector may come here first, and the worker still needs the lock
            with contextlib.suppress(Exception):
                self.close()

    def _usable(self) -> Catalogue:
        if self._pid != os.getpid():
            raise StoreError(
                f"{self.directory} was opened by process {self._pid}, and this is its child {os.getpid()}: a forked "
                "process cannot use it. In DataLoader workers read the RAM tier with memory.reader()"
            )
        if self.catalogue is None:
            raise StoreError(f"the store in {self.directory} is closed")
        return self.catalogue

    def _writable(self) -> Catalogue:
        catalogue = self._usable()
        if self.readonly:
            raise StoreError(f"the store in {self.directory} was opened with readonly=True")
        return catalogue

    def _changeable(self) -> Catalogue:
        """The catalogue, for a commit of its own. One in the middle of a write would take that write's number."""
        if self._open_order:
            raise StoreError(f"a write to {self.directory} is under way; call flush() of its memory first")
        return self._writable()

    # -- asking ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.index)

    @property
    def ids(self) -> Ints:
        """The ids of all samples, ascending."""
        return self.index.ids[self.index.live()]

    @property
    def index_bytes(self) -> int:
        """Bytes of RAM that the index takes, with that of free extents."""
        return self.index.nbytes + self.extents.nbytes

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine that reads, chosen when it is first needed."""
        if self._engine is None:
            self._engine = self.open_engine()
        return self._engine

    def open_engine(self) -> Engine:
        """A new engine for this store's extents."""
        self._usable()
        live = self.index.live() if self._engine_name == "auto" and len(self) >= 32 else None
        if live is not None and len(live) > 4096:
            live = np.random.default_rng().choice(live, 4096, replace=False)
        offsets, sizes = (None, None) if live is None else self.index.where(live)
        return open_engine(self._engine_name, self.directory / extentfile.NAME, offsets, sizes)

    def fetch(self, handles: Ints | NDArray[np.int32]) -> tuple[Bytes, Ints, NDArray[np.bool_]]:
        """Read the records of index entries: bytes, where each starts, and which are whole (checksum included)."""
        self._usable()
        offsets, sizes = self.index.where(handles)
        try:
            data, starts, ok = self.engine.read(offsets, sizes)
        except BaseException:  # Ctrl-C, say: what is still being read is waited for, and the next read begins anew
            engine, self._engine = self._engine, None
            if engine is not None:
                engine.close()
            raise
        return data, starts, verified(data, starts, sizes, self.index.sums[handles], ok)

    def read(self, ids: Sequence[int] | Ints) -> dict[str, Any]:
        """The samples with these ids, as a dict of arrays (lists of arrays for variable fields), in the order asked
        for. bfloat16, which numpy lacks, comes as its bits, in uint16: `torch.from_numpy(a).view(torch.bfloat16)`."""
        self._usable()
        handles = self._known(ids)
        if self.schema is None:
            raise StoreError(f"the store in {self.directory} is empty: it does not even have a schema")
        data, starts, ok = self.fetch(handles)
        if not ok.all():
            bad = np.unique(handles[~ok])
            names = self.index.ids[bad].tolist()
            if self.readonly and not self._unchanged(bad).all():
                raise StoreError(
                    f"samples {names} in {self.directory} were evicted by the process that writes to it; open it again"
                )
            damaged = self.damaged(bad)
            dropped = bad[damaged & self.index.sets.are_open(bad)]  # those in RAM are whole there
            if not self.readonly and len(dropped):
                self.give_up(dropped, np.ones(len(dropped), bool))
            if not damaged.all():
                raise StoreError(
                    f"samples {self.index.ids[bad[~damaged]].tolist()} in {self.directory} cannot be read now: the "
                    "device reports an error. They are kept; try again, or look at the device"
                )
            raise StoreError(f"samples {names} in {self.directory} do not match their checksums and cannot be read")
        sizes = self.index.sizes[handles].astype(np.int64)
        flat = np.concatenate(
            [data[s : s + n] for s, n in zip(starts.tolist(), sizes.tolist(), strict=True)] or [data[:0]]
        )
        return self.schema.unpack(flat, np.cumsum(sizes) - sizes)

    def _known(self, ids: Sequence[int] | Ints) -> NDArray[np.int32]:
        given = np.asarray(ids)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise ValueError(f"ids={ids!r}: must be a list of whole numbers; for those of a mask, store.ids[mask]")
        handles = self.index.find(given)
        if (handles < 0).any():
            raise KeyError(f"no sample with id {given[handles < 0][0]} in {self.directory}")
        return handles

    def verify(self, *, batch: int = 1024) -> Iterator[tuple[int, list[int]]]:
        """Read everything and compare checksums; yields (samples checked, bad ids) batch by batch, of so many samples
        or 4 MiB. Drops nothing: `discard` does. The store may be used in between."""
        live = self.index.live()
        ids = self.index.ids[live]
        for part in list(self.index.pieces(live, batch)):
            handles = live[part]
            handles = handles[(self.index.ids[handles] == ids[part]) & self.index.sets.contains(handles)]
            if len(handles):
                _, _, ok = self.fetch(handles)
                bad = handles[~ok]
                if self.readonly and len(bad):
                    bad = bad[self._unchanged(bad)]
                yield len(handles), self.index.ids[bad].tolist()

    def _unchanged(self, handles: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Which samples the catalogue has as the index has them: while we look, another process may evict some, or go
        back to a checkpoint and give their ids to others."""
        return self.index.same(handles, self._usable().load().entries)

    # -- planning ----------------------------------------------------------------------------------------------------

    def plan(self, records: Records, ids: Ints, pinned: NDArray[np.bool_] | None = None) -> WriteOrder:
        """An order that appends `records` under `ids`, with victims as capacity demands. `pinned` ones (those in RAM)
        are left out only if nothing else can go.

        Raises StoreFull, and changes nothing, if there is no room for any of them. At most one order may be open.
        """
        self._writable()
        if pinned is None:
            pinned = np.zeros(len(records), bool)
        victims, left_out = self._make_room(records, pinned)
        chosen = np.arange(len(records))
        if left_out:
            chosen = np.setdiff1d(chosen, left_out)
        offsets, first = self._place(records.sizes[chosen], victims)
        victims = [] if first else victims
        placed = offsets >= 0
        chosen, offsets = chosen[placed], offsets[placed]
        part = records
        if len(chosen) < len(records):
            part = Records(records.data, records.starts[chosen], records.sizes[chosen], records.labels[chosen])
        births = np.zeros(len(chosen), ENTRY)
        births["id"], births["offset"], births["label"] = ids[chosen], offsets, part.labels
        births["size"], births["checksum"] = part.sizes, checksum(part.data, part.starts, part.sizes)
        self._first_deaths += self.index.ids[first].tolist()
        self.index.drop(first)
        self.evicted += len(first)
        self.buried += len(first)
        order = self._order(part, births, victims)
        order.before = np.array(self._first_deaths, np.int64)
        order.limit = self._end_limit()
        order.indices, order.left_out = chosen, len(records) - len(chosen)
        self._first_deaths = []
        self._open_order = True
        return order

    def _order(self, records: Records, births: Entries, victims: list[int]) -> WriteOrder:
        doomed, self._doomed = self._doomed, _NO_ENTRIES
        deaths = np.concatenate([self.index.ids[victims], doomed["id"]]).astype(np.int64)
        return WriteOrder(
            self.seq + 1, records, births, deaths,
            afresh=self._in_doubt, final=not self.past.marks, victims=victims, doomed=doomed,
        )  # fmt: skip

    def complain(self, records: Records) -> None:
        """Warn of those that are larger than the store may be: `plan` leaves them out."""
        most = self.max_bytes
        if most is not None and (oversized := np.count_nonzero(padded_each(records.sizes) > most)):
            warn(
                f"{self.directory}: {oversized} samples are larger than the store may be ({format_bytes(most)}); they "
                "are not stored"
            )

    def _make_room(self, records: Records, pinned: NDArray[np.bool_]) -> tuple[list[int], list[int]]:
        """Victims, and which of the new records are not to be written at all."""
        if self.max_samples is None and self.max_bytes is None:
            return [], []
        sizes = padded_each(records.sizes)
        hopeless = np.zeros(len(records), bool)
        samples = len(self) + len(records) - self.max_samples if self.max_samples is not None else 0
        room = 0
        if self.max_bytes is not None:
            hopeless = sizes > self.max_bytes
            incoming = int(sizes[~hopeless].sum())
            # The new ones are written before the victims' extents are free. Room for one batch is kept, so that this
            # does not need a commit of its own.
            self._largest = max(self._largest, incoming)
            room = self.index.live_bytes + incoming - self.max_bytes + min(self._largest, self.max_bytes // 8)
        candidates = np.flatnonzero(~hopeless)
        victims, left_out = evict.choose(
            self.index.sets, records.labels[candidates], sizes[candidates], pinned[candidates],
            samples=samples - int(hopeless.sum()), room=room, sizes_of=self._room_of, rng=self.rng,
        )  # fmt: skip
        return victims, [*candidates[left_out].tolist(), *np.flatnonzero(hopeless).tolist()]

    def _room_of(self, handles: Ints) -> Ints:
        return padded_each(self.index.sizes[handles])

    def _end_limit(self) -> int | None:
        """How long the extent file may be now."""
        if self.file_limit is None or self._device_full:
            return self.file_limit
        return self.file_limit + min(self.past.retained, int(_RETAIN * self.file_limit))

    def _place(self, sizes: Ints, victims: list[int]) -> tuple[Ints, list[int]]:
        """An extent for each new record (-1: there is no room for it), and the stored samples that must die first for
        it."""
        offsets = self.extents.allocate(sizes, self._end_limit())
        try:
            while self.past.marks and (offsets < 0).any():
                self._forget_oldest()
                self._place_rest(offsets, sizes)
        except BaseException as error:  # no room on the device even to say so; or the catalogue cannot be written
            self.extents.release(offsets[offsets >= 0], sizes[offsets >= 0])
            self._undo(victims)
            if not isinstance(error, OSError):
                raise
            raise StoreFull(f"{self.directory}: {error.strerror}; free some room on the device") from error
        if (offsets >= 0).all():
            return offsets, []
        # The file may not grow, and no hole fits: some must die before the new ones are written.
        saved = self.extents.copy()
        self.extents.release(*self.index.where(victims))
        self.extents.release(self._doomed["offset"].astype(np.int64), self._doomed["size"])
        self._place_rest(offsets, sizes)
        first = victims + self._clear(offsets, sizes, victims)
        if (offsets < 0).all():
            self.extents = saved
            self._undo(first)
            raise StoreFull(
                f"{self.directory}: no room for {len(sizes)} samples ({format_bytes(int(sizes.sum()))}), and too "
                "little may be evicted (what is left is in RAM now); give the store more room"
            )
        self._first_deaths += self._doomed["id"].tolist()
        self.buried += len(self._doomed)
        self._doomed = _NO_ENTRIES
        return offsets, first

    def _place_rest(self, offsets: Ints, sizes: Ints) -> None:
        missing = np.flatnonzero(offsets < 0)
        offsets[missing] = self.extents.allocate(sizes[missing], self._end_limit())

    def _clear(self, offsets: Ints, sizes: Ints, gone: list[int]) -> list[int]:
        """Find room for the records that have none, the largest first, by taking neighbours out; returns who goes
        (held)."""
        more: list[int] = []
        missing = np.flatnonzero(offsets < 0)
        for i in missing[np.argsort(-sizes[missing], kind="stable")].tolist():
            one = slice(i, i + 1)
            self._place_rest(offsets[one], sizes[one])
            if offsets[i] >= 0:
                continue
            live = np.setdiff1d(self.index.sets.items(), gone + more, assume_unique=True)
            placed = offsets >= 0
            at, room = self.index.where(live)
            starts = np.concatenate([at, offsets[placed]])
            room = padded_each(np.concatenate([room, sizes[placed]]))
            may_go = np.concatenate([self.index.sets.are_open(live), np.zeros(len(starts) - len(live), bool)])
            order = np.argsort(starts)
            end = max(self._end_limit() or 0, self.extents.end)
            found = evict.window(
                padded(int(sizes[i])), end, starts[order], (starts + room)[order], may_go[order], self.rng
            )
            if found is None:
                continue
            handles = live[order[found]].tolist()
            for handle in handles:
                self.index.sets.hold(handle)
            self.extents.release(*self.index.where(handles))
            more += handles
            self._place_rest(offsets[one], sizes[one])
        return more

    def _undo(self, held: list[int]) -> None:
        for handle in held:
            self.index.sets.release(handle)

    # -- ending an order ---------------------------------------------------------------------------------------------

    def confirm(self, order: WriteOrder) -> NDArray[np.int32]:
        """The order was carried out. Returns the index entries of the new samples, which are open from now on."""
        self.seq = order.seq + 1
        self._in_doubt = self._open_order = False
        self._refusals = 0
        self.evicted += len(order.victims) + order.left_out
        offsets, sizes = self.index.where(order.victims)
        offsets = np.concatenate([offsets, order.doomed["offset"]]).astype(np.int64)
        sizes = np.concatenate([sizes, order.doomed["size"]]).astype(np.int64)
        if order.final:
            self.extents.release(offsets, sizes)
            self.buried += len(offsets)
        else:
            self.past.bury(self.seq, offsets, sizes)
        self.past.floor = max(self.past.floor, order.floor or 0, order.seq if len(order.before) else 0)
        self.index.drop(order.victims)
        handles = self.index.enter(order.births)
        self.next_id = max(self.next_id, int(order.births["id"].max(initial=-1)) + 1)
        bound = self.max_bytes or (self.max_samples or 0) * (self.index.live_bytes // max(len(self), 1))
        try:
            while self.past.marks and bound and self.past.retained > _RETAIN * bound:
                self._forget_oldest()
        except (OSError, StoreError) as error:
            log.warning(
                "%s: %s", self.directory, error
            )  # the order was carried out all the same; the next one tries again
        return handles

    def fail(self, order: WriteOrder) -> None:
        """The order could not be carried out: its victims live on. (`before` have died; their extents are free.)"""
        self._undo(order.victims)
        self._doomed = np.concatenate([order.doomed, self._doomed])
        self.extents.release(order.births["offset"].astype(np.int64), order.births["size"].astype(np.int64))
        # How far it came is not known. Extents that it was to use or to free may be chosen again, so the next order
        # begins with a commit that takes back what this one may have said; deaths may be said twice.
        self._first_deaths += order.before.tolist()
        self._in_doubt, self._open_order = True, False

    def full(self) -> None:
        """The device is full: from now on make do with the file as it is. Raises StoreFull if that has been tried
        already."""
        assert self.file is not None
        self._refusals += 1
        if self._refusals > 3:
            self._refusals = 0
            raise StoreFull(
                f"{self.directory}: the device has no room, not even for changes to the catalogue; free some. "
                "Everything stored before is still there"
            )
        size = os.stat(self.file.path).st_size
        first = not self._device_full
        self._device_full = True
        self.file_limit = size
        self.max_bytes = max(min(size, self.max_bytes or size), UNIT)
        if first:
            warn(
                f"{self.directory}: the device is full at {format_bytes(size)}; older samples are evicted from now on "
                "to make room for new ones"
            )

    # -- the simple way ----------------------------------------------------------------------------------------------

    def append(self, samples: Mapping[str, Any]) -> Ints:
        """Store a batch of samples; when this returns they are on the device. Returns their ids, -1 where there was no
        room."""
        catalogue = self._changeable()
        if self.schema is None:
            if _are_none(samples):
                return _NONE  # nothing can be learnt from these about others
            self.create(Schema.infer(samples))
        assert self.schema is not None and self.file is not None
        records = self.schema.pack(samples)
        self.complain(records)  # before anything changes: warnings may be made errors
        ids = self.take_ids(len(records))
        stored = np.full(len(ids), -1, np.int64)
        with uninterrupted():
            while len(records):
                order = self.plan(records, ids)
                try:
                    perform(order, self.file, catalogue)
                except BaseException as error:
                    self.fail(order)
                    if not _is_full(error):
                        raise
                    self.full()
                    continue
                self.confirm(order)
                stored[order.indices] = ids[order.indices]
                break
        return stored

    def take_ids(self, n: int) -> Ints:
        """New ids."""
        first = self.next_id
        self.next_id += n
        return np.arange(first, first + n, dtype=np.int64)

    def delete(self, ids: Sequence[int] | Ints) -> None:
        """Forget samples. When this returns they are gone, also after a crash; only restoring an earlier checkpoint
        would bring them back."""
        self._changeable()
        chosen = np.unique(self._known(ids)).tolist()
        held = [h for h in chosen if not self.index.sets.is_open(h)]
        if held:
            raise ValueError(f"sample {int(self.index.ids[held[0]])} is in RAM now and cannot be deleted")
        if chosen:
            with uninterrupted():
                for handle in chosen:
                    self.index.sets.hold(handle)
                self._commit_deaths(chosen)
                self.evicted -= len(chosen)

    def _commit_deaths(self, handles: list[int]) -> None:
        """Let these (held) samples die, and those that wait for the next commit."""
        first, self._first_deaths = self._first_deaths, []
        order = self._order(_empty_records(), _NO_ENTRIES, handles)
        order.deaths = np.concatenate([order.deaths, np.array(first, np.int64)])
        try:
            self._writable().commit(order.seq + 1, _NO_ENTRIES, order.deaths, floor=order.floor)
        except BaseException as error:
            self._first_deaths = first
            self.fail(order)
            self._tell_if_full(error)
            raise
        self.confirm(order)

    def damaged(self, handles: Ints | NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of these samples, that did not come whole, are damaged for good: they are read once more, one by one.
        Where the device reports an error that says nothing of the sample, which may come whole the next time."""
        out = np.zeros(len(handles), bool)
        offsets, sizes = self.index.where(handles)
        one, start = np.ones(1, bool), np.zeros(1, np.int64)
        try:
            with open(self.directory / extentfile.NAME, "rb", buffering=0) as file:
                for i, (offset, size) in enumerate(zip(offsets.tolist(), sizes.tolist(), strict=True)):
                    with contextlib.suppress(OSError):
                        data = _read(file.fileno(), offset, size)
                        sums = self.index.sums[handles[i : i + 1]]
                        out[i] = len(data) < size or not verified(data, start, sizes[i : i + 1], sums, one)[0]
        except OSError as error:
            log.warning("%s: %s", self.directory, error)
        return out

    def give_up(self, handles: Ints | NDArray[np.int32], damaged: NDArray[np.bool_]) -> None:
        """Drop those of these samples that are damaged, and say so of both kinds."""
        if damaged.any():
            self.discard(handles[damaged].tolist())
        if not damaged.all():
            ids = self.index.ids[handles[~damaged]].tolist()
            warn(
                f"{self.directory}: samples {ids[:8]}{' ...' if len(ids) > 8 else ''} cannot be read now: the device "
                "reports an error. They are kept",
                RuntimeWarning,
            )

    def discard(self, handles: list[int]) -> None:
        """Drop samples that are damaged."""
        entries = np.zeros(len(handles), ENTRY)
        entries["id"] = self.index.ids[handles]
        entries["offset"], entries["size"] = self.index.where(handles)
        self._doomed = np.concatenate([self._doomed, entries])
        self.corrupt += len(handles)
        self.index.drop(handles)
        ids = entries["id"].tolist()
        warn(
            f"{self.directory}: samples {ids[:8]}{' ...' if len(ids) > 8 else ''} do not match their checksums; they "
            "are dropped",
            CorruptRecord,
        )

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self) -> dict[str, Any]:
        """Remember this moment, so that `restore` can come back to it.

        What is evicted from now on is not overwritten, and takes room beyond the capacity: at most a quarter of it,
        then the way back is given up. The checkpoint before this one can be restored too, because a process may die
        before it has saved what this returns. Older ones can be restored if nothing has been evicted since.
        """
        catalogue = self._changeable()
        if self.schema is None:
            raise StoreError(f"the store in {self.directory} is empty: there is nothing to come back to")
        with uninterrupted():
            try:
                self.settle()
                token, offsets, sizes = self.past.mark(catalogue, self.seq)
            except OSError as error:
                self._tell_if_full(error)
                raise
            self._exhume(offsets, sizes)
        return {"uuid": self.uuid, "seq": self.seq, "token": token, "next_id": self.next_id}

    def _forget_oldest(self) -> None:
        self._exhume(*self.past.forget_oldest(self._writable(), self.seq))

    def _exhume(self, offsets: Ints, sizes: Ints) -> None:
        """The extents of the dead, whom nobody can bring back any more, may be used again."""
        self.extents.release(offsets, sizes)
        self.buried += len(offsets)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a checkpoint: what was stored since is gone, what was evicted since is back."""
        catalogue = self._changeable()
        if state["uuid"] != self.uuid:
            raise CheckpointError(f"the checkpoint is of another store than the one in {self.directory}")
        if (state["seq"], state.get("token")) not in self.past.marks:
            raise CheckpointError(
                f"the store in {self.directory} cannot go back to commit {state['seq']}: samples of that time have "
                "been evicted for good, or it has gone back to an earlier one. It can go back to "
                f"{[seq for seq, _ in self.past.marks] or 'none'}"
            )
        if type(state["next_id"]) is not int or state["next_id"] < 0:
            raise CheckpointError(f"the checkpoint is damaged: its next_id is {state['next_id']!r}")
        with uninterrupted():
            catalogue.rollback(state["seq"], state["next_id"])
            self._adopt(catalogue.load(), self._file_length() or 0)


def _are_none(samples: Mapping[str, Any]) -> bool:
    try:
        return not any(len(value) for value in samples.values())
    except TypeError:  # one that has no rows: the schema has words for it
        return False


def _read(fd: int, offset: int, size: int) -> Bytes:
    """So many bytes of a file, or fewer if it ends before."""
    parts = []
    while size and (part := os.pread(fd, size, offset)):
        parts.append(part)
        offset, size = offset + len(part), size - len(part)
    return np.frombuffer(b"".join(parts), np.uint8)


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in extentfile.FULL


def _empty_records() -> Records:
    return Records(np.zeros(0, np.uint8), _NONE, _NONE, _NONE)
