"""Sizes as people write them: `"64MiB"`, `"2 GB"`, `4096`."""

from __future__ import annotations

import re
from fractions import Fraction

_FACTOR = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15}
_FACTOR |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "pib": 2**50}
_SIZE = re.compile(r"\s*([0-9]{1,30}(?:\.[0-9]{1,30})?)\s*([a-zA-Z]*)\s*")


def parse_bytes(name: str, value: str | int) -> int:
    """`value` in bytes; `name` is the argument it was given as, for the error."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f'{name}={value!r}: a size is a number of bytes or a string such as "64MiB"')
    number = value
    if isinstance(number, str):
        match = _SIZE.fullmatch(number)
        if match is None or match[2].lower() not in _FACTOR:
            raise ValueError(f'{name}={value!r} is not a size; write for example "500kB", "64MiB" or "2GiB"')
        number = int(Fraction(match[1]) * _FACTOR[match[2].lower()])
    if number <= 0:
        raise ValueError(f"{name}={value!r}: a size must be at least 1 byte")
    if number > 2**60:
        raise ValueError(f"{name}={value!r}: more than an exbibyte cannot be meant; the largest size is 1024PiB")
    return number


def parse_count(name: str, value: object, *, most: int = 2**31 - 2) -> int:
    """`value` as a positive whole number; `name` is the argument it was given as, for the error."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{name}={value!r}: a whole number is needed")
    try:
        number = int(value.__index__())
    except TypeError:  # arrays and tensors have the method, but only those with one whole number in them can use it
        raise ValueError(f"{name}={value!r}: a whole number is needed") from None
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
    if abs(size) < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if abs(size) < 999.5 or unit == "TiB":
            break
    digits = 2 if abs(size) < 9.995 else 1 if abs(size) < 99.95 else 0
    return f"{size:.{digits}f} {unit}"
