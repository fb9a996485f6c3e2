"""Which version of the code a run was made by. Sweeps keep runs while the code changes, so their records say it."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

_DECIDES = ("memory/*.py", "nets/*.py", "data/**/*.py", "methods/*.py", "lab/run.py", "lab/parts.py", "lab/metrics.py")
"""The files that decide what comes of a configuration."""


@functools.cache
def digest() -> str:
    """A short name for the present code."""
    root = Path(__file__).parents[1]
    files = sorted(path for pattern in _DECIDES for path in root.glob(pattern))
    found = hashlib.sha256()
    for path in files:
        found.update(f"{path.relative_to(root)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()[:12]
