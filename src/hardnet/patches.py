"""Cut patches by frames: image + (N, 2, 3) frames -> (N, S, S) uint8.

Sampling a large frame from the full-size image would skip pixels and alias. Each frame is read
from the pyramid level whose pixels are about as large as the patch's, in one ``cv2.remap`` per
level and chunk, so that ten thousand frames cost a fraction of what describing them costs.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import InputError
from hardnet.frames import WINDOW_SIGMAS, Frames, check_frames, in_window

PATCH_SIZE = 32
"""Side of the patch the networks read."""

_CHUNK = 256  # frames per remap call: what one call touches stays in the cache
_MAX_SIDE = 32000  # OpenCV remaps images, and into images, of less than 32767 rows and columns
_OUTSIDE = -2  # remap takes short coordinates, and far outside is the border pixel in any case
_FINEST_STEP = 0.75  # a level is used for steps of 0.75 to 1.5 of its pixels


def patch_ticks(size: int) -> NDArray[np.float32]:
    """(S,) positions of the patch's pixel centres along one side of the square [-1, 1]^2."""
    return (np.arange(size, dtype=np.float32) * 2 + 1) / np.float32(size) - 1


def pyramid(image: NDArray[np.uint8], levels: int) -> list[NDArray[np.uint8]]:
    """``image`` and its successive halvings, each smoothed before every second pixel is kept.

    ``cv2.pyrDown`` keeps pixel (0, 0) in place: level k holds the source position 2^k (x, y).
    """
    out = [image]
    while len(out) < levels and min(out[-1].shape[:2]) >= 4:
        out.append(np.asarray(cv2.pyrDown(out[-1]), np.uint8))
    return out


def windows_of(descriptor: object) -> tuple[float, ...]:
    """The windows, in sigmas of a keypoint, that a descriptor reads."""
    windows: tuple[float, ...] = getattr(descriptor, "windows", (WINDOW_SIGMAS,))
    return windows


def cut_for(descriptor: object, image: NDArray[np.uint8], frames: Frames) -> NDArray[np.uint8]:
    """:func:`cut_patches` of frames in the default window, but in those of a descriptor.

    Returns:
        (N, S, S), or (N, K, S, S) for a descriptor of K windows.
    """
    windows = windows_of(descriptor)
    cut = _cut(image, frames, windows, PATCH_SIZE)
    return cut[:, 0] if len(windows) == 1 else cut


def cut_patches(
    image: NDArray[np.uint8], frames: Frames, size: int = PATCH_SIZE
) -> NDArray[np.uint8]:
    """(N, S, S) patches, one per frame (N, 2, 3), of a grey image (H, W) uint8.

    What lies outside the image repeats the border pixel.
    """
    return _cut(image, frames, (WINDOW_SIGMAS,), size)[:, 0]


def _cut(
    image: NDArray[np.uint8], frames: Frames, windows: Sequence[float], size: int
) -> NDArray[np.uint8]:
    """(N, K, S, S) patches of frames of the default window, in K windows."""
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


def cut_from_pyramid(
    images: list[NDArray[np.uint8]],
    frames: Frames,
    half: NDArray[np.float64],
    size: int = PATCH_SIZE,
) -> NDArray[np.uint8]:
    """Cut one patch per frame from the :func:`pyramid` of an image that is read many times.

    A frame that needs a smaller image than there is takes the smallest. The half-sizes ``half``
    (N,) choose the image that is read: the mean of a frame's two half-axes balances aliasing along
    the long one and blur along the short one; the short one itself avoids all blur.
    """
    patches = np.empty((len(frames), size, size), np.uint8)
    if max(images[0].shape) > _MAX_SIDE:
        raise InputError(
            f"the image has {max(images[0].shape)} pixels a side: shrink it (max_size)"
        )
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


def _sample(image: NDArray[np.uint8], frames: Frames, size: int) -> NDArray[np.uint8]:
    """Bilinear samples of ``image`` on the grid of each frame: (n, S, S) uint8."""
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
