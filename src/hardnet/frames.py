"""Keypoint conventions, all of them, in one place.

A *frame* is the affine map from the patch square [-1, 1]^2 to image pixels, stored as a (2, 3)
matrix [A | t]. The centre of the top-left pixel is (0, 0), x points right and y points down. The
first column of A is where the patch's x axis points in the image.

Everything the outside world calls a keypoint is converted to and from frames here, because a
window that is half as large, or an angle of the opposite sign, is the most frequent reason for a
learned descriptor to lose against SIFT.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.errors import HardnetError, InputError
from hardnet.image_files import require_regular_file
from hardnet.storage import as_path

if TYPE_CHECKING:
    import cv2

Frames = NDArray[np.float32]

Detected = tuple[Frames, NDArray[np.float32]]
"""Frames and their scores (N,)."""

WINDOW_SIGMAS = 12.0
"""Side of the measurement window in units of the keypoint's sigma: SIFT's own window
(4 x 4 cells of 3 sigma each)."""

_COLMAP_CENTRE = 0.5
"""Where COLMAP has the centre of the top-left pixel: it counts from the corner."""


def empty_frames() -> Frames:
    """No frames: shape (0, 2, 3)."""
    return np.zeros((0, 2, 3), np.float32)


def check_frames(frames: ArrayLike) -> Frames:
    """Return ``frames`` as a finite float32 array of shape (N, 2, 3), or raise an InputError."""
    try:
        array = np.asarray(frames, np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"frames must be (N, 2, 3) numbers: {error}") from error
    if array.ndim != 3 or array.shape[1:] != (2, 3):
        raise InputError(f"frames must have shape (N, 2, 3), got {array.shape}")
    if not np.isfinite(array).all():
        raise InputError("frames contain NaN or infinity")
    return array


def from_similarity(
    xy: ArrayLike, sigma: ArrayLike, angle: ArrayLike = 0.0, window: float = WINDOW_SIGMAS
) -> Frames:
    """(N, 2, 3) frames from centres (N, 2), scales (radii, not diameters) and orientations.

    The angle is in radians; the patch's x axis points to (cos, sin) in the image, so a positive one
    turns clockwise as seen on screen. ``window`` is the side of what is measured in units of sigma.
    """
    xy = np.asarray(xy, np.float64).reshape(-1, 2)
    half = np.broadcast_to(np.asarray(sigma, np.float64) * (window / 2), len(xy))
    turn = np.broadcast_to(np.asarray(angle, np.float64), len(xy))
    c, s = half * np.cos(turn), half * np.sin(turn)
    return np.stack([c, -s, xy[:, 0], s, c, xy[:, 1]], 1).reshape(-1, 2, 3).astype(np.float32)


def to_similarity(
    frames: Frames, window: float = WINDOW_SIGMAS
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Centre, sigma and angle (radians) of each frame; the inverse of :func:`from_similarity`.

    An affine frame is reduced to the similarity of equal area whose x axis points the same way.
    """
    half = np.sqrt(np.abs(np.linalg.det(frames[:, :, :2].astype(np.float64))))
    angle = np.arctan2(frames[:, 1, 0], frames[:, 0, 0])
    return centres(frames), (half * 2 / window).astype(np.float32), angle.astype(np.float32)


def centres(frames: Frames) -> NDArray[np.float32]:
    """(N, 2) pixel positions of the frame centres."""
    return np.ascontiguousarray(frames[:, :, 2])


def from_opencv(keypoints: Sequence[cv2.KeyPoint], window: float = WINDOW_SIGMAS) -> Frames:
    """Frames of OpenCV keypoints.

    ``KeyPoint.size`` is a diameter: twice SIFT's sigma. ``KeyPoint.angle`` is in degrees, clockwise
    on screen, and -1 where the detector gives none (read as upright).
    """
    if not keypoints:
        return empty_frames()
    table = np.array([(*k.pt, k.size, k.angle) for k in keypoints], np.float64)
    angle = np.where(table[:, 3] < 0, 0.0, np.deg2rad(table[:, 3]))
    return from_similarity(table[:, :2], table[:, 2] / 2, angle, window)


def to_opencv(
    frames: Frames, scores: ArrayLike | None = None, window: float = WINDOW_SIGMAS
) -> list[cv2.KeyPoint]:
    """OpenCV keypoints of frames; the inverse of :func:`from_opencv` for similarity frames."""
    import cv2

    xy, sigma, angle = to_similarity(frames, window)
    response = np.zeros(len(xy)) if scores is None else np.asarray(scores, np.float64)
    degrees = np.rad2deg(angle.astype(np.float64)) % 360.0
    return [
        cv2.KeyPoint(float(x), float(y), float(2 * s), float(a), float(r))
        for (x, y), s, a, r in zip(xy, sigma, degrees, response, strict=True)
    ]


def from_colmap(keypoints: ArrayLike, window: float = WINDOW_SIGMAS) -> Frames:
    """Frames of COLMAP keypoints, the rows of its database.

    They are (N, 4) x, y, scale, orientation (radians); or (N, 6) x, y, a11, a12, a21, a22. COLMAP
    puts the origin on the *corner* of the top-left pixel, so its centre is (0.5, 0.5). The scale is
    SIFT's sigma and a positive orientation turns clockwise on screen, as in frames. The 2 x 2
    matrix of the six-column form maps the unit circle to one of that sigma.
    """
    table = np.asarray(keypoints, np.float64)
    if table.ndim != 2 or table.shape[1] not in (4, 6):
        raise InputError(f"COLMAP keypoints have 4 or 6 columns here, got shape {table.shape}")
    if table.shape[1] == 4:
        return from_similarity(points_from_colmap(table[:, :2]), table[:, 2], table[:, 3], window)
    shape = table[:, 2:].reshape(-1, 2, 2) * (window / 2)
    centre = points_from_colmap(table[:, :2])[:, :, None]
    return np.concatenate([shape, centre], 2).astype(np.float32)


def to_colmap(frames: Frames, window: float = WINDOW_SIGMAS) -> NDArray[np.float32]:
    """(N, 6) COLMAP keypoints of frames; the inverse of :func:`from_colmap`."""
    shape = frames[:, :, :2].astype(np.float64).reshape(-1, 4) * (2 / window)
    return np.concatenate([points_to_colmap(frames[:, :, 2]), shape], 1).astype(np.float32)


def points_from_colmap(points: NDArray[Any]) -> NDArray[Any]:
    """(..., 2) pixels, from COLMAP's, which count from the corner of the first pixel."""
    return points - _COLMAP_CENTRE


def points_to_colmap(points: NDArray[Any]) -> NDArray[Any]:
    """(..., 2) COLMAP's pixels; the inverse of :func:`points_from_colmap`."""
    return points + _COLMAP_CENTRE


def from_oxford(ellipses: ArrayLike) -> Frames:
    """Upright frames of Oxford ellipses, a (x-u)^2 + 2 b (x-u) (y-v) + c (y-v)^2 = 1.

    The rows are u, v, a, b, c; further columns (a descriptor) are ignored. The ellipse is what the
    detector measures, so it becomes the circle inscribed in the patch: the window is the file's
    own, and no multiple of a sigma. The first pixel's centre is (0, 0).
    """
    table = np.asarray(ellipses, np.float64)
    if table.ndim != 2 or table.shape[1] < 5:
        raise InputError(f"Oxford ellipses have 5 columns, got shape {table.shape}")
    u, v, a, b, c = table[:, :5].T
    det = a * c - b * b
    if not ((det > 0) & (a > 0)).all():
        row = int(np.argmin((det > 0) & (a > 0)))
        raise InputError(f"row {row + 1} is not an ellipse: a c - b^2 and a must be positive")
    # The lower triangular L with L L^T = [[a, b], [b, c]]^-1.
    width, height, zero = np.sqrt(c / det), 1 / np.sqrt(c), np.zeros_like(a)
    rows = [width, zero, u, -b / det / width, height, v]
    return np.stack(rows, 1).reshape(-1, 2, 3).astype(np.float32)


def to_oxford(frames: Frames) -> NDArray[np.float64]:
    """(N, 5) Oxford ellipses of frames; the inverse of :func:`from_oxford` but for the angle."""
    shape = frames[:, :, :2].astype(np.float64)
    inverse = np.linalg.inv(shape @ shape.swapaxes(1, 2))
    return np.column_stack([frames[:, :, 2], inverse.reshape(-1, 4)[:, [0, 1, 3]]])


def read_oxford(path: str | os.PathLike[str]) -> Frames:
    """Frames of an ellipse file: "1.0" or the descriptor's size, the count, a row per ellipse."""
    try:
        require_regular_file(as_path(path))
        _, count, *rows = as_path(path).read_text().strip().splitlines()
        if len(rows) != int(count):
            raise ValueError(f"{count} ellipses announced, {len(rows)} rows found")
        return from_oxford([row.split() for row in rows]) if rows else empty_frames()
    except (OSError, ValueError) as error:
        raise HardnetError(f"{path} cannot be read as Oxford ellipses: {error}") from error


def write_oxford(path: str | os.PathLike[str], frames: Frames) -> None:
    """Write an ellipse file that :func:`read_oxford` and the Oxford evaluation code read."""
    rows = [" ".join(f"{x:.9g}" for x in row) for row in to_oxford(frames)]
    as_path(path).write_text("\n".join(["1.0", str(len(rows)), *rows, ""]))


def transform(frames: Frames, homography: ArrayLike) -> Frames:
    """Carry frames through a (3, 3) homography, by its affine approximation at each centre."""
    h = np.asarray(homography, np.float64)
    a, t = frames[:, :, :2].astype(np.float64), frames[:, :, 2].astype(np.float64)
    projected = t @ h[:, :2].T + h[:, 2]
    w = projected[:, 2:]
    target = projected[:, :2] / w
    # d(target)/d(source) = (H_2x2 - target * h_3) / w
    jacobian = (h[None, :2, :2] - target[:, :, None] * h[None, 2:, :2]) / w[:, :, None]
    return np.concatenate([jacobian @ a, target[:, :, None]], 2).astype(np.float32)


def in_window(frames: Frames, window: float) -> Frames:
    """Frames (N, 2, 3) of the default window, about the same centres with another, in sigmas."""
    other = frames.copy()
    other[:, :, :2] *= np.float32(window / WINDOW_SIGMAS)
    return other


def rescale(frames: Frames, factor: float | tuple[float, float]) -> Frames:
    """Frames of an image that is resized by ``factor``, or by one factor for x and one for y.

    Resizing keeps pixel *corners* in place, so centres move by half a pixel: (x + .5) s - .5.
    """
    scale = np.broadcast_to(np.asarray(factor, np.float64), 2)
    out = frames.astype(np.float64) * scale[:, None]
    out[:, :, 2] += 0.5 * scale - 0.5
    return out.astype(np.float32)


def disturb(
    frames: Frames,
    shift: NDArray[np.float64],
    octaves: NDArray[np.float64],
    angle: NDArray[np.float64],
    stretch: NDArray[np.float64],
    axis: NDArray[np.float64],
) -> Frames:
    """Frames with a wrong place, size, orientation and shape, as an imperfect detector gives.

    ``shift`` (N, 2) is in half-sizes of the frame; the others are (N,): the change of size in
    octaves, the rotation, the anisotropy as log2 of the ratio of the axes (the area stays), and its
    direction in the patch; angles in radians.
    """
    size, ratio = 2**octaves, 2 ** (stretch / 2)
    diagonal = np.zeros((len(frames), 2, 2))
    diagonal[:, 0, 0], diagonal[:, 1, 1] = ratio * size, size / ratio
    noise = rotation(angle) @ rotation(axis) @ diagonal @ rotation(-axis)
    a = frames[:, :, :2].astype(np.float64)
    centre = frames[:, :, 2:] + a @ shift[:, :, None]
    return np.concatenate([a @ noise, centre], 2).astype(np.float32)


def rotation(angle: ArrayLike) -> NDArray[np.float64]:
    """(..., 2, 2) matrices that turn by (...) radians, clockwise on screen."""
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([np.stack([c, -s], -1), np.stack([s, c], -1)], -2)
