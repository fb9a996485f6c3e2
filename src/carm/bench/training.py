"""What a training loop notices of the memory: the same loop with storage and without, in turns.

Both loops draw, train and give feedback with the same model on the same new samples; only `storage=` differs. They run
in one process in blocks of steps, in random order, so that whatever slows down the machine slows down both. A block
begins with a few steps that are not timed: they fill the worker's queue, so that as much work in the background enters
the timed part as leaves it, and bring the loop's own data into the processor's caches. What is then still under way is
waited for after the clock has stopped.

All of it runs in a fresh process, whose number of threads and OpenMP settings are known.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from carm.bench.command import in_fresh_process
from carm.bench.report import Row, Target, amount, compare
from carm.bench.sizes import Sizes
from carm.bench.timing import cpu_seconds
from carm.bench.workspace import CLASSES, SMALL, Workspace, samples
from carm.memory.gate import Entropy
from carm.memory.memory import Memory
from carm.memory.store import Store
from carm.nets.allocator import keep_freed_memory

_NEW = _OLD = 32  # samples a step
_SLOTS = 2_000
_TASK = 1_024
_THROTTLE = "2MB/s,5ms"
_FEWEST = 5  # rounds
_WAITING = (
    "with several torch threads OMP_WAIT_POLICY=PASSIVE is set, as the documentation advises; spinning: it is not set"
)
WALL, CPU = Target("<=", 1.03), Target("<=", 1.05)


@dataclass(frozen=True)
class Loop:
    """One side: how its memory is set up."""

    swap: str | None  # None: no storage
    engine: str = "auto"
    ratio: float | str = 1.0
    throttle: str | None = None
    full: bool = False
    """Whether storage may hold no more than it has: every new sample takes the place of another."""


def small_cnn(width: int) -> nn.Module:
    """Four convolutions: about the smallest model that anyone trains on such images, so the memory's share is large."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in (width, 2 * width, 4 * width, 8 * width):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.MaxPool2d(2)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * inputs, CLASSES))


class Trainer:
    """A model, a memory, and the steps that join them."""

    def __init__(self, memory: Memory, new: dict[str, Tensor], width: int, *, online: bool) -> None:
        torch.manual_seed(0)
        self.memory, self.online = memory, online
        self.model = small_cnn(width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.x, self.y = new["x"], new["y"]
        self.at = 0

    def step(self) -> None:
        x, y = self.x[self.at : self.at + _NEW], self.y[self.at : self.at + _NEW]
        self.at = (self.at + _NEW) % (len(self.x) - _NEW + 1)
        old = self.memory.draw(_OLD)
        logits = self.model(torch.cat((x, old.x)).float().div_(255))
        loss = nn.functional.cross_entropy(logits, torch.cat((y, old.y)))
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.memory.feedback(old, logits.detach()[_NEW:])
        if self.online:
            self.memory.add(x, y)

    def block(self, steps: int, lead_in: int) -> tuple[float, float]:
        """Wall-clock and processor seconds of `steps` steps."""
        for _ in range(lead_in):
            self.step()
        cpu, wall = cpu_seconds(), time.perf_counter()
        for _ in range(steps):
            self.step()
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        self.memory.flush()
        return wall, cpu


@dataclass(frozen=True)
class Timings:
    """Seconds per step of one side, round by round, and what its memory says."""

    wall: list[float]
    cpu: list[float]
    swapped_per_step: float
    stored_task: tuple[float, float] | None = None  # seconds: `add` returned, all is on the device


def _fill(directory: Path, count: int) -> None:
    """Stored samples to swap with, written at full speed whatever the memory is like that opens them."""
    rng = np.random.default_rng(5)
    with Store(directory, schema=SMALL) as store:
        for at in range(0, count, 2048):
            store.append(samples(SMALL, min(2048, count - at), rng))


def _memory(directory: Path, loop: Loop, count: int) -> Memory:
    if loop.swap is None:
        memory = Memory(slots=_SLOTS, storage=None)
        rng = np.random.default_rng(5)
        for at in range(0, count, 2048):
            part = samples(SMALL, min(2048, count - at), rng)
            memory.add(part["x"], part["y"])
        return memory
    _fill(directory, count)
    gate = Entropy(loop.ratio)
    return Memory(
        slots=_SLOTS,
        storage=directory,
        storage_capacity=count if loop.full else None,
        gate=gate,
        swap=loop.swap,
        engine=loop.engine,
        throttle=loop.throttle,
    )


def run(
    directory: Path, loops: dict[str, Loop], sizes: Sizes, threads: int, online: bool, rounds: int
) -> dict[str, Timings]:
    """Train all loops in turns; called in a fresh process."""
    torch.set_num_threads(threads)
    keep_freed_memory()  # as `carm run` does
    fresh = samples(SMALL, 8_192 if online else _TASK, np.random.default_rng(6))
    new = {name: torch.from_numpy(np.array(value)) for name, value in fresh.items()}
    rng = np.random.default_rng(7)
    wall: dict[str, list[float]] = {name: [] for name in loops}
    cpu: dict[str, list[float]] = {name: [] for name in loops}
    stored: dict[str, tuple[float, float]] = {}
    with contextlib.ExitStack() as stack:
        trainers = {
            name: Trainer(
                stack.enter_context(_memory(directory / name.replace(" ", "-"), loop, sizes.prefill)),
                new,
                sizes.width,
                online=online,
            )
            for name, loop in loops.items()
        }
        for trainer in trainers.values():
            trainer.block(sizes.steps, 0)  # the first block of all sides grows buffers
        names = list(trainers)
        begun = time.perf_counter()
        for done in range(rounds):
            if done >= _FEWEST and time.perf_counter() - begun > sizes.seconds:
                break
            for i in rng.permutation(len(names)):
                seconds = trainers[names[i]].block(sizes.steps, sizes.lead_in)
                wall[names[i]].append(seconds[0] / sizes.steps)
                cpu[names[i]].append(seconds[1] / sizes.steps)
        swapped = {name: t.memory.stats()["swapped"] for name, t in trainers.items()}
        if not online:
            for name, trainer in trainers.items():
                begun = time.perf_counter()
                trainer.memory.add(new["x"], new["y"])
                returned = time.perf_counter() - begun
                trainer.memory.flush()
                stored[name] = returned, time.perf_counter() - begun
    steps = sizes.steps + len(wall[names[0]]) * (sizes.steps + sizes.lead_in)
    return {name: Timings(wall[name], cpu[name], swapped[name] / steps, stored.get(name)) for name in loops}


def _in_fresh_process(
    directory: Path,
    loops: dict[str, Loop],
    sizes: Sizes,
    *,
    threads: int,
    passive: bool,
    online: bool = True,
    rounds: int | None = None,
) -> dict[str, Timings]:
    """`run`, in a process of its own. `passive`: OpenMP threads that have nothing to do sleep instead of spinning."""
    environment = {"OMP_WAIT_POLICY": "PASSIVE"} if passive else {}
    arguments = (directory, loops, sizes, threads, online, rounds or sizes.rounds)
    return in_fresh_process(run, *arguments, environment=environment)


def _rows(
    name: str, side: str, variant: str, ours: Timings, plain: Timings, *, judged: bool = True, note: str = ""
) -> Iterator[Row]:
    measures: tuple[tuple[Literal["wall", "CPU"], list[float], list[float], Target], ...] = (
        ("wall", ours.wall, plain.wall, WALL),
        ("CPU", ours.cpu, plain.cpu, CPU),
    )
    for what, mine, theirs, target in measures:
        yield compare(
            name,
            f"{side}, {variant}: {what}",
            mine,
            theirs,
            of="cost",
            unit="ms",
            against=f"no storage; {ours.swapped_per_step:.0f} swaps a step",
            target=target if judged else None,
            note=note,
        )


def _settings(sizes: Sizes) -> list[tuple[int, bool, str]]:
    """Numbers of torch threads, whether OpenMP threads sleep when idle, and how to say it."""
    default = torch.get_num_threads()
    many = [(default, True, f"{default} threads")] if default > 1 else []
    return [*many, (1, False, "1 thread")] if sizes.one_thread or not many else many


def _train(name: str, work: Workspace, engine: str, *, wait_policies: bool = False) -> Iterator[Row]:
    loops = {"plain": Loop(None), "thread": Loop("thread", engine), "process": Loop("process", engine)}
    settings = _settings(work.sizes)
    if wait_policies and settings[0][0] > 1:
        settings.append((settings[0][0], False, f"{settings[0][0]} threads, spinning"))
    for threads, passive, variant in settings:
        folder = f"{name}-{threads}-{passive}"
        measured = _in_fresh_process(work.directory / folder, loops, work.sizes, threads=threads, passive=passive)
        work.discard(folder)
        for side in ("thread", "process"):
            judged = passive or threads == 1
            yield from _rows(name, side, variant, measured[side], measured["plain"], judged=judged, note=_WAITING)


def warm(work: Workspace) -> Iterator[Row]:
    """`train-warm`: every old sample that was used is swapped, storage in the page cache; each step stores its new
    samples.
    """
    yield from _train("train-warm", work, "mapped", wait_policies=work.sizes.wait_policies)


def cold(work: Workspace) -> Iterator[Row]:
    """`train-cold`: the same, storage read from the device."""
    yield from _train("train-cold", work, "aio")


def full(work: Workspace) -> Iterator[Row]:
    """`train-full`: storage that may hold no more, as on a device that has run for a while; each new sample takes the
    place of another, somewhere in the file."""
    loops = {"plain": Loop(None)} | {
        f"thread, {cache}": Loop("thread", engine, full=True)
        for cache, engine in (("page cache warm", "mapped"), ("from the device", "aio"))
    }
    for threads, passive, variant in _settings(work.sizes):
        folder = f"train-full-{threads}"
        measured = _in_fresh_process(work.directory / folder, loops, work.sizes, threads=threads, passive=passive)
        work.discard(folder)
        for side in loops:
            if side != "plain":
                yield from _rows("train-full", side, variant, measured[side], measured["plain"], note=_WAITING)


def throttled(work: Workspace) -> Iterator[Row]:
    """`train-throttled`: storage as slow as an SD card's bad days; the gate asks for no more than it gives.

    Several passes over one task, whose samples go to storage once, at the end: training speed counts from receiving a
    task to having trained it, and what the device then takes to write it is the same with any memory.
    """
    name, sizes = "train-throttled", work.sizes
    note = (
        f"storage is slowed down to {_THROTTLE}. Several passes over {_TASK} new samples, which go to storage once, "
        "at the end; the steps timed draw and give feedback, but do not add"
    )
    for threads, passive, variant in _settings(sizes):
        loops = {"plain": Loop(None), "auto": Loop("thread", "aio", "auto", _THROTTLE)}
        folder = f"{name}-{threads}"
        measured = _in_fresh_process(
            work.directory / folder, loops, sizes, threads=threads, passive=passive, online=False
        )
        work.discard(folder)
        yield from _rows(name, "thread, ratio auto", variant, measured["auto"], measured["plain"], note=note)
        stored = measured["auto"].stored_task
        assert stored is not None
        yield amount(
            name,
            f"thread, {variant}: add of the task",
            [stored[0]],
            unit="ms",
            against=f"on the device after {stored[1]:.2f} s",
        )
    threads, passive, variant = _settings(sizes)[0]
    loops = {"plain": Loop(None), "sync": Loop("sync", "aio", 1.0, _THROTTLE)}
    measured = _in_fresh_process(
        work.directory / f"{name}-sync", loops, sizes, threads=threads, passive=passive, online=False, rounds=_FEWEST
    )
    work.discard(f"{name}-sync")
    yield from _rows(name, "sync, ratio 1.0", variant, measured["sync"], measured["plain"], judged=False, note=note)
