"""kill -9 of a process whose memory swaps, adds, evicts and makes checkpoints."""

from __future__ import annotations

import io
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from patterns import FIXED, VARIABLE, audit, keys_of

from carm.memory.errors import CheckpointError
from carm.memory.gate import Random
from carm.memory.memory import Memory
from carm.memory.store import Store

SCHEMAS = {"fixed": FIXED, "variable": VARIABLE}

CHILD = """
import io, json, os, sys
import numpy as np, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from patterns import FIXED, VARIABLE, samples
from carm.memory.gate import Random
from carm.memory.memory import Memory
directory, out, swap, engine, schema, first, capacity = sys.argv[2:9]
torch.set_num_threads(1)
schema, key = {"fixed": FIXED, "variable": VARIABLE}[schema], int(first)
memory = Memory(30, storage=directory, storage_capacity=int(capacity) or None, engine=engine, swap=swap,
                gate=Random(1.0), write_batch=8, queue=8, seed=1)
print("begun", flush=True)
for step in range(1_000_000):
    keys = np.arange(key, key + 5)
    key += 5
    batch = memory.draw(8)
    memory.feedback(batch)
    memory.add(**samples(keys, keys % 4, schema, 1500))
    if step % 7 == 0:
        memory.flush()  # all of these are acknowledged
        print(json.dumps(memory.store.ids.tolist()), flush=True)
    if step % 16 == 0:
        buffer = io.BytesIO()
        torch.save(memory.state_dict(), buffer)
        Path(out + ".new").write_bytes(buffer.getvalue())
        os.rename(out + ".new", out)
"""


@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("capacity", [0, 200], ids=["growing", "evicting"])
@pytest.mark.parametrize(("swap", "engine"), [("thread", "aio"), ("process", "preadv"), ("sync", "preadv")])
def test_a_memory_killed_while_it_swaps(tmp_path: Path, swap: str, engine: str, capacity: int, schema: str) -> None:
    """Nothing acknowledged is lost, nothing is torn, and checkpoints lead back."""
    here, store, checkpoint = str(Path(__file__).parent), tmp_path / "store", tmp_path / "checkpoint"
    arguments = [sys.executable, "-c", CHILD, here, store, checkpoint, swap, engine, schema]
    dice = random.Random(0)
    acknowledged: set[int] = set()
    restored = 0
    for turn in range(4):
        child = subprocess.Popen([*arguments, str(turn * 100_000), str(capacity)], stdout=subprocess.PIPE)
        assert child.stdout is not None
        begun, out = b"begun\n", b""
        while not out.startswith(begun):
            assert select.select([child.stdout], [], [], 60)[0], "it does not begin"
            chunk = os.read(child.stdout.fileno(), 1 << 16)
            assert chunk, "it has ended by itself"
            out += chunk
        time.sleep(0.05 + 0.4 * dice.random())
        os.kill(child.pid, signal.SIGKILL)
        out += child.stdout.read()
        child.stdout.close()
        child.wait()
        whole = out[len(begun) : out.rfind(b"\n") + 1].splitlines()
        if whole:
            acknowledged = set(json.loads(whole[-1]))
        with Store(store, engine="preadv", capacity=capacity or None) as opened:
            ids = set(opened.ids.tolist())
            assert opened.corrupt == 0 and not [bad for _, bad in opened.verify() if bad]
            if not capacity:
                assert acknowledged <= ids
            else:
                assert not ids or len(ids) >= min(len(acknowledged), capacity) - 40
            if ids:
                keys_of(opened.read(sorted(ids)), SCHEMAS[schema], 1500)  # every field says which sample it is of
        if checkpoint.exists():
            state = torch.load(io.BytesIO(checkpoint.read_bytes()), weights_only=True)
            memory = Memory(
                30, storage=store, storage_capacity=capacity or None, engine="preadv", swap="sync", gate=Random(1.0)
            )
            with memory:
                try:
                    memory.load_state_dict(state)
                except CheckpointError:
                    assert capacity, "where nothing is evicted every checkpoint leads back"
                    continue
                restored += 1
                audit(memory)
                keys_of(memory.take(memory.slots), SCHEMAS[schema], 1500)
                assert memory.store is not None
                acknowledged = set(memory.store.ids.tolist())
    assert restored, "there was never a checkpoint to return to"
