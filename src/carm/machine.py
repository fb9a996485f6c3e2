"""What measurements depend on: this machine, its file system, its page cache."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carm.memory import native


def file_system(path: Path) -> str:
    """The type of the file system that `path` is on."""
    found, kind = -1, "unknown"
    here = str(path.resolve())
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return kind
    for line in mounts:
        _, point, name = line.split()[:3]
        inside = here == point or here.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= found:
            found, kind = len(point), name
    return kind


def machine(directory: Path) -> dict[str, Any]:
    """What the numbers depend on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = Path(sys.argv[0]).name
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "kernel": platform.release(),
        "file_system": file_system(directory),
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": str(torch.__version__),
        "torch_threads": torch.get_num_threads(),
        "compiled_code": native.library is not None,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["carm" if name == "__main__.py" else name, *sys.argv[1:]]),
    }


def drop_cache(directory: Path) -> None:
    """Take the files in `directory` out of the page cache."""
    for path in directory.iterdir():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
