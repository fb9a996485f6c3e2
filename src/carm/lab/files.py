"""Files that are whole or not there, and JSON that is plain."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Any]:
    """Write a file so that after a crash there is the old one or the new one, never half of one."""
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_json(path: Path, record: Any) -> None:
    with atomic(path) as file:
        file.write((json.dumps(plain(record), indent=1) + "\n").encode())


def plain(value: Any) -> Any:
    """The same with what JSON does not know replaced: NaN by null, numpy numbers by Python's, floats shortened."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, (float, np.floating)):
        return round(float(value), 6) if np.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
