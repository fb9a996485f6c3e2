"""Config: one object that is the file, the command line and the record of a run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from carm import methods
from carm.lab import Config

OWN = """
from carm.methods import ER

class Mine(ER):
    name = "mine"

    def __init__(self, *, weight: float = 1.0, kind: str = "a") -> None:
        super().__init__()
        self.weight = weight

class NotOne:
    pass
"""


def test_a_file_and_the_object_are_the_same(tmp_path: Path) -> None:
    config = Config(
        method="iCaRL",
        options={"herding": False, "alpha": 0.5},
        data="cifar-100",
        em=300,
        ratio=0.2,
        milestones=(0.5, 0.7),
        schedule="step",
        lr=2,
        seed=4,
    )
    assert config.method == "icarl"
    config.save(tmp_path / "config.json")
    again = Config.load(tmp_path / "config.json")
    assert again == config and again.key == config.key
    assert again.milestones == (0.5, 0.7)
    assert again.options == {"alpha": 0.5, "herding": False}
    assert json.loads((tmp_path / "config.json").read_text()) == config.as_dict()
    assert Config.from_dict(Config().as_dict()) == Config()


def test_every_field_has_a_help_text() -> None:
    import dataclasses

    assert all(f.metadata.get("help") for f in dataclasses.fields(Config))


@pytest.mark.parametrize(
    ("entry", "nearest"), [("epochs", None), ("batchsize", "batch"), ("learning_rate", None), ("gates", "gate")]
)
def test_unknown_entries_are_named(entry: str, nearest: str | None) -> None:
    with pytest.raises(ValueError, match=f"no entry '{entry}'") as caught:
        Config.from_dict({entry: 1})
    assert "The entries are: method, options, data" in str(caught.value)
    if nearest:
        assert f"did you mean '{nearest}'?" in str(caught.value)


@pytest.mark.parametrize("text", ["{", "[1, 2]", '"er"', ""])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"config\.json is no configuration"):
        Config.load(file)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("em", 0),
        ("em", "200"),
        ("em", 1.5),
        ("em", True),
        ("tasks", 0),
        ("passes", -1),
        ("passes", None),
        ("batch", 0),
        ("old_batch", -1),
        ("lr", -0.1),
        ("lr", float("nan")),
        ("lr", "fast"),
        ("momentum", -1.0),
        ("weight_decay", -1e-5),
        ("cutmix", 1.5),
        ("clip", -1.0),
        ("warmup", -1),
        ("warmup", 0.5),
        ("gamma", -0.1),
        ("schedule", "linear"),
        ("milestones", (0.5, 1.5)),
        ("milestones", ("half",)),
        ("ratio", 1.5),
        ("ratio", -0.1),
        ("ratio", "most"),
        ("gate", "entropie"),
        ("swap", "background"),
        ("storage", 100),
        ("storage", -1),
        ("seed", -1),
        ("size", -1),
        ("width", -1),
        ("threads", -1),
        ("per_class", -1),
        ("test_per_class", -1),
        ("level", "sample"),
        ("head", "two"),
        ("augment", "much"),
        ("data", 7),
    ],
)
def test_a_bad_value_names_its_argument(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"\b{name}="):
        Config(**{name: value})


def test_what_needs_swapping() -> None:
    assert Config(swap="none").setting == "Original"
    for more in ({"storage": 1000}, {"throttle": "1MB/s"}):
        with pytest.raises(ValueError, match="swap"):
            Config(swap="none", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ratio", "setting"), [(1.0, "CarM-100"), (0.5, "CarM-50"), (0.2, "CarM-20"), ("auto", "CarM-auto")]
)
def test_settings_have_the_papers_names(ratio: Any, setting: str) -> None:
    assert Config(ratio=ratio).setting == setting


def test_the_key_is_of_what_decides_the_results() -> None:
    plain = Config()
    assert plain.replace(root="/elsewhere", device="cuda", threads=3).key == plain.key
    assert plain.replace(method="ER").key == plain.key
    changed: dict[str, Any] = {
        "seed": 1,
        "em": 201,
        "lr": 0.2,
        "swap": "none",
        "ratio": 0.5,
        "gate": "random",
        "options": {"loss": "ce"},
        "milestones": (0.5,),
        "data": "mnist",
        "path": "x",
    }
    keys = {plain.key, *(plain.replace(**{name: value}).key for name, value in changed.items())}
    assert len(keys) == len(changed) + 1
    one, other = ({"distill": False, "alpha": 0.5}, {"alpha": 0.5, "distill": False})
    assert Config(method="icarl", options=one).key == Config(method="icarl", options=other).key


def test_differences_are_told_by_name() -> None:
    told = Config(em=100, root="/a").differences(Config(em=200, seed=3, root="/b"))
    assert told == ["em: 100 here, 200 there", "seed: 0 here, 3 there"]
    assert Config().differences(Config(device="cuda", threads=2)) == []


# -- methods and their options -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name"), [("DER++", "der++"), ("derpp", "der++"), ("Tiny ER", "tiny-er"), ("RM", "rm")]
)
def test_methods_are_found_however_they_are_spelled(given: str, name: str) -> None:
    assert Config(method=given).method == name
    assert methods.find(given).name == name


def test_data_sets_are_one_however_they_are_spelled() -> None:
    """Or runs of one data set would be compared as if they were of two."""
    assert Config(data="CIFAR100") == Config(data="cifar_100") == Config(data="cifar-100")
    assert Config(data="CIFAR100").key == Config(data="cifar-100").key
    assert Config(data="My Sensors").data == "My Sensors"  # a stream of your own


def test_an_unknown_method_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no method 'icarll'\. Did you mean 'icarl'"):
        Config(method="icarll")


@pytest.mark.parametrize(
    ("method", "options", "complaint"),
    [
        ("er", {"los": "ce"}, "er has no option 'los'; its options are: loss, keep"),
        ("gdumb", {"alpha": 1}, "gdumb has no option 'alpha'; its options are: none"),
        ("er", {"loss": "mse"}, "loss='mse': er takes 'bce' or 'ce'"),
        ("icarl", {"distill": "no"}, "distill='no': icarl takes true or false"),
        ("icarl", {"alpha": "most"}, "alpha='most': icarl takes a number or 'auto'"),
        ("icarl", {"alpha": 2.0}, "alpha=2.0: must be a number from 0 to 1"),
        ("bic", {"validation": 1}, "validation=1: must be a share"),
        ("der++", {"beta": -1}, "beta=-1: must be 0 or more"),
        ("rm", {"copies": 2.5}, "copies=2.5: rm takes a whole number"),
        ("rm", {"copies": 1}, "copies=1: one vote"),
        ("tiny-er", {"masked": 1}, "masked=1: tiny-er takes true or false"),
    ],
)
def test_options_are_checked(method: str, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as caught:
        Config(method=method, options=options)
    assert complaint in str(caught.value)


def test_defaults_pass_their_own_check() -> None:
    for name in methods.names():
        defaults = {option: p.default for option, p in methods.find(name).options().items()}
        Config(method=name, options=defaults)


@pytest.mark.parametrize("method", ["icarl", "bic", "gdumb", "rm"])
def test_methods_that_need_a_whole_task_say_so(method: str) -> None:
    with pytest.raises(ValueError, match=f"level='batch': {method} works at the level task only"):
        Config(method=method, level="batch")


def test_levels_and_heads_that_fit() -> None:
    for method in ("er", "tiny-er", "der++"):
        Config(method=method, level="batch")
        Config(method=method, level="task")
    with pytest.raises(ValueError, match=r"head='growing': der\+\+ needs a fixed head"):
        Config(method="der++", head="growing")


@pytest.mark.parametrize("method", methods.names())
def test_settings_that_would_be_ignored_are_refused(method: str) -> None:
    for name in ("cutmix", "old_batch"):
        if name in methods.find(method).ignores:
            with pytest.raises(ValueError, match=f"{name}=1: {re.escape(method)} has no use for it"):
                Config(method=method, **{name: 1})  # type: ignore[arg-type]
        else:
            Config(method=method, **{name: 1})  # type: ignore[arg-type]
    assert ("cutmix" in methods.find(method).ignores) == (method not in ("gdumb", "rm"))


def test_a_loss_within_tasks_needs_tasks_of_their_own_classes() -> None:
    with pytest.raises(ValueError, match=r"blurry=0\.1: the loss of tiny-er is over .* masked=no, or blurry=0"):
        Config(method="tiny-er", blurry=0.1)
    Config(method="tiny-er", blurry=0.1, options={"masked": False})
    Config(method="tiny-er", blurry=0.0)
    Config(method="er", blurry=0.1)


def test_a_file_is_an_ordinary_module_and_is_read_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\nprint('read')\n"
    file.write_text(f"{head}{OWN}\n@dataclass\nclass Settings:\n    weight: float = 1.0\n")
    config = Config(method=f"{file}:Mine").replace(lr=0.3)
    assert methods.find(config.method) is methods.find(config.method)
    assert capsys.readouterr().out == "read\n"
    file.write_text(file.read_text().replace('"mine"', '"changed"'))
    os.utime(file, ns=(1, 1))
    assert methods.find(config.method).name == "changed"
    (tmp_path / "mine.txt").write_text(OWN)
    with pytest.raises(ValueError, match="no Python file"):
        Config(method=f"{tmp_path}/mine.txt:Mine")


def test_a_method_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    config = Config(method=f"{file}:Mine", options={"weight": 2})
    assert methods.make(config.method, **config.options).weight == 2  # type: ignore[attr-defined]
    for method, complaint in (
        (f"{file}:Other", "has no class Other"),
        (f"{file}:NotOne", "derives from"),
        (f"{tmp_path}/no.py:Mine", "there is no file"),
    ):
        with pytest.raises(ValueError, match=complaint):
            Config(method=method)
    with pytest.raises(ValueError, match="weight='much'"):
        Config(method=f"{file}:Mine", options={"weight": "much"})
