"""The catalogue on its own: what is committed is what is loaded, whoever else wrote in the file."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from numbered import FIXED, VARIABLE
from patterns import descriptors

from carm.memory import catalogue as module
from carm.memory.catalogue import APPLICATION, ENTRY, FORMAT, Catalogue, Contents
from carm.memory.errors import StoreError

NOBODY = np.zeros(0, ENTRY)


def births(*ids: int) -> np.ndarray:
    out = np.zeros(len(ids), ENTRY)
    out["id"], out["offset"], out["label"] = ids, np.array(ids) * 512, np.array(ids) % 3
    out["size"], out["checksum"] = 100, np.array(ids, np.uint64) + np.uint64(2**63)
    return out


def deaths(*ids: int) -> np.ndarray:
    return np.array(ids, np.int64)


def ids_of(contents: Contents) -> list[int]:
    return contents.entries["id"].tolist()


@pytest.fixture
def catalogue(tmp_path: Path) -> Any:
    out = Catalogue(tmp_path)
    out.create(FIXED)
    yield out
    out.close()


def test_a_new_one(tmp_path: Path) -> None:
    first = Catalogue(tmp_path)
    assert first.schema() is None
    first.create(FIXED)
    name = first.uuid()
    first.create(VARIABLE)  # there is one already
    assert first.schema() == FIXED and first.uuid() == name
    contents = first.load()
    assert (ids_of(contents), contents.seq, contents.floor, contents.next_id, contents.marks) == ([], 0, 0, 0, ())
    first.close()
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    again = Catalogue(tmp_path)
    assert again.schema() == FIXED and again.uuid() == name
    assert again.db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION
    assert again.db.execute("PRAGMA user_version").fetchone()[0] == FORMAT
    assert again.db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert again.db.execute("PRAGMA synchronous").fetchone()[0] == 2
    again.close()


def test_entries_come_back_bit_for_bit(catalogue: Catalogue) -> None:
    rows = np.zeros(3, ENTRY)
    rows["id"], rows["offset"], rows["label"] = [0, 5, 9], [0, 2**49, 512], [-(2**63), 2**63 - 1, 2**40 + 1]
    rows["checksum"], rows["size"] = [0, 2**64 - 1, 1], [8, 2**32 - 8, 16]
    catalogue.commit(2, rows, deaths())
    contents = catalogue.load()
    assert contents.entries.tobytes() == rows.tobytes()
    assert contents.next_id == 10


def test_deaths_floor_and_the_dead_that_can_come_back(catalogue: Catalogue) -> None:
    catalogue.commit(2, births(0, 1, 2, 3), deaths())
    catalogue.commit(4, births(4), deaths(1), floor=4)
    catalogue.commit(6, births(5), deaths(0, 4, 77))  # 77 was never there
    contents = catalogue.load()
    assert ids_of(contents) == [2, 3, 5]
    assert contents.dead["id"].tolist() == [0, 4] and contents.died.tolist() == [6, 6]
    assert (contents.buried, contents.seq, contents.floor) == (1, 6, 4)
    catalogue.set_marks([(6, "a")], 6)
    contents = catalogue.load()
    assert (contents.dead["id"].tolist(), contents.buried, contents.floor, contents.marks) == ([], 3, 6, ((6, "a"),))


def test_a_death_that_is_said_twice_counts_from_the_first_time(catalogue: Catalogue) -> None:
    """Its extent may have a new owner since the first time; it must not be kept for the dead."""
    catalogue.commit(2, births(0, 1), deaths())
    catalogue.commit(3, NOBODY, deaths(0), floor=3)
    catalogue.commit(5, births(2), deaths(0, 1))
    contents = catalogue.load()
    assert contents.dead["id"].tolist() == [1] and contents.buried == 1


def test_a_commit_is_the_last_one(catalogue: Catalogue) -> None:
    """What was said under its number or later, by somebody who did not live to tell, is taken back."""
    catalogue.commit(2, births(0), deaths())
    catalogue.commit(3, NOBODY, deaths(0))
    catalogue.commit(4, births(1), deaths())
    catalogue.commit(3, births(2), deaths())
    assert ids_of(catalogue.load()) == [0, 2]
    catalogue.commit(3, births(2), deaths())  # doing it again changes nothing
    assert ids_of(catalogue.load()) == [0, 2]


def test_rollback(catalogue: Catalogue) -> None:
    catalogue.commit(2, births(0, 1), deaths())
    catalogue.set_marks([(2, "a")], 2)
    catalogue.commit(4, births(2), deaths(0))
    catalogue.set_marks([(2, "a"), (4, "b")], 2)
    catalogue.commit(6, births(3), deaths(1, 2))
    catalogue.rollback(4, 3)
    assert (ids_of(catalogue.load()), catalogue.load().marks) == ([1, 2], ((2, "a"), (4, "b")))
    catalogue.rollback(2, 2)
    contents = catalogue.load()
    assert (ids_of(contents), contents.marks, contents.seq, contents.next_id) == ([0, 1], ((2, "a"),), 2, 2)


class Model(RuleBasedStateMachine):
    """Commits, marks, rollbacks and compactions in any order, against a dict of who lives at each commit."""

    def __init__(self) -> None:
        super().__init__()
        self.database = sqlite3.connect(":memory:", isolation_level=None)
        self.catalogue = Catalogue.__new__(Catalogue)
        self.catalogue.path, self.catalogue.db = Path("memory"), self.database
        self.catalogue.create(FIXED)
        self.moments: dict[int, set[int]] = {0: set()}
        self.seq = self.floor = self.next = 0

    @rule(new=st.integers(0, 4), data=st.data(), final=st.booleans())
    def commit(self, new: int, data: st.DataObject, final: bool) -> None:
        alive = self.moments[self.seq]
        dead = data.draw(st.sets(st.sampled_from(sorted(alive)))) if alive else set()
        ids = range(self.next, self.next + new)
        self.next += new
        self.seq += 2
        self.moments[self.seq] = (alive | set(ids)) - dead
        self.catalogue.commit(self.seq, births(*ids), deaths(*dead), floor=self.seq if final else None)
        if final:
            self.floor = self.seq

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from([s for s in self.moments if self.floor <= s <= self.seq]))
        self.catalogue.rollback(seq, self.next)
        self.moments = {s: m for s, m in self.moments.items() if s <= seq}
        self.seq = seq

    @rule(piece=st.sampled_from([1, 2, 1000]))
    def compact(self, piece: int) -> None:
        module._PIECE = piece
        self.catalogue.compact(self.floor)
        assert self.catalogue.load().buried == 0

    @invariant()
    def same(self) -> None:
        contents = self.catalogue.load()
        assert set(ids_of(contents)) == self.moments[self.seq]
        assert ids_of(contents) == sorted(ids_of(contents))
        assert contents.entries.tobytes() == births(*ids_of(contents)).tobytes()
        assert (contents.seq, contents.floor) == (self.seq, self.floor)
        assert contents.next_id >= max(self.moments[self.seq], default=-1) + 1
        # Whoever is kept as dead could still come back by a rollback.
        back = set().union(*(m for s, m in self.moments.items() if s >= self.floor)) - self.moments[self.seq]
        assert set(contents.dead["id"].tolist()) >= back

    def teardown(self) -> None:
        module._PIECE = 2**20
        self.database.close()


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_ids_are_not_given_twice_after_compaction(catalogue: Catalogue) -> None:
    catalogue.commit(2, births(0, 1, 2), deaths())
    catalogue.commit(4, NOBODY, deaths(2), floor=4)
    catalogue.compact(4)
    assert catalogue.load().next_id == 3


def test_many_commits_in_few_rows_after_compaction(catalogue: Catalogue) -> None:
    for i in range(300):
        catalogue.commit(2 + 2 * i, births(i), deaths(i - 1) if i else deaths(), floor=2 + 2 * i)
    before = catalogue.load()
    catalogue.compact(before.floor)
    after = catalogue.load()
    assert ids_of(after) == ids_of(before) == [299]
    assert (after.seq, after.next_id, after.buried, before.buried) == (before.seq, before.next_id, 0, 299)
    assert catalogue.db.execute("SELECT count(*) FROM commits").fetchone() == (1,)


def test_an_interrupted_transaction_leaves_nothing(catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue.commit(2, births(0, 1), deaths())
    catalogue.commit(4, NOBODY, deaths(0), floor=4)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "_set", interrupt)
    for action in (
        lambda: catalogue.compact(4),
        lambda: catalogue.commit(6, births(5), deaths(1), floor=6),
        lambda: catalogue.rollback(2, 2),
        lambda: catalogue.set_marks([(4, "x")], 4),
    ):
        with pytest.raises(KeyboardInterrupt):
            action()
        contents = catalogue.load()
        assert (ids_of(contents), contents.seq, contents.buried, contents.marks) == ([1], 4, 1, ())
    assert not catalogue.db.in_transaction


def test_two_connections(catalogue: Catalogue, tmp_path: Path) -> None:
    """The worker has its own connection, and each sees what the other has committed."""
    other = Catalogue(tmp_path)
    other.commit(2, births(0), deaths())
    catalogue.set_marks([(2, "a")], 2)
    reader = Catalogue(tmp_path, readonly=True)
    for one in (catalogue, other, reader):
        assert ids_of(one.load()) == [0] and one.load().marks == ((2, "a"),)
    with pytest.raises(StoreError, match="cannot be written"):
        reader.commit(4, births(1), deaths())
    reader.close()
    other.close()


def test_a_full_disk_is_an_oserror_and_the_log_is_emptied(catalogue: Catalogue) -> None:
    catalogue.commit(2, births(0), deaths())
    catalogue.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    catalogue.db.execute("PRAGMA max_page_count = 6")  # SQLite then says SQLITE_FULL, as on a full device
    with pytest.raises(OSError, match="no room for the catalogue") as caught:
        catalogue.commit(4, births(*range(1, 2000)), deaths())
    assert caught.value.errno == errno.ENOSPC
    assert ids_of(catalogue.load()) == [0]
    assert os.path.getsize(f"{catalogue.path}-wal") == 0
    catalogue.db.execute("PRAGMA max_page_count = 100000")
    catalogue.commit(4, births(1), deaths())
    assert ids_of(catalogue.load()) == [0, 1]


# -- files that are not what they should be ----------------------------------------------------------------------------


def _closed(tmp_path: Path, commits: int = 40) -> Path:
    catalogue = Catalogue(tmp_path)
    catalogue.create(FIXED)
    for i in range(commits):
        catalogue.commit(2 + 2 * i, births(*range(50 * i, 50 * i + 50)), deaths())
    catalogue.close()
    return tmp_path / "catalogue.db"


def _untouched(path: Path, act: Any, match: str) -> None:
    """`act` raises a StoreError that says `match`, and does not change a byte."""
    before = path.read_bytes()
    with pytest.raises(StoreError, match=match):
        act()
    assert path.read_bytes() == before


def _load(directory: Path) -> None:
    catalogue = Catalogue(directory)
    try:
        catalogue.schema()
        catalogue.load()
    finally:
        catalogue.close()


def test_newer_format(tmp_path: Path) -> None:
    path = _closed(tmp_path)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode=DELETE")
        db.execute(f"PRAGMA user_version = {FORMAT + 1}")
    db.close()
    _untouched(path, lambda: Catalogue(tmp_path), f"format {FORMAT + 1}.*newer")


def test_somebody_elses_database(tmp_path: Path) -> None:
    """Most SQLite files have neither an application id nor a version; they must not be taken for a new catalogue."""
    path = tmp_path / "catalogue.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE precious (data)")
    db.close()
    _untouched(path, lambda: Catalogue(tmp_path), "not one of carm's")
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA application_id = 12345")
    db.close()
    _untouched(path, lambda: Catalogue(tmp_path), "not one of carm's")


@pytest.mark.parametrize(
    "junk", [b"no database at all, but long enough to be one " * 50, b"SQLite format 3\0" + bytes(84)]
)
def test_garbage(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / "catalogue.db").write_bytes(junk)
    _untouched(tmp_path / "catalogue.db", lambda: _load(tmp_path), "cannot be")


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_truncated(tmp_path: Path, part: float) -> None:
    path = _closed(tmp_path)
    os.truncate(path, int(path.stat().st_size * part))
    _untouched(path, lambda: _load(tmp_path), "catalogue")


def test_flipped_bits_in_a_commit(tmp_path: Path) -> None:
    """SQLite does not notice them, and a label would lie."""
    path = _closed(tmp_path, commits=3)
    data = bytearray(path.read_bytes())
    at = data.index(births(70).tobytes()[:20]) + 16  # the label of sample 70
    data[at] ^= 1
    path.write_bytes(data)
    _untouched(path, lambda: _load(tmp_path), "does not match its checksum")


def test_a_failed_open_leaves_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "catalogue.db").write_bytes(b"x" * 5000)
    before = descriptors()
    for _ in range(20):
        with pytest.raises(StoreError):
            Catalogue(tmp_path)
    assert descriptors() == before


def test_names_that_mean_something_in_an_address(tmp_path: Path) -> None:
    directory = tmp_path / "a b?c#d%41&mode=ro"
    directory.mkdir()
    catalogue = Catalogue(directory)
    catalogue.create(FIXED)
    catalogue.commit(2, births(1), deaths())
    catalogue.close()
    assert (directory / "catalogue.db").stat().st_size > 0
    reader = Catalogue(directory, readonly=True)
    assert ids_of(reader.load()) == [1]
    reader.close()
