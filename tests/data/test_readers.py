from __future__ import annotations

import builtins
import gzip
import os
import pickle
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from carm.data import Source, load, names
from carm.data.unpickle import read_pickle

Tree = Callable[..., Path]


# -- pickles --------------------------------------------------------------------------------------------------------


class Attack:
    """Pickles to a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def written(path: Path, content: Any, protocol: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol))
    return path


@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles_are_read(tmp_path: Path, protocol: int) -> None:
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    content = {
        b"data": array,
        "wide": array.astype(">i4"),
        "fortran": np.asfortranarray(array),
        "labels": [1, 2, np.int64(3)],
        "inner": OrderedDict(a=array),
    }
    out = read_pickle(written(tmp_path / "p", content, protocol))
    assert np.array_equal(out["data"], array)
    assert out["data"].dtype == np.uint8
    assert np.array_equal(out["wide"], array)
    assert np.array_equal(out["fortran"], array)
    assert out["labels"] == [1, 2, 3]
    assert np.array_equal(out["inner"]["a"], array)


def test_pickles_of_old_numpy_and_python_2_are_read(tmp_path: Path) -> None:
    """As in the published files: short byte strings, and the module names of numpy 1."""
    raw = b"".join(
        [
            b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R",
            b"(K\x01K\x02K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89U\x04\x01\x02\x03\xfftbs.",
        ]
    )
    (tmp_path / "p").write_bytes(raw)
    assert read_pickle(tmp_path / "p")["data"].tolist() == [[1, 2], [3, 255]]


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "named"),
    [(os.system, "system"), (builtins.eval, "eval"), (builtins.getattr, "getattr"), (np.load, "load")],
)
def test_a_pickle_cannot_run_code(tmp_path: Path, protocol: int, function: Any, named: str) -> None:
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w')"
    argument = f'{sys.executable} -c "{code}"' if function is os.system else code
    path = written(tmp_path / "p", {"data": [Attack(function, argument)]}, protocol)
    with pytest.raises(ValueError, match=rf"asks for .*{named}"):
        read_pickle(path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"}S'a'\nc__main__\nx\ns.", id="global"),
        pytest.param(b"\x80\x04}S'a'\n\x8c\x05numpy\x8c\x11ndarray.__class__\x93s.", id="dotted name"),
        pytest.param(b"}S'a'\ncnumpy\nndarray\n}S'x'\nK\x01sbs.", id="attribute of a class"),
        pytest.param(b"}S'a'\ncnumpy\nndarray\nN}S'x'\nK\x01s\x86bs.", id="slot of a class"),
        pytest.param(b"}S'a'\nc_codecs\nencode\nN}S'x'\nK\x01s\x86bs.", id="slot of a function"),
        pytest.param(b"}S'a'\nc_codecs\nencode\n(Vabc\nVrot13\ntRs.", id="codec"),
        pytest.param(b"}S'a'\ncnumpy\ndtype\n(VO8\ntRs.", id="objects"),
        pytest.param(b"}S'a'\ncnumpy\ndtype\n(VV16\ntRs.", id="void"),
        pytest.param(b"(dp0\nS'a'\nP1\ns.", id="persistent id"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\x80\x02}U\x04da", id="cut short"),
        pytest.param(b"hello", id="no pickle"),
        pytest.param(b"]q\x00h\x00a.", id="a list that contains itself"),
        pytest.param(b"}q\x00K\x01h\x00s.", id="a dictionary that contains itself"),
        pytest.param(b"K\x01.", id="a number"),
    ],
)
def test_broken_and_malicious_pickles_are_refused(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "p").write_bytes(raw)
    with pytest.raises(ValueError, match=str(tmp_path / "p")):
        read_pickle(tmp_path / "p")


def test_an_array_whose_header_lies_is_refused(tmp_path: Path) -> None:
    good = pickle.dumps({"data": np.zeros((5, 7), np.uint8)}, 2)
    shape = b"K\x05K\x07\x86"
    assert good.count(shape) == 1
    (tmp_path / "p").write_bytes(good.replace(shape, b"K\x05K\x63\x86"))
    with pytest.raises(ValueError, match="was not read"):
        read_pickle(tmp_path / "p")


# -- CIFAR ----------------------------------------------------------------------------------------------------------


def cifar10_files(root: Path, rows: int = 4) -> np.ndarray[Any, Any]:
    folder = root / "cifar-10-batches-py"
    data = np.random.default_rng(0).integers(0, 256, (6 * rows, 3072), np.uint8)
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        part = slice(i * rows, (i + 1) * rows)
        written(folder / name, {b"data": data[part], b"labels": [(i + k) % 10 for k in range(rows)]})
    written(folder / "batches.meta", {b"label_names": [b"c%d" % k for k in range(10)]})
    return data


def test_cifar_10(tmp_path: Path) -> None:
    data = cifar10_files(tmp_path)
    source = load("cifar-10", tmp_path)
    assert source.name == "cifar-10"
    assert source.shape == (3, 32, 32)
    assert (len(source.train), len(source.test)) == (20, 4)
    assert source.classes == tuple(f"c{k}" for k in range(10))
    assert np.array_equal(source.train.fetch(range(20)).array.reshape(20, -1), data[:20])
    assert source.train.y[4:8].tolist() == [1, 2, 3, 4]
    # a row is the red plane, then green, then blue, each row by row
    assert source.test.fetch([1]).x[0][2, 5, 7] == data[21, 2 * 1024 + 5 * 32 + 7]


def test_cifar_100_fine_and_coarse(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    for name in ("train", "test"):
        data = np.zeros((2, 3072), np.uint8)
        written(folder / name, {b"data": data, b"fine_labels": [99, 3], b"coarse_labels": [19, 0]})
    written(
        folder / "meta",
        {b"fine_label_names": [b"f%d" % k for k in range(100)], b"coarse_label_names": [b"g%d" % k for k in range(20)]},
    )
    assert load("cifar-100", tmp_path).train.y.tolist() == [99, 3]
    coarse = load("cifar-100", tmp_path, labels="coarse")
    assert coarse.train.y.tolist() == [19, 0]
    assert len(coarse.classes) == 20
    with pytest.raises(ValueError, match="labels is 'middle'"):
        load("cifar-100", tmp_path, labels="middle")


def test_a_malicious_cifar_file_does_not_run(tmp_path: Path) -> None:
    cifar10_files(tmp_path)
    mark = tmp_path / "ran"
    written(tmp_path / "cifar-10-batches-py" / "data_batch_3", {b"data": Attack(os.mkdir, str(mark)), b"labels": []})
    with pytest.raises(ValueError, match=r"data_batch_3 was not read: asks for .*mkdir"):
        load("cifar-10", tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        {b"data": np.zeros((2, 3000), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]},
        {b"data": np.zeros((2, 3072), np.uint8)},
        {b"labels": [0]},
    ],
)
def test_cifar_files_with_other_content_are_named(tmp_path: Path, content: dict[bytes, Any]) -> None:
    cifar10_files(tmp_path)
    written(tmp_path / "cifar-10-batches-py" / "test_batch", content)
    with pytest.raises(ValueError, match="test_batch holds"):
        load("cifar-10", tmp_path)


# -- idx ------------------------------------------------------------------------------------------------------------


def idx(array: np.ndarray[Any, Any]) -> bytes:
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def idx_files(folder: Path, compress: bool = False, dot: bool = False) -> np.ndarray[Any, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    x = np.random.default_rng(0).integers(0, 256, (5, 28, 28))
    for part, n in (("train", 5), ("t10k", 2)):
        for kind, array in (("images-idx3", x[:n]), ("labels-idx1", np.arange(n) % 10)):
            raw = idx(array)
            name = f"{part}-{kind.replace('-', '.') if dot else kind}-ubyte"
            (folder / (name + ".gz" * compress)).write_bytes(gzip.compress(raw) if compress else raw)
    return x


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("dot", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"), [("mnist", "mnist"), ("mnist", "MNIST/raw"), ("fashion-mnist", "fashion-mnist")]
)
def test_idx_files(tmp_path: Path, compress: bool, dot: bool, name: str, folder: str) -> None:
    x = idx_files(tmp_path / folder, compress, dot)
    source = load(name, tmp_path)
    assert source.shape == (1, 28, 28)
    assert np.array_equal(source.train.fetch(range(5)).array[:, 0], x)
    assert source.test.y.tolist() == [0, 1]
    assert source.classes[1] == {"mnist": "1", "fashion-mnist": "Trouser"}[name]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda raw: raw[:-1], "is damaged: its header promises 5 bytes"),
        (lambda raw: raw + b"x", "is damaged"),
        (lambda raw: b"\0\0\x0d" + raw[3:], "starts with 00 00 0d 01"),
        (lambda raw: b"", "starts with nothing"),
        (lambda raw: b"\0\0\x08\xff", "starts with"),
        (lambda raw: b"\0\0\x08\x03" + b"\xff" * 12, "is damaged"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, damage: Callable[[bytes], bytes], says: str) -> None:
    idx_files(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{path} {says}"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"plain" + raw, lambda raw: raw[:-9] + b"x" * 9]
)
def test_damaged_compressed_files_are_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    idx_files(tmp_path / "mnist", compress=True)
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=f"{path} is damaged or cut short"):
        load("mnist", tmp_path)


def test_images_and_labels_of_different_files_are_refused(tmp_path: Path) -> None:
    idx_files(tmp_path / "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(idx(np.arange(4)))
    with pytest.raises(ValueError, match="do not belong together"):
        load("mnist", tmp_path)


# -- image trees ----------------------------------------------------------------------------------------------------


def first_pixels(source: Source) -> list[int]:
    """The red value of each training image, by which `make_tree` numbers them."""
    return [int(source.train.fetch([i]).x[0][0, 0, 0]) for i in range(len(source.train))]


@pytest.mark.parametrize("held", ["test", "val"])
def test_image_folder(make_tree: Tree, held: str) -> None:
    order = [3, 0, 4, 1, 2]
    files = ["train/b/0.png", *(f"train/a/{i}.JPEG" for i in order), f"{held}/a/x.png", f"{held}/b/y.png"]
    root = make_tree(files)
    (root / "train" / "a" / "notes.txt").write_text("no image")
    (root / "train" / "a" / "._0.png").write_bytes(b"left behind by another system")
    (root / "train" / ".hidden").mkdir()
    source = load("folder", root)
    assert source.classes == ("a", "b")
    assert source.train.y.tolist() == [0] * 5 + [1]
    assert first_pixels(source) == [1 + order.index(i) for i in range(5)] + [0]  # sorted by name
    assert source.test.y.tolist() == [0, 1]
    assert source.shape is None
    assert load("folder", root, resize=8, crop=8).shape == (3, 8, 8)
    assert load("folder", root.parent, path="tree").classes == ("a", "b")


def test_image_folder_without_a_test_part_is_parted(make_tree: Tree) -> None:
    root = make_tree([f"{c}/{i}.png" for c in "ab" for i in range(10)] + ["c/0.png"])
    source = load("folder", root, test_share=0.3)
    assert np.bincount(source.train.y).tolist() == [7, 7, 1]
    assert np.bincount(source.test.y).tolist() == [3, 3]
    assert not set(source.train.names) & set(source.test.names)  # type: ignore[attr-defined]
    again, other = load("folder", root, test_share=0.3), load("folder", root, test_share=0.3, seed=1)
    assert source.test.names == again.test.names != other.test.names  # type: ignore[attr-defined]


def test_image_folder_with_some_classes(make_tree: Tree, tmp_path: Path) -> None:
    root = make_tree([f"{part}/{c}/0.png" for part in ("train", "val") for c in "abc"])
    assert load("folder", root, classes=["c", "a"]).classes == ("c", "a")
    (tmp_path / "list.txt").write_text("b first\n\nc second\n")
    assert load("folder", root, classes=tmp_path / "list.txt").classes == ("b", "c")
    with pytest.raises(ValueError, match=r"classes names \['z'\], for which there is no folder"):
        load("folder", root, classes=["a", "z"])


def test_a_class_named_twice_is_refused(make_tree: Tree, tmp_path: Path) -> None:
    root = make_tree([f"{part}/{c}/0.png" for part in ("train", "val") for c in "abc"])
    with pytest.raises(ValueError, match="classes names 'a' twice"):
        load("folder", root, classes=["b", "a", "c", "a"])
    (tmp_path / "list.txt").write_text("b first\nb again\n")
    with pytest.raises(ValueError, match="classes names 'b' twice"):
        load("folder", root, classes=tmp_path / "list.txt")


def test_hidden_folders_hold_no_images(make_tree: Tree) -> None:
    root = make_tree(["a/0.png", "a/.ipynb_checkpoints/0.png", "a/more/1.png", "a/more/.trash/deep/2.png", "b/0.png"])
    source = load("folder", root)
    files = {*source.train.names, *source.test.names}  # type: ignore[attr-defined]
    assert files == {"a/0.png", "a/more/1.png", "b/0.png"}


def test_incomplete_image_folders(make_tree: Tree, tmp_path: Path) -> None:
    root = make_tree(["train/a/0.png", "train/b/0.png", "val/a/0.png"])
    with pytest.raises(FileNotFoundError, match=r"val/b is missing .*classes=\[\.\.\.\]"):
        load("folder", root)
    (root / "val" / "b").mkdir()
    with pytest.raises(FileNotFoundError, match="val/b holds no images"):
        load("folder", root)
    root = make_tree(["train/a/0.png", "val/a/0.png", "val/z/0.png"], "second")
    with pytest.raises(FileNotFoundError, match=r"val has the classes \['z'\]"):
        load("folder", root)
    root = make_tree(["train/a/0.png"], "third")
    with pytest.raises(FileNotFoundError, match="no test/<class>/ or val/<class>/ beside it"):
        load("folder", root)
    with pytest.raises(FileNotFoundError, match=r"does not exist.*path="):
        load("folder", tmp_path / "none")


@pytest.mark.parametrize("sorted_val", [False, True])
def test_tiny_imagenet(make_tree: Tree, sorted_val: bool) -> None:
    ids = [f"n{i:04d}" for i in range(200)]
    val = [f"val/{wnid}/images/v.JPEG" if sorted_val else f"val/images/val_{i}.JPEG" for i, wnid in enumerate(ids)]
    root = make_tree([f"train/{wnid}/images/{wnid}_0.JPEG" for wnid in ids] + val, "tiny-imagenet-200", (64, 64))
    (root / "wnids.txt").write_text("\n".join(reversed(ids)))
    (root / "words.txt").write_text("n0001\tgoldfish, Carassius auratus\nn9999\tother\n")
    if not sorted_val:
        lines = [f"val_{i}.JPEG\t{wnid}\t0\t0\t62\t62" for i, wnid in enumerate(ids)]
        (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    source = load("tiny-imagenet", root.parent)
    assert len(source.classes) == 200
    assert source.classes[:2] == ("n0000", "goldfish")
    assert source.train.y.tolist() == source.test.y.tolist() == list(range(200))
    assert source.train.fetch([0, 1]).array.shape == (2, 3, 64, 64)
    (root / "train" / "n0007" / "images" / "n0007_0.JPEG").unlink()
    with pytest.raises(FileNotFoundError, match="train/n0007 holds no images"):
        load("tiny-imagenet", root.parent)


def test_tiny_imagenet_with_an_unknown_class_in_the_annotations(make_tree: Tree) -> None:
    root = make_tree(["train/n0/images/a.png", "val/images/v.png"], "tiny-imagenet-200")
    (root / "wnids.txt").write_text("n0")
    (root / "val" / "val_annotations.txt").write_text("v.png\tn1\t0\t0\t1\t1\n")
    with pytest.raises(ValueError, match="names no class of wnids"):
        load("tiny-imagenet", root)


@pytest.mark.parametrize("left", [(), (".DS_Store", "._v0.png")])
def test_tiny_imagenet_whose_validation_images_were_sorted(make_tree: Tree, left: tuple[str, ...]) -> None:
    """The annotations and a folder without images may stay behind."""
    ids = ("n0", "n1")
    root = make_tree([f"{part}/{wnid}/{part}.png" for part in ("train", "val") for wnid in ids], "tiny-imagenet-200")
    (root / "wnids.txt").write_text("\n".join(ids))
    (root / "val" / "val_annotations.txt").write_text("v0.png\tn0\t0\t0\t1\t1\nv1.png\tn1\t0\t0\t1\t1\n")
    (root / "val" / "images").mkdir()
    for name in left:
        (root / "val" / "images" / name).write_bytes(b"left behind by another system")
    source = load("tiny-imagenet", root)
    assert source.test.names == ("val/n0/val.png", "val/n1/val.png")  # type: ignore[attr-defined]
    assert source.test.y.tolist() == [0, 1]


def test_tiny_imagenet_names_validation_images_that_are_missing(make_tree: Tree) -> None:
    root = make_tree(["train/n0/images/a.png", "val/images/v1.png"], "tiny-imagenet-200")
    (root / "wnids.txt").write_text("n0")
    lines = [f"v{i}.png\tn0\t0\t0\t1\t1\n" for i in range(3)]
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    with pytest.raises(FileNotFoundError, match=r"val/images lacks 2 of the 3 images.*such as v0\.png"):
        load("tiny-imagenet", root)


@pytest.mark.parametrize("classes", [100, 1000])
def test_imagenet_trees(make_tree: Tree, classes: int) -> None:
    paths = [f"{part}/n{i:08d}/x.JPEG" for part in ("train", "val") for i in range(classes)]
    root = make_tree(paths, f"imagenet-{classes}", (2, 2))
    source = load(f"imagenet-{classes}", root.parent)
    assert source.name == f"imagenet-{classes}"
    assert len(source.classes) == len(source.train) == len(source.test) == classes
    last = root / "val" / f"n{classes - 1:08d}" / "x.JPEG"
    last.unlink()
    with pytest.raises(FileNotFoundError, match=f"{last.parent} holds no images"):
        load(f"imagenet-{classes}", root)


def test_imagenet_with_too_few_classes(make_tree: Tree) -> None:
    root = make_tree(["train/n1/x.JPEG", "val/n1/x.JPEG"], "imagenet-100")
    with pytest.raises(FileNotFoundError, match="has 1 class folders where 100 were expected"):
        load("imagenet-100", root.parent)
    assert load("imagenet-100", root.parent, classes=["n1"]).classes == ("n1",)


def test_a_test_folder_is_not_imagenets_test_set(make_tree: Tree) -> None:
    root = make_tree([f"{part}/n1/{part}.JPEG" for part in ("train", "test", "val")], "imagenet-100")
    source = load("imagenet-100", root, classes=["n1"])
    assert source.test.names == ("val/n1/val.JPEG",)  # type: ignore[attr-defined]
    (root / "val" / "n1").rename(root / "n1")
    (root / "val" / "0.JPEG").write_bytes(b"not sorted into folders")
    with pytest.raises(FileNotFoundError, match="has a folder train, but no val/<class>/ beside it"):
        load("imagenet-100", root, classes=["n1"])


@pytest.mark.parametrize("prefixed", [False, True])
@pytest.mark.parametrize("suffix", ["", "_100"])
def test_imagenet_list_files(make_tree: Tree, prefixed: bool, suffix: str) -> None:
    train = [f"n{i}/a b.JPEG" for i in range(100)]  # a blank in a name is no separator
    val = [f"ILSVRC2012_val_{i}.JPEG" for i in range(100)]  # not sorted into folders
    root = make_tree([f"train/{p}" for p in train] + [f"val/{p}" for p in val], "imagenet-100", (2, 2))
    for part, paths in (("train", train), ("val", val)):
        lines = [f"{part}/{path} {5 * i}" if prefixed else f"{path} {5 * i}" for i, path in enumerate(paths)]
        (root / f"{part}{suffix}.txt").write_text("\n".join(lines) + "\n\n")
    source = load("imagenet-100", root.parent)
    assert source.train.y.tolist() == source.test.y.tolist() == list(range(100))
    assert source.classes[3] == "n3"
    assert len(source.test.fetch([99])) == 1


def test_list_files_by_name_and_with_errors(make_tree: Tree) -> None:
    root = make_tree([f"images/{i}.png" for i in range(100)], "imagenet-100", (2, 2))
    (root / "a.txt").write_text("".join(f"images/{i}.png {i}\n" for i in range(100)))
    (root / "b.txt").write_text("images/5.png 5\n")
    source = load("imagenet-100", root, lists=("a.txt", "b.txt"))
    assert source.classes[5] == "5"  # one folder for all: no names
    assert source.test.y.tolist() == [5]
    for text, says in (
        ("images/1.png\n", "line 1, is 'images/1.png'"),
        ("images/1.png 0\nimages/2.png x\n", "line 2"),
        ("", "is empty"),
        ("images/1.png 100\n", r"has the labels \[100\]"),
    ):
        (root / "b.txt").write_text(text)
        with pytest.raises(ValueError, match=says):
            load("imagenet-100", root, lists=("a.txt", "b.txt"))
    (root / "b.txt").write_text("nowhere.png 1\n")
    with pytest.raises(FileNotFoundError, match=r"names nowhere\.png, which is neither in"):
        load("imagenet-100", root, lists=("a.txt", "b.txt"))
    with pytest.raises(FileNotFoundError, match=r"lacks c\.txt"):
        load("imagenet-100", root, lists=("a.txt", "c.txt"))


# -- Mini-ImageNet --------------------------------------------------------------------------------------------------

MINI = {"train": range(64), "val": range(64, 80), "test": range(80, 100)}


def test_mini_imagenet_cache(tmp_path: Path) -> None:
    for part, classes in MINI.items():
        n = 6 * len(classes)
        x = np.zeros((n, 84, 84, 3), np.uint8)
        members: dict[str, list[int]] = {}
        for row in range(n):  # classes interleaved, so that rows and class_dict both matter
            label = classes[row % len(classes)]
            members.setdefault(f"n{label:03d}", []).append(row)
            x[row, :, :, 0], x[row, 0, 5, 2] = label, row // len(classes)
        written(
            tmp_path / "mini-imagenet" / f"mini-imagenet-cache-{part}.pkl", {"image_data": x, "class_dict": members}
        )
    source = load("mini-imagenet", tmp_path)
    assert source.classes == tuple(f"n{i:03d}" for i in range(100))
    assert source.shape == (3, 84, 84)
    assert np.bincount(source.train.y).tolist() == [5] * 100
    assert np.bincount(source.test.y).tolist() == [1] * 100
    batch = source.train.fetch(range(0, 500, 7))
    assert np.array_equal(batch.array[:, 0, 3, 3], batch.y)
    assert set(batch.array[:, 2, 0, 5].tolist()) == {0, 1, 2, 3, 4}
    assert (source.test.fetch(range(100)).array[:, 2, 0, 5] == 5).all()  # the last of each class
    assert batch.array.flags.c_contiguous


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"data": [1]}, "it is another format"),
        ({"image_data": np.zeros((2, 4, 4, 3), np.uint8), "class_dict": {"a": [0, 2]}}, "names image 2"),
        ({"image_data": np.zeros((2, 4, 4, 3), np.uint8), "class_dict": {"a": [0], "b": [0]}}, "names image 0"),
        ({"image_data": np.zeros((2, 4, 4, 3), np.uint8), "class_dict": {"a": [0]}}, "image 1 is of no class"),
        ({"image_data": Attack(os.getcwd), "class_dict": {}}, "asks for .*getcwd"),
    ],
)
def test_bad_mini_imagenet_caches(tmp_path: Path, content: dict[str, Any], says: str) -> None:
    for part in MINI:
        written(tmp_path / f"mini-imagenet-cache-{part}.pkl", content)
    with pytest.raises(ValueError, match=says):
        load("mini-imagenet", tmp_path)


def test_mini_imagenet_with_csv_files(make_tree: Tree) -> None:
    root = make_tree([f"images/n{c:03d}_{i}.jpg" for c in range(100) for i in range(6)], "mini-imagenet", (4, 4))
    for part, classes in MINI.items():
        lines = ["filename,label", *(f"n{c:03d}_{i}.jpg,n{c:03d}" for c in classes for i in range(6))]
        (root / f"{part}.csv").write_text("\n".join(lines))
    source = load("mini-imagenet", root.parent)
    assert len(source.classes) == 100
    assert np.bincount(source.train.y).tolist() == [5] * 100
    assert source.test.names[99] == "images/n099_5.jpg"  # type: ignore[attr-defined]
    assert source.test.fetch([0]).array.shape == (1, 3, 84, 84)
    (root / "val.csv").write_text("file,class\n")
    with pytest.raises(ValueError, match=r"val\.csv has the columns \['file', 'class'\]"):
        load("mini-imagenet", root.parent)


@pytest.mark.parametrize("row", ["b.jpg", "b.jpg,", ",n0"])
def test_rows_of_csv_files_without_label_or_name_are_named(make_tree: Tree, row: str) -> None:
    root = make_tree(["images/a.jpg"], "mini-imagenet")
    for part in MINI:
        (root / f"{part}.csv").write_text("filename,label\na.jpg,n0\n")
    (root / "val.csv").write_text(f"filename,label\n\na.jpg,n0\n{row}\n")  # an empty line is none, and counts
    with pytest.raises(ValueError, match=r"val\.csv, line 4, has no filename or no label"):
        load("mini-imagenet", root)


def test_arrays_of_mini_imagenet_are_not_decoded(tmp_path: Path) -> None:
    x = np.zeros((2, 84, 84, 3), np.uint8)
    for part in MINI:
        written(tmp_path / f"mini-imagenet-cache-{part}.pkl", {"image_data": x, "class_dict": {part: [0, 1]}})
    for option in ({"resize": 32, "crop": 32}, {"crop": 64}, {"channels": 1}):
        with pytest.raises(ValueError, match="holds the cache pickles, with arrays of 84 x 84 pixels"):
            load("mini-imagenet", tmp_path, **option)
    assert load("mini-imagenet", tmp_path, threads=2, resize=84, crop=84).shape == (3, 84, 84)  # as they are


# -- npz ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", ["x_{} y_{}", "{}_images {}_labels", "{}_x {}_y"])
@pytest.mark.parametrize(("shape", "expected"), [((8, 9), (1, 8, 9)), ((3, 8, 9), (3, 8, 9)), ((8, 9, 3), (3, 8, 9))])
def test_npz(tmp_path: Path, rng: np.random.Generator, keys: str, shape: tuple[int, ...], expected: Any) -> None:
    x = rng.integers(0, 256, (6, *shape), np.uint8)
    y = np.array([[10], [20], [10], [30], [30], [20]])
    content: dict[str, Any] = {}
    for part, cut in (("train", slice(0, 6)), ("test", slice(0, 3))):
        for key, array in zip(keys.format(part, part).split(), (x, y), strict=True):
            content[key] = array[cut]
    np.savez(tmp_path / "mine.npz", **content)
    source = load("npz", tmp_path / "mine.npz")
    assert source.shape == expected
    assert source.classes == ("10", "20", "30")
    assert source.train.y.tolist() == [0, 1, 0, 2, 2, 1]
    assert source.test.y.tolist() == [0, 1, 0]
    flat = np.moveaxis(x, -1, 1) if shape[-1] == 3 else x
    assert np.array_equal(source.train.fetch(range(6)).array.reshape(6, -1), flat.reshape(6, -1))


def test_npz_in_one_piece_with_names(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "mine.npz", x=np.zeros((20, 4, 4), np.uint8), y=np.arange(20) % 2, classes=np.array(["cat", "dog"])
    )
    source = load("npz", tmp_path, path="mine.npz", test_share=0.3)
    assert source.classes == ("cat", "dog")
    assert (len(source.train), len(source.test)) == (14, 6)


def test_npz_with_texts_for_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.zeros((6, 4, 4), np.uint8), y=np.array(["dog", "cat"] * 3))
    assert load("npz", tmp_path / "mine.npz").classes == ("cat", "dog")


BYTES = np.zeros((4, 5, 5), np.uint8)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"x": BYTES.astype(np.float32), "y": np.arange(4)}, "is of type float32; images must be uint8"),
        ({"x": BYTES[:, 0], "y": np.arange(4)}, "has shape"),
        ({"x": np.zeros((4, 5, 5, 5), np.uint8), "y": np.arange(4)}, "layout='nchw'"),
        ({"x": np.zeros((4, 3, 5, 3), np.uint8), "y": np.arange(4)}, "layout='nchw'"),
        ({"x": BYTES}, "it needs x_train"),
        ({"x": BYTES, "y": np.array([0.5, 1, 2, 3])}, "they must be integers or texts"),
        ({"x": BYTES, "y": np.array([{}, 1, 2, 3], object)}, "without Python objects"),
        (
            {"x_train": BYTES, "y_train": np.arange(4), "x_test": BYTES, "y_test": np.arange(4) + 1},
            r"\[4\] do not occur",
        ),
        ({"x": BYTES, "y": np.arange(4), "classes": np.array(["a"])}, "'classes' has 1 names"),
    ],
)
def test_npz_files_that_cannot_be_used(tmp_path: Path, content: dict[str, Any], says: str) -> None:
    np.savez(tmp_path / "mine.npz", **content)
    with pytest.raises(ValueError, match=says):
        load("npz", tmp_path / "mine.npz")


def test_an_ambiguous_layout_can_be_given(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.zeros((4, 3, 5, 3), np.uint8), y=np.zeros(4, int))
    assert load("npz", tmp_path / "mine.npz", layout="nhwc").shape == (3, 3, 5)
    assert load("npz", tmp_path / "mine.npz", layout="nchw").shape == (3, 5, 3)


def test_an_npz_cannot_run_code(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    np.save(tmp_path / "x.npy", np.array([Attack(os.mkdir, str(mark))], object), allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as file:
        file.write(tmp_path / "x.npy", "x.npy")
    with pytest.raises(ValueError, match=r"mine\.npz was not read"):
        load("npz", tmp_path / "mine.npz")
    assert not mark.exists()


@pytest.mark.parametrize("raw", [b"", b"PK\x03\x04 broken", pickle.dumps([1])])
def test_files_that_are_no_npz(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / "mine.npz").write_bytes(raw)
    with pytest.raises(ValueError, match=r"mine\.npz was not read"):
        load("npz", tmp_path / "mine.npz")


# -- data without files ---------------------------------------------------------------------------------------------


def test_digits() -> None:
    pytest.importorskip("sklearn")
    source = load("digits")
    assert source.shape == (1, 8, 8)
    assert len(source.train) + len(source.test) == 1797
    x = source.train.fetch(range(len(source.train))).array
    assert (x.min(), x.max()) == (0, 255)
    assert np.unique(source.test.y).tolist() == list(range(10))


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"carousel-memory\[demo\]"):
        load("digits")


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 5, 9), (2, 1, 3), (3, 224, 224)])
def test_synthetic_of_any_shape(shape: tuple[int, int, int]) -> None:
    source = load("synthetic", classes=3, samples=4, test_samples=2, shape=shape)
    assert source.shape == shape
    assert source.train.fetch([0]).array.dtype == np.uint8
    assert np.bincount(source.train.y).tolist() == [4] * 3
    assert np.bincount(source.test.y).tolist() == [2] * 3


def test_synthetic_is_seeded_and_asking_for_more_changes_nothing() -> None:
    def train(**options: int) -> Any:
        source = load("synthetic", **{"classes": 4, "samples": 5, "shape": (1, 8, 8), **options})  # type: ignore[arg-type]
        return source.train.fetch(np.flatnonzero(source.train.y == 2)).x

    assert np.array_equal(train(), train())
    assert not np.array_equal(train(), train(seed=1))
    assert np.array_equal(train(), train(samples=9, classes=7, test_samples=3)[:5])
    source = load("synthetic", classes=2, samples=5, test_samples=5)
    assert not np.array_equal(source.train.fetch(range(10)).x, source.test.fetch(range(10)).x)


def test_difficulty_does_what_it_says() -> None:
    def accuracy(difficulty: float) -> float:
        """Of the nearest class mean."""
        source = load("synthetic", classes=10, samples=200, test_samples=50, difficulty=difficulty, shape=(3, 16, 16))
        x, y = source.train.fetch(range(2000))
        means = np.stack([x[y == k].mean(0).ravel() for k in range(10)])
        x, y = source.test.fetch(range(500))
        distance = ((x.reshape(500, 1, -1) - means) ** 2).sum(-1)
        return float((distance.argmin(1) == y).mean())

    scores = [accuracy(d) for d in (0.0, 0.6, 0.8, 1.0)]
    assert scores[0] > 0.99
    assert scores[0] > scores[1] + 0.02
    assert scores[1] > scores[2] + 0.1
    assert scores[2] > scores[3] + 0.1
    assert abs(scores[3] - 0.1) < 0.06  # chance


@pytest.mark.parametrize(
    ("option", "value"), [("classes", 0), ("samples", 0), ("shape", (3, 32)), ("difficulty", 1.5), ("difficulty", -1)]
)
def test_impossible_synthetic_data(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{option} is"):
        load("synthetic", **{option: value})


# -- the registry ---------------------------------------------------------------------------------------------------


def test_names() -> None:
    assert {"cifar-10", "cifar-100", "mnist", "fashion-mnist", "tiny-imagenet", "mini-imagenet"} <= set(names())
    assert {"imagenet-100", "imagenet-1000", "folder", "npz", "digits", "synthetic"} <= set(names())


@pytest.mark.parametrize("spelling", ["CIFAR-10", "cifar10", "Cifar_10", "cifar 10"])
def test_spelling_does_not_matter(tmp_path: Path, spelling: str) -> None:
    cifar10_files(tmp_path)
    assert load(spelling, tmp_path).name == "cifar-10"


@pytest.mark.parametrize(
    ("wrong", "right"), [("cifra100", "cifar-100"), ("fashion", "fashion-mnist"), ("tinyimagnet", "tiny-imagenet")]
)
def test_unknown_names_get_the_list_and_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean '{right}'") as error:
        load(wrong)
    for name in names():
        assert name in str(error.value)


def test_unknown_names_without_a_neighbour() -> None:
    with pytest.raises(ValueError, match=r"there is no data set 'q'\. The names are"):
        load("q")


def test_a_path_instead_of_a_name_is_told_where_it_goes() -> None:
    with pytest.raises(ValueError, match=r"A folder of pictures is --data folder --path /not/there, a file") as error:
        load("/not/there")
    assert "Did you mean" not in str(error.value) and "The names are: cifar-10" in str(error.value)


def test_unknown_options_get_the_list(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"synthetic has no option 'sample'; its options are: classes, samples,"):
        load("synthetic", sample=3)
    with pytest.raises(
        ValueError, match=r"options are: classes, test_share, seed, resize, crop, channels, threads, path"
    ):
        load("folder", tmp_path, size=3)
    with pytest.raises(ValueError, match="folder has no option 'held_out'"):
        load("folder", tmp_path, held_out=("val",))
    with pytest.raises(ValueError, match="its options are: none"):
        load("mnist", tmp_path, classes=("a",))


def test_the_folder_can_be_the_data_sets_own(tmp_path: Path) -> None:
    cifar10_files(tmp_path)
    assert len(load("cifar-10", tmp_path / "cifar-10-batches-py").test) == 4


def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cifar10_files(tmp_path)
    monkeypatch.setenv("CARM_DATA", str(tmp_path))
    assert load("cifar-10").name == "cifar-10"
    with pytest.raises(FileNotFoundError):
        load("cifar-10", tmp_path / "elsewhere")  # an explicit folder wins


@pytest.mark.parametrize("name", sorted(set(names()) - {"digits", "synthetic"}))
def test_without_a_folder_the_error_says_how_to_name_one(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=rf"{name} is read from a data folder.*--data DIR.*CARM_DATA"):
        load(name)
    missing = tmp_path / "missing"
    with pytest.raises(
        FileNotFoundError, match=f"{name} was not found. Looked for .* in .*{missing}.*does not exist"
    ) as error:
        load(name, missing)
    assert "CARM_DATA" in str(error.value)


def test_an_incomplete_folder_is_described(tmp_path: Path) -> None:
    cifar10_files(tmp_path)
    folder = tmp_path / "cifar-10-batches-py"
    (folder / "data_batch_4").unlink()
    for root in (tmp_path, folder):
        with pytest.raises(
            FileNotFoundError, match=f"{folder} is there, but lacks data_batch_4.*https://www.cs.toronto"
        ):
            load("cifar-10", root)


# -- real data ------------------------------------------------------------------------------------------------------


@pytest.mark.data
def test_real_cifar_100(data_root: Path) -> None:
    source = load("cifar-100", data_root)
    assert (len(source.train), len(source.test), source.shape) == (50000, 10000, (3, 32, 32))
    assert (np.bincount(source.train.y) == 500).all()
    assert (np.bincount(source.test.y) == 100).all()
    assert source.classes[:3] == ("apple", "aquarium_fish", "baby")
    mean = source.train.fetch(range(50000)).array.mean((0, 2, 3)) / 255
    assert np.allclose(mean, [0.5071, 0.4866, 0.4409], atol=1e-3)


@pytest.mark.data
def test_real_cifar_10(data_root: Path) -> None:
    source = load("cifar-10", data_root)
    assert len(source.test) == 10000
    assert source.classes[0] == "airplane"
    assert (np.bincount(source.test.y) == 1000).all()


@pytest.mark.data
def test_real_mnist(data_root: Path) -> None:
    source = load("mnist", data_root)
    assert (len(source.train), len(source.test), source.shape) == (60000, 10000, (1, 28, 28))
    assert source.train.y[:5].tolist() == [5, 0, 4, 1, 9]
    assert abs(source.train.fetch(range(60000)).array.mean() / 255 - 0.1307) < 1e-3


@pytest.mark.data
def test_real_photographs(data_root: Path) -> None:
    source = load("folder", data_root, path="photos")
    assert (len(source.train), len(source.test), len(source.classes)) == (800, 200, 40)
    assert isinstance(source.train.fetch([0, 1]).x, list)
