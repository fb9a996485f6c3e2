"""The documents say what the committed results say."""

from __future__ import annotations

import json
import shutil
import statistics
from pathlib import Path

import pytest

from carm.lab.paper import shape, speed
from carm.lab.paper.cases import EVERYTHING
from carm.lab.paper.experiments import EXPERIMENTS
from carm.lab.paper.perform import groups_of
from carm.lab.paper.render import records, render

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    shutil.copy(ROOT / "README.md", folder / "README.md")
    render(ROOT / "results", folder / "docs")
    return folder


def test_the_page_is_made_from_the_results(made: Path) -> None:
    assert (made / "docs" / "results.md").read_text() == (ROOT / "docs" / "results.md").read_text()


def test_the_readme_shows_table_1(made: Path) -> None:
    text = (ROOT / "README.md").read_text()
    assert (made / "README.md").read_text() == text
    assert "| CarM-100 |" in text


def test_the_readme_says_how_near_the_ceiling_er_comes() -> None:
    one = json.loads((ROOT / "results" / "ceiling.json").read_text())
    said = []
    for setting, at in (("Original", "EM 500"), ("CarM-100", "EM 500"), ("Original", EVERYTHING)):
        (found,) = (g for g in groups_of(one) if (g.method, g.setting, g.at) == ("er", setting, at))
        said.append(f"{found.mean():.1f} ± {statistics.stdev(found.values()):.1f} %")
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"20 seeds) ER reaches {said[0]} with 500" in text and one["seeds"] == 20
    assert f"{said[1]} with the same 500 and swapping, and {said[2]} with every sample" in text


def test_every_figure_is_there_and_none_is_left_over(made: Path) -> None:
    fresh = {path.name: path.read_text() for path in (made / "docs" / "img").glob("*.svg")}
    kept = {path.name: path.read_text() for path in (ROOT / "docs" / "img").glob("*.svg")}
    assert fresh == kept


def test_every_result_says_how_it_was_made() -> None:
    found = records(ROOT / "results")
    assert found
    for path, one in found:
        assert one["command"].startswith("carm paper "), path
        assert one["machine"]["cpu"] and one["date"] and one["seeds"] >= 1, path
        assert not one.get("failures"), path


def test_the_notes_are_those_of_today() -> None:
    for path, one in records(ROOT / "results"):
        assert one["note"] == EXPERIMENTS[one["name"]].note, path


def test_the_claims_are_judged_as_the_code_judges_today() -> None:
    for path, one in records(ROOT / "results"):
        judged = speed.claims(one["groups"]) if one["name"] == "speed" else shape.claims(one["name"], groups_of(one))
        assert one["shape"] == [vars(claim) for claim in judged], path
