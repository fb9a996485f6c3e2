"""The measurements of training run, on sizes that mean nothing, and give results of the promised form."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from carm import cli
from carm.bench import command, net_decode, net_profile, net_steps, nets
from carm.bench.net_sizes import FULL, QUICK, NetSizes, Setting
from carm.bench.report import Row, Target, compare
from carm.data.registry import ROOT_VARIABLE
from carm.nets import channels_last

TINY = NetSizes(
    repetitions=2,
    warm_up=1,
    steps=(("cnn", 2), ("mlp", 2)),
    tasks=1,
    layouts=(("cnn", 2),),
    compiled=(("mlp", 4),),
    photographs=4,
    training_steps=1,
    batch=4,
    against=("cnn",),
)


@pytest.fixture
def setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setting:
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    monkeypatch.setattr(net_decode, "_BATCH", 2)
    return Setting(TINY, tmp_path)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def check(rows: list[Row], name: str) -> None:
    assert rows
    for row in rows:
        assert row.name == name
        assert row.variant and row.against and row.unit
        assert math.isfinite(row.ratio) and row.ratio > 0
        assert row.ours > 0 and (row.baseline is None or row.baseline > 0)
        assert row.reached == (None if row.target is None else row.target.reached(row.ratio))


def test_a_profile_accounts_for_the_whole_step(setting: Setting) -> None:
    rows = net_profile.profile(setting)
    check(rows, "profile")
    assert "cifar-100 was not found" in rows[0].note
    for name, _ in TINY.steps:
        own = [row for row in rows if row.variant.startswith(name)]
        assert len(own) == 6
        *parts, alone = own
        assert "swaps a step" in alone.variant
        assert sum(row.ours for row in parts) == pytest.approx(parts[0].baseline, rel=0.02)  # two steps: median = mean
        assert all(row.ratio < 1 for row in parts)


def test_the_profile_that_is_judged_is_the_papers() -> None:
    case = net_profile._cases()["resnet32"]
    assert case.target == Target(">=", 0.9)
    config = case.config
    assert (config.method, config.net, config.data, config.batch, config.em) == (
        "er",
        "resnet32",
        "cifar-100",
        128,
        2000,
    )
    assert (config.swap, config.setting) == ("async", "CarM-100")
    for sizes in (FULL, QUICK):
        assert sizes.steps[0][0] == "resnet32" and sizes.against == ("resnet32", "cnn")


def test_layouts(setting: Setting) -> None:
    rows = net_steps.channels_last(setting)
    check(rows, "channels-last")
    assert [row.variant for row in rows] == ["cnn, batches of 2"]
    assert {name for name, _ in FULL.layouts} == {"cnn", "resnet32", "resnet18-reduced", "resnet18", "densenet100"}
    assert all(channels_last(name) for name, _ in FULL.layouts) and not channels_last("mlp400")


@pytest.mark.parametrize(
    ("quartiles", "note"), [((1.1, 1.3), ""), ((0.9, 1.1), "cnn: no clear"), ((0.8, 0.9), "cnn: it is slower")]
)
def test_a_layout_that_does_not_help_is_told(quartiles: tuple[float, float], note: str) -> None:
    low, high = quartiles
    row = compare("n", "v", [1.0, 1.0, 1.0], [low, low, high], of="speed", unit="ms", against="x")
    row = replace(row, spread=replace(row.spread, quartile1=low, quartile3=high))
    said = net_steps._verdict("cnn", row)
    assert said.startswith(note) and bool(said) == bool(note)


def test_compiling(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.nn.Module] = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda module: asked.append(module))  # which takes long
    monkeypatch.setattr(torch.compiler, "reset", lambda: None)
    rows = net_steps.compiled(setting)
    assert [type(module).__name__ for module in asked] == ["MLP"]  # the backbone: the head grows
    check(rows, "compile")
    assert rows[1].unit == "s" and ("even after" in rows[1].against or "gains nothing" in rows[1].against)


def test_augmentation(setting: Setting) -> None:
    rows = net_steps.augment(setting)
    check(rows, "augment")
    assert [row.unit for row in rows] == ["us", "ms"]
    assert rows[0].ours * TINY.batch / 1000 == pytest.approx(rows[1].ours)


def test_decoding(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL")
    monkeypatch.setattr(net_decode, "_NET", "cnn")
    rows = net_decode.decode(setting)
    check(rows, "decode")
    assert "made-up photographs" in rows[0].variant
    assert rows[0].target == (Target(">=", 1.5) if net_decode.cores() > 1 else None)


def test_photographs_of_the_data_folder_are_used(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    (tmp_path / "class").mkdir()
    made = net_decode.made_up(3)
    for number, blob in enumerate(made):
        (tmp_path / "class" / f"{number}.JPG").write_bytes(blob)
    found, what = net_decode.photographs(tmp_path, 3)
    assert sorted(found) == sorted(made) and what == "photographs"
    assert net_decode.photographs(tmp_path, 4)[1] == "made-up photographs"


# -- the command -------------------------------------------------------------------------------------------------------


def test_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(nets, "QUICK", TINY)
    monkeypatch.setattr(nets, "_apart", lambda benchmark, setting: benchmark(setting))
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out.json"
    words = ["bench", "nets", "--quick", "--only", "aug", "chan", "--json", str(out), "--data", str(tmp_path)]
    assert cli.main(words) == 0
    assert [row["name"] for row in json.loads(out.read_text())["rows"]] == ["channels-last", "augment", "augment"]
    assert "targets reached" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [out]


def test_a_data_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no such folder"):
        nets.main(json_path=None, quick=True, only=None, data=tmp_path / "none")
    with pytest.raises(ValueError, match=r"only='nonsense'.*channels-last"):
        nets.main(json_path=None, quick=True, only=["nonsense"])


def test_a_failure_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    def broken() -> list[Row]:
        raise RuntimeError("no compiler")

    rows, failed = command.carry_out({"broken": broken, "fine": list}, Console(stderr=True))
    assert (rows, failed) == ([], ["broken"])
    assert "no compiler" in capsys.readouterr().err


def test_a_fresh_process_has_its_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARM_TEST_KEPT", "before")
    changes = {"CARM_TEST_KEPT": "inside", "CARM_TEST_NEW": "new"}
    assert command.in_fresh_process(os.getenv, "CARM_TEST_KEPT", environment=changes) == "inside"
    assert os.environ["CARM_TEST_KEPT"] == "before" and "CARM_TEST_NEW" not in os.environ
