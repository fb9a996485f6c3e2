"""The compiled part: it is there where it can be, it is not needed, and a library of another version is left alone."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from patterns import FIXED, VARIABLE, audit, keys_of, samples

from carm.memory import native
from carm.memory.checksum import halves
from carm.memory.gate import Random
from carm.memory.memory import Memory
from carm.memory.ram import Arrays, copy_records
from carm.memory.record import Schema

SOURCE = Path(native.__file__).with_name("native.c")
compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def _compile(out: Path, *flags: str) -> Path:
    subprocess.run(["cc", "-std=gnu11", "-shared", "-fPIC", *flags, "-o", out, SOURCE], check=True)
    return out


@compiler
def test_it_is_there_where_it_can_be() -> None:
    if os.environ.get("CARM_NATIVE") == "0":
        pytest.skip("it was left out on purpose")
    assert native.library is not None, "there is a compiler, and yet no compiled part: see what `pip install -v` says"


@compiler
def test_it_compiles_without_a_warning(tmp_path: Path) -> None:
    _compile(tmp_path / "library.so", "-O3", "-Wall", "-Wextra", "-Werror")


@compiler
def test_under_the_sanitizers(tmp_path: Path) -> None:
    """Every loop of it, with address and undefined-behaviour checks."""
    library = _compile(tmp_path / "library.so", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")
    found = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip("the compiler has no address sanitizer")
    script = """
import sys
from pathlib import Path
import numpy as np
from carm.memory import checksum, native
from carm.memory.checksum import halves
library = native.Native(Path(sys.argv[1]))
rng = np.random.default_rng(0)
for _ in range(300):
    n, block = int(rng.integers(0, 9)), int(rng.choice([8, 56, 256, 4096, 400_000]))
    sizes = rng.integers(0, 700 if block < 4096 else 90_000, n) * 8
    starts = rng.permutation(n) * int(sizes.max(initial=0))
    data = rng.integers(0, 256, int((starts + sizes).max(initial=0)), dtype=np.uint8)
    blocks = rng.permutation(int((-(-sizes // block)).sum()))
    arena = np.zeros((len(blocks), block), np.uint8)
    whole = rng.random(n) < 0.8
    sums = library.checksum(data, starts, sizes, halves())
    assert (library.move(arena, blocks, data, starts, sizes, whole, halves()) == sums * whole).all()
    library.copy(arena, blocks, data, starts, sizes)
    with native.without():
        assert (checksum.checksum(data, starts, sizes) == sums).all()
    rows, block = int(rng.integers(1, 40)), int(rng.choice([8, 256, 4096]))
    successors = rng.integers(-3, rows + 3, rows, dtype=np.int32)  # some of them nonsense
    first, counts = rng.integers(-3, rows + 3, n), rng.integers(0, 6, n)
    out = library.gather(np.ones((rows, block), np.uint8), successors, first, counts)
    assert len(out) == counts.sum() * block and out.all()
print("good")
"""
    environment = os.environ | {"LD_PRELOAD": found, "ASAN_OPTIONS": "detect_leaks=0", "CARM_NATIVE": "0"}
    out = subprocess.run(
        [sys.executable, "-c", script, library], capture_output=True, text=True, env=environment, timeout=300
    )
    assert out.stdout == "good\n", out.stdout + out.stderr


@compiler
def test_a_library_of_another_version_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _compile(tmp_path / native.NAME)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    monkeypatch.delenv("CARM_NATIVE", raising=False)
    assert native._load() is not None
    monkeypatch.setattr(native, "ABI", native.ABI + 1)
    with caplog.at_level(logging.WARNING, "carm"):
        assert native._load() is None
    assert "is of version 2, not 3; install the package again" in caplog.text


def test_a_file_that_is_no_library_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / native.NAME).write_bytes(b"of another machine")
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    monkeypatch.delenv("CARM_NATIVE", raising=False)
    with caplog.at_level(logging.WARNING, "carm"):
        assert native._load() is None
    assert "numpy takes its place" in caplog.text


def test_it_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARM_NATIVE", "0")
    assert native._load() is None


def test_arrays_of_the_wrong_kind_are_refused() -> None:
    if native.library is None:
        pytest.skip("the compiled part is not there")
    data, one = np.zeros(64, np.uint8), np.zeros(1, np.int64)
    with pytest.raises(TypeError, match="contiguous array of int64, got int32"):
        native.library.copy(data.reshape(8, 8), one.astype(np.int32), data, one, one)
    with pytest.raises(TypeError, match="contiguous array of uint8"):
        native.library.copy(data.reshape(8, 8), one, data[::2], one, one)


@pytest.mark.parametrize("what", ["start", "negative start", "size", "block", "negative block", "too few blocks"])
def test_what_is_not_there_is_refused(what: str) -> None:
    """Nothing outside the given memory is touched, whatever an order says."""
    if native.library is None:
        pytest.skip("the compiled part is not there")
    data, arena = np.full(1600, 7, np.uint8), np.zeros((5, 512), np.uint8)
    starts, sizes, blocks = np.array([0, 520, 1040]), np.full(3, 512), np.array([3, 0, 2])
    if what == "start":
        starts[1] = len(data) - 504
    elif what == "negative start":
        starts[1] = -8
    elif what == "size":
        sizes[1] = len(data) + 8
    elif what == "block":
        blocks[1] = len(arena)
    elif what == "negative block":
        blocks[1] = -1
    else:
        blocks = blocks[:1]
    with pytest.raises(IndexError, match="record 1 is at"):
        native.library.copy(arena, blocks, data, starts, sizes)
    assert (arena[3] == 7).all() and not arena[[0, 1, 2, 4]].any()
    if "block" not in what:
        with pytest.raises(IndexError, match="record 1 is at"):
            native.library.checksum(data, starts, sizes, halves())


@pytest.mark.parametrize("seed", range(20))
def test_chains_are_followed_as_numpy_follows_them(seed: int) -> None:
    """Also those that another process is changing, and that lead anywhere."""
    if native.library is None:
        pytest.skip("the compiled part is not there")
    rng = np.random.default_rng(seed)
    rows, block = int(rng.integers(1, 60)), int(rng.choice([256, 512, 4096]))
    arrays = Arrays(
        header=np.zeros(8, np.int64),
        entries=np.zeros(0, np.int64),
        successors=rng.integers(-9, rows + 9, rows, dtype=np.int32),
        sizes=rng.integers(-9, 12 * block, rows).astype(np.int32),
        arena=rng.integers(0, 256, (rows, block), dtype=np.uint8),
        heads=None,
    )
    first = rng.integers(0, rows, 30)
    data, starts = copy_records(arrays, first)
    with native.without():
        same, at = copy_records(arrays, first)
    assert np.array_equal(data, same) and np.array_equal(starts, at)


@pytest.mark.parametrize("engine", ["aio", "mapped", "preadv"])
@pytest.mark.parametrize("swap", ["sync", "thread", "process"])
@pytest.mark.parametrize("schema", [FIXED, VARIABLE], ids=["fixed", "variable"])
def test_swapping_without_it(
    tmp_path: Path, schema: Schema, swap: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a store that was written without it is read with it."""
    keys = np.arange(200)
    monkeypatch.setenv("CARM_NATIVE", "0")  # for the helper process
    with (
        native.without(),
        Memory(12, storage=tmp_path, engine=engine, swap=swap, gate=Random(1.0), write_batch=8) as memory,
    ):
        memory.add(**samples(keys, keys % 4, schema))
        for _ in range(10):
            memory.flush()
            batch = memory.take(memory.slots)
            assert keys_of(batch, schema).tolist() == batch.ids.tolist()
            memory.feedback(batch, torch.zeros(len(batch), 4))
        memory.flush()
        audit(memory)
        assert memory.stats()["swapped"] == 120 and memory.stats()["corrupt"] == 0
    with Memory(12, storage=tmp_path, engine=engine) as memory:
        assert memory.store is not None
        assert [bad for _, bad in memory.store.verify()] == [[]]
