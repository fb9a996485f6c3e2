"""Runs: their files, kills and resumes, odd data, and parts of one's own."""

from __future__ import annotations

import json
import logging
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from carm import methods, nets
from carm.data import ArraySplit, Decoder, Source, split_by_class, stream_of
from carm.data.augment import IMAGENET, Recipe, crop_flip, photographs
from carm.lab import Config, run
from carm.lab.parts import make_recipe, make_stream
from carm.lab.watch import Moment, Watch

ALL = methods.names()
# Enough passes and samples to learn from, few enough for a fraction of a second.
TINY: dict[str, Any] = {
    "data": "digits",
    "tasks": 3,
    "per_class": 12,
    "test_per_class": 5,
    "passes": 3,
    "batch": 10,
    "em": 30,
    "swap": "sync",
    "ratio": 0.7,
    "lr": 0.05,
    "momentum": 0.5,
}
OWN: dict[str, dict[str, Any]] = {
    "tiny-er": {"old_batch": 10},
    "der++": {"old_batch": 10},
    "gdumb": {"cutmix": 0.5},
    "rm": {"options": {"copies": 3}, "cutmix": 0.5},
    "icarl": {"net": "cnn", "width": 4},
    "bic": {"em": 100},
}


def tiny(method: str = "er", **changes: Any) -> Config:
    return Config(method=method, **{**TINY, **OWN.get(method, {}), **changes})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def out() -> Iterator[Path]:
    """A directory where syncs cost nothing."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        yield Path(folder)


def lasting(metrics: dict[str, Any]) -> dict[str, Any]:
    """What must be the same in two runs: everything but times, the queue, and how storage is indexed and read."""
    kept = {k: v for k, v in metrics.items() if k not in ("bundles", "seconds", "cpu_seconds")}
    counters = dict(metrics["memory"])
    for name in ("add_wait_seconds", "order_age_mean", "order_age_max", "deepest", "engine", "index_bytes"):
        counters.pop(name, None)
    return kept | {"memory": counters}


# -- what a run leaves -------------------------------------------------------------------------------------------------


def test_the_files_of_a_run(out: Path) -> None:
    moments: list[Moment] = []

    class Noting(Watch):
        seconds = 0.0

        def __call__(self, moment: Moment) -> None:
            moments.append(moment)

    config = tiny()
    metrics = run(config, out / "r", watch=Noting())
    assert Config.load(out / "r" / "config.json") == config
    record = json.loads((out / "r" / "metrics.json").read_text())
    assert record["config"] == config.as_dict() and record["key"] == config.key
    assert record["final"]["ci"]["accuracy"] == pytest.approx(metrics["final"]["ci"]["accuracy"], abs=1e-4)
    assert [len(row) for row in record["matrix"]["ci"]] == [1, 2, 3]
    assert record["tasks"] == [
        {"classes": [0, 1, 2, 3], "samples": 48},
        {"classes": [4, 5, 6], "samples": 36},
        {"classes": [7, 8, 9], "samples": 36},
    ]
    assert [one["labels"] for one in record["composition"]] == [list(range(n)) for n in (4, 7, 10)]
    assert [sum(one["ram"]) for one in record["composition"]] == [30, 30, 30]
    assert [sum(one["storage"]) for one in record["composition"]] == [48, 84, 120]
    assert len(record["bundles"]) == 3 and record["seconds"] > 0
    assert record["memory"]["swapped"] > 0 and record["skipped"] == {}
    assert not (out / "r" / "checkpoint.pt").exists()
    assert (out / "r" / "memory").is_dir()
    assert moments[-1].done == 1 and moments[-1].task == 2
    assert [m.done for m in moments] == sorted(m.done for m in moments)
    assert len(record["series"]["step"]) == 9


def test_the_store_may_go(out: Path) -> None:
    run(tiny(), out / "r", keep_store=False)
    assert not (out / "r" / "memory").exists()
    assert (out / "r" / "metrics.json").exists()


def test_without_swapping_there_is_no_store(out: Path) -> None:
    metrics = run(tiny(swap="none"), out / "r")
    assert not (out / "r" / "memory").exists()
    assert metrics["memory"]["swapped"] == 0 and metrics["setting"] == "Original"


def test_seeds_repeat(out: Path) -> None:
    first, same, other = (run(tiny(seed=seed), out / str(i)) for i, seed in enumerate((3, 3, 4)))
    assert lasting(first) == lasting(same)
    assert first["series"]["loss"] != other["series"]["loss"]


@pytest.mark.parametrize("method", ALL)
def test_swapping_in_the_background(method: str, out: Path) -> None:
    metrics = run(tiny(method, swap="async", net="mlp", width=0), out / "r", every=1000)
    assert metrics["memory"]["worker"] == "thread"
    assert sum(metrics["composition"][-1]["storage"]) >= 100  # BiC keeps some of the 120 for itself
    assert metrics["memory"]["stream_samples"] == 0 and metrics["memory"]["queue_depth"] == 0


# -- kills and resumes -------------------------------------------------------------------------------------------------


class Children:
    """Runs in processes of their own; see run_child.py."""

    def __init__(self) -> None:
        script = Path(__file__).with_name("run_child.py")
        self.server = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.server.stdout is not None
        assert self.server.stdout.readline() == "ready\n"

    def __call__(
        self, config: Config, out: Path, *, kill: int = 0, checkpoints: int = 0, after: float = 0.0
    ) -> tuple[int, float]:
        assert self.server.stdin is not None and self.server.stdout is not None
        job = {"config": config.as_dict(), "out": str(out), "signal": kill, "checkpoints": checkpoints, "after": after}
        self.server.stdin.write(json.dumps(job) + "\n")
        self.server.stdin.flush()
        answer = json.loads(self.server.stdout.readline())
        return answer["code"], answer["seconds"]

    def close(self) -> None:
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait(30)


@pytest.fixture(scope="module")
def child() -> Iterator[Children]:
    children = Children()
    yield children
    children.close()


def metrics_in(out: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    return record


@pytest.mark.parametrize(("method", "swap"), [*((method, "sync") for method in ALL), ("er", "none"), ("der++", "none")])
def test_a_killed_run_ends_as_if_nothing_had_happened(method: str, swap: str, out: Path, child: Children) -> None:
    config = tiny(method, swap=swap)
    code, seconds = child(config, out / "whole")
    assert code == 0
    chance = random.Random(f"{method} {swap}")
    killed = 0
    for round, checkpoints in enumerate((1, 2, 0, 1)):
        after = chance.uniform(0, 0.2) * seconds if round else 0.0
        code, _ = child(config, out / "r", kill=signal.SIGKILL, checkpoints=checkpoints, after=after)
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
    assert killed  # the later rounds may come too late: a run is short, and the machine busy
    assert child(config, out / "r")[0] == 0
    assert lasting(metrics_in(out / "r")) == lasting(metrics_in(out / "whole"))


def test_ctrl_c_leaves_a_run_that_goes_on(out: Path, child: Children) -> None:
    config = tiny("icarl", net="mlp", width=0, passes=12)
    assert child(config, out / "whole")[0] == 0
    assert child(config, out / "r", kill=signal.SIGINT, checkpoints=1, after=0.0)[0] == 130
    assert (out / "r" / "checkpoint.pt").exists() and not (out / "r" / "metrics.json").exists()
    assert child(config, out / "r")[0] == 0
    assert lasting(metrics_in(out / "r")) == lasting(metrics_in(out / "whole"))


class Interrupting:
    """A file in whose every read and write Ctrl-C is pressed."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        if name in ("read", "readinto", "write"):
            signal.raise_signal(signal.SIGINT)
        return getattr(self.file, name)


def test_ctrl_c_in_the_middle_of_a_checkpoint(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch would turn it into a RuntimeError, or take the file for a damaged one and start over."""
    whole = run(tiny(), out / "whole")

    save, load = torch.save, torch.load

    def save_interrupted(state: Any, file: Any) -> None:
        save(state, Interrupting(file))

    def load_interrupted(path: Path, **more: Any) -> Any:
        with path.open("rb") as file:
            return load(Interrupting(file), **more)

    with monkeypatch.context() as patch:
        patch.setattr("torch.save", save_interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tiny(), out / "r")
    assert (out / "r" / "checkpoint.pt").exists()
    with monkeypatch.context() as patch:
        patch.setattr("torch.load", load_interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(tiny(), out / "r", resume=True)
    assert lasting(run(tiny(), out / "r", resume=True)) == lasting(whole)


def test_stopped_between_the_first_samples_and_their_checkpoint(
    out: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The passes of the first task are not made again."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("carm.lab.metrics.History.add", stop)  # after the first task, which is in the store by then
        with pytest.raises(KeyboardInterrupt):
            run(tiny(), out / "r")
    moments: list[tuple[int, int]] = []

    class Note(Watch):
        seconds = 0.0

        def __call__(self, moment: Moment) -> None:
            moments.append((moment.task, moment.number))

    resumed = run(tiny(), out / "r", resume=True, watch=Note())
    assert moments[0] == (0, 2) and not caplog.records
    assert lasting(resumed) == lasting(run(tiny(), out / "whole"))


class Stop(Watch):
    """Ends a run at the end of a pass, without a trace."""

    seconds = 1e9

    def __init__(self, task: int, passes: int) -> None:
        super().__init__()
        self.at = (task, passes)

    def __call__(self, moment: Moment) -> None:
        if (moment.task, moment.number) == self.at:
            raise KeyboardInterrupt


def stopped(config: Config, out: Path, *, task: int = 1, passes: int = 2, **more: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(config, out, watch=Stop(task, passes), **more)


def test_an_unfinished_run_is_not_started_over(out: Path) -> None:
    stopped(tiny(), out / "r")
    with pytest.raises(ValueError, match="unfinished run"):
        run(tiny(), out / "r")
    whole = run(tiny(), out / "whole")
    assert lasting(run(tiny(), out / "r", resume=True)) == lasting(whole)


def test_a_run_that_never_began_may_have_other_settings(out: Path) -> None:
    """Nothing of it is worth keeping: no checkpoint, no metrics."""
    (out / "r" / "memory").mkdir(parents=True)
    tiny(em=20).save(out / "r" / "config.json")
    run(tiny(), out / "r")
    assert Config.load(out / "r" / "config.json") == tiny()


def test_a_compiled_net_learns_the_same(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a backend that needs no compiler; what the real one brings is for `carm bench nets`."""
    compiled: list[str] = []

    def compile_here(module: torch.nn.Module) -> None:
        compiled.append(type(module).__name__)
        module._compiled_call_impl = torch.compile(module._call_impl, backend="eager")

    monkeypatch.setattr(torch.nn.Module, "compile", compile_here)
    plain = run(tiny("icarl"), out / "plain")
    other = run(tiny("icarl", compile="yes"), out / "compiled")
    assert compiled == ["CNN"]
    assert lasting(other) | {"config": 0} == lasting(plain) | {"config": 0}
    assert tiny("icarl", compile="yes").key == tiny("icarl").key


def test_a_stream_of_pairs(out: Path) -> None:
    rng = np.random.default_rng(0)

    def points(label: int) -> Any:
        return rng.normal(label % 4, 0.2, (40, 2)).astype(np.float32), np.full(40, label)

    pairs = [tuple(map(np.concatenate, zip(points(a), points(b), strict=True))) for a, b in ((40, 13), (10, 71))]
    test = tuple(map(np.concatenate, zip(*map(points, (10, 13, 40, 71)), strict=True)))
    config = tiny(net="mlp", width=0, passes=10, lr=0.5)
    metrics = run(config, out / "r", stream=stream_of(pairs, test=test))  # type: ignore[arg-type]
    assert metrics["final"]["ti"]["accuracy"] > 85


@pytest.mark.parametrize("shape", [(3,), (3, 20), (5,)])
def test_readings_of_sensors_as_numpy_makes_them(shape: tuple[int, ...], out: Path) -> None:
    """Three channels are not always colours, and numpy's numbers are of double precision."""
    rng = np.random.default_rng(0)

    def readings(labels: tuple[int, ...]) -> Any:
        y = np.repeat(labels, 30)
        return rng.normal(0, 0.1, (len(y), *shape)) + y.reshape(-1, *(1 for _ in shape)), y

    stream = stream_of([readings((0, 2)), readings((1, 3))], test=readings((0, 1, 2, 3)))
    assert stream[0].x.dtype == np.float64  # type: ignore[union-attr]
    for method in ("icarl", "rm"):
        config = tiny(method, net="mlp", width=0, passes=10, lr=0.1, test_per_class=0, cutmix=0.0)
        assert run(config, out / method, stream=stream)["final"]["ti"]["accuracy"] > 85


def test_a_finished_run_is_returned_or_refused(out: Path) -> None:
    first = run(tiny(), out / "r")
    before = {p.name: p.stat().st_mtime_ns for p in (out / "r").iterdir() if p.name != "lock"}
    again = run(tiny(), out / "r", resume=True)
    assert lasting(again)["final"] == lasting(metrics_in(out / "r"))["final"]
    assert again["final"]["ci"]["accuracy"] == pytest.approx(first["final"]["ci"]["accuracy"], abs=1e-5)
    assert before == {p.name: p.stat().st_mtime_ns for p in (out / "r").iterdir() if p.name != "lock"}
    with pytest.raises(ValueError, match="finished run"):
        run(tiny(), out / "r")


@pytest.mark.parametrize("resume", [True, False])
def test_another_runs_directory_is_refused(resume: bool, out: Path) -> None:
    stopped(tiny(), out / "r")
    with pytest.raises(ValueError) as caught:
        run(tiny(em=40, seed=2), out / "r", resume=resume)
    assert "em: 40 here, 30 there; seed: 2 here, 0 there" in str(caught.value)
    run(tiny(threads=1, device="cpu", root="elsewhere"), out / "r", resume=True)  # these decide nothing


@pytest.mark.parametrize("how", ["cut short", "overwritten", "empty"])
def test_a_damaged_checkpoint_starts_over_with_a_warning(how: str, out: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = run(tiny(), out / "whole")
    stopped(tiny(), out / "r")
    file = out / "r" / "checkpoint.pt"
    data = file.read_bytes()
    file.write_bytes({"cut short": data[: len(data) // 2], "overwritten": b"\0" * len(data), "empty": b""}[how])
    with caplog.at_level(logging.WARNING, "carm"):
        again = run(tiny(), out / "r", resume=True)
    assert "starts over" in caplog.text and "checkpoint.pt" in caplog.text
    assert lasting(again) == lasting(whole)


def test_a_lost_store_starts_over_with_a_warning(out: Path, caplog: pytest.LogCaptureFixture) -> None:
    import shutil

    whole = run(tiny(), out / "whole")
    stopped(tiny(), out / "r")
    shutil.rmtree(out / "r" / "memory")
    with caplog.at_level(logging.WARNING, "carm"):
        again = run(tiny(), out / "r", resume=True)
    assert "starts over" in caplog.text
    assert lasting(again) == lasting(whole)


def test_other_data_under_the_same_name_is_refused(out: Path) -> None:
    stopped(tiny(), out / "r")
    other = make_stream(tiny(seed=9))
    with pytest.raises(ValueError, match="data is not the same"):
        run(tiny(), out / "r", resume=True, stream=other)


def test_a_directory_in_use_is_refused(out: Path) -> None:
    (out / "r").mkdir()
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(out / "r" / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None and other.stdin is not None
    try:
        assert other.stdout.readline() == "1\n"
        with pytest.raises(ValueError, match="in use by another process"):
            run(tiny(), out / "r")
    finally:
        other.communicate("\n", timeout=30)
    run(tiny(), out / "r")


def test_a_folder_called_memory_that_is_not_ours_is_left_alone(out: Path) -> None:
    (out / "r" / "memory").mkdir(parents=True)
    (out / "r" / "memory" / "photo.jpg").write_bytes(b"dear to me")
    with pytest.raises(ValueError, match="belongs to no run"):
        run(tiny(), out / "r")
    assert (out / "r" / "memory" / "photo.jpg").read_bytes() == b"dear to me"


def test_checkpoints_are_no_part_of_the_time_of_training(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = torch.save

    def slow(state: Any, file: Any) -> None:
        time.sleep(0.3)
        save(state, file)

    monkeypatch.setattr("torch.save", slow)
    begun = time.perf_counter()
    metrics = run(tiny(tasks=2), out / "r")
    assert time.perf_counter() - begun > 1.8 and metrics["seconds"] < 1.2  # six checkpoints


def test_checkpoints_no_more_often_than_asked(out: Path) -> None:
    stopped(tiny(), out / "r", every=1000)
    state = torch.load(out / "r" / "checkpoint.pt", weights_only=True)
    assert state["position"][:2] == [0, 1]  # the first one, and none since
    whole = run(tiny(), out / "whole", every=1000)
    assert lasting(run(tiny(), out / "r", resume=True))["final"] == lasting(whole)["final"]


# -- data, nets and transforms of one's own ----------------------------------------------------------------------------


def photo_folder(where: Path) -> None:
    """Two splits of four classes: sizes differ, one image is grey, one is cut short; the very first is no image."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 7), ("test", 3)):
        for label in range(4):
            folder = where / split / f"kind{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                size = (14 + 5 * number, 11 + 4 * label)
                pixels = rng.integers(0, 60, (*size, 3)).astype(np.uint8)
                pixels[..., label % 3] += np.uint8(100 + 30 * (label // 3))
                image = Image.fromarray(pixels)
                (image.convert("L") if number == 2 else image).save(folder / f"{number}.jpg", quality=90)
    (where / "train" / "kind0" / "0.jpg").write_bytes(b"this is no picture")
    (where / "train" / "kind1" / "5.jpg").write_bytes(b"nor is this")
    cut = where / "train" / "kind2" / "4.jpg"
    cut.write_bytes(cut.read_bytes()[:-150])
    (where / "test" / "kind1" / "1.jpg").write_bytes(b"")


PHOTOS: dict[str, Any] = {
    "data": "folder",
    "tasks": 2,
    "net": "cnn",
    "width": 4,
    "em": 10,
    "passes": 2,
    "batch": 6,
    "swap": "sync",
    "ratio": 0.5,
    "lr": 0.01,
    "per_class": 0,
    "test_per_class": 0,
    "options": {},
    "cutmix": 0.0,
}
BROKEN = {"train/kind0/0.jpg", "train/kind1/5.jpg", "train/kind2/4.jpg", "test/kind1/1.jpg"}


def skipped(metrics: dict[str, Any]) -> set[str]:
    return {name if "/kind" in name else f"?/{name}" for name in metrics["skipped"]}


@pytest.mark.parametrize("size", [12, 0])
def test_photographs_of_all_sizes_and_broken_ones(size: int, out: Path, caplog: pytest.LogCaptureFixture) -> None:
    photo_folder(out / "photos")
    config = tiny("er", **{**PHOTOS, "size": size, "root": str(out / "photos")})
    own = {} if size else {"samples": photographs((0.5,) * 3, (0.2,) * 3, size=10)}
    with caplog.at_level(logging.WARNING):
        metrics = run(config, out / "r", **own)
    assert skipped(metrics) == BROKEN
    assert all(name in caplog.text for name in BROKEN)
    assert [sum(one["storage"]) for one in metrics["composition"]] == [12, 25]
    assert metrics["matrix"]["ci"][-1] != []


@pytest.mark.parametrize("size", [12, 0])
def test_test_images_are_decoded_once(size: int, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo_folder(out / "photos")
    config = tiny("er", **{**PHOTOS, "size": size, "root": str(out / "photos"), "em": 4, "swap": "none"})
    own = {} if size else {"samples": photographs((0.5,) * 3, (0.2,) * 3, size=10)}
    test = {path.read_bytes() for path in (out / "photos" / "test").rglob("*.jpg")}
    decoded: list[bytes] = []
    decode = Decoder.__call__

    def counted(self: Decoder, blob: bytes) -> Any:
        decoded.extend([blob] if blob in test else [])
        return decode(self, blob)

    monkeypatch.setattr(Decoder, "__call__", counted)
    run(config, out / "r", **own)
    assert len(decoded) == 6 + 12  # of two classes after the first task, of four after the second


def test_photographs_without_augmentation(out: Path) -> None:
    """They must be brought to one size all the same."""
    photo_folder(out / "photos")
    config = tiny("er", **{**PHOTOS, "root": str(out / "photos"), "augment": "none"})
    samples = make_recipe(config, make_stream(config).source)
    images = [np.zeros((3, 40, 50), np.uint8), np.zeros((3, 80, 30), np.uint8)]
    assert samples.train(images, torch.Generator()).shape == samples.test(images).shape == (2, 3, 224, 224)


def test_a_size_makes_photographs_small_squares(out: Path) -> None:
    """With all that they show from the upper edge to the lower; a square cut from the middle would not have that."""
    framed = np.full((40, 40, 3), 255, np.uint8)
    framed[6:-6] = 0
    for part in ("train", "test"):
        for kind, shape in (("a", (40, 60)), ("b", (40, 40)), ("c", (10, 10)), ("d", (10, 30))):
            (out / part / kind).mkdir(parents=True)
            Image.fromarray(framed).resize(shape[::-1]).save(out / part / kind / "0.png")
    source = make_stream(tiny("er", **{**PHOTOS, "root": str(out), "size": 12})).source
    for split in (source.train, source.test):
        pixels = split.fetch(range(4)).array
        assert pixels.shape == (4, 3, 12, 12)
        assert (pixels[:, :, [0, -1]] > 200).all() and (pixels[:, :, 4:8] < 50).all()


@pytest.mark.parametrize("name", ["folder", "imagenet-100"])
def test_photographs_of_one_size_are_moved_and_mirrored(name: str, out: Path) -> None:
    photo_folder(out / "photos")
    config = tiny("er", **{**PHOTOS, "size": 12, "root": str(out / "photos")})
    source = replace(make_stream(config).source, name=name)
    pixels, expected = source.test.fetch(range(6)).array, crop_flip(*IMAGENET)
    for changes, transforms in (({}, expected), ({"augment": "none"}, expected.with_augment())):
        samples = make_recipe(config.replace(**changes), source)
        assert torch.equal(samples.test(pixels), transforms.test(pixels))
        found, same = (one.train(pixels, torch.Generator().manual_seed(0)) for one in (samples, transforms))
        assert torch.equal(found, same)


def test_training_images_none_of_which_can_be_decoded(out: Path) -> None:
    for kind in "ab":
        (out / "photos" / kind).mkdir(parents=True)
        for number in range(3):
            (out / "photos" / kind / f"{number}.jpg").write_bytes(b"this is no picture")
    config = tiny("er", **{**PHOTOS, "size": 12, "root": str(out / "photos")})
    with pytest.raises(ValueError, match="folder: none of its 4 training samples can be decoded"):
        run(config, out / "r")
    assert not (out / "r" / "config.json").exists()


def test_test_images_none_of_which_can_be_decoded(out: Path) -> None:
    photo_folder(out / "photos")
    for file in (out / "photos" / "test").glob("kind[01]/*.jpg"):
        file.write_bytes(b"broken")
    config = tiny("er", **{**PHOTOS, "root": str(out / "photos"), "order": "natural"})
    metrics = run(config, out / "r", samples=photographs((0.5,) * 3, (0.2,) * 3, size=10))
    first, second = metrics["incremental"]["ci"]
    assert np.isnan(first) and np.isfinite(second)
    assert len([name for name in metrics["skipped"] if name.startswith("test/")]) == 6
    assert metrics_in(out / "r")["incremental"]["ci"][0] is None


def test_skipped_images_are_counted_through_a_resume(out: Path) -> None:
    photo_folder(out / "photos")
    config = tiny("icarl", **{**PHOTOS, "size": 12, "root": str(out / "photos")})
    whole = run(config, out / "whole")
    stopped(config, out / "r", task=1, passes=2)
    again = run(config, out / "r", resume=True)
    assert skipped(again) == BROKEN
    assert lasting(again) == lasting(whole)


@pytest.mark.parametrize("method", ALL)
def test_every_method_takes_photographs(method: str, out: Path) -> None:
    photo_folder(out / "photos")
    changes = {**PHOTOS, "size": 12, "root": str(out / "photos"), "em": 20}
    metrics = run(tiny(method, **changes), out / "r", every=1000)
    assert len(metrics["matrix"]["ci"]) == 2 and metrics["memory"]["stored"] >= 23


@pytest.mark.parametrize("method", ["er", "der++", "bic"])
def test_a_loss_that_is_not_a_number_names_the_learning_rate(method: str, out: Path) -> None:
    config = tiny(method, lr=1e30, net="mlp", width=0)
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) in pass \d of task 1: lr=1e\+30 is too large"):
        run(config, out / "r")
    assert not (out / "r" / "metrics.json").exists()


@pytest.mark.parametrize("method", ["er", "gdumb", "icarl"])
def test_a_net_stream_and_transform_of_ones_own(method: str, out: Path) -> None:
    """Vectors in place of images: the transform turns bytes to numbers, the net has two inputs."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 30)
    x = (60 * np.stack([y % 2, y // 2], 1) + rng.integers(0, 30, (120, 2))).astype(np.uint8)
    train, test = ArraySplit(x[::2], y[::2]), ArraySplit(x[1::2], y[1::2])
    stream = split_by_class(Source("points", tuple("abcd"), train, test), tasks=2, order="natural")
    noised: list[int] = []
    built: list[int] = []

    def noisy(points: Any, *, generator: torch.Generator) -> torch.Tensor:
        noised.append(len(points))
        points = torch.as_tensor(points).float() / 60
        return points + 0.05 * torch.randn(points.shape, generator=generator)

    def make_net(number: int) -> nets.Net:
        built.append(number)
        torch.manual_seed(number)
        return nets.wrap(torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.ReLU()), 32, seed=number)

    def scaled(points: Any) -> torch.Tensor:
        return torch.as_tensor(points).float() / 60

    metrics = run(
        tiny(method, net="mlp", width=0, passes=20, em=20, lr=0.5, cutmix=0.0, momentum=0.0),
        out / "r",
        every=1000,
        stream=stream,
        make_net=make_net,
        samples=Recipe(augment=(noisy,), prepare=(scaled,)),
    )
    assert sum(noised) >= 20 * 60 if method != "gdumb" else noised
    assert set(built) == ({0, 1} if method == "gdumb" else {0})
    assert metrics["final"]["ti"]["accuracy"] > 85
    assert metrics["final"]["ci"]["accuracy"] > 50


def test_a_net_of_ones_own_gets_torchs_threads(out: Path) -> None:
    """The configuration then names a net that is not used, by default a small one for which one thread is best."""
    found: list[int] = []

    def make_net(number: int) -> nets.Net:
        found.append(torch.get_num_threads())
        return nets.build("mlp", in_shape=(1, 8, 8), seed=number)

    torch.set_num_threads(2)
    run(tiny(net="mlp", width=0), out / "own", make_net=make_net)
    run(tiny(net="mlp", width=0, threads=1), out / "told", make_net=make_net)
    assert found == [2, 1]


class StopAfter(Watch):
    """Ctrl-C after so many passes."""

    seconds = float("inf")

    def __init__(self, passes: int) -> None:
        super().__init__()
        self.left = passes

    def __call__(self, moment: Moment) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("method", ["er", "icarl", "gdumb"])
def test_dropout_and_transforms_that_draw_from_the_global_generator(method: str, out: Path) -> None:
    """They repeat and resume like everything else, and a run leaves the generator as it was."""

    def make_net(number: int) -> nets.Net:
        torch.manual_seed(number)  # as users do it
        layers = torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout()
        return nets.wrap(torch.nn.Sequential(*layers), 32, seed=number)

    def noisy(images: Any) -> torch.Tensor:
        return images.float() / 255 + 0.1 * torch.randn(images.shape)

    config = tiny(method, width=0, net="mlp", cutmix=0.0)
    own: dict[str, Any] = {"make_net": make_net, "samples": Recipe(augment=(noisy,))}
    before = torch.get_rng_state()
    whole = run(config, out / "whole", **own)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert lasting(run(config, out / "again", **own)) == lasting(whole)
    for passes in (5, 2):
        with pytest.raises(KeyboardInterrupt):
            run(config, out / "r", resume=True, watch=StopAfter(passes), **own)
    torch.rand(1)
    assert lasting(run(config, out / "r", resume=True, **own)) == lasting(whole)


# -- learning ----------------------------------------------------------------------------------------------------------

LEARNING: dict[str, dict[str, Any]] = {
    "er": {"lr": 1.0},
    "icarl": {"lr": 1.0},
    "tiny-er": {"passes": 1, "old_batch": 10, "lr": 0.1, "options": {"masked": True}},
    "bic": {"lr": 0.1},
    "gdumb": {"lr": 0.1, "passes": 12, "cutmix": 0.0},
    "der++": {"lr": 0.1, "old_batch": 10},
    "rm": {"lr": 0.1, "options": {"copies": 4}},
}
FLOOR = {"er": 75, "icarl": 70, "tiny-er": 30, "bic": 75, "gdumb": 75, "der++": 80, "rm": 75}  # chance is 10


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("swap", ["none", "sync"])
def test_every_method_learns(method: str, swap: str, out: Path) -> None:
    settings = {
        "data": "digits",
        "tasks": 5,
        "passes": 5,
        "em": 100,
        "swap": swap,
        "per_class": 45,
        "test_per_class": 20,
        **LEARNING[method],
    }
    metrics = run(Config(method=method, **settings), out / "r", every=1000)
    assert metrics["final"]["ci"]["accuracy"] > FLOOR[method]
    assert metrics["final"]["ti"]["accuracy"] > 85
    last = metrics["composition"][-1]
    assert last["labels"] == list(range(10))
    assert sum(last["ram"]) == (90 if method == "bic" else 100)
    if method not in ("tiny-er", "der++"):  # these keep a reservoir
        assert max(last["ram"]) - min(last["ram"]) <= 1
    if swap == "sync":
        assert metrics["memory"]["swapped"] > 100
