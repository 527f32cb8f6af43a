"""Other light on a photograph: what the sun, the clouds, lamps and the camera could have done.

Each change takes an RGB image (H, W, 3) of float32 in [0, 1], a seeded generator and a strength
(0 changes nothing, 1 is a strong everyday change) and returns such an image. Geometry stays: a
point is in the same pixel before and after, so frames found in both show the same surface.
"""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.float32]
Change = Callable[[Image, np.random.Generator, float], Image]

LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in the usual grey."""
_STEP = 8  # pixels between those for which slow changes of light are computed
_DARKEST = np.float32(0.004)  # one grey level: logarithms need a floor


def random_grey(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """(H, W) grey with random weights of red, green and blue, as sensors and filters differ.

    At strength 0 these are the usual ones; at 1, any weights that sum to 1.
    """
    drawn = rng.dirichlet((1, 1, 1)).astype(np.float32)
    share = np.float32(min(strength, 1.0))
    return np.asarray(image @ ((1 - share) * LUMINANCE + share * drawn), np.float32)


def relight(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """Other brightness of the large areas, with the texture of the surfaces kept.

    Log-luminance is split into a base that follows strong edges and the detail on top of it. The
    base goes through a random tone curve, which in a part of the draws is not monotone: a wall that
    was darker than the sky may become brighter. The detail gets one random gain.
    """
    bright = np.log(np.maximum(image @ LUMINANCE, _DARKEST))
    base = smooth_keeping_edges(bright, max(image.shape[0] // 40, 3), 0.15)
    detail = bright - base
    low, high = np.percentile(base, (1, 99))
    position = np.clip((base - low) / max(float(high - low), 1e-3), 0, 1)
    curve = random_curve(rng, strength)
    knots = np.linspace(0, 1, len(curve))
    lifted = base + (high - low) * (np.interp(position, knots, curve) - position)
    gain = 2 ** rng.uniform(-0.5 * strength, 0.5 * strength)
    change = (lifted + gain * detail - bright).astype(np.float32)
    return _in_range(image * np.exp(np.clip(change, -4, 4))[:, :, None])


def random_curve(rng: np.random.Generator, strength: float) -> NDArray[np.float64]:
    """(5,) heights of a tone curve over evenly spaced knots of [0, 1]; the diagonal at 0."""
    diagonal = np.linspace(0, 1, 5)
    drawn = rng.uniform(0, 1, 5)
    if rng.random() < 0.6:
        drawn = np.sort(drawn)
    return np.asarray(diagonal + min(strength, 1.0) * 0.8 * (drawn - diagonal))


def smooth_keeping_edges(
    image: NDArray[np.float32], radius: int, contrast: float
) -> NDArray[np.float32]:
    """The guided filter of an (H, W) image by itself (He, Sun and Tang, 2010).

    Variations within a window of ``radius`` pixels that are well below ``contrast`` are smoothed
    away, edges well above it stay.
    """
    side = (2 * radius + 1, 2 * radius + 1)
    mean = cv2.blur(image, side)
    variance = np.maximum(cv2.blur(image * image, side) - mean * mean, 0)
    slope = variance / (variance + np.float32(contrast**2))
    offset = mean - slope * mean
    return np.asarray(cv2.blur(slope, side) * image + cv2.blur(offset, side), np.float32)


def cast_shadows(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """One to three shadows of unseen things, bluish, with edges from hard to very soft."""
    height, width = image.shape[:2]
    size = max(height, width)
    light = np.ones_like(image)
    tint = np.array([1.0, 0.95, 0.85], np.float32)  # what is left is the light of the sky
    for _ in range(rng.integers(1, 4)):
        mask = np.zeros((height, width), np.float32)
        corners = rng.uniform(-0.3, 1.3, (int(rng.integers(3, 7)), 2)) * (width, height)
        hull = cv2.convexHull(np.round(corners).astype(np.int32))
        cv2.fillConvexPoly(mask, hull, 1.0)
        softness = size * 10 ** rng.uniform(-3.2, -1.3)
        mask = _soften(mask, softness)
        depth = min(strength * rng.uniform(0.3, 0.85), 0.95)
        light *= 1 - mask[:, :, None] * np.float32(depth) * tint
    return _shine(image, light)


def expose(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """Over- or underexposure with real clipping, then the noise of the sensor.

    Light is scaled where it is linear, so that bright areas are lost for good; photons make noise
    in the bright parts and the electronics make it in the dark ones.
    """
    gain = 2 ** rng.uniform(-2.0 * strength, 1.6 * strength)
    linear = np.minimum(image**2.2 * np.float32(gain), 1)
    shot = strength * 10 ** rng.uniform(-3, -1.7)
    read = strength * 10 ** rng.uniform(-3.5, -2.2)
    spread = np.sqrt(shot**2 * linear + read**2).astype(np.float32)
    linear = linear + spread * rng.standard_normal(image.shape, np.float32)
    seen = np.clip(linear, 0, 1) ** np.float32(1 / 2.2)
    if gain < 1 and rng.random() < 0.7:  # the camera, or who developed the photo, makes up for it
        seen = seen / max(float(np.percentile(seen, 99.5)), 0.02)
    return _in_range(seen)


def glare(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """A veil of light around a bright spot in or near the picture, as against the sun."""
    height, width = image.shape[:2]
    spot = rng.uniform(-0.1, 1.1, 2) * (width, height)
    reach = max(height, width) * rng.uniform(0.1, 0.7)
    veil = strength * rng.uniform(0.2, 0.9) * np.exp(-_distance(image, spot) / reach)
    tint = 1 - rng.uniform(0, 0.2, 3) * (0, 0.5, 1)
    return _in_range(image + _full_size(veil[:, :, None] * tint, image))


def night(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """Little blue light from one side, and up to eight orange lamps that reach a part of it."""
    height, width = image.shape[:2]
    angle = rng.uniform(0, 2 * np.pi)
    x, y = _coarse(image)
    slope = np.cos(angle) * (2 * x / width - 1) + np.sin(angle) * (2 * y / height - 1)
    ambient = 2 ** (strength * (slope - rng.uniform(1, 4)))
    light = ambient[:, :, None] * (1 - min(strength, 1.0) * np.array([0.3, 0.15, 0.0]))
    for _ in range(rng.integers(0, 9)):
        spot = rng.uniform(0, 1, 2) * (width, height)
        reach = max(height, width) * 10 ** rng.uniform(-1.5, -0.4)
        fall = strength * rng.uniform(0.3, 2.5) / (1 + (_distance(image, spot) / reach) ** 2)
        light = light + fall[:, :, None] * np.array([1.0, 0.75, 0.45])
    return _shine(image, _full_size(light, image))


def rake(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """Light from another side: slopes that face it become brighter, those behind darker.

    The relief is not known; log-luminance, smoothed at a random scale, stands for it. That is wrong
    for paint and about right for stone, plaster, leaves and everything else that has a shape.
    """
    relief = np.log(np.maximum(image @ LUMINANCE, _DARKEST))
    relief = cv2.GaussianBlur(relief, (0, 0), 2 ** rng.uniform(0, 2.5))
    angle = rng.uniform(0, 2 * np.pi)
    slope = np.cos(angle) * np.gradient(relief, axis=1) + np.sin(angle) * np.gradient(
        relief, axis=0
    )
    facing = np.tanh(slope / (2 * slope.std() + 1e-6))
    shade = np.exp(strength * rng.uniform(0.3, 1.0) * facing).astype(np.float32)
    return _in_range(image * shade[:, :, None])


def lit_windows(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """Some of what is darker than its surroundings shines, as windows do in the evening."""
    height, width = image.shape[:2]
    bright = np.asarray(image @ LUMINANCE, np.float32)
    side = 2 * max(int(max(height, width) * 10 ** rng.uniform(-2, -1.2)), 2) + 1
    darker = cv2.blur(bright, (side, side)) - bright
    window = np.clip(darker / (darker.std() + 1e-6) - 0.5, 0, 1)
    cells = rng.uniform(-1, 1, (int(rng.integers(3, 12)), int(rng.integers(3, 12))))
    where = np.clip(2 * cv2.resize(cells.astype(np.float32), (width, height)), 0, 1)
    glow = strength * rng.uniform(0.3, 0.9) * (window * where)[:, :, None]
    return _in_range(image + np.asarray(glow * np.array([1.0, 0.8, 0.5]), np.float32))


CHANGES: dict[str, Change] = {
    "relight": relight,
    "rake": rake,
    "cast shadows": cast_shadows,
    "night": night,
    "lit windows": lit_windows,
    "glare": glare,
    "expose": expose,
}
"""In the order in which light travels: onto the scene, through the lens, onto the sensor."""

_SHARES = {
    "relight": 0.6,
    "rake": 0.4,
    "cast shadows": 0.35,
    "night": 0.25,
    "lit windows": 0.25,
    "glare": 0.15,
    "expose": 0.6,
}


def random_light(
    pixels: NDArray[np.uint8], rng: np.random.Generator, strength: float = 1.0
) -> NDArray[np.uint8]:
    """(H, W) grey of an (H, W, 3) RGB photograph under a random combination of the changes."""
    image: Image = np.asarray(pixels, np.float32) / np.float32(255)
    for name, change in CHANGES.items():
        if rng.random() < _SHARES[name]:
            image = change(image, rng, strength)
    grey = random_grey(image, rng, strength)
    return np.asarray(np.clip(grey * 255 + 0.5, 0, 255), np.uint8)


def draw_changes(
    pixels: NDArray[np.uint8], columns: int = 4, seed: int = 0, width: int = 240
) -> NDArray[np.uint8]:
    """(H, W, 3) a picture of what the changes do: a row for each, and one of all together.

    Args:
        pixels: (h, w, 3) RGB photograph.
        columns: pictures in a row; the first shows the photograph itself.
        seed: of the draws.
        width: of each picture in pixels.
    """
    height = round(width * pixels.shape[0] / pixels.shape[1])
    small = np.asarray(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
    image: Image = np.asarray(small, np.float32) / np.float32(255)

    def grey(change: Callable[[np.random.Generator], NDArray[np.uint8]]) -> list[Image]:
        drawn = [change(np.random.default_rng([seed, k])) for k in range(1, columns)]
        return [np.repeat(np.asarray(each, np.float32)[:, :, None] / 255, 3, 2) for each in drawn]

    rows = {
        name: [change(image, np.random.default_rng([seed, k]), 1.0) for k in range(1, columns)]
        for name, change in CHANGES.items()
    }
    rows["grey"] = grey(lambda rng: np.asarray(random_grey(image, rng) * 255, np.uint8))
    rows["all"] = grey(lambda rng: random_light(small, rng))
    label = 20
    lines = []
    for name, drawn in rows.items():
        heading = np.full((label, columns * width, 3), 255, np.uint8)
        cv2.putText(heading, name, (4, 14), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (0, 0, 0), 1)
        lines += [heading, np.asarray(np.hstack([image, *drawn]) * 255 + 0.5, np.uint8)]
    return np.vstack(lines)


def _in_range(values: NDArray[np.float32]) -> Image:
    return np.asarray(np.clip(values, 0, 1), np.float32)


def _shine(image: Image, light: NDArray[np.float32]) -> Image:
    """The image with its light multiplied, where it is linear."""
    return _in_range(image * light ** np.float32(1 / 2.2))


def _coarse(image: Image) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pixel coordinates x (1, w) and y (h, 1) of every eighth pixel: light changes slowly."""
    height, width = image.shape[:2]
    x, y = (np.arange(4 - 0.5, side + 4, _STEP) for side in (width, height))
    return x[None], y[:, None]


def _distance(image: Image, spot: NDArray[np.float64]) -> NDArray[np.float64]:
    """(h, w) pixels from the coarse pixels to a spot."""
    x, y = _coarse(image)
    return np.asarray(np.hypot(x - spot[0], y - spot[1]))


def _full_size(field: NDArray[np.float64], image: Image) -> NDArray[np.float32]:
    """A field over the coarse pixels as one over all pixels."""
    height, width = image.shape[:2]
    size = field.shape[1] * _STEP, field.shape[0] * _STEP
    large = cv2.resize(field.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)
    return np.asarray(large[:height, :width], np.float32)


def _soften(mask: NDArray[np.float32], sigma: float) -> NDArray[np.float32]:
    """Gaussian blur; a wide one on a quarter of the size, where it shows no difference."""
    if sigma < 8:
        return np.asarray(cv2.GaussianBlur(mask, (0, 0), max(sigma, 0.5)), np.float32)
    height, width = mask.shape
    small = cv2.resize(mask, (width // 4, height // 4), interpolation=cv2.INTER_AREA)
    small = cv2.GaussianBlur(small, (0, 0), sigma / 4)
    return np.asarray(cv2.resize(small, (width, height)), np.float32)
