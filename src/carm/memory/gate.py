"""What may leave the RAM tier: the gate, which picks the old samples of a mini-batch that are swapped.

A gate scores the old samples that training has just used, and the samples with the lowest scores are swapped: a high
score means "keep". How many they are is the gate's ratio.

    class Shortest(Gate):                           # a gate of your own: swap what has the smallest logits
        needs_logits = True
        def score(self, signals, rng):
            return signals.logits.norm(dim=1).double().cpu().numpy()
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Signals:
    """What the training forward that has just been made tells about the n old samples of a mini-batch."""

    y: NDArray[np.int64]  # labels (n,)
    logits: torch.Tensor | None = None  # (n, columns), detached, any float type, any device
    target: torch.Tensor | None = None  # (n,) column of the right answer; None: the label is the column
    seen: torch.Tensor | None = None  # columns of the classes seen so far (int64, ascending); None: all
    progress: float = 0.0  # in [0, 1): how far through the passes over this bundle; 0 where there is only one pass


class Gate:
    """Base class. Override `score`; set `needs_logits` if it reads logits.

    `ratio` is the share of the old samples that is swapped: a number in [0, 1], or "auto" for as many as storage keeps
    up with. With `balanced` the swapped samples are spread over the classes of the mini-batch as evenly as possible.
    """

    needs_logits: bool = False
    # Here, too, so that an __init__ in a subclass needs no super().
    balanced: bool = False
    _ratio: float | str = 1.0
    auto: AutoRatio | None = None  # flow control: the memory asks it for the budget
    _carry: float = 0.0  # what rounding has left of ratio * n so far

    def __init__(self, ratio: float | str = 1.0, *, balanced: bool = False) -> None:
        self.ratio = ratio
        self.balanced = balanced

    @property
    def ratio(self) -> float | str:
        """The share that is swapped. It may be set to another at any time."""
        return self._ratio

    @ratio.setter
    def ratio(self, ratio: float | str) -> None:
        if ratio != "auto" and not (isinstance(ratio, (int, float, np.floating)) and 0.0 <= ratio <= 1.0):
            raise ValueError(f'ratio={ratio!r} is neither a number from 0 to 1 nor "auto"')
        self._ratio = ratio if isinstance(ratio, str) else float(ratio)
        self.auto = AutoRatio() if ratio == "auto" else None

    def score(self, signals: Signals, rng: np.random.Generator) -> NDArray[np.float64]:
        """A number for each of the n samples; the lowest are swapped, equals in random order."""
        raise NotImplementedError(f"{type(self).__name__} must define score(signals, rng)")

    def pick(self, signals: Signals, rng: np.random.Generator, *, budget: int | None = None) -> NDArray[np.int64]:
        """The positions of the samples that are swapped, at most `budget`, lowest score first.

        Their number is ratio * n on average, whatever n: the fraction is carried over to the next mini-batch. What
        `budget` cuts off is not: that would be made up for just when storage is slow.
        """
        n = len(signals.y)
        k = n
        if isinstance(self.ratio, float) and self.ratio < 1.0:
            share = self._carry + self.ratio * n
            k = int(share + 1e-9)  # so that 5 * 0.2 is 1, whatever the sum of the floats is
            self._carry = share - k
        if budget is not None and budget < k:
            k = budget
        if k >= n:
            return np.arange(n)
        if k <= 0:
            return np.zeros(0, np.int64)
        scores = np.asarray(self.score(signals, rng))
        if scores.shape != (n,):
            raise ValueError(f"{type(self).__name__}.score returned shape {scores.shape}, ({n},) is expected")
        order = np.lexsort((rng.random(n), scores))
        if self.balanced:  # in turns: the lowest of every class, then the second lowest of every class, ...
            by_class = order[np.argsort(signals.y[order], kind="stable")]
            y, place = signals.y[by_class], np.arange(n)
            begin = np.concatenate([[True], y[1:] != y[:-1]])
            turn = np.empty(n, np.int64)
            turn[by_class] = place - np.maximum.accumulate(place * begin)
            order = order[np.argsort(turn[order], kind="stable")]
        return order[:k]

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold. `auto` is not in it: it learns the machine that it runs on in a few steps."""
        return {"carry": self._carry}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._carry = float(state["carry"])


class Random(Gate):
    """Every old sample is as likely to be swapped as every other."""

    def score(self, signals: Signals, rng: np.random.Generator) -> NDArray[np.float64]:
        return rng.random(len(signals.y))


class Entropy(Gate):
    """Swap what the model is sure of and right about; keep what it is sure of and wrong about.

    The score is H/U where the prediction is right and 1 - H/U where it is wrong. H is the entropy (natural logarithm)
    of the softmax over the columns of the classes seen, U = log(number of these columns) its largest possible value.
    With a single column both are 0, and the score is that of full confidence: 0 if right, 1 if wrong.
    A logit of minus infinity is a class that is masked out. Where logits are NaN or plus infinity the score is 0.5.
    """

    needs_logits = True

    def score(self, signals: Signals, rng: np.random.Generator) -> NDArray[np.float64]:
        logits, target, seen, n = signals.logits, signals.target, signals.seen, len(signals.y)
        if logits is None:
            raise ValueError(f"{type(self).__name__} needs logits: call memory.feedback(batch, logits)")
        if logits.ndim != 2 or len(logits) != n:
            raise ValueError(f"logits has shape {tuple(logits.shape)}, one row for each of {n} old samples is expected")
        columns, logits = logits.shape[1], logits.detach()
        if seen is not None and len(seen) == columns:
            seen = None  # all of them
        if seen is not None:
            seen = _checked(seen, columns).to(logits.device)
            logits = logits.index_select(1, seen)
        target = torch.from_numpy(signals.y) if target is None else target
        if logits.device.type == "cpu":
            (h, best), right = _entropy(logits), target.cpu().numpy()
        else:
            h, best, right = _entropy_there(logits, target.to(logits.device))
        predicted = best if seen is None else seen.cpu().numpy()[best]
        if n and not 0 <= (low := int(right.min())) <= (high := int(right.max())) < columns:
            raise ValueError(
                f"the right answer {low if low < 0 else high} is none of the {columns} columns of the logits: pass the "
                "column of each old sample, memory.feedback(batch, logits, target=...)"
            )
        share = h.astype(np.float64) / (math.log(logits.shape[1]) if logits.shape[1] > 1 else 1.0)
        scores = np.minimum(np.maximum(np.where(predicted == right, share, 1.0 - share), 0.0), 1.0)  # rounding
        scores[np.isnan(scores)] = 0.5
        return scores


def _checked(seen: torch.Tensor, columns: int) -> torch.Tensor:
    """Complain about columns that do not exist (on a GPU only about there being none: to look would be to wait)."""
    if len(seen) == 0 or (seen.device.type == "cpu" and not 0 <= seen.numpy()[0] <= seen.numpy()[-1] < columns):
        raise ValueError(f"seen={seen.tolist()} is expected to be columns of the logits, ascending, 0 to {columns - 1}")
    return seen


def _entropy(logits: torch.Tensor) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Of every row the entropy of its softmax, and the column with most of it. With numpy: a mini-batch's few old
    samples take torch longer to begin with than to work out."""
    z = logits.float().numpy()
    best = z.argmax(1)
    with np.errstate(invalid="ignore"):  # infinity less infinity is NaN, and stays
        z = np.maximum(z - z[np.arange(len(z)), best][:, None], -1e4)  # of which the exponential is 0
    e = np.exp(z)
    total = e.sum(1)
    return np.log(total) - np.einsum("ij,ij->i", e, z) / total, best


def _entropy_there(logits: torch.Tensor, target: torch.Tensor) -> list[NDArray[Any]]:
    """The same on a GPU, and the targets. All is brought from there in one go: every copy waits for it."""
    p = torch.softmax(logits, 1, dtype=torch.float32)
    found = torch.stack([torch.special.entr(p).sum(1).double(), p.argmax(1).double(), target.double()])
    h, best, right = found.cpu().numpy()
    return [h, best.astype(np.int64), right.astype(np.int64)]


class Dynamic(Entropy):
    """Random in the first half of the passes over a bundle, Entropy in the second; Random if there is only one pass."""

    def score(self, signals: Signals, rng: np.random.Generator) -> NDArray[np.float64]:
        return rng.random(len(signals.y)) if signals.progress < 0.5 else super().score(signals, rng)


class AutoRatio:
    """How many swaps may be ordered in a step so that storage is fully used and yet orders do not queue up.

    In every step the orders under way are filled up to a window, and

        window = rate * (1.25 * delay + 2 * step)

    - `rate` is the throughput in swaps per second. When orders are left over from the last step, storage was busy all
      the time, and the rate follows what was completed. When none are left, that was only a lower bound.
    - `delay` is how long an order takes that has none ahead of it: the smallest age seen.
    - `step` is the time between two steps, or where several are judged together, between two of those. Orders are
      placed, and found completed, only once per step; two of them make up for that, and are what queueing may cost.

    While storage keeps up, window/delay orders are completed per second, so the next window is larger by a quarter and
    more. Once storage is saturated, the rate no longer follows the window, and the window stays: an order then has the
    age window/rate, a quarter more than the delay plus two to three steps. If storage gets slower or stalls, the rate
    falls and the window with it, down to 2 orders, which are enough to notice that it has recovered. No step orders
    more than 1.5 times what a step completes: even orders keep storage busier than the same number in bursts.

    Queueing hides the delay, and it may have changed. When for some seconds (3 to 30, by the delay) no order was about
    as quick as `delay`, the window is closed to one order until one has come back that had none ahead of it.
    """

    def __init__(self) -> None:
        self.window = 4.0
        self.rate = 0.0
        self.delay = math.inf
        self.step = 0.0
        self._last = math.inf  # when the last step was
        self._done, self._age = 0, 0.0  # completed since then, and the largest age among them
        self._confirmed = math.inf  # when an order was last as quick as `delay`
        self._closed = False  # the window is closed to measure the delay anew ...
        self._drained = math.inf  # ... and since then one order is under way at most

    def completed(self, k: int, now: float, oldest_age: float) -> None:
        """`k` swaps were published; the oldest of them had been ordered `oldest_age` seconds ago."""
        if k <= 0:
            return
        self._done += k
        self._age = max(self._age, oldest_age)
        alone = now - oldest_age > self._drained - 1e-6
        if alone or oldest_age < self.delay + 0.5 * self.step:
            self.delay = oldest_age if alone else min(self.delay, oldest_age)
            self._confirmed, self._closed, self._drained = now, False, math.inf

    def allow(self, n: int, outstanding: int, now: float) -> int:
        """How many of `n` swaps may be ordered now, while `outstanding` orders are under way."""
        dt = now - self._last
        self._last = now
        if dt > 0.0:
            # A pause, for an evaluation say, is not a step.
            self.step += 0.1 * (min(dt, 4.0 * self.step) - self.step) if self.step else dt
            if not outstanding:
                self.rate = max(self.rate, self._done / max(dt, self._age))
            elif not self._closed:
                self.rate += 0.1 * (self._done / dt - self.rate)
        self._done, self._age = 0, 0.0
        if self.delay < math.inf:
            self.window = max(2.0, self.rate * (1.25 * self.delay + 2.0 * self.step))
            self._closed |= now - self._confirmed > max(100.0 * self.step, min(max(3.0, 40.0 * self.delay), 30.0))
        if self._closed and outstanding <= 1:
            self._drained = min(self._drained, now)
        window = 1 if self._closed else math.ceil(self.window)
        paced = max(2, math.ceil(1.5 * self.rate * self.step))
        return min(n, paced, max(window - outstanding, 0))
