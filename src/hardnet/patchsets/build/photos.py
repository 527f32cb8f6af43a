"""Patch sets from any folder of photographs, without a 3D reconstruction.

Each photo is rendered under random homographies with changed light and sensor. For
:func:`patches_of_photo` a frame detected in the photo is carried into every rendering, and the
patches cut by it show the same surface point. For :func:`patches_of_views` keypoints are
detected in every rendering independently, and those that lie where the homography puts a keypoint
of the photograph show the same point. The frames then have the errors of a real detector, which no
random jitter imitates well.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from hardnet.detectors import affine, dog, orientation
from hardnet.errors import HardnetError, silent
from hardnet.frames import WINDOW_SIGMAS, Frames, centres, cut_patches, in_window, transform
from hardnet.images import Pixels, list_images, read_image, shrink, to_colour, to_grey
from hardnet.patchsets.brown import PATCH, BrownWriter
from hardnet.patchsets.build.choice import (
    MIN_STD,
    Rows,
    apart,
    half_sizes,
    informative,
    inside,
    turns,
)
from hardnet.patchsets.build.views import (
    forget_affine_shape,
    jitter,
    random_homography,
    random_light,
    random_light_and_sensor,
    random_sensor,
    render,
)
from hardnet.patchsets.patchset import Floats, Ints
from hardnet.threads import map_processes

PhotoProgress = Callable[[int, int, str | None], None]
"""Called with (photos done, photos in all, name of a skipped photo or None)."""


@dataclass(frozen=True)
class PhotoSettings:
    """What the set is made of; stored beside it in ``set.json``.

    Photos are shrunk to ``max_size``, because stock photos are soft at full size. A patch has
    ``min_std`` grey levels of contrast and ``min_detail`` of fine contrast. ``affine_share`` of the
    views are cut by the true affine frame, the others by a similarity, as DoG would give.
    ``jitter`` is a multiple of HPatches' easy noise; above 1, each frame draws one from 0 to
    this. ``wear`` is the strength of the changes of light and sensor.
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
class PhotosReport:
    """What was made from the photos."""

    photos: int
    points: int
    patches: int
    skipped: tuple[str, ...]


@dataclass(frozen=True)
class PhotoPatches(Rows):
    """(n, 64, 64) patches of one photo, their points from 0 on, the view each was cut from."""

    patches: Pixels
    points: Ints
    images: Ints


def patches_of_photo(
    photo: Pixels, settings: PhotoSettings, rng: np.random.Generator
) -> PhotoPatches | None:
    """Patches cut by frames of the photo, carried into its renderings; None if it is too small."""
    image, _ = shrink(to_grey(photo), settings.max_size)
    if min(image.shape) < 2 * PATCH:
        return None
    height, width = image.shape
    most = settings.points
    frames = choose_frames(image, dog.detect(image, 8 * most)[0], 4 * most, most, rng)
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
            amount: Floats | float = settings.jitter
            if settings.jitter > 1:
                amount = rng.uniform(0, settings.jitter, len(frames))
            moved = jitter(moved, rng, amount=amount)
        points = np.arange(len(moved))
        rows.append(cut_good(picture, moved, points, view, settings.min_std, settings.min_detail))
    return keep_pairs(rows)


def cut_good(
    picture: Pixels, frames: Frames, points: Ints, view: int, *contrast: float
) -> PhotoPatches:
    """The patches of a view that are whole and :func:`informative` enough."""
    fits = inside(frames, picture.shape[1], picture.shape[0])
    patches, points = cut_patches(picture, frames[fits], PATCH), points[fits]
    good = informative(patches, *contrast)
    return PhotoPatches(patches, points, np.full_like(points, view))[good]


def choose_frames(
    image: Pixels, frames: Frames, strongest: int, count: int, rng: np.random.Generator
) -> Frames:
    """Up to ``count`` of the ``strongest`` frames inside the image, none on top of another."""
    frames = frames[inside(frames, image.shape[1], image.shape[0])][:strongest]
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
    folders: Sequence[Path],
    output: Path,
    settings: PhotoSettings | DetectionSettings,
    workers: int,
    progress: PhotoProgress = silent,
) -> PhotosReport:
    """Build a patch set in the Brown format from the photos below some folders.

    The set does not depend on the number of ``workers``, which are processes.
    """
    builder, images = "photos", settings.views + 1
    if isinstance(settings, DetectionSettings):
        builder, images = "detections", images * len(settings.windows) * len(KINDS)
    jobs = [(path, path.relative_to(f).as_posix()) for f in folders for path in list_images(f)]
    skipped: list[str] = []
    next_point = 0
    with BrownWriter(output) as writer:
        cutting = map_processes(partial(cut_photo, settings=settings), jobs, workers)
        for k, (result, (_, name)) in enumerate(zip(cutting, jobs, strict=True)):
            if result is None:
                skipped.append(name)
            elif len(result.points):
                points = result.points + next_point
                writer.add(result.patches, points, k, result.images + k * images)
                next_point = int(points[-1]) + 1
            progress(k + 1, len(jobs), name if result is None else None)
        about = {"builder": builder, "settings": asdict(settings)}
        about |= {"photos": [name for _, name in jobs], "skipped": skipped}
        text = json.dumps(about, indent=1) + "\n"
        size = writer.finish(settings.pairs, settings.seed, {"set.json": text})
    return PhotosReport(len(jobs) - len(skipped), next_point, size, tuple(skipped))


def cut_photo(
    photo: tuple[Path, str], settings: PhotoSettings | DetectionSettings
) -> PhotoPatches | None:
    """Corresponding patches of a photo, a path and a name; None if it cannot be used.

    Its name seeds the random numbers, so its patches do not depend on the other photos.
    """
    path, name = photo
    try:
        image = read_image(path)
    except HardnetError:
        return None
    rng = np.random.default_rng([settings.seed, zlib.crc32(name.encode())])
    if isinstance(settings, DetectionSettings):
        return patches_of_views(image, settings, rng)
    return patches_of_photo(image, settings, rng)


KINDS = ("dog", "dog upright", "hessian-affine", "hessian-affine upright")
"""Detector, and whether patch-up is image-up; each kind gives other points."""


@dataclass(frozen=True)
class Tolerances:
    """How far a detection may be from the expected frame.

    ``shift`` in half-sizes, ``octaves`` of size, ``stretch`` as log2 of the ratio of the axes.
    """

    shift: float = 0.25
    octaves: float = 0.5
    degrees: float = 25.0
    stretch: float = 1.2


@dataclass(frozen=True)
class DetectionSettings(Tolerances):
    """What the set is made of; stored beside it in ``set.json``.

    At most ``points`` keypoints of each of the :data:`KINDS` are taken from a photo and looked for
    in ``views`` renderings of it. A share ``still`` of these changes the light only, a share
    ``turned`` is rotated by any angle (without upright frames), the others by up to ``level``
    degrees. ``light`` is the strength of the change of light in three quarters of them. A keypoint
    that is not found again is carried over with probability ``carried``, so that views in which
    detectors fail are represented too. Each of the ``windows``, in sigmas, gives other points.
    """

    windows: tuple[float, ...] = (WINDOW_SIGMAS,)
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


def detect(image: Pixels, keypoints: int) -> list[Frames]:
    """Frames of each of the :data:`KINDS`, strongest first."""
    turned, _ = dog.detect(image, keypoints)
    _, first = np.unique(turned[:, :, 2], axis=0, return_index=True)
    places = orientation.upright_form(forget_affine_shape(turned[np.sort(first)]))
    shaped, _ = affine.detect(image, keypoints // 2, upright=True)
    return [turned, places, orientation.orient(image, shaped), shaped]


def pair_frames(carried: Frames, found: Frames, most: Tolerances) -> Ints:
    """(N,) for each carried frame the detection that shows the same spot, or -1.

    ``carried`` (N, 2, 3) is where frames should be, ``found`` (M, 2, 3) what was detected. A
    detection is assigned to the frame that it fits best.
    """
    chosen = np.full(len(carried), -1, np.int64)
    if not len(carried) or not len(found):
        return chosen
    apart_by = np.linalg.norm(centres(carried)[:, None] - centres(found)[None], axis=2)
    away = apart_by / half_sizes(carried)[:, None]
    a, b = np.nonzero(away <= most.shift)
    between = np.linalg.inv(carried[a, :, :2].astype(np.float64)) @ found[b, :, :2]
    size = 0.5 * np.log2(np.maximum(np.linalg.det(between), 1e-9))
    axes = np.linalg.svd(between, compute_uv=False)
    errors = np.stack(
        [
            away[a, b] / most.shift,
            np.abs(size) / most.octaves,
            np.abs(np.rad2deg(turns(between))) / most.degrees,
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


def patches_of_views(
    photo: Pixels, settings: DetectionSettings, rng: np.random.Generator
) -> PhotoPatches:
    """Patches of all kinds of keypoints, detected in the photo and in its renderings."""
    photo = to_colour(shrink(photo, settings.max_size)[0])
    height, width = photo.shape[:2]
    grey = to_grey(photo)
    kinds, most = detect(grey, settings.keypoints), settings.points
    seeds = [choose_frames(grey, frames, 6 * most, most, rng) for frames in kinds]
    first_point = np.cumsum([0, *map(len, seeds)])
    stride, rows = settings.views + 1, list[PhotoPatches]()
    distinct = [
        np.concatenate([apart(in_window(frames, window)) for frames in seeds])
        for window in settings.windows
    ]

    def cut(picture: Pixels, frames: Frames, points: Ints, image: int) -> None:
        for k, window in enumerate(settings.windows):
            good = distinct[k][points]
            number = points[good] + k * first_point[-1]
            wide, view = in_window(frames[good], window), image + k * len(KINDS) * stride
            rows.append(
                cut_good(picture, wide, number, view, settings.min_std, settings.min_detail)
            )

    for kind, (frames, first) in enumerate(zip(seeds, first_point, strict=False)):
        cut(grey, frames, np.arange(len(frames)) + first, kind * stride)
    for view in range(1, stride):
        motion, turned = rng.random(), False
        homography: Floats = np.eye(3)
        if motion >= settings.still:
            turned = motion < settings.still + settings.turned
            most_turn = 180.0 if turned else settings.level
            homography = random_homography(width, height, rng, most_turn)
        rendered = render(photo, homography)
        if settings.light and rng.random() < 0.75:
            lit = random_light(rendered, rng, settings.light * rng.uniform(0.3, 1.0))
            picture = random_sensor(np.asarray(lit, np.float32) / np.float32(255), rng)
        else:
            picture = random_light_and_sensor(to_grey(rendered), rng)
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
                cut(picture, frames, point + first_point[kind], kind * stride + view)
    return keep_pairs(rows)
