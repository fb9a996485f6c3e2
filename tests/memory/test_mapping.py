from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from carm.memory.aio import MappedEngine
from carm.memory.mapping import mapped


def _mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_a_file_that_grows_needs_no_new_mapping(tmp_path: Path) -> None:
    path = tmp_path / "extents.dat"
    data = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8)
    data[:8192].tofile(path)
    engine = MappedEngine(path)
    sizes = np.array([1000])
    for end in range(8192, len(data), 8192):
        with path.open("ab") as file:
            file.write(data[end : end + 8192].tobytes())
        offset = np.array([end + 512])
        found, starts, ok = engine.read(offset, sizes)
        assert ok.all() and np.array_equal(found[starts[0] : starts[0] + 1000], data[end + 512 : end + 1512])
    assert _mappings(path) == 1
    before = engine._data
    found, starts, ok = engine.read(np.array([len(data) - 100]), sizes)
    assert not ok.any(), "a record that ends beyond the file is not whole, and was not touched"
    assert engine._data is before
    engine.close()
    del before, found
    gc.collect()
    assert _mappings(path) == 0


def test_it_lives_as_long_as_what_looks_at_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc" * 1000)
    with path.open("rb") as file:
        whole = mapped(file.fileno())
    part = whole[3:6]
    del whole
    gc.collect()
    assert part.tobytes() == b"abc" and _mappings(path) == 1
    with pytest.raises(ValueError, match="read-only"):
        part[0] = 1
    del part
    gc.collect()
    assert _mappings(path) == 0
    path.write_bytes(b"")
    with path.open("rb") as file:
        assert len(mapped(file.fileno())) == 0


def test_without_addresses_to_spare_the_file_itself_is_mapped(tmp_path: Path) -> None:
    """Under a limit of address space, as on small devices; in a process of its own."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 64)
    script = f"""
        import resource
        from carm.memory import mapping
        used = int(open("/proc/self/statm").read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20),) * 2)
        with open({str(path)!r}, "rb") as file:
            whole = mapping.mapped(file.fileno())
        assert len(whole) == 256 * 64 and whole[300] == 44
        print("good")
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60)
    assert out.stdout == "good\n", out.stdout + out.stderr


def test_at_the_interpreters_end_a_worker_may_still_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    script = f"""
        import threading
        from carm.memory import mapping
        with open({str(path)!r}, "rb") as file:
            whole = mapping.mapped(file.fileno())
        def work():
            while True:
                int(whole[: 1 << 20].sum())
        threading.Thread(target=work, daemon=True).start()
        print("good")
    """
    for _ in range(3):
        out = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
        )
        assert (out.returncode, out.stdout) == (0, "good\n"), out.stderr
