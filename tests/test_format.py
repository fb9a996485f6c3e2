"""docs/format.md says enough to read a store without this package, and its examples are true."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carm.memory.checksum import checksum, constants
from carm.memory.extents import UNIT
from carm.memory.record import DTYPES, LARGEST
from carm.memory.store import Store

DOCUMENT = (Path(__file__).parents[1] / "docs" / "format.md").read_text()

# -- an independent reader: docs/format.md in Python, without a line of carm -------------------------------------------

WORD = 2**64 - 1
CODES = {"bool": "?", "uint8": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "uint16": "H", "uint32": "I"}
CODES |= {"uint64": "Q", "float16": "e", "bfloat16": "H", "float32": "f", "float64": "d"}


def up(n: int, unit: int) -> int:
    return -(-n // unit) * unit


def c(i: int) -> int:
    z = (i + 1) * 0x9E3779B97F4A7C15 & WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return z ^ z >> 31 | 1


def checksum_of(record: bytes) -> int:
    words, h = struct.unpack(f"<{len(record) // 4}I", record), 0
    for at in range(0, len(words), 65536):
        h = h * 0x9E3779B97F4A7C15 + sum(c(i) * w for i, w in enumerate(words[at : at + 65536])) & WORD
    return h


def fields_of(record: bytes, schema: dict[str, Any]) -> dict[str, Any]:
    at, lengths, out = 0, {}, {}
    for field in schema["fields"]:
        code, count = ("I", 1) if field["shape"] is None else (CODES[field["dtype"]], math.prod(field["shape"]))
        at = up(at, struct.calcsize(code))
        value = struct.unpack_from(f"<{count}{code}", record, at)
        (lengths if field["shape"] is None else out)[field["name"]] = value if field["shape"] else value[0]
        at += struct.calcsize(f"<{count}{code}")
    at = up(at, 8)
    for name, length in lengths.items():
        out[name], at = record[at : at + length], at + length
    return out


def read_store(directory: Path) -> dict[int, dict[str, Any]]:
    db = sqlite3.connect(f"file:{directory / 'catalogue.db'}?mode=ro", uri=True)
    assert db.execute("PRAGMA application_id").fetchone()[0] == 0x4361724D
    assert db.execute("PRAGMA user_version").fetchone()[0] == 1
    schema = json.loads(db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone()[0])
    rows = db.execute("SELECT births, deaths, crc FROM commits ORDER BY seq").fetchall()
    db.close()
    assert all(zlib.crc32(births + deaths) == crc for births, deaths, crc in rows)
    dead = {number for _, deaths, _ in rows for (number,) in struct.iter_unpack("<q", deaths)}
    data, out = (directory / "extents.dat").read_bytes(), {}
    for births, _, _ in rows:
        for number, offset, label, total, size, _ in struct.iter_unpack("<qqqQII", births):
            if number not in dead:
                assert offset % 512 == 0 and size % 8 == 0
                assert checksum_of(data[offset : offset + size]) == total
                out[number] = fields_of(data[offset : offset + size], schema)
                assert out[number][schema["label"]] == label
    return out


# -- tests -------------------------------------------------------------------------------------------------------------


def samples(rng: np.random.Generator, n: int) -> dict[str, Any]:
    return {
        "flag": rng.random(n) < 0.5,
        "x": [rng.bytes(int(k)) for k in rng.integers(0, 2000, n)],
        "y": rng.integers(-2, 3, n),
        "z": rng.normal(size=(n, 3)).astype(np.float32),
        "half": rng.normal(size=(n, 1, 2)).astype(np.float16),
        "text": [b"%d" % i for i in range(n)],
        "time": rng.normal(size=n),
    }


def same(mine: dict[str, Any], theirs: dict[str, Any], i: int) -> bool:
    return mine.keys() == theirs.keys() and all(
        v == bytes(theirs[k][i]) if isinstance(v, bytes) else np.array_equal(np.ravel(v), np.ravel(theirs[k][i]))
        for k, v in mine.items()
    )


def test_the_independent_reader_agrees(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with Store(
        tmp_path, capacity=40
    ) as store:  # less than comes in, so that some are evicted and their extents used again
        for _ in range(8):
            store.append(samples(rng, 10))
        store.delete(store.ids[:3])
        found = read_store(tmp_path)  # while it is open
    assert found.keys() == read_store(tmp_path).keys()
    with Store(tmp_path, readonly=True) as store:
        ids = store.ids
        assert list(found) == ids.tolist()
        assert len(ids) == 37
        expected = store.read(ids)
    assert all(same(found[number], expected, i) for i, number in enumerate(ids.tolist()))


def test_the_independent_reader_agrees_on_fixed_records(tmp_path: Path) -> None:
    given = {"y": np.arange(5), "x": np.arange(5 * 700, dtype=np.uint16).reshape(5, 700), "ok": np.arange(5) % 2 == 1}
    with Store(tmp_path) as store:
        store.append(given)
    found = read_store(tmp_path)
    assert all(same(found[i], given, i) for i in range(5))


def test_worked_example(tmp_path: Path) -> None:
    """The record, byte by byte, as the store wrote it."""
    with Store(tmp_path) as store:
        (number,) = store.append(
            {"x": [b"carousel memory"], "y": [3], "z": np.array([[0.5, -1, 2]], np.float32)},
        )
        handle = store.index.find([number])[0]
        offset, size = int(store.index.offsets[handle]), int(store.index.sizes[handle])
        total, schema = int(store.index.sums[handle]), store.schema
    record = (tmp_path / "extents.dat").read_bytes()[offset : offset + size]
    dump = "\n".join(f"{at:04x}  {record[at : at + 16].hex(' ')}" for at in range(0, size, 16))
    assert f"```\n{dump}\n```" in DOCUMENT
    assert f"Its checksum is `{total:016x}`" in DOCUMENT
    shown = re.search(r"```json\n(.*?)```", DOCUMENT, re.S)
    assert shown is not None and schema is not None and json.loads(shown[1]) == json.loads(schema.to_json())
    assert fields_of(record, json.loads(shown[1])) == {"x": b"carousel memory", "y": 3, "z": (0.5, -1, 2)}


def test_vectors() -> None:
    vectors = dict(re.findall(r"^\| (c\(\d+\)|checksum of .*?) \| `([0-9a-f]{16})` \|$", DOCUMENT, re.M))
    assert len(vectors) == 4
    short, long = bytes(range(16)), np.arange(65538, dtype="<u4").tobytes()
    assert int(vectors.pop("c(0)"), 16) == c(0) == int(constants()[0])
    assert int(vectors.pop("c(65535)"), 16) == c(65535) == int(constants()[65535])
    for data, text in zip((short, long), vectors.values(), strict=True):
        array = np.frombuffer(data, np.uint8)
        assert int(text, 16) == checksum_of(data) == int(checksum(array, np.array([0]), np.array([len(data)]))[0])


def test_types_and_limits() -> None:
    listed = DOCUMENT.split("- `dtype` is one of")[1].split("- `shape`")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == set(DTYPES)
    assert LARGEST == 2**31 - 2**20 and "It has at most 2^31 - 2^20 bytes." in DOCUMENT
    assert UNIT == 512 and "*units* of 512 bytes" in DOCUMENT


def test_the_tables_are_as_documented(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        store.append({"x": np.zeros((1, 1), np.uint8), "y": [0]})
    db = sqlite3.connect(tmp_path / "catalogue.db")
    shown = re.search(r"```sql\n(.*?)```", DOCUMENT, re.S)
    assert shown is not None
    made = {" ".join(sql.split()) for (sql,) in db.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
    assert made == {line.rstrip(";") for line in shown[1].splitlines()}
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    with Store(tmp_path) as store:
        assert store.catalogue is not None
        for name, value in re.findall(r"`(synchronous|wal_autocheckpoint)=(\w+)`", DOCUMENT):
            (used,) = store.catalogue.db.execute(f"PRAGMA {name}").fetchone()
            assert str(used) == {"FULL": "2"}.get(value, value), name
    keys = {key for (key,) in db.execute("SELECT key FROM meta")}
    assert keys == set(re.findall(r"^\| `(schema|uuid|floor|next_id)` \|", DOCUMENT, re.M))
    db.close()
    assert sorted(p.name for p in tmp_path.iterdir() if p.suffix not in (".db-wal", ".db-shm")) == sorted(
        re.findall(r"^\| `(extents.dat|catalogue.db|lock)` \|", DOCUMENT, re.M)
    )
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in tmp_path.iterdir())


@pytest.mark.parametrize("version", [2, 99])
def test_a_newer_format_is_refused(tmp_path: Path, version: int) -> None:
    from carm.memory.errors import StoreError

    with Store(tmp_path) as store:
        store.append({"x": np.zeros((1, 1), np.uint8), "y": [0]})
    db = sqlite3.connect(tmp_path / "catalogue.db")
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    with pytest.raises(StoreError, match=f"format {version}"):
        Store(tmp_path)
