"""The demonstration, shortened."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

pytest.importorskip("sklearn")

from carm import demo


@pytest.fixture(autouse=True)
def one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_digits() -> None:
    tasks, (x_test, y_test) = demo.digits(0)
    classes = [set(y.tolist()) for _, y in tasks]
    assert [len(c) for c in classes] == [2] * 5
    assert set.union(*classes) == set(range(10))
    assert sum(len(y) for _, y in tasks) == 1257 and len(y_test) == 540
    assert x_test.dtype == torch.float32 and x_test.shape == (540, 64)
    counts = torch.bincount(y_test)
    assert counts.max() - counts.min() <= 3  # stratified
    again, _ = demo.digits(0)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(tasks, again, strict=True))


def test_a_store_helps() -> None:
    ram_only, _, carm_100, _ = demo.settings(30, 1257)
    plain, swapped = demo.run(ram_only, 0, passes=4), demo.run(carm_100, 0, passes=4)
    assert plain.stats["worker"] == "none" and plain.stats["swapped"] == 0
    assert swapped.stats["stored"] == swapped.stats["added"] == 1257
    assert swapped.stats["ram_samples"] == plain.stats["ram_samples"] == 30
    assert swapped.stats["drawn"] == plain.stats["drawn"]
    assert swapped.stats["swapped"] > 500
    # With 10 passes the difference is 10 to 15 points, several times its spread over the seeds.
    assert swapped.accuracy > plain.accuracy + 3


def test_what_it_prints(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    results = demo.main(slots=20, seeds=2, passes=1)
    out = capsys.readouterr().out
    for setting, runs in results:
        (line,) = (line for line in out.splitlines() if line.startswith(setting.name))
        mean = sum(r.accuracy for r in runs) / 2
        assert f" {mean:.1f} ± " in line
    assert [setting.ratio for setting, _ in results] == [None, 0.5, 1.0, None]
    assert not list(tmp_path.iterdir())  # the stores are gone


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="slots=0"):
        demo.main(slots=0)
    with pytest.raises(ValueError, match="seeds=0"):
        demo.main(seeds=0)
