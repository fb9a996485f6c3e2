"""What the documentation says was measured is what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from carm.bench import document
from carm.bench.markdown import markdown

ROOT = Path(__file__).resolve().parents[2]
MACHINE = dict.fromkeys(["cpu", "cores", "kernel", "file_system", "torch", "numpy", "python", "date", "command"], "m")


def row(**changes: Any) -> dict[str, Any]:
    spread = {"quartile1": 0.4, "quartile3": 0.6}
    one = {"name": "a", "variant": "b", "unit": "us", "ours": 2.0, "baseline": 1.0, "against": "c", "ratio": 0.5}
    return one | {"spread": spread, "repetitions": 9, "target": ">= 0.75", "reached": False, "note": ""} | changes


def test_the_page_shows_the_committed_results() -> None:
    for name in ("results/memory.json", "results/nets.json", "docs/performance.md"):
        if not (ROOT / name).exists():
            pytest.skip(f"{name} has not been made")
    made = document.from_results(ROOT / "results")
    assert (ROOT / "docs" / "performance.md").read_text() == made, "run `python -m carm.bench.document`"


def test_a_missed_target_is_shown_as_missed() -> None:
    text = markdown({"machine": MACHINE, "rows": [row(), row(target=None, reached=None, variant="not judged")]})
    assert "| a | b | 2 us | c: 1 us | 0.5 (0.4 to 0.6) | >= 0.75 | **no** |" in text
    assert "not judged" not in text


def test_reasons_are_given_for_what_is_missed_and_for_nothing_else() -> None:
    rows = [row(name="draw-256"), row(name="swap-warm", reached=True), row(name="new")]
    text = document.page(None, {"machine": MACHINE, "rows": rows})
    assert "- **draw-256**. A draw also chooses" in text
    assert "- **new**. The reason is not known yet." in text
    assert "**swap-warm**" not in text
    reached = document.page({"machine": MACHINE, "rows": [row(reached=True)]}, None)
    assert "Not reached" not in reached and "## Training" not in reached


def test_what_is_not_judged_is_folded_away_in_the_part_with_many_targets() -> None:
    rows = [row(), row(variant="only told", target=None, reached=None, note="measured with care")]
    measured = {"machine": MACHINE, "rows": rows}
    memory, nets = document.page(measured, None), document.page(None, measured)
    assert memory.index("<details>") < memory.index("only told") and "<details>" not in nets
    assert "only told" in nets and "- a: measured with care." in nets


def test_the_page_is_written(tmp_path: Path) -> None:
    (tmp_path / "memory.json").write_text(json.dumps({"machine": MACHINE, "rows": [row()]}))
    document.main([str(tmp_path), str(tmp_path / "docs" / "page.md")])
    assert "| a | b |" in (tmp_path / "docs" / "page.md").read_text()
