"""Orientation: rotate frames to the dominant gradient of their patch."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.frames import WINDOW_SIGMAS, Frames, cut_from_pyramid, patch_ticks, pyramid, rotation
from hardnet.images import Pixels
from hardnet.threads import map_threads

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

BINS = 36  # of the histogram of directions
_SIDE = 19  # samples per side of the window, including two for central differences
_WEIGHT_SIGMAS = 1.5  # of the Gaussian weight, in units of the keypoint's sigma, as in SIFT
_RADIUS_SIGMAS = 4.0  # gradients farther from the centre do not vote
_CHUNK = 1024  # frames per thread: fewer, larger steps let two threads run


def orient(image: Pixels, frames: Frames) -> Frames:
    """(N, 2, 3) frames rotated in their shape: x points along the dominant gradient, to bright."""
    return turn(frames, dominant_angles(direction_histograms(image, frames)))


def turn(frames: Frames, angle: Floats) -> Frames:
    """Rotate each patch by (N,) radians within the frame's shape; the region stays the same."""
    shape = frames[:, :, :2].astype(np.float64) @ rotation(angle)
    return np.concatenate([shape, frames[:, :, 2:]], 2).astype(np.float32)


def upright_form(frames: Frames) -> Frames:
    """The same regions with patch-up pointing up in the image: lower triangular shapes."""
    shape = frames[:, :, :2].astype(np.float64)
    lower = np.linalg.cholesky(shape @ shape.swapaxes(1, 2)) if len(shape) else shape
    return np.concatenate([lower, frames[:, :, 2:]], 2).astype(np.float32)


def direction_histograms(image: Pixels, frames: Frames) -> Floats:
    """(N, 36) gradient magnitude per direction in each frame's patch, smoothed.

    Bin b holds the directions around 2 pi b / 36, measured in the patch, clockwise on screen.
    """
    if not len(frames):
        return np.zeros((0, BINS))
    images = pyramid(image, 32)
    pieces = [frames[i : i + _CHUNK] for i in range(0, len(frames), _CHUNK)]
    return np.concatenate(map_threads(lambda piece: _histograms(images, piece), pieces))


def _histograms(images: list[Pixels], frames: Frames) -> Floats:
    part = 2 * _RADIUS_SIGMAS / WINDOW_SIGMAS * _SIDE / (_SIDE - 2)
    ticks = patch_ticks(_SIDE)[1:-1].astype(np.float64) * part * WINDOW_SIGMAS / 2
    squared = (ticks[:, None] ** 2 + ticks**2).reshape(-1)
    bell = np.exp(-squared / (2 * _WEIGHT_SIGMAS**2)) * (squared <= _RADIUS_SIGMAS**2)
    window = frames.copy()
    window[:, :, :2] *= np.float32(part)
    half = np.sqrt(np.abs(np.linalg.det(window[:, :, :2].astype(np.float64))))
    patches = cut_from_pyramid(images, window, half, _SIDE).astype(np.float32)
    dx = (patches[:, 1:-1, 2:] - patches[:, 1:-1, :-2]).reshape(len(frames), -1)
    dy = (patches[:, 2:, 1:-1] - patches[:, :-2, 1:-1]).reshape(len(frames), -1)
    magnitude, angle = cv2.cartToPolar(dx, dy)
    magnitude = magnitude.reshape(dx.shape) * bell.astype(np.float32)
    position = angle.reshape(dx.shape) * np.float32(BINS / (2 * np.pi))
    lower = position.astype(np.intp)  # 0 to 36: rounding may reach a full turn
    upper_part = (position - lower) * magnitude
    row = BINS + 2
    lower += np.arange(len(frames))[:, None] * row
    votes = np.zeros((len(frames), row))
    for shift, share in ((0, magnitude - upper_part), (1, upper_part)):
        counts = np.bincount(lower.ravel() + shift, share.ravel(), votes.size)
        votes += counts.reshape(votes.shape)
    votes[:, :2] += votes[:, BINS:]
    return smoothed(votes[:, :BINS])


def smoothed(histograms: Floats) -> Floats:
    """Each of (N, 36) circular histograms, blurred by a binomial filter."""
    shifted = [np.roll(histograms, i, 1) for i in range(-2, 3)]
    return np.asarray(np.tensordot(np.array([1, 4, 6, 4, 1]) / 16, shifted, 1))


def dominant_angles(histograms: Floats) -> Floats:
    """(N,) radians of the highest peak of (N, 36) histograms; 0 for a flat patch.

    The peak is that of the parabola through the highest bin and its two neighbours.
    """
    bins = histograms.argmax(1)
    rows = np.arange(len(bins))
    before, here, after = (histograms[rows, (bins + i) % BINS] for i in (-1, 0, 1))
    bend = before + after - 2 * here
    shift = np.zeros(len(bins))
    np.divide(0.5 * (before - after), bend, out=shift, where=bend < 0)
    return np.asarray((bins + shift) * (2 * np.pi / BINS))
