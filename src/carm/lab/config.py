"""The configuration of a run: one object that is the file, the command line, and the record of the run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from carm import methods, nets
from carm.data import registry
from carm.methods.training import SCHEDULES, Schedule, Training

Swap = Literal["none", "async", "sync", "thread", "process"]
GateName = Literal["entropy", "random", "dynamic"]
WHERE = ("root", "device", "threads", "compile")
"""Entries that say where and on what a run is computed, and not what: they may change when it is resumed."""


def _option(default: Any, text: str, *, metavar: str | None = None) -> Any:
    return field(default=default, metadata={"help": text, "metavar": metavar})


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides what a run does. Every field is a flag of `carm run`, and an entry of config.json."""

    method: str = _option("er", "method: " + ", ".join(methods.names()) + ", or FILE.py:Class")
    options: Mapping[str, Any] = field(default_factory=dict, metadata={"help": "the method's own options"})

    # data and stream
    data: str = _option("digits", "data set; `carm run --help` lists them", metavar="NAME")
    path: str = _option("", "where below the data folder a `folder` or `npz` data set lies")
    size: int = _option(0, "bring photographs to squares of so many pixels; 0: as the recipe does", metavar="PIXELS")
    tasks: int = _option(5, "number of tasks that the classes are divided into", metavar="N")
    order: str = _option("paper", "order of the classes: paper, natural, icarl, shuffled (by the seed)")
    blurry: float = _option(0.0, "share of every class that comes with other tasks", metavar="SHARE")
    per_class: int = _option(0, "training samples per class; 0: all", metavar="N")
    test_per_class: int = _option(0, "test samples per class; 0: all", metavar="N")

    # net
    net: str = _option("mlp", "net: cnn, mlp, mlp400, resnet32, resnet18, resnet18-reduced, densenet100, ...")
    width: int = _option(0, "width of a cnn or resnet18; 0: its own", metavar="N")
    head: Literal["", "growing", "fixed"] = _option("", "growing or fixed head; empty: the method's own")

    # memory
    em: int = _option(200, "episodic memory: samples in RAM", metavar="N")
    swap: Swap = _option("async", "none (the Original: RAM only), async, sync, thread or process")
    ratio: float | Literal["auto"] = _option(1.0, "share of the rehearsed samples that is swapped, or auto")
    gate: GateName = _option("entropy", "what may leave RAM: entropy, random or dynamic")
    storage: int = _option(0, "capacity of storage in samples; 0: no limit", metavar="N")
    throttle: str = _option("", 'make storage as slow as, for instance, "20MB/s,1ms"')

    # training
    level: Literal["", "task", "batch"] = _option("", "when the memory takes samples in; empty: the method's own")
    passes: int = _option(1, "passes over each task", metavar="N")
    batch: int = _option(10, "mini-batch; with --old-batch, new samples in it", metavar="N")
    old_batch: int = _option(
        0,
        "old samples in every mini-batch; 0: old and new shuffled together, or at the level batch as many as new",
        metavar="N",
    )
    lr: float = _option(0.1, "learning rate")
    momentum: float = _option(0.0, "momentum of SGD")
    weight_decay: float = _option(0.0, "weight decay")
    schedule: Schedule = _option("constant", f"learning rate over the passes: {', '.join(SCHEDULES)}")
    milestones: tuple[float, ...] = _option((), "where it steps, as shares of the passes", metavar="SHARE")
    gamma: float = _option(0.1, "factor at each milestone")
    warmup: int = _option(0, "passes at a tenth of the learning rate, before the schedule", metavar="N")
    cutmix: float = _option(0.0, "probability of CutMix (GDumb, RM)")
    clip: float = _option(0.0, "largest norm of the gradient; 0: any")
    augment: Literal["standard", "none", "crop", "strong"] = _option(
        "standard",
        "training images: standard (the data set's recipe), none, crop (moved by up to 4 pixels), strong (RandAugment "
        "added)",
    )

    # the run
    seed: int = _option(0, "of everything random")
    device: str = _option("cpu", "cpu, cuda, cuda:1, ...")
    threads: int = _option(0, "torch threads; 0: torch's own choice", metavar="N")
    compile: Literal["no", "yes"] = _option(
        "no", "yes: the net through torch.compile, which pays in long runs of large nets and needs a C++ compiler"
    )
    root: str = _option("", "data folder; empty: the one that CARM_DATA names", metavar="DIR")

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", methods.canonical(self.method))
        if isinstance(self.data, str):
            with contextlib.suppress(ValueError):  # another name may be that of a stream of your own
                object.__setattr__(self, "data", registry.canonical(self.data))
        for name, kind in field_types().items():
            value = getattr(self, name)
            if not methods.fits(value, kind):
                raise ValueError(f"{name}={value!r}: must be {methods.describe(kind)}")
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if not all(methods.fits(share, float) for share in self.milestones):
            raise ValueError(f"milestones={self.milestones}: must be numbers")
        object.__setattr__(self, "options", dict(sorted(self.options.items())))
        method = methods.make(self.method, **self.options)  # complains about what is wrong in them
        if self.level and self.level not in method.levels:
            raise ValueError(f"level={self.level!r}: {self.method} works at the level {', '.join(method.levels)} only")
        for name in method.ignores:
            if getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)}: {self.method} has no use for it; leave it at 0")
        if self.head == "growing" and method.head == "fixed":
            raise ValueError(f"head='growing': {self.method} needs a fixed head")
        if self.blurry and getattr(method, "masked", False):
            raise ValueError(
                f"blurry={self.blurry}: the loss of {self.method} is over the classes of a sample's task, and in a "
                "blurry stream every task has samples of all; give it the option masked=no, or blurry=0"
            )
        nets.check(self.net)
        for name in ("tasks", "em", "passes", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("per_class", "test_per_class", "storage", "size", "width", "threads", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be 0 or more")
        if not isinstance(self.ratio, str) and not 0 <= self.ratio <= 1:
            raise ValueError(f'ratio={self.ratio!r}: must be a number from 0 to 1, or "auto"')
        if self.swap == "none" and (self.storage or self.throttle):
            raise ValueError("storage and throttle need swapping: give swap other than 'none'")
        if self.storage and self.storage < self.em:
            raise ValueError(f"storage={self.storage} is less than em={self.em}: storage also keeps what is in RAM")
        self.training  # noqa: B018  (complains about what is wrong in it)

    @property
    def training(self) -> Training:
        return Training(**{f.name: getattr(self, f.name) for f in fields(Training)})

    @property
    def setting(self) -> str:
        """What the paper calls this: Original, CarM-50, CarM-100."""
        if self.swap == "none":
            return "Original"
        return f"CarM-{self.ratio}" if isinstance(self.ratio, str) else f"CarM-{round(100 * self.ratio)}"

    @property
    def flat(self) -> bool:
        """Whether the net is so small that a second torch thread only gets in the way."""
        return self.net.startswith("mlp")

    @property
    def key(self) -> str:
        """A name for the results of this configuration: equal for configurations that ask for the same results."""
        record = {k: v for k, v in self.as_dict().items() if k not in WHERE}
        return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16]

    # -- to and from files -------------------------------------------------------------------------------------------

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as in config.json."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        return record | {"milestones": list(self.milestones), "options": dict(self.options)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Config:
        cls._check_names(record)
        return cls(**record)

    @classmethod
    def _check_names(cls, record: Mapping[str, Any]) -> None:
        known = [f.name for f in fields(cls)]
        for name in record:
            if name not in known:
                near = get_close_matches(name, known, 1, 0.4)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise ValueError(f"a configuration has no entry {name!r}{hint} The entries are: {', '.join(known)}")

    def replace(self, **changes: Any) -> Config:
        return dataclasses.replace(self, **changes)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_dict(), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Config:
        return cls.from_dict(cls.entries(path))

    @classmethod
    def entries(cls, path: Path) -> dict[str, Any]:
        """What a file says, which may be a part of a configuration."""
        try:
            record = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is no configuration: {error}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path} is no configuration: it must hold an object with names and values")
        cls._check_names(record)
        return record

    def differences(self, other: Config) -> list[str]:
        """The entries in which two configurations differ, apart from where and on what they run."""
        mine, theirs = self.as_dict(), other.as_dict()
        apart = [k for k in mine if mine[k] != theirs[k] and k not in WHERE]
        return [f"{k}: {mine[k]!r} here, {theirs[k]!r} there" for k in apart]


@functools.cache
def field_types() -> dict[str, Any]:
    """The type of every field."""
    return typing.get_type_hints(Config)
