"""Draw matches: both photos side by side, every inlier in the colour of its place."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.detectors import spread_over
from hardnet.images import Pixels, to_colour

MAX_HEIGHT = 900  # pixels of the taller photo in the picture
MAX_LINES = 120  # more lines hide the photos; every inlier keeps its dots
GAP = 12
_PAPER = (250, 250, 248)
_INK = (60, 60, 64)
_FINE = 2  # drawn at twice the size and shrunk: OpenCV's small circles are diamonds otherwise
_BITS = 4  # OpenCV draws at sub-pixel positions given in units of 1/16 pixel
_HUES = 45.0, -165.0  # degrees, left to right: orange, red, magenta, blue, cyan
_SATURATION = 0.4, 1.0  # top to bottom: pale to deep


def draw_matches(
    image_a: Pixels,
    image_b: Pixels,
    xy_a: NDArray[np.floating],
    xy_b: NDArray[np.floating],
    caption: str | None = None,
) -> Pixels:
    """(H', W', 3) RGB picture of two photos at equal height, the matches, and one line of text."""
    height = min(max(len(image_a), len(image_b)), MAX_HEIGHT) * _FINE
    left, right = _resize(image_a, height), _resize(image_b, height)
    start_b = left.shape[1] + GAP * _FINE
    width = (start_b + right.shape[1]) // _FINE * _FINE
    right = right[:, : width - start_b]
    canvas = np.full((height, width, 3), _PAPER, np.uint8)
    canvas[:, : left.shape[1]] = left
    canvas[:, start_b:] = right

    a = _place(xy_a, image_a, left)
    b = _place(xy_b, image_b, right) + np.array([start_b, 0])
    colours = _colours(a, left.shape[1], height)
    points = np.rint(np.concatenate([a, b]) * (1 << _BITS)).astype(int).tolist()
    lines = canvas.copy()
    alike = np.zeros(len(a), np.float32)
    for i in spread_over(a, alike, (left.shape[1], height), MAX_LINES).tolist():
        cv2.line(lines, points[i], points[len(a) + i], colours[i], _FINE, cv2.LINE_AA, _BITS)
    canvas = np.asarray(cv2.addWeighted(lines, 0.75, canvas, 0.25, 0), np.uint8)
    for point, colour in zip(points, colours * 2, strict=True):
        for radius, paint in ((2.7, _INK), (2.0, colour)):
            fixed = round(radius * _FINE * (1 << _BITS))
            cv2.circle(canvas, point, fixed, paint, -1, cv2.LINE_AA, _BITS)
    size = width // _FINE, height // _FINE
    picture = np.asarray(cv2.resize(canvas, size, interpolation=cv2.INTER_AREA), np.uint8)
    return picture if caption is None else np.vstack([picture, _strip(caption, size[0])])


def _resize(image: Pixels, height: int) -> Pixels:
    width = max(round(image.shape[1] * height / len(image)), 1)
    how = cv2.INTER_AREA if height < len(image) else cv2.INTER_LINEAR
    colour = cv2.resize(to_colour(image), (width, height), interpolation=how)
    grey = cv2.cvtColor(cv2.cvtColor(colour, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return np.asarray(cv2.addWeighted(colour, 0.55, grey, 0.35, 18), np.uint8)


def _place(xy: NDArray[np.floating], image: Pixels, shown: Pixels) -> NDArray[np.float64]:
    """Positions in the resized image, whose corners stay in place."""
    scale = np.array([shown.shape[1] / image.shape[1], len(shown) / len(image)])
    return np.asarray((np.asarray(xy, np.float64) + 0.5) * scale - 0.5)


def _colours(a: NDArray[np.float64], width: int, height: int) -> list[tuple[int, int, int]]:
    u, v = np.clip(a / (width, height), 0, 1).T
    hue = (_HUES[0] + (_HUES[1] - _HUES[0]) * u) % 360
    saturation = _SATURATION[0] + (_SATURATION[1] - _SATURATION[0]) * v
    hsv = np.stack([hue, saturation, np.ones_like(hue)], 1).astype(np.float32)
    rgb = np.asarray(cv2.cvtColor(hsv.reshape(-1, 1, 3), cv2.COLOR_HSV2RGB)) if len(a) else hsv
    return [(int(r), int(g), int(b)) for r, g, b in rgb.reshape(-1, 3) * 255]


def _strip(caption: str, width: int) -> Pixels:
    strip = np.full((34, width, 3), _PAPER, np.uint8)
    size = 0.5
    (length, _), _ = cv2.getTextSize(caption, cv2.FONT_HERSHEY_SIMPLEX, size, 1)
    size = min(size, size * (width - 20) / max(length, 1))
    cv2.putText(strip, caption, (10, 22), cv2.FONT_HERSHEY_SIMPLEX, size, _INK, 1, cv2.LINE_AA)
    return strip
