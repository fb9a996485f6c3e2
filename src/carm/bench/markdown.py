"""Results as a Markdown table: what README shows is made from the committed JSON, never typed.

python -m carm.bench.markdown results/memory.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


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


def markdown(document: dict[str, Any]) -> str:
    """The rows that have a target, and the circumstances."""
    machine = document["machine"]
    head = "| what | how | ours | against | ratio (quartiles) | target | reached |\n|---|---|---|---|---|---|---|"
    rows = "\n".join(_row(row) for row in document["rows"] if row["target"])
    where = (
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, {machine['file_system']}, "
        f"torch {machine['torch']}, numpy {machine['numpy']}, Python {machine['python']}, {machine['date'][:10]}"
    )
    return f"{head}\n{rows}\n\n`{machine['command']}` on {where}.\n"


if __name__ == "__main__":
    print(markdown(json.loads(Path(sys.argv[1]).read_text())), end="")
