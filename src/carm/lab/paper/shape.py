"""Whether our results have the shape of the paper's: one line for each of its claims.

Absolute numbers depend on data, nets and patience; what the paper claims are differences. In the lines, each method has
its difference and half of its 95 % interval; ~ marks those within noise, ✗ those that contradict the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from carm.lab.paper.cases import EVERYTHING
from carm.lab.paper.groups import Group
from carm.lab.paper.noise import Claim, Part, Verdict, more, near
from carm.lab.paper.numbers import ALL_HISTORY
from carm.methods import TITLES

NEAR = 3.3
"""Points: the largest distance between CarM-50 and CarM-100 in the paper's Table 1."""
MEMORY = 10.0
"""Percent: by which the peak memory of a process may grow, of which most is torch."""
SAME = 1.0
"""Points: what counts as no difference when noise is smaller than that."""


class Table:
    """Groups by place."""

    def __init__(self, groups: Iterable[Group]) -> None:
        self.groups = list(groups)
        self.blocks = list(dict.fromkeys(g.block for g in self.groups))

    def methods(self, block: str) -> list[str]:
        return list(dict.fromkeys(g.method for g in self.groups if g.block == block))

    def find(self, block: str, method: str, setting: str | None = None, at: str | None = None) -> Group | None:
        for g in self.groups:
            if (g.block, g.method) == (block, method) and setting in (None, g.setting) and at in (None, g.at):
                return g
        return None

    def ats(self, block: str, method: str) -> list[str]:
        return list(dict.fromkeys(g.at for g in self.groups if (g.block, g.method) == (block, method)))

    def pairs(self, block: str, first: str, second: str, at: str | None = None) -> Iterator[tuple[str, Group, Group]]:
        """The methods that have both settings."""
        for method in self.methods(block):
            a, b = self.find(block, method, first, at), self.find(block, method, second, at)
            if a is not None and b is not None:
                yield TITLES[method], a, b


def claims(experiment: str, groups: Sequence[Group]) -> list[Claim]:
    """The claims of an experiment, for each block."""
    table = Table(groups)
    judge = _JUDGES.get(experiment)
    return [] if judge is None else [claim for block in table.blocks for claim in judge(table, block)]


def _settings(table: Table, block: str) -> Iterator[Claim]:
    above = [more(name, a.values(), b.values()) for name, a, b in table.pairs(block, "CarM-100", "Original")]
    yield from Claim.of(f"{block}: CarM-100 is more accurate than the Original", above)
    half = [more(name, a.values(), b.values()) for name, a, b in table.pairs(block, "CarM-50", "Original")]
    yield from Claim.of(f"{block}: CarM-50 is more accurate than the Original", half)
    close = [near(name, a.values(), b.values(), NEAR) for name, a, b in table.pairs(block, "CarM-50", "CarM-100")]
    yield from Claim.of(f"{block}: CarM-50 is close to CarM-100 (at most {NEAR} points below)", close)
    less = [
        more(name, b.values("forgetting"), a.values("forgetting"))
        for name, a, b in table.pairs(block, "CarM-100", "Original")
    ]
    yield from Claim.of(f"{block}: CarM-100 forgets less than the Original (points less)", less)
    gains = {
        name: {
            seed: x[a.metric] - y[a.metric]
            for seed, x, y in _by_seed(a, b)
            if x[a.metric] is not None and y[a.metric] is not None
        }
        for name, a, b in table.pairs(block, "CarM-100", "Original")
    }
    icarl = list(gains.pop("iCaRL", {}).values())
    seeds = set.intersection(*map(set, gains.values())) if gains else set()
    if icarl and seeds and len(gains) > 1:
        others = [fmean(one[seed] for one in gains.values()) for seed in sorted(seeds)]
        yield from Claim.of(
            f"{block}: iCaRL, which distils, gains less than the others on average",
            [more(f"others {fmean(others):+.1f}, iCaRL {fmean(icarl):+.1f}, so", others, icarl)],
        )


def _by_seed(a: Group, b: Group) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """The runs of two groups with the same seed: where one has failed, the next is not taken for it."""
    others = {run["seed"]: run for run in b.runs}
    for run in a.runs:
        if run["seed"] in others:
            yield run["seed"], run, others[run["seed"]]


def _device(table: Table, block: str) -> Iterator[Claim]:
    yield from _settings(table, block)
    parts: list[Part] = []
    for name, a, b in table.pairs(block, "CarM-100", "Original"):
        growth = 100 * (a.mean("peak_mb") / b.mean("peak_mb") - 1)
        verdict: Verdict = "holds" if growth <= MEMORY else "does not hold"
        parts.append(Part(name, verdict, f"{name} {growth:+.1f} %"))
    yield from Claim.of(f"{block}: swapping takes at most {MEMORY:g} % more memory of the process", parts)


def _policies(table: Table, block: str) -> Iterator[Claim]:
    parts = []
    for method in table.methods(block):
        found = [table.find(block, method, at=gate) for gate in ("random", "entropy", "dynamic")]
        groups = sorted((g for g in found if g is not None), key=lambda g: g.mean())
        if len(groups) == 3:
            label = f"{TITLES[method]} {groups[-1].at}-{groups[0].at}"
            parts.append(_alike(label, groups[-1].values(), groups[0].values()))
    yield from Claim.of(f"{block}: the three policies are within noise of each other (best - worst)", parts)


def _alike(label: str, a: Sequence[float], b: Sequence[float]) -> Part:
    """No difference beyond noise: being within noise is what was claimed."""
    part = near(label, a, b, SAME, both=True)
    beyond = more(label, a, b).verdict != "within noise" and part.verdict != "holds"
    return Part(label, "does not hold" if beyond else "holds", part.numbers)


def _distill(table: Table, block: str) -> Iterator[Claim]:
    best, none = [], []
    for method in table.methods(block):
        mine = [g for g in table.groups if (g.block, g.method) == (block, method)]
        small = [g for g in mine if g.x is not None and g.x <= 0.3]
        large = [g for g in mine if g not in small]
        if small and large:
            a, b = max(small, key=lambda g: g.mean()), max(large, key=lambda g: g.mean())
            best.append(more(f"{TITLES[method]} {a.at} - {b.at}", a.values(), b.values()))
        low, high = table.find(block, method, at="alpha 0.1"), table.find(block, method, at="alpha 1.0")
        if low is not None and high is not None and method == "icarl":
            none.append(more("iCaRL", low.values(), high.values()))
    yield from Claim.of(f"{block}: with CarM a small weight (up to 0.3) is better than a large or growing one", best)
    yield from Claim.of(f"{block}: iCaRL is better with alpha 0.1 than 1.0 (the paper: +5.7 on ImageNet)", none)


def _features(table: Table, block: str) -> Iterator[Claim]:
    def get(at: str) -> Group | None:
        return table.find(block, "icarl", at=at)

    rest = [g for g in map(get, ("D/H/N", "P/D/H/N", "F/D/H/N", "H/N")) if g is not None]
    free = [g for g in map(get, ("P/H/N", "F/H/N", "F/H", "F")) if g is not None]
    if not rest or not free:
        return
    other = max(rest, key=lambda g: g.mean())
    yield from Claim.of(
        f"{block}: swapping without distillation is above everything else (the best of which is {other.at})",
        [more(g.at, g.values(), other.values()) for g in free],
    )
    pure = get("D/H/N")
    if pure is not None:
        both = [g for g in map(get, ("P/D/H/N", "F/D/H/N")) if g is not None]
        parts = [near(g.at, pure.values(), g.values(), NEAR) for g in both]
        yield from Claim.of(f"{block}: with distillation swapping gains little (iCaRL alone - with swapping)", parts)
        simple = get("F/H")
        if simple is not None:
            yield from Claim.of(
                f"{block}: swapping needs no sophisticated features (F/H - D/H/N)",
                [near("F/H", simple.values(), pure.values(), SAME)],
            )


def _sizes(table: Table, block: str) -> Iterator[Claim]:
    parts, small = [], []
    for method in table.methods(block):
        ats = table.ats(block, method)
        for at in ats:
            for name, a, b in table.pairs(block, "CarM-50", "Original", at):
                if name == TITLES[method]:
                    parts.append(more(f"{name} {at}", a.values(), b.values()))
        first, last = table.find(block, method, "CarM-50", ats[0]), table.find(block, method, "Original", ats[-1])
        if first is not None and last is not None and len(ats) > 1:
            small.append(near(TITLES[method], first.values(), last.values(), 0.0))
    yield from Claim.of(f"{block}: CarM-50 is above the Original at every EM size", parts)
    yield from Claim.of(f"{block}: CarM-50 with the smallest EM is as good as the Original with the largest", small)


def _ratios(table: Table, block: str) -> Iterator[Claim]:
    for name in ("CarM-80", "CarM-20"):
        parts = [near(m, a.values(), b.values(), NEAR) for m, a, b in table.pairs(block, name, "CarM-100")]
        yield from Claim.of(f"{block}: {name} is close to CarM-100 (at most {NEAR} points below)", parts)
    parts = [more(m, a.values(), b.values()) for m, a, b in table.pairs(block, "CarM-20", "Original")]
    yield from Claim.of(f"{block}: CarM-20 is above the Original", parts)


def _storage(table: Table, block: str) -> Iterator[Claim]:
    little, large = [], []
    for method in table.methods(block):
        none, some = table.find(block, method, at="EM only"), table.find(block, method, at="1.5 x EM")
        ten, every = table.find(block, method, at="10 x EM"), table.find(block, method, at="all")
        if none is not None and some is not None:
            little.append(more(TITLES[method], some.values(), none.values()))
        if ten is not None and every is not None:
            large.append(near(TITLES[method], ten.values(), every.values(), NEAR))
    yield from Claim.of(f"{block}: storage of 1.5 x EM is above the Original already", little)
    yield from Claim.of(f"{block}: storage of 10 x EM is close to unlimited storage", large)


def _over_tasks(table: Table, block: str) -> Iterator[Claim]:
    parts = []
    for name, a, b in table.pairs(block, "CarM-100", "Original"):
        both = [(x["curve"], y["curve"]) for _, x, y in _by_seed(a, b)]
        if both and len(both[0][0]) > 2:
            parts.append(more(name, [c[-1] - o[-1] for c, o in both], [c[1] - o[1] for c, o in both]))
    yield from Claim.of(f"{block}: the gap to the Original grows with the tasks (last - second task)", parts)


def _reference(table: Table, block: str) -> Iterator[Claim]:
    parts = []
    for g in table.groups:
        theirs = g.theirs()
        if g.block == block and theirs is not None:
            values = [theirs.mean - (theirs.sd or SAME), theirs.mean + (theirs.sd or SAME)]  # as wide as they said
            d = g.mean() - theirs.mean
            verdict = near("", g.values(), theirs.mean, max(theirs.sd or 0.0, SAME)).verdict
            shown = f"{TITLES[g.method]} {g.at} {g.ours()} ({d:+.1f}; published {values[0]:.1f} to {values[1]:.1f})"
            parts.append(Part(g.method, verdict, shown))
    yield from Claim.of(f"{block}: without swapping, at least as accurate as published (less a sd, or 1 point)", parts)


def _ceiling(table: Table, block: str) -> Iterator[Claim]:
    best, same = [], []
    everything = table.find(block, "er", "Original", EVERYTHING)
    for at in dict.fromkeys(g.at for g in table.groups):
        for setting in ("CarM-50", "CarM-100"):
            parts = [more(m, a.values(), b.values()) for m, a, b in table.pairs(block, setting, "Original", at)]
            yield from Claim.of(f"{block}: {at}: {setting} is above the Original", parts)
        full = table.find(block, "er", "CarM-100", at)
        if full is not None:
            best.append(near(f"{at} {full.ours()}", full.values(), ALL_HISTORY.mean, SAME))
            if everything is not None:
                same.append(near(at, full.values(), everything.values(), SAME))
    yield from Claim.of(f"{block}: ER with CarM-100 comes within a point of replaying everything ({ALL_HISTORY})", best)
    yield from Claim.of(f"{block}: ER with CarM-100 comes within a point of ER with everything in RAM, by seed", same)


def _workers(table: Table, block: str) -> Iterator[Claim]:
    parts = []
    for method in table.methods(block):
        a, b = table.find(block, method, at="async"), table.find(block, method, at="sync")
        if a is not None and b is not None:
            parts.append(_alike(TITLES[method], a.values(), b.values()))
    yield from Claim.of(f"{block}: accuracy is the same with async and sync swaps (async - sync)", parts)


def _means(table: Table, block: str) -> Iterator[Claim]:
    for at in table.ats(block, "icarl"):
        parts = [more(name, a.values(), b.values()) for name, a, b in table.pairs(block, "CarM-100", "Original", at)]
        yield from Claim.of(f"{block}: classified by the {at}: CarM-100 is more accurate than the Original", parts)


def _slots(table: Table, block: str) -> Iterator[Claim]:
    for at in table.ats(block, "tiny-er"):
        parts = [more(name, a.values(), b.values()) for name, a, b in table.pairs(block, "CarM-100", "Original", at)]
        yield from Claim.of(f"{block}: {at}: CarM-100 is more accurate than the Original", parts)


def _joint(table: Table, block: str) -> Iterator[Claim]:
    parts = [more(name, a.values(), b.values()) for name, a, b in table.pairs(block, "Joint", "Original")]
    yield from Claim.of(f"{block}: all classes at once are learned better: the memory is the bottleneck", parts)


_JUDGES: dict[str, Callable[[Table, str], Iterator[Claim]]] = {
    "table1": _settings,
    "policies": _policies,
    "distill": _distill,
    "icarl-features": _features,
    "em-size": _sizes,
    "swap-ratio": _ratios,
    "storage-size": _storage,
    "tasks-50": _settings,
    "incremental": _over_tasks,
    "rm-da": _settings,
    "device": _device,
    "reference": _reference,
    "ceiling": _ceiling,
    "workers": _workers,
    "icarl-means": _means,
    "tiny-er-slots": _slots,
    "joint": _joint,
}
