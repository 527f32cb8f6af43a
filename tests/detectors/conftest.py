"""Images whose keypoints are known."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest


def make_blob(
    x: float, y: float, long: float, short: float | None = None, angle: float = 0.0, side: int = 300
) -> np.ndarray:
    """A bright Gaussian with standard deviations ``long`` (towards ``angle``) and ``short``."""
    yy, xx = np.mgrid[:side, :side].astype(float)
    u = (xx - x) * np.cos(angle) + (yy - y) * np.sin(angle)
    v = (yy - y) * np.cos(angle) - (xx - x) * np.sin(angle)
    hill = np.exp(-(u**2) / (2 * long**2) - v**2 / (2 * (short or long) ** 2))
    return np.round(40 + 150 * hill).astype(np.uint8)


def warp(image: np.ndarray, linear: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The image seen through ``linear`` (2, 2) about its centre, and the (3, 3) map of its pixels.

    The image is smoothed a little, so that a turn by any angle keeps its content.
    """
    height, width = image.shape
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    matrix = np.eye(3)
    matrix[:2, :2] = linear
    matrix[:2, 2] = centre - linear @ centre
    return cv2.warpAffine(image, matrix[:2], (width, height), flags=cv2.INTER_CUBIC), matrix


@pytest.fixture
def blob() -> Callable[..., np.ndarray]:
    """See make_blob."""
    return make_blob


@pytest.fixture
def warped() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """See warp."""
    return warp
