from __future__ import annotations

import io
import logging
import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from carm.data import ArraySplit, BadImage, Batch, Decoder, EncodedSplit, Source, load
from carm.data.decode import in_threads
from carm.data.source import concatenated, hold_out

Encode = Callable[..., bytes]


def arrays(n: int = 6, classes: int = 3) -> ArraySplit:
    return ArraySplit(np.arange(n * 3 * 2 * 2, dtype=np.uint8).reshape(n, 3, 2, 2), np.arange(n) % classes)


def encoded_split(blobs: list[bytes], decoder: Decoder | None = None) -> EncodedSplit:
    names = tuple(f"{i}.jpg" for i in range(len(blobs)))
    return EncodedSplit(Path("/nowhere"), names, np.arange(len(blobs)), decoder or Decoder(), tuple(blobs))


# -- arrays ---------------------------------------------------------------------------------------------------------


def test_arrays_are_fetched_in_the_order_asked_for() -> None:
    split = arrays()
    x, y = split.fetch([4, 0, 4])
    assert np.array_equal(x, split.x[[4, 0, 4]])
    assert x.dtype == np.uint8
    assert x.flags.c_contiguous
    assert x.flags.writeable
    assert y.tolist() == [1, 0, 1]


def test_a_fetched_batch_is_a_copy() -> None:
    split = arrays()
    split.fetch([0]).x[0][:] = 99
    assert split.x[0].max() < 99


@pytest.mark.parametrize("indices", [[-1], [6], [0, 7]])
def test_positions_outside_are_refused(indices: list[int]) -> None:
    with pytest.raises(IndexError, match="0 to 5"):
        arrays().fetch(indices)


def test_an_empty_request_gives_an_empty_batch(encode: Encode) -> None:
    assert arrays().fetch([]).array.shape == (0, 3, 2, 2)
    assert encoded_split([encode()], Decoder(crop=8)).fetch([]).array.shape == (0, 3, 8, 8)
    assert encoded_split([encode()]).fetch([]).x == []


def test_labels_must_fit_the_samples() -> None:
    with pytest.raises(ValueError, match="one row for each label"):
        ArraySplit(np.zeros((3, 1, 2, 2), np.uint8), np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="vector of integers"):
        ArraySplit(np.zeros((2, 1, 2, 2), np.uint8), np.zeros(2))  # type: ignore[arg-type]


# -- images ---------------------------------------------------------------------------------------------------------


def test_images_stay_encoded_and_are_decoded_when_fetched(encode: Encode, tmp_path: Path) -> None:
    blob = encode((200, 30, 60), (12, 10), "PNG")
    (tmp_path / "a.png").write_bytes(blob)
    batch = EncodedSplit(tmp_path, ("a.png",), np.array([7])).fetch([0])
    assert batch.encoded == [blob]
    assert batch.x[0].shape == (3, 10, 12)  # channels, height, width
    assert batch.x[0][:, 0, 0].tolist() == [200, 30, 60]
    assert batch.y.tolist() == [7]


@pytest.mark.parametrize(
    ("mode", "kind", "colour", "expected"),
    [
        ("L", "JPEG", 90, (90, 90, 90)),
        ("1", "PNG", 1, (255, 255, 255)),
        ("P", "PNG", 0, (0, 0, 0)),
        ("RGBA", "PNG", (10, 20, 30, 128), (10, 20, 30)),
        ("LA", "PNG", (40, 9), (40, 40, 40)),
        ("CMYK", "JPEG", (0, 0, 0, 0), (255, 255, 255)),
        ("I;16", "PNG", 0x8000, (128, 128, 128)),
    ],
)
def test_images_of_every_kind_become_colour(
    encode: Encode, mode: str, kind: str, colour: object, expected: tuple[int, ...]
) -> None:
    image = Decoder()(encode(colour, mode=mode, kind=kind))
    assert image.shape == (3, 10, 12)
    assert np.abs(image[:, 5, 5].astype(int) - expected).max() <= 2


def test_grey_on_request(encode: Encode) -> None:
    assert Decoder(channels=1)(encode()).shape == (1, 10, 12)


@pytest.mark.parametrize("size", [(30, 20), (20, 30), (5, 40), (8, 8), (3, 2)])
def test_a_crop_gives_every_image_one_shape(encode: Encode, size: tuple[int, int]) -> None:
    for decoder in (Decoder(crop=8), Decoder(resize=9, crop=8)):
        image = decoder(encode((200, 200, 200), size, "PNG"))
        assert image.shape == decoder.shape == (3, 8, 8)
        assert (image == 200).all()  # a small image is enlarged, not framed in black


def test_resize_scales_the_shorter_side_and_the_crop_is_from_the_middle() -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((20, 60, 3), np.uint8)
    pixels[:, 20:40] = 255  # a white square in the middle
    out = io.BytesIO()
    image.fromarray(pixels).save(out, "PNG")
    assert Decoder(resize=10)(out.getvalue()).shape == (3, 10, 30)
    assert (Decoder(crop=20)(out.getvalue()) == 255).all()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"channels": 2}, "channels is 2"),
        ({"crop": 0}, "crop is 0"),
        ({"resize": 32, "crop": 64}, "larger than resize"),
        ({"threads": 0}, "threads is 0"),
    ],
)
def test_impossible_decoders_are_refused(options: dict[str, int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Decoder(**options)


def test_parallel_decoding_gives_what_serial_decoding_gives(encode: Encode) -> None:
    split = encoded_split([encode((i, 2 * i, 0), (8 + i, 9), "PNG") for i in range(50)])
    order = np.random.default_rng(0).permutation(50)
    one, four = (replace(split, decoder=Decoder(threads=n)).fetch(order) for n in (1, 4))
    assert one.index.tolist() == four.index.tolist() == order.tolist()
    assert all(np.array_equal(a, b) for a, b in zip(one.x, four.x, strict=True))


def test_decoding_does_use_several_threads() -> None:
    """With one thread the barrier would wait for ever, that is, break."""
    barrier = threading.Barrier(2, timeout=10)
    assert in_threads(lambda _: barrier.wait() >= 0, range(2), 2) == [True, True]


def test_exceptions_in_threads_come_back() -> None:
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda i: 1 // (i - 7), range(20), 3)


def test_a_corrupt_image_is_named_skipped_and_counted_once(encode: Encode, caplog: pytest.LogCaptureFixture) -> None:
    good = encode(size=(64, 64))
    split = encoded_split([good, good[: len(good) // 2], b"", b"no image at all", good], Decoder(crop=16))
    with caplog.at_level(logging.WARNING):
        first, again = split.fetch(range(5)), split.fetch(range(5))
    for batch in (first, again):
        assert batch.y.tolist() == batch.index.tolist() == [0, 4]
        assert batch.array.shape == (2, 3, 16, 16)
        assert batch.encoded == [good, good]
    assert sorted(split.skipped) == ["1.jpg", "2.jpg", "3.jpg"]
    assert len(caplog.records) == 3
    assert "/nowhere/1.jpg" in caplog.text
    assert "truncated" in split.skipped["1.jpg"].lower()
    assert split.skipped["3.jpg"] == "it is no image of a known format"


def test_the_count_is_shared_with_views_of_the_split(encode: Encode) -> None:
    split = encoded_split([encode(), b"broken"])
    split.select([1]).relabelled([0]).fetch([0])
    assert list(split.skipped) == ["1.jpg"]


def test_a_batch_of_corrupt_images_is_empty() -> None:
    pytest.importorskip("PIL")
    assert len(encoded_split([b"x", b"y"]).fetch([0, 1])) == 0


def test_a_file_that_has_gone_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.jpg was listed but cannot be read"):
        EncodedSplit(tmp_path, ("gone.jpg",), np.array([0])).fetch([0])


def test_decoding_bytes_from_a_memory(encode: Encode) -> None:
    images = Decoder(crop=4).many([encode((i, 0, 0), kind="PNG") for i in range(5)])
    assert [int(image[0, 0, 0]) for image in images] == [0, 1, 2, 3, 4]
    with pytest.raises(BadImage):
        Decoder().many([b"broken"])


def test_encoded_bytes_can_be_kept_in_ram(encode: Encode, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encode())
    split = EncodedSplit(tmp_path, ("a.jpg",), np.array([0])).in_ram()
    (tmp_path / "a.jpg").unlink()
    assert len(split.fetch([0])) == 1


def test_decoded_keeps_labels_with_their_images(encode: Encode) -> None:
    split = encoded_split([encode((10, 0, 0), kind="PNG"), b"broken", encode((30, 0, 0), kind="PNG")], Decoder(crop=4))
    whole = split.decoded()
    assert whole.y.tolist() == [0, 2]
    assert whole.x[:, 0, 0, 0].tolist() == [10, 30]
    with pytest.raises(ValueError, match="crop"):
        encoded_split([encode()]).decoded()


def test_a_split_can_go_to_a_data_loader_worker(encode: Encode) -> None:
    split = encoded_split([encode() for _ in range(4)], Decoder(threads=2))
    split.fetch(range(4))  # with threads running
    assert len(pickle.loads(pickle.dumps(split)).fetch(range(4))) == 4


def test_images_without_pillow_say_what_to_install(encode: Encode, monkeypatch: pytest.MonkeyPatch) -> None:
    split = encoded_split([encode()])
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"pip install 'carousel-memory\[images\]'"):
        split.fetch([0])


# -- batches --------------------------------------------------------------------------------------------------------


def test_batches_are_cut_and_joined_with_everything_they_carry(encode: Encode) -> None:
    batch = encoded_split([encode((i, 0, 0), (8 + i, 8), "PNG") for i in range(5)]).fetch(range(5))
    whole = concatenated([batch.part(0, 2), batch.part(2)])
    assert whole.index.tolist() == whole.y.tolist() == [0, 1, 2, 3, 4]
    assert whole.encoded == batch.encoded
    assert [image.shape for image in whole.x] == [image.shape for image in batch.x]


def test_a_batch_of_ones_own_needs_a_label_for_each_sample() -> None:
    torch = pytest.importorskip("torch")
    batch = Batch.of(torch.zeros(2, 3), torch.tensor([1, 2]), task=4)
    assert (batch.task, batch.y.tolist(), batch.index.tolist()) == (4, [1, 2], [-1, -1])
    with pytest.raises(ValueError, match="x has 2 samples and y 3"):
        Batch.of(np.zeros((2, 3)), [0, 1, 2])


# -- sources --------------------------------------------------------------------------------------------------------


def test_reordering_renumbers_train_and_test_alike() -> None:
    source = Source("s", ("a", "b", "c"), arrays(), arrays(3)).reordered([2, 0, 1])
    assert source.classes == ("c", "a", "b")
    assert source.train.y.tolist() == [1, 2, 0, 1, 2, 0]
    assert source.test.y.tolist() == [1, 2, 0]


def test_reordering_shares_the_images() -> None:
    split = arrays()
    view = Source("s", ("a", "b", "c"), split, split).reordered([2, 1, 0])
    assert isinstance(view.train, ArraySplit)
    assert view.train.x is split.x


def test_an_order_may_leave_classes_out() -> None:
    split = arrays()
    source = Source("s", ("a", "b", "c"), split, split).reordered([2, 0])
    assert source.classes == ("c", "a")
    assert source.train.y.tolist() == [1, 0, 1, 0]
    assert np.array_equal(source.train.fetch([1]).x[0], split.x[2])


@pytest.mark.parametrize("order", [[0, 0, 1], [0, 3], [-1, 0], []])
def test_impossible_orders_are_refused(order: list[int]) -> None:
    with pytest.raises(ValueError, match="order"):
        Source("s", ("a", "b", "c"), arrays(), arrays()).reordered(order)


def test_labels_beyond_the_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="train labels run from 0 to 2, but there are 2 classes"):
        Source("s", ("a", "b"), arrays(), arrays(2))


def test_holding_out_takes_a_share_of_every_class() -> None:
    y = np.repeat([0, 1, 2], [10, 5, 1])
    train, test = hold_out(y, 0.2, seed=0)
    assert sorted([*train, *test]) == list(range(16))
    assert np.bincount(y[test], minlength=3).tolist() == [2, 1, 0]  # the only sample of a class is for training
    assert not np.array_equal(test, hold_out(y, 0.2, seed=1)[1])
    assert hold_out(y, 0.2, seed=None)[1].tolist() == [8, 9, 14]
    with pytest.raises(ValueError, match=r"test_share is 1\.5"):
        hold_out(y, 1.5, seed=0)


@pytest.mark.data
def test_real_photographs_decode(data_root: Path) -> None:
    source = load("folder", data_root, path="photos", resize=64, crop=64)
    batch = source.test.fetch(range(len(source.test)))
    assert batch.array.shape == (200, 3, 64, 64)
    assert batch.array.std() > 30
