"""The intrinsics of two photos from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hardnet.errors import HardnetError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hardnet.features import Features

    Cameras = tuple[NDArray[np.float64], NDArray[np.float64]]


def cameras(a: Features, b: Features, files: list[Path], focal: float | None) -> Cameras | None:
    """The intrinsics of both photos, or None if nothing was given.

    Args:
        a: features of the first photo.
        b: features of the second photo.
        files: one file for both photos, or one for each.
        focal: focal length in pixels of the original; the axis goes through the middle.
    """
    if files and focal is not None:
        raise HardnetError("--camera and --focal exclude each other: give one of them")
    if len(files) > 2:
        raise HardnetError(f"--camera is given {len(files)} times: give one file, or one per photo")
    if files:
        return read_camera(files[0]), read_camera(files[-1])
    return None if focal is None else (_middle(a, focal), _middle(b, focal))


def read_camera(path: Path) -> NDArray[np.float64]:
    """Nine numbers, row by row: fx s cx, 0 fy cy, 0 0 1; commas are spaces."""
    import numpy as np

    try:
        words = path.read_text().replace(",", " ").split()
        return np.array([float(word) for word in words]).reshape(3, 3)
    except OSError as error:
        raise HardnetError(f"cannot read --camera {path}: {error.strerror}") from None
    except ValueError:
        raise HardnetError(
            f"--camera {path} is no camera: write nine numbers, fx 0 cx 0 fy cy 0 0 1"
        ) from None


def _middle(features: Features, focal: float) -> NDArray[np.float64]:
    import numpy as np

    width, height = features.image_size
    return np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]])
