"""A page of HTML that needs nothing but itself: no scripts, no fonts or styles from elsewhere; light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape

from carm.lab.canvas import FONT, OKABE_ITO, OKABE_ITO_DARK
from carm.lab.tables import MISSING, WORDS, Table

_FOLDED = ("setting", "value")


def _variables(ink: str, muted: str, grid: str, ground: str, soft: str, series: Iterable[str]) -> str:
    names = {"ink": ink, "muted": muted, "grid": grid, "ground": ground, "soft": soft}
    names |= {f"c{i}": colour for i, colour in enumerate(series)}
    return ";".join(f"--{name}:{value}" for name, value in names.items())


_STYLE = f"""
:root{{color-scheme:light dark;{_variables("#1b1b1b", "#5a5f66", "#dfe2e6", "#ffffff", "#f4f5f7", OKABE_ITO)}}}
@media (prefers-color-scheme:dark){{
:root{{{_variables("#e9eaec", "#a6acb4", "#363b42", "#15181c", "#1f2329", OKABE_ITO_DARK)}}}
}}
*{{box-sizing:border-box}}
body{{margin:0;background:var(--ground);color:var(--ink);font:16px/1.5 {FONT};overflow-wrap:break-word}}
main{{max-width:1240px;margin:0 auto;padding:24px 20px 64px}}
h1{{font-size:1.75rem;line-height:1.25;margin:0 0 8px}}
h2{{font-size:1.25rem;margin:40px 0 8px;padding-top:16px;border-top:1px solid var(--grid)}}
h3{{font-size:1rem;margin:20px 0 4px}}
p{{margin:6px 0;max-width:75ch}}
p.note,dl,li{{color:var(--muted);font-size:.9rem}}
dl{{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:12px 0;max-width:75ch}}
dt{{color:var(--ink)}} dd{{margin:0}}
.box{{overflow-x:auto;max-width:100%;margin:12px 0}}
.box:focus-visible,summary:focus-visible{{outline:2px solid var(--c1);outline-offset:2px}}
table{{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}}
th,td{{padding:5px 12px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid);font-weight:400}}
th:first-child,td:first-child{{padding-left:4px}}
thead th{{color:var(--muted);border-bottom:1px solid var(--muted);vertical-align:bottom}}
th.w,td.w{{text-align:left}} td.fold{{white-space:normal;min-width:15rem}}
tr.first th,tr.first td{{border-top:2px solid var(--grid)}}
td b{{font-weight:700}}
.panels{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,340px),1fr));gap:20px 24px;margin:12px 0}}
.panels.small{{grid-template-columns:repeat(auto-fill,minmax(min(100%,240px),1fr))}}
figure{{margin:0;min-width:0;max-width:520px}}
.small figure{{max-width:320px}}
.nb{{white-space:nowrap}}
svg{{display:block;width:100%;height:auto}}
details{{margin:8px 0}} summary{{cursor:pointer;padding:4px 0}}
.ramp{{display:inline-block;width:7em;height:.75em;border-radius:2px;vertical-align:baseline;margin:0 .4em}}
code{{background:var(--soft);padding:1px 4px;border-radius:3px}}
@media (max-width:600px){{
main{{padding:16px 14px 48px}} h1{{font-size:1.4rem}} h2{{margin-top:28px}}
th,td{{padding:5px 8px}} td.fold{{min-width:9rem}} dl{{grid-template-columns:1fr}} dd{{margin:0 0 6px 12px}}
}}
@media print{{details{{break-inside:avoid}} figure{{break-inside:avoid}}}}
"""


def page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{body}</main>\n</body>\n</html>\n"
    )


def section(heading: str, html: str) -> str:
    return f"<section>\n<h2>{escape(heading)}</h2>\n{html}</section>\n"


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>\n'


def panels(pictures: Iterable[str], *, small: bool = False) -> str:
    figures = "".join(f"<figure>{picture}</figure>\n" for picture in pictures)
    return f'<div class="panels{" small" if small else ""}">\n{figures}</div>\n'


def folded(summary: str, html: str) -> str:
    return f"<details>\n<summary>{escape(summary)}</summary>\n{html}</details>\n"


def table(
    content: Table,
    *,
    caption: str,
    strong: Callable[[int, int], bool] | None = None,
    begins: Callable[[int], bool] | None = None,
) -> str:
    """A table that scrolls within its box where it is too wide.

    strong  which cells (row, column) are set in bold
    begins  rows that begin a group
    """
    head, rows = content
    words = [name in WORDS for name in head]
    top = "".join(
        f'<th scope="col"{_classes(word, False)}>{escape(name)}</th>' for name, word in zip(head, words, strict=True)
    )
    lines = []
    for i, row in enumerate(rows):
        cells = []
        for j, cell in enumerate(row):
            text = f"<b>{escape(cell)}</b>" if strong is not None and strong(i, j) else escape(cell or MISSING)
            kind, scope = ("th", ' scope="row"') if j == 0 else ("td", "")
            cells.append(f"<{kind}{scope}{_classes(words[j], len(cell) > 24 and head[j] in _FOLDED)}>{text}</{kind}>")
        first = ' class="first"' if i and begins is not None and begins(i) else ""
        lines.append(f"<tr{first}>{''.join(cells)}</tr>\n")
    named = f' role="region" tabindex="0" aria-label="{escape(caption)}"'
    body = f"<thead><tr>{top}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody>\n"
    return f'<div class="box"{named}><table>\n{body}</table></div>\n'


def meanings(pairs: Iterable[tuple[str, str]]) -> str:
    """What words mean."""
    inner = "".join(f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>\n" for word, text in pairs)
    return f"<dl>\n{inner}</dl>\n"


def _classes(word: bool, fold: bool) -> str:
    names = [*(["w"] if word else []), *(["fold"] if fold else [])]
    return f' class="{" ".join(names)}"' if names else ""
