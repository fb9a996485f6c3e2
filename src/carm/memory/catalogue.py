"""The catalogue: which samples the store holds and where, in SQLite.

One row per commit, append-only: the entries of the samples that were born and the ids of those that died. A commit is one
transaction of one row however many samples it has, opening reads whole arrays, and a store can be taken back to an earlier commit
by deleting the rows after it, which is how a restored checkpoint finds the samples that have been evicted since. Now and then
the rows up to a point that nobody will return to are merged (`compact`).
"""

from __future__ import annotations

import errno
import os
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carm.memory.errors import StoreError
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

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE commits (seq INTEGER PRIMARY KEY, births BLOB NOT NULL, deaths BLOB NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a catalogue says: the living samples by id, and the ids and commits of the dead that could still come back."""

    entries: Entries
    dead: Entries  # died after `floor`: their extents are still theirs
    died: Ints  # commit in which each of `dead` died
    buried: int  # entries of the dead before that
    seq: int  # last commit
    floor: int  # earliest commit that can be returned to
    next_id: int


class Catalogue:
    """A connection to the catalogue in `directory`. Not shared between threads."""

    def __init__(self, directory: Path, *, readonly: bool = False) -> None:
        path = directory / NAME
        self.path = path
        if not readonly and not path.exists():  # SQLite gives its -wal and -shm files the mode of the database
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        uri = f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rw'}"
        try:
            self.db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30.0, check_same_thread=False)
            if not readonly:
                self.db.execute("PRAGMA journal_mode=WAL")
                # FULL: a commit that has returned survives a power cut, not only kill -9.
                self.db.execute("PRAGMA synchronous=FULL")
                self.db.execute("PRAGMA wal_autocheckpoint=2000")
            self._check_format()
        except sqlite3.DatabaseError as error:
            raise StoreError(f"{path} cannot be read as a catalogue: {error}") from error

    def _check_format(self) -> None:
        (version,) = self.db.execute("PRAGMA user_version").fetchone()
        (application,) = self.db.execute("PRAGMA application_id").fetchone()
        if version == 0 and application == 0:
            return  # just created
        if application != APPLICATION:
            raise StoreError(f"{self.path} is an SQLite file, but not one of carm's")
        if version > FORMAT:
            raise StoreError(
                f"{self.path} has format {version}; this version of carm reads up to {FORMAT}. Install a newer carousel-memory"
            )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self.db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.db.execute("COMMIT")
        except BaseException as error:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError) and "full" in str(error):
                raise OSError(errno.ENOSPC, f"no room for the catalogue: {error}", str(self.path)) from error
            raise

    # -- schema ------------------------------------------------------------------------------------------------------

    def create(self, schema: Schema) -> None:
        """Lay out an empty catalogue for samples of `schema`, unless there is one already."""
        with self._transaction():
            if self.db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
                return
            for statement in filter(None, map(str.strip, _TABLES.split(";"))):
                self.db.execute(statement)
            rows = [("schema", schema.to_json()), ("uuid", uuid.uuid4().hex), ("floor", "0"), ("next_id", "0")]
            self.db.executemany("INSERT INTO meta VALUES (?, ?)", rows)
            self.db.execute(f"PRAGMA application_id = {APPLICATION}")
            self.db.execute(f"PRAGMA user_version = {FORMAT}")

    def schema(self) -> Schema | None:
        """The schema of the samples; None if nothing was ever stored."""
        if not self.db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            return None
        return Schema.from_json(self._meta("schema"))

    def uuid(self) -> str:
        """A name for this store's contents, the same for as long as it lives."""
        return self._meta("uuid")

    def _meta(self, key: str) -> str:
        row = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        if row is None:
            raise StoreError(f"{self.path} lacks {key!r}; the catalogue is damaged")
        return str(row[0])

    # -- commits -----------------------------------------------------------------------------------------------------

    def commit(self, seq: int, births: Entries, deaths: Ints, *, floor: int | None = None) -> None:
        """Make births and deaths durable, as commit `seq`. Doing it again after a crash changes nothing.

        With `floor`, also give up the way back to commits before it: the extents of what died until then may be reused.
        """
        with self._transaction():
            row = (seq, births.tobytes(), np.asarray(deaths, "<i8").tobytes())
            self.db.execute("INSERT OR REPLACE INTO commits VALUES (?, ?, ?)", row)
            if floor is not None:
                self._set("floor", floor)

    def set_floor(self, floor: int) -> None:
        """Give up the way back to commits before `floor`."""
        with self._transaction():
            self._set("floor", floor)

    def load(self) -> Contents:
        """Everything in the catalogue, at one moment."""
        self.db.execute("BEGIN")
        try:
            rows = self.db.execute("SELECT seq, births, deaths FROM commits ORDER BY seq").fetchall()
            floor, next_id = int(self._meta("floor")), int(self._meta("next_id"))
        finally:
            self.db.execute("COMMIT")
        if any(len(births) % ENTRY.itemsize or len(deaths) % 8 for _, births, deaths in rows):
            raise StoreError(f"{self.path}: a commit has an impossible length; the catalogue is damaged")
        entries = np.frombuffer(b"".join(births for _, births, _ in rows), ENTRY)
        deaths = np.frombuffer(b"".join(d for _, _, d in rows), "<i8").astype(np.int64)
        seqs = np.repeat([seq for seq, _, _ in rows], [len(d) // 8 for _, _, d in rows]).astype(np.int64)
        if len(entries):
            next_id = max(next_id, int(entries["id"].max()) + 1)
        if len(entries) and np.any(np.diff(entries["id"]) <= 0):
            entries = entries[np.argsort(entries["id"], kind="stable")]
        died = np.zeros(len(entries), np.int64)
        if len(deaths):
            at = np.searchsorted(entries["id"], deaths)
            found = (at < len(entries)) & (entries["id"][np.minimum(at, len(entries) - 1)] == deaths)
            died[at[found]] = seqs[found]
        last = rows[-1][0] if rows else floor
        dead = died > floor
        buried = int(np.count_nonzero(died)) - int(np.count_nonzero(dead))
        return Contents(entries[died == 0], entries[dead], died[dead], buried, max(last, floor), floor, next_id)

    def rollback(self, seq: int, next_id: int) -> None:
        """Forget every commit after `seq`."""
        with self._transaction():
            self.db.execute("DELETE FROM commits WHERE seq > ?", (seq,))
            self._set("next_id", next_id)

    def compact(self, floor: int) -> None:
        """Merge the commits up to `floor`, which cannot be returned to any more; the dead among them are forgotten for good."""
        with self._transaction():
            rows = self.db.execute(
                "SELECT births, deaths FROM commits WHERE seq <= ? ORDER BY seq", (floor,)
            ).fetchall()
            entries = np.frombuffer(b"".join(births for births, _ in rows), ENTRY)
            deaths = np.frombuffer(b"".join(deaths for _, deaths in rows), "<i8")
            next_id = max(int(self._meta("next_id")), int(entries["id"].max(initial=-1)) + 1)
            living = entries[~np.isin(entries["id"], deaths)]
            self.db.execute("DELETE FROM commits WHERE seq <= ?", (floor,))
            # Pieces, because SQLite limits a value to 1 GB; there are always fewer of them than rows that have just gone.
            pieces = [living[at : at + _PIECE] for at in range(0, len(living), _PIECE)]
            for back, piece in enumerate(reversed(pieces)):
                self.db.execute("INSERT INTO commits VALUES (?, ?, x'')", (floor - back, piece.tobytes()))
            self._set("next_id", next_id)

    def _set(self, key: str, value: int) -> None:
        self.db.execute("UPDATE meta SET value = ? WHERE key = ?", (str(value), key))

    def close(self) -> None:
        self.db.close()
