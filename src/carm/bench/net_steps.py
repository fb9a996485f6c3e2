"""What a training step of a net takes, by itself: in both memory layouts, compiled or not, beside its augmentation.

The step is forward, loss, backward and optimizer on a batch that is there already. Both sides have the same net, and
take turns.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from carm import nets
from carm.bench.net_sizes import Setting
from carm.bench.report import Row, amount, compare
from carm.bench.timing import Measure, alternate
from carm.data.augment import recipe
from carm.data.views import Views
from carm.nets import Net
from carm.nets.threads import torch_threads

_CLASSES = 10
_FLAT = (1, 28, 28)
_COLOUR = (3, 32, 32)


def shape_of(name: str) -> tuple[int, int, int]:
    """What a net is used on: MNIST or CIFAR."""
    return _FLAT if name.startswith("mlp") else _COLOUR


class Step:
    """One net in training, on random images."""

    def __init__(self, name: str, batch: int, *, channels_last: bool) -> None:
        self.net: Net = nets.build(name, in_shape=shape_of(name), classes=_CLASSES)
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(batch, *shape_of(name), generator=generator)
        self.y = torch.randint(_CLASSES, (batch,), generator=generator)
        if channels_last:
            self.net = self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01, momentum=0.9)

    def __call__(self) -> float:
        """One step; returns its seconds."""
        begun = time.perf_counter()
        loss: Tensor = F.cross_entropy(self.net(self.x), self.y)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return time.perf_counter() - begun


def _warm(sides: dict[str, Any], times: int) -> None:
    for side in sides.values():
        for _ in range(times):
            side()


def several(step: Step, at_least: float = 0.05) -> Measure:
    """So many steps of a small net that a timer's and a scheduler's unsteadiness does not count."""
    count = max(1, round(at_least / step()))

    def measure() -> float:
        return sum(step() for _ in range(count)) / count

    return measure


# -- the memory layout -------------------------------------------------------------------------------------------------


def channels_last(setting: Setting) -> list[Row]:
    """`channels-last`: the layout with a pixel's channels side by side, which `carm run` uses, against the usual."""
    rows = []
    for name, batch in setting.sizes.layouts:
        steps = {"last": Step(name, batch, channels_last=True), "first": Step(name, batch, channels_last=False)}
        _warm(steps, setting.sizes.warm_up)
        sides = {side: several(step) for side, step in steps.items()}
        measured = alternate(sides, setting.sizes.repetitions)
        row = compare(
            "channels-last",
            f"{name}, batches of {batch}",
            measured["last"],
            measured["first"],
            of="speed",
            unit="ms",
            against="contiguous",
        )
        rows.append(replace(row, note=_verdict(name, row)))
    return rows


def _verdict(name: str, row: Row) -> str:
    """What to say about a layout that does not help."""
    if row.spread.quartile1 > 1:
        return ""
    worse = "it is slower, and should be off" if row.spread.quartile3 < 1 else "no clear difference"
    return f"{name}: {worse}"


# -- compiling ---------------------------------------------------------------------------------------------------------


def compiled(setting: Setting) -> list[Row]:
    """`compile`: the backbone through torch.compile against as it is, and what compiling takes.

    Only the backbone, as the head grows with every task and would be compiled again each time. What the smaller last
    batch of a pass and testing would need compiled as well is not counted.
    """
    sizes = setting.sizes
    rows = []
    for name, batch in sizes.compiled:
        with torch_threads(1 if name.startswith("mlp") else 0):  # as `carm run` has it
            torch.compiler.reset()
            steps = {side: Step(name, batch, channels_last=nets.channels_last(name)) for side in ("compiled", "eager")}
            steps["compiled"].net.backbone.compile()
            first = steps["compiled"]()
            _warm(steps, sizes.warm_up)
            measured = alternate({side: several(step) for side, step in steps.items()}, sizes.repetitions)
        gain = float(np.median(np.subtract(measured["eager"], measured["compiled"])))
        even = f"even after {first / gain:,.0f} steps" if gain > 0 else "a step gains nothing"
        row = compare(
            "compile",
            f"{name}, batches of {batch}",
            measured["compiled"],
            measured["eager"],
            of="speed",
            unit="ms",
            against="not compiled",
        )
        clear = row.spread.quartile1 > 1
        said = "faster when compiled: `--compile yes` in long runs" if clear else "no clear gain"
        rows.append(replace(row, note=f"{name}: {said}"))
        rows.append(amount("compile", f"{name}: compiling, once for each run", [first], unit="s", against=even))
    return rows


# -- augmentation ------------------------------------------------------------------------------------------------------


def augment(setting: Setting) -> list[Row]:
    """`augment`: CIFAR's crop, flip and normalisation, as a share of the step that follows."""
    batch = setting.sizes.batch
    images = torch.randint(256, (batch, *_COLOUR), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    views = Views(recipe("cifar-100"), channels_last=True)

    def augmenting() -> float:
        begun = time.perf_counter()
        for _ in range(5):
            views.train(images)
        return (time.perf_counter() - begun) / 5

    rows: list[Row] = []
    for name in setting.sizes.against:
        step = Step(name, batch, channels_last=True)
        _warm({"augment": augmenting, "step": step}, setting.sizes.warm_up)
        measured = alternate({"augment": augmenting, "step": several(step)}, setting.sizes.repetitions)
        if not rows:
            one = float(np.median(measured["augment"])) / batch
            rows.append(amount("augment", f"one image, in batches of {batch}", [one], unit="us", against="by itself"))
        rows.append(
            compare(
                "augment",
                f"a batch of {batch}",
                measured["augment"],
                measured["step"],
                of="cost",
                unit="ms",
                against=f"a training step of {name}",
            )
        )
    return rows
