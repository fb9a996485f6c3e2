"""`carm report`: one file that needs nothing else, with all there is and the right numbers."""

from __future__ import annotations

import builtins
import csv
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_up import metrics, save, three_settings

from carm import cli
from carm.lab import Config, run
from carm.lab.picture import write_png
from carm.lab.report import html, markdown, write_html

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Complains about what is not well-formed; keeps headings, tables and what charts are called."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.headings: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.charts: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "h2":
            self.headings.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, (self.getpos(), tag, self.open)
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if "h2" in self.open:
            self.headings[-1] += data
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data
        if self.open[-2:] == ["svg", "title"]:
            self.charts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


ALL = [
    "Results",
    "Accuracy after each task",
    "Accuracy on each task over time",
    "Swaps",
    "What the memory holds",
    "Configuration",
]


def page(runs: list[dict[str, Any]], **options: Any) -> Page:
    return Page(html(runs, title="T", **options))


def test_every_section_and_the_right_numbers() -> None:
    found = page(three_settings())
    assert found.headings == ALL
    table = found.tables[0]
    assert table[0][:3] == ["method", "setting", "CI accuracy %"]
    assert [row[:3] for row in table[1:]] == [
        ["ER", "Original", "62.0 ± 2.0"],
        ["ER", "CarM-50", "72.0 ± 2.0"],
        ["ER", "CarM-100", "82.0 ± 2.0"],
    ]
    assert "9 finished runs" in found.text
    steps = next(t for t in found.tables if t[0][-1] == "3")
    assert steps[3] == ["ER", "CarM-100", "99.0 ± 0.0", "90.0 ± 0.0", "82.0 ± 2.0"]
    assert found.charts.count("ER, CarM-50") == 3  # two matrices, and what the memory holds


def test_it_needs_nothing_else() -> None:
    text = html(three_settings(), title="T")
    assert set(re.findall(r"https?://[^\"' <]*", text)) == {"http://www.w3.org/2000/svg"}
    found = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    assert not [a for a in found.attributes if a[1] in ("src", "href") or a[1].startswith("on")]
    assert "@import" not in text and "url(" not in text


def test_light_and_dark_wide_and_narrow() -> None:
    text = html(three_settings(), title="T")
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "prefers-color-scheme:dark" in style
    assert style.count("--c0:") == style.count("--ink:") == style.count("--ground:") == 2
    used = set(re.findall(r"var\((--\w+)\)", text))
    assert used <= set(re.findall(r"(--\w+):", style))
    assert re.search(r"\.box\{[^}]*overflow-x:auto", style)  # wide tables scroll in their box, not the page
    assert re.search(r"minmax\(min\(100%,340px\),1fr\)", style)  # pictures side by side, or one below the other
    assert re.search(r"svg\{[^}]*width:100%;height:auto", style)
    assert len(re.findall("<table>", text)) == len(re.findall(r'<div class="box"[^>]*><table>', text))
    widths = {float(w) for w in re.findall(r'viewBox="0 0 ([\d.]+)', text)}
    assert max(widths) <= 362  # a phone's: there they are not made smaller


def test_accessible() -> None:
    text = html(three_settings(), title="T")
    assert '<html lang="en">' in text
    pictures = re.findall(r"<svg .*?</svg>", text, re.S)
    assert pictures
    for picture in pictures:
        assert re.match(r'<svg [^>]*role="img" aria-label="[^"]+"[^>]*><title>[^<]+</title><desc>[^<]+</desc>', picture)
    assert 'scope="col"' in text and 'scope="row"' in text
    assert text.count('role="region"') == text.count('tabindex="0"') == text.count("<table>")


def test_sections_without_data_are_left_out() -> None:
    bare = metrics(curve=(90.0,), classes=2)
    for name in ("series", "composition", "skipped", "bundles", "memory"):
        del bare[name]
    assert page([bare]).headings == ["Results", "Configuration"]
    original = metrics()
    assert "Swaps" not in page([original]).headings
    quiet = metrics(swap="sync", swapped=10)
    quiet["series"]["queue"] = [0] * len(quiet["series"]["queue"])
    text = html([quiet], title="T")
    assert "swaps per step" in text and "In the queue" not in text


def test_extra_sections_come_first(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    write_html([metrics()], path, title="A & B", extra_sections=[("Before <", "<p>as it <em>is</em></p>")])
    text = path.read_text()
    assert "<title>A &amp; B</title>" in text
    found = Page(text)
    assert found.headings[:2] == ["Before <", "Results"]
    assert "<p>as it <em>is</em></p>" in text


def test_what_comes_from_files_is_escaped() -> None:
    evil = metrics(skipped={"<script>x</script>.jpg": "<b>"}, throttle="", path="<i>&")
    evil["config"]["method"] = "my.py:<Mine>"
    evil["classes"] = ["<script>"] * 6
    text = html([evil], title="</title><script>", unfinished=[Path("<script>")])
    assert "script" not in Page(text).tags and "i" not in Page(text).tags


def test_notes() -> None:
    runs = [metrics(seed=1, skipped={"a/1.jpg": "truncated"}), metrics(seed=1)]
    found = page(runs, unfinished=[Path("runs/x")])
    assert found.headings[-1] == "Notes"
    assert "1 run not finished, and not counted: runs/x." in found.text
    assert "1 image could not be decoded and had to be left out: a/1.jpg (truncated)." in found.text
    assert "more than one run of seed 1" in found.text


def test_methods_data_sets_and_sizes() -> None:
    runs = three_settings() + three_settings(method="bic") + three_settings(data="mnist", em=500)
    found = page(runs)
    assert found.tables[0][0][:3] == ["method", "data", "setting"]
    assert {"ER on digits", "ER on mnist", "BiC on digits"} <= set(found.charts)


def test_the_methods_own_settings_do_not_hide_the_numbers() -> None:
    runs = three_settings(lr=0.5) + three_settings(method="bic", lr=0.1)
    found = page(runs)
    assert found.tables[0][0][-1] == "n"
    assert "settings that are not named here; they are under Configuration" in found.text
    assert any("lr" in table[0] for table in found.tables)
    assert "other differences" not in markdown(runs, title="T")


def test_many_tasks_and_classes() -> None:
    runs = [
        metrics(curve=tuple(90.0 - t for t in range(50)), classes=100, seed=s, swap="sync", swapped=10**6)
        for s in range(2)
    ]
    text = html(runs, title="T")
    found = Page(text)
    assert found.headings == ALL
    assert "top-5 %" in found.tables[0][0]
    assert len(text) < 400_000
    assert "classes of task" not in text  # names of parts are for pointing at, where they are wide enough


def test_compositions_are_folded_when_there_are_many() -> None:
    few, many = (
        html(three_settings(), title="T"),
        html([r for em in (100, 200, 300, 400) for r in three_settings(em=em)], title="T"),
    )
    assert many.count("<details>") > few.count("<details>")
    assert "<summary>ER: Original, em=100" in many


def test_markdown_has_the_tables() -> None:
    text = markdown(three_settings(), title="T", unfinished=[Path("x")])
    assert text.startswith("# T\n")
    for heading in ("## Results", "## Accuracy after each task", "## Configuration", "## Notes"):
        assert f"\n{heading}\n" in text
    assert "| ER | CarM-50 | 72.0 ± 2.0 |" in text
    assert "| ER | CarM-50 | 99.0 ± 0.0 | 85.0 ± 0.0 | 72.0 ± 2.0 |" in text


def test_without_runs() -> None:
    with pytest.raises(ValueError, match="none to report on"):
        html([], title="T")


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, one in enumerate(three_settings()):
        save(one, tmp_path / "runs" / str(i))
    return tmp_path / "runs"


def report(*arguments: object) -> int:
    return cli.main(["report", *map(str, arguments)])


def test_html_by_default(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder.parent)
    assert report("runs") == 0
    assert capsys.readouterr().out == "report.html: 9 runs\n"
    assert Page((folder.parent / "report.html").read_text()).headings == ALL
    assert [p.name for p in folder.parent.iterdir() if p.name.endswith(".new")] == []


def test_the_name_tells_the_format(folder: Path, tmp_path: Path) -> None:
    assert report(folder, "--out", tmp_path / "x.md", "--title", "Name") == 0
    assert (tmp_path / "x.md").read_text().startswith("# Name\n")
    assert report(folder, "--out", tmp_path / "x.txt", "--format", "md") == 0
    assert report(folder, "--out", tmp_path / "x.txt") == 2
    assert report(folder, "--out", tmp_path, "--format", "html") == 2


def test_csv_has_a_row_for_each_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(folder, "--format", "csv", "--out", "-") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(rows) == 9
    first = rows[0]
    assert (first["method"], first["setting"], first["seed"], first["ci"]) == ("er", "Original", "0", "60.0")
    assert set(Config().as_dict()) <= set(first)
    assert Path(first["directory"]).parent == folder


def test_png(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert report(folder, "--out", tmp_path / "x.png") == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("more", [{}, {"em": 300}, {"em": 300, "lr": 0.5, "passes": 9, "gate": "random"}])
def test_the_legends_of_a_png_cover_nothing(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    drawn = []
    save = figure.Figure.savefig
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *a, **k: (drawn.append(self), save(self, *a, **k)))
    both = [run for method in ("er", "bic") for run in three_settings(method=method)]
    write_png([*both, *three_settings(**more)] if more else both, tmp_path / "x.png", title="T")
    (one,) = drawn
    one.canvas.draw()
    boxes = [box for axis in one.axes for box in (axis.bbox, axis.get_legend().get_window_extent())]
    assert len(boxes) == 4
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]
    assert all(box.x0 >= 0 and box.y0 >= 0 and box.x1 <= one.bbox.x1 and box.y1 <= one.bbox.y1 for box in boxes)


def test_png_without_matplotlib(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert report(folder, "--out", tmp_path / "x.png") == 2
    assert "carousel-memory[report]" in capsys.readouterr().err


def test_a_real_run(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    small = Config(em=20, passes=2, batch=32, lr=0.5, tasks=3, per_class=20, swap="sync", threads=1)
    found = run(small, tmp_path / "run", keep_store=False)
    assert report(tmp_path / "run", "--out", tmp_path / "x.html") == 0
    shown = Page((tmp_path / "x.html").read_text())
    assert shown.headings == ALL
    assert f"{found['final']['ci']['accuracy']:.1f}" in shown.tables[0][1]
