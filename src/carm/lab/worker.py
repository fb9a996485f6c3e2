"""Runs in a process of their own, one after another: what `sweep` starts.

    python -m carm.lab.worker      # each line of stdin is a job, in JSON; each line of stdout says how it goes

A process of its own because a run that fails, runs out of memory or is pinned to a core must not take the others with
it; one after another because starting Python and torch takes longer than a small run. Standard input stays open as long
as the sweep lives: when it closes, by whatever death of the sweep, the run is interrupted, as by Ctrl-C, and can be
resumed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

_PATIENCE = 20.0  # seconds that a killed sweep's orphan may take to let go of its run
_GRACE = 10.0  # seconds from the interrupt to giving up
_LIBRARIES = 1 << 30  # bytes; a CPU build of torch takes 0.6 GiB


def main() -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a sweep in the background of a shell would ignore it
    orders: queue.Queue[dict[str, Any] | None] = queue.Queue()
    busy = threading.Event()
    threading.Thread(target=_listen, args=(orders, busy), daemon=True).start()
    try:
        while (job := orders.get()) is not None:
            busy.set()
            if not _attempt(job):
                return 1  # what a failure leaves behind in a process is anybody's guess: the sweep starts another
            busy.clear()
            _say({"done": True})
    except KeyboardInterrupt:
        return 130
    return 0


def _attempt(job: dict[str, Any]) -> bool:
    try:
        confine(cores=job["cores"], memory=job["memory"])
        _carry_out(job)
    except MemoryError:
        _say({"error": f"out of memory: the limit was {job['memory']} bytes", "traceback": traceback.format_exc()})
        return False
    except Exception as error:
        _say({"error": " ".join(f"{type(error).__name__}: {error}".split()), "traceback": traceback.format_exc()})
        return False
    return True


def _listen(orders: queue.Queue[dict[str, Any] | None], busy: threading.Event) -> None:
    """Take orders until the sweep is gone; then stop what is going on."""
    for line in sys.stdin:
        orders.put(json.loads(line))
    orders.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_GRACE)
    os._exit(130)


def confine(*, cores: int, memory: int) -> None:
    """Stay on so many cores and within so many bytes of address space; 0: no limit.

    The address space (RLIMIT_AS) needs no privileges, unlike a control group, and is the stricter measure: code and
    reservations count, used or not. But the code of a CUDA build of torch alone is more than a small device has: of
    torch's libraries a gigabyte counts at most.
    """
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    if memory:
        import torch  # noqa: F401

        beyond = max(0, _address_space() - _LIBRARIES)
        resource.setrlimit(resource.RLIMIT_AS, (memory + beyond, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _address_space() -> int:
    """Bytes that this process has mapped."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def peak_rss() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _carry_out(job: dict[str, Any]) -> None:
    from carm.lab.config import Config
    from carm.lab.files import write_json
    from carm.lab.run import run
    from carm.lab.watch import Moment, Watch

    class Tell(Watch):
        seconds = 0.5

        def __call__(self, moment: Moment) -> None:
            _say({"moment": asdict(moment)})

    out = Path(job["out"])
    with _let_go(out), (out / "log.txt").open("a") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    config = Config.from_dict(job["config"])
    before = peak_rss()
    run(config, out, resume=True, every=job["every"], keep_store=False, watch=Tell())
    if not (out / "worker.json").exists():  # otherwise the run was finished already, and this process says nothing
        write_json(out / "worker.json", {"peak_rss": peak_rss(), "rss_before": before, "threads": config.threads})


@contextlib.contextmanager
def _let_go(out: Path) -> Iterator[None]:
    """Wait until nobody holds the run: the orphan of a killed sweep takes a moment to notice."""
    out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + _PATIENCE
    with (out / "lock").open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > end:
                    break  # `run` says it better
                time.sleep(0.1)
        yield


def _say(record: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(record) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
