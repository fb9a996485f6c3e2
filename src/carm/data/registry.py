"""Data sets by name: where each is looked for, what reads it, and what to tell a user who does not have it."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from carm.data import arrays, folders
from carm.data.decode import Decoder
from carm.data.source import Source
from carm.data.synthetic import synthetic

ROOT_VARIABLE = "CARM_DATA"


@dataclass(frozen=True)
class _Entry:
    """One data set. `needs` are alternatives: the data set is there if all patterns of one of them match."""

    read: Callable[..., Source]
    folders: tuple[str, ...] = ()
    needs: tuple[tuple[str, ...], ...] = ()
    get: str = ""
    hidden: frozenset[str] = frozenset()  # arguments of `read` that are not the user's

    def options(self) -> dict[str, Any]:
        """The options of the reader with their defaults; those of the decoder stand for `decoder`."""
        parameters = inspect.signature(self.read).parameters.values()
        given = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in self.hidden}
        decoder = given.pop("decoder", None)
        if decoder is not None:
            given |= {f.name: getattr(decoder, f.name) for f in fields(Decoder)}
        return given


_MNIST = (tuple(f"{part}-{kind}-ubyte*" for part in ("train", "t10k") for kind in ("images?idx3", "labels?idx1")),)
_MINI = (
    tuple(f"mini-imagenet-cache-{part}.p*" for part in ("train", "val", "test")),
    ("images", "train.csv", "val.csv", "test.csv"),
)
_TREE_OR_LISTS = (("train/*", "val/*"), ("train.txt", "val.txt"))
_ILSVRC = (
    "Get ILSVRC2012 from https://image-net.org (an account is needed) and put the validation images into a folder "
    "for each class"
)

_ENTRIES: dict[str, _Entry] = {
    "cifar-10": _Entry(
        arrays.cifar10,
        ("cifar-10-batches-py", "cifar10", "cifar-10"),
        ((*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),),
        "Get https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz and unpack it there",
    ),
    "cifar-100": _Entry(
        arrays.cifar100,
        ("cifar-100-python", "cifar100", "cifar-100"),
        (("train", "test", "meta"),),
        "Get https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz and unpack it there",
    ),
    "mnist": _Entry(
        arrays.mnist,
        ("mnist", "MNIST/raw", "MNIST"),
        _MNIST,
        "Get the four files from https://ossci-datasets.s3.amazonaws.com/mnist/; they may stay compressed",
        hidden=frozenset({"classes"}),
    ),
    "fashion-mnist": _Entry(
        partial(arrays.mnist, classes=arrays.FASHION),
        ("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
        _MNIST,
        "Get the four files from https://github.com/zalandoresearch/fashion-mnist (on Debian: package "
        "dataset-fashion-mnist); they may stay compressed",
        hidden=frozenset({"classes"}),
    ),
    "tiny-imagenet": _Entry(
        folders.tiny_imagenet,
        ("tiny-imagenet-200", "tiny-imagenet"),
        (("wnids.txt", "train", "val"),),
        "Get http://cs231n.stanford.edu/tiny-imagenet-200.zip and unpack it there",
    ),
    "mini-imagenet": _Entry(
        folders.mini_imagenet,
        ("mini-imagenet", "miniimagenet", "miniImageNet"),
        _MINI,
        "It has no official home: make the three cache pickles, or the csv files with images, from "
        "ILSVRC2012 as its authors describe",
    ),
    "imagenet-100": _Entry(
        partial(folders.imagenet, expect=100),
        ("imagenet-100", "imagenet100"),
        (*_TREE_OR_LISTS, ("train_100.txt", "val_100.txt")),
        f"{_ILSVRC}; then link or copy the 100 class folders, or write list files",
        hidden=frozenset({"expect"}),
    ),
    "imagenet-1000": _Entry(
        partial(folders.imagenet, expect=1000),
        ("imagenet-1000", "imagenet", "ILSVRC2012"),
        _TREE_OR_LISTS,
        f"{_ILSVRC}, or write list files",
        hidden=frozenset({"expect"}),
    ),
    "folder": _Entry(
        folders.image_folder,
        needs=(("*/",),),
        get="Give the folder as root, or below the root as path=...; it holds train/<class>/ and test/<class>/, "
        "or a folder for each class",
        hidden=frozenset({"expect", "held_out"}),
    ),
    "npz": _Entry(arrays.npz, get="Give the file as root, or below the root as path=..., for instance path='mine.npz'"),
    "digits": _Entry(arrays.digits),
    "synthetic": _Entry(synthetic),
}
_FILELESS = {"digits", "synthetic"}
_OWN_PATH = {"folder", "npz"}


def names() -> tuple[str, ...]:
    """The names that `load` knows."""
    return tuple(_ENTRIES)


def _key(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())


def canonical(name: str) -> str:
    """The name as `names()` spells it: case, blanks, hyphens and underscores do not matter.

    ValueError if there is none.
    """
    known = {_key(entry): entry for entry in _ENTRIES}
    known |= {"imagenet": "imagenet-1000", "imagefolder": "folder"}
    if _key(name) in known:
        return known[_key(name)]
    near = difflib.get_close_matches(_key(name), known, 1, 0.4)
    hint = f" Did you mean {known[near[0]]!r}?" if near else ""
    if os.sep in name or os.path.exists(name):
        hint = f" A folder of pictures is --data folder --path {name}, a file of arrays --data npz --path {name}."
    raise ValueError(f"there is no data set {name!r}.{hint} The names are: {', '.join(_ENTRIES)}")


def reader_options(name: str) -> tuple[str, ...]:
    """The options that `load` takes for a data set."""
    name = canonical(name)
    return (*_ENTRIES[name].options(), *(("path",) if name in _OWN_PATH else ()))


def load(name: str, root: str | os.PathLike[str] | None = None, **options: Any) -> Source:
    """The data set called `name`, from the folder `root`, or the one that the environment variable CARM_DATA names.

    `root` may be the data set's own folder or the one above it. Options differ from data set to data set; a wrong one
    is answered with the list. Those of images: `resize`, `crop`, `channels`, `threads`, see `Decoder`.
    """
    name = canonical(name)
    entry = _ENTRIES[name]
    path = options.pop("path", None) if name in _OWN_PATH else None
    allowed = reader_options(name)
    wrong = sorted(set(options) - set(allowed))
    if wrong:
        raise ValueError(f"{name} has no option {wrong[0]!r}; its options are: {', '.join(allowed) or 'none'}")
    decoding = {f.name: options.pop(f.name) for f in fields(Decoder) if f.name in options}
    if decoding:
        options["decoder"] = replace(inspect.signature(entry.read).parameters["decoder"].default, **decoding)
    if name in _FILELESS:
        return entry.read(name=name, **options)
    if options.get("lists"):
        entry = replace(entry, needs=(tuple(options["lists"]),))
    return entry.read(_found(name, entry, root, path), name=name, **options)


def locate(name: str, root: str | os.PathLike[str] | None = None) -> Path | None:
    """The folder that `load` reads the data set from, without reading it; None for one that needs no files.

    FileNotFoundError, as from `load`, if it is not there.
    """
    name = canonical(name)
    return None if name in _FILELESS else _found(name, _ENTRIES[name], root, None)


def _found(name: str, entry: _Entry, root: str | os.PathLike[str] | None, path: str | None) -> Path:
    """The folder (or file) of the data set, with all it needs; otherwise an error that says what to do."""
    given = root if root is not None else os.environ.get(ROOT_VARIABLE) or None
    if given is None:
        raise FileNotFoundError(
            f"{name} is read from a data folder, and none was named: give it (carm run --root DIR, carm paper "
            f"--data DIR, in Python root=DIR), or "
            f"set {ROOT_VARIABLE}. {entry.get}"
        )
    base = Path(given).expanduser()
    if name in _OWN_PATH:
        places = [base if path is None else base / path]
    else:
        places = [*(base / folder for folder in entry.folders), base]
    partly: dict[Path, list[str]] = {}
    for place in places:
        if name == "npz" and place.is_file():
            return place
        for patterns in entry.needs if place.is_dir() else ():
            lack = [pattern for pattern in patterns if not _present(place, pattern)]
            if not lack:
                return place
            if len(lack) < len(patterns) or place != base:
                partly[place] = min(partly.get(place, lack), lack, key=len)
    wanted = " or ".join(" ".join(patterns) for patterns in entry.needs) or "an .npz file"
    message = f"{name} was not found. Looked for {wanted} in {', '.join(map(str, places))}."
    for place, lack in partly.items():
        message += f" {place} is there, but lacks {' '.join(lack)}."
    if not base.exists():
        message += f" {base} does not exist."
    raise FileNotFoundError(
        f"{message} {entry.get}. The data folder is named by carm run --root DIR, carm paper --data DIR, in Python "
        f"root=DIR, or by {ROOT_VARIABLE}"
    )


def _present(place: Path, pattern: str) -> bool:
    return (place / pattern).exists() or (not Path(pattern).is_absolute() and any(place.glob(pattern)))
