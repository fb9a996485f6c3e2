"""The catalogue: which samples the store holds and where, in SQLite.

One row per commit, append-only: the entries of the samples that were born and the ids of those that died. A commit is
one transaction of one row however many samples it has, opening reads whole arrays, and a store can be taken back to an
earlier commit by deleting the rows after it, which is how a restored checkpoint finds the samples that have been
evicted since. Now and then the rows up to a point that nobody will return to are merged (`compact`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carm.memory import directory as directories
from carm.memory import extentfile
from carm.memory.errors import SchemaError, StoreError
from carm.memory.record import Schema

FORMAT = 1
APPLICATION = 0x4361724D  # "CarM"
NAME = "catalogue.db"

ENTRY = np.dtype(
    [("id", "<i8"), ("offset", "<i8"), ("label", "<i8"), ("checksum", "<u8"), ("size", "<u4"), ("reserved", "<u4")]
)
"""One stored sample, 40 bytes."""

_PIECE = 2**20  # entries

Entries = NDArray[np.void]
Ints = NDArray[np.int64]
Mark = tuple[int, str]
"""A commit that can be returned to, and a name that no other moment has."""

_TABLES = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE commits (seq INTEGER PRIMARY KEY, births BLOB NOT NULL, deaths BLOB NOT NULL, crc INTEGER NOT NULL)",
    "CREATE TABLE marks (seq INTEGER PRIMARY KEY, token TEXT NOT NULL)",
)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a catalogue says: the living samples by id, and the dead that could still come back."""

    entries: Entries
    dead: Entries  # died after `floor`: their extents are still theirs
    died: Ints  # commit in which each of `dead` died
    buried: int  # entries of the dead before that
    seq: int  # last commit
    floor: int  # earliest commit that can be returned to
    marks: tuple[Mark, ...]  # those that somebody wants to be able to return to
    next_id: int


class Catalogue:
    """A connection to the catalogue in `directory`. Not shared between threads."""

    def __init__(self, directory: Path, *, readonly: bool = False) -> None:
        self.path = directory / NAME
        if not readonly and not self.path.exists():  # SQLite gives its -wal and -shm files the mode of the database
            os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
            directories.sync(directory)
        try:
            self._connect("rw" if not readonly else "ro")
        except sqlite3.OperationalError as error:
            wal = self.path.with_name(NAME + "-wal")
            if not readonly or (wal.exists() and wal.stat().st_size):
                raise StoreError(f"{self.path} cannot be opened: {error}") from error
            # SQLite wants to write a -shm file even to read, which a read-only file system does not allow. Without a
            # -wal file nobody is writing, so it may be told that nothing changes.
            with self._errors("opened"):
                self._connect("ro&immutable=1")
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{self.path} cannot be read as a catalogue: {error}") from error
        if not readonly:
            with self._errors("opened"):
                self.db.execute("PRAGMA journal_mode=WAL")
                # FULL: a commit that has returned survives a power cut, not only kill -9.
                self.db.execute("PRAGMA synchronous=FULL")
                # A megabyte: a commit into a log that does not grow any more takes half the time.
                self.db.execute("PRAGMA wal_autocheckpoint=256")

    def _connect(self, mode: str) -> None:
        """Connect, and look before touching: the file may be of a newer format, or somebody else's."""
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        self.db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30.0, check_same_thread=False)
        try:
            self._check_format()
        except BaseException:
            self.db.close()
            raise

    def _check_format(self) -> None:
        (version,) = self.db.execute("PRAGMA user_version").fetchone()
        (application,) = self.db.execute("PRAGMA application_id").fetchone()
        (objects,) = self.db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if version == 0 and application == 0 and objects == 0:
            return  # just created
        if application != APPLICATION:
            raise StoreError(f"{self.path} is an SQLite file, but not one of carm's; use another directory")
        if version > FORMAT:
            raise StoreError(
                f"{self.path} has format {version}; this version of carm reads up to {FORMAT}. Install a newer "
                "carousel-memory"
            )

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """SQLite's errors as ours."""
        try:
            yield
        except sqlite3.Error as error:
            if self._is_full(error):
                raise self._no_room(error) from error
            raise StoreError(f"{self.path} cannot be {what}: {error}") from error

    def _is_full(self, error: sqlite3.Error) -> bool:
        """Whether it is for want of room. SQLite tells a full device; to it a quota or a limit on the size of files is
        an I/O error like any other, so then we try to make a file longer than the catalogue's are."""
        if "disk I/O error" not in str(error):  # (error codes came with Python 3.11)
            return "disk is full" in str(error)
        files = [self.path, self.path.with_name(NAME + "-wal")]
        size = max(file.stat().st_size for file in files if file.exists())
        try:
            with tempfile.TemporaryFile(dir=self.path.parent) as file:
                os.posix_fallocate(file.fileno(), size, 1 << 16)
        except OSError as reason:
            return reason.errno in extentfile.FULL
        return False

    def _no_room(self, error: sqlite3.Error) -> OSError:
        return OSError(errno.ENOSPC, f"no room for the catalogue: {error}", str(self.path))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._errors("written"):
            try:
                self.db.execute("BEGIN IMMEDIATE")
                yield
                self.db.execute("COMMIT")
            except BaseException as error:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error) and self._is_full(error):
                    with contextlib.suppress(sqlite3.Error):  # empty the log, so that the next attempt has its room
                        self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                    raise self._no_room(error) from error
                raise

    # -- schema ------------------------------------------------------------------------------------------------------

    def create(self, schema: Schema) -> None:
        """Lay out an empty catalogue for samples of `schema`, unless there is one already."""
        with self._transaction():
            if self._laid_out():
                return
            for statement in _TABLES:
                self.db.execute(statement)
            rows = [("schema", schema.to_json()), ("uuid", uuid.uuid4().hex), ("floor", "0"), ("next_id", "0")]
            self.db.executemany("INSERT INTO meta VALUES (?, ?)", rows)
            self.db.execute(f"PRAGMA application_id = {APPLICATION}")
            self.db.execute(f"PRAGMA user_version = {FORMAT}")

    def _laid_out(self) -> bool:
        return self.db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is not None

    def schema(self) -> Schema | None:
        """The schema of the samples; None if nothing was ever stored."""
        with self._errors("read"):
            if not self._laid_out():
                return None
            try:
                return Schema.from_json(self._meta("schema"))
            except SchemaError as error:
                raise StoreError(f"{self.path}: the catalogue is damaged: {error}") from error

    def uuid(self) -> str:
        """A name for this store's contents, the same for as long as it lives."""
        with self._errors("read"):
            return self._meta("uuid")

    def _meta(self, key: str) -> str:
        row = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise StoreError(f"{self.path} lacks {key!r}; the catalogue is damaged")
        return str(row[0])

    def _number(self, key: str) -> int:
        value = self._meta(key)
        if not value.isdigit():
            raise StoreError(f"{self.path} has {key}={value!r}; the catalogue is damaged")
        return int(value)

    def _set(self, key: str, value: int) -> None:
        self.db.execute("UPDATE meta SET value = ? WHERE key = ?", (str(value), key))

    # -- commits -----------------------------------------------------------------------------------------------------

    def commit(self, seq: int, births: Entries, deaths: Ints, *, floor: int | None = None) -> None:
        """Make births and deaths durable, as commit `seq`. Doing it again after a crash changes nothing.

        It is the last one from now on: commits from `seq` on that are there already were made by somebody who did not
        live to tell, and have been given up. With `floor`, also give up the way back to commits before it: the extents
        of what died until then may be reused.
        """
        with self._transaction():
            self.db.execute("DELETE FROM commits WHERE seq >= ?", (seq,))
            self._insert(seq, births.tobytes(), np.asarray(deaths, "<i8").tobytes())
            if floor is not None:
                self._set("floor", floor)

    def _insert(self, seq: int, births: bytes, deaths: bytes) -> None:
        self.db.execute("INSERT INTO commits VALUES (?, ?, ?, ?)", (seq, births, deaths, _crc(births, deaths)))

    def set_marks(self, marks: Sequence[Mark], floor: int) -> None:
        """Keep the way back to these commits, and give up the way back to those before `floor`."""
        with self._transaction():
            self.db.execute("DELETE FROM marks")
            self.db.executemany("INSERT INTO marks VALUES (?, ?)", marks)
            self._set("floor", floor)

    def load(self) -> Contents:
        """Everything in the catalogue, at one moment."""
        with self._errors("read"):
            self.db.execute("BEGIN")
            try:
                rows = self.db.execute("SELECT seq, births, deaths, crc FROM commits ORDER BY seq").fetchall()
                marks = self.db.execute("SELECT seq, token FROM marks ORDER BY seq").fetchall()
                floor, next_id = self._number("floor"), self._number("next_id")
            finally:
                self.db.execute("ROLLBACK")
        entries, deaths = self._joined([(births, deaths, crc) for _, births, deaths, crc in rows])
        seqs = np.repeat([row[0] for row in rows], [len(row[2]) // 8 for row in rows]).astype(np.int64)
        if len(entries):
            next_id = max(next_id, int(entries["id"].max()) + 1)
        if len(entries) and np.any(np.diff(entries["id"]) <= 0):
            entries = entries[np.argsort(entries["id"], kind="stable")]
        died = np.zeros(len(entries), np.int64)
        if len(deaths):
            at = np.searchsorted(entries["id"], deaths)
            found = np.zeros(len(deaths), bool)
            inside = at < len(entries)
            found[inside] = entries["id"][at[inside]] == deaths[inside]
            died[at[found][::-1]] = seqs[found][::-1]  # a death may be said twice; the first time counts
        last = rows[-1][0] if rows else floor
        dead = died > floor
        buried = int(np.count_nonzero(died)) - int(np.count_nonzero(dead))
        return Contents(
            entries[died == 0], entries[dead], died[dead], buried, max(last, floor), floor, tuple(marks), next_id
        )

    def _joined(self, rows: Sequence[tuple[bytes, bytes, int]]) -> tuple[Entries, Ints]:
        """The births and the deaths of many commits. SQLite has no checksums of its own, and a label must not lie."""
        if any(_crc(births, deaths) != crc for births, deaths, crc in rows):
            raise StoreError(
                f"{self.path}: a commit does not match its checksum; the catalogue is damaged. Bring back a copy of "
                "it, or use another directory"
            )
        entries = np.frombuffer(b"".join(births for births, _, _ in rows), ENTRY)
        deaths = np.frombuffer(b"".join(deaths for _, deaths, _ in rows), "<i8")
        return entries, deaths.astype(np.int64)

    def rollback(self, seq: int, next_id: int) -> None:
        """Forget every commit after `seq`."""
        with self._transaction():
            self.db.execute("DELETE FROM commits WHERE seq > ?", (seq,))
            self.db.execute("DELETE FROM marks WHERE seq > ?", (seq,))
            self._set("next_id", next_id)

    def compact(self, floor: int) -> None:
        """Merge the commits up to `floor`, none of which before it can be returned to; the dead among them are
        forgotten."""
        with self._transaction():
            rows = self.db.execute(
                "SELECT births, deaths, crc FROM commits WHERE seq <= ? ORDER BY seq", (floor,)
            ).fetchall()
            entries, deaths = self._joined(rows)
            next_id = max(self._number("next_id"), int(entries["id"].max(initial=-1)) + 1)
            living = entries[~np.isin(entries["id"], deaths)]
            self.db.execute("DELETE FROM commits WHERE seq <= ?", (floor,))
            # In pieces, because SQLite limits a value to 1 GB. Their numbers count down from `floor`, where there is
            # nothing any more.
            pieces = [living[at : at + _PIECE] for at in range(0, len(living), _PIECE)]
            for back, piece in enumerate(reversed(pieces)):
                self._insert(floor - back, piece.tobytes(), b"")
            self._set("next_id", next_id)

    def close(self) -> None:
        self.db.close()


def _crc(births: bytes, deaths: bytes) -> int:
    return zlib.crc32(deaths, zlib.crc32(births))
