"""The paper's experiments, a few lines each: what is varied over the settings that `carm.lab.presets` has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from carm import methods
from carm.lab.config import Config
from carm.lab.paper.cases import BLOCKS, EVERYTHING, SWAPS, Case, Plan, settings
from carm.lab.paper.numbers import METHODS, SETTINGS

ABLATION = ("tiny-er", "bic", "der++", "rm", "er", "icarl", "gdumb")
"""The four methods of the paper's ablation study, and the three of its appendix."""
_FEW = ("er",)  # of a smoke test
_SHORT = ("tiny-er", "gdumb", "der++", "rm")  # whose runs on CIFAR take half a minute, so that there may be many


@dataclass(frozen=True)
class Experiment:
    """A table or figure. `seeds` by scale, and `more` of them for short runs on CIFAR; `figure`: accuracy over what;
    `note`: what to know when reading it."""

    name: str
    title: str
    cases: Callable[[Plan], Iterable[Case]]
    seeds: dict[str, int] = field(default_factory=dict)
    more: int | None = None
    figure: str = ""
    note: str = ""

    def count(self, case: Case, scale: str, seeds: int | None = None) -> int:
        """How many seeds a case is run with; ImageNet-1000 once, as in the paper."""
        if seeds is not None:
            return seeds
        if case.block == "imagenet-1000":
            return 1
        if self.more is not None and (scale, case.block) == ("laptop", "cifar") and case.method in _SHORT:
            return self.more
        return self.seeds.get(scale, {"full": 5, "laptop": 3, "smoke": 1}[scale])


# -- the paper's tables ------------------------------------------------------------------------------------------------


def table1(plan: Plan) -> Iterator[Case]:
    yield from settings(plan, plan.some(METHODS), SETTINGS)


def policies(plan: Plan) -> Iterator[Case]:
    for block, data in plan.chosen(_main(plan)).items():
        for method in plan.some(_FEW):
            for gate in ("random", "entropy", "dynamic"):
                base = plan.base(method, data[method])
                yield Case(block, "CarM-50", base.replace(gate=gate, **SWAPS["CarM-50"]), at=gate)


def rm_da(plan: Plan) -> Iterator[Case]:
    yield from settings(plan, _only(plan, "rm"), SETTINGS, blocks=_cifar(plan), augment="strong", cutmix=0.5)


def device(plan: Plan) -> Iterator[Case]:
    """One core, storage like an SD card, and little memory: what stands in for the Jetson board."""
    memory = {"full": 8 << 30, "laptop": 2 << 30, "smoke": 3 << 30}[plan.scale]
    if plan.device != "cpu":
        memory = 0  # CUDA reserves far more address space than it uses, and does not start within a limit
    blocks = ("mnist",) if plan.scale == "laptop" else _cifar(plan)
    for case in settings(plan, plan.some(_FEW), SETTINGS, blocks=blocks):
        slow = case.config if case.setting == "Original" else case.config.replace(throttle="20MB/s,1ms")
        yield Case(case.block, case.setting, slow, cores=1, memory=memory)


# -- the paper's figures -----------------------------------------------------------------------------------------------

ALPHAS: tuple[float | str, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 1.0, "auto")


def distill(plan: Plan) -> Iterator[Case]:
    for block, data in plan.chosen(_main(plan)).items():
        for method in plan.some(["icarl"], ["icarl", "bic", "der++"]):
            base = plan.base(method, data[method]).replace(**SWAPS["CarM-50"])
            for alpha in ALPHAS:
                if method == "bic" and alpha == 1.0:
                    continue  # it would learn nothing new
                x = None if isinstance(alpha, str) else float(alpha)
                varied = base.replace(options=_options(method, {**base.options, "alpha": alpha}))
                yield Case(block, "CarM-50", varied, at=f"alpha {alpha}", x=x)


def _options(method: str, given: dict[str, Any]) -> dict[str, Any]:
    """Without those that say what the method does anyway, so that equal runs have equal keys."""
    known = methods.find(method).options()
    return {k: v for k, v in given.items() if v != known[k].default}


FEATURES = ("D/H/N", "P/D/H/N", "F/D/H/N", "H/N", "P/H/N", "F/H/N", "F/H", "F")
"""Eight combinations of iCaRL's distillation, herding and nearest mean with CarM-50 (P) and CarM-100 (F). The figure
has eight; those that its text names (D/H/N alone and with P and F, F/H) are among these."""


def icarl_features(plan: Plan) -> Iterator[Case]:
    for block, data in plan.chosen(_cifar(plan) if plan.scale == "full" else _main(plan)).items():
        for method in _only(plan, "icarl"):
            base = plan.base(method, data[method])
            for combination in FEATURES:
                parts = combination.split("/")
                setting = "CarM-100" if "F" in parts else "CarM-50" if "P" in parts else "Original"
                options = {"distill": "D" in parts, "herding": "H" in parts, "nearest_mean": "N" in parts}
                varied = base.replace(options=_options(method, options), **SWAPS[setting])
                yield Case(block, setting, varied, at=combination)


def em_size(plan: Plan) -> Iterator[Case]:
    paper = {"der++": (300, 500, 1000), "tiny-er": (100, 300, 500)}  # sizes that the text names
    for block, data in plan.chosen(_cifar(plan) if plan.scale == "full" else _main(plan)).items():
        for method in plan.some(_FEW, ABLATION):
            base = plan.base(method, data[method])
            sizes = (base.em // 2, base.em, base.em * 2)
            for em in paper.get(method, sizes) if plan.scale == "full" else sizes:
                for name in ("Original", "CarM-50"):
                    yield Case(block, name, base.replace(em=em, **SWAPS[name]), at=f"EM {em}", x=em)


def swap_ratio(plan: Plan) -> Iterator[Case]:
    for block, data in plan.chosen(_cifar(plan) if plan.scale == "full" else _main(plan)).items():
        for method in plan.some(_FEW, ABLATION):
            base = plan.base(method, data[method])
            for name in ("Original", "CarM-20", "CarM-50", "CarM-80", "CarM-100"):
                share = 0.0 if name == "Original" else 100 * SWAPS[name]["ratio"]
                yield Case(block, name, base.replace(**SWAPS[name]), x=share)


def storage_size(plan: Plan) -> Iterator[Case]:
    for block, data in plan.chosen(_cifar(plan) if plan.scale == "full" else _main(plan)).items():
        for method in plan.some(_FEW, ABLATION):
            base = plan.base(method, data[method])
            yield Case(block, "Original", base.replace(**SWAPS["Original"]), at="EM only", x=1.0)
            for times in (1.5, 2.0, 5.0, 10.0):
                limited = base.replace(storage=round(times * base.em), **SWAPS["CarM-50"])
                yield Case(block, "CarM-50", limited, at=f"{times:g} x EM", x=times)
            yield Case(block, "CarM-50", base.replace(**SWAPS["CarM-50"]), at="all")


def tasks_50(plan: Plan) -> Iterator[Case]:
    data, tasks = ("digits", 10) if plan.scale == "smoke" else ("cifar-100", 50)
    block = "digits" if plan.scale == "smoke" else "cifar"
    if plan.blocks and block not in plan.blocks:
        return
    for method in plan.some(_FEW, ABLATION):
        base = plan.base(method, data).replace(tasks=tasks)
        if plan.scale == "full":  # the paper's table has a net and a memory for each method on the CIFAR subset
            own = plan.base(method, BLOCKS["full"]["cifar"][method])
            base = base.replace(net=own.net, em=own.em)
        if plan.scale == "laptop" and base.passes > 1:  # five times as many tasks, each with the memory in every pass
            base = base.replace(passes=10, per_class=50)
        for name in SETTINGS:
            yield Case(block, name, base.replace(**SWAPS[name]), at=f"{tasks} tasks")


def _only(plan: Plan, method: str) -> tuple[str, ...]:
    """The method of a study of one; none if others were asked for."""
    return (method,) if not plan.methods or method in plan.methods else ()


def _main(plan: Plan) -> tuple[str, ...]:
    """The blocks of studies that the paper made on both subsets."""
    return {"full": ("cifar", "imagenet"), "laptop": ("mnist",), "smoke": ("digits",)}[plan.scale]


def _cifar(plan: Plan) -> tuple[str, ...]:
    """The block of studies that the paper made on the CIFAR subset."""
    return ("digits",) if plan.scale == "smoke" else ("cifar",)


# -- our own checks ----------------------------------------------------------------------------------------------------

_ONLINE: dict[str, Any] = {
    "level": "batch",
    "head": "fixed",
    "net": "mlp",
    "tasks": 5,
    "order": "natural",
    "augment": "none",
    "batch": 10,
    "passes": 1,
    "swap": "none",
}


def split_mnist(plan: Plan, method: str, em: int, lr: float, **more: Any) -> Config:
    """The protocol of the methods' own papers: 5 x 2 classes, MLP 784-100-100-10, one pass, mini-batches of 10."""
    if plan.scale == "smoke":
        more |= {"per_class": 60, "test_per_class": 20}
    data, em = ("digits", em // 10) if plan.scale == "smoke" else ("mnist", em)
    return Config(method=method, data=data, em=em, lr=lr, device=plan.device, **{**_ONLINE, **more})


def _er(plan: Plan, em: int, lr: float) -> Config:
    return split_mnist(plan, "er", em, lr, old_batch=10, options={"loss": "ce", "keep": "reservoir"})


def _derpp(plan: Plan, em: int) -> Config:
    old, alpha, beta = {200: (128, 0.2, 1.0), 500: (10, 1.0, 0.5)}[em]
    return split_mnist(plan, "der++", em, 0.03, old_batch=old, options={"alpha": alpha, "beta": beta})


def _gdumb(plan: Plan) -> Config:
    """GDumb's own recipe: MLP-400, random crops, CutMix, cosine restarts after one warm-up pass."""
    passes = 8 if plan.scale == "smoke" else 64
    more = {"level": "task", "net": "mlp400", "head": "growing", "batch": 16, "passes": passes}
    more |= {"augment": "crop", "cutmix": 0.5}
    sgd = {"momentum": 0.9, "weight_decay": 1e-6, "schedule": "restarts", "warmup": 1, "clip": 10.0}
    return split_mnist(plan, "gdumb", 500, 0.05, **more, **sgd)


def reference(plan: Plan) -> Iterator[Case]:
    block = "digits" if plan.scale == "smoke" else "mnist"
    runs = [_er(plan, 200, 0.01), _er(plan, 500, 0.1), _er(plan, 5120, 0.1)]
    runs += [_derpp(plan, 200), _derpp(plan, 500), _gdumb(plan)]
    for config in runs:
        if not plan.methods or config.method in plan.methods:
            yield Case(block, "Original", config, at=f"EM {config.em}", x=config.em)


def ceiling(plan: Plan) -> Iterator[Case]:
    block = "digits" if plan.scale == "smoke" else "mnist"
    runs = [(_er(plan, em, 0.1), SETTINGS) for em in (200, 500)] + [(_derpp(plan, 500), SETTINGS[:2])]
    for config, names in runs:
        if not plan.methods or config.method in plan.methods:
            for name in names:
                yield Case(block, name, config.replace(**SWAPS[name]), at=f"EM {config.em}", x=config.em)
    if not plan.methods or "er" in plan.methods:
        yield Case(block, "Original", _er(plan, 60_000, 0.1), at=EVERYTHING)


def workers(plan: Plan) -> Iterator[Case]:
    block = "digits" if plan.scale == "smoke" else "mnist"
    for config in (_er(plan, 500, 0.1), _derpp(plan, 500)):
        if not plan.methods or config.method in plan.methods:
            for how in ("async", "sync"):
                yield Case(block, "CarM-100", config.replace(swap=how, ratio=1.0), at=how)


def icarl_means(plan: Plan) -> Iterator[Case]:
    for block, data in plan.chosen(_cifar(plan)).items():
        for method in _only(plan, "icarl"):
            base = plan.base(method, data[method])
            for at, options in (("nearest mean", {}), ("net", {"nearest_mean": False})):
                for name in ("Original", "CarM-100"):
                    yield Case(block, name, base.replace(options=options, **SWAPS[name]), at=at)


def tiny_er_slots(plan: Plan) -> Iterator[Case]:
    """Runs of tasks-50 with one slot for each class, and with three."""
    for case in tasks_50(replace(plan, methods=_only(plan, "tiny-er"))) if _only(plan, "tiny-er") else ():
        classes = 10 if case.config.data == "digits" else 100
        for each in (1, 3) if case.setting != "CarM-50" else ():
            yield replace(case, config=case.config.replace(em=each * classes), at=f"EM {each * classes}")


def joint(plan: Plan) -> Iterator[Case]:
    for block, data in plan.chosen([b for b in BLOCKS[plan.scale] if "imagenet" not in b]).items():
        for method in plan.some(_FEW, METHODS):
            base = plan.base(method, data[method]).replace(**SWAPS["Original"])
            yield Case(block, "Original", base, measure="ci")
            everything = 10 * (base.per_class or 5000) if method in ("gdumb", "rm") else base.em
            yield Case(block, "Joint", base.replace(tasks=1, em=everything), measure="ci")


# -- all of them -------------------------------------------------------------------------------------------------------

_ALL = (
    Experiment("table1", "accuracy and forgetting of seven methods, without and with swapping", table1, more=8),
    Experiment("policies", "which samples leave RAM: random, entropy, dynamic (CarM-50)", policies),
    Experiment(
        "speed",
        "what swapping costs in training time: async and sync against none",
        lambda plan: (),
        note="Only an otherwise idle machine gives figures that mean something; the load average stands below.",
    ),
    Experiment("distill", "weight of distillation with CarM-50", distill, figure="weight of distillation, alpha"),
    Experiment(
        "icarl-features",
        "iCaRL's distillation, herding and nearest mean, with CarM",
        icarl_features,
        note="D: distillation, H: herding, N: nearest mean of the exemplars; P: CarM-50, F: CarM-100.",
    ),
    Experiment("em-size", "three sizes of the episodic memory", em_size, figure="episodic memory, samples"),
    Experiment("swap-ratio", "share of the rehearsed samples that is swapped", swap_ratio, figure="swapped, percent"),
    Experiment("storage-size", "storage of 1.5 to 10 times the EM (CarM-50)", storage_size, figure="storage / EM"),
    Experiment("tasks-50", "CIFAR-100 in 50 tasks (at scale smoke: digits in 10)", tasks_50),
    Experiment("incremental", "accuracy over the tasks: the runs of table1", table1, figure="tasks", more=8),
    Experiment("rm-da", "RM with data augmentation (RandAugment, CutMix)", rm_da),
    Experiment(
        "device",
        "a small device: one core, 20 MB/s storage, little memory",
        device,
        note="Stands in for the paper's Jetson board: every run is pinned to one core, its storage is slowed down to "
        "20 MB/s with 1 ms latency, and its address space is limited (RLIMIT_AS) to 2 GiB at scale laptop and 8 GiB "
        "at scale full. On a 64-bit ARM board it is installed and run in the same way. With --device cuda, where the "
        "board's torch has that, the limit on the address space is left out, for CUDA does not start within one.",
    ),
    Experiment(
        "reference",
        "without swapping, against the numbers of the methods' own papers (Split MNIST)",
        reference,
        seeds={"full": 20, "laptop": 20, "smoke": 1},
    ),
    Experiment(
        "ceiling",
        "ER and DER++ on Split MNIST with swapping: how near they come to replaying everything",
        ceiling,
        seeds={"full": 20, "laptop": 20, "smoke": 1},
    ),
    Experiment(
        "workers",
        "accuracy with swaps in the background against swaps that training waits for",
        workers,
        seeds={"full": 20, "laptop": 20, "smoke": 1},
    ),
    Experiment(
        "icarl-means",
        "iCaRL's classifier: the nearest mean of the exemplars in RAM, or the net itself",
        icarl_means,
        note="Swapping replaces the exemplars that herding chose, from whose means iCaRL classifies.",
    ),
    Experiment(
        "tiny-er-slots",
        "TinyER in 50 tasks, with one slot of RAM for each class and with three",
        tiny_er_slots,
        seeds={"full": 5, "laptop": 5, "smoke": 1},
        note="The paper's TinyER has 300 slots for the 100 classes of CIFAR-100, scale laptop 100.",
    ),
    Experiment(
        "joint",
        "the same nets and settings with all classes at once: what a memory without bounds could win",
        joint,
        note="Class-incremental accuracy for all. GDumb and RM, which learn from their memory alone, have all samples "
        "in it.",
    ),
)
EXPERIMENTS: dict[str, Experiment] = {one.name: one for one in _ALL}
NAMES = tuple(EXPERIMENTS)
