"""Random views of a photograph: how the camera, the light and the sensor could have been.

Each function takes a seeded generator and draws one such change. The ranges are gentle on
purpose: hardest-in-batch learning needs pairs that can be told to match, and a set of pairs that
are too hard leaves the loss at its margin.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.frames import Frames, disturb, from_similarity, rotation, to_similarity

SHIFT, ZOOM, TURN, STRETCH = 0.15, 0.15, 10.0, 0.1
"""Easy noise, each the bound of a uniform draw: shift in x and y as a share of the half-size,
log2 of the scale, degrees, log2 of the anisotropy (along a random direction)."""


def random_homography(
    width: int, height: int, rng: np.random.Generator, most_turn: float = 40.0
) -> NDArray[np.float64]:
    """A view of the picture plane from elsewhere: turn, zoom, tilt; (3, 3) source -> target.

    ``most_turn`` is in degrees, to either side.
    """
    turn = np.deg2rad(rng.uniform(-most_turn, most_turn))
    zoom = 2 ** rng.uniform(-0.6, 0.5)
    stretch = 2 ** rng.uniform(0, 0.7)  # a tilted plane is foreshortened in one direction
    axis = rng.uniform(0, np.pi)
    tilt = rng.uniform(-0.25, 0.25, 2) / (0.5 * max(width, height))
    centre = np.array([[1, 0, -width / 2], [0, 1, -height / 2], [0, 0, 1]])
    squeeze = rotation(axis) @ np.diag([stretch**-0.5, stretch**0.5]) @ rotation(-axis)
    affine = np.eye(3)
    affine[:2, :2] = zoom * rotation(turn) @ squeeze
    perspective = np.eye(3)
    perspective[2, :2] = tilt
    return np.asarray(np.linalg.inv(centre) @ affine @ perspective @ centre)


def render(image: NDArray[np.uint8], homography: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The picture, grey or RGB, under a homography, on a canvas of the same size.

    It is smoothed before it is shrunk, so that it does not alias.
    """
    height, width = image.shape[:2]
    scale = np.sqrt(abs(np.linalg.det(homography[:2, :2])))
    if scale < 1:
        image = _blur(image, 0.5 * np.sqrt(1 / scale**2 - 1))
    out = cv2.warpPerspective(
        image, homography, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT
    )
    return np.asarray(out, np.uint8)


def random_light_and_sensor(
    image: NDArray[np.uint8], rng: np.random.Generator, wear: float = 1.0
) -> NDArray[np.uint8]:
    """Gamma, contrast, a shading ramp, blur, noise and JPEG, without saturating pixels.

    ``wear`` scales the ranges of all of them; the worst JPEG quality is 20 at 1 and 8 at 2.
    """
    height, width = image.shape
    x = image.astype(np.float32) / 255
    x = x ** np.float32(2 ** rng.uniform(-0.6 * wear, 0.6 * wear))
    slope = rng.uniform(-0.3 * wear, 0.3 * wear, 2)
    ramp = (
        1
        + slope[0] * np.linspace(-1, 1, width)[None]
        + slope[1] * np.linspace(-1, 1, height)[:, None]
    )
    x = x * ramp.astype(np.float32)
    low, high = np.percentile(x, (0.5, 99.5))
    contrast = rng.uniform(0.65 / wear, 1.0)
    base = rng.uniform(0, 1 - contrast)
    x = (x - low) / max(high - low, 1e-3) * contrast + base
    return random_sensor(x, rng, wear)


def random_sensor(
    x: NDArray[np.float32], rng: np.random.Generator, wear: float = 1.0
) -> NDArray[np.uint8]:
    """(H, W) uint8 of a grey image in [0, 1]: blur, noise and JPEG, each in a part of the draws."""
    if rng.random() < 0.4:
        x = _blur(x, rng.uniform(0.3, 1.0 * wear))
    if rng.random() < 0.5:
        grain = rng.standard_normal(x.shape, np.float32)
        x = x + grain * np.float32(rng.uniform(0.002, 0.02 * wear))
    out = np.asarray(np.clip(x * 255 + 0.5, 0, 255), np.uint8)
    if rng.random() < 0.5:
        quality = int(rng.integers(round(20 / wear**1.3), 90))
        _, code = cv2.imencode(".jpg", out, [cv2.IMWRITE_JPEG_QUALITY, quality])
        out = np.asarray(cv2.imdecode(code, cv2.IMREAD_GRAYSCALE), np.uint8)
    return out


def jitter(
    frames: Frames, rng: np.random.Generator, amount: NDArray[np.float64] | float = 1.0
) -> Frames:
    """Frames (N, 2, 3) as an imperfect detector would find them: random noise up to the easy one.

    ``amount`` multiplies the noise, for all frames or (N,) for each.
    """
    n = len(frames)
    angle = amount * np.deg2rad(rng.uniform(-TURN, TURN, n))
    octaves = amount * rng.uniform(-ZOOM, ZOOM, n)
    stretch = amount * rng.uniform(-STRETCH, STRETCH, n)
    axis = rng.uniform(0, np.pi, n)
    displacement = rng.uniform(-SHIFT, SHIFT, (n, 2)) * np.reshape(amount, (-1, 1))
    return disturb(frames, displacement, octaves, angle, stretch, axis)


def add_noise(frames: Frames, draw: NDArray[np.float64], factor: float) -> Frames:
    """Frames with a wrong place, size, orientation and shape, relative to their own size.

    ``draw`` (N, 6), in [-1, 1], is the shift in x and y, scale, turn, stretch and its direction,
    and ``factor`` a multiple of the easy noise.
    """
    shift_x, shift_y, zoom, turn, stretch = factor * draw[:, :5].T
    return disturb(
        frames,
        shift=SHIFT * np.stack([shift_x, shift_y], 1),
        octaves=ZOOM * zoom,
        angle=np.deg2rad(TURN) * turn,
        stretch=STRETCH * stretch,
        axis=draw[:, 5] * (np.pi / 2),
    )


def forget_affine_shape(frames: Frames) -> Frames:
    """Similarity frames (same centre, area, x axis), as a detector without affine shape gives."""
    return from_similarity(*to_similarity(frames))


def _blur(image: NDArray[Any], sigma: float) -> NDArray[Any]:
    return np.asarray(cv2.GaussianBlur(image, (0, 0), max(float(sigma), 1e-2)))
