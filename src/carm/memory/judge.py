"""Stage R, first half: shows the gate what training made of old samples, and has those that may go replaced.

After a training step the processor's caches hold nothing of this: the few calls that it takes cost ten times what they
cost in a row, and push out what the next step needs. So where steps follow each other fast, what training says of
several small batches is kept, and judged together. Samples of a pass are not drawn again before it is over, so they may
wait; those of random draws might be, and would then be learnt from twice, so only few of a large memory do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from carm.memory.batch import Batch
from carm.memory.carousel import Carousel
from carm.memory.gate import Gate, Signals
from carm.memory.interrupt import uninterrupted
from carm.memory.ram import RamTier
from carm.memory.stats import Stats

Ints = NDArray[np.int64]
_QUICK = 0.05  # seconds between two steps that follow each other fast
_PATIENCE = 0.1  # seconds that a batch waits for others at most
_ENOUGH = 128  # samples that are not worth waiting for more
_RARE = 20  # of so many slots one may wait that might be drawn again: two or three in a hundred of those that wait are


@dataclass(slots=True)
class Heard:
    """What training made of a batch."""

    gate: Gate
    slots: Ints
    ids: Ints
    logits: Any
    target: Any
    progress: float


class Judge:
    """Between `feedback` and the swaps that come of it."""

    def __init__(
        self,
        ram: RamTier,
        carousel: Carousel,
        stats: Stats,
        rng: np.random.Generator,
        columns: Callable[[torch.Tensor | None], torch.Tensor | None],
        *,
        at_once: bool,
    ) -> None:
        self.ram, self.carousel, self.stats, self.rng = ram, carousel, stats, rng
        self.at_once = at_once
        """Whether no batch waits for others, so that runs repeat exactly."""
        self._columns = columns
        self._heard: list[Heard] = []
        self._count = 0  # old samples in it
        self._since = self._last = 0.0  # when the first and the last of it came

    @property
    def waits(self) -> bool:
        """Whether there are batches that have not been judged."""
        return bool(self._heard)

    def forget(self) -> None:
        """Judge nothing of what waits."""
        self._heard, self._count = [], 0

    def hear(self, gate: Gate, batch: Batch, logits: Any, target: Any, progress: float) -> int:
        """Judge a batch now, or soon, together with others. Returns how many swaps were ordered."""
        n, olds = len(batch), batch.olds
        if olds == 0 or gate.ratio == 0.0:
            return 0
        needed = gate.needs_logits and not _takes_all(gate)
        if needed and logits is None:
            raise ValueError(f"{type(gate).__name__} needs logits: call memory.feedback(batch, logits)")
        now = time.monotonic()
        quick, self._last = now - self._last < _QUICK, now
        may_wait = batch.of_pass or (self._count + olds) * _RARE <= self.ram.capacity
        waits = quick and may_wait and not self.at_once
        if not needed:
            logits = target = None
        elif waits:
            waits = _plain(logits, 2, n) and (target is None or _plain(target, 1, n))
            if waits:  # a model may write its next output over this one
                logits = logits.detach().clone()
                target = None if target is None else target.clone()
        if not self._heard:
            self._since = now
        self._heard.append(Heard(gate, batch.slots, batch.ids, logits, target, progress))
        self._count += olds
        return self.judge_due(now) if waits else self.judge()

    def judge_due(self, now: float | None = None) -> int:
        """Judge what waits, if it is much or has waited long."""
        if self._count < _ENOUGH:
            # What the last batches of a pass let go should be replaced early in the next one.
            enough = min(self.ram.spare_records, self.ram.capacity // 4)
            since = (time.monotonic() if now is None else now) - self._since
            if self._count < enough and since <= _PATIENCE:
                return 0
        return self.judge()

    def judge(self) -> int:
        """Judge what waits. Returns how many swaps were ordered."""
        heard, self._heard, self._count = self._heard, [], 0
        if not heard:
            return 0
        if len(heard) > 1 and all(_takes_all(one.gate) for one in heard):
            slots, ids = np.concatenate([one.slots for one in heard]), np.concatenate([one.ids for one in heard])
            heard = [Heard(heard[0].gate, slots, ids, None, None, heard[0].progress)]
        picked: list[tuple[Ints, Ints]] = []
        auto = heard[-1].gate.auto
        if auto is not None:
            budget = auto.allow(sum(len(one.slots) for one in heard), self.carousel.outstanding, time.monotonic())
            for left, one in zip(range(len(heard), 0, -1), heard, strict=True):  # in equal shares
                picked.append(self._pick(one, -(-budget // left)))
                budget -= len(picked[-1][0])
        else:
            picked = [self._pick(one) for one in heard]
        if len(picked) == 1:
            slots, ids = picked[0]
        else:
            slots, ids = (np.concatenate(parts) for parts in zip(*picked, strict=True))
        if not len(slots):
            return 0
        with uninterrupted():
            return self.carousel.order(slots, ids)

    def _pick(self, heard: Heard, budget: int | None = None) -> tuple[Ints, Ints]:
        """Slots and ids of the samples that may go, at most `budget`."""
        ram, gate, slots, ids, total = self.ram, heard.gate, heard.slots, heard.ids, len(heard.slots)
        rows = among = None  # positions, in the batch and among its old samples, of those that count, if not all do
        inside = slots.view(np.uint64) < ram.table  # that is, neither new nor cut off: as unsigned, -1 is very large
        olds = total
        if np.count_nonzero(inside) < olds and slots.min() < 0:
            rows = np.flatnonzero(slots >= 0)
            slots, ids, inside = slots[rows], ids[rows], inside[rows]
            olds = len(slots)
        if olds == 0:
            return slots, ids
        inside &= ram.ids.take(slots, mode="clip") == ids
        if np.count_nonzero(inside) < olds:
            # Their slots have changed hands: neither their labels nor their logits mean anything now.
            among = np.flatnonzero(inside)
            self.stats.dropped["stale"] += olds - len(among)
            rows = among if rows is None else rows[among]
            slots, ids = slots[among], ids[among]
        if _takes_all(gate):
            return slots, ids
        y = ram.labels[slots]
        if not gate.needs_logits:
            signals = Signals(y, progress=heard.progress)
        else:
            scores = _rows("logits", heard.logits, 2, total, olds, rows, among)
            right = _rows("target", heard.target, 1, total, olds, rows, among)
            seen = self._columns(scores) if right is None else None
            signals = Signals(y, scores, right, seen, heard.progress)
        picked = gate.pick(signals, self.rng, budget=budget)
        return slots[picked], ids[picked]


def _takes_all(gate: Gate) -> bool:
    """Whether there is nothing to pick."""
    return gate.ratio == 1.0 and gate.auto is None and type(gate).pick is Gate.pick


def _plain(given: Any, ndim: int, n: int) -> bool:
    """Whether something is as it should be beyond doubt, so that it may be looked at later."""
    return isinstance(given, torch.Tensor) and given.ndim == ndim and len(given) == n


def _rows(
    name: str, given: Any, ndim: int, total: int, olds: int, rows: Ints | None, among: Ints | None
) -> torch.Tensor | None:
    """Of what was given for all samples of a batch, or for its old ones, the part for those that count."""
    if given is None:
        return None
    values = torch.as_tensor(given).detach()
    if values.ndim != ndim or len(values) not in (total, olds):
        raise ValueError(
            f"{name} has shape {tuple(values.shape)}; it needs one row for each of the {total} samples of the batch, "
            f"or of its {olds} old ones"
        )
    index = rows if len(values) == total else among
    return values if index is None else values.index_select(0, torch.from_numpy(index).to(values.device))
