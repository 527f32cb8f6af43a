"""A folder of photos -> a COLMAP model, in stages that a stopped run need not repeat.

To look at, a model is also a PLY file of its points and a picture of them and the cameras.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet import descriptors, detectors
from hardnet.errors import HardnetError, Progress, counted, silent
from hardnet.features import MAX_SIZE, Features
from hardnet.image_files import require_regular_file
from hardnet.images import list_images
from hardnet.interop.colmap.database import (
    DATABASE,
    CameraSettings,
    Pair,
    check_cameras,
    failures_explained,
    match_pairs,
    quiet,
    require_pycolmap,
    write_photos,
)
from hardnet.interop.colmap.mapping import (
    SPARSE,
    MapperSettings,
    WorkFolder,
    build_models,
    photo_facts,
    usable_models,
    write_json,
)
from hardnet.interop.extraction import ExtractionSettings, extract_to
from hardnet.interop.feature_files import read_hdf5
from hardnet.matching.matches import Strategy
from hardnet.provenance import descriptor_digest
from hardnet.storage import claim, replacing

KEYPOINTS = 8192
"""Four times as many as for matching two photos: a point counts only if several photos see it. The
small network describes them sooner than the large one half of them."""
DESCRIPTOR = "hardnet-small@12"
"""One window: more keypoints give more points in the time than more windows do."""
MANY_PHOTOS = 300
"""All pairs of more photos than this take long: 300 photos are 44,850 pairs."""
FEATURES = "features.h5"
SKIPPED = "skipped.json"
REPORT = "report.json"

Floats = NDArray[np.float64]
CAMERA_COLOUR = (40, 40, 220)  # blue, green, red
_TURN, _LIFT = np.radians((25, 20))  # we stand to the right of the cameras and above them
_MARGIN = 0.08
_CAMERA_SIZE = 0.01  # radius, of the picture's longer side


@dataclass(frozen=True)
class PairSettings:
    """How pairs are chosen.

    Attributes:
        method: "exhaustive": every photo with every other; "sequential": with those that follow,
            for the frames of a video or photos taken along a path.
        overlap: sequential: how many of the following photos.
        quadratic: sequential: also those 2, 4, 8, ... 2^overlap photos later.
        loop: sequential: also every n-th photo with each other, to notice that the camera
            came back; 0: none.
    """

    method: Literal["exhaustive", "sequential"] = "exhaustive"
    overlap: int = 10
    quadratic: bool = True
    loop: int = 0

    def __post_init__(self) -> None:
        if self.method not in ("exhaustive", "sequential"):
            raise HardnetError(f"no pairs '{self.method}': choose exhaustive or sequential")
        if self.overlap < 1:
            raise HardnetError(f"overlap is {self.overlap}: give at least 1")
        if self.loop < 0:
            raise HardnetError(f"loop is {self.loop}: give a number of photos, or 0 for none")


@dataclass(frozen=True)
class ReconstructionSettings:
    """How photos become a model; stored in the work folder.

    The first five are as in :func:`hardnet.extract`. ``pairs`` is how to choose the photos that are
    matched, or a file that lists them. A guided ``strategy`` looks for more matches along our
    geometry.
    """

    detector: str = "dog"
    descriptor: str = DESCRIPTOR
    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    upright: bool = False
    pairs: PairSettings | Path = field(default_factory=PairSettings)
    strategy: Strategy = field(default_factory=Strategy)
    cameras: CameraSettings = field(default_factory=CameraSettings)
    mapper: MapperSettings = field(default_factory=MapperSettings)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; a list of pairs is known by its content, whatever its file is called."""
        if isinstance(self.pairs, Path):
            digest = hashlib.sha256(_read_text(self.pairs).encode()).hexdigest()
            return {**asdict(self), "pairs": f"list {digest[:16]}"}
        return asdict(self)


@dataclass(frozen=True)
class ModelNumbers:
    """The size and the quality of a model; the last two numbers are means over its points."""

    registered: int
    points: int
    observations: int
    track_length: float
    reprojection_error: float


@dataclass(frozen=True)
class ReconstructionReport:
    """What became of a folder of photos.

    ``skipped`` has the photos that could not be used, name -> why; ``matches`` are those of
    verified pairs that agree with their geometry. ``models`` are folders, relative to the work
    folder, most points first: none if the photos do not fit together, None if none were asked for.
    """

    photos: int
    skipped: Mapping[str, str]
    keypoints: int
    pairs: int
    verified_pairs: int
    matches: int
    models: Mapping[str, ModelNumbers] | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def reconstruct(
    images: Path,
    work: Path,
    settings: ReconstructionSettings | None = None,
    *,
    mapping: bool = True,
    workers: int | None = None,
    progress: Progress = silent,
) -> ReconstructionReport:
    """Make a COLMAP database of a folder of photos, and models of it.

    Everything is kept in the work folder: ``features.h5``, ``database.db``, ``sparse/0`` and so on,
    for each model ``model-0.ply`` and a picture, ``model-0.jpg``, and ``report.json``. Called again
    after it was stopped, it continues where it was. ``mapping`` False stops after the database;
    ``workers`` are threads, by default one per usable core.
    """
    settings = settings or ReconstructionSettings()
    pycolmap = require_pycolmap()
    files = {p.relative_to(images).as_posix(): p for p in list_images(images)}
    if isinstance(settings.pairs, Path):
        read_pairs(settings.pairs, list(files))  # a wrong name shows before the work begins
    check_cameras(settings.cameras)
    detectors.load(settings.detector)  # a wrong name shows before anything is written
    describe = descriptors.load(settings.descriptor)
    inputs = {
        "settings": settings.to_json(),
        "descriptor": descriptor_digest(describe),
        "photos": photo_facts(images, list(files.values())),
    }
    _check_enough(len(files), {})
    features, database = work / FEATURES, work / DATABASE

    def skipped() -> dict[str, str]:
        found: dict[str, str] = json.loads((work / SKIPPED).read_text())
        return found

    def extract() -> None:
        how = settings.detector, settings.descriptor, settings.keypoints, settings.max_size
        wanted = ExtractionSettings(*how, settings.upright)
        done = extract_to(features, files, wanted, workers=workers, progress=progress)
        _check_enough(len(files), done.skipped)
        write_json(work / SKIPPED, done.skipped)

    def write_keypoints() -> None:
        progress("database", 0, 1)
        before = skipped()
        found: dict[str, Features] = {}
        for name in files:
            if name not in before:
                read = read_hdf5(features, name)
                # A thousand photos' frames fit in memory, their descriptors do not.
                found[name] = replace(read, descriptors=read.descriptors[:0].copy())
        refused = write_photos(database, images, found, settings.cameras)
        _check_enough(len(found), refused)
        write_json(work / SKIPPED, before | refused)

    def match() -> None:
        left_out = skipped()
        names = [name for name in files if name not in left_out]
        if isinstance(settings.pairs, Path):
            pairs = read_pairs(settings.pairs, names, list(left_out))
        else:
            pairs = choose_pairs(names, settings.pairs)
        match_pairs(
            database,
            partial(read_hdf5, features),
            pairs,
            settings.strategy,
            settings.mapper.seed,
            workers,
            partial(progress, "matches"),
        )

    def build() -> None:
        progress("models", 0, len(files))
        how = replace(settings.mapper, refine_cameras=settings.cameras.params is None)
        added = lambda done: progress("models", done, len(files))  # noqa: E731
        for folder in build_models(database, images, work / SPARSE, how, added):
            model = pycolmap.Reconstruction(str(folder))
            with replacing(claim(work / f"model-{folder.name}.ply")) as part:
                model.export_PLY(part)
            with replacing(claim(work / f"model-{folder.name}.jpg")) as part:
                part.write_bytes(cv2.imencode(".jpg", _picture(model))[1].tobytes())

    with WorkFolder(work, inputs) as state, quiet(pycolmap):
        if not (work / SPARSE).is_dir():
            state.forget("models")
        if not database.is_file():
            state.forget("database", "matches", "models")
        if not state.has("matches") and not features.is_file():
            state.forget("features")
        state.once("features", extract)
        with failures_explained(work):
            state.once("database", write_keypoints)
            state.once("matches", match)
            report = database_report(database, len(files), skipped())
            if mapping:
                state.once("models", build)
                found = usable_models(work / SPARSE, settings.mapper.min_images)
                models = {m.relative_to(work).as_posix(): model_numbers(m) for m in found}
                report = replace(report, models=models)
        write_json(work / REPORT, report.to_json())
        return report


def database_report(
    database: Path, photos: int, skipped: Mapping[str, str]
) -> ReconstructionReport:
    with require_pycolmap().Database.open(database) as opened:
        # COLMAP keeps a row for a pair that failed, too.
        _, inliers = opened.read_two_view_geometry_num_inliers()
        return ReconstructionReport(
            photos=photos,
            skipped=skipped,
            keypoints=opened.num_keypoints(),
            pairs=opened.num_matched_image_pairs(),
            verified_pairs=sum(count > 0 for count in inliers),
            matches=sum(inliers),
        )


def model_numbers(folder: Path) -> ModelNumbers:
    model = require_pycolmap().Reconstruction(str(folder))
    return ModelNumbers(
        registered=model.num_reg_images(),
        points=model.num_points3D(),
        observations=model.compute_num_observations(),
        track_length=model.compute_mean_track_length(),
        reprojection_error=model.compute_mean_reprojection_error(),
    )


def _check_enough(photos: int, skipped: Mapping[str, str]) -> None:
    usable = photos - len(skipped)
    if usable < 2:
        why = f" ({'; '.join(skipped.values())})" if skipped else ""
        raise HardnetError(f"{usable} of {counted(photos, 'photo')} can be used, 2 are needed{why}")


def choose_pairs(names: Sequence[str], settings: PairSettings) -> list[Pair]:
    """Pairs of photos to match, each once, in an order that does not depend on the machine."""
    if settings.method == "exhaustive":
        return list(combinations(sorted(names), 2))

    def by_number(name: str) -> list[tuple[int, int, str]]:
        parts = re.split(r"(\d+)", name)
        return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts if p]

    order = sorted(names, key=by_number)
    steps = set(range(1, settings.overlap + 1))
    if settings.quadratic:
        steps |= {2**k for k in range(1, settings.overlap + 1)}
    found = {(i, i + step) for i in range(len(order)) for step in steps if i + step < len(order)}
    if settings.loop:
        found |= set(combinations(range(0, len(order), settings.loop), 2))
    return [(order[i], order[j]) for i, j in sorted(found)]


def read_pairs(path: Path, names: Sequence[str], left_out: Sequence[str] = ()) -> list[Pair]:
    """Pairs of a text file: two names of photos per line, with a space or a tab between.

    Empty lines and lines that begin with # do not count, nor do pairs of photos that are left out.
    """
    known, passed = set(names), set(left_out)
    found: dict[Pair, None] = {}
    for number, line in enumerate(_read_text(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        a, b = _split(line, known | passed, f"{path}, line {number}")
        if a == b:
            raise HardnetError(f"{path}, line {number}: {a} is paired with itself")
        if a in known and b in known:
            found[(min(a, b), max(a, b))] = None
    if not found:
        raise HardnetError(f"{path} names no pair of photos")
    return list(found)


def _read_text(path: Path) -> str:
    try:
        require_regular_file(path)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HardnetError(f"{path} cannot be read as a list of pairs: {error}") from error


def _split(line: str, known: set[str], where: str) -> Pair:
    """The two names of a line; names may contain spaces themselves."""
    text = line.strip()
    for gap in re.finditer(r"\s+", text):
        a, b = text[: gap.start()], text[gap.end() :]
        if a in known and b in known:
            return a, b
    words = text.split("\t") if "\t" in text else text.split()
    if len(words) != 2:
        raise HardnetError(f"{where}: '{text}' is not two names of photos")
    missing = next(word for word in words if word not in known)
    raise HardnetError(f"{where}: no photo is called {missing}; names are relative to the folder")


def _picture(model: Any) -> NDArray[np.uint8]:
    points = list(model.points3D.values())
    poses = [model.images[number].cam_from_world().matrix() for number in model.reg_image_ids()]
    return draw(
        np.array([point.xyz for point in points], np.float64).reshape(-1, 3),
        np.array([point.color[::-1] for point in points], np.uint8).reshape(-1, 3),
        np.array(poses, np.float64).reshape(-1, 3, 4),
    )


def draw(
    points: Floats, colours: NDArray[np.uint8], poses: Floats, size: int = 1200
) -> NDArray[np.uint8]:
    """(H, W, 3) a model seen from behind its cameras, a little above and to the side of them.

    Its points are (N, 3), with colours (N, 3) in the order blue, green, red; poses are (M, 3, 4)
    from the world to each camera, drawn as a red dot, which looks along z, y down. The few points
    far from all others, which every model has, do not count for the frame.
    """
    # We look as the cameras do in the mean: the rotation that is nearest to the sum of theirs.
    left, _, right = np.linalg.svd(poses[:, :, :3].sum(0))
    left[:, 2] *= np.linalg.det(left @ right)
    lift, _ = cv2.Rodrigues(np.array([_LIFT, 0, 0]))
    turn, _ = cv2.Rodrigues(np.array([0, -_TURN, 0]))
    view = lift @ turn @ left @ right
    points = points @ view.T
    centres = -np.einsum("mji,mj->mi", poses[:, :, :3], poses[:, :, 3]) @ view.T
    inside = np.percentile(points, (2, 98), axis=0) if len(points) else centres[:1].repeat(2, 0)
    corners = np.vstack([inside, centres])[:, :2]
    low, high = corners.min(0), corners.max(0)
    scale = (1 - 2 * _MARGIN) * size / max(float((high - low).max()), 1e-12)
    width, height = (int(np.ceil(side * scale + 2 * _MARGIN * size)) for side in high - low)
    picture = np.full((height, width, 3), 255, np.uint8)

    def place(positions: Floats) -> Floats:
        return np.asarray((positions[:, :2] - low) * scale + _MARGIN * size)

    far_to_near = np.argsort(-points[:, 2], kind="stable")
    pixels = np.rint(place(points[far_to_near])).astype(np.int64)
    for step in np.ndindex(3, 3):
        at = pixels + step
        seen = ((at >= 0) & (at < (width, height))).all(1)
        picture[at[seen, 1], at[seen, 0]] = colours[far_to_near[seen]]
    for x, y in np.rint(place(centres)).astype(int).tolist():
        cv2.circle(picture, (x, y), round(_CAMERA_SIZE * size), CAMERA_COLOUR, -1, cv2.LINE_AA)
    return picture
