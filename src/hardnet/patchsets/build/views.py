"""Random views of a photograph: other cameras, other light, other sensors.

Each function takes a seeded generator and draws one such change. The ranges of camera and sensor
are gentle on purpose: hardest-in-batch learning needs pairs that can be recognised, and a set of
pairs that are too hard leaves the loss at its margin.

The changes of light take an RGB image (H, W, 3) of float32 in [0, 1] and a strength (0 changes
nothing, 1 is a strong everyday change) and return such an image. Geometry stays: a point is in the
same pixel before and after, so frames found in both show the same surface.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.frames import Frames, disturb, from_similarity, rotation, to_similarity
from hardnet.images import Pixels
from hardnet.patchsets.patchset import Floats

SHIFT, ZOOM, TURN, STRETCH = 0.15, 0.15, 10.0, 0.1
"""Easy noise, each the bound of a uniform draw: shift in x and y as a share of the half-size,
log2 of the scale, degrees, log2 of the anisotropy (along a random direction)."""


def random_homography(
    width: int, height: int, rng: np.random.Generator, most_turn: float = 40.0
) -> Floats:
    """(3, 3) source -> target: turn by up to ``most_turn`` degrees, zoom, tilt."""
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


def render(image: Pixels, homography: Floats) -> Pixels:
    """The picture, grey or RGB, under a homography, on a canvas of the same size."""
    height, width = image.shape[:2]
    scale = np.sqrt(abs(np.linalg.det(homography[:2, :2])))
    if scale < 1:
        image = _blur(image, 0.5 * np.sqrt(1 / scale**2 - 1))
    out = cv2.warpPerspective(
        image, homography, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT
    )
    return np.asarray(out, np.uint8)


def random_light_and_sensor(image: Pixels, rng: np.random.Generator, wear: float = 1.0) -> Pixels:
    """Gamma, contrast, a shading ramp, blur, noise and JPEG, without saturating pixels."""
    height, width = image.shape
    x = image.astype(np.float32) / 255
    x = x ** np.float32(2 ** rng.uniform(-0.6 * wear, 0.6 * wear))
    slope = rng.uniform(-0.3 * wear, 0.3 * wear, 2)
    across, down = np.linspace(-1, 1, width)[None], np.linspace(-1, 1, height)[:, None]
    x = x * (1 + slope[0] * across + slope[1] * down).astype(np.float32)
    low, high = np.percentile(x, (0.5, 99.5))
    contrast = rng.uniform(0.65 / wear, 1.0)
    base = rng.uniform(0, 1 - contrast)
    x = (x - low) / max(high - low, 1e-3) * contrast + base
    return random_sensor(x, rng, wear)


def random_sensor(x: NDArray[np.float32], rng: np.random.Generator, wear: float = 1.0) -> Pixels:
    """(H, W) uint8 of a grey image in [0, 1]: blur, noise and JPEG, each with some probability."""
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


def jitter(frames: Frames, rng: np.random.Generator, amount: Floats | float = 1.0) -> Frames:
    """Frames with random noise up to ``amount`` (for all, or (N,) for each) times the easy one."""
    n = len(frames)
    angle = amount * np.deg2rad(rng.uniform(-TURN, TURN, n))
    octaves = amount * rng.uniform(-ZOOM, ZOOM, n)
    stretch = amount * rng.uniform(-STRETCH, STRETCH, n)
    axis = rng.uniform(0, np.pi, n)
    displacement = rng.uniform(-SHIFT, SHIFT, (n, 2)) * np.reshape(amount, (-1, 1))
    return disturb(frames, displacement, octaves, angle, stretch, axis)


def add_noise(frames: Frames, draw: Floats, factor: float) -> Frames:
    """Frames with ``factor`` times the easy noise.

    ``draw`` (N, 6), in [-1, 1], is the shift in x and y, scale, turn, stretch and its direction.
    """
    shift, (zoom, turn, stretch) = factor * draw[:, :2], factor * draw[:, 2:5].T
    angle, axis = np.deg2rad(TURN) * turn, draw[:, 5] * (np.pi / 2)
    return disturb(frames, SHIFT * shift, ZOOM * zoom, angle, STRETCH * stretch, axis)


def forget_affine_shape(frames: Frames) -> Frames:
    """Similarity frames (same centre, area, x axis), as a detector without affine shape gives."""
    return from_similarity(*to_similarity(frames))


def _blur(image: NDArray[Any], sigma: float) -> NDArray[Any]:
    return np.asarray(cv2.GaussianBlur(image, (0, 0), max(float(sigma), 1e-2)))


Image = NDArray[np.float32]
Change = Callable[..., Image]

LUMINANCE = np.array([0.299, 0.587, 0.114], np.float32)
"""Weights of red, green and blue in the usual grey."""
_STEP = 8  # pixels between samples of slow changes of light
_DARKEST = np.float32(0.004)  # one grey level: logarithms need a floor


def random_grey(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """(H, W) grey with random weights of red, green and blue, as sensors and filters differ."""
    drawn = rng.dirichlet((1, 1, 1)).astype(np.float32)
    share = np.float32(min(strength, 1.0))
    return np.asarray(image @ ((1 - share) * LUMINANCE + share * drawn), np.float32)


def relight(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """Other brightness of the large areas, with the texture of the surfaces kept.

    The base of log-luminance, which follows strong edges, goes through a tone curve that need not
    be monotone: a wall that was darker than the sky may become brighter. The detail gets a gain.
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


def random_curve(rng: np.random.Generator, strength: float) -> Floats:
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

    Variations within ``radius`` pixels well below ``contrast`` go, edges well above it stay.
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

    Photons make noise in the bright parts, the electronics in the dark ones.
    """
    gain = 2 ** rng.uniform(-2.0 * strength, 1.6 * strength)
    linear = np.minimum(image**2.2 * np.float32(gain), 1)
    shot = strength * 10 ** rng.uniform(-3, -1.7)
    read = strength * 10 ** rng.uniform(-3.5, -2.2)
    spread = np.sqrt(shot**2 * linear + read**2).astype(np.float32)
    linear = linear + spread * rng.standard_normal(image.shape, np.float32)
    seen = np.clip(linear, 0, 1) ** np.float32(1 / 2.2)
    if gain < 1 and rng.random() < 0.7:  # the camera, or later editing, compensates
        seen = seen / max(float(np.percentile(seen, 99.5)), 0.02)
    return _in_range(seen)


def glare(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """A veil of light around a bright spot in or near the picture, as when facing the sun."""
    height, width = image.shape[:2]
    spot = rng.uniform(-0.1, 1.1, 2) * (width, height)
    reach = max(height, width) * rng.uniform(0.1, 0.7)
    veil = strength * rng.uniform(0.2, 0.9) * np.exp(-_distance(image, spot) / reach)
    tint = 1 - rng.uniform(0, 0.2, 3) * (0, 0.5, 1)
    return _in_range(image + _full_size(veil[:, :, None] * tint, image))


def night(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """Dim blue light from one side, and up to eight orange lamps that light parts of the scene."""
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

    Log-luminance takes the place of the unknown relief: wrong for paint, roughly right for stone,
    plaster and leaves.
    """
    relief = np.log(np.maximum(image @ LUMINANCE, _DARKEST))
    relief = cv2.GaussianBlur(relief, (0, 0), 2 ** rng.uniform(0, 2.5))
    angle = rng.uniform(0, 2 * np.pi)
    down, across = np.gradient(relief)
    slope = np.cos(angle) * across + np.sin(angle) * down
    facing = np.tanh(slope / (2 * slope.std() + 1e-6))
    shade = np.exp(strength * rng.uniform(0.3, 1.0) * facing).astype(np.float32)
    return _in_range(image * shade[:, :, None])


def lit_windows(image: Image, rng: np.random.Generator, strength: float = 1.0) -> Image:
    """Some dark areas shine, like windows in the evening."""
    height, width = image.shape[:2]
    bright = np.asarray(image @ LUMINANCE, np.float32)
    side = 2 * max(int(max(height, width) * 10 ** rng.uniform(-2, -1.2)), 2) + 1
    darker = cv2.blur(bright, (side, side)) - bright
    window = np.clip(darker / (darker.std() + 1e-6) - 0.5, 0, 1)
    cells = rng.uniform(-1, 1, (int(rng.integers(3, 12)), int(rng.integers(3, 12))))
    where = np.clip(2 * cv2.resize(cells.astype(np.float32), (width, height)), 0, 1)
    glow = strength * rng.uniform(0.3, 0.9) * (window * where)[:, :, None]
    return _in_range(image + np.asarray(glow * np.array([1.0, 0.8, 0.5]), np.float32))


CHANGES: dict[str, tuple[Change, float]] = {
    "relight": (relight, 0.6),
    "rake": (rake, 0.4),
    "cast shadows": (cast_shadows, 0.35),
    "night": (night, 0.25),
    "lit windows": (lit_windows, 0.25),
    "glare": (glare, 0.15),
    "expose": (expose, 0.6),
}
"""Each change and its probability, in the order in which light travels: onto the scene, through the
lens, onto the sensor."""


def random_light(pixels: Pixels, rng: np.random.Generator, strength: float = 1.0) -> Pixels:
    """(H, W) grey of an (H, W, 3) RGB photograph under a random combination of the changes."""
    image: Image = np.asarray(pixels, np.float32) / np.float32(255)
    for change, share in CHANGES.values():
        if rng.random() < share:
            image = change(image, rng, strength)
    grey = random_grey(image, rng, strength)
    return np.asarray(np.clip(grey * 255 + 0.5, 0, 255), np.uint8)


def draw_changes(pixels: Pixels, columns: int = 4, seed: int = 0, width: int = 240) -> Pixels:
    """(H, W, 3) picture of what the changes do to an RGB photograph: a row for each, and all."""
    height = round(width * pixels.shape[0] / pixels.shape[1])
    small = np.asarray(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
    image: Image = np.asarray(small, np.float32) / np.float32(255)

    def draw(change: Callable[[np.random.Generator], NDArray[Any]]) -> list[Image]:
        drawn = [change(np.random.default_rng([seed, k])) for k in range(1, columns)]
        return [
            each if each.ndim == 3 else np.dstack([each / np.float32(255)] * 3) for each in drawn
        ]

    rows = {
        name: draw(partial(change, image, strength=1.0)) for name, (change, _) in CHANGES.items()
    }
    rows["grey"] = draw(lambda rng: np.asarray(random_grey(image, rng) * 255, np.uint8))
    rows["all"] = draw(lambda rng: random_light(small, rng))
    lines = []
    for name, drawn in rows.items():
        heading = np.full((20, columns * width, 3), 255, np.uint8)
        cv2.putText(heading, name, (4, 14), cv2.FONT_HERSHEY_SIMPLEX, 0.45, (0, 0, 0), 1)
        lines += [heading, np.asarray(np.hstack([image, *drawn]) * 255 + 0.5, np.uint8)]
    return np.vstack(lines)


def _in_range(values: NDArray[np.float32]) -> Image:
    return np.asarray(np.clip(values, 0, 1), np.float32)


def _shine(image: Image, light: NDArray[np.float32]) -> Image:
    return _in_range(image * light ** np.float32(1 / 2.2))


def _coarse(image: Image) -> tuple[Floats, Floats]:
    """Pixel coordinates x (1, w) and y (h, 1) of every eighth pixel: light changes slowly."""
    y, x = (np.arange(4 - 0.5, side + 4, _STEP) for side in image.shape[:2])
    return x[None], y[:, None]


def _distance(image: Image, spot: Floats) -> Floats:
    x, y = _coarse(image)
    return np.asarray(np.hypot(x - spot[0], y - spot[1]))


def _full_size(field: Floats, image: Image) -> NDArray[np.float32]:
    height, width = image.shape[:2]
    size = field.shape[1] * _STEP, field.shape[0] * _STEP
    large = cv2.resize(field.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)
    return np.asarray(large[:height, :width], np.float32)


def _soften(mask: NDArray[np.float32], sigma: float) -> NDArray[np.float32]:
    """Gaussian blur; a wide one is computed at a quarter of the size, which looks the same."""
    if sigma < 8:
        return np.asarray(cv2.GaussianBlur(mask, (0, 0), max(sigma, 0.5)), np.float32)
    height, width = mask.shape
    small = cv2.resize(mask, (width // 4, height // 4), interpolation=cv2.INTER_AREA)
    small = cv2.GaussianBlur(small, (0, 0), sigma / 4)
    return np.asarray(cv2.resize(small, (width, height)), np.float32)
