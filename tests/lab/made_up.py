"""Metrics as a run writes them, made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from carm.lab import Config
from carm.lab.metrics import forgetting


def metrics(
    *,
    curve: tuple[float | None, ...] = (99.0, 80.0, 70.0),
    classes: int = 6,
    swapped: int = 0,
    seconds: float = 2.0,
    skipped: dict[str, str] | None = None,
    **config: Any,
) -> dict[str, Any]:
    """A run whose accuracy on every task is that on all; `config` are entries of its configuration."""
    tasks = len(curve)
    made = Config(**({"swap": "none"} | config), tasks=tasks)
    per = classes // tasks
    matrix = [[value] * (t + 1) for t, value in enumerate(curve)]
    known = [value for value in curve if value is not None]
    lost = forgetting([[v or 0.0 for v in row] for row in matrix])
    final = {"accuracy": curve[-1], "forgetting": lost, "average": sum(known) / len(known)}
    steps = [10 * (i + 1) for i in range(2 * tasks)]
    swapping = made.swap != "none"
    return {
        "version": 1,
        "key": made.key,
        "setting": made.setting,
        "config": made.as_dict(),
        "classes": [f"c{i}" for i in range(classes)],
        "tasks": [{"classes": list(range(per * t, per * (t + 1))), "samples": 100} for t in range(tasks)],
        "final": {"ci": final, "ti": final | {"accuracy": 98.0}, "top5": 95.0},
        "matrix": {"ci": matrix, "ti": matrix},
        "incremental": {"ci": list(curve), "ti": list(curve), "ci5": list(curve)},
        "by_class": [],
        "bundles": [{"seconds": seconds, "cpu": seconds}] * tasks,
        "seconds": seconds * tasks,
        "cpu_seconds": seconds * tasks,
        "memory": {"swapped": swapped},
        "series": {
            "step": steps,
            "loss": [1.0] * len(steps),
            "swapped": [swapped * s // steps[-1] for s in steps],
            "queue": [i % 3 if swapping else 0 for i in range(len(steps))],
            "drawn": [8 * s for s in steps],
            "thinned": [1, len(steps), steps[-1]],
        },
        "composition": [
            {
                "task": t,
                "labels": list(range(per * (t + 1))),
                "ram": [60 // (per * (t + 1))] * (per * (t + 1)),
                "storage": [50 if swapping else 0] * (per * (t + 1)),
            }
            for t in range(tasks)
        ],
        "skipped": skipped or {},
    }


def save(run: dict[str, Any], directory: Path, *, finished: bool = True) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(run["config"]))
    if finished:
        (directory / "metrics.json").write_text(json.dumps(run))
    return directory


def three_settings(**config: Any) -> list[dict[str, Any]]:
    """Nine runs: Original, CarM-50 and CarM-100, three seeds of each."""
    out = []
    for seed in range(3):
        last = 60.0 + 2 * seed
        out.append(metrics(curve=(99.0, 80.0, last), seed=seed, **config))
        out.append(metrics(curve=(99.0, 85.0, last + 10), seed=seed, swap="sync", ratio=0.5, swapped=500, **config))
        out.append(metrics(curve=(99.0, 90.0, last + 20), seed=seed, swap="sync", ratio=1.0, swapped=1000, **config))
    return out
