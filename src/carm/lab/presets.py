"""Settings for every method on every data set: the paper's, and smaller ones for a machine without a GPU.

`full` are the paper's tables of hyper-parameters, with each original work's schedule. `laptop` and `smoke` keep the
proportions that matter (the episodic memory is a few percent of the data and about as large as a task; old samples
are used in many passes), and shrink nets, data and passes to what two CPU cores bear: a minute or so, and a second.
"""

from __future__ import annotations

from typing import Any, Literal

from carm import methods
from carm.data.registry import canonical
from carm.lab.config import Config

Scale = Literal["full", "laptop", "smoke"]
SCALES: tuple[Scale, ...] = ("full", "laptop", "smoke")
Settings = dict[str, Any]

# -- full: the paper's -------------------------------------------------------------------------------------------------

_ICARL: Settings = {"batch": 128, "lr": 2.0, "momentum": 0.9, "weight_decay": 1e-5, "schedule": "step", "gamma": 0.2}
_ICARL_CIFAR: Settings = {**_ICARL, "net": "resnet32", "passes": 70, "milestones": (49 / 70, 63 / 70)}
_ICARL_IMAGENET: Settings = {
    **_ICARL,
    "net": "resnet18-imagenet",
    "passes": 60,
    "milestones": (20 / 60, 30 / 60, 40 / 60, 50 / 60),
}
_TINY: Settings = {"batch": 10, "old_batch": 10, "lr": 0.1, "passes": 1, "order": "shuffled"}
_BIC: Settings = {"lr": 0.1, "momentum": 0.9, "schedule": "step", "gamma": 0.1}
_BIC_IMAGENET: Settings = {
    **_BIC,
    "net": "resnet18-imagenet",
    "passes": 100,
    "batch": 256,
    "weight_decay": 1e-4,
    "milestones": (0.3, 0.6, 0.8, 0.9),
}
_GDUMB: Settings = {
    "batch": 16,
    "lr": 0.05,
    "momentum": 0.9,
    "weight_decay": 1e-6,
    "schedule": "restarts",
    "warmup": 1,
    "clip": 10.0,
}
_DER: Settings = {"batch": 32, "old_batch": 32, "lr": 0.03}
_DER_LARGE: Settings = {**_DER, "net": "resnet18", "passes": 100, "options": {"alpha": 0.1, "beta": 1.0}}

_FULL: dict[str, dict[str, Settings]] = {
    "cifar-100": {
        "er": {**_ICARL_CIFAR, "em": 2000, "tasks": 10},
        "icarl": {**_ICARL_CIFAR, "em": 2000, "tasks": 10},
        "tiny-er": {**_TINY, "net": "resnet18-reduced", "em": 300, "tasks": 20},
        "bic": {
            **_BIC,
            "net": "resnet32",
            "passes": 250,
            "batch": 128,
            "weight_decay": 2e-4,
            "milestones": (0.4, 0.6, 0.8),
            "em": 2000,
            "tasks": 10,
        },
    },
    "cifar-10": {
        "gdumb": {**_GDUMB, "net": "resnet18", "passes": 256, "em": 500, "tasks": 5, "cutmix": 0.5},
        "der++": {**_DER, "net": "resnet18", "passes": 50, "em": 500, "tasks": 5},
        "rm": {**_GDUMB, "net": "resnet18", "passes": 256, "em": 500, "tasks": 5},
    },
    "imagenet-100": {
        "er": {**_ICARL_IMAGENET, "em": 2000, "tasks": 10},
        "icarl": {**_ICARL_IMAGENET, "em": 2000, "tasks": 10},
        "bic": {**_BIC_IMAGENET, "em": 2000, "tasks": 10},
    },
    "mini-imagenet": {"tiny-er": {**_TINY, "net": "resnet18", "em": 500, "tasks": 20}},
    "tiny-imagenet": {
        "gdumb": {**_GDUMB, "net": "densenet100", "passes": 128, "em": 4500, "tasks": 10, "cutmix": 0.5},
        "der++": {**_DER_LARGE, "em": 500, "tasks": 10},
        "rm": {**_GDUMB, "net": "densenet100", "passes": 128, "em": 4500, "tasks": 10},
    },
    "imagenet-1000": {
        "er": {**_ICARL_IMAGENET, "em": 20000, "tasks": 10},
        "icarl": {**_ICARL_IMAGENET, "passes": 140, "em": 20000, "tasks": 10},
        "tiny-er": {**_TINY, "net": "resnet18-imagenet", "batch": 32, "old_batch": 32, "em": 20000, "tasks": 10},
        "bic": {**_BIC_IMAGENET, "em": 20000, "tasks": 10},
        "gdumb": {**_GDUMB, "net": "densenet100", "passes": 128, "em": 20000, "tasks": 10, "cutmix": 0.5},
        "der++": {
            **_DER_LARGE,
            "net": "resnet18-imagenet",
            "batch": 16,
            "old_batch": 16,
            "em": 20000,
            "tasks": 10,
        },
        "rm": {**_GDUMB, "net": "densenet100", "passes": 128, "em": 20000, "tasks": 10},
    },
}

# -- smaller -----------------------------------------------------------------------------------------------------------

_STEPS: Settings = {"momentum": 0.9, "weight_decay": 1e-5, "schedule": "step", "milestones": (0.7, 0.9), "gamma": 0.2}
_COSINE: Settings = {"momentum": 0.9, "schedule": "cosine", "warmup": 1, "clip": 10.0}

_LAPTOP_MNIST: dict[str, Settings] = {
    "er": {**_STEPS, "batch": 32, "lr": 0.3, "passes": 20},
    "icarl": {**_STEPS, "batch": 32, "lr": 0.3, "passes": 20},
    "tiny-er": {"batch": 10, "old_batch": 10, "lr": 0.05, "passes": 1, "per_class": 1000},
    "bic": {**_STEPS, "batch": 32, "lr": 0.05, "passes": 20, "em": 150, "options": {"validation": 0.2}},
    "gdumb": {**_COSINE, "batch": 16, "lr": 0.05, "passes": 40, "cutmix": 0.5},
    "der++": {"batch": 16, "old_batch": 16, "lr": 0.05, "passes": 10},
    "rm": {**_COSINE, "batch": 16, "lr": 0.05, "passes": 40, "options": {"copies": 5}},
}
_LAPTOP_CIFAR: dict[str, Settings] = {
    "er": {**_STEPS, "batch": 64, "lr": 1.0, "passes": 30},
    "icarl": {**_STEPS, "batch": 64, "lr": 1.0, "passes": 30},
    "tiny-er": {"batch": 10, "old_batch": 10, "lr": 0.05, "passes": 1, "order": "shuffled"},
    # A tenth of so small a memory would be less than one validation sample a class.
    "bic": {**_STEPS, "batch": 64, "lr": 0.1, "passes": 30, "em": 300, "options": {"validation": 0.34}},
    "gdumb": {**_COSINE, "batch": 16, "lr": 0.05, "passes": 30, "cutmix": 0.5},
    "der++": {"batch": 32, "old_batch": 32, "lr": 0.05, "passes": 10, "em": 100, "per_class": 300},
    "rm": {**_COSINE, "batch": 16, "lr": 0.05, "passes": 30, "options": {"copies": 5}},
}
_ONLINE_CIFAR: Settings = {"width": 8, "tasks": 20, "em": 100, "per_class": 250}  # one pass needs more samples
_SMALL: dict[str, Settings] = {
    "mnist": {"net": "mlp", "tasks": 5, "em": 100, "per_class": 300},
    "fashion-mnist": {"net": "mlp", "tasks": 5, "em": 100, "per_class": 300},
    "cifar-10": {"net": "cnn", "width": 8, "tasks": 5, "em": 200, "per_class": 500, "test_per_class": 200},
    "cifar-100": {"net": "cnn", "width": 16, "tasks": 10, "em": 200, "per_class": 50, "test_per_class": 30},
    "digits": {"net": "mlp", "tasks": 5, "em": 50, "per_class": 0},
}
_SMOKE: Settings = {"data": "digits", "net": "mlp", "tasks": 5, "em": 40, "per_class": 60, "test_per_class": 20}


def preset(method: str, data: str, scale: str = "laptop") -> Config:
    """The settings of a method on a data set at a scale, as a configuration without swapping decided.

    `full` knows the pairs that the paper has. For other pairs, and for data sets of your own, it takes the method's
    settings on the first data set that the paper has for it; net, tasks and memory are then those of another method on
    this data set, if the paper has one.
    """
    method = methods.canonical(method)
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r}: must be one of {', '.join(SCALES)}")
    if scale == "smoke":
        few = {"passes": 1 if method == "tiny-er" else 4, "em": 40, "per_class": 60}
        return Config(method=method, **{**_SMOKE, **_of(_LAPTOP_MNIST, method), **few})
    data = canonical(data)
    if scale == "full":
        return Config(method=method, data=data, **_full(method, data))
    table = _LAPTOP_MNIST if data in ("mnist", "fashion-mnist", "digits") else _LAPTOP_CIFAR
    settings = {**_SMALL.get(data, {"net": "cnn"}), **_of(table, method)}
    if data == "digits":
        settings["per_class"] = 0  # there are 144 of each, and they are small
    if data == "cifar-100" and method == "tiny-er":
        settings |= _ONLINE_CIFAR
    return Config(method=method, data=data, **settings)


def _of(table: dict[str, Settings], method: str) -> Settings:
    """A method's settings; those of ER for a method of your own."""
    return table.get(method, table["er"])


def _full(method: str, data: str) -> Settings:
    if method in _FULL.get(data, {}):
        return _FULL[data][method]
    own = next((table[method] for table in _FULL.values() if method in table), _FULL["cifar-100"]["er"])
    others = next(iter(_FULL.get(data, {}).values()), own)
    return own | {name: others[name] for name in ("net", "tasks", "em")}
