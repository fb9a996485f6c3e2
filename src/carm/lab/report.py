"""A report on runs: tables and pictures in one HTML file that needs nothing else, or as Markdown.

runs, unfinished = load_runs([Path("runs")])
write_html(runs, Path("report.html"), title="ER on digits", unfinished=unfinished)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from carm.lab import page, tables
from carm.lab.canvas import ramp
from carm.lab.compare import Group, Metrics, group, measures, repeated
from carm.lab.files import atomic
from carm.lab.panels import Panels

_OPEN = 9  # so many groups at most have the pictures of their memory unfolded
_ROW = 3  # pictures beside each other on a wide screen
_UNBROKEN = re.compile(r"CarM-\w+")
_WIDE = 20  # tasks: with more, a table of all of them says less than the picture


def write_html(
    runs: list[Metrics],
    path: Path,
    *,
    title: str,
    extra_sections: Sequence[tuple[str, str]] = (),
    unfinished: Sequence[Path] = (),
) -> None:
    """One HTML file. `extra_sections` are (heading, html) pairs that come first; their html is taken as it is."""
    write_text(path, html(runs, title=title, extra_sections=extra_sections, unfinished=unfinished))


def html(
    runs: list[Metrics],
    *,
    title: str,
    extra_sections: Sequence[tuple[str, str]] = (),
    unfinished: Sequence[Path] = (),
) -> str:
    """What `write_html` writes."""
    groups = _groups(runs)
    parts = [f"<p>{_UNBROKEN.sub(_whole, escape(summary(groups)))}</p>\n"]
    parts += [page.section(heading, content) for heading, content in extra_sections]
    pictures = Panels(groups)
    for heading, content in (
        ("Results", _results(groups)),
        ("Accuracy after each task", _curves(pictures)),
        ("Accuracy on each task over time", _matrices(pictures)),
        ("Swaps", _swaps(pictures)),
        ("What the memory holds", _compositions(pictures)),
        ("Configuration", _configuration(groups)),
        ("Notes", _notes_html(groups, unfinished)),
    ):
        if content:
            parts.append(page.section(heading, content))
    return page.page(title, "".join(parts))


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as file:
        file.write(text.encode())


def markdown(runs: list[Metrics], *, title: str, unfinished: Sequence[Path] = ()) -> str:
    """The tables and the text."""
    groups = _groups(runs)
    differing, same = tables.configurations(groups)
    content, _ = _without_the_rest(tables.results(groups))
    out = [f"# {title}\n", summary(groups) + "\n", "## Results\n", tables.markdown(content)]
    out += ["".join(f"- {word}: {text}\n" for word, text in tables.explained(groups))]
    if 1 < max(len(g.curve()) for g in groups) <= _WIDE:
        out += ["## Accuracy after each task\n", "CI accuracy in percent on the classes seen.\n"]
        out += [tables.markdown(tables.curves(groups))]
    out += ["## Configuration\n"]
    if differing is not None:
        out += ["What differs:\n", tables.markdown(differing)]
    out += ["The same in all:\n", tables.markdown(same)]
    if notes := _notes(groups, unfinished):
        out += ["## Notes\n", "".join(f"- {text}\n" for text in notes)]
    return "\n".join(out)


def summary(groups: Sequence[Group]) -> str:
    """A sentence on what there is."""
    runs = sum(g.n for g in groups)
    named = list(dict.fromkeys(g.title for g in groups))
    data = list(dict.fromkeys(g.data for g in groups))
    settings = list(dict.fromkeys(g.setting for g in groups))
    seeds = sorted({seed for g in groups for seed in g.seeds})
    tasks = sorted({len(g.curve()) for g in groups})
    divided = _counted(tasks[0], "task") if len(tasks) == 1 else "different numbers of tasks"
    parts = [
        _counted(runs, "finished run"),
        f"{_counted(len(named), 'method')} ({', '.join(named)})",
        f"data: {', '.join(data)}, in {divided}",
        f"{'settings' if len(settings) > 1 else 'setting'}: {', '.join(settings)}",
        f"{'seeds' if len(seeds) > 1 else 'seed'}: {_listed(seeds)}",
    ]
    return "; ".join(parts) + "."


# -- sections ----------------------------------------------------------------------------------------------------------


def _results(groups: Sequence[Group]) -> str:
    content, told = _without_the_rest(tables.results(groups))
    best = _best(groups, content[0].index(measures(groups)[0].title))

    def begins(row: int) -> bool:
        return (groups[row].method, groups[row].data) != (groups[row - 1].method, groups[row - 1].data)

    html = page.table(content, caption="Results", strong=lambda i, j: (i, j) in best, begins=begins)
    if best:
        html += page.note("Bold: the best mean of each method. Whether it is better than the next, ± tells.")
    if told:
        html += page.note("The runs also differ in settings that are not named here; they are under Configuration.")
    return html + page.folded("What the columns mean", page.meanings(tables.explained(groups)))


def _without_the_rest(content: tables.Table) -> tuple[tables.Table, bool]:
    """The results without other differences, whose many lines would hide the numbers; whether there were any."""
    head, rows = content
    if head[-1] != tables.OTHERS:
        return content, False
    return (head[:-1], [row[:-1] for row in rows]), True


def _best(groups: Sequence[Group], first: int) -> set[tuple[int, int]]:
    """The cells (row, column) with the best mean among the groups of one method and data."""
    found = set()
    rivals: dict[tuple[str, str], list[int]] = {}
    for i, one in enumerate(groups):
        rivals.setdefault((one.method, one.data), []).append(i)
    for rows in rivals.values():
        for j, m in enumerate(measures(groups)):
            means = {i: value for i in rows if (value := groups[i].mean(m.name)) is not None}
            if m.best is not None and len(means) > 1:
                top = m.best(list(means.values()))
                found |= {(i, first + j) for i, value in means.items() if value == top}
    return found


def _curves(pictures: Panels) -> str:
    ci, ti = pictures.curves("ci"), pictures.curves("ti")
    if not ci:
        return ""
    banded = any(g.n > 1 for g in pictures.groups)
    text = "Class-incremental accuracy on all classes seen so far, after each task"
    text += "; the band is one standard deviation over the seeds to either side." if banded else "."
    together = len(ci) + len(ti) <= _ROW
    if together:
        names = {"ci": "class-incremental", "ti": "task-incremental"}
        ci, ti = (pictures.curves(kind, named=name, scale=tuple(names)) for kind, name in names.items())
        text = text.replace("Class-incremental accuracy", "Accuracy")
    html = page.note(text) + page.panels([*ci, *ti] if together else ci)
    if max(len(g.curve()) for g in pictures.groups) <= _WIDE:
        html += page.folded("The same as a table", page.table(tables.curves(pictures.groups), caption="CI accuracy %"))
    return html + (page.folded("Task-incremental accuracy", page.panels(ti)) if ti and not together else "")


def _matrices(pictures: Panels) -> str:
    ci, ti = pictures.matrices("ci"), pictures.matrices("ti")
    if not ci:
        return ""
    scale = "linear-gradient(90deg,rgba(0,114,178,.06),rgba(0,114,178,1))"
    html = (
        '<p class="note">Class-incremental accuracy: a row is a moment, a column a task. What fades downwards is '
        f'forgotten. 0 %<span class="ramp" style="background:{scale}"></span>100 %</p>\n'
    )
    html += page.panels(ci, small=True)
    return html + (page.folded("Task-incremental accuracy", page.panels(ti, small=True)) if ti else "")


def _swaps(pictures: Panels) -> str:
    traffic, queues = pictures.traffic(), pictures.queues()
    told = ["Swaps per step: samples replaced from storage per step of training, between the ends of passes."]
    if queues:
        told.append("In the queue: swaps that were ordered and not carried out yet, at the ends of passes.")
    if len(traffic) + len(queues) > _ROW:
        return (
            page.note(told[0])
            + page.panels(traffic)
            + "".join(page.note(t) for t in told[1:])
            + (page.panels(queues) if queues else "")
        )
    return page.note(" ".join(told)) + page.panels([*traffic, *queues]) if traffic else ""


def _compositions(pictures: Panels) -> str:
    found = [
        (title, [picture for g in members if (picture := pictures.composition(g)) is not None], members)
        for title, members in pictures.by_method()
    ]
    found = [one for one in found if one[1]]
    if not found:
        return ""
    stops = ",".join(ramp(i / 8) for i in range(9))
    html = (
        '<p class="note">Samples in each tier after each task, by class, or with many classes by the task that they '
        'came with; from the first<span class="ramp" '
        f'style="background:linear-gradient(90deg,{stops})"></span>to the last.</p>\n'
    )
    if sum(len(drawn) for _, drawn, _ in found) <= _OPEN:
        return html + page.panels(picture for _, drawn, _ in found for picture in drawn)
    for title, drawn, members in found:
        html += page.folded(f"{title}: {', '.join(g.label for g in members)}", page.panels(drawn))
    return html


def _configuration(groups: Sequence[Group]) -> str:
    differing, same = tables.configurations(groups)
    html = ""
    if differing is not None:
        html += page.note("What differs, besides the seed:") + page.table(differing, caption="What differs")
    else:
        html += page.note(
            "The runs differ in method, setting and seed only." if len(groups) > 1 else "One configuration."
        )
    return html + page.folded("What is the same in all", page.table(same, caption="Configuration"))


def _notes(groups: Sequence[Group], unfinished: Sequence[Path]) -> list[str]:
    out = []
    if unfinished:
        named = ", ".join(map(str, unfinished[:20])) + (", ..." if len(unfinished) > 20 else "")
        out.append(f"{_counted(len(unfinished), 'run')} not finished, and not counted: {named}.")
    skipped = Counter(name for g in groups for run in g.runs for name in (run.get("skipped") or {}))
    reasons = {name: why for g in groups for run in g.runs for name, why in (run.get("skipped") or {}).items()}
    if skipped:
        few = "; ".join(f"{name} ({reasons[name]})" for name in sorted(skipped)[:20])
        more = f"; and {len(skipped) - 20} more" if len(skipped) > 20 else ""
        out.append(f"{_counted(len(skipped), 'image')} could not be decoded and had to be left out: {few}{more}.")
    return out + [text + "." for text in repeated(groups)]


def _notes_html(groups: Sequence[Group], unfinished: Sequence[Path]) -> str:
    found = _notes(groups, unfinished)
    return "<ul>\n" + "".join(f"<li>{escape(text)}</li>\n" for text in found) + "</ul>\n" if found else ""


# -- pieces ------------------------------------------------------------------------------------------------------------


def _groups(runs: Sequence[Metrics]) -> list[Group]:
    if not runs:
        raise ValueError("runs: there is none to report on")
    return group(runs)


def _whole(found: re.Match[str]) -> str:
    return f'<span class="nb">{found[0]}</span>'


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}" + ("" if n == 1 else "s")


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) > 3 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
