"""Freed memory is kept: counted in page faults of a real process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_STEPS = """
import ctypes, resource, sys, torch
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: huge pages would hide most of the faults
from carm.nets.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def step():
    return sum(float(x.sum()) for x in [torch.ones(2 << 20) for _ in range(4)])  # 8 MiB each
for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_steps_that_free_their_memory_find_it_again() -> None:
    def faults(which: str) -> int:
        done = subprocess.run([sys.executable, "-c", _STEPS, which], capture_output=True, text=True, check=True)
        return int(done.stdout)

    # The 20 steps touch 163,840 pages. Kept memory can still grow by a piece or two after the first steps: how the
    # pieces lie is the C library's affair. What counts is that most steps bring no fault.
    assert 8 * faults("keep") < faults("plain")
