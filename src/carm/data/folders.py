"""Readers of image trees: ImageFolder, Tiny-ImageNet, ImageNet with folders or list files, Mini-ImageNet with csv.

All of them come down to a list of files with labels, which `EncodedSplit` reads when asked. No image is opened here.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from carm.data.arrays import mini_imagenet_cache
from carm.data.decode import Decoder
from carm.data.source import EncodedSplit, Source, hold_out

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".gif", ".tif", ".tiff")
PLAIN = Decoder()

Files = tuple[list[str], list[int]]


def _subfolders(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _images(folder: Path) -> list[str]:
    """Image files anywhere below `folder`, sorted, as paths relative to it.

    Hidden files and folders hold no images, whatever they are called.
    """
    found = []
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]  # such as .ipynb_checkpoints
        below = os.path.relpath(where, folder)
        for file in files:
            if file.lower().endswith(SUFFIXES) and not file.startswith("."):
                found.append(file if below == "." else f"{below}/{file}")
    return sorted(found)


def _tree(root: Path, part: str, classes: Sequence[str]) -> Files:
    """The images of `root/part/<class>/`, class after class."""
    names: list[str] = []
    labels: list[int] = []
    for label, wanted in enumerate(classes):
        folder = root / part / wanted
        images = _images(folder)
        if not images:
            state = "holds no images" if folder.is_dir() else "is missing"
            raise FileNotFoundError(
                f"{folder} {state} (looked for {' '.join(SUFFIXES)}); complete it, or name the classes "
                "to read with classes=[...]"
            )
        prefix = f"{part}/{wanted}" if part else wanted
        names += [f"{prefix}/{image}" for image in images]
        labels += [label] * len(images)
    return names, labels


def _wanted(
    found: Sequence[str], classes: Sequence[str] | str | Path | None, expect: int | None, where: Path
) -> list[str]:
    """The classes to read: those asked for (a list, or a text file with a name in each line), else all there are."""
    if classes is None:
        if expect is not None and len(found) != expect:
            raise FileNotFoundError(
                f"{where} has {len(found)} class folders where {expect} were expected; complete it, or read it "
                "as data set 'folder', which takes any number, or name the classes with classes=[...]"
            )
        return list(found)
    if isinstance(classes, (str, Path)):
        classes = [line.split()[0] for line in Path(classes).read_text("utf-8").splitlines() if line.strip()]
    there = set(found)
    missing = [name for name in classes if name not in there]
    if len(set(classes)) < len(classes):
        twice = next(name for at, name in enumerate(classes) if name in classes[:at])
        raise ValueError(f"classes names {twice!r} twice; a class has one label")
    if missing or not classes:
        raise ValueError(
            f"classes names {missing[:5]}, for which there is no folder in {where}; there are {list(found)[:5]}, ..."
        )
    return list(classes)


def _source(root: Path, name: str, classes: Sequence[str], train: Files, test: Files, decoder: Decoder) -> Source:
    splits = [EncodedSplit(root, tuple(files), np.asarray(y, np.int64), decoder) for files, y in (train, test)]
    return Source(name, tuple(classes), *splits)


def _parted(files: Files, test_share: float, seed: int | None) -> tuple[Files, Files]:
    """Training and test files from one list."""
    names, labels = files

    def pick(index: NDArray[np.int64]) -> Files:
        return [names[i] for i in index], [labels[i] for i in index]

    train, test = hold_out(np.asarray(labels, np.int64), test_share, seed=seed)
    return pick(train), pick(test)


def image_folder(
    root: Path,
    name: str,
    *,
    classes: Sequence[str] | str | Path | None = None,
    expect: int | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    held_out: Sequence[str] = ("test", "val", "valid", "validation"),
    decoder: Decoder = PLAIN,
) -> Source:
    """A tree with a folder for each class: `train/<class>/` with `test/` or `val/` beside it, or just `<class>/`.

    In the second case `test_share` of every class is held out. `held_out` are the names that the folder with the test
    images may have. Classes are numbered in the order of their sorted folder names.
    """
    if not (root / "train").is_dir():
        wanted = _wanted(_subfolders(root), classes, expect, root)
        if not wanted:
            raise FileNotFoundError(
                f"{root} holds no folders; it needs train/<class>/ and test/<class>/, or a folder for each class"
            )
        train, test = _parted(_tree(root, "", wanted), test_share, seed)
        return _source(root, name, wanted, train, test, decoder)
    held = next((part for part in held_out if _subfolders(root / part)), None)
    if held is None:
        raise FileNotFoundError(
            f"{root} has a folder train, but no {' or '.join(f'{part}/<class>/' for part in held_out[:2])} beside it; "
            f"add one, or read {root / 'train'} alone as data set 'folder', of which test_share is then held out"
        )
    wanted = _wanted(_subfolders(root / "train"), classes, expect, root / "train")
    strange = [] if classes is not None else sorted(set(_subfolders(root / held)) - set(wanted))
    if strange:
        raise FileNotFoundError(
            f"{root / held} has the classes {strange[:5]}, which {root / 'train'} has not; complete one of them"
        )
    return _source(root, name, wanted, _tree(root, "train", wanted), _tree(root, held, wanted), decoder)


def imagenet(
    root: Path,
    name: str,
    *,
    lists: Sequence[str] | None = None,
    classes: Sequence[str] | str | Path | None = None,
    expect: int | None = None,
    decoder: Decoder = PLAIN,
) -> Source:
    """ImageNet or a part of it: from list files if there are any, else from the trees `train/` and `val/`.

    List files are `train.txt` and `val.txt`, or those that `lists` names. A line is `path label`; paths are relative
    to the folder, or to its `train/` and `val/`.
    """
    if lists is None and classes is None:
        pairs = ((f"train{end}.txt", f"val{end}.txt") for end in ("", f"_{expect}"))
        lists = next((pair for pair in pairs if all((root / file).is_file() for file in pair)), None)
    if lists is None:
        # (ImageNet's test images have no labels: a folder of them is no test set.)
        return image_folder(root, name, classes=classes, expect=expect, held_out=("val",), decoder=decoder)
    if len(lists) != 2 or classes is not None:
        raise ValueError(
            f"lists is {list(lists)} and classes {classes!r}; lists names a training and a test file, "
            "and they decide the classes"
        )
    train, test = (_list_file(root, file, part) for file, part in zip(lists, ("train", "val"), strict=True))
    values = sorted(set(train[1]))
    strange = sorted(set(test[1]) - set(values))
    if strange:
        raise ValueError(f"{root / lists[1]} has the labels {strange[:5]}, which {root / lists[0]} has not")
    if expect is not None and len(values) != expect:
        raise ValueError(f"{root / lists[0]} has {len(values)} classes where {expect} were expected; complete it")
    number = {value: i for i, value in enumerate(values)}
    parents: dict[int, str] = {}
    for path, label in zip(*train, strict=True):
        parents.setdefault(label, os.path.basename(os.path.dirname(path)))
    named = len(set(parents.values())) == len(values)  # unless classes share a folder, its name is theirs
    names = [parents[value] if named else str(value) for value in values]
    train, test = ((files, [number[label] for label in y]) for files, y in (train, test))
    return _source(root, name, names, train, test, decoder)


def _list_file(root: Path, file: str, part: str) -> Files:
    names, labels = [], []
    for number, line in enumerate((root / file).read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        path, _, label = line.strip().rpartition(" ")
        if not path or not label.isdigit():
            raise ValueError(
                f"{root / file}, line {number}, is {line!r}; a line must be a path, a blank and a class number"
            )
        names.append(path.strip().removeprefix("./"))
        labels.append(int(label))
    if not names:
        raise ValueError(f"{root / file} is empty; a line must be a path, a blank and a class number")
    # One file tells what the paths are relative to; a million more need not be looked at.
    for prefix in ("", f"{part}/"):
        if (root / prefix / names[0]).is_file():
            return [prefix + path for path in names], labels
    raise FileNotFoundError(f"{root / file} names {names[0]}, which is neither in {root} nor in {root / part}")


TINY = Decoder(resize=64, crop=64)


def tiny_imagenet(root: Path, name: str, *, decoder: Decoder = TINY) -> Source:
    """Tiny-ImageNet-200, with `val/` as published (`val_annotations.txt`) or sorted into `val/<id>/`.

    The test images have no labels, so the validation images are what everybody tests on. Classes are in the order of
    their ids.
    """
    classes = sorted((root / "wnids.txt").read_text("utf-8").split())
    words = dict(line.split("\t", 1) for line in _lines(root / "words.txt") if "\t" in line)
    annotations = root / "val" / "val_annotations.txt"
    images = root / "val" / "images"
    there = set(_images(images))  # scripts that sort them may leave the folder empty
    if annotations.is_file() and there:
        number = {wnid: i for i, wnid in enumerate(classes)}
        rows = [line.split("\t")[:2] for line in _lines(annotations) if line]
        strange = [row for row in rows if len(row) < 2 or row[1] not in number]
        if strange:
            raise ValueError(f"{annotations} has the line {strange[0]}, which names no class of wnids.txt")
        missing = [file for file, _ in rows if file not in there]
        if missing:
            raise FileNotFoundError(
                f"{images} lacks {len(missing)} of the {len(rows)} images that {annotations.name} names, such as "
                f"{missing[0]}; unpack the archive again"
            )
        test = [f"val/images/{file}" for file, _ in rows], [number[wnid] for _, wnid in rows]
    else:
        test = _tree(root, "val", classes)
    names = [words.get(wnid, wnid).split(",")[0] for wnid in classes]
    names = names if len(set(names)) == len(names) else classes
    return _source(root, name, names, _tree(root, "train", classes), test, decoder)


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8").splitlines() if path.is_file() else []


MINI = Decoder(resize=84, crop=84)


def mini_imagenet_csv(root: Path, name: str, *, test_share: float = 1 / 6, decoder: Decoder = MINI) -> Source:
    """Mini-ImageNet as `images/` with `train.csv`, `val.csv` and `test.csv` (columns `filename`, `label`).

    The three files share out the classes, for few-shot learning; here all 100 classes are in both splits, see
    `mini_imagenet_cache`.
    """
    rows: list[tuple[str, str]] = []
    for part in ("train", "val", "test"):
        path = root / f"{part}.csv"
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            if not {"filename", "label"} <= set(table.fieldnames or ()):
                raise ValueError(f"{path} has the columns {table.fieldnames}; 'filename' and 'label' are needed")
            for row in table:
                if not row["label"] or not row["filename"]:
                    raise ValueError(f"{path}, line {table.line_num}, has no filename or no label")
                rows.append((row["label"], f"images/{row['filename']}"))
    classes = sorted({label for label, _ in rows})
    number = {label: i for i, label in enumerate(classes)}
    rows.sort(key=lambda row: row[0])  # stable: within a class, the order of the files
    files = [path for _, path in rows], [number[label] for label, _ in rows]
    return _source(root, name, classes, *_parted(files, test_share, None), decoder)


def mini_imagenet(root: Path, name: str, *, test_share: float = 1 / 6, decoder: Decoder = MINI) -> Source:
    """Mini-ImageNet in whichever of its two forms is there."""
    if any(root.glob("mini-imagenet-cache-train.p*")):
        if replace(decoder, threads=None) != MINI:
            raise ValueError(
                f"{root} holds the cache pickles, with arrays of 84 x 84 pixels: resize, crop and channels are for the "
                "form with image files"
            )
        return mini_imagenet_cache(root, name, test_share=test_share)
    return mini_imagenet_csv(root, name, test_share=test_share, decoder=decoder)
