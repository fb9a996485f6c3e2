"""Many runs: none twice, none lost by another's failure, and an interrupted sweep goes on."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from carm.lab.config import Config
from carm.lab.progress import Progress, duration
from carm.lab.sweep import Interrupted, Job, finished, sweep

TINY = Config(method="er", data="digits", em=20, per_class=20, test_per_class=5, tasks=2, swap="none")


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_duplicates_run_once_and_a_failure_loses_nothing(tmp_path: Path) -> None:
    console = quiet()
    wrong = TINY.replace(lr=1e9)
    others = [TINY.replace(seed=1), TINY.replace(swap="sync")]
    results = sweep([TINY, TINY.replace(threads=7), wrong, *others], tmp_path, jobs=2, console=console)
    assert set(results) == {TINY.key, *(c.key for c in others)}
    assert list(results.failures) == [wrong.key] and "lr=1000000000.0" in results.failures[wrong.key]
    assert "Traceback" in (tmp_path / wrong.key / "log.txt").read_text()
    assert said(console).count("Original em 20 seed 0") == 2  # TINY once, and the one that failed
    assert "FAILED" in said(console) and "[4/4]" in said(console)
    assert results[TINY.key]["worker"]["peak_rss"] > 1 << 20
    assert not (tmp_path / others[1].key / "memory").exists(), "stores of finished runs take room for nothing"

    written = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/metrics.json")}
    again = sweep([TINY, *others], tmp_path, console=quiet())
    assert dict(again) == dict(results) and not again.failures
    assert written == {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/metrics.json")}


def test_conditions_are_part_of_the_key_and_kept(tmp_path: Path) -> None:
    roomy, tight = Job(TINY, cores=1, memory=4 << 30), Job(TINY, memory=64 << 20)
    assert len({roomy.key, tight.key, Job(TINY).key}) == 3 and Job(TINY).key == TINY.key
    results = sweep([roomy, tight], tmp_path, jobs=2, console=quiet())
    assert list(results) == [roomy.key] and finished(Job(TINY), tmp_path) is None
    assert results.failures[tight.key], "a run that does not fit says so"


def test_the_libraries_of_a_cuda_build_do_not_count() -> None:
    """They take more addresses than the devices that the limit stands for have memory."""
    script = """
import mmap
from carm.lab.worker import confine
libraries = mmap.mmap(-1, 5 << 30, prot=mmap.PROT_READ)  # such as these
confine(cores=0, memory=2 << 30)
mmap.mmap(-1, 512 << 20).close()
try:
    mmap.mmap(-1, 3 << 30)
except OSError:
    print("limited")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stdout == "limited\n", done.stderr


def test_the_smallest_nets_get_one_thread_unless_told_otherwise(tmp_path: Path) -> None:
    larger = TINY.replace(net="cnn", width=4)
    results = sweep([TINY, larger], tmp_path / "free", console=quiet())
    threads = [results[config.key]["worker"]["threads"] for config in (TINY, larger)]
    assert TINY.flat and threads == [1, len(os.sched_getaffinity(0))]
    told = sweep([TINY], tmp_path / "told", threads=2, console=quiet())
    assert told[TINY.key]["worker"]["threads"] == 2


def test_jobs_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jobs=0"):
        sweep([TINY], tmp_path, jobs=0)


SCRIPT = """
import sys
from pathlib import Path
from carm.lab import sweep as module
from carm.lab.config import Config
module._EVERY = 0.0
module.sweep([Config.load(Path(sys.argv[1]))], Path(sys.argv[2]))
"""
LONG = TINY.replace(passes=40, swap="sync")


def test_an_interrupted_and_a_killed_sweep_leave_no_process_and_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("carm.lab.sweep._EVERY", 0.0)
    checkpoint = tmp_path / LONG.key / "checkpoint.pt"
    LONG.save(tmp_path / "config.json")
    with subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path / "config.json"), str(tmp_path)]) as killed:
        _wait(checkpoint.exists)
        workers = [int(p) for p in Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text().split()]
        killed.kill()
    assert workers
    _wait(lambda: not any(_alive(pid) for pid in workers))
    before = checkpoint.stat().st_mtime_ns
    timer = threading.Thread(target=_interrupt_when, args=(lambda: checkpoint.stat().st_mtime_ns > before,))
    timer.start()
    with pytest.raises(Interrupted, match=r"stopped with 1 of 1 runs to go; the same command goes on"):
        sweep([LONG], tmp_path, console=quiet())
    timer.join()
    assert finished(Job(LONG), tmp_path) is None and checkpoint.exists()
    results = sweep([LONG], tmp_path, console=quiet())
    assert len(results[LONG.key]["bundles"]) == LONG.tasks and not checkpoint.exists()


def _interrupt_when(changed: Callable[[], bool]) -> None:
    """Ctrl-C, once the run has gone on from where it was."""
    _wait(changed)
    os.kill(os.getpid(), signal.SIGINT)


def _wait(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 100
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.005)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_the_display_shows_every_running_run() -> None:
    console = Console(file=io.StringIO(), width=160, force_terminal=True)
    job = Job(TINY)
    with Progress(total=4, cached=1, console=console) as progress:
        progress.begin(job)
        for swapped in (0, 50):
            moment = {"done": 0.5, "task": 1, "tasks": 5, "number": 2, "passes": 4, "loss": 0.25, "accuracy": 91.5}
            progress.moment(job, moment | {"swapped": swapped, "queue": 3})
            time.sleep(0.01)
        shown = str(progress.running[job.key])
        assert progress.eta() is not None
        with console.capture() as caught:
            console.print(progress._render())
    for part in ("task 2/5", "pass 3/4", "loss 0.250", "91.5 %", "swaps/s", "queue 3", "50 %"):
        assert part in shown
    assert "1/4 runs" in caught.get() and "to go" in caught.get()


def test_durations_for_people() -> None:
    assert [duration(s) for s in (45, 720, 3 * 3600, 4 * 86400)] == ["45 s", "12 min", "3.0 h", "4 days"]
