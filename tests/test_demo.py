"""The demonstration, shortened."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

from carm import cli, demo


def test_the_settings_differ_in_swapping_alone() -> None:
    configs = demo.configurations(em=30, seeds=2, methods=demo.METHODS)
    assert len(configs) == 3 * 3 * 2 == len({c.key for c in configs})
    assert {c.setting for c in configs} == set(demo.SETTINGS)
    for method in demo.METHODS:
        alike = [c.replace(swap="none", ratio=1.0, seed=0) for c in configs if c.method == method]
        assert all(c == alike[0] for c in alike)


@pytest.mark.slow
def test_a_store_helps() -> None:
    configs = demo.configurations(em=20, seeds=2, methods=["der++"])
    # At once, so that what is swapped does not depend on how busy the machine is.
    runs = demo.run([c if c.swap == "none" else c.replace(swap="sync") for c in configs], jobs=2)
    means = {}
    for setting in ("Original", "CarM-100"):
        chosen = [run for run in runs if run["setting"] == setting]
        means[setting] = sum(run["final"]["ci"]["accuracy"] for run in chosen) / 2
        for run in chosen:
            assert run["memory"]["ram_samples"] == 20
            assert (run["memory"]["swapped"] > 500) == (setting != "Original")
    # Over more seeds the difference is about ten points, twice its spread.
    assert means["CarM-100"] > means["Original"] + 2


@pytest.mark.slow
def test_what_it_prints(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "METHODS", ("gdumb",))
    report = tmp_path / "deep" / "demo.html"
    assert cli.main(["demo", "--seeds", "1", "--em", "20", "--report", str(report)]) == 0
    out = capsys.readouterr().out
    for setting in demo.SETTINGS:
        assert re.search(rf"^GDumb +{setting} +\d+\.\d", out, re.M)
    assert str(report) in out and "<svg" in report.read_text()


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="em=0"):
        demo.configurations(em=0, seeds=1, methods=[])
    with pytest.raises(ValueError, match="seeds=0"):
        demo.configurations(em=10, seeds=0, methods=[])
