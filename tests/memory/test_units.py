"""Sizes and counts as people write them, and the errors when they do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carm.memory.throttle import Throttle
from carm.memory.units import format_bytes, parse_bytes, parse_count, parse_seed


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("512B", 512),
        ("500kB", 500_000),
        ("64MiB", 64 << 20),
        (" 2 GB ", 2 * 10**9),
        ("2gib", 2 << 30),
        ("1.5KiB", 1536),
        ("0.1MB", 100_000),
        ("3TiB", 3 << 40),
        ("1024PiB", 2**60),
        ("9007199254740993", 9007199254740993),  # a float would make it ...992
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes("ram", text) == size


@pytest.mark.parametrize(
    "value",
    [
        *(
            "",
            "MiB",
            "-1",
            "1e9",
            "12 apples",
            "0",
            "0.0001kB",
            "1025PiB",
            "9" * 400,
            "9" * 30 + "TB",
            "nan",
            "１MB",
            "1 2MB",
        ),
        *(0, -5, True, None, 1.5, 2**61, b"1MB"),
    ],
)
def test_what_is_no_size(value: Any) -> None:
    with pytest.raises(ValueError, match="ram="):
        parse_bytes("ram", value)


@pytest.mark.parametrize("value", [1, 2**31 - 2, np.int64(7), np.uint8(3)])
def test_counts(value: Any) -> None:
    assert parse_count("slots", value) == int(value)


@pytest.mark.parametrize("value", [0, -1, 2**31 - 1, True, 1.0, "7", None, np.float32(2), np.array([1, 2]), 10**30])
def test_what_is_no_count(value: Any) -> None:
    with pytest.raises(ValueError, match="slots="):
        parse_count("slots", value)


@pytest.mark.parametrize("value", [-1, True, "1", 1.5, None])
def test_what_is_no_seed(value: Any) -> None:
    with pytest.raises(ValueError, match="seed="):
        parse_seed(value)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1000 << 10, "0.98 MiB"),
        (1536, "1.50 KiB"),
        (10 << 20, "10.0 MiB"),
        (999 << 30, "999 GiB"),
        (1 << 40, "1.00 TiB"),
        (5000 << 40, "5000 TiB"),
        (-2048, "-2.00 KiB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(1, 2**60))
def test_a_formatted_size_reads_back_within_its_precision(size: int) -> None:
    text = format_bytes(size)
    assert "e" not in text
    assert parse_bytes("x", text) == pytest.approx(size, rel=0.006)


def test_throttle() -> None:
    assert Throttle.parse("2MB/s,5ms") == Throttle(2e6, 0.005)
    assert Throttle.parse("20MiB/s") == Throttle(20 << 20)
    slow = Throttle(1000, 0.5)
    first, second = slow.charge(100), slow.charge(200)
    assert second - first == pytest.approx(0.2, abs=0.01)  # one after the other at 1000 bytes/s; the latencies overlap
    for text in ("", "fast", "2MB/s,soon", "-1MB/s", "1MB/s,-2ms", "1MB/s,nanms", "1MB/s,infms"):
        with pytest.raises(ValueError, match="throttle"):
            Throttle.parse(text)
