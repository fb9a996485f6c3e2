"""The checksum against a slow reference, and the damage that it must notice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carm.memory.checksum import MULTIPLIER, PIECE, checksum, constants, halves

M64 = 2**64
pytestmark = pytest.mark.usefixtures("way")


def _constant(i: int) -> int:
    z = (i + 1) * 0x9E3779B97F4A7C15 % M64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % M64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % M64
    return (z ^ z >> 31) | 1


def _reference(record: bytes) -> int:
    words = [int.from_bytes(record[i : i + 4], "little") for i in range(0, len(record), 4)]
    h = 0
    for at in range(0, len(words), PIECE):
        h = (h * MULTIPLIER + sum(_constant(i) * w for i, w in enumerate(words[at : at + PIECE]))) % M64
    return h


def _of(record: bytes) -> int:
    data = np.frombuffer(record, np.uint8)
    return int(checksum(data, np.array([0]), np.array([len(record)]))[0])


def _random(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)


def test_constants_are_odd_and_distinct() -> None:
    c = constants()
    assert len(c) == PIECE and (c % np.uint64(2) == 1).all() and len(np.unique(c)) == PIECE
    assert [int(x) for x in c[:3]] == [_constant(i) for i in range(3)]
    low, high = halves()
    assert (low + (high.astype(np.uint64) << np.uint64(32)) == c).all()


@given(st.binary(max_size=400))
def test_against_the_reference(data: bytes) -> None:
    record = data + bytes(-len(data) % 8)
    assert _of(record) == _reference(record)


@pytest.mark.parametrize("words", [PIECE - 2, PIECE, PIECE + 2, 2 * PIECE, 2 * PIECE + 6])
def test_at_the_edge_of_a_piece(words: int) -> None:
    record = _random(words * 4, words).tobytes()
    assert _of(record) == _reference(record)


def test_nothing() -> None:
    assert checksum(np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []
    assert _of(b"") == 0
    assert checksum(np.zeros(8, np.uint8), np.array([0, 8]), np.array([0, 0])).tolist() == [0, 0]


@given(st.lists(st.integers(0, 40), min_size=1, max_size=20), st.booleans(), st.randoms())
def test_a_batch_is_its_records_one_by_one(lengths: list[int], same: bool, random: object) -> None:
    sizes = np.array([lengths[0]] * len(lengths) if same else lengths, np.int64) * 8
    gap = 24
    starts = np.cumsum(sizes + gap) - sizes - gap
    data = _random(int(sizes.sum()) + gap * len(sizes), 1)
    want = [_reference(data[s : s + n].tobytes()) for s, n in zip(starts.tolist(), sizes.tolist(), strict=True)]
    assert checksum(data, starts, sizes).tolist() == want
    back = np.arange(len(sizes))[::-1]  # in any order
    assert checksum(data, starts[back], sizes[back]).tolist() == want[::-1]


def test_every_flip_of_one_bit_is_noticed() -> None:
    size = 256
    flipped = np.repeat(_random(size)[None], size * 8, axis=0)
    bit = np.arange(size * 8)
    flipped[bit, bit // 8] ^= (1 << (bit % 8)).astype(np.uint8)
    sums = checksum(flipped.reshape(-1), bit * size, np.full(len(bit), size))
    assert (sums != np.uint64(_of(_random(size).tobytes()))).all()
    assert len(np.unique(sums)) == len(sums)


def test_every_change_of_one_word_is_noticed() -> None:
    record = _random(64)
    before = _of(record.tobytes())
    for word in range(16):
        for seed in range(200):
            changed = record.copy()
            changed[4 * word : 4 * word + 4] = _random(4, 1000 * word + seed)
            assert (_of(changed.tobytes()) == before) == (changed == record).all()


def test_two_flips_of_the_same_high_bit_are_noticed() -> None:
    """Sign bits are where sums of products modulo a power of two are weakest."""
    record = _random(128)
    before = _of(record.tobytes())
    for a in range(32):
        for b in range(a):
            changed = record.copy()
            changed[[4 * a + 3, 4 * b + 3]] ^= 0x80
            assert _of(changed.tobytes()) != before


def test_damage_of_the_usual_kinds_is_noticed() -> None:
    size = 4096
    record = _random(size, 5)
    before = _of(record.tobytes())
    rng = np.random.default_rng(6)
    for sector in range(0, size, 512):
        for damage in (np.zeros(512, np.uint8), np.full(512, 255, np.uint8), _random(512, sector + 9), record[:512]):
            changed = record.copy()
            changed[sector : sector + 512] = damage
            assert (_of(changed.tobytes()) == before) == (changed == record).all()
    shifted = np.roll(record, 8)
    assert _of(shifted.tobytes()) != before
    for _ in range(500):
        changed = record.copy()
        swap = rng.integers(0, size // 8, 2) * 8
        changed[swap[0] : swap[0] + 8], changed[swap[1] : swap[1] + 8] = (
            record[swap[1] : swap[1] + 8],
            record[swap[0] : swap[0] + 8],
        )
        assert (_of(changed.tobytes()) == before) == (changed == record).all()
