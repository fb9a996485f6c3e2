"""Photographs: how many are decoded in a second, on one thread and on all cores, and what training notices of it."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np

from carm.bench.net_sizes import Setting
from carm.bench.net_steps import Step
from carm.bench.report import Row, Target, compare
from carm.bench.timing import Measure, alternate
from carm.data import Decoder
from carm.data.augment import recipe
from carm.data.decode import cores, pillow
from carm.data.registry import ROOT_VARIABLE
from carm.data.views import Views

FASTER = Target(">=", 1.5)
_BATCH = 32
_NET, _SIDE = "resnet32", 32  # pixels that the net gets; decoding takes the same time whatever they are
_ENDINGS = (".jpg", ".jpeg")


def photographs(data: Path | None, count: int) -> tuple[list[bytes], str]:
    """JPEG files in memory, and what to call them: those in the data folder, if there are enough."""
    root = data if data is not None else Path(os.environ.get(ROOT_VARIABLE) or os.devnull)
    files = sorted(path for path in root.rglob("*") if path.suffix.lower() in _ENDINGS) if root.is_dir() else []
    if len(files) < count:
        return made_up(count), "made-up photographs"
    chosen = np.random.default_rng(0).permutation(len(files))[:count]
    return [files[i].read_bytes() for i in chosen], "photographs"


def made_up(count: int) -> list[bytes]:
    """Smooth noise of 300 x 240 pixels, as JPEG: about as much to decode as a photograph of that size."""
    rng = np.random.default_rng(0)
    library = pillow()
    out = []
    for _ in range(count):
        coarse = library.fromarray(rng.integers(0, 256, (30, 38, 3), np.uint8))
        file = BytesIO()
        coarse.resize((300, 240), library.Resampling.BICUBIC).save(file, "jpeg", quality=90)
        out.append(file.getvalue())
    return out


def _decoding(decoder: Decoder, blobs: list[bytes]) -> Measure:
    def measure() -> float:
        begun = time.perf_counter()
        decoder.many(blobs)
        return (time.perf_counter() - begun) / len(blobs)

    return measure


class _Training:
    """Steps on photographs, which are decoded when their mini-batch is made, or one mini-batch ahead in a thread."""

    def __init__(self, blobs: list[bytes], steps: int) -> None:
        self.views = Views(recipe("cifar-10"), decoder=Decoder(resize=_SIDE, crop=_SIDE), channels_last=True)
        self.net = Step(_NET, _BATCH, channels_last=True)
        rng = np.random.default_rng(1)
        self.batches = [[blobs[i] for i in rng.integers(0, len(blobs), _BATCH)] for _ in range(steps)]

    def decoding(self) -> float:
        begun = time.perf_counter()
        for batch in self.batches:
            self.views.train(list(batch))
        return (time.perf_counter() - begun) / len(self.batches)

    def in_turn(self) -> float:
        begun = time.perf_counter()
        for batch in self.batches:
            self.net.x = self.views.train(list(batch))
            self.net()
        return (time.perf_counter() - begun) / len(self.batches)

    def ahead(self) -> float:
        with ThreadPoolExecutor(1) as pool:
            begun = time.perf_counter()
            coming = pool.submit(self.views.train, list(self.batches[0]))
            for _, following in pairwise([*self.batches, []]):
                self.net.x = coming.result()
                if following:
                    coming = pool.submit(self.views.train, list(following))
                self.net()
            return (time.perf_counter() - begun) / len(self.batches)


def decode(setting: Setting) -> list[Row]:
    """`decode`: one thread against all cores; decoding in turn with training against decoding ahead of it."""
    sizes, threads = setting.sizes, cores()
    blobs, what = photographs(setting.data, sizes.photographs)
    many, one = Decoder(), Decoder(threads=1)
    sides = {"many": _decoding(many, blobs), "one": _decoding(one, blobs)}
    sides["many"]()
    measured = alternate(sides, sizes.repetitions)
    rows = [
        compare(
            "decode",
            f"{what}, {threads} threads",
            measured["many"],
            measured["one"],
            of="speed",
            unit="items/s",
            against="1 thread",
            target=FASTER if threads > 1 else None,
        )
    ]
    training = _Training(blobs, sizes.training_steps)
    loops = {"decoding": training.decoding, "in turn": training.in_turn, "ahead": training.ahead}
    for loop in loops.values():
        loop()
    measured = alternate(loops, sizes.repetitions)
    how = f"{_NET}, {_BATCH} {what} a step"
    rows += [
        compare(
            "decode",
            f"{how}: decoding",
            measured["decoding"],
            measured["in turn"],
            of="cost",
            unit="ms",
            against="the whole step",
        ),
        compare(
            "decode",
            f"{how}: decoded on all cores, then trained on",
            measured["in turn"],
            measured["ahead"],
            of="speed",
            unit="ms",
            against="decoded one step ahead in a thread",
        ),
    ]
    return rows
