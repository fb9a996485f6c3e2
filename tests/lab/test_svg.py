"""Charts: well-formed, readable anywhere, and with the values where they belong."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest

from carm.lab import svg, tiles
from carm.lab.canvas import OKABE_ITO, ramp, text_width, tick_labels, ticks, whole_ticks, wrapped

NS = "{http://www.w3.org/2000/svg}"


def parse(picture: str) -> ElementTree.Element:
    root = ElementTree.fromstring(picture)
    assert root.tag == f"{NS}svg"
    return root


def texts(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{NS}text")]


def line(name: str = "CarM-50", n: int = 5, **options: object) -> svg.Line:
    return svg.Line(name=name, x=list(range(1, n + 1)), y=[90.0 - i for i in range(n)], **options)  # type: ignore[arg-type]


def chart(*series: svg.Line, **options: object) -> str:
    return svg.lines(series, title="A title", x_label="task", y_label="accuracy %", **options)  # type: ignore[arg-type]


PICTURES = {
    "lines": chart(line("a < b"), line("CarM-100", spread=[1.0] * 5)),
    "many lines": chart(*(line(f"line number {i}") for i in range(20))),
    "long names": chart(*(line(f"CarM-{i}, " + "em=40, gate=entropy, " * (i % 3)) for i in range(9)), width=360),
    "one point": chart(line(n=1)),
    "long": chart(line(n=100)),
    "bars": svg.bars(
        ["ER", "iCaRL & more"],
        [
            svg.Bars(name="Original", values=[50.0, None], spread=[2.0, None]),
            svg.Bars(name="CarM", values=[60.0, 70.0]),
        ],
        title="Bars",
        y_label="accuracy %",
        show_values=True,
    ),
    "turned bars": svg.bars(
        [f"a-long-name-without-spaces-{i}" for i in range(9)],
        [svg.Bars(name="x", values=list(range(9)))],
        title="Bars",
        y_label="s",
    ),
    "heat": tiles.heat([[99.0], [80.0, None]], title="Heat", x_label="task", y_label="after task"),
    "large heat": tiles.heat([[50.0] * (t + 1) for t in range(50)], title="Heat", x_label="task", y_label="after"),
    "stacks": tiles.stacks(
        [tiles.Stack(title="RAM", columns=[[10, 0], [5, 5]], names=["c0", "c1"])], title="Stacks", x_label="after task"
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_of_its_own(name: str) -> None:
    picture = PICTURES[name]
    root = parse(picture)
    first, ground = root[0], next(e for e in root if e.tag == f"{NS}rect")
    assert first.tag == f"{NS}title" and first.text
    assert ground.attrib["fill"] == "#ffffff" and ground.attrib["width"] == "100%"
    assert "sans-serif" in root.attrib["font-family"]
    assert root.attrib["width"] and root.attrib["role"] == "img"
    assert "var(" not in picture and "class=" not in picture and "<style" not in picture
    assert re.findall(r"https?://[^\"]*", picture) == ["http://www.w3.org/2000/svg"]
    assert "nan" not in picture.lower().replace("nance", "")


@pytest.mark.parametrize("name", PICTURES)
def test_texts_neither_overlap_nor_leave_the_picture(name: str) -> None:
    root = parse(PICTURES[name])
    width, height = (float(n) for n in root.attrib["viewBox"].split()[2:])
    boxes = []
    for element in root.iter(f"{NS}text"):
        if "transform" in element.attrib:
            continue
        x, y, size = (float(element.attrib[k]) for k in ("x", "y", "font-size"))
        wide = text_width(element.text or "", size) * 0.9  # the estimate is on the safe side
        left = x - {"start": 0.0, "middle": wide / 2, "end": wide}[element.attrib["text-anchor"]]
        boxes.append((left, y - size * 0.75, left + wide, y, element.text))
        assert left >= -1 and left + wide <= width + 1, element.text
        assert 0 < y <= height, element.text
    for a, b in combinations(boxes, 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (a[4], b[4])


def test_in_a_page_the_colours_are_those_of_the_page() -> None:
    root = parse(chart(line(style=0), palette=svg.PAGE))
    assert "width" not in root.attrib
    assert not [e for e in root.iter(f"{NS}rect") if e.attrib.get("width") == "100%"]
    assert "#" not in ElementTree.tostring(root, encoding="unicode")


def test_values_are_where_they_belong() -> None:
    root = parse(chart(svg.Line(name="x", x=[1, 2, 3], y=[0.0, 50.0, 100.0], style=0), y_range=(0, 100)))
    marks = [e for e in root.iter(f"{NS}circle") if e.find(f"{NS}title") is not None]
    heights = [float(m.attrib["cy"]) for m in marks]
    assert heights[0] > heights[1] > heights[2]
    assert heights[1] == pytest.approx((heights[0] + heights[2]) / 2, abs=0.1)
    assert [m.findtext(f"{NS}title") for m in marks] == ["x, task 1: 0", "x, task 2: 50", "x, task 3: 100"]
    assert {"0", "20", "100"} <= set(texts(root))


def test_the_band_is_one_spread_to_either_side() -> None:
    root = parse(chart(svg.Line(name="x", x=[1, 2], y=[50.0, 50.0], spread=[10.0, 20.0]), y_range=(0, 100)))
    (band,) = root.iter(f"{NS}polygon")
    points = [tuple(map(float, p.split(","))) for p in band.attrib["points"].split()]
    assert points[0][0] == points[3][0] and points[1][0] == points[2][0]
    assert points[2][1] - points[1][1] == pytest.approx(2 * (points[3][1] - points[0][1]), abs=0.2)


def test_points_that_stand_alone_and_names_when_pointed_at() -> None:
    one = svg.Line(name="x", x=[0, 1, 2], y=[1.0, 2.0, 9.0], spread=[0.5] * 3, style=0, alone=[2])
    root = parse(chart(one, x_names=["0", "0.5", "auto"]))
    path = next(e.attrib["d"] for e in root.iter(f"{NS}path") if e.attrib.get("stroke-width") == "1.8")
    assert path.count("L") == 1  # no line to what is no number
    (band,) = root.iter(f"{NS}polygon")
    assert len(band.attrib["points"].split()) == 4
    tips = [t.text or "" for e in root.iter(f"{NS}circle") for t in e.iter(f"{NS}title")]
    assert [tip.partition(":")[0] for tip in tips] == ["x, task 0", "x, task 0.5", "x, task auto"]


def test_points_that_are_missing_are_left_out() -> None:
    root = parse(chart(svg.Line(name="x", x=[1, 2, 3], y=[1.0, None, 3.0], spread=[None, None, 1.0], style=0)))
    assert len([e for e in root.iter(f"{NS}circle") if e.find(f"{NS}title") is not None]) == 2
    assert not list(root.iter(f"{NS}polygon"))


def test_bars_stand_on_zero_and_are_as_high_as_their_values() -> None:
    picture = svg.bars(
        ["a", "b"],
        [svg.Bars(name="x", values=[10.0, 20.0], spread=[1.0, 2.0])],
        title="t",
        y_label="s",
        y_range=(0, 25),
    )
    bars = [e for e in parse(picture).iter(f"{NS}rect") if e.find(f"{NS}title") is not None]
    low, high = (float(b.attrib["height"]) for b in bars)
    assert high == pytest.approx(2 * low, abs=0.2)
    assert len({round(float(b.attrib["y"]) + float(b.attrib["height"])) for b in bars}) == 1
    assert bars[1].findtext(f"{NS}title") == "b, x: 20 ± 2"


def test_names_instead_of_numbers_on_the_x_axis() -> None:
    series = svg.Line(name="x", x=[500, 1000, 20000], y=[1.0, 2.0, 3.0])
    assert {"500", "1k", "all"} <= set(texts(parse(chart(series, x_names=["500", "1k", "all"]))))


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(ValueError, match="no point"):
        chart(svg.Line(name="x", x=[1], y=[None]))
    with pytest.raises(ValueError, match="2 values for 1 categories"):
        svg.bars(["a"], [svg.Bars(name="x", values=[1.0, 2.0])], title="t", y_label="s")
    with pytest.raises(ValueError, match="no bar"):
        svg.bars(["a"], [svg.Bars(name="x", values=[None])], title="t", y_label="s")


def test_ticks_are_round_and_cover_the_values() -> None:
    assert ticks(0, 100, about=6) == [0, 20, 40, 60, 80, 100]
    assert ticks(41, 97, about=5)[0] <= 41 and ticks(41, 97, about=5)[-1] >= 97
    assert len(ticks(5, 5)) >= 2
    assert whole_ticks(1, 5, most=9) == [1, 2, 3, 4, 5]
    many = whole_ticks(1, 50, most=12)
    assert many[0] == 1 and many[-1] == 50 and len(many) <= 12
    assert tick_labels([0, 5000, 10000]) == ["0", "5k", "10k"]
    assert tick_labels([0, 0.5, 1]) == ["0", "0.5", "1"]
    assert tick_labels([0, 500000, 1000000]) == ["0", "0.5M", "1M"]


def test_colours() -> None:
    assert len(set(OKABE_ITO)) == len(OKABE_ITO) == svg.COLOURS
    assert ramp(0) == "#0072b2" and ramp(-1) == ramp(0) and ramp(2) == ramp(1)


def test_text_is_wrapped_at_words() -> None:
    assert wrapped("one two three", 10, 1000) == ["one two three"]
    assert wrapped("one two three", 10, 1) == ["one", "two", "three"]
