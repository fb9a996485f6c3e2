"""The measurements run, on sizes that mean nothing, and give results of the promised form."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from carm.bench import memory, swap_path, training, workspace
from carm.bench.cores import interrupted_core, kept_from, kept_on
from carm.bench.raw import MOST, FilePerSample, Gather, Log, RawAio
from carm.bench.report import Row, Target, amount, compare, table, write_json
from carm.bench.sizes import FULL, QUICK, Sizes
from carm.bench.timing import Spread, alternate, better, cpu_seconds, median_interval
from carm.bench.workspace import SMALL, Workspace, offsets_of
from carm.machine import file_system, machine
from carm.memory.aio import AioEngine
from carm.memory.extentfile import NAME as EXTENTS
from carm.memory.record import Field, Schema
from carm.memory.store import Store

TINY = Sizes(
    repetitions=2,
    small_records=3_000,
    large_records=3_000,
    small_slots=2_048,
    large_slots=2_048,
    files=40,
    draw_slots=(500,),
    draw_calls=5,
    stored=(1_000, 2_000),
    added=640,
    appends=3,
    rounds=2,
    steps=2,
    lead_in=1,
    prefill=3_000,
    width=1,
    one_thread=False,
    wait_policies=False,
)


@pytest.fixture
def work(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path, TINY)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def aio_works(directory: Path) -> bool:
    path = directory / "probe"
    path.write_bytes(bytes(8192))
    try:
        AioEngine(path).close()
    except OSError:
        return False
    return True


def check(rows: list[Row], name: str) -> None:
    assert rows
    for row in rows:
        assert row.name.startswith(name)
        assert row.variant and row.against and row.unit
        assert math.isfinite(row.ratio) and row.ratio > 0
        assert row.ours > 0 and (row.baseline is None or row.baseline > 0)
        assert row.spread.low <= row.spread.quartile1 <= row.spread.median <= row.spread.quartile3 <= row.spread.high
        assert row.reached == (None if row.target is None else row.target.reached(row.ratio))


@pytest.mark.parametrize("name", ["swap-cold-3k", "swap-cold-110k", "swap-warm", "draw-64", "draw-256"])
def test_benchmarks_that_read_storage(name: str, work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    if not aio_works(work.directory):
        pytest.skip("Linux AIO does not work here")
    medium = Schema((Field("x", "uint8", (500,)), Field("y", "int64")))
    monkeypatch.setattr(workspace, "LARGE", medium)
    monkeypatch.setattr(swap_path, "LARGE", medium)
    rows = list(memory.BENCHMARKS[name](work))
    check(rows, name)
    if name.startswith("swap-cold"):
        assert {row.target for row in rows} == {None, Target(">=", 0.75), Target(">=", 10 if "3k" in name else 2)}
        assert not list(work.directory.glob("*files"))


@pytest.mark.parametrize("name", ["add", "open-1m", "append"])
def test_benchmarks_that_write(name: str, work: Workspace) -> None:
    if not aio_works(work.directory):
        pytest.skip("Linux AIO does not work here")
    check(list(memory.BENCHMARKS[name](work)), name)


@pytest.mark.parametrize("name", ["train-warm", "train-throttled"])
def test_training(name: str, work: Workspace, threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    if not aio_works(work.directory):
        pytest.skip("Linux AIO does not work here")

    def here(directory, loops, sizes, *, threads, passive, online=True, rounds=None):  # type: ignore[no-untyped-def]
        return training.run(directory, loops, sizes, threads, online, rounds or sizes.rounds)

    monkeypatch.setattr(training, "_in_fresh_process", here)
    monkeypatch.setattr(training, "_THROTTLE", "200MB/s,1ms")
    rows = list(memory.BENCHMARKS[name](work))
    check(rows, name)
    assert {row.target for row in rows} >= {Target("<=", 1.03), Target("<=", 1.05)}
    assert any(row.variant.endswith("CPU") for row in rows)


def test_training_in_a_process_of_its_own(work: Workspace) -> None:
    loops = {"plain": training.Loop(None), "sync": training.Loop("sync", "preadv")}
    sizes = replace(TINY, rounds=1, prefill=2_100)
    measured = training._in_fresh_process(work.directory, loops, sizes, threads=1, passive=True)
    assert [len(t.wall) for t in measured.values()] == [1, 1]
    assert measured["plain"].swapped_per_step == 0 < measured["sync"].swapped_per_step


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_sides_take_turns() -> None:
    calls: list[str] = []

    def side(name: str, seconds: float) -> float:
        calls.append(name)
        return seconds

    measured = alternate({"a": lambda: side("a", 1.0), "b": lambda: side("b", 2.0)}, 8)
    assert measured == {"a": [1.0] * 8, "b": [2.0] * 8}
    pairs = [tuple(calls[i : i + 2]) for i in range(0, 16, 2)]
    assert set(pairs) == {("a", "b"), ("b", "a")}
    assert better(measured, ["b", "a"]) == "a"


def test_spread_and_interval() -> None:
    values = [float(v) for v in range(1, 102)]
    assert Spread.of(values) == Spread(51.0, 1.0, 101.0, 26.0, 76.0)
    low, high = median_interval(values)
    assert 30 < low < 51 < high < 72


def test_processor_time_of_a_running_child_counts() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            before = cpu_seconds()
            deadline = time.monotonic() + 10
            while cpu_seconds() < before + 0.05 and time.monotonic() < deadline:
                time.sleep(0.02)
            running = cpu_seconds()
        finally:
            child.kill()
    assert running >= before + 0.05
    assert cpu_seconds() >= running - 0.02  # and still does when it has ended


def test_compare() -> None:
    fast, slow = [1.0, 1.0, 2.0], [2.0, 3.0, 8.0]
    speed = compare("n", "v", slow, fast, of="speed", unit="items/s", against="x", target=Target(">=", 0.3))
    assert (speed.ratio, speed.ours, speed.baseline, speed.reached) == (1 / 3, 1 / 3, 1.0, True)
    cost = compare("n", "v", slow, fast, of="cost", unit="ms", against="x", target=Target("<=", 1.3))
    assert (cost.ratio, cost.ours, cost.baseline, cost.reached) == (3.0, 3000.0, 1000.0, False)
    assert cost.spread.low == 2.0 and cost.spread.high == 4.0
    assert amount("n", "v", [5.0], unit="bytes", against="a bound").reached is None


def test_file_and_table(tmp_path: Path) -> None:
    row = compare("n", "v", [1.0, 2.0], [1.0, 1.0], of="cost", unit="ms", against="x", target=Target("<=", 2.0))
    write_json(tmp_path / "new" / "r.json", [row], machine(tmp_path))
    document = json.loads((tmp_path / "new" / "r.json").read_text())
    told = {"cpu", "cores", "kernel", "file_system", "python", "numpy", "torch", "date", "command"}
    assert told <= document["machine"].keys()
    assert document["rows"][0]["ratio"] == 1.5
    assert document["rows"][0]["target"] == "<= 2" and document["rows"][0]["reached"] is True
    assert set(document["rows"][0]["spread"]) == {"median", "low", "high", "quartile1", "quartile3"}
    console = Console(record=True, width=200)
    console.print(table([row]))
    assert "yes" in console.export_text()
    assert file_system(Path("/proc")) == "proc"


def test_raw_reads_give_the_stored_bytes(tmp_path: Path) -> None:
    if not aio_works(tmp_path):
        pytest.skip("Linux AIO does not work here")
    store = Workspace(tmp_path, TINY).store("s", SMALL, 64, batch=64)
    offsets, size = offsets_of(store)
    aio = RawAio(store / EXTENTS, size=size, batch=8)
    order = np.random.default_rng(0).permutation(offsets)
    for in_flight in range(1, MOST + 1):
        assert aio.read([order[:8], order[8:16]] * 3, in_flight=in_flight) > 0
    whole = (store / EXTENTS).read_bytes()
    for request, chosen in zip(aio._requests[:2], (order[:8], order[8:16]), strict=True):
        for i, offset in enumerate(chosen.tolist()):
            read = request.data[i * request.stride :][:size]
            assert read.tobytes() == whole[offset : offset + size]
    aio.close()


def test_the_core_that_a_device_interrupts(tmp_path: Path) -> None:
    store = Workspace(tmp_path, TINY).store("s", SMALL, 64, batch=64)
    found, ours = interrupted_core(store), os.sched_getaffinity(0)
    assert found is None or found in ours
    with kept_from(found):
        assert os.sched_getaffinity(0) == ours - {found}
    with kept_on(min(ours)):
        assert os.sched_getaffinity(0) == {min(ours)}
    assert os.sched_getaffinity(0) == ours


def test_a_file_per_sample(tmp_path: Path) -> None:
    with FilePerSample(tmp_path / "files", size=100, files=10, slots=4) as scheme:
        assert scheme.swap(10, 4, np.random.default_rng(0)) > 0
        contents = {(tmp_path / "files" / str(n)).read_bytes() for n in range(10)}
        assert {data for data in scheme.memory if data} <= contents


def test_other_sides(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    assert log.append([memoryview(b"abc"), memoryview(b"de")]) > 0
    log.append([memoryview(b"f")])
    log.close()
    assert (tmp_path / "log").read_bytes() == b"abcdef"
    gather = Gather(10, 8, 2)
    rows = [np.array([1, 2])]
    assert gather.into(rows) > 0 and gather.fresh(rows) > 0


def test_stores_are_made_once(work: Workspace) -> None:
    path = work.small()
    assert work.small() == path
    with Store(path, readonly=True) as store:
        assert len(store) == TINY.small_records
    work.discard("small")
    assert not path.exists()


# -- the command -------------------------------------------------------------------------------------------------------


def test_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(memory, "QUICK", TINY)
    out = tmp_path / "out.json"
    assert memory.main(json_path=out, quick=True, only=["app", "open"], directory=tmp_path) == 0
    assert [row["name"] for row in json.loads(out.read_text())["rows"]] == ["open-1m", "open-1m", "append"]
    assert "targets reached" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [out]


def test_names() -> None:
    assert memory.chosen(None) == list(memory.BENCHMARKS)
    trains = ["train-warm", "train-cold", "train-full", "train-throttled"]
    assert memory.chosen(["train", "draw-64"]) == ["draw-64", *trains]
    with pytest.raises(ValueError, match=r"only='nonsense'.*swap-cold-3k"):
        memory.chosen(["nonsense"])


def test_blocks_hold_whole_commits() -> None:
    for sizes in (FULL, QUICK):
        commits = sizes.steps * 32 // 500
        assert commits >= 1 and sizes.steps * 32 < (commits + 1) * 500 - sizes.lead_in * 32
        assert sizes.rounds >= 5 and sizes.repetitions >= 5
