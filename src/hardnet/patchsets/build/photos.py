"""A patch set from any folder of photographs.

Each photo is rendered under random homographies with changed light and sensor; a frame detected
in the photo is carried into every rendering, and the patches cut by it show the same surface
point. This is how a descriptor learns from pictures nobody has reconstructed in 3D.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.detectors import dog
from hardnet.errors import HardnetError
from hardnet.frames import Frames, transform
from hardnet.images import list_images, read_image, shrink, to_grey
from hardnet.patches import cut_patches
from hardnet.patchsets.brown import PATCH, BrownWriter
from hardnet.patchsets.build.choice import MIN_STD, Rows, apart, informative, inside
from hardnet.patchsets.build.views import (
    forget_affine_shape,
    jitter,
    random_homography,
    random_light_and_sensor,
    render,
)
from hardnet.threads import map_processes

PhotoProgress = Callable[[int, int, str | None], None]
"""Called with (photos done, photos in all, name of a skipped photo or None)."""


@dataclass(frozen=True)
class PhotoSettings:
    """What the set is made of; stored beside it in ``set.json``.

    Attributes:
        points: most points taken from one photo.
        views: renderings of each photo; a point has up to ``views + 1`` patches.
        max_size: photos are shrunk to this long side first, because stock photos are soft at
            full size and a blurred patch teaches nothing.
        min_std: grey levels of contrast (standard deviation) a patch must have.
        min_detail: grey levels of fine contrast, see :func:`informative`.
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
    """What was made of photos."""

    photos: int
    points: int
    patches: int
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class PhotoPatches(Rows):
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
    """Corresponding patches of one photo; None if the file cannot be read as an image.

    ``name`` identifies the photo in its folder and seeds its randomness, so that the patches of one
    photo do not depend on which others are there.
    """
    try:
        image, _ = shrink(to_grey(read_image(path)), settings.max_size)
    except HardnetError:
        return None
    if min(image.shape) < 2 * PATCH:
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
            most = settings.jitter
            amount = rng.uniform(0, most, len(frames)) if most > 1 else most
            moved = jitter(moved, rng, amount=amount)
        points = np.arange(len(moved))
        rows.append(cut_good(picture, moved, points, view, settings.min_std, settings.min_detail))
    return keep_pairs(rows)


def cut_good(
    picture: NDArray[np.uint8],
    frames: Frames,
    points: NDArray[np.int64],
    view: int,
    *contrast: float,
) -> PhotoPatches:
    """The patches of a view that are whole and :func:`informative` enough."""
    fits = inside(frames, picture.shape[1], picture.shape[0])
    patches, points = cut_patches(picture, frames[fits], PATCH), points[fits]
    good = informative(patches, *contrast)
    return PhotoPatches(patches, points, np.full_like(points, view))[good]


def choose_frames(image: NDArray[np.uint8], count: int, rng: np.random.Generator) -> Frames:
    """Up to ``count`` DoG frames, drawn at random from the strongest, none on top of another."""
    height, width = image.shape
    frames, _ = dog.detect(image, 8 * count)
    frames = frames[inside(frames, width, height)][: 4 * count]
    frames = frames[apart(frames)]
    return frames[np.sort(rng.permutation(len(frames))[:count])]


def keep_pairs(rows: Sequence[PhotoPatches]) -> PhotoPatches:
    """All patches of points that have at least two, renumbered without gaps, point by point."""
    every = PhotoPatches.join(rows)
    every = every[np.argsort(every.points, kind="stable")]
    _, number, counts = np.unique(every.points, return_inverse=True, return_counts=True)
    new = np.cumsum(counts > 1) - 1
    return replace(every, points=new[number].astype(np.int64))[counts[number] > 1]


def build_from_photos(
    folder: Path,
    output: Path,
    settings: PhotoSettings,
    workers: int,
    progress: PhotoProgress | None = None,
) -> BuildReport:
    """Build a patch set in the Brown format from the photos below ``folder``.

    The set does not depend on the number of ``workers``, which are processes.
    """
    about = {"builder": "photos", "settings": asdict(settings)}
    cut = partial(patches_of_photo, settings=settings)
    return write_photos([folder], output, cut, settings.views + 1, about, workers, progress)


def write_photos(
    folders: Sequence[Path],
    output: Path,
    cut: Callable[[Path, str], PhotoPatches | None],
    images: int,
    about: Mapping[str, Any],
    workers: int,
    progress: PhotoProgress | None,
) -> BuildReport:
    """Write a set of what ``cut`` makes of each photo (its path and name) below some folders.

    Args:
        folders: searched recursively.
        output: the set to write; must not exist.
        cut: gives the patches of a photo, or None if it cannot be read; must be picklable.
        images: that each photo counts for, one for each of its views.
        about: how the set was made, with the settings; stored in ``set.json``.
        workers: processes.
        progress: see :data:`PhotoProgress`.
    """
    jobs = [(path, path.relative_to(f).as_posix()) for f in folders for path in list_images(f)]
    skipped: list[str] = []
    next_point = 0
    with BrownWriter(output) as writer:
        for k, result in enumerate(map_processes(partial(_cut_job, cut), jobs, workers)):
            name = jobs[k][1]
            if result is None:
                skipped.append(name)
            elif len(result.points):
                points = result.points + next_point
                writer.add(result.patches, points, k, result.images + k * images)
                next_point = int(points[-1]) + 1
            if progress:
                progress(k + 1, len(jobs), name if result is None else None)
        text = json.dumps({**about, "photos": [n for _, n in jobs], "skipped": skipped}, indent=1)
        settings = about["settings"]
        size = writer.finish(settings["pairs"], settings["seed"], {"set.json": text + "\n"})
    return BuildReport(len(jobs) - len(skipped), next_point, size, tuple(skipped))


def _cut_job(
    cut: Callable[[Path, str], PhotoPatches | None], job: tuple[Path, str]
) -> PhotoPatches | None:
    return cut(*job)
