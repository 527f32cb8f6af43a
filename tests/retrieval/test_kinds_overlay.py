"""Photos laid on each other: an edit lies exactly, another exposure does not."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
from copies import EDITS, QUALITY, Edit

from hardnet.images import Pixels
from hardnet.retrieval.kinds import Thresholds, corners, inverse, is_border, lay

LIMITS = Thresholds()
SAME = np.eye(2, 3)


def turn(degrees: float, size: tuple[int, ...]) -> np.ndarray:
    return cv2.getRotationMatrix2D(((size[1] - 1) / 2, (size[0] - 1) / 2), -degrees, 1)


def test_what_looks_the_same(camera: Pixels) -> None:
    height, width = camera.shape
    assert lay(camera, (0.5 * camera + 60).astype(np.uint8), SAME).alike == 1
    small = cv2.resize(camera, (150, 150), interpolation=cv2.INTER_AREA)
    half = 150 / width
    down = np.array([[half, 0, half / 2 - 0.5], [0, half, half / 2 - 0.5]])
    assert lay(camera, small, down).alike > 0.95
    assert lay(small, camera, inverse(down)).alike > 0.95
    turned = cv2.warpAffine(camera, turn(30, camera.shape), (width, height))
    assert lay(camera, turned, turn(30, camera.shape)).alike > 0.95
    mirror = np.array([[-1.0, 0, width - 1], [0, 1.0, 0]])
    assert lay(camera, camera[:, ::-1].copy(), mirror).alike == 1
    assert lay(camera, camera[:, ::-1].copy(), SAME).alike < 0.5
    assert lay(camera, np.full_like(camera, 128), SAME).alike == 0
    assert lay(np.full_like(camera, 9), np.full_like(camera, 128), SAME) == (0, 0)


def test_what_has_moved_does_not_agree(camera: Pixels) -> None:
    """Half of a photo lies three pixels farther: a map of all of it cannot be exact."""
    moved_half = camera.copy()
    moved_half[:, camera.shape[1] // 2 :] = np.roll(camera, 3, 1)[:, camera.shape[1] // 2 :]
    assert 0.4 < lay(camera, moved_half, SAME).alike < LIMITS.agree_part


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_an_edit_displaces_nothing(camera: Pixels, edit: Edit) -> None:
    made, transform = edit.make(camera[:, :, None].repeat(3, 2), np.random.default_rng(0))
    _, data = cv2.imencode(".jpg", made, [cv2.IMWRITE_JPEG_QUALITY, min(edit.quality, QUALITY)])
    copy = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE)
    # A map of features is a third of a pixel off.
    off = transform + np.array([[0, 0, 0.3], [0, 0, -0.2]])
    assert lay(camera, copy, off).drift < LIMITS.drift
    assert lay(copy, camera, inverse(off)).drift < LIMITS.drift


def warped(pixels: Pixels, across: np.ndarray, down: np.ndarray) -> Pixels:
    """Where each pixel of the picture comes from."""
    return cv2.remap(
        pixels, across.astype(np.float32), down.astype(np.float32), cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REFLECT,
    )  # fmt: skip


def test_views_drift(camera: Pixels) -> None:
    """Depth, a slanted plane and a lens: none moves anything by more than three pixels."""
    down, across = np.mgrid[: camera.shape[0], : camera.shape[1]].astype(float)
    x, y = (v / camera.shape[0] - 0.5 for v in (across, down))
    hill = np.exp(-8 * (x**2 + y**2))
    views = {
        "depth": (across + 1.5 * hill, down),
        "slanted": (across + 2 * y, down),  # a skew: the map of a plane, and of no edit
        "perspective": (across + 3 * x * y, down + 3 * y * y),
        "lens": (across + 9 * x * (x**2 + y**2), down + 9 * y * (x**2 + y**2)),
    }
    for name, where in views.items():
        laid = lay(camera, warped(camera, *where), SAME)
        assert laid.alike > LIMITS.agree, name
        assert laid.drift > LIMITS.drift, name


def test_noise_is_no_drift(camera: Pixels) -> None:
    rng = np.random.default_rng(0)
    noisy = np.clip(camera + rng.normal(0, 12, camera.shape), 0, 255).astype(np.uint8)
    laid = lay(camera, noisy, SAME)
    assert laid.drift < LIMITS.drift / 2
    assert math.isclose(laid.drift, lay(noisy, camera, SAME).drift, abs_tol=0.05)


def test_a_border_has_one_colour() -> None:
    rng = np.random.default_rng(0)
    pixels = np.full((200, 300, 3), 240, np.uint8)
    inner = np.array([(40, 30), (259, 30), (259, 169), (40, 169)], float)
    pixels[30:170, 40:260] = rng.integers(0, 256, (140, 220, 3))
    assert is_border(pixels, inner)
    pixels[:, :20] = rng.integers(0, 256, (200, 20, 3))
    assert not is_border(pixels, inner)
    everything = corners((300, 200))
    assert not is_border(pixels, everything)
