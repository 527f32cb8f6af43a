"""Real photographs for every machine: those inside the scikit-image wheel."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def photo_folder() -> Path:
    """Folder with astronaut.png, coffee.png, rocket.jpg ..."""
    import skimage

    return Path(skimage.__file__).parent / "data"
