"""What an experiment runs: cases, each a configuration that is run with several seeds, in blocks of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from carm.lab.config import Config
from carm.lab.paper.numbers import METHODS
from carm.lab.presets import preset
from carm.lab.sweep import Job

_CIFAR = {m: "cifar-100" if m in ("er", "icarl", "tiny-er", "bic") else "cifar-10" for m in METHODS}
_IMAGENET = {
    "er": "imagenet-100",
    "icarl": "imagenet-100",
    "tiny-er": "mini-imagenet",
    "bic": "imagenet-100",
    "gdumb": "tiny-imagenet",
    "der++": "tiny-imagenet",
    "rm": "tiny-imagenet",
}
BLOCKS: dict[str, dict[str, dict[str, str]]] = {
    "full": {"cifar": _CIFAR, "imagenet": _IMAGENET, "imagenet-1000": dict.fromkeys(METHODS, "imagenet-1000")},
    "laptop": {"mnist": dict.fromkeys(METHODS, "mnist"), "cifar": _CIFAR},
    "smoke": {"digits": dict.fromkeys(METHODS, "digits")},
}
"""The blocks of a scale: which data set each method is run on."""
SWAPS: dict[str, dict[str, Any]] = {
    "Original": {"swap": "none", "ratio": 1.0},
    **{f"CarM-{n}": {"swap": "async", "ratio": n / 100} for n in (20, 50, 80, 100)},
}
"""The settings, as changes of a configuration."""
EVERYTHING = "everything in RAM"
"""Where a case stands whose memory forgets nothing: what swapping tries to come near to."""


@dataclass(frozen=True)
class Case:
    """A configuration, whose seed is still open, and its place: `block` of the table, `setting`, and what else varies.

    `x` is what varies as a number, for figures. `cores` and `memory` are limits on the process.
    """

    block: str
    setting: str
    config: Config
    at: str = ""
    x: float | None = None
    cores: int = 0
    memory: int = 0
    measure: str = ""  # empty: the paper's for this method and data

    @property
    def method(self) -> str:
        return self.config.method

    @property
    def metric(self) -> str:
        return self.measure or metric(self.method, self.config.data)

    @property
    def place(self) -> tuple[str, str, str, str]:
        return (self.block, self.method, self.setting, self.at)

    def job(self, seed: int, root: str = "") -> Job:
        return Job(self.config.replace(seed=seed, root=root), cores=self.cores, memory=self.memory)


@dataclass(frozen=True)
class Plan:
    """What was asked for: the scale, and which blocks and methods of it (empty: those of the experiment), and where
    torch computes."""

    scale: str = "laptop"
    blocks: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    device: str = "cpu"

    def chosen(self, default: Sequence[str] | None = None) -> dict[str, dict[str, str]]:
        """The blocks with their data sets; of all methods, or of those asked for."""
        known = BLOCKS[self.scale]
        names = self.blocks or tuple(default if default is not None else known)
        return {b: known[b] for b in known if b in names}

    def some(self, smoke: Sequence[str], others: Sequence[str] = METHODS) -> tuple[str, ...]:
        """The methods: those asked for; otherwise the experiment's, of which a smoke test takes only a few."""
        return self.methods or tuple(smoke if self.scale == "smoke" else others)

    def base(self, method: str, data: str) -> Config:
        return preset(method, data, self.scale).replace(device=self.device)


def metric(method: str, data: str) -> str:
    """The paper's measure: task-incremental for TinyER, and for GDumb on ImageNet; top-5 for those who reported it."""
    if method == "tiny-er" or (method == "gdumb" and "imagenet" in data):
        return "ti"
    return "top5" if method in ("er", "icarl", "bic") and data in ("imagenet-100", "imagenet-1000") else "ci"


def settings(
    plan: Plan, methods: Sequence[str], names: Sequence[str], *, blocks: Sequence[str] | None = None, **changes: Any
) -> Iterator[Case]:
    """Every method in every setting, in every block."""
    for block, data in plan.chosen(blocks).items():
        for method in methods:
            base = plan.base(method, data[method]).replace(**changes)
            for name in names:
                yield Case(block, name, base.replace(**SWAPS[name]))
