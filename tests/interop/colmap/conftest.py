"""Photos with an EXIF orientation, and a scene whose 3D points and cameras are known."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.features import Features
from hardnet.matching.geometry import Geometry
from hardnet.matching.matches import Matches


def with_orientation(jpeg: bytes, orientation: int) -> bytes:
    """A JPEG with an EXIF entry of its orientation."""
    entry = struct.pack("<HHHIHHI", 1, 0x0112, 3, 1, orientation, 0, 0)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + entry
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + jpeg[2:]


def write_photo(path: Path, size: tuple[int, int], orientation: int = 1, seed: int = 0) -> None:
    """A photo of noise; ``size`` is (width, height) of its stored pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (size[1], size[0]), np.uint8)
    jpeg = cv2.imencode(".jpg", noise)[1].tobytes()
    path.write_bytes(with_orientation(jpeg, orientation))


def make_features(frames: np.ndarray, size: tuple[int, int]) -> Features:
    """Features of hand-written frames."""
    frames = np.asarray(frames, np.float32).reshape(-1, 2, 3)
    ones = np.ones(len(frames), np.float32)
    return Features(frames, ones, np.zeros((len(frames), 4), np.float32), size, "by hand")


def upright_frames(xy: np.ndarray, half: float = 6.0) -> np.ndarray:
    """(N, 2, 3) upright frames around (N, 2) places."""
    frames = np.zeros((len(xy), 2, 3), np.float32)
    frames[:, 0, 0] = frames[:, 1, 1] = half
    frames[:, :, 2] = xy
    return frames


def make_matches(a: Features, b: Features, indices: np.ndarray) -> Matches:
    """Matches that nobody has verified."""
    indices = np.asarray(indices, np.intp).reshape(-1, 2)
    nothing = Geometry(None, None, np.zeros(len(indices), bool))
    return Matches(indices, np.ones(len(indices), np.float32), nothing, a, b)


@dataclass
class KnownScene:
    """A cloud of points seen by cameras on an arc."""

    images: Path
    features: dict[str, Features]
    matches: dict[tuple[str, str], Matches]
    centres: dict[str, np.ndarray]
    rotations: dict[str, np.ndarray]
    focal: float
    wrong: int
    """The last few matches of each pair join different points."""


@pytest.fixture(scope="session")
def known_scene(tmp_path_factory: pytest.TempPathFactory) -> KnownScene:
    """Five photos of 400 points; pixel (0, 0) is the centre of the first pixel."""
    images = tmp_path_factory.mktemp("known")
    rng = np.random.default_rng(5)
    points = rng.uniform(-1, 1, (400, 3))
    (width, height), focal, wrong = (320, 240), 400.0, 40
    features, centres, rotations = {}, {}, {}
    for k, angle in enumerate(np.deg2rad([-30, -15, 0, 15, 30])):
        c, s = np.cos(angle), np.sin(angle)
        rotation = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])
        centre = rotation.T @ np.array([0.0, 0.1 * k, -6.0])
        camera = (points - centre) @ rotation.T
        # The principal point of COLMAP is the middle of the picture, 0.5 less in our pixels.
        xy = focal * camera[:, :2] / camera[:, 2:] + (width / 2 - 0.5, height / 2 - 0.5)
        name = f"view {k}.jpg"
        write_photo(images / name, (width, height), seed=k)
        features[name] = make_features(upright_frames(xy), (width, height))
        centres[name], rotations[name] = centre, rotation
    good = np.stack([np.arange(400)] * 2, 1)
    bad = np.stack([rng.permutation(400)[:wrong], rng.permutation(400)[:wrong]], 1)
    rows = np.concatenate([good[wrong:], bad])
    names = sorted(features)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    matches = {(a, b): make_matches(features[a], features[b], rows) for a, b in pairs}
    return KnownScene(images, features, matches, centres, rotations, focal, wrong)
