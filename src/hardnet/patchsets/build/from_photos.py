"""A patch set from any folder of photographs.

Each photo is rendered under random homographies with changed light and sensor; a frame detected
in the photo is carried into every rendering, and the patches cut by it show the same surface
point. This is how a descriptor learns from pictures nobody has reconstructed in 3D.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.detectors import dog
from hardnet.errors import HardnetError
from hardnet.frames import Frames, centres, transform
from hardnet.images import list_images, read_image, shrink, to_grey
from hardnet.patches import cut_patches
from hardnet.patchsets.brown import PATCH
from hardnet.patchsets.brown_writer import BrownWriter
from hardnet.patchsets.build.ordered_map import ordered_map
from hardnet.patchsets.build.views import (
    forget_affine_shape,
    jitter,
    random_homography,
    random_light_and_sensor,
    render,
)

MIN_STD = 10.0
"""Grey levels of contrast (standard deviation) below which a patch teaches nothing."""


@dataclass(frozen=True)
class PhotoSettings:
    """What the set is made of; stored beside it in ``set.json``.

    Attributes:
        points: most points taken from one photo.
        views: renderings of each photo; a point has up to ``views + 1`` patches.
        max_size: photos are shrunk to this long side first, because stock photos are soft at
            full size and a blurred patch teaches nothing.
        min_std: grey levels of contrast (standard deviation) a patch must have.
        min_detail: grey levels of contrast that must be left after 8 x 8 blocks of the 64 x 64
            patch are averaged away: a ramp or an out-of-focus blob has contrast but no detail.
        affine_share: share of the views cut by the true affine frame; the others keep a
            similarity frame, as DoG would give.
        jitter: most that a frame is displaced, resized, turned and stretched, as a multiple of
            HPatches' easy noise; above 1, each frame draws its own multiple from 0 to this.
        wear: strength of the changes of light and sensor; 1 is gentle, 2 about twice as much.
        pairs: rows of the test pair file.
        seed: everything random follows from it and from the photo's name.
    """

    points: int = 500
    views: int = 6
    max_size: int = 900
    min_std: float = MIN_STD
    min_detail: float = 4.0
    affine_share: float = 0.6
    jitter: float = 1.0
    wear: float = 1.0
    pairs: int = 100_000
    seed: int = 0


@dataclass(frozen=True)
class BuildReport:
    """What :func:`build_from_photos` made."""

    photos: int
    points: int
    patches: int
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class PhotoPatches:
    """Patches of one photo.

    Attributes:
        patches: (n, 64, 64) uint8.
        points: (n,) numbered from 0 in this photo and contiguous.
        images: (n,) the view of the photo that each was cut from.
    """

    patches: NDArray[np.uint8]
    points: NDArray[np.int64]
    images: NDArray[np.int64]


def patches_of_photo(path: Path, name: str, settings: PhotoSettings) -> PhotoPatches | None:
    """Corresponding patches of one photo.

    Args:
        path: the image file.
        name: identifies the photo in its folder; seeds its randomness, so that the patches of one
            photo do not depend on which others are there.
        settings: see :class:`PhotoSettings`.

    Returns:
        None if the file cannot be read as an image.
    """
    image = _read_grey(path, settings.max_size)
    if image is None:
        return None
    rng = np.random.default_rng([settings.seed, zlib.crc32(name.encode())])
    height, width = image.shape
    frames = choose_frames(image, settings.points, rng)
    rows: list[PhotoPatches] = []
    for view in range(settings.views + 1):
        if view == 0:
            picture, moved = image, frames
        else:
            homography = random_homography(width, height, rng)
            picture = random_light_and_sensor(render(image, homography), rng, settings.wear)
            true = transform(frames, homography)
            keep_shape = rng.random(len(frames)) < settings.affine_share
            moved = np.where(keep_shape[:, None, None], true, forget_affine_shape(true))
            moved = jitter(moved, rng, amount=_amounts(settings.jitter, len(frames), rng))
        cut = cut_patches(picture, moved, PATCH)
        good = inside(moved, width, height) & informative(cut, settings)
        points = np.flatnonzero(good)
        rows.append(PhotoPatches(cut[good], points, np.full_like(points, view)))
    return keep_pairs(rows)


def _amounts(most: float, count: int, rng: np.random.Generator) -> NDArray[np.float64] | float:
    return rng.uniform(0, most, count) if most > 1 else most


def choose_frames(image: NDArray[np.uint8], count: int, rng: np.random.Generator) -> Frames:
    """Up to ``count`` DoG frames, drawn at random from the strongest, none on top of another."""
    height, width = image.shape
    frames, _ = dog.detect(image, 8 * count)
    frames = frames[inside(frames, width, height)][: 4 * count]
    frames = frames[apart(frames)]
    chosen = np.sort(rng.permutation(len(frames))[:count])
    return frames[chosen]


def inside(
    frames: Frames, width: int | NDArray[np.int64], height: int | NDArray[np.int64]
) -> NDArray[np.bool_]:
    """(N,) whether all four corners of the frame lie in the image, or each in its own."""
    reach = np.abs(frames[:, :, :2]).sum(2)
    centre = centres(frames)
    low, high = centre - reach, centre + reach
    return np.asarray((low >= 0).all(1) & (high <= np.stack([width, height], -1) - 1).all(1))


def informative(patches: NDArray[np.uint8], settings: PhotoSettings) -> NDArray[np.bool_]:
    """(N,) whether the (N, 64, 64) patch has contrast and detail and is not black or white."""
    blocks = patches.reshape(len(patches), 8, 8, 8, 8).astype(np.float32)
    detail = np.sqrt(blocks.var((2, 4)).mean((1, 2)))
    saturated = ((patches <= 1) | (patches >= 254)).mean((1, 2))
    contrast = blocks.std((1, 2, 3, 4))
    return np.asarray(
        (contrast >= settings.min_std) & (detail >= settings.min_detail) & (saturated < 0.1)
    )


def apart(frames: Frames, share: float = 0.25) -> NDArray[np.bool_]:
    """(N,) frames that are not nearly the same as an earlier (stronger) one.

    Two names for one point would be trained as a negative that no descriptor can separate.
    """
    half = np.sqrt(np.abs(np.linalg.det(frames[:, :, :2])))
    centre, axis = centres(frames), frames[:, :, 0] / np.maximum(half, 1e-6)[:, None]
    keep = np.zeros(len(frames), bool)
    kept = np.zeros(0, np.int64)
    for i in range(len(frames)):
        near = kept[np.abs(centre[kept] - centre[i]).max(1) < share * half[i]]
        same_size = np.abs(np.log2(half[near] / half[i])) < 0.5
        same_turn = (axis[near] * axis[i]).sum(1) > np.cos(np.deg2rad(40))
        if not (same_size & same_turn).any():
            keep[i] = True
            kept = np.append(kept, i)
    return keep


def keep_pairs(rows: Sequence[PhotoPatches]) -> PhotoPatches:
    """All patches of points that have at least two, renumbered without gaps, point by point."""
    patches = np.concatenate([row.patches for row in rows])
    points = np.concatenate([row.points for row in rows])
    images = np.concatenate([row.images for row in rows])
    _, number, counts = np.unique(points, return_inverse=True, return_counts=True)
    new = np.cumsum(counts > 1) - 1
    good = counts[number] > 1
    order = np.flatnonzero(good)[np.argsort(points[good], kind="stable")]
    return PhotoPatches(patches[order], new[number[order]].astype(np.int64), images[order])


def _read_grey(path: Path, max_size: int) -> NDArray[np.uint8] | None:
    try:
        image, _ = shrink(to_grey(read_image(path)), max_size)
    except HardnetError:
        return None
    return image if min(image.shape) >= 2 * PATCH else None


def build_from_photos(
    folder: Path,
    output: Path,
    settings: PhotoSettings,
    workers: int,
    progress: Callable[[int, int, str | None], None] | None = None,
) -> BuildReport:
    """Build a patch set in the Brown format from the photos below ``folder``.

    Args:
        folder: searched recursively.
        output: the set to write; must not exist.
        settings: see :class:`PhotoSettings`.
        workers: processes; the set does not depend on their number.
        progress: called with (photos done, photos in all, name of a skipped photo or None).
    """
    photos = list_images(folder)
    names = [p.relative_to(folder).as_posix() for p in photos]
    skipped: list[str] = []
    next_point = 0
    with BrownWriter(output) as writer:
        cut = partial(_patches_of_job, settings=settings)
        jobs = zip(photos, names, strict=True)
        for k, result in enumerate(ordered_map(cut, jobs, workers)):
            if result is None:
                skipped.append(names[k])
            elif len(result.points):
                images = result.images + k * (settings.views + 1)
                writer.add(result.patches, result.points + next_point, k, images)
                next_point += int(result.points[-1]) + 1
            if progress:
                progress(k + 1, len(photos), names[k] if result is None else None)
        about = {
            "builder": "photos",
            "settings": asdict(settings),
            "photos": names,
            "skipped": skipped,
        }
        size = writer.finish(
            settings.pairs, settings.seed, {"set.json": json.dumps(about, indent=1) + "\n"}
        )
    return BuildReport(len(photos) - len(skipped), next_point, size, tuple(skipped))


def _patches_of_job(job: tuple[Path, str], settings: PhotoSettings) -> PhotoPatches | None:
    return patches_of_photo(*job, settings)
