"""Records into blocks: the compiled way and numpy's do the same, and notice the same damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carm.memory import native
from carm.memory.checksum import PIECE, checksum
from carm.memory.move import move, scatter

pytestmark = pytest.mark.usefixtures("way")


class Case:
    """Records of these sizes somewhere in some bytes, and blocks of an arena for them."""

    def __init__(self, sizes: list[int], block: int, gaps: list[int], seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.sizes = np.array(sizes, np.int64)
        between = np.array([gaps[i % len(gaps)] for i in range(len(sizes))], np.int64)
        self.starts = np.cumsum(self.sizes + between) - self.sizes
        self.data = rng.integers(0, 256, int(self.sizes.sum() + between.sum()) + 64, dtype=np.uint8)
        self.counts = -(-self.sizes // block)
        need = int(self.counts.sum())
        self.arena = np.full((need + 3, block), 0xEE, np.uint8)
        self.blocks = rng.permutation(need + 3)[:need]
        self.sums = checksum(self.data, self.starts, self.sizes)

    def move(self, ok: np.ndarray | None = None) -> list[bool]:
        ok = np.ones(len(self.sizes), bool) if ok is None else ok
        return move(self.arena, self.blocks, self.data, self.starts, self.sizes, self.sums, ok).tolist()

    def shuffle(self, seed: int) -> None:
        """The records in another order, as a device gives them."""
        order = np.random.default_rng(seed).permutation(len(self.sizes))
        self.starts, self.sizes, self.sums = self.starts[order], self.sizes[order], self.sums[order]
        self.counts = self.counts[order]

    def arrived(self, i: int) -> bool:
        """Whether record i is in its blocks."""
        at = int(self.counts[:i].sum())
        there = self.arena[self.blocks[at : at + self.counts[i]]].reshape(-1)[: self.sizes[i]]
        return bool((there == self.data[self.starts[i] : self.starts[i] + self.sizes[i]]).all())

    def check_rest(self) -> None:
        """Nothing was written beside the blocks."""
        others = np.setdiff1d(np.arange(len(self.arena)), self.blocks)
        assert (self.arena[others] == 0xEE).all()


words = st.integers(0, 300).map(lambda n: 8 * n)


@given(
    st.lists(words.filter(bool), min_size=1, max_size=12),
    st.sampled_from([8, 56, 256, 1024]),
    st.lists(st.sampled_from([0, 8, 472]), min_size=1, max_size=3),
    st.integers(0, 99),
)
def test_records_of_any_size(sizes: list[int], block: int, gaps: list[int], seed: int) -> None:
    case = Case(sizes, block, gaps)
    case.shuffle(seed)
    assert case.move() == [True] * len(sizes)
    assert all(case.arrived(i) for i in range(len(sizes)))
    case.check_rest()


@pytest.mark.parametrize("gap", [0, 8, 472])
@pytest.mark.parametrize("size", [8, 3080, 4096, 4104, 8192])
def test_records_of_one_size(size: int, gap: int) -> None:
    case = Case([size] * 7, size, [gap])
    assert case.move() == [True] * 7 and all(case.arrived(i) for i in range(7))
    case.check_rest()
    case.arena[:] = 0xEE
    case.shuffle(1)
    assert case.move() == [True] * 7 and all(case.arrived(i) for i in range(7))


@pytest.mark.parametrize("words", [PIECE - 2, PIECE, PIECE + 2, 2 * PIECE + 1030])
@pytest.mark.parametrize("block", [4096, 3 * 4 * PIECE])
def test_records_of_several_pieces(words: int, block: int) -> None:
    case = Case([4 * words, 8, 4 * words], block, [8])
    assert case.move() == [True] * 3 and all(case.arrived(i) for i in range(3))


@pytest.mark.parametrize("block", [56, 256, 3080])
def test_damage_is_noticed_wherever_it_is(block: int) -> None:
    sizes = [3080] * 5 if block == 3080 else [8, 3080, 400, 3080, 16]
    rng = np.random.default_rng(3)
    for _ in range(50):
        case = Case(sizes, block, [8])
        hit = int(rng.integers(5))
        case.data[case.starts[hit] + int(rng.integers(case.sizes[hit]))] ^= 1 << int(rng.integers(8))
        assert case.move() == [i != hit for i in range(5)]
        assert all(case.arrived(i) for i in range(5) if i != hit)


@pytest.mark.parametrize("block", [256, 3080])
def test_records_that_did_not_arrive_are_passed_over(block: int) -> None:
    case = Case([3080] * 6, block, [8])
    ok = np.array([True, False, True, True, False, False])
    assert case.move(ok) == ok.tolist()
    assert all(case.arrived(i) for i in np.flatnonzero(ok).tolist())
    case.check_rest()
    case.starts[~ok] = 10**12  # as of one that lies beyond the end of the file
    if native.library is not None:
        assert case.move(ok) == ok.tolist()


def test_nothing() -> None:
    case = Case([], 64, [0])
    assert case.move() == []
    scatter(case.arena, case.blocks, case.data, case.starts, case.sizes)


@pytest.mark.parametrize("block", [56, 3080])
def test_without_a_look_at_the_checksums(block: int) -> None:
    case = Case([3080] * 5, block, [0, 8])
    case.shuffle(2)
    scatter(case.arena, case.blocks.astype(np.int32), case.data, case.starts, case.sizes)
    assert all(case.arrived(i) for i in range(5))
    case.check_rest()
