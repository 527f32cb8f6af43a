"""The intrinsics of two photos from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hardnet.errors import HardnetError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hardnet.features import Features

    Intrinsics = NDArray[np.float64]
    Cameras = tuple[Intrinsics, Intrinsics]


def given_cameras(essential: bool, files: list[Path], focal: float | None) -> list[Intrinsics]:
    """What --camera gives; nothing for --focal, which needs the photos to know their middle.

    Args:
        essential: an essential matrix is asked for.
        files: one file for both photos, or one for each.
        focal: focal length in pixels of the original.

    Raises:
        HardnetError: these options do not go together, or are no cameras.
    """
    if files and focal is not None:
        raise HardnetError("--camera and --focal exclude each other: give one of them")
    if essential and not files and focal is None:
        raise HardnetError("--model essential needs --camera FILE or --focal PIXELS")
    if not essential and (files or focal is not None):
        raise HardnetError("--camera and --focal are for --model essential: add it, or leave them")
    if focal is not None and not 0 < focal < float("inf"):
        raise HardnetError(f"--focal is {focal}: give the focal length in pixels, above 0")
    if len(files) > 2:
        raise HardnetError(f"--camera is given {len(files)} times: give one file, or one per photo")
    return [read_camera(path) for path in files]


def cameras(a: Features, b: Features, given: list[Intrinsics], focal: float | None) -> Cameras:
    """The intrinsics of both photos: those given, or by a focal length and the middle."""
    if focal is not None:
        return _middle(a, focal), _middle(b, focal)
    return given[0], given[-1]


def read_camera(path: Path) -> Intrinsics:
    """Nine numbers, row by row: fx s cx, 0 fy cy, 0 0 1; commas are spaces."""
    import numpy as np

    from hardnet.matching.geometry import check_cameras

    try:
        words = path.read_text().replace(",", " ").split()
        camera = np.array([float(word) for word in words]).reshape(3, 3)
        return check_cameras((camera, camera))[0]
    except OSError as error:
        raise HardnetError(f"cannot read --camera {path}: {error.strerror}") from None
    except (ValueError, HardnetError):
        raise HardnetError(
            f"--camera {path} is no camera: write nine numbers, fx 0 cx 0 fy cy 0 0 1"
        ) from None


def _middle(features: Features, focal: float) -> Intrinsics:
    import numpy as np

    width, height = features.image_size
    return np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]])
