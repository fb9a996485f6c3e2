"""Results as Markdown tables: what the documentation shows is made from the committed JSON, never typed.

python -m carm.bench.markdown results/memory.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_HEAD = "| what | how | ours | against | ratio (quartiles) | target | reached |\n|---|---|---|---|---|---|---|"


def _number(value: float, unit: str) -> str:
    digits = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{digits}/s" if unit == "items/s" else f"{digits} {unit}"


def _row(row: dict[str, Any]) -> str:
    amount = row["baseline"] is None
    spread = row["spread"]
    quartiles = "" if row["repetitions"] == 1 else f" ({spread['quartile1']:.3g} to {spread['quartile3']:.3g})"
    cells = [
        row["name"],
        row["variant"],
        _number(row["ours"], row["unit"]),
        row["against"] if amount else f"{row['against']}: {_number(row['baseline'], row['unit'])}",
        "" if amount else f"{row['ratio']:.3g}{quartiles}",
        row["target"] or "",
        {True: "yes", False: "**no**", None: ""}[row["reached"]],
    ]
    return f"| {' | '.join(cells)} |"


def rows_table(rows: Iterable[dict[str, Any]]) -> str:
    """These rows as a table."""
    return "\n".join([_HEAD, *map(_row, rows)]) + "\n"


def circumstances(machine: dict[str, Any]) -> str:
    """The command, the machine, and how busy it was."""
    load = machine.get("load_average")
    compiled = ""
    if "compiled_code" in machine:  # records of before there was any do not say
        compiled = f", {'with' if machine['compiled_code'] else 'without'} compiled code"
    busy = f", load average {load[0]:.1f} at the start" if isinstance(load, list) and load else ""
    return (
        f"`{machine['command']}` on {machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"{machine['file_system']}, torch {machine['torch']}, numpy {machine['numpy']}, Python {machine['python']}, "
        f"{machine['date'][:10]}{compiled}{busy}.\n"
    )


def markdown(document: dict[str, Any]) -> str:
    """The rows that have a target, and the circumstances."""
    judged = [row for row in document["rows"] if row["target"]]
    return f"{rows_table(judged)}\n{circumstances(document['machine'])}"


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text())), end="")
