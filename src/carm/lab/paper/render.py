"""docs/results.md and its figures, from the records in results/.

Tables, claims and figures are made from them. Typed is only the comment at the end (`_WHY`), which is to be read again
whenever results change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from carm.lab.paper.experiments import NAMES
from carm.lab.paper.figures import figures
from carm.lab.paper.layout import Sheet, capital, sheets
from carm.lab.paper.noise import MARKS, ONE_SEED
from carm.lab.paper.perform import Record

_HEAD = """# Results

Made by `carm paper render` from the files in `results/`; not to be edited by hand. Every table has our numbers, mean ±
standard deviation over the seeds, and below them the paper's. At scale `laptop` nets, data and patience are small, so
only the shape can be compared: which of two settings is better, and whether by more than noise. Each claim of the
paper has a line that says whether it holds here; after each method stands the difference and half of its 95 % interval,
`~` marks those within noise and `✗` those against the claim.

Original is a method as published, with an episodic memory (EM) of a few samples in RAM. With CarM-20, -50, -80 and -100
all samples are also stored, and so many percent of the rehearsed ones are replaced from storage. Accuracy is that after
the last task, class-incremental if not said otherwise; seeds count from 0.
"""
_WHY = """## How the laptop settings were chosen

By trying, and by looking at what swapping gained: so the gains say that there are settings in which the paper's shape
appears on a small machine, not how often it does. For ER on MNIST three settings were tried with seed 0, which is among
the seeds reported (1,000 samples a class and 10 passes gained 5 points, 500 with an EM of 200 gained 16 at a much lower
level, 300 and 20 passes gained 19 and were kept, with another learning rate). For ER on CIFAR-100, first four with seed
0 (50 a class, 20 passes, half the width: 0.9; 20 passes, full width: 2.9 with CarM-50; 30 passes, full width: 8.0; 30 a
class, 30 passes, half the width: 4.6); then two with seed 100, which is not reported (100 a class, 10 passes, full
width: -0.5; 50 a class, 30 passes, full width: 7.6, kept: its memory is 4 % of the data, as in the paper). An earlier
attempt with 12 passes showed no gain for ER and iCaRL. What matters, it seems, is that old samples are not far fewer
than new ones in a pass, and that there are enough passes for the store to be seen. Settings of the other methods were
tried once or twice, on seed 0, and not changed after Table 1 was run. `joint` says what there was to gain.

The references: GDumb gave 88.1 until it was trained as its authors' code does, with random crops and CutMix; ER and
DER++ have had fixed heads with Glorot weights, as the published ones, since a first run gave ER 76.8 at EM 200. Three
experiments of ours have twenty seeds because five do not tell: ER at EM 200 is 77.6 with the first five, 2.8 below the
published mean, and 0.9 below it with all. Seed 1 is below the others whatever the memory: in `ceiling` it has 67.8 at
EM 200, where the twenty have 78.5, and 89.6 with everything in RAM, where they have 94.1. For iCaRL, BiC, RM and TinyER
we know of no published number on Split MNIST; the nearest are of CIFAR, at full size: those of the paper, which stand
in Table 1 below ours, and for CIFAR-100 in 10 tasks with an EM of 2,000 iCaRL 47 to 50 and BiC 46 to 49 in the
literature.

## Where it differs from the paper, and why

What `icarl-features`, `icarl-means`, `distill`, `tiny-er-slots` and `joint` show is measured; the other reasons are
what we think, and were not tested.

- **iCaRL gains little from swapping, and on CIFAR loses by it.** As in the paper, the targets of old classes come from
  the last net, right or wrong, whatever old sample is shown. `icarl-features`: without distillation swapping gains
  most; `distill`: the gain comes back as the weight falls. It loses on CIFAR by its classifier: there are two exemplars
  a class (the paper has twenty), herded ones in the Original and any two after swaps, and the mean of any two is a poor
  one. `icarl-means`: with the net itself as the classifier nothing is lost, and both are better. On MNIST three seeds
  leave the gain of iCaRL with CarM-100 within noise; with eight (`table1-mnist-icarl`) it is beyond it, as is that of
  TinyER (`table1-mnist-tiny-er`). With CarM-50 iCaRL gains nothing, which is the gate's doing (see below). TinyER
  has little to win: it is told the task, and right in 97 of 100 without swapping.
- **Is the memory the bottleneck?** `joint` says so for six of seven on MNIST and for six of seven on CIFAR: the same
  nets learn all classes at once far better. For ER on CIFAR-100 swapping wins more than half of that. For DER++ on
  MNIST there is little to win (`joint` is within noise of its Original), and with swapping it is as good as joint
  training. For iCaRL on CIFAR the memory is the bottleneck in another way: trained on everything at once it still
  classifies by two exemplars a class, and is no better.
- **In 50 tasks RM and DER++ gain; the others do not beyond noise, and TinyER loses a little with CarM-100** (five seeds
  in `tiny-er-slots` leave that within noise). With 100 slots for 100 classes it has one sample a class in RAM, and
  then, it seems, knowing that one well is worth more than a glance at many. `tiny-er-slots`: with three slots a class,
  as in the paper, it gains. TinyER, iCaRL and GDumb also forget more with CarM-100; GDumb ends no lower for it, so it
  was better on the way. ER reaches 5 % with and without: ten passes over two new classes make it answer with those.
  Told the task, it gains: 73 % without, 81 % with CarM-100; so does GDumb, 68 and 73 %. iCaRL loses then, as on CIFAR
  in ten tasks, where `icarl-means` shows why.
- **CarM-20 is further from CarM-100 for RM, and perhaps for ER, iCaRL and GDumb.** The paper's RM makes 256 passes over
  its memory, the laptop's 40, so a fifth of the swaps may be too few to see much of the store.
- **The policies differ for iCaRL**: with eight seeds (`policies-icarl`) CarM-50 has 77.5 with the entropy gate, 81.2
  with the random one and 80.9 with the dynamic one; without swapping it has 78.4, with CarM-100 81.9. The entropy gate
  lets go what the net is sure of, so the exemplars that stay are odd ones; whether it is the means of these, from which
  iCaRL classifies, or what the net learns from them, was not found out. Who swaps less than everything with iCaRL
  should take `--gate random`. For the other six the three policies are within noise, as in the paper.
- **Storage of 1.5 times the EM** is beyond noise for BiC and GDumb only.
- **The study of distillation** confirms the paper for iCaRL only; for BiC and DER++ all weights are within noise.
- **Swaps in the background cost a small net more than the paper's nets.** With the paper's nets and batches, CarM-100,
  warm storage and a free core they cost -2 to 2 % of the training time by the median of six repetitions (`speed`,
  second block: 7 of 7 within our goal of 3 %). Single repetitions lie up to 9 points apart, so the least and the most
  say little. The compact nets of scale laptop show the other end, since a step of theirs takes 7 to 50 ms and what
  judging, ordering and publishing cost the training thread, whose caches the model has filled, is 0.3 to 2 ms whatever
  the net: 0 to 6 %, and 15 % for TinyER; within 3 % for iCaRL and RM, within the paper's 5.5 % for ER and BiC too.
  Where a pass shows every sample once, several batches are judged together; TinyER and DER++ draw at random from 100
  slots, so theirs are not. On one core, with nothing to hide behind, it is 1 to 8 %, and 16 % for TinyER; on slow
  storage 3 to 9 %, and 17 %. The first row of each block has six repetitions, the others two; they were measured in
  several sittings over a day. Waiting for slow storage instead costs 15 to 81 % more.
- **Swaps in the background are as good as swaps that training waits for**: +0.1 ± 0.4 for ER, -0.1 ± 0.2 for DER++
  (`workers`, twenty seeds). In its DER++ runs up to one swap in six was dropped, for a step takes about a millisecond
  and a run beside them synced the device at every step; ER's are those of `ceiling`. An earlier run of ten seeds gave
  ER -1.5 ± 1.4; so the seeds were doubled. And ER with 500 slots and swaps is as good as with everything in RAM:
  +0.2 ± 0.6, by seed (`ceiling`).
- **Many lines say "within noise".** Three seeds leave intervals of up to 16 points to either side; short runs on CIFAR
  have eight.
- **Two records are older than the code**: `tasks-50` and `speed`, of 16 November; the others are of the 18th. What has
  changed since alters when swaps are ordered, not the methods. `code` in each result file says which version made its
  runs, where it was noted.
"""


def records(directory: Path) -> list[tuple[Path, Record]]:
    """The experiments among the result files, in the paper's order."""
    found = []
    for path in sorted(directory.glob("*.json")):
        try:
            one = json.loads(path.read_text())
        except ValueError as error:
            raise ValueError(f"{path} is no result file: {error}") from error
        if isinstance(one, dict) and one.get("name") in NAMES and "shape" in one:
            found.append((path, one))
    return sorted(found, key=lambda pair: (NAMES.index(pair[1]["name"]), pair[0].stem))


def render(results: Path, docs: Path) -> list[Path]:
    """Write docs/results.md and docs/img/*.svg, and return what was written."""
    found = records(results)
    if not found:
        raise ValueError(f"{results} has no results: make some with `carm paper NAME --results {results}`")
    written: list[Path] = []
    images = docs / "img"
    images.mkdir(parents=True, exist_ok=True)
    parts = [_HEAD, _contents(found)]
    for path, one in found:
        pictures = []
        for name, text, picture in figures(one):
            own = name if name.startswith(path.stem) else path.stem + name.removeprefix(one["name"])
            file = images / f"{own}.svg"
            if file in written:  # a part beside the whole
                file = images / f"{path.stem}{name.removeprefix(one['name'])}.svg"
            file.write_text(picture)
            written.append(file)
            pictures.append(f"![{text}](img/{file.name})")
        parts.append("\n".join(_section(path, one, pictures)))
    if any(one["scale"] == "laptop" for _, one in found):
        parts.append(_WHY)
    page = docs / "results.md"
    page.write_text("\n".join(parts))
    written.insert(0, page)
    readme = docs.parent / "README.md"
    if readme.exists():
        before = readme.read_text()
        after = in_readme(before, found)
        if after != before:
            readme.write_text(after)
            written.append(readme)
    return written


def in_readme(text: str, found: list[tuple[Path, Record]]) -> str:
    """The README with the table and the picture of Table 1 on MNIST between its marks, if there are such."""
    begin, end = "<!-- table1 -->\n", "<!-- end of table1 -->"
    if begin not in text or end not in text:
        return text
    for path, one in found:
        if path.stem == "table1-mnist":
            head, _, rest = text.partition(begin)
            accuracy = markdown(sheets(one)[0]).partition("\n\n")[2]
            picture = f"![Table 1 on Split MNIST](docs/img/{path.stem}.svg)\n"
            return f"{head}{begin}\n{accuracy}\n{picture}\n{end}{rest.partition(end)[2]}"
    return text


def _contents(found: list[tuple[Path, Record]]) -> str:
    lines = [
        "| experiment | scale | claims that hold | in part | within noise | do not hold |",
        "|---|---|---|---|---|---|",
    ]
    for path, one in found:
        counts = [sum(c["verdict"] == verdict for c in one["shape"]) for verdict in MARKS]
        lines.append(f"| [{path.stem}](#{path.stem}) | {one['scale']} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines) + "\n"


def _section(path: Path, one: Record, pictures: list[str]) -> Iterator[str]:
    machine = one["machine"]
    yield f"## {path.stem}\n"
    yield f"{capital(one['title'])}.\n"
    if one["note"]:
        yield f"{one['note']}\n"
    for claim in one["shape"]:
        yield f"- {MARKS[claim['verdict']]} **{claim['verdict']}**: {claim['claim']}. {claim['numbers']}"
    if one["seeds"] == 1 and one["shape"]:
        yield f"\n{ONE_SEED}"
    for sheet in sheets(one):
        yield "\n" + markdown(sheet)
    if pictures:
        yield " ".join(pictures) + "\n"
    yield (
        f"`{one['command']}`: scale {one['scale']}, {_seeds(one)}, {one['date'][:10]}, {machine['cpu']}, "
        f"{machine['cores']} {'core' if machine['cores'] == 1 else 'cores'}, Linux {machine['kernel']}, "
        f"torch {machine['torch']}, Python {machine['python']}, "
        f"load average {machine['load_average'][0]:.1f}{_versions(one)}.\n"
    )


def _versions(one: Record) -> str:
    """Whether runs were made by different versions of the code; older records do not say."""
    codes = one.get("code", {})
    return f"; the runs are of {len(codes)} versions of the code" if len(codes) > 1 else ""


def _seeds(one: Record) -> str:
    """How many; short runs may have more than long ones."""
    of, what = ("wall", "repetitions") if one["name"] == "speed" else ("runs", "seeds")
    counts = sorted({len(group[of]) for group in one["groups"]})
    return f"{counts[0]} {what}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} {what}"


def markdown(sheet: Sheet) -> str:
    """A table; its title is a line above it."""
    title, heads, rows = sheet
    lines = [f"**{title}**", "", _line(heads), "|" + "---|" * len(heads)]
    for row in rows:
        inner = [f"*{cell.strip()}*" if row[0].startswith("  ") and cell else cell for cell in row]
        lines.append(_line(inner))
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
