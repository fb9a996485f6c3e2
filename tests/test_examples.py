"""What the README and the documents show is what runs."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from carm import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.fixture(autouse=True)
def one_thread() -> object:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "path", [p for p in EXAMPLES if p.stem not in ("plain_loop", "sensor_stream")], ids=lambda p: p.stem
)
def test_example_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


def test_the_plain_loop_learns(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "examples" / "plain_loop.py"
    assert len(path.read_text().splitlines()) <= 40
    runpy.run_path(str(path), run_name="__main__")
    found = re.search(r"accuracy on all ten classes: ([\d.]+)", capsys.readouterr().out)
    assert found is not None and float(found[1]) > 0.8


def test_the_sensor_stream_is_learned_and_not_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "sensor_stream.py"), run_name="__main__")
    found = re.search(r"accuracy on each mode: (.*)", capsys.readouterr().out)
    assert found is not None and all(float(one) > 0.8 for one in found[1].split())


def test_the_readme_shows_the_examples() -> None:
    shown = blocks(ROOT / "README.md", "python")
    assert (ROOT / "examples" / "plain_loop.py").read_text() in shown
    for name in ("custom_gate", "custom_selection"):
        classes = re.search(r"^class .*?(?=\n\n\n)", (ROOT / "examples" / f"{name}.py").read_text(), re.M | re.S)
        assert classes is not None
        assert classes[0] + "\n" in shown, f"README.md does not show the class in examples/{name}.py as it is"


def test_the_readme_shows_what_the_demo_prints() -> None:
    from carm import demo
    from carm.methods import TITLES

    text = (ROOT / "README.md").read_text()
    for method in demo.METHODS:
        for setting in demo.SETTINGS:
            assert re.search(rf"^{re.escape(TITLES[method])} +{setting} +\d+\.\d ± \d", text, re.M)


def test_the_blocks_in_extending_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "extending"}
    for block in blocks(ROOT / "docs" / "extending.md", "python"):
        exec(compile(block, "extending.md", "exec"), space)


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", page.read_text()):
            assert not target or "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_commands_in_the_documents_are_valid() -> None:
    lines = [line for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    commands = [re.split(r"  +#| [>|]", line)[0].split()[1:] for line in lines if line.startswith("carm ")]
    assert commands
    for words in commands:
        assert callable(cli._parser().parse_args(words).run)


def test_the_documents_name_every_counter(tmp_path: Path) -> None:
    import carm
    from carm.memory.stats import REASONS

    text = (ROOT / "docs" / "architecture.md").read_text()
    with carm.Memory(slots=4, storage=tmp_path / "s") as memory:
        memory.add(torch.zeros(40, 2), torch.zeros(40, dtype=torch.int64))
        for _ in range(20):
            memory.feedback(memory.draw(3), torch.zeros(3, 1))
        counters = memory.stats()
    for name in (*counters, *REASONS):
        assert f"| `{name}` |" in text, f"docs/architecture.md does not explain {name!r}"
    lost = [counters["dropped"][reason] for reason in REASONS]
    order = re.findall(r"^\| `([a-z ]+|too large for RAM)` \|", text.partition("reason in `dropped`")[2], re.M)
    assert order == list(REASONS)
    assert counters["picked"] == counters["ordered"] + sum(lost[1:6])
    assert counters["ordered"] == counters["swapped"] + counters["queue_depth"] + sum(lost[6:9])
