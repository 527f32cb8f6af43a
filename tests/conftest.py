"""Real photographs for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from hardnet.images import read_image, to_grey


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or fills the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDNET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def photos() -> Path:
    """The folder of photographs inside the scikit-image wheel."""
    return Path(str(files("skimage") / "data"))


@pytest.fixture(scope="session")
def camera(photos: Path) -> np.ndarray:
    """A grey photograph, (512, 512) uint8."""
    return to_grey(read_image(photos / "camera.png"))


@pytest.fixture(scope="session")
def data() -> Path:
    """The benchmark images (``HARDNET_DATA``); tests that need them are skipped without them."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("HARDNET_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no benchmark images in {folder}: set HARDNET_DATA to their folder")
    return folder
