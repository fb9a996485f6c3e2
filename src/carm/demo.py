"""`carm demo`: what a store behind a small memory does for a model that learns class after class.

Handwritten digits arrive in five tasks of two classes. A small network trains on each task in turn and never sees it
again; of earlier tasks it can rehearse only what the memory holds. The memory has a few slots in RAM, and the settings
differ in one thing: whether what does not fit there is thrown away, or kept in a store and swapped in.

`learn` is the whole use of the library.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import carm

Task = tuple[torch.Tensor, torch.Tensor]


def learn(memory: carm.Memory, model: nn.Module, tasks: Sequence[Task], *, passes: int) -> None:
    """Train `model` on the tasks one after the other, rehearsing what `memory` holds."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_function = nn.CrossEntropyLoss()
    for task in tasks:
        # Mini-batches of 16 new samples and 16 old ones, side by side in `batch.x` and `batch.y`.
        for batch in memory.bundle(task, batch_size=16, old_per_batch=16, passes=passes):
            logits = model(batch.x)
            memory.feedback(batch, logits)  # the gate sees how the old ones did, and orders others in their place
            loss = loss_function(logits, batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        memory.add(*task)  # the task is over: some of its samples stay in RAM, all of them go to the store
        memory.flush()  # wait until they are there


@dataclass(frozen=True)
class Setting:
    """A memory to compare. `ratio` is the share of the rehearsed samples that is swapped; None: no store."""

    name: str
    slots: int
    ratio: float | None = None

    def memory(self, directory: str, seed: int) -> carm.Memory:
        select = carm.GreedyBalanced()  # as many samples of each class in RAM as of every other
        if self.ratio is None:
            return carm.Memory(self.slots, select=select, seed=seed)
        return carm.Memory(self.slots, storage=directory, select=select, gate=carm.Entropy(self.ratio), seed=seed)


@dataclass(frozen=True)
class Run:
    """What came of one setting with one seed."""

    accuracy: float  # on test digits of all ten classes, after the last task, in percent
    seconds: float
    stats: dict[str, Any]


def settings(slots: int, samples: int) -> list[Setting]:
    return [
        Setting(f"RAM only, {slots} slots", slots),
        Setting(f"CarM-50, {slots} slots + store", slots, 0.5),
        Setting(f"CarM-100, {slots} slots + store", slots, 1.0),
        Setting(f"RAM only, all {samples} samples", samples),
    ]


def run(setting: Setting, seed: int, *, passes: int = 10) -> Run:
    """Train and test one setting. The split, the classes' order and the network's start depend on the seed alone."""
    tasks, (x, y) = digits(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    with tempfile.TemporaryDirectory(prefix="carm-demo-") as directory, setting.memory(directory, seed) as memory:
        begun = time.perf_counter()
        learn(memory, model, tasks, passes=passes)
        seconds = time.perf_counter() - begun
        stats = memory.stats()
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).double().mean().item() * 100
    return Run(accuracy, seconds, stats)


def digits(seed: int) -> tuple[list[Task], Task]:
    """Five tasks of two classes each, and test samples of all classes. An image of 8 x 8 pixels is a row of 64."""
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise carm.CarmError(
            "the demo takes its digits from scikit-learn: pip install 'carousel-memory[demo]'"
        ) from error
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.3, stratify=y, random_state=seed)
    classes = np.random.default_rng(seed).permutation(10).reshape(5, 2)
    tasks = [_task(x[chosen], y[chosen]) for chosen in (np.isin(y, pair) for pair in classes)]
    return tasks, _task(x_test, y_test)


def _task(x: Any, y: Any) -> Task:
    return torch.from_numpy(x), torch.from_numpy(y)


def main(*, slots: int = 30, seeds: int = 3, passes: int = 10) -> list[tuple[Setting, list[Run]]]:
    """Run every setting with every seed, and print what came of it."""
    from rich.console import Console
    from rich.progress import track

    if not 1 <= slots <= 1000:
        raise ValueError(f"slots={slots}: must be from 1 to 1000; the digits are 1257 samples to train on")
    if seeds < 1:
        raise ValueError(f"seeds={seeds}: must be at least 1")
    out, bar = Console(highlight=False), Console(stderr=True)
    tasks, (_, y_test) = digits(0)
    samples = sum(len(y) for _, y in tasks)
    out.print(
        f"Digits in 5 tasks of 2 classes: {samples} samples to train on, {len(y_test)} to test. An MLP, {passes} "
        f"passes over each task, 16 new and 16 old samples per step. Means of {seeds} seed{'s' if seeds > 1 else ''}:"
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the network is too small for more, and they would take the swap worker's core
    results: list[tuple[Setting, list[Run]]] = []
    try:
        chosen = settings(slots, samples)
        run(chosen[0], 0, passes=1)  # torch loads parts of itself when they are first used: in nobody's time
        todo = [(setting, seed) for setting in chosen for seed in range(seeds)]
        for setting, seed in track(todo, "training", console=bar, transient=True, disable=not bar.is_terminal):
            if seed == 0:
                results.append((setting, []))
            results[-1][1].append(run(setting, seed, passes=passes))
    finally:
        torch.set_num_threads(threads)
    out.print("", _table(results), sep="\n")
    out.print(_explanation(results))
    return results


def _table(results: list[tuple[Setting, list[Run]]]) -> Any:
    from rich.table import Table

    table = Table("memory", "accuracy %", "seconds", "drawn", "picked", "swapped", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for setting, runs in results:
        accuracies = [r.accuracy for r in runs]
        spread = f" ± {statistics.stdev(accuracies):.1f}" if len(runs) > 1 else ""
        counted = [f"{statistics.mean(r.stats[name] for r in runs):,.0f}" for name in ("drawn", "picked", "swapped")]
        table.add_row(
            setting.name,
            f"{statistics.mean(accuracies):.1f}{spread}",
            f"{statistics.mean(r.seconds for r in runs):.2f}",
            *counted,
        )
    return table


def _explanation(results: list[tuple[Setting, list[Run]]]) -> str:
    lost: dict[str, float] = {}
    for _, runs in results:
        for r in runs:
            for reason, count in r.stats["dropped"].items():
                lost[reason] = lost.get(reason, 0) + count
    reasons = ", ".join(f"{reason} {count:,.0f}" for reason, count in lost.items() if count)
    return (
        "\nAccuracy: on all ten digits, after the last task; ± is the standard deviation over the seeds, which set the "
        "split, the order of the classes and the network's start. Drawn: old samples that were trained on; picked: "
        "those of them that the gate let go; swapped: those that were replaced from the store. "
        f"Why others were not, in all runs together: {reasons or '-'}. Swaps happen beside the training, so the "
        "numbers change a little from run to run. A step of this network is far shorter than that of a usual one, and "
        "the seconds show the memory's own work accordingly; `carm bench memory` measures that."
    )
