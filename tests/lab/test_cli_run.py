"""`carm run`, from the outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

from carm import cli
from carm.lab.config import Config

TINY = ["--passes", "2", "--per-class", "30", "--em", "20", "--threads", "1"]


def run(*words: object) -> int:
    return cli.main([str(word) for word in words])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_leaves_its_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "icarl", *TINY, "--swap", "sync", "--ratio", "0.5", "--option", "alpha=0.3", "--seed", 4) == 0
    out = tmp_path / "runs" / "icarl-digits-CarM-50-sync-seed4"
    config = Config.load(out / "config.json")
    assert (config.passes, config.em, config.ratio, config.options) == (2, 20, 0.5, {"alpha": 0.3})
    metrics = json.loads((out / "metrics.json").read_text())
    printed = capsys.readouterr()
    assert f"{metrics['final']['ci']['accuracy']:.2f}" in printed.out and str(out.name) in printed.out
    assert "after task 4 of 5" in printed.err
    assert not (out / "checkpoint.pt").exists()


def test_show_prints_a_configuration_that_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "bic", "--data", "cifar-100", "--scale", "full", "--swap", "none", "--show") == 0
    text = capsys.readouterr().out
    (tmp_path / "bic.json").write_text(text)
    assert run("run", "--config", "bic.json", "--show", "--em", 100) == 0
    changed = json.loads(capsys.readouterr().out)
    assert changed == json.loads(text) | {"em": 100}
    assert (changed["net"], changed["passes"], changed["swap"]) == ("resnet32", 250, "none")


def test_a_file_may_have_a_part_of_the_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "part.json").write_text('{"data": "cifar-100", "em": 70, "passes": 3}')
    assert run("run", "bic", "--scale", "full", "--show") == 0
    assert run("run", "bic", "--config", "part.json", "--scale", "full", "--passes", 4, "--show") == 0
    shown = json.loads(capsys.readouterr().out.partition("}\n{")[2].join(["{", ""]))
    assert (shown["method"], shown["em"], shown["passes"]) == ("bic", 70, 4)
    assert (shown["net"], shown["batch"], shown["lr"]) == ("resnet32", 128, 0.1), "the rest is as the scale has it"
    assert run("run", "--config", "part.json") == 2
    assert "part.json names no method" in capsys.readouterr().err


def test_a_package_that_is_missing_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert run("run", "er", *TINY, "--swap", "none") == 2
    error = capsys.readouterr().err
    assert "scikit-learn" in error and "Traceback" not in error


def test_a_mistake_does_not_block_the_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "er", *TINY, "--swap", "none", "--out", "r", "--tasks", 50) == 2
    assert not (tmp_path / "r" / "config.json").exists()
    assert run("run", "er", *TINY, "--swap", "none", "--out", "r") == 0
    assert "50" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "icrl"], "Did you mean 'icarl'?"),
        (["run", "er", "--data", "cifr-100"], "Did you mean 'cifar-100'?"),
        (["run", "er", "--net", "resnet33"], "Did you mean 'resnet32'?"),
        (["run", "er", "--option", "alpha=1"], "--option alpha=1: must be NAME=VALUE, with NAME one of loss, keep"),
        (["run", "er", "--gate", "chance"], "gate='chance'"),
        (["run", "er", "--em", "0"], "em=0: must be at least 1"),
        (["run", "er", "--storage", "3"], "storage=3 is less than em="),
        (["run", "--resume", "nowhere"], "nowhere is no directory of a run"),
        (["run", "nowhere.py:Mine"], "there is no file nowhere.py"),
        (["run", "er", "--size", "10"], "size=10: digits has arrays of one size"),
        (["run", "er", "--path", "here"], "path='here': digits has a folder of its own; path is for folder and npz"),
        (["run", "er", "--every", "-1"], "--every -1.0: must be a number of seconds"),
        (["run", "er", "--device", "abacus"], "device='abacus' cannot be used"),
        (["run", "er", "--device", "cuda:99"], "device='cuda:99' cannot be used"),
    ],
)
def test_mistakes_get_a_sentence(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*words) == 2
    assert message in capsys.readouterr().err
    assert not list(Path().glob("runs/*/config.json")), "nothing was begun"


@pytest.mark.parametrize(("every", "checkpoints"), [("0", 7), ("1000", 1)])
def test_checkpoints_as_often_as_asked(every: str, checkpoints: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    saved: list[int] = []
    save = torch.save

    def counted(state: object, file: object) -> None:
        saved.append(1)
        save(state, file)  # type: ignore[arg-type]

    monkeypatch.setattr(torch, "save", counted)
    assert run("run", "er", *TINY, "--swap", "none", "--tasks", "3", "--every", every) == 0
    assert len(saved) == checkpoints


def test_resume_takes_no_other_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "er", *TINY, "--swap", "none", "--out", "r") == 0
    assert run("run", "--resume", "r", "--em", 30) == 2
    assert "--resume goes on with the settings of the run" in capsys.readouterr().err
    assert run("run", "--resume", "r") == 0  # finished: shows the result again


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_and_resumed(number: signal.Signals, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "er", "--swap", "sync", "--passes", "30", "--em", "20", "--threads", "1", "--out", "r"]
    process = subprocess.Popen([sys.executable, "-m", "carm.cli", *words], stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not (tmp_path / "r" / "checkpoint.pt").exists():
        time.sleep(0.02)
    os.kill(process.pid, number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert "carm run --resume r" in error
    assert run("run", "--resume", "r") == 0
    capsys.readouterr()
    assert run(*words[:-1], "whole") == 0
    stopped, whole = (json.loads((tmp_path / d / "metrics.json").read_text()) for d in ("r", "whole"))
    assert stopped["matrix"] == whole["matrix"] and stopped["memory"]["swapped"] == whole["memory"]["swapped"] > 0
