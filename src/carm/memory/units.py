"""Sizes as people write them: `"64MiB"`, `"2 GB"`, `4096`."""

from __future__ import annotations

import re

_FACTOR = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_FACTOR |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(name: str, value: str | int) -> int:
    """`value` in bytes; `name` is the argument it was given as, for the error."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f'{name}={value!r}: a size is a number of bytes or a string such as "64MiB"')
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        if match is None or match[2].lower() not in _FACTOR:
            raise ValueError(f'{name}={value!r} is not a size; write for example "500kB", "64MiB" or "2GiB"')
        value = int(float(match[1]) * _FACTOR[match[2].lower()])
    if value <= 0:
        raise ValueError(f"{name}={value}: a size must be at least 1 byte")
    if value > 2**60:
        raise ValueError(f"{name}={value}: more than an exbibyte cannot be meant; the largest size is 1024PiB")
    return value


def parse_count(name: str, value: object, *, most: int = 2**31 - 2) -> int:
    """`value` as a positive whole number; `name` is the argument it was given as, for the error."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{name}={value!r}: a whole number is needed")
    number = int(value.__index__())
    if number < 1 or number > most:
        raise ValueError(f"{name}={number}: must be from 1 to {most}")
    return number


def parse_seed(seed: object) -> int:
    """A seed as a whole number that is not negative."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or int(seed.__index__()) < 0:
        raise ValueError(f"seed={seed!r}: must be a whole number, 0 or more")
    return int(seed.__index__())


def format_bytes(size: float) -> str:
    """`size` for people: three significant figures and a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
