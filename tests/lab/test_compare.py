"""Groups of runs, and `carm compare`."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
import statistics
from pathlib import Path
from typing import Any

import pytest
from made_up import metrics, save, three_settings

from carm import cli
from carm.lab import Config, run
from carm.lab.compare import group, load_runs, measures, repeated
from carm.lab.tables import configurations, results

# -- finding runs ------------------------------------------------------------------------------------------------------


def test_runs_are_found_at_any_depth_and_once(tmp_path: Path) -> None:
    first = save(metrics(seed=0), tmp_path / "er" / "0")
    save(metrics(seed=1), tmp_path / "er" / "deep" / "er" / "1")
    unfinished = save(metrics(seed=2), tmp_path / "er" / "2", finished=False)
    runs, others = load_runs([tmp_path, first, first / "metrics.json", tmp_path / "er"])
    assert sorted(r["config"]["seed"] for r in runs) == [0, 1]
    assert {Path(r["directory"]).name for r in runs} == {"0", "1"}
    assert others == [unfinished]


def test_files_of_other_programs_are_no_runs(tmp_path: Path) -> None:
    for name, text in (("config.json", '{"model": "x"}'), ("metrics.json", "[1, 2]")):
        (tmp_path / name).write_text(text)
    assert load_runs([tmp_path]) == ([], [])
    (tmp_path / "metrics.json").write_text("no JSON")
    assert load_runs([tmp_path]) == ([], [])


def test_what_is_inside_a_run_is_not_searched(tmp_path: Path) -> None:
    directory = save(metrics(), tmp_path / "run")
    save(metrics(seed=1), directory / "memory" / "odd")
    assert len(load_runs([tmp_path])[0]) == 1


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    directory = save(metrics(), tmp_path / "run")
    (directory / "metrics.json").write_text("{")
    with pytest.raises(ValueError, match=r"run/metrics.json cannot be read"):
        load_runs([tmp_path])
    (directory / "metrics.json").write_text('{"config": {}}')
    with pytest.raises(ValueError, match="no entry 'final'"):
        load_runs([tmp_path])


# -- groups ------------------------------------------------------------------------------------------------------------


def test_runs_that_differ_in_the_seed_are_one_group() -> None:
    groups = group(three_settings())
    assert [(g.title, g.setting, g.n, g.seeds) for g in groups] == [
        ("ER", "Original", 3, [0, 1, 2]),
        ("ER", "CarM-50", 3, [0, 1, 2]),
        ("ER", "CarM-100", 3, [0, 1, 2]),
    ]
    assert not any(g.differing or g.apart for g in groups)


def test_mean_and_standard_deviation() -> None:
    runs = [metrics(curve=(100.0, last), seed=seed) for seed, last in enumerate((80.0, 83.0, 89.0))]
    (one,) = group(runs)
    assert one.mean("ci") == pytest.approx(84.0)
    assert one.sd("ci") == pytest.approx((((-4) ** 2 + (-1) ** 2 + 5**2) / 2) ** 0.5)  # n - 1
    assert one.cell("ci") == "84.0 ± 4.6"
    assert one.mean("forgetting") == pytest.approx(16.0)
    assert one.mean("average") == pytest.approx(92.0)
    assert one.cell("seconds") == "2.00 ± 0.00"
    assert one.cell("swaps") == "0"
    assert one.curve() == [(100.0, 0.0), (84.0, pytest.approx(statistics.stdev([80, 83, 89])))]
    assert one.matrix() == [[100.0], [84.0, 84.0]]


def test_a_single_run_has_no_spread() -> None:
    (one,) = group([metrics()])
    assert one.sd("ci") is None
    assert one.cell("ci") == "70.0"


def test_what_could_not_be_measured_is_left_out_of_the_mean() -> None:
    (one,) = group([metrics(curve=(90.0, None), seed=0), metrics(curve=(90.0, 50.0), seed=1)])
    assert (one.mean("ci"), one.sd("ci")) == (50.0, None)
    (none,) = group([metrics(curve=(90.0, None))])
    assert none.cell("ci") == ""
    head, rows = results(group([metrics(curve=(90.0, None)), metrics(em=7)]))
    assert [row[head.index("CI accuracy %")] for row in rows] == ["–", "70.0"]


def test_what_differs_is_named() -> None:
    runs = [metrics(em=em, method=method, lr=lr) for em in (1000, 200) for method, lr in (("er", 0.5), ("bic", 0.1))]
    groups = group(runs)
    assert [(g.method, g.label) for g in groups] == [
        ("er", "Original, em=200"),
        ("er", "Original, em=1000"),
        ("bic", "Original, em=200"),
        ("bic", "Original, em=1000"),
    ]
    assert groups[0].differing == {"em": 200, "lr": 0.5}
    head, rows = results(groups)
    assert head[-1] == "other differences"
    assert rows[0][-1] == "lr=0.5"


def test_of_many_differences_a_label_has_what_it_takes() -> None:
    online = {"batch": 10, "old_batch": 10, "passes": 1, "momentum": 0.0, "order": "natural"}
    offline = {"batch": 32, "old_batch": 0, "passes": 20, "momentum": 0.9, "order": "shuffled"}
    groups = group([metrics(em=em, **how) for how in (online, offline) for em in (100, 200)])
    assert [g.label for g in groups] == [
        f"Original, order={o}, em={n}" for o in ("natural", "shuffled") for n in (100, 200)
    ]
    assert groups[0].differing.keys() == {*online, "em"}  # the rest is told in the tables
    varied = ("gate", "random"), ("storage", 500), ("throttle", "20MB/s,1ms"), ("passes", 2), ("swap", "process")
    groups = group([metrics(swap="async"), *(metrics(**{"swap": "async", name: value}) for name, value in varied)])
    found = {g.label for g in groups}
    assert found == {"CarM-100", *(f"CarM-100, {name}={value}" for name, value in varied)}


def test_what_has_no_effect_makes_no_group() -> None:
    runs = [metrics(seed=0, ratio=0.5), metrics(seed=1, ratio=1.0, gate="random"), metrics(seed=2, root="/elsewhere")]
    assert [g.n for g in group([*runs, metrics(seed=3, threads=2)])] == [4]  # another --jobs when it was gone on with
    assert len(group([metrics(swap="sync"), metrics(swap="sync", gate="random")])) == 2


def test_kinds_of_swapping_are_told_apart() -> None:
    groups = group([metrics(), metrics(swap="sync"), metrics(swap="async")])
    assert [g.label for g in groups] == ["Original", "CarM-100, swap=async", "CarM-100, swap=sync"]


def test_options_of_methods_are_entries() -> None:
    a, b = metrics(swap="sync"), metrics(swap="sync")
    b["config"]["options"] = {"alpha": 0.5}
    assert [g.label for g in group([a, b])] == ["CarM-100", "CarM-100, alpha=0.5"]


def test_records_from_before_an_entry_existed() -> None:
    old = metrics(seed=1)
    del old["config"]["cutmix"]
    assert [g.n for g in group([metrics(seed=0), old])] == [2]


def test_settings_are_in_order() -> None:
    runs = [metrics(swap="sync", ratio=r) for r in ("auto", 1.0, 0.1, 0.5)] + [metrics()]
    assert [g.setting for g in group(runs)] == ["Original", "CarM-10", "CarM-50", "CarM-100", "CarM-auto"]


def test_top5_with_more_than_ten_classes_only() -> None:
    assert "top5" not in [m.name for m in measures(group([metrics(classes=9)]))]
    assert "top5" in [m.name for m in measures(group([metrics(classes=12)]))]


def test_a_seed_that_occurs_twice_is_named() -> None:
    (text,) = repeated(group([metrics(seed=1), metrics(seed=1), metrics(seed=2)]))
    assert "ER, Original" in text and "seed 1" in text


def test_the_whole_configuration_is_shown() -> None:
    differing, same = configurations(group(three_settings()))
    assert differing is not None
    assert differing[0] == ["method", "setting", "swap", "ratio"]
    assert differing[1][0] == ["ER", "Original", "none", "–"]
    assert differing[1][1] == ["ER", "CarM-50", "sync", "0.5"]
    shown = {row[0] for row in same[1]} | set(differing[0])
    assert set(Config().as_dict()) - {"root", "options"} <= shown


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, one in enumerate(three_settings()):
        save(one, tmp_path / "runs" / str(i))
    save(metrics(seed=9), tmp_path / "runs" / "begun", finished=False)
    return tmp_path / "runs"


def compare(*arguments: object) -> int:
    return cli.main(["compare", *map(str, arguments)])


def test_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(folder) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert len(lines) == 4
    assert re.split(r"  +", lines[0].strip())[:4] == ["method", "setting", "CI accuracy %", "forgetting"]
    assert re.split(r"  +", lines[2].strip())[:3] == ["ER", "CarM-50", "72.0 ± 2.0"]
    assert err == f"carm: not finished, and not counted: {folder / 'begun'}\n"


def test_markdown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(folder, "--format", "md") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[4].startswith("| ER | CarM-100 | 82.0 ± 2.0 |")
    assert len({line.count("|") for line in lines}) == 1


def test_csv_and_json_say_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(folder, "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert compare(folder, "--format", "json") == 0
    records: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [(r["method"], r["setting"], r["n"]) for r in rows] == [
        ("er", "Original", "3"),
        ("er", "CarM-50", "3"),
        ("er", "CarM-100", "3"),
    ]
    for row, record in zip(rows, records, strict=True):
        assert float(row["ci"]) == record["ci"]["mean"]
        assert float(row["ci_sd"]) == pytest.approx(record["ci"]["sd"]) == pytest.approx(2.0)
        assert len(record["directories"]) == len(record["ci"]["values"]) == 3


@pytest.mark.parametrize("command", ["compare", "report"])
def test_errors_say_what_to_do(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def error(*arguments: object) -> str:
        assert cli.main([command, *map(str, arguments)]) == 2
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        return text

    assert "nowhere is not there; give the directory of a run" in error(tmp_path / "nowhere")
    assert "there are no runs in" in error(tmp_path)
    begun = save(metrics(), tmp_path / "begun", finished=False)
    assert f"carm run --resume {begun}" in error(tmp_path)


@pytest.mark.parametrize("command", ["compare", "report"])
def test_examples_in_the_help_are_valid(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    lines = re.findall(r"^  carm (.*)$", capsys.readouterr().out.partition("examples:")[2], re.M)
    assert lines
    for line in lines:
        words = shlex.split(re.split(r"  +| >", line)[0])
        assert callable(cli._parser().parse_args(words).run)


def test_real_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    small = Config(em=20, passes=1, batch=32, lr=0.5, tasks=2, per_class=10, threads=1)
    found = [
        run(small.replace(seed=seed, swap=swap), tmp_path / f"{swap}-{seed}", keep_store=False)
        for seed, swap in ((0, "none"), (1, "none"), (0, "sync"))
    ]
    original, carousel = group(load_runs([tmp_path])[0])
    assert (original.setting, carousel.setting) == ("Original", "CarM-100")
    expected = [m["final"]["ci"]["accuracy"] for m in found if m["setting"] == "Original"]
    assert original.mean("ci") == pytest.approx(statistics.mean(expected), abs=1e-5)
    assert original.sd("ci") == pytest.approx(statistics.stdev(expected), abs=1e-5)
    assert compare(tmp_path) == 0
    assert original.cell("ci") in capsys.readouterr().out
