"""The paper's experiments: its settings and numbers by value, the shape on made-up numbers, and a smoke test of all."""

from __future__ import annotations

import functools
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from carm.cli import main
from carm.lab.config import Config
from carm.lab.paper import numbers
from carm.lab.paper.cases import BLOCKS, EVERYTHING, SWAPS, Case, Plan, metric
from carm.lab.paper.estimate import SHAPES, Estimator, steps
from carm.lab.paper.experiments import EXPERIMENTS, FEATURES, NAMES
from carm.lab.paper.figures import figures
from carm.lab.paper.groups import Group
from carm.lab.paper.layout import sheets
from carm.lab.paper.noise import Claim, difference, more, near
from carm.lab.paper.perform import LARGEST, cases_of, command, jobs_of, perform, perform_all, save
from carm.lab.paper.render import records, render
from carm.lab.paper.shape import claims
from carm.lab.paper.show import show
from carm.lab.presets import preset

FULL = Plan("full")


@functools.cache
def cases(name: str, plan: Plan = FULL) -> list[Case]:
    return list(EXPERIMENTS[name].cases(plan))


def config(block: str, method: str, setting: str, name: str = "table1") -> Config:
    return next(c.config for c in cases(name) if (c.block, c.method, c.setting) == (block, method, setting))


# -- the paper's settings ----------------------------------------------------------------------------------------------

ICARL = {"batch": 128, "lr": 2.0, "weight_decay": 1e-5, "momentum": 0.9, "schedule": "step", "gamma": 0.2}
GDUMB = {"batch": 16, "lr": 0.05, "weight_decay": 1e-6}
TABLES: list[tuple[str, str, dict[str, Any]]] = [
    ("cifar", "er", ICARL | {"data": "cifar-100", "net": "resnet32", "passes": 70, "em": 2000, "tasks": 10}),
    ("cifar", "icarl", ICARL | {"data": "cifar-100", "net": "resnet32", "passes": 70, "em": 2000, "tasks": 10}),
    ("cifar", "tiny-er", {"data": "cifar-100", "passes": 1, "em": 300, "batch": 10, "lr": 0.1, "tasks": 20}),
    ("cifar", "bic", {"net": "resnet32", "passes": 250, "em": 2000, "batch": 128, "lr": 0.1, "weight_decay": 2e-4}),
    ("cifar", "gdumb", GDUMB | {"data": "cifar-10", "net": "resnet18", "passes": 256, "em": 500, "tasks": 5}),
    ("cifar", "der++", {"data": "cifar-10", "net": "resnet18", "passes": 50, "em": 500, "batch": 32, "lr": 0.03}),
    ("cifar", "rm", GDUMB | {"data": "cifar-10", "net": "resnet18", "passes": 256, "em": 500, "tasks": 5}),
    ("imagenet", "er", ICARL | {"data": "imagenet-100", "passes": 60, "em": 2000, "tasks": 10}),
    ("imagenet", "tiny-er", {"data": "mini-imagenet", "passes": 1, "em": 500, "tasks": 20}),
    ("imagenet", "bic", {"data": "imagenet-100", "passes": 100, "batch": 256, "weight_decay": 1e-4}),
    ("imagenet", "gdumb", GDUMB | {"data": "tiny-imagenet", "net": "densenet100", "passes": 128, "em": 4500}),
    ("imagenet", "der++", {"data": "tiny-imagenet", "passes": 100, "em": 500, "batch": 32, "tasks": 10}),
    ("imagenet-1000", "icarl", ICARL | {"passes": 140, "em": 20000, "tasks": 10}),
    ("imagenet-1000", "tiny-er", {"passes": 1, "em": 20000, "batch": 32}),
    ("imagenet-1000", "der++", {"passes": 100, "em": 20000, "batch": 16, "lr": 0.03}),
    ("imagenet-1000", "rm", GDUMB | {"net": "densenet100", "passes": 128, "em": 20000}),
]


@pytest.mark.parametrize(("block", "method", "expected"), TABLES, ids=[f"{b}-{m}" for b, m, _ in TABLES])
def test_full_scale_has_the_papers_settings(block: str, method: str, expected: dict[str, Any]) -> None:
    for setting in numbers.SETTINGS:
        found = config(block, method, setting)
        assert {k: getattr(found, k) for k in expected} == expected
        assert found.setting == setting
    assert config(block, method, "Original").swap == "none"


def test_icarls_schedule() -> None:
    assert config("cifar", "er", "CarM-50").milestones == (49 / 70, 63 / 70)
    rate = config("cifar", "er", "CarM-50").training.lr_at
    assert [rate(n) for n in (0, 48, 49, 63)] == pytest.approx([2.0, 2.0, 0.4, 0.08])


@pytest.mark.parametrize(
    ("method", "data", "own", "others"),
    [
        ("gdumb", "cifar-100", "cifar-10", {"net": "resnet32", "tasks": 10, "em": 2000}),
        ("er", "mini-imagenet", "cifar-100", {"net": "resnet18", "tasks": 20, "em": 500}),
        ("der++", "imagenet-100", "cifar-10", {"net": "resnet18-imagenet", "tasks": 10, "em": 2000}),
        ("tiny-er", "fashion-mnist", "cifar-100", {}),
    ],
)
def test_pairs_that_the_paper_does_not_have(method: str, data: str, own: str, others: dict[str, Any]) -> None:
    """The method's settings, but with what fits the data: images of this size, so many classes and samples."""
    assert preset(method, data, "full") == preset(method, own, "full").replace(data=data, **others)


def test_what_the_experiments_vary() -> None:
    assert len(cases("table1")) == 7 * 3 * 3
    assert {c.at for c in cases("policies")} == {"random", "entropy", "dynamic"}
    assert all(c.config.ratio == 0.5 and c.config.gate == c.at for c in cases("policies"))
    alphas = {m: {c.config.options.get("alpha") for c in cases("distill") if c.method == m} for m in ("icarl", "bic")}
    assert alphas["icarl"] == {0.0, 0.1, 0.3, 0.5, 0.7, None, "auto"}  # 1.0 is iCaRL's own
    assert 1.0 not in alphas["bic"] and None in alphas["bic"]  # auto is BiC's own
    assert len(cases("icarl-features")) == len(FEATURES) == 8
    assert {c.x for c in cases("em-size") if c.method == "der++"} == {300, 500, 1000}
    assert {c.setting for c in cases("swap-ratio")} == {"Original", "CarM-20", "CarM-50", "CarM-80", "CarM-100"}
    assert {c.config.storage for c in cases("storage-size") if c.method == "er"} == {0, 3000, 4000, 10000, 20000}
    assert all(c.config.tasks == 50 and c.config.data == "cifar-100" for c in cases("tasks-50"))
    for case in cases("tasks-50"):
        own = config("cifar", case.method, case.setting)
        assert case.config == own.replace(data="cifar-100", tasks=50), case.method
    assert all(c.config.augment == "strong" and c.config.cutmix == 0.5 for c in cases("rm-da"))
    assert all(c.cores == 1 and c.memory for c in cases("device"))
    assert not any(c.memory for c in cases("device", Plan("full", device="cuda")))  # it would not start
    assert {c.config.throttle for c in cases("device") if c.setting != "Original"} == {"20MB/s,1ms"}


def test_reference_protocol() -> None:
    found = {(c.method, c.config.em): c.config for c in cases("reference", Plan("laptop"))}
    assert set(found) == set(numbers.REFERENCE)
    assert [found["er", em].lr for em in (200, 500, 5120)] == [0.01, 0.1, 0.1]
    er, der = found["er", 500], found["der++", 200]
    assert (er.net, er.head, er.level, er.batch, er.old_batch, er.passes) == ("mlp", "fixed", "batch", 10, 10, 1)
    assert (er.order, er.augment, er.options) == ("natural", "none", {"keep": "reservoir", "loss": "ce"})
    assert (der.old_batch, der.lr, der.options) == (128, 0.03, {"alpha": 0.2, "beta": 1.0})


def test_seeds_and_shared_runs() -> None:
    assert {len(s) for c, s in cases_of(EXPERIMENTS["table1"], FULL) if c.block == "imagenet-1000"} == {1}
    assert {len(s) for c, s in cases_of(EXPERIMENTS["table1"], FULL) if c.block == "cifar"} == {5}
    assert len(jobs_of(cases_of(EXPERIMENTS["reference"], Plan("laptop")))) == 120
    laptop = Plan("laptop")
    keys = {name: {j.key for j in jobs_of(cases_of(EXPERIMENTS[name], laptop))} for name in NAMES}
    assert keys["incremental"] == keys["table1"]
    assert keys["swap-ratio"] & keys["table1"] and keys["policies"] & keys["table1"]
    assert keys["icarl-features"] & keys["table1"], "iCaRL with all its parts is iCaRL"
    with_swaps = {c.config.key for c in cases("ceiling", laptop) if c.setting == "Original"}
    assert with_swaps & {c.config.key for c in cases("reference", laptop)}
    (whole,) = (c.config for c in cases("ceiling", laptop) if c.at == EVERYTHING)
    assert whole.em >= 60_000 and whole.swap == "none", "all of MNIST"


def test_only_and_methods_choose() -> None:
    chosen = cases("table1", Plan("laptop", blocks=("mnist",), methods=("er",)))
    assert {(c.block, c.method) for c in chosen} == {("mnist", "er")} and len(chosen) == 3
    assert {c.block for c in cases("policies", Plan("laptop", blocks=("cifar",)))} == {"cifar"}


def test_the_papers_measure() -> None:
    assert [metric(m, "cifar-100") for m in ("er", "tiny-er")] == ["ci", "ti"]
    assert [metric("er", "imagenet-100"), metric("gdumb", "tiny-imagenet"), metric("rm", "tiny-imagenet")] == [
        "top5",
        "ti",
        "ci",
    ]


# -- the paper's numbers -----------------------------------------------------------------------------------------------


def test_numbers_spot_checked() -> None:
    accuracy = numbers.TABLE1["cifar"]["accuracy"]
    assert accuracy["Original"]["er"] == (33.66, 0.42) and accuracy["CarM-100"]["rm"] == (67.81, 0.51)
    assert numbers.TABLE1["imagenet"]["accuracy"]["CarM-50"]["der++"] == (47.74, 0.84)
    assert numbers.TABLE1["imagenet"]["forgetting"]["CarM-100"]["gdumb"] == (8.01, 1.84)
    assert numbers.TABLE1["imagenet-1000"]["accuracy"]["Original"]["icarl"] == (56.69, None)
    assert numbers.POLICIES["imagenet"]["dynamic"]["er"] == (82.94, 0.43)
    assert (
        numbers.SPEED["cifar"]["sync"]["der++"].mean == 71.6
        and numbers.SPEED["imagenet"]["async"]["icarl"].mean == -2.7
    )
    assert numbers.JETSON["CarM-100"]["er"].mean == 55.38
    assert numbers.RM_DA["accuracy"]["CarM-50"] == (84.07, 0.83)


def test_the_papers_own_sentences_follow_from_its_numbers() -> None:
    """Its text says how much CarM-50 loses against CarM-100 on average, and what TinyER gains: a check for typing."""
    for block, lost in (("cifar", 1.0), ("imagenet", 0.6), ("imagenet-1000", 0.7)):
        rows = numbers.TABLE1[block]["accuracy"]
        gaps = [rows["CarM-100"][m].mean - rows["CarM-50"][m].mean for m in numbers.METHODS]
        assert math.isclose(sum(gaps) / 7, lost, abs_tol=0.06)
        gain = rows["CarM-100"]["tiny-er"].mean - rows["Original"]["tiny-er"].mean
        assert round(gain, 2) == {"cifar": 7.72, "imagenet": 11.79, "imagenet-1000": 3.89}[block]
    largest = max(r.mean for rows in numbers.SPEED.values() for r in rows["async"].values())
    assert largest == 5.5


# -- the shape, on made-up numbers -------------------------------------------------------------------------------------


def group(method: str, setting: str, values: list[float], at: str = "", x: float | None = None, **more: Any) -> Group:
    runs = [{"seed": i, "ci": v, "ti": v, "forgetting_ci": 100 - v, "curve": [99, 90, v]} for i, v in enumerate(values)]
    made = Group("mnist", method, setting, at, x, "mnist", "ci", runs)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_differences_and_noise() -> None:
    assert difference([2.0], [1.0]).noise is None
    clear = difference([90, 91, 92], [80, 81, 82])
    assert clear.mean == 10 and clear.noise == pytest.approx(2.78 * math.sqrt(2 / 3), abs=0.01)
    assert more("a", [90, 91, 92], [80, 81, 82]).verdict == "holds"
    assert more("a", [80, 81, 82], [90, 91, 92]).verdict == "does not hold"
    assert more("a", [80, 85, 90], [81, 84, 91]).verdict == "within noise"
    assert near("a", [88, 89, 90], [90, 91, 92], 3.3).verdict == "holds"
    assert near("a", [70, 71, 72], [90, 91, 92], 3.3).verdict == "does not hold"
    assert near("a", [70, 85, 99], [90, 91, 92], 3.3).verdict == "within noise"
    mark = difference([70, 85, 99], 90)  # a published number: our own noise remains
    assert mark.mean == pytest.approx(-5.33, abs=0.01) and mark.noise == pytest.approx(36.0, abs=0.1)
    assert near("a", [70, 85, 99], 90, 3.3).verdict == "within noise"
    assert near("a", [70, 71, 72], 90, 3.3).verdict == "does not hold" and difference([70], 90).noise is None


def test_a_claim_sums_up_its_parts() -> None:
    good, bad = more("a", [9.0, 9.1], [1.0, 1.1]), more("b", [1.0, 1.1], [9.0, 9.1])
    unclear = more("c", [1.0, 9.0], [2.0, 8.5])
    assert Claim.of("x", []) == []
    for parts, verdict in (
        ([good, good], "holds"),
        ([good, bad], "holds in part"),
        ([unclear], "within noise"),
        ([unclear, bad], "does not hold"),
    ):
        assert Claim.of("x", parts)[0].verdict == verdict


def verdicts(name: str, groups: list[Group]) -> dict[str, str]:
    return {claim.claim: claim.verdict for claim in claims(name, groups)}


def find(found: dict[str, str], part: str) -> str:
    return next(verdict for claim, verdict in found.items() if part in claim)


def test_shape_of_table1() -> None:
    paper = [group("er", s, v) for s, v in (("Original", [60, 61, 62]), ("CarM-50", [79, 80, 81]))]
    found = verdicts("table1", [*paper, group("er", "CarM-100", [80, 81, 82])])
    assert set(found.values()) == {"holds"} and len(found) == 4
    found = verdicts("table1", [*paper, group("er", "CarM-100", [50, 51, 52])])
    assert find(found, "CarM-100 is more accurate") == "does not hold"
    assert find(found, "forgets less") == "does not hold"


def test_runs_are_paired_by_their_seeds() -> None:
    """If a run has failed, the next seed's is not taken for it."""
    original, full = (group("er", s, [v, v + 30.0, v + 60.0]) for s, v in (("Original", 10.0), ("CarM-100", 20.0)))
    for curves, second in ((original, 0.0), (full, 5.0)):
        for run in curves.runs:
            run["curve"] = [99.0, run["ci"] - second, run["ci"]]
    del full.runs[1]
    assert [c.numbers for c in claims("incremental", [original, full])] == ["ER +5.0±0.0"]
    rivals = [group(m, s, [v, v + 20.0]) for m in ("icarl", "rm") for s, v in (("Original", 10.0), ("CarM-100", 12.0))]
    found = claims("table1", [original, full, *rivals])[-1]
    assert "others +6.0, iCaRL +2.0" in found.numbers


def test_shape_of_the_other_experiments() -> None:
    low, high = [60.0, 61.0, 62.0], [80.0, 81.0, 82.0]
    same = [group("er", "CarM-50", [80, 81, 82], at) for at in ("random", "entropy", "dynamic")]
    assert set(verdicts("policies", same).values()) == {"holds"}
    assert set(verdicts("policies", [*same[:2], group("er", "CarM-50", low, "dynamic")]).values()) == {"does not hold"}

    small = [group("icarl", "CarM-50", high, "alpha 0.1", 0.1), group("icarl", "CarM-50", low, "alpha 1.0", 1.0)]
    assert set(verdicts("distill", small).values()) == {"holds"}

    ratios = [("Original", low), ("CarM-20", high), ("CarM-80", high), ("CarM-100", high)]
    assert set(verdicts("swap-ratio", [group("er", s, v) for s, v in ratios]).values()) == {"holds"}

    storage = [("EM only", low), ("1.5 x EM", high), ("10 x EM", high), ("all", high)]
    assert set(verdicts("storage-size", [group("er", "x", v, at) for at, v in storage]).values()) == {"holds"}

    sizes = [group("er", s, v, at) for at in ("EM 50", "EM 100") for s, v in (("Original", low), ("CarM-50", high))]
    assert set(verdicts("em-size", sizes).values()) == {"holds"}

    features = [group("icarl", "x", high if at in ("F", "F/H", "F/H/N", "P/H/N") else low, at) for at in FEATURES]
    assert set(verdicts("icarl-features", features).values()) == {"holds"}

    growing = [group("er", "Original", low), group("er", "CarM-100", high)]
    assert set(verdicts("incremental", growing).values()) == {"holds"}

    workers = [group("er", "CarM-100", high, "async"), group("er", "CarM-100", [v + 0.1 for v in high], "sync")]
    assert set(verdicts("workers", workers).values()) == {"holds"}

    whole = group("er", "Original", [94.0, 95.0, 96.0], EVERYTHING)
    swapped = [group("er", "Original", low, "EM 500", 500), group("er", "CarM-100", [93.5, 94.5, 95.5], "EM 500", 500)]
    assert list(verdicts("ceiling", [*swapped, whole]).values()) == ["holds"] * 3
    whole = group("er", "Original", [98.0, 99.0, 99.9], EVERYTHING)
    assert list(verdicts("ceiling", [*swapped, whole]).values()) == ["holds", "holds", "does not hold"]

    close = group("er", "Original", [85.0, 86.0, 87.0], "EM 500", 500, paper={"accuracy": [86.1, 1.9]})
    assert set(verdicts("reference", [close]).values()) == {"holds"}
    far = group("er", "Original", [70.0, 71.0, 72.0], "EM 500", 500, paper={"accuracy": [86.1, 1.9]})
    assert set(verdicts("reference", [far]).values()) == {"does not hold"}
    wide = group("er", "Original", [75.0, 81.0, 93.0], "EM 500", 500, paper={"accuracy": [86.1, 1.9]})
    assert set(verdicts("reference", [wide]).values()) == {"within noise"}


def test_forgetting_is_not_called_top_5() -> None:
    """It is of top-1 accuracy, whatever the paper's measure of accuracy is."""
    groups = [
        group("er", "Original", [60.0], metric="top5"),
        group("tiny-er", "Original", [60.0], metric="ti"),
        group("rm", "Original", [60.0]),
    ]
    accuracy, forgetting = sheets({"name": "table1", "groups": [g.as_dict() for g in groups]})
    assert accuracy[1][:4] == ["", "ER (top-5)", "TinyER (task-incremental)", "RM"]
    assert forgetting[1] == ["", "ER", "TinyER (task-incremental)", "RM"]


def test_a_figure_says_which_accuracy_it_shows() -> None:
    groups = [group("er", "Original", [60.0]), group("tiny-er", "Original", [97.0], metric="ti")]
    ((_, title, picture),) = figures({"name": "table1", "groups": [g.as_dict() for g in groups]})
    assert "accuracy, percent; TinyER: task-incremental" in picture
    assert title == "Accuracy of seven methods, without and with swapping (mnist)"


@pytest.mark.parametrize("width", [40, 80, 400])
@pytest.mark.parametrize("terminal", [True, False])
def test_no_number_is_cut_on_a_narrow_terminal(width: int, terminal: bool) -> None:
    groups = [
        group(m, s, [60.0, 61.0, 62.0], paper={"accuracy": [54.11, 2.52]})
        for m in numbers.METHODS
        for s in numbers.SETTINGS
    ]
    one = {"name": "table1", "title": "t", "scale": "full", "seeds": 3, "shape": [], "note": ""}
    screen = Console(file=io.StringIO(), width=width, force_terminal=terminal, color_system=None)
    show({**one, "groups": [g.as_dict() for g in groups]}, screen)
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert shown.count("54.11±2.52") == shown.count("61.00±1.00") == 7 * 3 and "…" not in shown
    assert shown.count("│ CarM-100 │") == 2 if not terminal else shown.count("│ CarM-100 │") >= 2
    if terminal:
        assert max(map(len, shown.splitlines()[1:])) <= width
    assert screen.width == width


def test_shape_of_speed() -> None:
    from carm.lab.paper import speed

    def side(swap: str, wall: list[float]) -> dict[str, Any]:
        place = {"block": "cifar", "method": "er", "cores": "free core", "storage": "slow", "setting": "CarM-100"}
        return place | {"swap": swap, "wall": wall, "cpu": wall, "none": [1.0]}

    good = speed.claims([side("async", [1.0, 2.0, 3.0]), side("sync", [40.0, 50.0, 60.0])])
    assert [c.verdict for c in good] == ["holds", "holds"]
    bad = speed.claims([side("async", [10.0, 20.0, 30.0]), side("sync", [4.0, 5.0, 6.0])])
    assert [c.verdict for c in bad] == ["does not hold", "does not hold"]
    unclear = speed.claims([side("async", [1.0, 2.0, 50.0]), side("sync", [4.0, 5.0, 60.0])])
    assert unclear[-1].verdict == "within noise"
    head = speed.claims([side("async", [4.0, 4.5, 5.0]) | {"storage": "warm"}])
    assert [(c.verdict, "at most 3.0 %" in c.claim) for c in head] == [("does not hold", True), ("holds", False)]


def test_the_headline_of_speed_has_more_repetitions() -> None:
    from carm.lab.paper import speed

    wanted = speed.plan_of(Plan("laptop", methods=("er",)))
    small, papers = wanted.cases
    rounds = wanted.rounds(small, 2)
    assert [r[2] for r in rounds] == [0] * 4 + [1] * 4 + [2, 3, 4, 5]
    assert {r[:2] for r in rounds[8:]} == {("free core", "warm")}
    assert all(r[3] == (("none", "Original"), ("async", "CarM-100")) for r in rounds[8:])
    assert [r[2] for r in wanted.rounds(papers, 2)] == [0, 1, 2, 3, 4, 5]
    assert {r[:2] for r in wanted.rounds(papers, 2)} == {("free core", "warm")}
    assert wanted.runs(2) == 2 * (5 + 3 + 3 + 3) + 4 * 2 + 6 * 2


def test_speed_at_full_scale_has_both_subsets_of_the_paper() -> None:
    from carm.lab.paper import speed

    wanted = speed.plan_of(FULL)
    assert {case.block for case in wanted.cases} == set(numbers.SPEED) == {"cifar", "imagenet"}
    for case in wanted.cases:
        full = config(case.block, case.config.method, "Original")
        assert (full.net, full.em, full.batch, full.tasks) == tuple(
            getattr(case.config, name) for name in ("net", "em", "batch", "tasks")
        )


def test_the_time_of_speed_is_estimated_here(monkeypatch: pytest.MonkeyPatch) -> None:
    from carm.lab.paper import speed

    wanted = speed.plan_of(Plan("laptop", methods=("er",)))
    monkeypatch.setattr(Estimator, "step", lambda self, config, batch: 1.0)
    slow = wanted.seconds(Estimator(threads=1))
    monkeypatch.setattr(Estimator, "step", lambda self, config, batch: 0.5)
    assert wanted.runs() < wanted.seconds(Estimator(threads=1)) < slow


def test_speed_also_has_the_papers_nets() -> None:
    from carm.lab.paper import speed

    mine = {case.config.method: case.config for case in speed.plan_of(Plan("laptop")).cases if "paper" in case.block}
    assert list(mine) == list(numbers.METHODS)
    for method, found in mine.items():
        full = config("cifar", method, "CarM-100")
        assert (found.net, found.width, found.batch, found.augment) == (full.net, full.width, full.batch, full.augment)
        assert found.em < found.per_class * (100 if found.data == "cifar-100" else 10), "else there is nothing to swap"
    assert all("paper" not in case.block for case in speed.plan_of(Plan("smoke")).cases)


def test_what_speed_measured_is_what_it_reads_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from carm.lab.paper import speed

    wanted = speed.plan_of(Plan("smoke", methods=("er",)))
    rounds = wanted.rounds(wanted.cases[0], 1)
    monkeypatch.setattr(speed, "take_turns", lambda sides: [(1 / 3 + n, 1 / 7 + n) for n, _ in enumerate(sides)])
    first = speed._measured(wanted.configs[0], rounds, tmp_path)
    assert {one["seconds"] for one in first} >= {0.333333, 1.333333}
    assert speed._measured(wanted.configs[0], rounds, tmp_path) == first


# -- everything, small -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every experiment at scale smoke, as one sweep."""
    out = tmp_path_factory.mktemp("paper")
    quiet = Console(file=io.StringIO())
    made = {one["name"]: one for one in perform_all(NAMES, Plan("smoke"), out, jobs=2, console=quiet)}
    return made | {"out": {"path": str(out)}}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_smoke(name: str, smoke: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    one = smoke[name]
    assert one["scale"] == "smoke" and not one["failures"] and one["groups"]
    assert one["shape"] or name == "reference", "there is a line for every claim"
    path = save(one, tmp_path)
    assert path.stat().st_size < LARGEST / 4
    assert json.loads(path.read_text()) == json.loads(json.dumps(one))
    console = Console(file=io.StringIO(), width=200)
    show(one, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert one["title"] in shown and all(claim["claim"] in shown for claim in one["shape"])
    for _, heads, rows in sheets(one):
        assert all(len(row) == len(heads) for row in rows)


@pytest.mark.slow
def test_finished_runs_are_not_run_again(smoke: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a run was started again")

    monkeypatch.setattr("carm.lab.sweep._Pool.start", never)
    monkeypatch.setattr("carm.lab.paper.speed._once", never)
    out, quiet = Path(smoke["out"]["path"]), Console(file=io.StringIO())
    for name in ("table1", "device", "speed"):
        again = perform(name, Plan("smoke"), out, console=quiet)
        assert again["groups"] == smoke[name]["groups"]


@pytest.mark.slow
def test_render(smoke: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    for name in NAMES:
        save(smoke[name], tmp_path / "results")
    save(smoke["table1"], tmp_path / "results", part="digits")
    (tmp_path / "results" / "memory.json").write_text('{"rows": []}')  # of a benchmark: not ours
    assert [one["name"] for _, one in records(tmp_path / "results")] == sorted([*NAMES, "table1"], key=NAMES.index)
    written = render(tmp_path / "results", tmp_path / "docs")
    page = written[0].read_text()
    assert len(set(written)) == len(written)
    for name in NAMES:
        assert f"## {name}" in page
    for path in written[1:]:
        assert path.read_text().startswith("<svg") and f"img/{path.name}" in page
    assert "*33.66±0.42*" in page and "/tmp/" not in page


def test_render_without_results_says_how_to_make_some(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "render", "--results", str(tmp_path), "--docs", str(tmp_path)]) == 2
    assert "carm paper NAME --results" in capsys.readouterr().err


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tabel1"], "Did you mean 'table1'"),
        (["table1", "--only", "svhn"], "--only also knows: mnist, cifar"),
        (["table1", "--seeds", "0"], "--seeds 0"),
        (["list", "--jobs", "0"], "--jobs 0: must be at least 1"),
        (["speed", "--jobs", "-1", "--scale", "smoke"], "--jobs -1: must be at least 1"),
        (["table1", "--scale", "smoke", "--methods", "{own}:ERACE"], "the paper's methods only"),
        (["table1", "--scale", "full", "--data", "{empty}"], "--scale laptop needs only"),
        (["table1", "--only", "mnist", "--data", "{empty}"], "--scale smoke needs no files"),
        (["rm-da", "--only", "mnist", "--data", "{empty}"], "mnist was not found"),
    ],
)
def test_errors(
    arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"{empty}": str(tmp_path), "{own}": str(Path(__file__).parents[2] / "examples" / "er_ace.py")}
    for name, path in places.items():
        arguments = [a.replace(name, path) for a in arguments]
    assert main(["paper", *arguments]) == 2
    assert expected in capsys.readouterr().err


def test_list(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(Estimator, "step", lambda self, config, batch: 0.001)
    assert main(["paper", "list", "--scale", "smoke"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in NAMES) and "shared" in shown and "Together about" in shown


def test_list_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(Estimator, "step", lambda self, config, batch: 0.001)
    assert main(["paper", "list", "--scale", "laptop", "--data", str(tmp_path)]) == 0
    assert "(not found)" in " ".join(capsys.readouterr().out.split())


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["paper", "--help"])
    shown = capsys.readouterr().out
    assert "carm paper list" in shown and "--scale" in shown and "nothing twice" in " ".join(shown.split())


def test_commands_are_told_without_directories() -> None:
    given = "carm paper table1 --data /home/me/data --only mnist --out=/scratch --results results --seeds 3"
    assert command(given) == "carm paper table1 --only mnist --seeds 3"


def test_estimates_count_steps() -> None:
    one = Config(method="er", data="mnist", tasks=5, em=500, batch=10, old_batch=10, passes=2)
    assert steps(one) == (2 * 60000 / 10, 20)
    assert steps(one.replace(method="der++"))[1] == 30
    assert set(SHAPES) >= {data for scale in BLOCKS.values() for block in scale.values() for data in block.values()}
    estimator = Estimator()
    assert estimator.seconds(one.replace(per_class=10)) < estimator.seconds(one)
    assert list(SWAPS["CarM-20"].items()) == [("swap", "async"), ("ratio", 0.2)]


def test_results_that_are_too_large_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="take"):
        save({"name": "table1", "groups": ["x" * LARGEST]}, tmp_path)
