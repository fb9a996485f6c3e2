"""kill -9 and power cuts at any moment: nothing that was acknowledged is lost, and nothing is torn.

A child tells before each change what it is about to do, and afterwards that it is done. After it was killed, the store
must hold what it held before the change or what it holds after it; for an append that first lets some die, also what it
holds in between.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crash_child import SCHEMAS
from numbered import check, check_index
from test_store_faults import mounted

from carm.memory.store import Store

SCRIPT = Path(__file__).with_name("crash_child.py")


class Child:
    """The process that forks the workers, and what the workers have said."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def listen(self) -> list[Any]:
        assert self.process.stdout is not None
        message: list[Any] = json.loads(self.process.stdout.readline())
        assert message != ["failed"], "a worker raised an error; see standard error"
        return message

    def start(self, task: dict[str, Any]) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(task) + "\n")
        self.pid = -1
        self.early: list[list[Any]] = []  # what the worker said before we knew its number
        while self.pid < 0:
            message = self.listen()
            if message[0] == "worker":
                self.pid = message[1]
            else:
                self.early.append(message)
        return self.pid

    def messages(self) -> Iterator[list[Any]]:
        """What the worker says, to its end."""
        yield from self.early
        while (message := self.listen()) != ["over"]:
            yield message

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    out = Child()
    yield out
    out.close()


class Model:
    """What the store must hold, as far as the worker has told."""

    def __init__(self) -> None:
        self.alive: set[int] = set()
        self.states: list[dict[str, Any]] = []
        self.moments: list[set[int]] = []  # who was alive at each of `states`
        self.doing: list[Any] | None = None

    def hear(self, message: list[Any]) -> None:
        kind = message[0]
        if kind == "open":
            assert set(message[1]) == self.alive, "a worker found something else than we did"
        elif kind in ("begin", "restore"):
            self.doing = message
        elif kind == "checkpoint":
            self.states.append(message[1])
            self.moments.append(set(self.alive))
        elif kind == "end":
            assert self.doing is not None
            self._done()
            self.doing = None

    def _done(self) -> None:
        assert self.doing is not None
        if self.doing[0] == "restore":
            n = self.doing[1]
            self.alive = set(self.moments[n])
            self.states, self.moments = self.states[: n + 1], self.moments[: n + 1]
        else:
            _, _, before, deaths, births = self.doing
            self.alive = (self.alive - set(before) - set(deaths)) | set(births)

    def settle(self, found: set[int]) -> str:
        """The worker is dead, and this is what the store holds: fail unless it may; returns how far the last change
        came."""
        doing, self.doing = self.doing, None
        if doing is None:
            assert found == self.alive, self._difference(found)
            return "between"
        if found == self.alive and (doing[0] == "restore" or doing[3] or doing[4]):
            return "not done"
        if doing[0] == "begin" and doing[2] and found == self.alive - set(doing[2]):
            self.alive = found
            return "half done"
        self.doing = doing
        self._done()
        self.doing = None
        assert found == self.alive, f"{doing}: {self._difference(found)}"
        return "done"

    def _difference(self, found: set[int]) -> str:
        return f"lost: {sorted(self.alive - found)}, not expected: {sorted(found - self.alive)}"


def inspect(directory: Path, schema: str, capacity: Any) -> set[int]:
    """Open the store twice, and look at every byte of it."""
    catalogues = []
    for _ in range(2):
        with Store(directory, capacity=capacity, engine="preadv") as store:
            check_index(store)
            assert store.corrupt == 0
            assert all(not bad for _, bad in store.verify()), "a torn sample"
            ids = store.ids.tolist()
            if not catalogues and ids:
                check(store.read(ids), ids, SCHEMAS[schema])
            assert store.catalogue is not None
            contents = store.catalogue.load()
            catalogues.append(
                (contents.entries.tobytes(), contents.dead.tobytes(), contents.marks, contents.seq, contents.floor)
            )
    assert catalogues[0] == catalogues[1], "the catalogue changed by being opened"
    if isinstance(capacity, str):
        assert os.path.getsize(directory / "extents.dat") <= 1.25 * int(capacity)
    return set(ids)


CASES = {
    "fixed-bytes": ("fixed", "60000"),
    "fixed-samples": ("fixed", 100),
    "variable-bytes": ("variable", "200000"),
    "variable-unlimited": ("variable", None),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("place", "engine"), [("memory", "preadv"), ("disk", "preadv"), ("disk", "aio")])
def test_kill_9(child: Child, tmp_path: Path, case: str, place: str, engine: str) -> None:
    """Many rounds on one directory. In memory, where a sync costs nothing, more happens between two kills. With "aio"
    samples are written past the page cache, by the kernel, while the process may be gone already."""
    schema, capacity = CASES[case]
    rounds = 30 if place == "memory" else 8
    if engine == "aio":
        _skip_without_aio(tmp_path)
    base = tmp_path
    if place == "memory":
        if not os.access("/dev/shm", os.W_OK):
            pytest.skip("/dev/shm cannot be written")
        base = Path(tempfile.mkdtemp(prefix="carm-crash-", dir="/dev/shm"))
    try:
        _kill_rounds(child, base / "store", schema, capacity, rounds, engine)
    finally:
        if base != tmp_path:
            shutil.rmtree(base)


def _skip_without_aio(directory: Path) -> None:
    try:
        with Store(directory / "probe", schema=SCHEMAS["fixed"], engine="aio") as store:
            store.open_engine().close()
    except ValueError as error:
        pytest.skip(str(error))


def _kill_rounds(child: Child, directory: Path, schema: str, capacity: Any, rounds: int, engine: str) -> None:
    rng = np.random.default_rng(rounds)
    model, outcomes, changes = Model(), Counter[str](), 0
    for seed in range(rounds):
        task = {
            "directory": str(directory),
            "schema": schema,
            "capacity": capacity,
            "engine": engine,
            "seed": seed,
            "states": model.states,
        }
        pid = child.start(task)
        fatal = int(rng.integers(0, 25))  # the change in which it is killed; 0: perhaps before the store is open
        killed = fatal == 0
        if killed:
            time.sleep(rng.random() * 0.02)
            os.kill(pid, signal.SIGKILL)
        for message in child.messages():
            model.hear(message)
            changes += message[0] == "end"
            if message[0] in ("begin", "restore") and not killed:
                fatal -= 1
                if fatal <= 0:
                    until = time.perf_counter() + rng.exponential(0.002)
                    while time.perf_counter() < until:
                        pass
                    os.kill(pid, signal.SIGKILL)
                    killed = True
        if (directory / "catalogue.db").exists() and (directory / "extents.dat").exists():
            outcomes[model.settle(inspect(directory, schema, capacity))] += 1
    assert changes > rounds, "next to nothing was done"
    if rounds > 20:
        assert sum(outcomes[o] for o in ("not done", "half done", "done")) > rounds // 4, outcomes


def test_power_cut(child: Child, tmp_path: Path) -> None:
    """The machine stops: of what was not synced, nothing is left.

    The store is on a small file system of its own, in an image file. What its kernel has not written yet is not in the
    image; so a copy of the image, taken while the worker stands still, is what a disk holds after a power cut.
    """
    image, again = tmp_path / "device.img", tmp_path / "copy"
    with mounted(tmp_path / "device", "ext4", 32 << 20) as device:
        for round in range(6):
            # A new directory every time: names that are not synced would be lost too.
            schema, capacity = list(CASES.values())[round % len(CASES)]
            name = f"new-{round}/store"
            model = Model()
            task = {"directory": str(device / name), "schema": schema, "capacity": capacity, "seed": round}
            pid = child.start(task | {"engine": "aio" if round % 2 else "preadv", "states": []})
            wanted, done = [1, 2, 5, 12, 25, 40][round], 0
            for message in child.messages():
                model.hear(message)
                done += message[0] == "end"
                if done == wanted and message[0] == "end":
                    os.kill(pid, signal.SIGSTOP)
                    time.sleep(0.05)
                    with contextlib.suppress(FileExistsError):
                        again.mkdir()
                    shutil.copy(image, tmp_path / "cut.img")
                    os.kill(pid, signal.SIGKILL)
            subprocess.run(["mount", "-o", "loop", str(tmp_path / "cut.img"), str(again)], check=True)
            try:
                model.settle(inspect(again / name, schema, capacity))
                for found in sorted(again.glob("new-*/store")):  # and the others are as they were
                    with Store(found) as store:
                        assert all(not bad for _, bad in store.verify())
            finally:
                subprocess.run(["umount", "-l", str(again)], check=True)
            os.sync()
