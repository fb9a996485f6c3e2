"""Encoded images to arrays, in parallel threads.

Threads suffice: Pillow lets go of the interpreter lock while it decodes and resizes. They share the encoded bytes and
hand over arrays without a copy between processes, which worker processes could not.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

In = TypeVar("In")
Out = TypeVar("Out")


class BadImage(ValueError):
    """The bytes are no image that can be decoded to the end."""


def pillow() -> ModuleType:
    """`PIL.Image`, imported only when an image has to be decoded: array data sets do without Pillow."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(
            "reading image files needs Pillow, which is not installed: pip install 'carousel-memory[images]'"
        ) from error
    return Image


def cores() -> int:
    """The cores this process may use, which in a container are fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@functools.cache
def _pool(threads: int, pid: int) -> ThreadPoolExecutor:
    # `pid` is part of the key because threads do not survive a fork: a data-loader worker must make its own.
    return ThreadPoolExecutor(threads, thread_name_prefix=f"carm-decode-{pid}")


def in_threads(function: Callable[[In], Out], items: Sequence[In], threads: int | None = None) -> list[Out]:
    """`[function(item) for item in items]`, on `threads` threads (None: one for each core).

    An exception comes back as it was raised.
    """
    threads = min(cores(), 16) if threads is None else threads
    if threads < 1:
        raise ValueError(f"threads is {threads}; it must be at least 1, or None for one on each core")
    if threads == 1 or len(items) < 2:
        return [function(item) for item in items]
    # A few pieces for each thread: handing over single thumbnails would cost as much as decoding them, and with one
    # piece for each thread the slowest would decide.
    step = -(-len(items) // (4 * threads))
    pieces = [items[start : start + step] for start in range(0, len(items), step)]
    done = _pool(threads, os.getpid()).map(lambda piece: [function(item) for item in piece], pieces)
    return [result for piece in done for result in piece]


@dataclass(frozen=True)
class Decoder:
    """How encoded images become uint8 arrays `(channels, height, width)`.

    `resize` scales the shorter side to so many pixels; `crop` then cuts the square of so many pixels from the middle,
    and first enlarges an image that is smaller than that. With `crop` all images have one shape, and batches are one
    array; without it they are lists. `channels` is 3 (grey, palette, CMYK and transparent images are converted) or 1.
    """

    resize: int | None = None
    crop: int | None = None
    channels: int = 3
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise ValueError(f"channels is {self.channels}; images decode to 3 channels (colour) or 1 (grey)")
        for name in ("resize", "crop", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1, or None")
        if self.resize is not None and self.crop is not None and self.crop > self.resize:
            raise ValueError(
                f"crop is {self.crop}, larger than resize, {self.resize}: the crop is cut from the resized image"
            )

    @property
    def shape(self) -> tuple[int, int, int] | None:
        """The shape of every decoded image, or None if it differs from image to image."""
        return None if self.crop is None else (self.channels, self.crop, self.crop)

    def __call__(self, blob: bytes) -> NDArray[np.uint8]:
        """Decode one image; `BadImage` if that cannot be done."""
        library = pillow()
        try:
            with library.open(BytesIO(blob)) as image:
                return self._planes(self._fit(self._converted(image)))
        except MemoryError:
            raise
        except library.UnidentifiedImageError as error:
            raise BadImage("it is no image of a known format") from error
        except Exception as error:  # on broken data Pillow raises nearly anything: OSError, SyntaxError, struct.error
            raise BadImage(f"{type(error).__name__}: {error}") from error

    def many(self, blobs: Sequence[bytes]) -> list[NDArray[np.uint8]]:
        """Decode images in parallel, in order; `BadImage` at the first that cannot be decoded."""
        return in_threads(self, blobs, self.threads)

    def _planes(self, image: Image) -> NDArray[np.uint8]:
        """Band by band, straight out of the image: faster than to turn an array with the channels last around, and than
        `split`, which copies all bands first and keeps the interpreter lock meanwhile."""
        out = np.empty((self.channels, image.height, image.width), np.uint8)
        for plane, band in zip(out, "RGB" if self.channels == 3 else "L", strict=True):
            plane[:] = np.frombuffer(image.tobytes("raw", band), np.uint8).reshape(plane.shape)
        return out

    def _converted(self, image: Image) -> Image:
        if image.mode.startswith("I"):  # 16 bits a pixel, which convert() would clip to white instead of scaling
            image = pillow().fromarray((np.asarray(image).astype(np.uint32) >> 8).clip(0, 255).astype(np.uint8))
        mode = "RGB" if self.channels == 3 else "L"
        return image if image.mode == mode else image.convert(mode)

    def _fit(self, image: Image) -> Image:
        bilinear = pillow().Resampling.BILINEAR
        shorter = min(image.size)
        target = self.resize if self.resize is not None else max(shorter, self.crop or 0)
        if target != shorter:
            width, height = image.size
            image = image.resize((max(1, width * target // shorter), max(1, height * target // shorter)), bilinear)
        if self.crop is not None:
            left, top = (image.width - self.crop) // 2, (image.height - self.crop) // 2
            image = image.crop((left, top, left + self.crop, top + self.crop))
        return image
