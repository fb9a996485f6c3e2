"""Many runs: in processes of their own, a few at a time, none twice.

    results = sweep([config.replace(seed=seed) for seed in range(5)], Path("runs/er"), jobs=2)
    results[config.key]["final"]["ci"]["accuracy"]
    results.failures

A run lives in OUT/<key>, the key of its configuration: asked for again it is not run again, and interrupted it goes on
from its checkpoint. A run that fails is reported at the end, and does not keep the others from finishing.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carm.lab.config import Config

if TYPE_CHECKING:
    from rich.console import Console

_EVERY = 30.0  # seconds between checkpoints
_GRACE = 15.0  # seconds that an interrupted run may take to stop


@dataclass(frozen=True)
class Job:
    """A run and the conditions it is made under: `cores` and `memory` (bytes) limit its process; 0: no limit."""

    config: Config
    cores: int = 0
    memory: int = 0

    @property
    def key(self) -> str:
        """The key of the configuration, and of the conditions if there are any."""
        limits = [f"{name}{value}" for name, value in (("c", self.cores), ("m", self.memory >> 20)) if value]
        return "-".join([self.config.key, *limits])

    @property
    def confined(self) -> bool:
        return bool(self.cores or self.memory)

    @property
    def title(self) -> str:
        c = self.config
        return f"{c.method} {c.data} {c.setting} em {c.em} seed {c.seed}"


class Results(dict[str, dict[str, Any]]):
    """The metrics of every run that was finished, by key; `failures` has the errors of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, str] = {}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the runs have been stopped, and can be gone on with."""


def finished(job: Job, out: Path) -> dict[str, Any] | None:
    """The metrics of a run that was finished before, with what its process says of itself under "worker"."""
    try:
        metrics: dict[str, Any] = json.loads((out / job.key / "metrics.json").read_text())
    except FileNotFoundError:
        return None
    try:
        metrics["worker"] = json.loads((out / job.key / "worker.json").read_text())
    except (FileNotFoundError, ValueError):
        metrics["worker"] = {}
    return metrics


def sweep(
    configs: Iterable[Config | Job], out: Path, *, jobs: int = 1, console: Console | None = None, threads: int = 0
) -> Results:
    """Carry out these runs below `out`, `jobs` at a time, and return the metrics of all.

    threads     torch threads of each run; 0: the cores, divided among the runs, but one for the smallest nets
    console     where progress is shown; on something that is not a terminal, a line per finished run
    """
    from carm.lab.progress import Progress

    if jobs < 1:
        raise ValueError(f"jobs={jobs}: must be at least 1")
    wanted = {job.key: job for job in (c if isinstance(c, Job) else Job(c) for c in configs)}
    results = Results()
    waiting: list[Job] = []
    for key, job in wanted.items():
        metrics = finished(job, out)
        if metrics is None:
            waiting.append(job)
        else:
            results[key] = metrics
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool = _Pool(out, threads, max(1, cores // jobs))
    with Progress(total=len(wanted), cached=len(results), console=console) as progress:
        try:
            while waiting or pool.busy:
                while waiting and len(pool.busy) < jobs:
                    progress.begin(waiting[0])
                    pool.start(waiting.pop(0))
                for job, message in pool.messages():
                    if "moment" in message:
                        progress.moment(job, message["moment"])
                        continue
                    metrics = finished(job, out)
                    if metrics is not None:
                        results[job.key] = metrics
                    else:
                        results.failures[job.key] = message.get("error", "it left no metrics")
                    progress.end(job, metrics, results.failures.get(job.key))
        except KeyboardInterrupt:
            left = len(waiting) + len(pool.busy)
            raise Interrupted(
                f"stopped with {left} of {len(wanted)} runs to go; the same command goes on where it stopped "
                f"(the runs are in {out})"
            ) from None
        finally:
            pool.stop()
    return results


@dataclass
class _Worker:
    process: subprocess.Popen[str]
    job: Job | None = None


class _Pool:
    """The processes, and what they say. A process that has done a run takes the next one, except after a failure and
    for runs under conditions of their own."""

    def __init__(self, out: Path, threads: int, share: int) -> None:
        self.out, self.threads, self.most = out, threads, threads or share
        self.workers: list[_Worker] = []
        self._said: queue.Queue[tuple[_Worker, dict[str, Any]]] = queue.Queue()

    @property
    def busy(self) -> list[_Worker]:
        return [worker for worker in self.workers if worker.job is not None]

    def start(self, job: Job) -> None:
        directory = self.out / job.key
        directory.mkdir(parents=True, exist_ok=True)
        most = min(self.most, job.cores or self.most)
        threads = 1 if job.config.flat and not self.threads else most
        idle = [worker for worker in self.workers if worker.job is None and worker.process.poll() is None]
        worker = idle[0] if idle and not job.confined else self._new(most)
        worker.job = job
        order = {
            "config": job.config.replace(threads=threads).as_dict(),
            "out": str(directory),
            "every": _EVERY,
            "cores": job.cores,
            "memory": job.memory,
        }
        assert worker.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already; the listener tells why
            worker.process.stdin.write(json.dumps(order) + "\n")
            worker.process.stdin.flush()

    def _new(self, threads: int) -> _Worker:
        self.out.mkdir(parents=True, exist_ok=True)
        with (self.out / "workers.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "carm.lab.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": str(threads)},
                start_new_session=True,  # Ctrl-C is for us; we pass it on
            )
        worker = _Worker(process)
        self.workers.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            with contextlib.suppress(ValueError):  # something that a library printed
                self._said.put((worker, json.loads(line)))
        worker.process.stdout.close()
        self._said.put((worker, {"ended": worker.process.wait()}))

    def messages(self, timeout: float = 0.25) -> list[tuple[Job, dict[str, Any]]]:
        """What was said since about runs: how they go, and {"done"} or {"error"}. Waits a moment if nothing was."""
        said: list[tuple[_Worker, dict[str, Any]]] = []
        with contextlib.suppress(queue.Empty):
            said.append(self._said.get(timeout=timeout))
            while True:
                said.append(self._said.get_nowait())
        told = []
        for worker, message in said:
            job = worker.job
            if "ended" in message:
                self._retire(worker)
                if job is None:
                    continue
                message = {"error": _reason(message["ended"], self.out / job.key / "log.txt")}
            if job is None:
                continue
            if "error" in message:
                with (self.out / job.key / "log.txt").open("a") as log:
                    log.write(message.get("traceback", ""))
            if "moment" not in message:
                worker.job = None
                if job.confined or "error" in message:
                    self._retire(worker)
            told.append((job, message))
        return told

    def _retire(self, worker: _Worker) -> None:
        if worker in self.workers:
            self.workers.remove(worker)
        if worker.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                worker.process.stdin.close()

    def stop(self) -> None:
        """Interrupt every run and wait until it has let go of its store; let idle processes go."""
        workers, self.workers = self.workers, []
        for worker in workers:
            if worker.job is not None and worker.process.poll() is None:
                worker.process.send_signal(signal.SIGINT)
            self._retire(worker)
        end = time.monotonic() + _GRACE
        for worker in workers:
            try:
                worker.process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


def _reason(code: int, log: Path) -> str:
    """Why a process ended without saying: its signal, and the last line that it left."""
    how = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return f"{how}: {lines[-1].strip()}" if lines else how
