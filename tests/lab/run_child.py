"""Runs in processes that may be killed. One interpreter imports everything once, then forks for every run.

A line on stdin is JSON: {"config": {...}, "out": DIR, "signal": 9, "checkpoints": N, "after": SECONDS}. The run gets
the signal so many seconds after it has written so many checkpoints (no signal: it may finish). The answer is a line
{"code": exit code, negative for a signal, "seconds": ...}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def written(checkpoint: Path) -> tuple[int, int]:
    """Something that changes with every checkpoint."""
    try:
        found = checkpoint.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def send(child: int, job: dict[str, Any]) -> int:
    """Send the signal when it is time; the child's status."""
    checkpoint = Path(job["out"]) / "checkpoint.pt"
    last, to_come, due = written(checkpoint), job["checkpoints"], float("inf")
    while True:
        now = written(checkpoint)
        to_come -= now != last
        last = now
        if to_come <= 0:
            due = min(due, time.monotonic() + job["after"])
        if time.monotonic() >= due:
            os.kill(child, job["signal"])
            return os.waitpid(child, 0)[1]
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.001)


def main() -> None:
    import torch

    from carm.data import load
    from carm.lab import Config, run

    torch.set_num_threads(1)
    load("digits")
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()  # what torch imports at first use
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.close(0)
                run(Config.from_dict(job["config"]), Path(job["out"]), resume=True)
                code = 0
            except KeyboardInterrupt:
                code = 130
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        status = send(child, job) if job["signal"] else os.waitpid(child, 0)[1]
        print(json.dumps({"code": os.waitstatus_to_exitcode(status), "seconds": time.monotonic() - begun}), flush=True)
    os._exit(0)  # nothing is left to tidy up, and taking torch apart takes seconds


if __name__ == "__main__":
    main()
