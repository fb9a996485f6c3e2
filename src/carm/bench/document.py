"""docs/performance.md, made from what `make bench` has measured.

    python -m carm.bench.document                       from results/ to docs/performance.md
    python -m carm.bench.document results page.md

The tables come from results/memory.json and results/nets.json. The words are here, and those in REASONS name what was
measured on the way: to be read again whenever results change.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carm.bench.markdown import circumstances, rows_table

_SWAPPING = """
    Out of the page cache a worker brings in a million samples a second, hundreds of times what training asks for. To
    keep it busy so many are ordered between two draws that the draw's own code has left the core's caches, which is
    about half of the loss; the other half is the worker's, whose copies go through the cache that the cores share.
    (Measured with a worker that says at once that it is done, and moves nothing: 0.77 of that is kept with batches of
    64, and 0.81 with 256.) Four runs gave 0.71 to 0.89 with batches of 64. To ask for the rows ahead, and to write them
    past the caches, gained nothing.
    """
_BY_THE_RUN = """
    Rows move by a point or two from run to run, and by more on a machine that others use too. With two torch threads
    and steps of 15 ms it is 0.3 to 0.4 ms a step: half is what the training thread itself does (judging, ordering,
    publishing, planning commits), the other half is waiting for torch's second thread, on whose core the worker reads
    and writes. Where all cores train, the helper process costs up to half a point more than the thread; `swap="async"`
    is the thread, not least because of these rows. A lower priority (nice 10, or SCHED_IDLE) would spare up to half a
    point, and was left out: beside another run that takes the second core, half as many samples were swapped, and
    a thread that holds the interpreter lock while it waits for a core would hold up training.
    """
REASONS: dict[str, str] = {
    "swap-warm": """
        Without compiled code copying out of the page cache, comparing the checksum and copying into the row are three
        passes over memory; choosing, ordering and publishing hold the interpreter lock meanwhile.
        """,
    "swap-cold-3k": """
        Reading is bound by the processor (the kernel takes 4 to 5 microseconds a record), so on two cores the work that
        a swap is beside its read is in its way.
        """,
    "swap-cold-110k": """
        It goes by the run, and by the core that the worker is on: where a device interrupts only one, whoever waits for
        it there waits less, and whoever computes there longer.
        """,
    "append": """
        Every batch makes two syncs, of the data and of the catalogue, against one; which part of it is the device was
        not examined.
        """,
    "train-warm": _BY_THE_RUN,
    "train-cold": _BY_THE_RUN,
    "train-full": """
        A step of 15 ms stores 32 new samples where others were, one write each, beside the 32 reads: twice the work of
        the device, of its interrupts, and of choosing who goes. It is 0.5 to 0.7 ms a step, whatever the step takes;
        with a core to spare it is within 3 %.
        """,
    "train-throttled": """
        It goes by the run. Most of it is the entropy gate, which has to score every batch to pick the few samples that
        the device has time for; with a fixed ratio of a quarter it is the same.
        """,
    "decode": """
        Pillow lets go of the interpreter lock while it decodes, but not while it opens a picture and copies its bands
        out. Two processes decode 1.6 to 1.9 times as much as one.
        """,
    "draw-64-swapping": _SWAPPING,
    "draw-256-swapping": _SWAPPING,
    "draw-256": """
        A draw also chooses, copies labels and ids, and makes tensors: about 20 microseconds a call. And it copies by
        indexing, which keeps the interpreter to itself, where `numpy.take`, 10 to 20 % faster, would let a swap thread
        in. Six runs on two machines gave 0.52 to 0.65 with 2,000 slots, and 0.58 to 0.78 with 10,000.
        """,
    "profile": "The rows below it show which part takes the rest.",
}
"""Why a benchmark misses its target, by name; shown only when it does."""
_UNKNOWN = "The reason is not known yet."

_OPENING = """
# Performance

Made by `make bench`, which measures everything on the machine it runs on and writes `results/memory.json`,
`results/nets.json` and this page:

```sh
carm bench memory --json results/memory.json
carm bench nets --json results/nets.json
python -m carm.bench.document
```

`--quick` gives a rough picture in a minute or two, `--only NAME` a part.

## How to read it

Every row compares two sides that took turns in one run on one machine: clocks, neighbours and disks drift, so only what
was measured side by side can be compared. *ours* and the number in *against* are medians; the *ratio* is the median of
the ratios of each repetition, with its quartiles. With a target of `>=` it is a ratio of speeds, and more is better:
0.75 is three quarters of the other side's speed. With `<=` it is one of costs, and less is better: 1.03 is three per
cent more. A row with nothing to compare with has a fixed bound, or is there for information.
"""

_MEMORY = """
## The memory

The baselines are what the hardware or the plainest code does with the same bytes, so that 1 is the most that a ratio
should be:

- **swap-cold**: samples from the device into RAM, replacements chosen and checksums compared, against Linux AIO that
  reads the same records and does nothing with them, with one, two or four requests of the batch's or a quarter of its
  size under way, whichever is fastest; and against a file for each sample with shared lists of a
  `multiprocessing.Manager`. (Where ours comes out faster than bare AIO, it goes by the run.)
- **swap-warm**: the same out of the page cache, against a loop of memory copies.
- **draw**: a batch of random samples with labels and ids, as tensors, against one `numpy.take` of rows that are known
  already.
- **draw-swapping**: a draw beside a worker that always has something to do, against the same with nothing ordered, and
  against `numpy.take` beside the same worker. The draws are kept from the core that the device interrupts, if it is
  always the same one; a row of its own says what they take there. A bare `numpy.take` beside a process that only copies
  is there to compare: the cores share their last cache, and the way to memory.
- **add**, **open-1m**: what a sample costs when many are stored, against ten thousand, or against a bound; while the
  store grows, and when it is full, so that each new sample takes the place of another.
- **append**: a batch that is on the device when the call returns, against `pwritev` and `fdatasync` of the same bytes.
- **train**: a training loop that swaps every old sample it used, against the same loop without storage. In
  *train-full* storage may hold no more: 32 new samples a step are written here and there in the file, as many as are
  read.
"""

_NETS = """
## Training

- **profile**: a part of a training step of ER, in the middle of a run that swaps all it can, as a share of the step.
- **channels-last**: a step with the channels of a pixel side by side in memory, as `carm run` has it, against the usual
  layout.
- **compile**: a step with the backbone through `torch.compile`, against the same without; what compiling takes, and
  after how many steps it has paid.
- **decode**: JPEG photographs on all cores, against one thread; and what decoding ahead of training would bring.
- **augment**: CIFAR's random crop, flip and normalisation, as a share of the training step that follows.

In profile and augment the ratio is a share. Clocks around the parts of a step cannot tell what swaps in the background
take from the net's own cores: compare *the net alone*, the same net on one batch with nothing around it. Its share can
exceed that of the whole step's own clocks, or fall below it, by what the machine does meanwhile.
"""


def _paragraph(text: str, **options: Any) -> str:
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False, **options)


def _missed(rows: Sequence[dict[str, Any]]) -> str:
    """Why targets are not reached; nothing if all are."""
    names = dict.fromkeys(row["name"] for row in rows if row["reached"] is False)
    reasons = [_paragraph(f"- **{n}**. {REASONS.get(n, _UNKNOWN)}", subsequent_indent="  ") for n in names]
    return (
        "\n".join(
            [
                "Not reached, and why (numbers that no row shows are of side measurements, without a record):",
                "",
                *reasons,
            ]
        )
        if reasons
        else ""
    )


def _notes(rows: Sequence[dict[str, Any]]) -> str:
    told = dict.fromkeys((row["name"], row["note"]) for row in rows if row["note"])
    return "\n".join(_paragraph(f"- {name}: {note}.", subsequent_indent="  ") for name, note in told)


def _section(words: str, document: dict[str, Any], *, fold: bool) -> list[str]:
    """One file's rows. `fold`: those without a target out of sight."""
    rows = document["rows"]
    shown = [row for row in rows if row["target"] or not fold]
    hidden = [row for row in rows if not row["target"] and fold]
    parts = [words, rows_table(shown), circumstances(document["machine"]), _notes(rows), _missed(rows)]
    if hidden:
        parts.append(f"<details><summary>Rows without a target</summary>\n\n{rows_table(hidden)}\n</details>")
    return parts


def page(memory: dict[str, Any] | None, nets: dict[str, Any] | None) -> str:
    """The whole page; a part that has not been measured is left out."""
    parts = [_OPENING]
    if memory is not None:
        parts += _section(_MEMORY, memory, fold=True)
    if nets is not None:
        parts += _section(_NETS, nets, fold=False)
    return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"


def from_results(results: Path) -> str:
    """The page of the files in this folder."""
    files = (results / "memory.json", results / "nets.json")
    found = [json.loads(file.read_text()) if file.exists() else None for file in files]
    return page(*found)


def main(arguments: Sequence[str]) -> None:
    results, out = (*arguments, *("results", "docs/performance.md")[len(arguments) :])
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    Path(out).write_text(from_results(Path(results)))


if __name__ == "__main__":
    main(sys.argv[1:])
