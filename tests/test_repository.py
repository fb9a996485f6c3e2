"""What is kept with the sources: small files, nothing that a command can make again."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tracked() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("the sources are not a git checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).exists()]


def test_files_are_small(tracked: list[Path]) -> None:
    large = {str(path.relative_to(ROOT)): path.stat().st_size for path in tracked if path.stat().st_size > 300_000}
    assert not large
    assert sum(path.stat().st_size for path in tracked) < 8_000_000


def test_no_run_is_kept(tracked: list[Path]) -> None:
    assert not [path for path in tracked if path.suffix in (".pt", ".dat", ".db") or path.name == "metrics.json"]
