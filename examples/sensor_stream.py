"""Not only images: windows of a sensor's signal (float32), the raw packet they came in (bytes), and when (a number).

A machine changes its way of running from time to time (the class). A model learns from the windows as they come and
rehearses the earlier ways. The stream is an ordinary generator; the memory takes the fields of a sample from the first
`add`.
"""

import tempfile
import zlib
from collections.abc import Iterator

import numpy as np
import torch

import carm

rng = np.random.default_rng(0)
torch.manual_seed(0)


def record(mode: int, n: int, at: int) -> dict[str, object]:
    """`n` windows of 3 channels x 64 readings of a machine that runs in `mode`."""
    phase = rng.uniform(0, 6.28, (n, 3, 1))
    signal = np.sin(np.linspace(0, 6.28 * (mode + 1), 64) + phase) + rng.normal(0, 0.8, (n, 3, 64))
    packets = [zlib.compress((window * 40).clip(-127, 127).astype(np.int8).tobytes()) for window in signal]
    return {
        "signal": signal.astype(np.float32),
        "packet": packets,  # of different lengths
        "time": np.arange(at, at + n, dtype=np.float64),
        "y": np.full(n, mode),
    }


def stream() -> Iterator[dict[str, object]]:
    """Hour after hour, 20 windows at a time."""
    for hour, mode in enumerate([0, 1, 2, 0, 3]):
        for part in range(10):
            yield record(mode, 20, at=200 * hour + 20 * part)


model = torch.nn.Sequential(torch.nn.Linear(3 * 33, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def outputs(signal: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(torch.fft.rfft(signal).abs().flatten(1) / 8)  # how strong each frequency is
    return logits


with tempfile.TemporaryDirectory() as directory:
    with carm.Memory(ram="128KiB", storage=directory, storage_capacity="1MiB", queue=8, seed=0) as memory:
        for new in stream():
            x, y = torch.as_tensor(new["signal"]), torch.as_tensor(new["y"])
            old = memory.draw(20)
            if len(old):
                x, y = torch.cat([x, old.signal]), torch.cat([y, old.y])
            logits = outputs(x)
            memory.feedback(old, logits[20:])
            loss = torch.nn.functional.cross_entropy(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            memory.add(**new)
        memory.flush()
        old = memory.draw(8)
        print(memory.schema)
        print(old)
        window = zlib.decompress(bytes(old.packet[0].numpy()))
        print(f"a window at time {old.time[0]:.0f}: {tuple(old.signal[0].shape)}, its packet holds {len(window)} bytes")
        print("samples of each mode as (in RAM, in storage):", memory.class_counts())

    test = [record(mode, 100, at=0) for mode in range(4)]
    right = [outputs(torch.as_tensor(t["signal"])).argmax(1) == torch.as_tensor(t["y"]) for t in test]
    print("accuracy on each mode:", " ".join(f"{one.float().mean():.2f}" for one in right))

    # Later, or in another program: the same samples without a memory.
    with carm.Store(directory, readonly=True) as store:
        first = store.read(store.ids[:2])
        print(f"{len(store)} samples stored; the first two are from times {first['time'].tolist()}")
