"""What the RAM tier keeps: the rule by which incoming samples get slots.

A selection sees labels and slots, never samples. For every incoming sample it names the slot that the sample takes, or
-1. It is not told when a swap exchanges a slot's sample for another one of the same class, nor when the memory empties
a slot. Whatever it remembers about a slot is therefore a hint, and `slots.sets` is the truth.

    class KeepFirst(Selection):                     # a selection of your own: keep the first samples, then nothing
        def place(self, y, slots, rng, signals, ram_signals):
            out, free = np.full(len(y), -1), slots.free()[: len(y)]
            out[: len(free)] = free
            return out
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from carm.memory.classes import ClassSets

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]
Generator = np.random.Generator
S = TypeVar("S", bound="Selection")


class Slots(Protocol):
    """The RAM tier as a selection sees it."""

    @property
    def capacity(self) -> int: ...  # number of slots

    @property
    def sets(self) -> ClassSets: ...  # slots in use, by class label

    def free(self) -> Ints: ...  # unused slots, ascending

    def __len__(self) -> int: ...  # number of slots in use


class Selection:
    """Base class. Override `place`.

    Attributes that a checkpoint must hold are named in `saved`; what belongs to a slot is kept in a `slot_array`.
    """

    saved: ClassVar[tuple[str, ...]] = ()
    slot_state: dict[str, NDArray[Any]]

    def __new__(cls: type[S], *args: Any, **kwargs: Any) -> S:
        self = object.__new__(cls)
        self.slot_state = {}  # here and not in __init__, so that an __init__ in a subclass needs no super()
        return self

    def place(self, y: Ints, slots: Slots, rng: Generator, signals: Arrays, ram_signals: Arrays) -> Ints:
        """For each incoming sample the slot it takes (if in use, its sample leaves RAM), or -1: not kept in RAM.

        No slot is named twice. `signals` has one entry per incoming sample, `ram_signals` one per slot of the RAM tier.
        """
        raise NotImplementedError(f"{type(self).__name__} must define place(y, slots, rng, signals, ram_signals)")

    def slot_array(self, name: str, capacity: int, dtype: DTypeLike = np.int64) -> NDArray[Any]:
        """The array `name` with an item for every slot; 0 for slots about which nothing is known."""
        array = self.slot_state.get(name)
        if array is None or len(array) < capacity:
            array = self.slot_state[name] = _padded(np.zeros(0, dtype) if array is None else array, capacity)
        return array

    def resized(self, kept: Ints, capacity: int) -> None:
        """After a resize: slot `i` now holds what slot `kept[i]` held."""
        old = int(np.max(kept, initial=-1)) + 1
        for name, array in self.slot_state.items():
            self.slot_state[name] = _padded(_padded(array, old)[kept], capacity)

    def refilled(self, seen: int) -> None:
        """RAM was filled at random from a store that has taken in `seen` samples; most selections need not know."""

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold: numbers, strings, containers and tensors only."""
        numbers = {name: copy.deepcopy(getattr(self, name)) for name in self.saved}
        slots = {name: torch.from_numpy(array.copy()) for name, array in self.slot_state.items()}
        return {"kind": type(self).__name__, **numbers, "slots": slots}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state["kind"] != type(self).__name__:
            raise ValueError(f"select={type(self).__name__}() cannot load the state of select={state['kind']}()")
        for name in self.saved:
            setattr(self, name, copy.deepcopy(state[name]))
        self.slot_state = {name: torch.as_tensor(a).numpy().copy() for name, a in state["slots"].items()}


def _padded(array: NDArray[Any], length: int) -> NDArray[Any]:
    return np.concatenate([array, np.zeros(max(length - len(array), 0), array.dtype)])


def _signal(user: Selection, name: str, given: Arrays, length: int, *, ram: bool = False) -> NDArray[Any]:
    """The signal `name`, one row per sample or slot, or an error that says how to pass it."""
    argument, entry = ("ram_signals", "slot of the RAM tier") if ram else ("signals", "incoming sample")
    how = f'memory.add(..., {argument}={{"{name}": ...}}) with one entry per {entry}'
    if name not in given:
        raise ValueError(f'{type(user).__name__} needs the signal "{name}": call {how}')
    array = np.asarray(given[name])
    if array.ndim == 0 or len(array) != length:
        raise ValueError(f'{argument}["{name}"] has shape {array.shape}, {length} entries are expected: call {how}')
    return array


# -- by chance ---------------------------------------------------------------------------------------------------------


class Reservoir(Selection):
    """Uniform over everything seen: after n samples each of them is in RAM with probability capacity/n (algorithm R).

    Slots that come free later (emptied by the memory, or added by a resize) are put to use at once, and the bias that
    this must bring is undone as soon as it can be. Suppose m slots are left, which stand for the t samples seen so far,
    and f are free. Each old sample is in RAM with probability m/t, and nothing can raise that. So the f slots become a
    reservoir of their own over the samples that come from now on, and the m slots are left alone, until N = t f/m
    samples have come. By then the new ones, too, are there with probability f/N = m/t: both parts together are a
    uniform sample of t + N, and algorithm R goes on over all slots. If more slots come free before that, it begins anew
    with everything in RAM counted as old, which is no longer exact. The first filling is the case m = t = 0.
    """

    saved = ("seen", "late")

    def __init__(self) -> None:
        self.seen = 0  # samples for which the slots stand, without the late ones
        self.late = 0  # samples since slots came free; the slots marked in the slot array "young" stand for them

    def place(self, y: Ints, slots: Slots, rng: Generator, signals: Arrays, ram_signals: Arrays) -> Ints:
        n, capacity, used = len(y), slots.capacity, len(slots)
        u = rng.random(n)
        out = np.full(n, -1, np.int64)
        begin = 0
        if self.late or used < capacity:
            begin = self._fill(u, out, slots)
        elif self.seen < used:  # RAM was filled by someone else
            self.seen = used
        # Sample number t draws one of t numbers; those below the capacity are slots.
        draw = (u[begin:] * np.arange(self.seen + 1, self.seen + n - begin + 1)).astype(np.int64)
        self.seen += n - begin
        hits = np.flatnonzero(draw < capacity)
        out[begin + hits] = draw[hits]
        return _last_wins(out) if begin or len(hits) > 1 else out

    def _fill(self, u: Floats, out: Ints, slots: Slots) -> int:
        """Place as many samples as belong to the young slots; how many these were."""
        young, free = self.slot_array("young", slots.capacity, np.bool_), slots.free()
        if len(free) != max(int(np.count_nonzero(young)) - self.late, 0):  # slots came free that we do not know of
            used = len(slots)
            self.seen, self.late = (max(self.seen + self.late, used) if used else 0), 0
            young[:] = False
            young[free] = True
        places = np.flatnonzero(young)
        f, m = len(places), slots.capacity - len(places)
        end = max(f, -(-self.seen * f // m) if m else 0)  # N of the docstring
        n, fill = min(len(u), end - self.late), min(len(u), len(free))
        out[:fill] = free[:fill]
        draw = (u[fill:n] * np.arange(self.late + fill + 1, self.late + n + 1)).astype(np.int64)
        hits = np.flatnonzero(draw < f)
        out[fill + hits] = places[draw[hits]]
        self.late += n
        if self.late >= end:
            self._settle()
        return n

    def _settle(self) -> None:
        self.seen, self.late = self.seen + self.late, 0
        self.slot_state.pop("young", None)

    def refilled(self, seen: int) -> None:
        self.seen = max(self.seen, seen)

    def resized(self, kept: Ints, capacity: int) -> None:
        self._settle()
        super().resized(kept, capacity)


def _last_wins(out: Ints) -> Ints:
    """Where samples of one batch drew the same slot, the last one has pushed out the others."""
    taken = np.flatnonzero(out >= 0)
    last = dict(zip(out[taken].tolist(), taken.tolist(), strict=True))
    if len(last) < len(taken):
        out[:] = -1
        out[list(last.values())] = list(last)
    return out


class GreedyBalanced(Selection):
    """GDumb's greedy sampler, which evens out the classes.

    A sample is kept while there is room. Then one of a class that is not a largest one replaces a random sample of a
    random largest class, and one of a largest class is not kept.
    """

    def place(self, y: Ints, slots: Slots, rng: Generator, signals: Arrays, ram_signals: Arrays) -> Ints:
        n, sets = len(y), slots.sets
        out = np.full(n, -1, np.int64)
        room = 0
        if len(slots) < slots.capacity:
            free = slots.free()[:n]
            room = len(free)
            out[:room] = free
        if room == n:
            return out
        # The classes are counted once per batch; then a sample costs the same however many classes and slots there are.
        labels: list[int] = y.tolist()
        counts = _Counts({label: sets.count(label) for label in [*sets.labels, *labels]})
        classes = {label: _Changing(sets, label) for label in labels[:room]}
        for label, slot in zip(labels, out[:room].tolist(), strict=False):
            classes[label].add(slot)
            counts.move(label, 1)
        owner = dict(zip(out[:room].tolist(), range(room), strict=True))  # slot -> sample of this batch that has it
        top = max(counts.of.values())
        draws = rng.random((n - room, 2)).tolist()
        for i, (u, v) in zip(range(room, n), draws, strict=True):
            label = labels[i]
            if counts.of[label] == top:
                continue
            ties = counts.having[top]
            largest = ties[int(u * len(ties))]
            for c in (label, largest):
                if c not in classes:
                    classes[c] = _Changing(sets, c)
            slot = classes[largest].pop(v)
            classes[label].add(slot)
            counts.move(largest, -1)
            counts.move(label, 1)
            if not ties:
                top -= 1
            if slot in owner:
                out[owner[slot]] = -1
            out[i], owner[slot] = slot, i
        return out


class _Counts:
    """Number of samples of each class, and the classes that have a given number."""

    def __init__(self, of: dict[int, int]) -> None:
        self.of = of
        self.having: dict[int, list[int]] = {}
        self._position = {}
        for label, count in of.items():
            same = self.having.setdefault(count, [])
            self._position[label] = len(same)
            same.append(label)

    def move(self, label: int, by: int) -> None:
        same, position = self.having[self.of[label]], self._position
        last = same.pop()
        if last != label:  # the last one fills the hole
            same[position[label]], position[last] = last, position[label]
        self.of[label] += by
        same = self.having.setdefault(self.of[label], [])
        position[label] = len(same)
        same.append(label)


class _Changing:
    """The slots of one class while a batch is being placed: those in `sets`, and over them the changes, by position."""

    __slots__ = ("_changes", "_count", "_label", "_sets", "size")

    def __init__(self, sets: ClassSets, label: int) -> None:
        self._sets, self._label = sets, label
        self._count = self.size = sets.count(label)
        self._changes: dict[int, int] = {}

    def _at(self, position: int) -> int:
        slot = self._changes.get(position)
        return self._sets.peek(self._label, (position + 0.5) / self._count) if slot is None else slot

    def add(self, slot: int) -> None:
        self._changes[self.size] = slot
        self.size += 1

    def pop(self, u: float) -> int:
        """Take out a member chosen with `u` uniform in [0, 1): the last member moves to its position."""
        position = int(u * self.size)
        slot = self._at(position)
        self.size -= 1
        self._changes[position] = self._at(self.size)
        return slot


# -- equal shares ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Arrival:
    """The arguments of `Selection.place`."""

    y: Ints
    slots: Slots
    rng: Generator
    signals: Arrays
    ram_signals: Arrays


class EqualShare(Selection):
    """Base of the selections that give every class the same share of RAM. Override `choose`: who stays in one class.

    A class with fewer samples than its share leaves the rest to the others, and gets it back when it has more samples.
    Slots that remain after an even division go to the classes with the lowest random keys. The key is a fixed function
    of the label: who has an extra slot does not change from batch to batch, and where there are more classes than
    slots, those in RAM are a random choice among all that came, neither the first ones nor the last ones.
    """

    saved: ClassVar[tuple[str, ...]] = ("salt",)
    salt = -1  # makes the keys; drawn from the memory's generator at first use

    def choose(self, label: int, old: Ints, new: Ints, share: int, arrival: Arrival) -> tuple[Ints, Ints]:
        """Of class `label` keep `share` of the slots `old` and the incoming samples `new`: (slots out, samples in)."""
        raise NotImplementedError(f"{type(self).__name__} must define choose(label, old, new, share, arrival)")

    def place(self, y: Ints, slots: Slots, rng: Generator, signals: Arrays, ram_signals: Arrays) -> Ints:
        out = np.full(len(y), -1, np.int64)
        if len(y) == 0:
            return out
        if self.salt < 0:
            self.salt = int(rng.integers(2**63))
        order = np.argsort(y, kind="stable")
        edges = np.flatnonzero(np.diff(y[order])) + 1
        incoming = {int(y[part[0]]): part for part in np.split(order, edges)}
        labels = list(dict.fromkeys([*slots.sets.labels, *incoming]))
        held = [slots.sets.count(label) for label in labels]
        none = order[:0]
        available = np.array([h + len(incoming.get(c, none)) for c, h in zip(labels, held, strict=True)], np.int64)
        shares = equal_shares(available, slots.capacity, _keys(labels, self.salt)).tolist()
        arrival = Arrival(y, slots, rng, signals, ram_signals)
        leaving, entering = [], []
        for label, h, share in zip(labels, held, shares, strict=True):
            if h <= share and label not in incoming:
                continue
            old = slots.sets.members(label).astype(np.int64)
            leave, enter = self.choose(label, old, incoming.get(label, none), share, arrival)
            leaving.append(leave)
            entering.append(enter)
        enter = np.concatenate(entering)
        # The shares use every slot for which there is a sample: either nobody leaves, or `enter` takes all of these.
        out[enter] = np.concatenate([*leaving, slots.free()])[: len(enter)]
        return out


def _keys(labels: list[int], salt: int) -> NDArray[np.uint64]:
    """A pseudo-random key per label (the mixing function of splitmix64)."""
    x: NDArray[np.uint64] = np.array(labels, np.int64).view(np.uint64) + np.uint64(salt)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def equal_shares(available: Ints, capacity: int, keys: NDArray[np.uint64]) -> Ints:
    """How many of its `available` samples each class keeps: all, or as many as every other class that cannot keep all.

    What remains of `capacity` (less than one slot for each of the latter) goes to those with the lowest keys.
    """
    if int(available.sum()) <= capacity:
        return available
    ascending = np.sort(available)
    below = np.cumsum(ascending) - ascending
    levels = (capacity - below) // np.arange(len(available), 0, -1)  # the level if the i smallest classes keep all
    level = int(levels[np.argmax(levels < ascending)])
    shares: Ints = np.minimum(available, level)
    more = np.flatnonzero(available > level)
    shares[more[np.argsort(keys[more], kind="stable")[: capacity - int(shares.sum())]]] += 1
    return shares


class Ring(EqualShare):
    """A ring buffer per class: equal shares, and within a class the oldest sample leaves first."""

    saved = ("salt", "clock")

    def __init__(self) -> None:
        self.clock = 0  # samples seen; the slot array "age" holds its value when the slot was taken

    def place(self, y: Ints, slots: Slots, rng: Generator, signals: Arrays, ram_signals: Arrays) -> Ints:
        out = super().place(y, slots, rng, signals, ram_signals)
        kept = np.flatnonzero(out >= 0)
        self.slot_array("age", slots.capacity)[out[kept]] = self.clock + 1 + kept
        self.clock += len(y)
        return out

    def choose(self, label: int, old: Ints, new: Ints, share: int, arrival: Arrival) -> tuple[Ints, Ints]:
        enter = new[max(len(new) - share, 0) :]
        surplus = len(old) + len(enter) - share
        if surplus <= 0:
            return old[:0], enter
        if surplus == len(old):
            return old, enter
        age = self.slot_array("age", arrival.slots.capacity)[old]
        return old[np.argpartition(age, surplus)[:surplus]], enter


class Herding(EqualShare):
    """iCaRL's exemplars: equal shares, and within a class the samples whose running mean is closest to the class mean.

    Needs `signals={"features": (n, d)}`; they are L2-normalised here. The slot array "rank" holds the order in which
    the samples of a class were picked: when the share falls, the last picked leave first.

    If a class gets more samples in a later `add`, its mean is that over all its samples so far. With
    `ram_signals={"features": (capacity, d)}` all candidates are herded together, and the samples in RAM stand for the
    mean of the earlier ones. Without, the new samples are herded among themselves, and join the old order in proportion
    to the numbers of samples that both sides stand for.
    """

    saved = ("salt", "counts")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}  # samples seen of each class

    def place(self, y: Ints, slots: Slots, rng: Generator, signals: Arrays, ram_signals: Arrays) -> Ints:
        if len(y) == 0:
            return np.zeros(0, np.int64)
        self._new = _signal(self, "features", signals, len(y))
        given = "features" in ram_signals
        self._old = _signal(self, "features", ram_signals, slots.capacity, ram=True) if given else None
        self._picked = np.zeros(len(y), np.int64)  # rank of the incoming samples, until they have a slot
        out = super().place(y, slots, rng, signals, ram_signals)
        kept = np.flatnonzero(out >= 0)
        self.slot_array("rank", slots.capacity)[out[kept]] = self._picked[kept]
        del self._new, self._old, self._picked  # features of a whole task are not kept until the next one
        return out

    def choose(self, label: int, old: Ints, new: Ints, share: int, arrival: Arrival) -> tuple[Ints, Ints]:
        ranks = self.slot_array("rank", arrival.slots.capacity)
        old = old[np.argsort(ranks[old], kind="stable")]
        if len(new) == 0:
            return old[share:], new
        before = max(self.counts.get(label, 0), len(old))
        self.counts[label] = before + len(new)
        features = _unit(self._new[new])
        if len(old) and self._old is not None:
            known = _unit(self._old[old])
            mean = (before * known.mean(0) + len(new) * features.mean(0)) / (before + len(new))
            order = herd(np.concatenate([known, features]), mean, share)
        else:
            picked = herd(features, features.mean(0), share)
            key = [(np.arange(len(old)) + 0.5) / max(before, 1), (np.arange(len(picked)) + 0.5) / len(new)]
            candidates = np.concatenate([np.arange(len(old)), len(old) + picked])
            order = candidates[np.argsort(np.concatenate(key), kind="stable")[:share]]
        is_old, rank = order < len(old), np.arange(len(order))
        stay, enter = order[is_old], new[order[~is_old] - len(old)]
        ranks[old[stay]] = rank[is_old]
        self._picked[enter] = rank[~is_old]
        return np.delete(old, stay), enter


def _unit(features: NDArray[Any]) -> Floats:
    """L2-normalised rows. A row that is not finite or has no length becomes 0: it must not spoil the class mean."""
    x = np.asarray(features, np.float64).reshape(len(features), -1)
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    good = np.isfinite(norm) & (norm > 0)
    return np.where(good, x, 0.0) / np.where(good, norm, 1.0)


def herd(features: Floats, mean: Floats, k: int) -> Ints:
    """The first `k` rows that herding picks, each the one that brings the mean of the picked rows closest to `mean`.

    Minimising |mean - (sum + row)/j| over the rows is maximising w.row - |row|^2/2 with w = j mean - sum.
    """
    out = np.zeros(min(k, len(features)), np.int64)
    step = features @ mean
    score = step - 0.5 * np.einsum("ij,ij->i", features, features)
    for j in range(len(out)):
        out[j] = i = int(np.argmax(score))
        score += step - features @ features[i]
        score[i] = -np.inf
    return out


class UncertaintySpread(EqualShare):
    """Rainbow Memory: equal shares, and within a class samples at even steps over the list sorted by uncertainty.

    Needs `signals={"uncertainty": (n,)}` and, as soon as a class in RAM gets a choice to make,
    `ram_signals={"uncertainty": (capacity,)}`.
    """

    def place(self, y: Ints, slots: Slots, rng: Generator, signals: Arrays, ram_signals: Arrays) -> Ints:
        if len(y):
            self._values(signals, len(y))  # complain at the first `add`, not when RAM is full
        return super().place(y, slots, rng, signals, ram_signals)

    def choose(self, label: int, old: Ints, new: Ints, share: int, arrival: Arrival) -> tuple[Ints, Ints]:
        total = len(old) + len(new)
        if total <= share:
            return old[:0], new
        values = self._values(arrival.signals, len(arrival.y))[new]
        if len(old):
            known = self._values(arrival.ram_signals, arrival.slots.capacity, ram=True)[old]
            values = np.concatenate([known, values])
        # Uncertainty counts a few votes, so there are many equals: in random order, or arrival would decide among them.
        ascending = np.lexsort((arrival.rng.random(total), values))
        chosen = ascending[np.arange(share) * total // max(share, 1)]
        is_old = chosen < len(old)
        return np.delete(old, chosen[is_old]), new[chosen[~is_old] - len(old)]

    def _values(self, given: Arrays, length: int, *, ram: bool = False) -> NDArray[Any]:
        values = _signal(self, "uncertainty", given, length, ram=ram)
        if values.size != length:
            raise ValueError(f'the signal "uncertainty" has shape {values.shape}, one number per entry is expected')
        return values.reshape(length)
