"""Where the time of a training run goes.

The share of forward, backward and optimizer says what is left to gain around the net. The clocks cannot tell what the
swaps in the background take from the net's own cores; therefore the net's step is also timed alone, in turns with the
whole loop.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from carm.bench.net_loop import AUGMENTATION, BACKWARD, FEEDBACK, FORWARD, READING, Loop
from carm.bench.net_sizes import Setting
from carm.bench.report import Row, Target, compare
from carm.data import Stream, load, split_by_class
from carm.lab.config import Config
from carm.lab.presets import preset
from carm.nets.threads import torch_threads

SHARE = Target(">=", 0.9)
_BLOCK = 4  # steps of the whole loop, then as many of the net alone
_AROUND = (AUGMENTATION, READING, FEEDBACK)


@dataclass(frozen=True)
class Case:
    """One loop: its settings, the shape of its images, and whether its share is judged."""

    config: Config
    shape: tuple[int, int, int]
    target: Target | None = None


def _cases() -> dict[str, Case]:
    carm_100: dict[str, Any] = {"swap": "async", "ratio": 1.0}
    paper = preset("er", "cifar-100", "full").replace(**carm_100)
    small = preset("er", "cifar-100", "laptop").replace(**carm_100)
    digits = preset("er", "mnist", "laptop").replace(**carm_100)
    return {
        "resnet32": Case(paper, (3, 32, 32), SHARE),
        "cnn": Case(small, (3, 32, 32)),
        "mlp": Case(digits, (1, 28, 28)),
    }


def make_stream(case: Case, data: Path | None) -> tuple[Stream, str]:
    """The case's data as a stream, and what must be said about it."""
    config = case.config
    try:
        source, note = load(config.data, data), ""
    except FileNotFoundError:
        classes = 100 if config.data == "cifar-100" else 10
        each = config.per_class or 500
        source = load("synthetic", classes=classes, samples=each, test_samples=1, shape=case.shape)
        note = f"{config.data} was not found: made-up images of the same size and number take its place"
    stream = split_by_class(
        source, tasks=config.tasks, order="natural", samples_per_class=config.per_class or None, seed=config.seed
    )
    return stream, note


def _measure(loop: Loop, steps: int, warm_up: int) -> dict[str, list[float]]:
    """Seconds of every part in every step, and of the net alone."""
    alone = loop.alone()
    for _ in range(warm_up):
        loop.step()
        alone.step()
    out: dict[str, list[float]] = defaultdict(list)
    swapped = loop.memory.stats()["swapped"]
    for at in range(0, steps, _BLOCK):
        count = min(_BLOCK, steps - at)
        for _ in range(count):
            parts = loop.step()
            net = sum(parts[name] for name in (FORWARD, BACKWARD))
            around = {name: parts.get(name, 0.0) for name in _AROUND}
            other = parts["whole"] - net - sum(around.values())
            for name, seconds in {"net": net, "whole": parts["whole"], "other": other, **around}.items():
                out[name].append(seconds)
        loop.memory.flush()  # swaps still under way would slow down the other side
        out["alone"] += [alone.step() for _ in range(count)]
    out["swaps"] = [(loop.memory.stats()["swapped"] - swapped) / steps]
    return out


def profile(setting: Setting) -> list[Row]:
    """`profile`: the share of a training step that is spent in the net, and where the rest goes."""
    rows = []
    for name, steps in setting.sizes.steps:
        case = _cases()[name]
        stream, note = make_stream(case, setting.data)
        with torch_threads(1 if name.startswith("mlp") else 0):  # as `carm run` has it
            loop = Loop(
                case.config, stream, setting.directory / f"profile-{name}", min(setting.sizes.tasks, len(stream) - 1)
            )
            with loop.memory:
                measured = _measure(loop, steps, setting.sizes.warm_up)
        how = f"{name}, {case.config.data}, batches of {case.config.batch}"
        rows.append(
            compare(
                "profile",
                f"{how}: forward, backward, optimizer",
                measured["net"],
                measured["whole"],
                of="cost",
                unit="ms",
                against="the whole step",
                target=case.target,
                note=note,
            )
        )
        for part in (*_AROUND, "other"):
            rows.append(
                compare(
                    "profile",
                    f"{name}: {part}",
                    measured[part],
                    measured["whole"],
                    of="cost",
                    unit="ms",
                    against="the whole step",
                )
            )
        rows.append(
            compare(
                "profile",
                f"{name}: the net alone, {np.mean(measured['swaps']):.0f} swaps a step",
                measured["alone"],
                measured["whole"],
                of="cost",
                unit="ms",
                against="the whole step",
            )
        )
    return rows
