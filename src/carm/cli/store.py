"""`carm store`: look into a store, check it, take samples out of it. Needs no torch."""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import shutil
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carm.cli.common import DAMAGED, OK, Commands, command, console, progress_bar, show_help

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from carm.memory.record import Field
    from carm.memory.store import Store

_CLASSES_SHOWN = 40
_WHICH = "give the directory that was storage= of carm.Memory; carm run keeps its store in RUN/memory"


def register(commands: Commands) -> None:
    store = command(
        commands.add_parser,
        "store",
        """
        Look into a store: the directory that was given as storage= to carm.Memory, with the files
        extents.dat (the bytes), catalogue.db (which sample lies where) and lock. These commands only read.
        They may be used while another process trains with the store, and they then show it as of their
        start.
        """,
        """
        carm store info runs/memory
        carm store verify runs/memory
        carm store export runs/memory out.npz --class 3 7
        """,
        summary="look into a store, check it, take samples out",
    )
    store.set_defaults(run=lambda _: show_help(store))
    store_commands = store.add_subparsers(title="commands", metavar="COMMAND")

    info = command(
        store_commands.add_parser,
        "info",
        """
        Show what a store holds: the fields of a sample, how many samples there are and of which classes,
        the room they take and the room that is free in between, the last commit, and how the store is read
        fastest on this machine (the ways of reading are timed on the store's own samples, which takes a
        fraction of a second).
        """,
        """
        carm store info runs/memory
        carm store info runs/memory --all       every class, however many there are
        """,
        summary="what a store holds",
    )
    _directory(info)
    info.add_argument("--all", action="store_true", help=f"list every class, not only the first {_CLASSES_SHOWN}")
    info.set_defaults(run=_info)

    verify = command(
        store_commands.add_parser,
        "verify",
        """
        Read every sample of a store and compare it with its checksum. The exit code is 0 if all are whole;
        if not, it is 1, and the ids of the damaged samples are printed, one a line. Nothing is changed:
        training drops a damaged sample when it meets one, with a warning, and goes on with the others.
        """,
        """
        carm store verify runs/memory
        carm store verify runs/memory > report.txt || mail -s "damaged samples" me < report.txt
        """,
        summary="read every sample and compare checksums",
    )
    _directory(verify)
    verify.set_defaults(run=_verify)

    export = command(
        store_commands.add_parser,
        "export",
        """
        Copy samples out of a store, in the order in which they came in, piece by piece, so that a large
        store does not need its size in RAM. With --format npz, OUT is one file for numpy.load: an array per
        field with one row per sample; a field of variable length NAME as its bytes end to end ("NAME") and
        where each sample begins ("NAME.offsets", one more than there are samples); "sample.ids"; and
        "sample.schema". Pickle is not used. With --format files, OUT is a directory with a folder per class
        and a file per sample and field (.jpg, .png or .bin by the first bytes; .npy for arrays), and
        index.csv, which also holds the fields that are a single number. bfloat16, which numpy lacks,
        becomes float32. Damaged samples are left out and named, and the exit code is then 1.
        """,
        """
        carm store export runs/memory out.npz
        carm store export runs/memory out.npz --class 3 7 --limit 1000
        carm store export runs/memory folder --format files
        """,
        summary="copy samples out of a store, for other tools",
    )
    _directory(export)
    export.add_argument(
        "out", metavar="OUT", type=Path, help="file (npz) or directory (files) to make; must not exist yet"
    )
    export.add_argument(
        "--format", choices=("npz", "files"), default="npz", help="one file, or a file per sample (default: npz)"
    )
    export.add_argument(
        "--class", dest="labels", metavar="LABEL", type=int, nargs="+", help="only samples of these classes"
    )
    export.add_argument("--limit", metavar="N", type=int, help="at most N samples, the oldest")
    export.set_defaults(run=_export)


def _directory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="the store's directory")


# -- info --------------------------------------------------------------------------------------------------------------


def _info(arguments: argparse.Namespace) -> int:
    from rich.table import Table

    from carm.memory.extentfile import NAME
    from carm.memory.units import format_bytes

    out = console()
    with _open(arguments.directory) as store:
        if store.schema is None:
            out.print(f"{arguments.directory} is a store that nothing has been put in yet.")
            return OK
        assert store.catalogue is not None
        extents = store.extents
        marks = ", ".join(str(seq) for seq, _ in store.catalogue.load().marks)
        kept = format_bytes(store.past.retained)
        size, on_device = 0, 0
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(store.directory / NAME)
            size, on_device = status.st_size, status.st_blocks * 512
        facts = Table(box=None, show_header=False, pad_edge=False)
        for name, value in (
            ("store", store.directory),
            ("identity", store.uuid),
            ("fields", ", ".join(map(str, store.schema.fields))),
            ("label", store.schema.label),
            ("samples", f"{len(store):,} in {len(store.index.sets.labels):,} classes"),
            ("their bytes", f"{format_bytes(store.index.live_bytes)}, in units of 512 bytes"),
            ("extents.dat", f"{format_bytes(size)}, {format_bytes(on_device)} of it on the device"),
            (
                "free inside",
                f"{format_bytes(extents.free)} in holes, {format_bytes(max(size - extents.end, 0))} at the end",
            ),
            ("capacity", "n/a (set by the program that opens the store for writing)"),
            ("last commit", str(store.seq)),
            (
                "checkpoints",
                f"at commit {marks}, {kept} evicted since is kept" if marks else "none that can be restored",
            ),
            ("dead entries", f"{store.buried:,} in the catalogue, until it is compacted"),
            ("engine", _engine(store)),
        ):
            facts.add_row(name, str(value))
        out.print(facts)
        if len(store):
            out.print("", _class_table(store, every=arguments.all), sep="\n")
    return OK


def _engine(store: Store) -> str:
    if not len(store):
        return "n/a: there is nothing to read"
    kind = "the fastest just now" if len(store) >= 32 else "the default: too few samples to time the others"
    return f"{store.engine.name} ({kind})"


def _class_table(store: Store, *, every: bool) -> Any:
    from rich.table import Table

    counts = {label: store.index.sets.count(label) for label in sorted(store.index.sets.labels)}
    table = Table("class", "samples", "share", box=None, pad_edge=False)
    for column in table.columns:
        column.justify = "right"
    shown = list(counts) if every else list(counts)[:_CLASSES_SHOWN]
    for label in shown:
        table.add_row(str(label), f"{counts[label]:,}", f"{counts[label] / len(store):.1%}")
    if len(shown) < len(counts):
        table.add_row("...", f"{len(counts) - len(shown):,} more", "--all")
    return table


# -- verify ------------------------------------------------------------------------------------------------------------


def _verify(arguments: argparse.Namespace) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is missing is reported below, by id
        store = _open_to_read(arguments.directory)
    with store:
        if store.schema is None:
            print("0 samples: nothing has been put in this store yet")
            return OK
        suspects = _beyond_the_end(store)
        count = len(store)
        if count:
            with progress_bar() as progress:
                task = progress.add_task("verifying", total=count)
                for checked, bad in store.verify():
                    suspects += bad
                    progress.advance(task, checked)
        damaged = _still_there(arguments.directory, suspects)
        total = count + store.corrupt
    if not damaged:
        print(f"{total:,} samples, all whole")
        return OK
    print(f"{total:,} samples, {len(damaged):,} damaged:")
    for number in damaged:
        print(number)
    return DAMAGED


def _beyond_the_end(store: Store) -> list[int]:
    """Samples in the catalogue that the extent file is too short for; opening the store has left them out."""
    import numpy as np

    if not store.corrupt or store.catalogue is None:
        return []
    missing: list[int] = np.setdiff1d(store.catalogue.load().entries["id"], store.ids).tolist()
    return missing


def _still_there(directory: Path, suspects: list[int]) -> list[int]:
    """Those of `suspects` that are in the store and damaged when it is opened anew.

    A process that trains with the store may have evicted a sample since we looked, and used its room for another: that
    is no damage.
    """
    import numpy as np

    damaged = suspects
    for _ in range(3):
        if not damaged:
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            store = _open_to_read(directory)
        with store:
            missing = set(_beyond_the_end(store))
            handles = store.index.find(damaged)
            known = np.flatnonzero(handles >= 0)
            ok = np.zeros(len(known), bool)
            for part in store.index.pieces(handles[known]):
                ok[part] = store.fetch(handles[known[part]])[2]
            bad = {damaged[i] for i in known[~ok].tolist()} | missing
        damaged = [i for i in damaged if i in bad]
    return sorted(damaged)


# -- export ------------------------------------------------------------------------------------------------------------


def _export(arguments: argparse.Namespace) -> int:
    if arguments.limit is not None and arguments.limit < 1:
        raise ValueError(f"--limit {arguments.limit}: must be at least 1")
    out: Path = arguments.out
    if out.exists():
        raise ValueError(f"{out} exists already; choose another name, or remove it first")
    with _open_to_read(arguments.directory) as store:
        if store.schema is None:
            raise ValueError(f"{arguments.directory} is empty: there is nothing to export")
        lost = _beyond_the_end(store)
        handles = _chosen(store, arguments.labels, arguments.limit, lost)
        bad: list[int] = _wanted(store, lost, handles, arguments)
        kept = 0
        with _named(out), _writer(arguments.format, store, out) as writer, progress_bar() as progress:
            task = progress.add_task("exporting", total=len(handles))
            for part in store.index.pieces(handles):
                here = handles[part]
                data, starts, ok = store.fetch(here)
                bad += store.index.ids[here[~ok]].tolist()
                if ok.any():
                    writer.write(store.index.ids[here[ok]], store.schema.unpack(data, starts[ok]))
                    kept += int(ok.sum())
                progress.advance(task, len(here))
        damaged = _still_there(arguments.directory, bad)
    gone = len(bad) - len(damaged)
    print(f"{kept:,} samples in {out}")
    if gone:
        print(f"carm: {gone:,} more were evicted by another process before they could be copied", file=sys.stderr)
    if damaged:
        print(f"carm: left out, because they are damaged: {' '.join(map(str, damaged))}", file=sys.stderr)
        return DAMAGED
    return OK


def _writer(kind: str, store: Store, out: Path) -> _Npz | _Files:
    return _Npz(store, out) if kind == "npz" else _Files(store, out)


@contextlib.contextmanager
def _named(out: Path) -> Iterator[None]:
    """What goes wrong is said of `out`, not of a hidden file next to it."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and f".{out.name}-" not in str(error.filename):
            raise
        raise OSError(error.errno, error.strerror, str(out)) from error


def _wanted(store: Store, lost: list[int], chosen: NDArray[np.int64], arguments: argparse.Namespace) -> list[int]:
    """Those of the samples that the file is too short for which would have been exported."""
    labels = _labels(store, lost) if arguments.labels is not None else {}
    last = int(store.index.ids[chosen[-1]]) if len(chosen) == arguments.limit else None
    return [
        number
        for number in lost
        if (not labels or labels[number] in arguments.labels) and (last is None or number < last)
    ]


def _labels(store: Store, ids: list[int]) -> dict[int, int]:
    """The labels of samples that the catalogue knows, and the index may not."""
    import numpy as np

    assert store.catalogue is not None
    entries = store.catalogue.load().entries
    here = entries[np.isin(entries["id"], ids)]
    return dict(zip(here["id"].tolist(), here["label"].tolist(), strict=True))


def _chosen(store: Store, labels: list[int] | None, limit: int | None, lost: list[int]) -> NDArray[np.int64]:
    """Index entries of the samples to export, by id. `lost` are those that there were once."""
    import numpy as np

    live = store.index.live()
    if labels is not None:
        unknown = sorted(set(labels) - set(store.index.sets.labels) - set(_labels(store, lost).values()))
        if unknown:
            known = sorted(store.index.sets.labels)
            named = ", ".join(map(str, known[:20])) + (", ..." if len(known) > 20 else "")
            raise ValueError(f"no samples of class {unknown[0]} in {store.directory}; there are: {named or 'none'}")
        live = live[np.isin(live, np.concatenate([store.index.sets.members(label) for label in labels]))]
    return live[:limit]


def _readable(field: Field, value: NDArray[Any]) -> NDArray[Any]:
    """The values of a fixed field as numpy knows them: bfloat16 is the upper half of a float32."""
    import numpy as np

    if field.dtype == "bfloat16":
        value = (value.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.ascontiguousarray(value)


@dataclass
class _Column:
    """One array of the npz file, growing in a temporary file."""

    file: Any
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    rows: int = 0

    def append(self, array: NDArray[Any]) -> None:
        self.file.write(array.tobytes())
        self.rows += len(array)


class _Npz:
    """One .npz file. Its arrays grow side by side in temporary files next to it, and are joined at the end: a zip
    archive takes one member after the other, and how many samples there are is known only when all have been read."""

    def __init__(self, store: Store, out: Path) -> None:
        import numpy as np

        assert store.schema is not None
        self.schema = store.schema
        self.out = out
        parent = out.absolute().parent.resolve(strict=True)  # if it is missing, name it, not a file that nobody knows
        self._folder = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=parent))
        self._columns: dict[str, _Column] = {}
        self._ends: dict[str, int] = {}
        self._add("sample.ids", np.dtype("<i8"), ())
        for f in self.schema.fields:
            if f.shape is None:
                self._add(f.name, np.dtype("u1"), ())
                self._add(f"{f.name}.offsets", np.dtype("<i8"), ())
                self._columns[f"{f.name}.offsets"].append(np.zeros(1, "<i8"))
                self._ends[f.name] = 0
            else:
                self._add(f.name, np.dtype("<f4") if f.dtype == "bfloat16" else f.stored, f.shape)

    def _add(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        file = open(self._folder / str(len(self._columns)), "w+b")  # noqa: SIM115 - closed in __exit__
        self._columns[name] = _Column(file, dtype, shape)

    def write(self, ids: NDArray[np.int64], fields: dict[str, Any]) -> None:
        import numpy as np

        self._columns["sample.ids"].append(ids)
        for f in self.schema.fields:
            value = fields[f.name]
            if f.shape is None:
                for item in value:
                    self._columns[f.name].append(item)
                ends = self._ends[f.name] + np.cumsum([len(item) for item in value], dtype="<i8")
                self._columns[f"{f.name}.offsets"].append(ends)
                self._ends[f.name] = int(ends[-1])
            else:
                self._columns[f.name].append(_readable(f, value))

    def __enter__(self) -> _Npz:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._join()
        finally:
            for column in self._columns.values():
                with contextlib.suppress(OSError):  # of a device that is full, once more
                    column.file.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _join(self) -> None:
        import numpy as np

        whole = self._folder / "npz"
        with zipfile.ZipFile(whole, "w") as archive:
            for name, column in self._columns.items():
                header = {"descr": column.dtype.str, "fortran_order": False, "shape": (column.rows, *column.shape)}
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array_header_1_0(member, header)
                    column.file.seek(0)
                    shutil.copyfileobj(column.file, member, 1 << 20)
                column.file.truncate(0)  # its room is for the next
            with archive.open("sample.schema.npy", "w") as member:
                np.lib.format.write_array(member, np.array(self.schema.to_json()), allow_pickle=False)
        os.rename(whole, self.out)


class _Files:
    """A folder per class, a file per sample and field, and an index."""

    def __init__(self, store: Store, out: Path) -> None:
        assert store.schema is not None
        self.schema = store.schema
        self.whole = out  # takes this name when it is
        out.parent.mkdir(parents=True, exist_ok=True)
        self.out = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.absolute().parent))
        self._index = open(self.out / "index.csv", "w", newline="", encoding="utf-8")  # noqa: SIM115 - see __exit__
        self._rows = csv.writer(self._index)
        self._others = [f for f in self.schema.fields if f.name != self.schema.label]
        self._rows.writerow(["id", self.schema.label, *(f.name for f in self._others)])
        self._made: set[int] = set()

    def write(self, ids: NDArray[np.int64], fields: dict[str, Any]) -> None:
        columns = {
            f.name: value if f.shape is None else _readable(f, value)
            for f in self.schema.fields
            for value in [fields[f.name]]
        }
        for i, number in enumerate(ids.tolist()):
            label = int(columns[self.schema.label][i])
            if label not in self._made:
                (self.out / str(label)).mkdir()
                self._made.add(label)
            row: list[Any] = [number, label]
            row += [self._cell(f, columns[f.name][i], f"{label}/{number:08d}.{f.name}") for f in self._others]
            self._rows.writerow(row)

    def _cell(self, field: Field, value: Any, stem: str) -> Any:
        """What the index says about a field: its value if that is one number, else the file that holds it."""
        import numpy as np

        if field.shape == ():
            return value.item()
        name = stem + (_suffix(value[:8].tobytes()) if field.shape is None else ".npy")
        if field.shape is None:
            (self.out / name).write_bytes(value.tobytes())
        else:
            np.save(self.out / name, value, allow_pickle=False)
        return name

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._index.close()
            if kind is None:
                mask = os.umask(0)
                os.umask(mask)
                self.out.chmod(0o777 & ~mask)  # as `mkdir` would have made it
                self.out.rename(self.whole)
        finally:
            shutil.rmtree(self.out, ignore_errors=True)


def _suffix(head: bytes) -> str:
    if head.startswith(b"\xff\xd8\xff"):
        return ".jpg"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return ".png"
    return ".bin"


def _open(directory: Path, engine: str = "auto") -> Store:
    from carm.memory.errors import StoreError
    from carm.memory.store import Store

    if not directory.is_dir():
        raise FileNotFoundError(2, f"there is no such directory; {_WHICH}", str(directory))
    try:
        return Store(directory, readonly=True, engine=engine)
    except StoreError as error:
        if (directory / "catalogue.db").exists():
            raise
        raise StoreError(f"{error}; {_WHICH}") from None


def _open_to_read(directory: Path) -> Store:
    """A store all of which is going to be read: from the device where possible, not from the page cache, and not
    through a mapping, where an unreadable sector would end the process instead of being reported."""
    store = _open(directory, "aio")
    try:
        if len(store):
            _ = store.engine
    except ValueError:
        store.close()
        return _open(directory, "preadv")
    return store
