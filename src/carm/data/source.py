"""A data set: a training and a test split, with class names.

A split hands out samples by their positions. Small images lie decoded in one uint8 array `(n, c, h, w)`; photographs
stay encoded, on disk or in RAM, and are decoded when fetched, so that a data set costs what its files cost. A batch
of encoded images carries the encoded bytes too: a memory that keeps those needs a tenth of the room.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from carm.data.decode import BadImage, Decoder, in_threads

log = logging.getLogger(__name__)

Images = NDArray[Any] | list[NDArray[np.uint8]]


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples side by side; `x, y = batch` works.

    `x` is one array, or a list of arrays if image sizes differ. `index` says where in their split the samples are
    (-1: they come from no split), `encoded` holds the bytes they were decoded from, `task` is the number of the task
    they arrived in.
    """

    x: Images
    y: NDArray[np.int64]
    index: NDArray[np.int64]
    encoded: list[bytes] | None = None
    task: int = 0

    @classmethod
    def of(cls, x: Any, y: ArrayLike, *, task: int = 0) -> Batch:
        """A batch from arrays or CPU tensors that come from no split."""
        y = labels(y)
        x = x if isinstance(x, list) else np.asarray(x)
        if len(x) != len(y):
            raise ValueError(f"x has {len(x)} samples and y {len(y)}; every sample needs one label")
        return cls(x, y, np.full(len(y), -1, np.int64), task=task)

    @property
    def array(self) -> NDArray[Any]:
        """`x`, if it is one array; images of different sizes are an error that says what to do."""
        if isinstance(self.x, list):
            raise ValueError(
                "the images are of different sizes: give the decoder a crop, for instance load(..., crop=64)"
            )
        return self.x

    def __len__(self) -> int:
        return len(self.y)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.x, self.y))

    def part(self, start: int, stop: int | None = None) -> Batch:
        """Samples `start` to `stop`, without copying."""
        cut = slice(start, stop)
        encoded = None if self.encoded is None else self.encoded[cut]
        return replace(self, x=self.x[cut], y=self.y[cut], index=self.index[cut], encoded=encoded)


def concatenated(batches: Sequence[Batch]) -> Batch:
    """One batch of all samples; the batches must be of one task and one kind."""
    if len(batches) == 1:
        return batches[0]
    arrays = [b.x for b in batches if isinstance(b.x, np.ndarray)]
    whole: Images = np.concatenate(arrays) if len(arrays) == len(batches) else [image for b in batches for image in b.x]
    blobs = [b.encoded for b in batches if b.encoded is not None]
    return Batch(
        whole,
        np.concatenate([b.y for b in batches]),
        np.concatenate([b.index for b in batches]),
        [blob for part in blobs for blob in part] if len(blobs) == len(batches) else None,
        batches[0].task,
    )


class Split(Protocol):
    """What a stream needs of a split. Write your own to read a format that is not here."""

    @property
    def y(self) -> NDArray[np.int64]:
        """The label of every sample, known without fetching it."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one sample, or None if it differs from sample to sample."""

    def __len__(self) -> int: ...

    def fetch(self, indices: ArrayLike) -> Batch:
        """The samples at these positions, in this order, ready to use. Samples that cannot be decoded are left out."""

    def select(self, indices: ArrayLike) -> Split:
        """A split of only these samples."""

    def relabelled(self, y: ArrayLike) -> Split:
        """The same samples with other labels."""


def labels(y: ArrayLike) -> NDArray[np.int64]:
    """A vector of integers: a copy, so that splits with other labels share nothing."""
    given = np.asarray(y)
    if given.ndim != 1 or (given.dtype.kind not in "iu" and len(given)):
        raise ValueError(f"y has shape {given.shape} and type {given.dtype}; labels must be a vector of integers")
    return given.astype(np.int64)


def _positions(indices: ArrayLike, length: int) -> NDArray[np.int64]:
    given = np.asarray(indices, np.int64).reshape(-1)
    if len(given) and not (given.min() >= 0 and given.max() < length):
        raise IndexError(
            f"indices run from {given.min()} to {given.max()}, but the split has samples 0 to {length - 1}"
        )
    return given


@dataclass(frozen=True, eq=False)
class ArraySplit:
    """Samples in one array, samples first. All readers give uint8 images `(n, c, h, w)`; your own may hold anything."""

    x: NDArray[Any]
    y: NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", labels(self.y))
        if self.x.ndim < 2 or len(self.x) != len(self.y):
            raise ValueError(
                f"x has shape {self.x.shape}, but y has {len(self.y)} labels; x needs one row for each label"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape[1:]

    def __len__(self) -> int:
        return len(self.y)

    def fetch(self, indices: ArrayLike) -> Batch:
        index = _positions(indices, len(self))
        return Batch(np.ascontiguousarray(self.x[index]), self.y[index], index)

    def select(self, indices: ArrayLike) -> ArraySplit:
        index = _positions(indices, len(self))
        return ArraySplit(self.x[index], self.y[index])

    def relabelled(self, y: ArrayLike) -> ArraySplit:
        return ArraySplit(self.x, labels(y))


@dataclass(frozen=True, eq=False)
class EncodedSplit:
    """Image files, or their bytes, decoded when fetched.

    An image that cannot be decoded is named in a warning, left out of the batch and noted in `skipped` (name:
    reason), whose length is the count; one broken file in a million must not end a run. A file that cannot be *read*
    does end it: then the disk or the folder has gone, and going on would train on less and less.
    """

    root: Path
    names: tuple[str, ...]
    y: NDArray[np.int64]
    decoder: Decoder = field(default_factory=Decoder)
    blobs: tuple[bytes, ...] | None = None
    skipped: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "y", labels(self.y))
        if len(self.names) != len(self.y) or (self.blobs is not None and len(self.blobs) != len(self.y)):
            raise ValueError(f"{len(self.names)} images, but {len(self.y)} labels; every image needs one label")

    @property
    def shape(self) -> tuple[int, ...] | None:
        return self.decoder.shape

    def __len__(self) -> int:
        return len(self.y)

    def read(self, index: int) -> bytes:
        """The encoded bytes of one image."""
        if self.blobs is not None:
            return self.blobs[index]
        try:
            return (self.root / self.names[index]).read_bytes()
        except OSError as error:
            raise type(error)(
                f"{self.root / self.names[index]} was listed but cannot be read ({error.strerror}); "
                "check that the data folder is still there and complete"
            ) from error

    def fetch(self, indices: ArrayLike) -> Batch:
        index = _positions(indices, len(self))
        results = in_threads(self._decoded, index.tolist(), self.decoder.threads)
        good = []
        for place, (_, result) in enumerate(results):
            if isinstance(result, BadImage):
                self._skip(self.names[int(index[place])], str(result))
            else:
                good.append(place)
        index = index[good]
        images = [image for _, image in results if not isinstance(image, BadImage)]
        x: Images = images
        if self.shape is not None:
            x = np.stack(images) if images else np.zeros((0, *self.shape), np.uint8)
        return Batch(x, self.y[index], index, [results[place][0] for place in good])

    def _decoded(self, index: int) -> tuple[bytes, NDArray[np.uint8] | BadImage]:
        blob = self.read(index)
        try:
            return blob, self.decoder(blob)
        except BadImage as error:
            return blob, error

    def _skip(self, name: str, reason: str) -> None:
        if name not in self.skipped:  # once for each image, however many passes are made
            self.skipped[name] = reason
            log.warning("%s: image skipped, %s (%d skipped so far)", self.root / name, reason, len(self.skipped))

    def select(self, indices: ArrayLike) -> EncodedSplit:
        index = _positions(indices, len(self)).tolist()
        blobs = None if self.blobs is None else tuple(self.blobs[i] for i in index)
        return replace(self, names=tuple(self.names[i] for i in index), y=self.y[index], blobs=blobs)

    def relabelled(self, y: ArrayLike) -> EncodedSplit:
        return replace(self, y=labels(y))

    def in_ram(self) -> EncodedSplit:
        """The same split with all encoded bytes in RAM: for folders that are read often and small enough."""
        blobs = in_threads(self.read, range(len(self)), self.decoder.threads)
        return replace(self, blobs=tuple(blobs))

    def decoded(self) -> ArraySplit:
        """All images as one array: for images so small that decoding them in every pass costs more than the room."""
        if self.shape is None:
            raise ValueError("images of different sizes do not fit in one array: give the decoder a crop")
        batch = self.fetch(range(len(self)))
        return ArraySplit(batch.array, batch.y)


@dataclass(frozen=True, eq=False)
class Source:
    """A data set: what `load` returns and what streams are made from. Labels are positions in `classes`."""

    name: str
    classes: tuple[str, ...]
    train: Split
    test: Split

    def __post_init__(self) -> None:
        for split, y in (("train", self.train.y), ("test", self.test.y)):
            if len(y) and not (y.min() >= 0 and y.max() < len(self.classes)):
                raise ValueError(
                    f"{self.name}: the {split} labels run from {y.min()} to {y.max()}, but there are "
                    f"{len(self.classes)} classes"
                )

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of one sample, or None if it differs from sample to sample."""
        return self.train.shape

    def reordered(self, order: Sequence[int] | NDArray[np.integer]) -> Source:
        """The data set whose class `k` is this one's class `order[k]`; classes that `order` leaves out are dropped.

        With labels in the order in which the classes arrive, "the classes seen so far" is a range, and a head that
        grows needs no table. Train *and* test labels change, so evaluate on the reordered source.
        """
        wanted = np.asarray(order, np.int64)
        if len(wanted) == 0 or len(np.unique(wanted)) != len(wanted):
            raise ValueError(f"order is {list(order)}; it must name every wanted class once")
        if wanted.min() < 0 or wanted.max() >= len(self.classes):
            raise ValueError(f"order names class {wanted.max()}; {self.name} has classes 0 to {len(self.classes) - 1}")
        position = np.full(len(self.classes), -1, np.int64)
        position[wanted] = np.arange(len(wanted))

        def view(split: Split) -> Split:
            y = position[split.y]
            kept = np.flatnonzero(y >= 0)
            return split.relabelled(y) if len(kept) == len(y) else split.select(kept).relabelled(y[kept])

        return Source(self.name, tuple(self.classes[i] for i in wanted), view(self.train), view(self.test))


def hold_out(y: NDArray[np.int64], share: float, *, seed: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of training and test samples, for data that comes in one piece: of every class `share` is for testing.

    With `seed=None` the last samples of a class are taken instead of random ones. The last sample of a class is never
    taken from training: a class of one sample can be learned but not tested.
    """
    if not 0 < share < 1:
        raise ValueError(f"test_share is {share}; it must be between 0 and 1, for instance 0.2")
    rng = None if seed is None else np.random.default_rng(seed)
    testing = np.zeros(len(y), bool)
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        count = min(round(share * len(members)), len(members) - 1)
        order = members if rng is None else rng.permutation(members)
        testing[order[len(order) - count :]] = True
    return np.flatnonzero(~testing), np.flatnonzero(testing)
