"""Copies of photographs as people make them, each with the map from the photograph to the copy.

Edits have a kind (see :mod:`hardnet.retrieval.kinds`) and a severity, and are reproducible from a
seed. There are also sweeps of a camera, and pages of text and repeated patterns: photos that look
alike but are never copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import cv2
import numpy as np

from hardnet.bench.metrics import Floats
from hardnet.images import Pixels, to_colour
from hardnet.retrieval.kinds import Kind

Edited = tuple[Pixels, Floats]
"""Pixels, and the (2, 3) map from pixels of the photograph to pixels of these."""

QUALITY = 92
"""JPEG quality of copies, unless the edit changes it."""


@dataclass(frozen=True)
class Edit:
    """One way to change a photograph: (pixels, random numbers) -> the copy."""

    name: str
    kind: Kind
    make: Callable[[Pixels, np.random.Generator], Edited] = field(repr=False)
    quality: int = QUALITY


def crop(pixels: Pixels, rng: np.random.Generator, area: float) -> Edited:
    """A random part with a share ``area`` of the photo, of the same proportions."""
    height, width = pixels.shape[:2]
    side = math.sqrt(area)
    w, h = max(round(width * side), 16), max(round(height * side), 16)
    x, y = (int(rng.integers(0, room + 1)) for room in (width - w, height - h))
    return pixels[y : y + h, x : x + w], np.array([[1.0, 0, -x], [0, 1.0, -y]])


def turn(pixels: Pixels, degrees: float, cut: bool = False) -> Edited:
    """Rotated clockwise about its centre, on a black canvas large enough, or cropped to fit."""
    height, width = pixels.shape[:2]
    sine, cosine = math.sin(math.radians(degrees)), math.cos(math.radians(degrees))
    linear = np.array([[cosine, -sine], [sine, cosine]])
    w, h = (np.abs(linear) @ (width, height)).round(6)
    if cut:  # the largest upright rectangle of the same proportions
        outer = np.abs(linear) @ (width, height)
        w, h = np.array([width, height]) * min(width / outer[0], height / outer[1])
    size = math.floor(w), math.floor(h)
    shift = (np.array(size) - 1) / 2 - linear @ ((np.array([width, height]) - 1) / 2)
    transform = np.column_stack([linear, shift])
    return np.asarray(cv2.warpAffine(pixels, transform, size, flags=cv2.INTER_CUBIC)), transform


def mirror(pixels: Pixels) -> Edited:
    """Left and right exchanged."""
    return pixels[:, ::-1], np.array([[-1.0, 0, pixels.shape[1] - 1], [0, 1.0, 0]])


def resize(pixels: Pixels, x: float, y: float) -> Edited:
    """Width and height scaled by ``x`` and ``y``."""
    height, width = pixels.shape[:2]
    size = max(round(width * x), 16), max(round(height * y), 16)
    x, y = size[0] / width, size[1] / height
    how = cv2.INTER_AREA if min(x, y) < 1 else cv2.INTER_CUBIC
    transform = np.array([[x, 0, x / 2 - 0.5], [0, y, y / 2 - 0.5]])
    return np.asarray(cv2.resize(pixels, size, interpolation=how)), transform


def border(pixels: Pixels, share: float) -> Edited:
    """A white frame around it, its width a share of the shorter side."""
    wide = round(share * min(pixels.shape[:2]))
    colour = (250, 250, 245)
    framed = cv2.copyMakeBorder(pixels, wide, wide, wide, wide, cv2.BORDER_CONSTANT, value=colour)
    return np.asarray(framed), np.array([[1.0, 0, wide], [0, 1.0, wide]])


def write_over(pixels: Pixels, rng: np.random.Generator) -> Edited:
    """Two lines of large letters across it."""
    out, (height, width) = to_colour(pixels).copy(), pixels.shape[:2]
    for row in (0.35, 0.8):
        words = "".join(rng.choice(list("ABCDEFGHIKLMNOPRSTUVW "), 14))
        size = width / 320
        place = round(0.03 * width), round(row * height)
        for colour, thick in ((0, 6), (255, 2)):
            line = max(round(size * thick), 1)
            cv2.putText(out, words, place, cv2.FONT_HERSHEY_DUPLEX, size, (colour,) * 3, line)
    return out, _SAME.copy()


def sepia(pixels: Pixels) -> Edited:
    """One brown tone, and less contrast."""
    weights = np.array([[0.39, 0.77, 0.19], [0.35, 0.69, 0.17], [0.27, 0.53, 0.13]])
    brown = to_colour(pixels).astype(np.float64) @ weights.T
    return np.clip(40 + 0.7 * brown, 0, 255).astype(np.uint8), _SAME.copy()


def darken(pixels: Pixels, gamma: float) -> Edited:
    """All tones raised to a power."""
    table = (255 * (np.arange(256) / 255) ** gamma).round().astype(np.uint8)
    return table[pixels], _SAME.copy()


_SAME = np.array([[1.0, 0, 0], [0, 1.0, 0]])


def _mirrored(pixels: Pixels, edit: Callable[[Pixels], Edited]) -> Edited:
    first, one = mirror(pixels)
    copy, two = edit(first)
    return copy, np.column_stack([two[:, :2] @ one[:, :2], two[:, :2] @ one[:, 2] + two[:, 2]])


def _crop_edit(percent: int) -> Edit:
    return Edit(f"crop {percent} %", "crop", lambda p, rng: crop(p, rng, percent / 100))


def _turn_edit(degrees: int) -> Edit:
    return Edit(f"turn {degrees}°", "rotated", lambda p, rng: turn(p, degrees))


EDITS: tuple[Edit, ...] = (
    *(_crop_edit(percent) for percent in (90, 70, 50, 35, 25, 15, 10, 5)),
    *(_turn_edit(degrees) for degrees in (90, 180, 270, 10, 45)),
    Edit("turn 20°, cut", "rotated", lambda p, rng: turn(p, 20, cut=True)),
    Edit("mirror", "mirrored", lambda p, rng: mirror(p)),
    Edit("mirror, crop 50 %", "mirrored", lambda p, rng: _mirrored(p, lambda m: crop(m, rng, 0.5))),
    Edit("mirror, turn 90°", "mirrored", lambda p, rng: _mirrored(p, lambda m: turn(m, 90))),
    Edit("half size", "copy", lambda p, rng: resize(p, 0.5, 0.5)),
    Edit("quarter size", "copy", lambda p, rng: resize(p, 0.25, 0.25)),
    Edit("squeezed to 80 %", "copy", lambda p, rng: resize(p, 0.8, 1.0)),
    Edit("JPEG 10", "copy", lambda p, rng: (p, _SAME.copy()), quality=10),
    Edit("text", "copy", write_over),
    Edit("sepia", "copy", lambda p, rng: sepia(p)),
    Edit("dark", "copy", lambda p, rng: darken(p, 2.2)),
    Edit("border 10 %", "copy", lambda p, rng: border(p, 0.1)),
)
"""The edits of every photograph; within a kind, from mild to severe."""


SWEEP, FRAMES, SPAN = (60, 45, 30), 5, math.radians(150)
"""Overlap of neighbours in a sweep, in % of a frame; frames of a sweep; its total angle."""


def sweep(pixels: Pixels, rng: np.random.Generator, shared: float) -> list[Pixels]:
    """Photos by a camera that rotates from left to right inside a photo bent into a cylinder.

    Neighbours share ``shared`` of their frames. The camera is hand-held: each photo is a little
    higher or lower, tilted by up to two degrees, and brighter or darker than the one before.
    """
    height, width = pixels.shape[:2]
    focal = width / SPAN
    step = SPAN / (1 / (1 - shared) + FRAMES - 1)  # radians from photo to photo
    frame = step / (1 - shared)
    size = round(2 * focal * math.tan(frame / 2)), round(0.8 * height)
    across, down = np.meshgrid(*(np.arange(n) - (n - 1) / 2 for n in size))
    out = []
    for number in range(FRAMES):
        roll, lift = math.radians(rng.uniform(-2, 2)), rng.uniform(-0.04, 0.04) * height
        x = math.cos(roll) * across - math.sin(roll) * down
        y = math.sin(roll) * across + math.cos(roll) * down
        column = focal * (np.arctan(x / focal) + frame / 2 + number * step)
        row = (height - 1) / 2 + lift + y * focal / np.hypot(x, focal)
        seen = cv2.remap(
            pixels, column.astype(np.float32), row.astype(np.float32), cv2.INTER_LINEAR,
            borderMode=cv2.BORDER_REFLECT,
        )  # fmt: skip
        out.append(np.clip(seen * rng.uniform(0.85, 1.1), 0, 255).astype(np.uint8))
    return out


def text_page(rng: np.random.Generator) -> Pixels:
    """A page of random words, in the same font as all pages."""
    page = np.full((640, 480), 252, np.uint8)
    letters = list("etaoinshrdlucmfwypvbgk")
    for y in range(40, len(page) - 30, 18):
        line = ""
        while len(line) < 52:
            line += "".join(rng.choice(letters, rng.integers(2, 9))) + " "
        cv2.putText(page, line[:52], (24, y), cv2.FONT_HERSHEY_COMPLEX, 0.45, 30, 1, cv2.LINE_AA)
    return page


def pattern(rng: np.random.Generator) -> Pixels:
    """One random tile, repeated like a tiled wall."""
    side = int(rng.integers(40, 90))
    coarse = rng.integers(0, 256, (6, 6, 3), np.uint8)
    tile = cv2.resize(coarse, (side, side), interpolation=cv2.INTER_CUBIC)
    cv2.rectangle(tile, (0, 0), (side - 1, side - 1), (200, 200, 190), 2)
    rows, columns = -(-480 // side), -(-640 // side)
    wall = np.tile(tile, (rows, columns, 1))[:480, :640].astype(np.float64)
    wall *= rng.uniform(0.6, 1.0) + 0.2 * rng.random((*wall.shape[:2], 1))
    return np.clip(wall, 0, 255).astype(np.uint8)
