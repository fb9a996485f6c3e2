"""A run: a method learns a stream, task after task, and what comes of it is measured.

    metrics = run(Config(method="er", data="mnist", em=500), Path("runs/er"))

The directory then holds config.json, metrics.json, events for TensorBoard if that is installed, and the store. While it
goes on it also holds checkpoint.pt, written at the end of every pass and whenever the memory has taken a task in, from
which `resume=True` goes on; with swap="sync" or "none", to the very same result.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from carm import methods, nets
from carm.data import Decoder, EncodedSplit, Source, Stream
from carm.data.augment import Recipe
from carm.data.views import Views
from carm.lab.code import digest
from carm.lab.config import Config
from carm.lab.files import atomic, write_json
from carm.lab.metrics import Counts, History, own_classes
from carm.lab.parts import make_memory, make_recipe, make_stream, net_maker
from carm.lab.watch import Moment, Series, Watch
from carm.memory.errors import CheckpointError, StoreError
from carm.memory.interrupt import uninterrupted
from carm.methods.base import MakeNet
from carm.nets.allocator import keep_freed_memory
from carm.nets.threads import torch_threads

log = logging.getLogger("carm")
VERSION = 1


@dataclass
class Position:
    """Where in the stream a run is: `passes` of task `task` are done; `begun`: its samples are in the stream buffer."""

    task: int = 0
    passes: int = 0
    begun: bool = False


class Run:
    """One run in one directory. `stream`, `make_net` and `samples` (a Recipe) may be your own."""

    def __init__(
        self,
        config: Config,
        out: Path,
        *,
        watch: Watch | None = None,
        every: float = 0.0,
        stream: Stream | None = None,
        make_net: MakeNet | None = None,
        samples: Recipe | None = None,
    ) -> None:
        self.config, self.out, self.every = config, out, every
        check_device(config.device)
        self.watch = watch if watch is not None else Watch()
        self.stream = stream if stream is not None else make_stream(config)
        source = self.stream.source
        self.samples = samples if samples is not None else make_recipe(config, source)
        self.method = methods.make(config.method, **config.options)
        self.make_net = make_net or net_maker(config, self.method, source, self.samples)
        self.flat = make_net is None and config.flat
        self.test = _test_indices(source, config.test_per_class)
        self.history = History()
        self.series = Series()
        self.position = Position()
        self.bundles: list[dict[str, float]] = []  # of each task: seconds and CPU seconds of its training
        self.composition: list[dict[str, Any]] = []
        self._spent = (0.0, 0.0)  # on the present task before this process took over
        self._before: dict[str, str] = {}  # images that were skipped before this process took over
        self._saved = -float("inf")

    def __call__(self, *, resume: bool = False) -> dict[str, Any]:
        keep_freed_memory()
        with torch_threads(self.config.threads or (1 if self.flat else 0)), _own_chance(self.config):
            return self._carry_out(resume)

    def _carry_out(self, resume: bool) -> dict[str, Any]:
        config, source = self.config, self.stream.source
        decoder = source.train.decoder if isinstance(source.train, EncodedSplit) else Decoder()
        layout = nets.channels_last(config.net)
        views = Views(self.samples, decoder=decoder, device=config.device, seed=config.seed, channels_last=layout)
        state = self._checkpoint() if resume else None
        if state is None or state["memory"]["schema"] is None:
            shutil.rmtree(self.store, ignore_errors=True)  # the run was killed before a checkpoint that has samples
        with make_memory(config, self.method, self.store) as memory:
            self.method.start(
                memory=memory,
                make_net=self.make_net,
                views=views,
                training=config.training,
                level=config.level or None,
                seed=config.seed,
            )
            if state is not None:
                self._restore(state)
            self._learn()
            memory.flush()
            metrics = self._metrics()
        write_json(self.out / "metrics.json", metrics)
        (self.out / "checkpoint.pt").unlink(missing_ok=True)
        return metrics

    @property
    def store(self) -> Path:
        return self.out / "memory"

    def _learn(self) -> None:
        method, position, passes = self.method, self.position, self.config.passes
        with _board(self.out) as board:
            while position.task < len(self.stream):
                task = self.stream[position.task]
                begun, cpu = time.perf_counter(), time.process_time()
                if not position.begun:
                    method.begin(task)
                    position.begun = True
                    if len(method.memory) and passes > 1:
                        begun, cpu = self._save(begun, cpu)  # the memory may have taken the task in
                while position.passes < passes:
                    loss = self._pass(position.passes)
                    method.end_pass(position.passes)
                    position.passes += 1
                    if board is not None:
                        step = position.task * passes + position.passes
                        board.add_scalar("loss", loss, step)
                        board.add_scalar("swapped", method.memory.stats()["swapped"], step)
                    if position.passes < passes:
                        begun, cpu = self._save(begun, cpu)
                method.end()
                spent, spent_cpu = self._spent
                self.bundles.append(
                    {
                        "seconds": spent + time.perf_counter() - begun,
                        "cpu": spent_cpu + time.process_time() - cpu,
                    }
                )
                self._spent = (0.0, 0.0)
                self._evaluate(position.task)
                self._compose(position.task)
                if board is not None:
                    board.add_scalar("accuracy/ci", self.history.incremental["ci"][-1], position.task + 1)
                    board.add_scalar("accuracy/ti", self.history.incremental["ti"][-1], position.task + 1)
                self.position = position = Position(position.task + 1)
                if position.task < len(self.stream):
                    self._save(time.perf_counter(), time.process_time())

    def _pass(self, number: int) -> float:
        """One pass over the present task; returns the mean loss."""
        method, config, memory = self.method, self.config, self.method.memory
        total, steps = torch.zeros(()), 0
        for batch in method.batches(number):
            total = total.to(method.device) + method.learn(batch)
            steps += 1
            if self.watch.due():
                self._tell(number, float(total) / steps)
        loss = float(total) / max(steps, 1)
        if not np.isfinite(loss):
            raise ValueError(
                f"the loss is {loss} in pass {number + 1} of task {self.position.task + 1}: lr={config.lr} is too "
                "large for this method, net and data"
            )
        stats = memory.stats()
        self.series.add(steps, loss, stats["swapped"], stats["queue_depth"], stats["drawn"])
        self._tell(number + 1, loss)
        return loss

    def _tell(self, passes: int, loss: float) -> None:
        position, config = self.position, self.config
        done = (position.task + passes / config.passes) / len(self.stream)
        stats = self.method.memory.stats()
        accuracy = self.history.incremental["ci"][-1] if self.history.incremental["ci"] else None
        self.watch(
            Moment(
                done=min(done, 1.0),
                task=position.task,
                tasks=len(self.stream),
                number=passes,
                passes=config.passes,
                loss=loss,
                accuracy=accuracy,
                swapped=stats["swapped"],
                queue=stats["queue_depth"],
            )
        )

    # -- measuring ---------------------------------------------------------------------------------------------------

    def _evaluate(self, after: int) -> None:
        method, source = self.method, self.stream.source
        tasks = [task.classes for task in self.stream.tasks[: after + 1]]
        seen = method.seen
        wanted = self.test[np.isin(source.test.y[self.test], [label for task in tasks for label in task])]
        counts = Counts(len(source.classes))
        method.before_evaluation()
        for at in range(0, len(wanted), 256):
            part = source.test.fetch(wanted[at : at + 256])
            if not len(part):  # none of them can be decoded
                continue
            scores = method.scores(part.x)  # as fetched: what was decoded on the way need not be decoded again
            counts.add(scores, torch.from_numpy(part.y), own_classes(part.y, tasks, seen))
        self.history.add(counts, tasks, seen)

    def _compose(self, after: int) -> None:
        memory = self.method.memory
        memory.flush()  # what is on its way to storage counts
        counts = memory.class_counts()
        labels = sorted(counts)
        self.composition.append(
            {
                "task": after,
                "labels": labels,
                "ram": [counts[c][0] for c in labels],
                "storage": [counts[c][1] for c in labels],
            }
        )

    def _metrics(self) -> dict[str, Any]:
        stats = self.method.memory.stats()
        return {
            "version": VERSION,
            "code": digest(),
            "key": self.config.key,
            "setting": self.config.setting,
            "config": self.config.as_dict(),
            "classes": list(self.stream.source.classes),
            "tasks": [{"classes": list(t.classes), "samples": len(t)} for t in self.stream],
            "final": self.history.final(),
            **self.history.as_dict(),
            "bundles": self.bundles,
            "seconds": sum(b["seconds"] for b in self.bundles),
            "cpu_seconds": sum(b["cpu"] for b in self.bundles),
            "memory": stats,
            "series": self.series.as_dict(),
            "composition": self.composition,
            "skipped": self._skipped(),
        }

    def _skipped(self) -> dict[str, str]:
        """Images that could not be decoded, with the reason; before an interruption too."""
        splits = (self.stream.source.train, self.stream.source.test)
        now = {name: why for split in splits for name, why in getattr(split, "skipped", {}).items()}
        return dict(sorted((self._before | now).items()))

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self, begun: float, cpu: float) -> tuple[float, float]:
        """Write a checkpoint, if it is time. `begun` and `cpu` are when training began; returned as if there had been
        no checkpoint, because it is no part of training, and larger without a store than with one."""
        if time.monotonic() - self._saved < self.every:
            return begun, cpu
        now, now_cpu = time.perf_counter(), time.process_time()
        spent = (self._spent[0] + now - begun, self._spent[1] + now_cpu - cpu)
        state = {
            "version": VERSION,
            "key": self.config.key,
            "position": [self.position.task, self.position.passes, self.position.begun],
            "stream": self.stream.fingerprint,
            "method": self.method.state_dict(),
            "memory": self.method.memory.state_dict(),
            "history": self.history.as_dict(),
            "series": self.series.as_dict(),
            "bundles": self.bundles,
            "composition": self.composition,
            "spent": list(spent),
            "skipped": self._skipped(),
            "chance": _chance(self.config.device),
        }
        # torch works in C++ and makes an error of a KeyboardInterrupt that meets it in one of the file's methods
        with uninterrupted(), atomic(self.out / "checkpoint.pt") as file:
            torch.save(state, file)
        self._saved = time.monotonic()
        return begun + time.perf_counter() - now, cpu + time.process_time() - now_cpu

    def _checkpoint(self) -> dict[str, Any] | None:
        path = self.out / "checkpoint.pt"
        if not path.exists():
            return None
        try:
            with uninterrupted():
                state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        except Exception as error:  # whatever torch makes of a damaged file
            log.warning("%s cannot be read (%s): the run starts over", path, error)
            return None
        if state.get("version") != VERSION:
            raise ValueError(f"{path} has version {state.get('version')}; this program writes and reads {VERSION}")
        if state["stream"] != self.stream.fingerprint:
            raise ValueError(
                f"the data is not the same as when {self.out} was begun: the data folder must not change between"
            )
        return state

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            self.method.memory.load_state_dict(state["memory"])
        except (CheckpointError, StoreError) as error:
            raise StoreLost(str(error)) from error
        self.position = Position(*state["position"])
        task = self.stream[self.position.task] if self.position.begun else None
        self.method.load_state_dict(state["method"], task)
        self.history.load(state["history"])
        self.series.load(state["series"])
        self.bundles, self.composition = state["bundles"], state["composition"]
        self._before = state.get("skipped", {})
        self._spent = (state["spent"][0], state["spent"][1]) if self.position.begun else (0.0, 0.0)
        _set_chance(self.config.device, state.get("chance", {}))  # last: to build a net may draw, or seed, too


class StoreLost(Exception):
    """The store does not have any more what a checkpoint needs."""


def run(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    every: float = 0.0,
    keep_store: bool = True,
    **parts: Any,
) -> dict[str, Any]:
    """Carry out a run in the directory `out`, and return its metrics.

    resume      go on with what is there: from the checkpoint, or simply return the metrics if the run is finished
    every       seconds between checkpoints at least; 0: one at the end of every pass
    keep_store  False: remove the store when the run is finished
    parts       watch, stream, make_net, samples: see Run
    """
    out.mkdir(parents=True, exist_ok=True)
    with _locked(out):
        there = out / "config.json"
        finished, begun = out / "metrics.json", (out / "checkpoint.pt").exists()
        if there.exists() and (begun or finished.exists()):
            apart = config.differences(Config.load(there))
            if apart:
                raise ValueError(f"{out} is the directory of another run ({'; '.join(apart)}): choose another")
            if finished.exists():
                if resume:
                    metrics: dict[str, Any] = json.loads(finished.read_text())
                    return metrics
                raise ValueError(f"{out} holds a finished run: choose another directory, or remove it")
            if not resume:
                raise ValueError(f"{out} holds an unfinished run: go on with it by --resume {out}, or remove it")
        elif not there.exists() and (out / "memory").exists():
            raise ValueError(f"{out} holds a folder 'memory' that belongs to no run here: choose another directory")
        one = Run(config, out, every=every, **parts)  # which complains about settings that do not fit the data
        if not begun:
            with atomic(there) as file:
                file.write((json.dumps(config.as_dict(), indent=1) + "\n").encode())
        try:
            metrics = one(resume=resume)
        except StoreLost as error:
            log.warning("the store does not have what the checkpoint needs (%s): the run starts over", error)
            metrics = Run(config, out, every=every, **parts)()
        if not keep_store:
            shutil.rmtree(out / "memory", ignore_errors=True)
        return metrics


# -- around it ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Two processes cannot work on one run."""
    with (out / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{out} is in use by another process") from None
        yield


@contextlib.contextmanager
def _own_chance(config: Config) -> Iterator[None]:
    """Torch's global generators, seeded for the run and afterwards as they were before.

    Nothing in this package draws from them. Dropout in a net of the user's own does, and so do torchvision's
    transforms: with this, such runs repeat and resume like the others.
    """
    before = _chance(config.device)
    torch.default_generator.manual_seed(config.seed)
    if "cuda" in before:
        with torch.cuda.device(config.device):
            torch.cuda.manual_seed(config.seed)
    try:
        yield
    finally:
        _set_chance(config.device, before)


def _chance(device: str) -> dict[str, torch.Tensor]:
    """The state of torch's global generators that a run on this device draws from."""
    state = {"cpu": torch.get_rng_state()}
    return state | {"cuda": torch.cuda.get_rng_state(device)} if device.startswith("cuda") else state


def _set_chance(device: str, state: dict[str, torch.Tensor]) -> None:
    if "cpu" in state:
        torch.set_rng_state(state["cpu"])
    if "cuda" in state and device.startswith("cuda"):
        torch.cuda.set_rng_state(state["cuda"], device)


@contextlib.contextmanager
def _board(out: Path) -> Iterator[Any]:
    """A TensorBoard writer, if TensorBoard is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield None
        return
    board = SummaryWriter(str(out / "events"))
    try:
        yield board
    finally:
        board.close()


def check_device(name: str) -> None:
    """Complain about a device that torch cannot compute on here."""
    try:
        torch.zeros(1, device=name).add_(1)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # as torch has it, for each kind of device
        here = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={name!r} cannot be used ({reason}); there is: {', '.join(here)}") from error


def _test_indices(source: Source, per_class: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Positions of the test samples that are used: at most `per_class` of each class, the same in every run."""
    y = source.test.y
    if not per_class:
        return np.arange(len(y))
    rng = np.random.default_rng(0)
    parts = [rng.permutation(np.flatnonzero(y == label))[:per_class] for label in range(len(source.classes))]
    return np.sort(np.concatenate(parts))
