"""Upright pixels and stored pixels of a photo with an EXIF entry show the same."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.images import read_image
from hardnet.interop.colmap.orientation import stored_size, to_stored, turn_frames

from .conftest import write_photo


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_pixel_is_found_where_the_file_has_it(tmp_path: Path, orientation: int) -> None:
    write_photo(tmp_path / "photo.jpg", (24, 17), orientation)
    upright = read_image(tmp_path / "photo.jpg")
    flags = cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION
    stored = cv2.imread(str(tmp_path / "photo.jpg"), flags)
    assert stored is not None
    height, width = upright.shape
    assert stored_size((width, height), orientation) == (24, 17)
    matrix = to_stored((width, height), orientation)
    for v in range(height):
        for u in range(width):
            x, y, one = matrix @ (u, v, 1)
            assert one == 1
            assert stored[int(y), int(x)] == upright[v, u]


def test_frames_turn_with_their_photo() -> None:
    # Orientation 6: shown turned by 90 degrees clockwise. A patch whose x axis points right in the
    # upright photo of 20 x 30 pixels points up in the file of 30 x 20.
    frames = np.array([[[2.0, 0, 5], [0, 3, 7]]], np.float32)
    turned = turn_frames(frames, (20, 30), 6)
    np.testing.assert_array_equal(turned, [[[0, 3, 7], [-2, 0, 14]]])
    assert turn_frames(frames, (20, 30), 1) is frames
