"""What happened so far, counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

REASONS = (
    "stale",  # the slot changed between draw and judgement
    "in flight",  # the slot has an order already
    "not stored yet",  # its sample is not on the device yet
    "queue full",  # as many orders are under way as there are spare rows
    "no other sample",  # storage has no other sample of that class
    "no room",  # the replacement is larger than what is free in the RAM tier
    "slot changed",  # the slot was given to a new sample while its replacement was read
    "corrupt",  # the replacement did not match its checksum
    "unreadable",  # the device could not read the replacement; it stays in storage
    "worker died",  # the order was lost with the worker
    "too large for RAM",  # a new sample does not fit the RAM tier at all
)
"""Why an order was not made, or not carried out."""

_COUNTERS = (
    *("added", "stored", "unstored", "drawn", "picked", "ordered", "swapped", "squeezed"),
    *("bytes_read", "bytes_written", "worker_restarts", "deepest"),
)


class Stats:
    """Counters of a Memory; plain attributes, because they change in every step."""

    def __init__(self) -> None:
        self.added = 0  # samples taken in
        self.stored = 0  # of these, on the device
        self.unstored = 0  # of these, not stored: no room
        self.drawn = 0  # samples given to training
        self.picked = 0  # samples that the gate let go
        self.ordered = 0  # swaps ordered
        self.swapped = 0  # swaps published
        self.squeezed = 0  # samples that left RAM early because larger ones came in
        self.bytes_read = 0
        self.bytes_written = 0
        self.worker_restarts = 0
        self.deepest = 0  # most swaps that were under way at once
        self.add_wait_seconds = 0.0  # time that `add` waited for storage
        self.dropped: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._ages = 0.0
        self._orders = 0
        self.oldest = 0.0

    def aged(self, seconds: float) -> None:
        """An order was reported `seconds` after it was made."""
        self._ages += seconds
        self._orders += 1
        if seconds > self.oldest:
            self.oldest = seconds

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _COUNTERS} | {
            "dropped": dict(self.dropped),
            "add_wait_seconds": self.add_wait_seconds,
            "order_age_mean": self._ages / self._orders if self._orders else 0.0,
            "order_age_max": self.oldest,
        }

    def state_dict(self) -> dict[str, Any]:
        return self.as_dict() | {"_ages": self._ages, "_orders": self._orders}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _COUNTERS:
            setattr(self, name, state[name])
        self.dropped = Counter(state["dropped"])
        self.add_wait_seconds = state["add_wait_seconds"]
        self._ages, self._orders, self.oldest = state["_ages"], state["_orders"], state["order_age_max"]
