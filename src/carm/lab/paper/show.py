"""A record on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carm.lab.paper.layout import sheets
from carm.lab.paper.noise import MARKS, ONE_SEED
from carm.lab.paper.perform import Record

if TYPE_CHECKING:
    from rich.console import Console


def show(one: Record, console: Console) -> None:
    """Ours beside the paper's, then the claims."""
    from rich.table import Table

    console.print(f"{one['name']}: {one['title']} (scale {one['scale']}, seeds {one['seeds']})", soft_wrap=True)
    for title, heads, rows in sheets(one):
        table = Table(title=title, title_justify="left", title_style="bold")
        for i, head in enumerate(heads):
            table.add_column(head, justify="left" if i == 0 else "right")
        for row in rows:
            table.add_row(*row)
        console.print(table, width=None if console.is_terminal else 200)
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
