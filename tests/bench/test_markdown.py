"""What README says was measured is what was measured."""

import json
from pathlib import Path

from carm.bench.markdown import markdown

ROOT = Path(__file__).resolve().parents[2]


def test_readme_shows_the_committed_results() -> None:
    table = markdown(json.loads((ROOT / "results" / "memory.json").read_text()))
    assert table in (ROOT / "README.md").read_text()


def test_a_missed_target_is_shown_as_missed() -> None:
    spread = {"quartile1": 0.4, "quartile3": 0.6}
    row = {"name": "a", "variant": "b", "unit": "us", "ours": 2.0, "baseline": 1.0, "against": "c", "ratio": 0.5}
    row |= {"spread": spread, "repetitions": 9, "target": ">= 0.75", "reached": False}
    machine = dict.fromkeys(
        ["cpu", "cores", "kernel", "file_system", "torch", "numpy", "python", "date", "command"], "m"
    )
    text = markdown({"machine": machine, "rows": [row, row | {"target": None, "variant": "not judged"}]})
    assert "| a | b | 2 us | c: 1 us | 0.5 (0.4 to 0.6) | >= 0.75 | **no** |" in text
    assert "not judged" not in text
