"""A patch set of detections: each frame is found again, independently, in every view.

A photograph is rendered under random homographies and other light. In every rendering keypoints
are detected as if nothing else were known, with their own place, scale, shape and orientation, and
those that lie where the homography puts a keypoint of the photograph show the same point. The
errors of the frames are thus those of the detector, which no random jitter imitates well.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.detectors import affine, dog, orientation
from hardnet.errors import HardnetError
from hardnet.frames import Frames, centres, transform
from hardnet.images import read_image, shrink, to_colour, to_grey
from hardnet.patchsets.build.choice import apart, inside
from hardnet.patchsets.build.light import random_light
from hardnet.patchsets.build.photos import (
    BuildReport,
    PhotoPatches,
    PhotoProgress,
    cut_good,
    keep_pairs,
    write_photos,
)
from hardnet.patchsets.build.views import (
    forget_affine_shape,
    jitter,
    random_homography,
    random_light_and_sensor,
    random_sensor,
    render,
)

KINDS = ("dog", "dog upright", "hessian-affine", "hessian-affine upright")
"""Detector, and whether patch-up is image-up; each kind gives points of its own."""


@dataclass(frozen=True)
class Tolerances:
    """By how much a detection may differ from where and what it should be.

    Attributes:
        shift: of its place, in half-sizes of the frame.
        octaves: of its size, log2.
        degrees: of its orientation.
        stretch: of its shape, log2 of the ratio of the axes.
    """

    shift: float = 0.25
    octaves: float = 0.5
    degrees: float = 25.0
    stretch: float = 1.2


@dataclass(frozen=True)
class DetectionSettings(Tolerances):
    """What the set is made of; stored beside it in ``set.json``.

    Attributes, beside the tolerances of a detection against the frame carried from the photo:
        points: most points of one kind (see :data:`KINDS`) taken from one photo.
        views: renderings of each photo; a point has up to ``views + 1`` patches.
        max_size: photos are shrunk to this long side first.
        keypoints: detected of each kind in each view.
        still: share of the views in which only the light changes.
        turned: share of the views turned by any angle; upright frames are not used there.
        level: most degrees by which the other views are turned, as cameras held upright are.
        light: strength of the changed light in three quarters of the views; the others have the
            gentle changes of :func:`random_light_and_sensor`.
        carried: share of the keypoints not found again in a view for which the photo's own frame
            is carried there, so that views in which detectors fail are not left out.
        min_std: grey levels of contrast (standard deviation) a patch must have.
        min_detail: grey levels of fine contrast, see :func:`informative`.
        pairs: rows of the test pair file.
        seed: everything random follows from it and from the photo's name.
    """

    points: int = 150
    views: int = 4
    max_size: int = 720
    keypoints: int = 1000
    still: float = 0.25
    turned: float = 0.2
    level: float = 15.0
    light: float = 1.0
    carried: float = 0.1
    min_std: float = 8.0
    min_detail: float = 3.0
    pairs: int = 100_000
    seed: int = 0


def detect(image: NDArray[np.uint8], keypoints: int) -> list[Frames]:
    """Frames of each of the :data:`KINDS`, strongest first."""
    turned, _ = dog.detect(image, keypoints)
    _, first = np.unique(turned[:, :, 2], axis=0, return_index=True)
    places = orientation.upright_form(forget_affine_shape(turned[np.sort(first)]))
    shaped, _ = affine.detect(image, keypoints // 2, upright=True)
    return [turned, places, orientation.orient(image, shaped), shaped]


def pair_frames(carried: Frames, found: Frames, most: Tolerances) -> NDArray[np.int64]:
    """(N,) for each carried frame the detection that shows the same, or -1.

    Of several the one with the smallest error, relative to the tolerances; a detection goes to the
    frame that it fits best.

    Args:
        carried: (N, 2, 3) where the frames of one view should be in another.
        found: (M, 2, 3) what was detected there.
        most: by how much they may differ.
    """
    chosen = np.full(len(carried), -1, np.int64)
    if not len(carried) or not len(found):
        return chosen
    half = np.sqrt(np.abs(np.linalg.det(carried[:, :, :2].astype(np.float64))))
    away = np.linalg.norm(centres(carried)[:, None] - centres(found)[None], axis=2) / half[:, None]
    a, b = np.nonzero(away <= most.shift)
    between = np.linalg.inv(carried[a, :, :2].astype(np.float64)) @ found[b, :, :2]
    size = 0.5 * np.log2(np.maximum(np.linalg.det(between), 1e-9))
    turn = np.arctan2(between[:, 1, 0] - between[:, 0, 1], between[:, 0, 0] + between[:, 1, 1])
    axes = np.linalg.svd(between, compute_uv=False)
    errors = np.stack(
        [
            away[a, b] / most.shift,
            np.abs(size) / most.octaves,
            np.abs(np.rad2deg(turn)) / most.degrees,
            np.log2(axes[:, 0] / axes[:, 1]) / most.stretch,
        ]
    )
    good = (errors <= 1).all(0)
    a, b, cost = a[good], b[good], (errors[:, good] ** 2).sum(0)
    taken = np.zeros(len(found), bool)
    for k in np.argsort(cost, kind="stable"):
        if chosen[a[k]] < 0 and not taken[b[k]]:
            chosen[a[k]], taken[b[k]] = b[k], True
    return chosen


def patches_of_photo(path: Path, name: str, settings: DetectionSettings) -> PhotoPatches | None:
    """Corresponding patches of one photo, of all kinds of keypoints.

    Args:
        path: the image file.
        name: seeds the randomness, so that the patches do not depend on the other photos.
        settings: see :class:`DetectionSettings`.

    Returns:
        None if the file cannot be read as an image.
    """
    try:
        photo = to_colour(shrink(read_image(path), settings.max_size)[0])
    except HardnetError:
        return None
    rng = np.random.default_rng([settings.seed, zlib.crc32(name.encode())])
    height, width = photo.shape[:2]
    grey = to_grey(photo)
    seeds = [_seeds(grey, frames, settings, rng) for frames in detect(grey, settings.keypoints)]
    first_point = np.cumsum([0, *map(len, seeds)])
    stride, contrast = settings.views + 1, (settings.min_std, settings.min_detail)
    rows = [
        cut_good(grey, frames, np.arange(len(frames)) + first, kind * stride, *contrast)
        for kind, (frames, first) in enumerate(zip(seeds, first_point, strict=False))
    ]
    for view in range(1, stride):
        homography, turned = _random_move(width, height, settings, rng)
        picture = _random_picture(render(photo, homography), settings, rng)
        for kind, found in enumerate(detect(picture, settings.keypoints)):
            if turned and KINDS[kind].endswith("upright"):
                continue
            true = transform(seeds[kind], homography)
            if KINDS[kind].endswith("upright") and len(true):
                true = orientation.upright_form(true)
            match = pair_frames(true, found, settings)
            carry = np.flatnonzero((match < 0) & (rng.random(len(match)) < settings.carried))
            hit = np.flatnonzero(match >= 0)
            shape = true[carry] if kind >= 2 else forget_affine_shape(true[carry])
            shape = jitter(shape, rng, amount=0.5)
            for frames, point in ((found[match[hit]], hit), (shape, carry)):
                number, image = point + first_point[kind], kind * stride + view
                rows.append(cut_good(picture, frames, number, image, *contrast))
    return keep_pairs(rows)


def _seeds(
    grey: NDArray[np.uint8], frames: Frames, settings: DetectionSettings, rng: np.random.Generator
) -> Frames:
    """Frames of the photo itself to be looked for in the views, none on top of another."""
    frames = frames[inside(frames, grey.shape[1], grey.shape[0])][: 6 * settings.points]
    frames = frames[apart(frames)]
    return frames[np.sort(rng.permutation(len(frames))[: settings.points])]


def _random_move(
    width: int, height: int, settings: DetectionSettings, rng: np.random.Generator
) -> tuple[NDArray[np.float64], bool]:
    """A homography, and whether it turns too far for upright frames."""
    kind = rng.random()
    if kind < settings.still:
        return np.eye(3), False
    turned = kind < settings.still + settings.turned
    return random_homography(width, height, rng, 180.0 if turned else settings.level), turned


def _random_picture(
    photo: NDArray[np.uint8], settings: DetectionSettings, rng: np.random.Generator
) -> NDArray[np.uint8]:
    """(H, W) grey of the photo under other light, as another sensor sees it."""
    if settings.light and rng.random() < 0.75:
        grey = random_light(photo, rng, settings.light * rng.uniform(0.3, 1.0))
        return random_sensor(np.asarray(grey, np.float32) / np.float32(255), rng)
    return random_light_and_sensor(to_grey(photo), rng)


def build_from_detections(
    folders: Sequence[Path],
    output: Path,
    settings: DetectionSettings,
    workers: int,
    progress: PhotoProgress | None = None,
) -> BuildReport:
    """Build a patch set in the Brown format from folders of photographs, searched recursively.

    The set does not depend on the number of ``workers``, which are processes.
    """
    about = {"builder": "detections", "settings": asdict(settings)}
    cut, images = partial(patches_of_photo, settings=settings), len(KINDS) * (settings.views + 1)
    return write_photos(folders, output, cut, images, about, workers, progress)
