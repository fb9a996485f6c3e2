"""Readers of data sets that come as arrays: CIFAR, MNIST and its relatives, Mini-ImageNet caches, `.npz` files, digits.

Each takes the folder (or file) that `load` found, and returns a `Source` whose images are uint8 arrays `(n, c, h, w)`.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from carm.data.source import ArraySplit, Source, hold_out
from carm.data.unpickle import read_pickle

# -- CIFAR -----------------------------------------------------------------------------------------------------------


def _cifar_split(files: Iterable[Path], key: str) -> ArraySplit:
    """Rows of 3072 bytes, red plane first, with labels under `key`. A file may hold any number of rows."""
    images, labels = [], []
    for path in files:
        content = read_pickle(path)
        data, y = content.get("data"), content.get(key)
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
            raise ValueError(f"{path} holds no uint8 array 'data' with rows of 3072 bytes; it is not a CIFAR batch")
        if y is None or len(y) != len(data):
            raise ValueError(f"{path} holds {len(data)} images but {len(y or ())} labels under {key!r}")
        images.append(data.reshape(-1, 3, 32, 32))
        labels.append(np.asarray(y, np.int64))
    return ArraySplit(np.concatenate(images), np.concatenate(labels))


def _cifar_names(path: Path, key: str) -> tuple[str, ...]:
    names = read_pickle(path).get(key)
    if not names:
        raise ValueError(f"{path} holds no class names under {key!r}; it is not a CIFAR meta file")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def cifar10(folder: Path, name: str) -> Source:
    """CIFAR-10 as published for Python: five training batches, one test batch, `batches.meta`."""
    train = _cifar_split([folder / f"data_batch_{i}" for i in range(1, 6)], "labels")
    test = _cifar_split([folder / "test_batch"], "labels")
    return Source(name, _cifar_names(folder / "batches.meta", "label_names"), train, test)


def cifar100(folder: Path, name: str, *, labels: Literal["fine", "coarse"] = "fine") -> Source:
    """CIFAR-100 as published for Python, with its 100 fine labels or its 20 coarse ones."""
    if labels not in ("fine", "coarse"):
        raise ValueError(f"labels is {labels!r}; CIFAR-100 has 'fine' labels (100 classes) and 'coarse' ones (20)")
    train, test = (_cifar_split([folder / part], f"{labels}_labels") for part in ("train", "test"))
    return Source(name, _cifar_names(folder / "meta", f"{labels}_label_names"), train, test)


# -- MNIST -----------------------------------------------------------------------------------------------------------


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The bytes array in an idx file, plain or compressed (`.gz`).

    The header is two zero bytes, a type code (8: bytes), the number of dimensions, and each dimension as a big-endian
    int32.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged or cut short ({error}); get it again") from error
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or len(raw) < 4 + 4 * raw[3]:
        raise ValueError(
            f"{path} starts with {raw[:4].hex(' ') or 'nothing'}; an idx file of bytes starts with 00 00 08"
        )
    start = 4 + 4 * raw[3]
    shape = tuple(int(n) for n in np.frombuffer(raw, ">u4", raw[3], 4))
    wanted = int(np.prod(shape, dtype=object))
    if len(raw) - start != wanted:
        raise ValueError(f"{path} is damaged: its header promises {wanted} bytes {shape}, it holds {len(raw) - start}")
    return np.array(np.frombuffer(raw, np.uint8, wanted, start)).reshape(shape)  # a copy: torch wants it writable


def _one_of(folder: Path, pattern: str) -> Path:
    return min(folder.glob(pattern))


def mnist(folder: Path, name: str, *, classes: tuple[str, ...] = tuple("0123456789")) -> Source:
    """MNIST and the data sets published in its format: four idx files."""
    splits = []
    for part in ("train", "t10k"):
        paths = [_one_of(folder, f"{part}-{kind}-ubyte*") for kind in ("images?idx3", "labels?idx1")]
        x, y = (read_idx(path) for path in paths)
        if x.ndim != 3 or y.ndim != 1 or len(x) != len(y):
            raise ValueError(f"{paths[0]} has shape {x.shape} and {paths[1]} {y.shape}; they do not belong together")
        splits.append(ArraySplit(x[:, None], y.astype(np.int64)))
    return Source(name, classes, *splits)


FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


# -- Mini-ImageNet ---------------------------------------------------------------------------------------------------


def mini_imagenet_cache(folder: Path, name: str, *, test_share: float = 1 / 6) -> Source:
    """Mini-ImageNet from its three cache pickles.

    They were made for few-shot learning and share out the *classes* (64, 16, 20). Continual learning wants all 100
    classes in both splits: of the 600 images of a class, the last sixth is for testing.
    """
    images: tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]] = [], []
    labels: tuple[list[str], list[str]] = [], []
    for part in ("train", "val", "test"):
        path = _one_of(folder, f"mini-imagenet-cache-{part}.p*")
        x, y = _mini_part(path)
        shared = set(y) & {*labels[0], *labels[1]}
        if shared:
            raise ValueError(f"{path}: the classes {sorted(shared)[:5]} are in another file too; get the files again")
        numbers = np.unique(np.asarray(y), return_inverse=True)[1].astype(np.int64)
        for split, index in enumerate(hold_out(numbers, test_share, seed=None)):
            images[split].append(x[index])
            labels[split].extend(y[i] for i in index)
    classes = tuple(sorted(set(labels[0])))
    number = {label: i for i, label in enumerate(classes)}
    splits = [
        ArraySplit(np.concatenate(parts).transpose(0, 3, 1, 2), np.asarray([number[label] for label in y], np.int64))
        for parts, y in zip(images, labels, strict=True)
    ]
    return Source(name, classes, *splits)


def _mini_part(path: Path) -> tuple[NDArray[np.uint8], list[str]]:
    """Images `(n, h, w, c)` and the class of each."""
    content = read_pickle(path)
    x, members = content.get("image_data"), content.get("class_dict")
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 4 or not isinstance(members, dict):
        raise ValueError(
            f"{path} holds no uint8 array 'image_data' (n, h, w, c) with a 'class_dict'; it is another format"
        )
    y = [""] * len(x)
    for label, rows in members.items():
        for row in rows:
            if not 0 <= row < len(x) or y[row]:
                raise ValueError(f"{path}: class {label!r} names image {row}, which is not there or of another class")
            y[row] = label
    if "" in y:
        raise ValueError(f"{path}: image {y.index('')} is of no class in 'class_dict'; get the file again")
    return x, y


# -- npz -------------------------------------------------------------------------------------------------------------

_NPZ_NAMES = ("x_{0}", "{0}_x", "X_{0}", "{0}_images"), ("y_{0}", "{0}_y", "Y_{0}", "{0}_labels")


def _npz_array(content: dict[str, NDArray[Any]], patterns: tuple[str, ...], part: str) -> NDArray[Any] | None:
    return next((content[name] for name in (p.format(part) for p in patterns) if name in content), None)


def _pixels(x: NDArray[Any], layout: str | None, where: str) -> NDArray[np.uint8]:
    if x.dtype != np.uint8:
        raise ValueError(f"{where} is of type {x.dtype}; images must be uint8, 0 to 255")
    if x.ndim == 3:
        return x[:, None]
    if x.ndim != 4:
        raise ValueError(f"{where} has shape {x.shape}; images must be (n, h, w), (n, c, h, w) or (n, h, w, c)")
    first, last = x.shape[1] in (1, 3), x.shape[3] in (1, 3)
    if layout is None and first == last:
        raise ValueError(
            f"{where} has shape {x.shape}, which does not show where the channels are: give layout='nchw' or 'nhwc'"
        )
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)) if layout == "nhwc" or (layout is None and last) else x


def npz(
    path: Path,
    name: str,
    *,
    layout: Literal["nchw", "nhwc"] | None = None,
    test_share: float = 0.2,
    seed: int = 0,
) -> Source:
    """Arrays in an `.npz` file: `x_train`, `y_train`, `x_test`, `y_test`, or just `x` and `y`.

    Of the latter `test_share` is held out. `train_images` and `train_labels` are understood too, and `classes`, an
    array of names. Labels may be any integers or texts; they are numbered in ascending order.
    """
    if layout not in (None, "nchw", "nhwc"):
        raise ValueError(f"layout is {layout!r}; it must be 'nchw', 'nhwc' or None to tell by the shape")
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            content: dict[str, NDArray[Any]] = {key: file[key] for key in file.files}
    except (ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} was not read: {error}. It must be an .npz file of plain arrays, without Python objects"
        ) from error
    parts: dict[str, tuple[NDArray[np.uint8], NDArray[Any]]] = {}
    for part in ("train", "test"):
        x, y = (_npz_array(content, patterns, part) for patterns in _NPZ_NAMES)
        if x is not None and y is not None:
            parts[part] = _pixels(x, layout, f"{path}: the {part} array"), y.reshape(-1)
    if not parts and "x" in content and "y" in content:
        x, y = _pixels(content["x"], layout, f"{path}: x"), content["y"].reshape(-1)
        kept, held = hold_out(y, test_share, seed=seed)
        parts = {"train": (x[kept], y[kept]), "test": (x[held], y[held])}
    if len(parts) != 2:
        raise ValueError(f"{path} holds {sorted(content)}; it needs x_train, y_train, x_test and y_test, or x and y")
    values = np.unique(parts["train"][1])
    if values.dtype.kind not in "iuU":
        raise ValueError(f"{path}: the labels are of type {values.dtype}; they must be integers or texts")
    names = tuple(str(label) for label in content.get("classes", values))
    if len(names) != len(values):
        raise ValueError(f"{path}: 'classes' has {len(names)} names, but y_train has {len(values)} different labels")
    strange = np.setdiff1d(parts["test"][1], values)
    if len(strange):
        raise ValueError(f"{path}: the test labels {strange[:5].tolist()} do not occur in training")
    return Source(name, names, *(ArraySplit(x, np.searchsorted(values, y)) for x, y in parts.values()))


# -- digits ----------------------------------------------------------------------------------------------------------


def digits(name: str, *, test_share: float = 0.2, seed: int = 0) -> Source:
    """The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn: real images without a download."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            f"the digits need scikit-learn, which cannot be imported ({error}): pip install 'carousel-memory[demo]'"
        ) from error
    bunch = load_digits()
    x = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[:, None]  # published as 0 to 16
    y = bunch.target.astype(np.int64)
    train, test = hold_out(y, test_share, seed=seed)
    return Source(name, tuple("0123456789"), ArraySplit(x[train], y[train]), ArraySplit(x[test], y[test]))
