"""Frames and the patches they cut: all keypoint conventions, in one place.

A *frame* is the affine map from the patch square [-1, 1]^2 to image pixels, stored as a (2, 3)
matrix [A | t]. The centre of the top-left pixel is (0, 0), x points right and y points down. The
first column of A is where the patch's x axis points in the image.

All that others call a keypoint is converted to and from frames here: a window of half the size, or
an angle of the opposite sign, is the most frequent reason for a learned descriptor to lose against
SIFT.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.errors import HardnetError, InputError
from hardnet.image_files import as_path, require_regular_file
from hardnet.storage import replace_file

if TYPE_CHECKING:
    import cv2

Frames = NDArray[np.float32]
Image = NDArray[np.uint8]
Patches = NDArray[np.uint8] | NDArray[np.float32]

Detected = tuple[Frames, NDArray[np.float32]]
"""Frames and their scores (N,)."""

WINDOW_SIGMAS = 12.0
"""Side of the measurement window in units of the keypoint's sigma, as in SIFT: 4 x 4 cells of 3."""

PATCH_SIZE = 32  # side of the patch the networks read
_COLMAP_CENTRE = 0.5  # of the top-left pixel: COLMAP counts from the corner
_CHUNK = 256  # frames per remap call: what one call touches stays in the cache
_MAX_SIDE = 32000  # OpenCV remaps images, and into images, of less than 32767 rows and columns
_OUTSIDE = -2  # remap takes short coordinates, and far outside is the border pixel in any case
_FINEST_STEP = 0.75  # a level is used for steps of 0.75 to 1.5 of its pixels


def empty_frames() -> Frames:
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

    Angles are in radians, clockwise on screen: the patch's x axis points to (cos, sin) in the
    image. ``window`` is the side of what is measured in units of sigma.
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

    Their size is a diameter, twice SIFT's sigma; their angle is in degrees, clockwise on screen,
    and -1 where the detector gives none (read as upright).
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

    They are (N, 4) x, y, scale (SIFT's sigma), orientation (radians, clockwise on screen); or
    (N, 6) x, y and a 2 x 2 matrix that maps the unit circle to one of that sigma.
    """
    table = np.asarray(keypoints, np.float64)
    if table.ndim != 2 or table.shape[1] not in (4, 6):
        raise InputError(f"COLMAP keypoints have 4 or 6 columns here, got shape {table.shape}")
    centre = points_from_colmap(table[:, :2])
    if table.shape[1] == 4:
        return from_similarity(centre, table[:, 2], table[:, 3], window)
    shape = table[:, 2:].reshape(-1, 2, 2) * (window / 2)
    return np.concatenate([shape, centre[:, :, None]], 2).astype(np.float32)


def to_colmap(frames: Frames, window: float = WINDOW_SIGMAS) -> NDArray[np.float32]:
    """(N, 6) COLMAP keypoints of frames; the inverse of :func:`from_colmap`."""
    shape = frames[:, :, :2].astype(np.float64).reshape(-1, 4) * (2 / window)
    return np.concatenate([points_to_colmap(frames[:, :, 2]), shape], 1).astype(np.float32)


def points_from_colmap(points: NDArray[Any]) -> NDArray[Any]:
    return points - _COLMAP_CENTRE


def points_to_colmap(points: NDArray[Any]) -> NDArray[Any]:
    return points + _COLMAP_CENTRE


def from_oxford(ellipses: ArrayLike) -> Frames:
    """Upright frames of Oxford ellipses, a (x-u)^2 + 2 b (x-u) (y-v) + c (y-v)^2 = 1.

    The rows are u, v, a, b, c; further columns (a descriptor) are ignored. The ellipse is what the
    detector measures, so it becomes the circle inscribed in the patch.
    """
    table = np.asarray(ellipses, np.float64)
    if table.ndim != 2 or table.shape[1] < 5:
        raise InputError(f"Oxford ellipses have 5 columns, got shape {table.shape}")
    u, v, a, b, c = table[:, :5].T
    det = a * c - b * b
    good = (det > 0) & (a > 0)
    if not good.all():
        row = int(good.argmin()) + 1
        raise InputError(f"row {row} is not an ellipse: a c - b^2 and a must be positive")
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
    replace_file(as_path(path), "\n".join(["1.0", str(len(rows)), *rows, ""]).encode())


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

    ``shift`` (N, 2) is in half-sizes of the frame, ``stretch`` the log2 of the ratio of the axes
    (the area stays), ``axis`` its direction in the patch; angles are in radians.
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


def patch_ticks(size: int) -> NDArray[np.float32]:
    """(S,) positions of the patch's pixel centres along one side of the square [-1, 1]^2."""
    return (np.arange(size, dtype=np.float32) * 2 + 1) / np.float32(size) - 1


def windows_of(descriptor: object) -> tuple[float, ...]:
    """The windows, in sigmas of a keypoint, that a descriptor reads."""
    windows: tuple[float, ...] = getattr(descriptor, "windows", (WINDOW_SIGMAS,))
    return windows


def cut_for(descriptor: object, image: Image, frames: Frames) -> Image:
    """:func:`cut_patches` in the K windows of a descriptor: (N, K, S, S), or (N, S, S) for one."""
    windows = windows_of(descriptor)
    cut = _cut(image, frames, windows, PATCH_SIZE)
    return cut[:, 0] if len(windows) == 1 else cut


def cut_patches(image: Image, frames: Frames, size: int = PATCH_SIZE) -> Image:
    """(N, S, S) patches, one per frame (N, 2, 3), of a grey image (H, W) uint8.

    The border pixel is repeated outside the image. Each frame is read from the pyramid level whose
    pixels are about as large as the patch's: the full-size image would be aliased.
    """
    return _cut(image, frames, (WINDOW_SIGMAS,), size)[:, 0]


def _cut(image: Image, frames: Frames, windows: Sequence[float], size: int) -> Image:
    if image.ndim != 2 or image.dtype != np.uint8:
        raise InputError(f"image must be (H, W) uint8, got {image.shape} {image.dtype}")
    frames = check_frames(frames)
    patches = np.empty((len(frames), len(windows), size, size), np.uint8)
    if not len(frames):
        return patches
    half = np.sqrt(np.abs(np.linalg.det(frames[:, :, :2].astype(np.float64))))
    scales = [np.float32(window / WINDOW_SIGMAS) for window in windows]
    images = pyramid(image, int(_levels(half * max(scales), size).max()) + 1)
    for k, window in enumerate(windows):
        patches[:, k] = cut_from_pyramid(images, in_window(frames, window), half * scales[k], size)
    return patches


def pyramid(image: Image, levels: int) -> list[Image]:
    """``image`` and its successive halvings, each smoothed before every second pixel is kept.

    ``cv2.pyrDown`` keeps pixel (0, 0) in place: level k holds the source position 2^k (x, y).
    """
    import cv2

    out = [image]
    while len(out) < levels and min(out[-1].shape[:2]) >= 4:
        out.append(np.asarray(cv2.pyrDown(out[-1]), np.uint8))
    return out


def cut_from_pyramid(
    images: list[Image], frames: Frames, half: NDArray[np.float64], size: int
) -> Image:
    """Cut one patch per frame from the :func:`pyramid` of an image that is read many times.

    The half-sizes ``half`` (N,) choose the level that is read: the mean of a frame's two half-axes
    balances aliasing along the long one and blur along the short one; the short avoids all blur.
    """
    patches = np.empty((len(frames), size, size), np.uint8)
    if (side := max(images[0].shape)) > _MAX_SIDE:
        raise InputError(f"the image has {side} pixels a side: shrink it (max_size)")
    level = np.minimum(_levels(half, size), len(images) - 1)
    chunk = min(_CHUNK, _MAX_SIDE // size)
    for k, source in enumerate(images):
        chosen = np.flatnonzero(level == k)
        for start in range(0, len(chosen), chunk):
            index = chosen[start : start + chunk]
            patches[index] = _sample(source, frames[index] / np.float32(2**k), size)
    return patches


def _levels(half: NDArray[np.float64], size: int) -> NDArray[np.intp]:
    """(N,) the pyramid level whose pixels are about as far apart as the samples of a frame."""
    step = 2 * half / size  # in pixels of the full-size image
    wanted = np.floor(np.log2(np.maximum(step, 1e-6) / _FINEST_STEP)).astype(np.intp)
    return np.asarray(np.maximum(wanted, 0), np.intp)


def _sample(image: Image, frames: Frames, size: int) -> Image:
    """(n, S, S) bilinear samples of ``image`` on the grid of each frame."""
    import cv2

    ticks = patch_ticks(size)
    # An affine grid is a sum of two vectors, one per column and one per row of the patch.
    columns = frames[:, :, 0, None] * ticks
    rows = frames[:, :, 1, None] * ticks + frames[:, :, 2, None]
    x, y = ((columns[:, i, None, :] + rows[:, i, :, None]).reshape(-1, size) for i in (0, 1))
    if np.abs(frames).sum(2).max() > _MAX_SIDE:
        for grid in (x, y):
            np.clip(grid, _OUTSIDE, _MAX_SIDE, out=grid)
    out = cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(out, np.uint8).reshape(len(frames), size, size)


def check_patches(patches: ArrayLike) -> Patches:
    """(N, S, S) or (N, 1, S, S) patches, or an empty list, as one (N, S, S) array.

    It is uint8 if they were, else float32. Wrong shapes and types, NaN and infinity are an error.
    """
    try:
        array: NDArray[Any] = np.asarray(patches)
    except ValueError as error:  # a list of patches of different sizes
        raise InputError(f"patches must all have one size: {error}") from error
    if array.ndim == 1 and not len(array):
        return np.zeros((0, 1, 1), np.uint8)
    if array.ndim == 4 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 3:
        raise InputError(
            f"patches must have shape (N, S, S) or (N, 1, S, S), got {array.shape}"
            + ("; one patch is patch[None]" if array.ndim == 2 else "")
        )
    if array.shape[1] != array.shape[2]:
        raise InputError(f"patches must be square, got {array.shape[1]} x {array.shape[2]}")
    if len(array) and not array.shape[1]:
        raise InputError("patches have no pixels")
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "fiu":
        raise InputError(f"patches must be numbers, got {array.dtype}")
    array = array.astype(np.float32)
    bad = ~np.isfinite(array).all(axis=(1, 2))
    if bad.any():
        raise InputError(
            f"{bad.sum()} of {len(array)} patches contain NaN or infinity, "
            f"the first is number {int(np.argmax(bad))}"
        )
    return array


def resize_patches(patches: Patches, size: int) -> Patches:
    """(N, S, S) -> (N, size, size) of the same type.

    Bilinear, as in the published evaluation: 64 -> 32 is the mean of 2 x 2 pixels. Larger ones than
    65 -> 32 are first halved by averaging, because steps of more than two pixels would skip pixels.
    """
    import cv2

    if patches.shape[1] == size or not len(patches):
        return patches.reshape(len(patches), size, size)
    out = np.empty((len(patches), size, size), patches.dtype)
    for i, patch in enumerate(patches):
        while patch.shape[0] > 2 * size + 1:
            half = patch.shape[0] // 2
            patch = cv2.resize(patch, (half, half), interpolation=cv2.INTER_AREA)
        out[i] = cv2.resize(patch, (size, size), interpolation=cv2.INTER_LINEAR)
    return out


def grey_bytes(patches: Patches) -> NDArray[np.uint8]:
    """(N, S, S) as whole grey values 0..255, for what reads nothing else.

    Values outside 0..255, or 0..1, which rounding would destroy, are an error.
    """
    if patches.dtype == np.uint8:
        return patches.astype(np.uint8, copy=False)
    low, high = float(patches.min(initial=0)), float(patches.max(initial=0))
    whole = np.round(patches)
    if low < 0 or high > 255 or (high <= 1 and not np.array_equal(whole, patches)):
        raise InputError(
            f"patches have values from {low:.3g} to {high:.3g}; "
            "this descriptor reads grey values 0..255"
        )
    return np.asarray(whole, np.uint8)
