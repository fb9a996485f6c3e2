"""A slow device on a fast one: what an experiment needs to find out how a phone's flash or an SD card would do."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from carm.memory.units import parse_bytes


@dataclass
class Throttle:
    """Requests take `latency` seconds each and share `rate` bytes per second; several can wait at once, as in a real
    queue."""

    rate: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.rate < math.inf or not 0 <= self.latency < math.inf:
            raise ValueError(f"throttle: rate={self.rate} must be positive and latency={self.latency} not negative")
        self._free_at = 0.0

    @staticmethod
    def parse(text: str) -> Throttle:
        """From text such as "2MB/s,5ms" or "20MB/s"."""
        rate, _, latency = text.partition(",")
        seconds = 0.0
        if latency:
            number = latency.strip().removesuffix("ms")
            try:
                seconds = float(number) / 1000
            except ValueError:
                raise ValueError(f'throttle={text!r}: write for example "2MB/s,5ms"') from None
        return Throttle(parse_bytes("throttle", rate.strip().removesuffix("/s")), seconds)

    def charge(self, size: int) -> float:
        """A request of `size` bytes begins; returns when it is done."""
        begun = max(time.monotonic(), self._free_at)
        self._free_at = begun + size / self.rate
        return self._free_at + self.latency

    @staticmethod
    def wait(until: float) -> None:
        left = until - time.monotonic()
        if left > 0:
            time.sleep(left)
