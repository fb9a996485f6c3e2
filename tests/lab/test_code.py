"""Runs know which code they were made by, and records say so."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("sklearn")

import carm
from carm.lab.code import digest
from carm.lab.paper.cases import Plan
from carm.lab.paper.perform import perform


def test_another_code_has_another_name(tmp_path: Path) -> None:
    shutil.copytree(Path(carm.__file__).parent, tmp_path / "carm", ignore=shutil.ignore_patterns("__pycache__"))
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from carm.lab.code import digest; print(digest())"

    def there() -> str:
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()

    assert there() == digest()
    with (tmp_path / "carm" / "bench" / "timing.py").open("a") as file:
        file.write("# what is measured does not matter to a run\n")
    assert there() == digest()
    with (tmp_path / "carm" / "methods" / "er.py").open("a") as file:
        file.write("# what is learned does\n")
    assert there() != digest()


def test_kept_runs_of_another_code_are_told(tmp_path: Path) -> None:
    plan = Plan("smoke", methods=("gdumb",))
    made = perform("workers", Plan("smoke", methods=("er",)), tmp_path)
    assert made["code"] == {digest(): 2}
    one = next(tmp_path.glob("*/metrics.json"))
    one.write_text(json.dumps(json.loads(one.read_text()) | {"code": "0123456789ab"}))
    text = io.StringIO()
    again = perform("workers", Plan("smoke", methods=("er",)), tmp_path, console=Console(file=text, width=300))
    assert again["code"] == {digest(): 1, "0123456789ab": 1}
    assert "1 of 2 runs of workers were made by another version of the code" in text.getvalue()
    with pytest.raises(ValueError, match="workers has nothing"):
        perform("workers", plan, tmp_path)
