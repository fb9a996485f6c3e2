"""What the data tests share: the folder with real data, and small images to make trees of."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture
def data_root() -> Path:
    """The folder that CARM_DATA names; tests that need it carry the mark `data`."""
    named = os.environ.get("CARM_DATA")
    if not named:
        pytest.skip("CARM_DATA names no data folder")
    return Path(named)


@pytest.fixture(autouse=True)
def _no_data_folder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests must not find the developer's data by accident."""
    if request.node.get_closest_marker("data") is None:
        monkeypatch.delenv("CARM_DATA", raising=False)


@pytest.fixture
def encode() -> Callable[..., bytes]:
    """Bytes of an image of one colour: `encode(colour, size=(w, h), kind="JPEG", mode="RGB")`."""
    image = pytest.importorskip("PIL.Image")

    def encoded(
        colour: object = (200, 30, 60), size: tuple[int, int] = (12, 10), kind: str = "JPEG", mode: str = "RGB"
    ) -> bytes:
        out = io.BytesIO()
        image.new(mode, size, colour).save(out, kind)
        return out.getvalue()

    return encoded


@pytest.fixture
def make_tree(tmp_path: Path, encode: Callable[..., bytes]) -> Callable[..., Path]:
    """Write small images at the given paths below a folder; the colour tells the position in the list."""

    def make(paths: list[str], root: str = "tree", size: tuple[int, int] = (12, 10)) -> Path:
        folder = tmp_path / root
        for number, path in enumerate(paths):
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encode((number % 256, 0, 0), size, "PNG"))
        return folder

    return make


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
