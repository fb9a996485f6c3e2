"""`carm demo`: what a store behind a small memory does for three methods that learn class after class.

Handwritten digits arrive in five tasks of two classes. A small net trains on each task in turn and never sees it again;
of earlier tasks it can rehearse only what the memory holds. Each method is run three times over: with the classic
memory, a few samples in RAM (Original), and with a store behind it from which half (CarM-50) or all (CarM-100) of the
samples that were just rehearsed are replaced.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carm.lab.config import Config
from carm.lab.paper.cases import SWAPS
from carm.lab.presets import preset
from carm.lab.sweep import sweep
from carm.memory.errors import CarmError

if TYPE_CHECKING:
    from rich.console import Console

METHODS = ("er", "gdumb", "der++")
SETTINGS = ("Original", "CarM-50", "CarM-100")


def configurations(*, em: int, seeds: int, methods: Sequence[str]) -> list[Config]:
    """Every method in every setting with every seed; `em` samples in RAM."""
    if not 1 <= em <= 1000:
        raise ValueError(f"em={em}: must be from 1 to 1000; the digits are about 1400 samples to train on")
    if seeds < 1:
        raise ValueError(f"seeds={seeds}: must be at least 1")
    bases = [preset(method, "digits").replace(em=em) for method in methods]
    return [
        base.replace(seed=seed, **SWAPS[setting]) for base in bases for setting in SETTINGS for seed in range(seeds)
    ]


def run(configs: Sequence[Config], *, jobs: int, console: Console | None = None) -> list[dict[str, Any]]:
    """The metrics of these runs, which are kept nowhere."""
    try:
        import sklearn  # noqa: F401
    except ImportError as error:
        raise CarmError("the demo takes its digits from scikit-learn: pip install 'carousel-memory[demo]'") from error
    with tempfile.TemporaryDirectory(prefix="carm-demo-") as directory:
        results = sweep(configs, Path(directory), jobs=jobs, console=console)
    if results.failures:
        raise CarmError(f"{len(results.failures)} runs failed, the first with: {next(iter(results.failures.values()))}")
    return [results[config.key] for config in configs]
