"""A record on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from carm.lab.paper.layout import Sheet, sheets
from carm.lab.paper.noise import MARKS, ONE_SEED
from carm.lab.paper.perform import Record

if TYPE_CHECKING:
    from rich.console import Console

_BORDER = 3  # what a column takes besides its text


def show(one: Record, console: Console) -> None:
    """Ours beside the paper's, then the claims."""
    console.print(f"{one['name']}: {one['title']} (scale {one['scale']}, seeds {one['seeds']})", soft_wrap=True)
    for sheet in sheets(one):
        _print_sheet(sheet, console)
    if one["scale"] != "full":
        console.print(
            f"The paper's numbers are of other data and nets than scale {one['scale']}: compare the shape.",
            soft_wrap=True,
        )
    for claim in one["shape"]:
        console.print(
            f"{MARKS[claim['verdict']]} {claim['verdict']}: {claim['claim']}: {claim['numbers']}", soft_wrap=True
        )
    if one["seeds"] == 1 and one["shape"]:
        console.print(ONE_SEED, soft_wrap=True)
    if one["note"]:
        console.print(one["note"], soft_wrap=True)


def _print_sheet(sheet: Sheet, console: Console) -> None:
    """No number is ever cut: what is too wide for the terminal goes on in another table below."""
    from rich.table import Table

    title, heads, rows = sheet
    widths = [_width(column) for column in zip(heads, *rows, strict=True)]
    console.print(title, style="bold", soft_wrap=True)
    room, before = console.width if console.is_terminal else sum(widths) + 1, console.width
    for columns in _pieces(heads, widths, room):
        table = Table()
        for i in columns:
            words = heads[i] == ""
            table.add_column(heads[i], justify="left" if words else "right", width=widths[i] - _BORDER, no_wrap=words)
        for row in rows:
            table.add_row(*(row[i] for i in columns))
        console.width = max(before, sum(widths[i] for i in columns) + 1)
        console.print(table)
    console.width = before


def _width(column: tuple[str, ...]) -> int:
    """Cells stay whole; a head may be folded between its words."""
    head, *cells = column
    return max([*map(len, cells), *map(len, head.split()), 1]) + _BORDER


def _pieces(heads: list[str], widths: list[int], room: int) -> Iterator[list[int]]:
    """Which columns stand beside each other; those that say what a row is (without a head) come again each time."""
    labels = [i for i, head in enumerate(heads) if head == ""]
    taken: list[int] = []
    left = free = room - 1 - sum(widths[i] for i in labels)
    for i in range(len(labels), len(heads)):
        if taken and widths[i] > left:
            yield labels + taken
            taken, left = [], free
        taken.append(i)
        left -= widths[i]
    yield labels + taken
