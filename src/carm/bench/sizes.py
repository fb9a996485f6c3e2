"""How much of everything: enough to mean something, or (`QUICK`) enough for a rough picture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """How large the files are, and how often things are repeated."""

    repetitions: int = 9
    # swap path and draw; records are 3 KB and 110 KB
    small_records: int = 100_000
    large_records: int = 5_000
    small_slots: int = 4_096
    large_slots: int = 2_048
    files: int = 2_000  # of the scheme with a file per sample
    draw_slots: tuple[int, ...] = (2_000, 10_000)
    draw_calls: int = 200
    # storing
    stored: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    added: int = 640  # per repetition; a multiple of both batch sizes
    appends: int = 60
    # training
    rounds: int = 100  # blocks of each loop, or as many (but at least 5) as fit into
    seconds: float = 70.0  # on a machine that has other things to do
    steps: int = 32  # per block; with 32 samples a step and 500 a commit every block has two commits
    lead_in: int = 2
    prefill: int = 20_000
    width: int = 16  # channels of the first convolution
    one_thread: bool = True  # whether one torch thread is measured too, and
    wait_policies: bool = True  # OpenMP's default way of waiting


FULL = Sizes()
QUICK = Sizes(
    repetitions=5,
    small_records=30_000,
    large_records=2_000,
    small_slots=4_096,
    large_slots=1_024,
    files=400,
    draw_slots=(2_000,),
    draw_calls=60,
    stored=(10_000, 50_000),
    appends=20,
    rounds=5,
    seconds=15.0,
    steps=16,
    lead_in=2,
    prefill=5_000,
    one_thread=False,
    wait_policies=False,
)
