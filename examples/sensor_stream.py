"""Not only images: windows of a sensor's signal (float32), the raw packet they came in (bytes), and when (a number).

A machine changes its way of running from time to time (the class); a model that learns from the windows rehearses the
earlier ways. The memory takes the fields of a sample from the first `add`.
"""

import tempfile
import zlib

import numpy as np
import torch

import carm

rng = np.random.default_rng(0)


def record(mode: int, n: int, at: int) -> dict[str, object]:
    """`n` windows of 3 channels x 64 readings of a machine that runs in `mode`."""
    phase = rng.uniform(0, 6.28, (n, 3, 1))
    signal = np.sin(np.linspace(0, 6.28 * (mode + 1), 64) + phase) + rng.normal(0, 0.1, (n, 3, 64))
    packets = [zlib.compress((window * 100).astype(np.int8).tobytes()) for window in signal]  # of different lengths
    return {
        "signal": signal.astype(np.float32),
        "packet": packets,
        "time": np.arange(at, at + n, dtype=np.float64),
        "y": np.full(n, mode),
    }


with tempfile.TemporaryDirectory() as directory:
    with carm.Memory(ram="128KiB", storage=directory, storage_capacity="1MiB", queue=8, seed=0) as memory:
        for hour, mode in enumerate([0, 1, 2, 0, 3]):
            memory.add(**record(mode, 200, at=200 * hour))
            old = memory.draw(8)
            memory.feedback(old, logits=torch.randn(len(old), 4))  # of a model; here the gate gets noise
        memory.flush()
        old = memory.draw(8)
        print(memory.schema)
        print(old)
        window = zlib.decompress(bytes(old.packet[0].numpy()))
        print(f"a window at time {old.time[0]:.0f}: {tuple(old.signal[0].shape)}, its packet holds {len(window)} bytes")
        print("samples of each mode as (in RAM, in storage):", memory.class_counts())

    # Later, or in another program: the same samples without a memory.
    with carm.Store(directory, readonly=True) as store:
        first = store.read(store.ids[:2])
        print(f"{len(store)} samples stored; the first two are from times {first['time'].tolist()}")
