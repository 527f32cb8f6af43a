"""Images whose relation is known, read from disk: sequences with homographies, and pairs.

A *sequence* is a reference image and others, with the homography to each. Two layouts are read:

* a *sequence folder* holds ``1.png`` ... ``N.png`` and ``H_1_2`` ... ``H_1_N`` (Oxford affine and
  HPatches full sequences);
* a *pair folder* holds ``1/NAME.png``, ``2/NAME.png`` and ``h/NAME.txt`` (Extreme View Dataset):
  each name becomes a sequence with one target, called FOLDER-NAME.

A homography file is three rows of three numbers and maps pixels of image 1 to pixels of image k.

A *pair* is two images with a homography, correspondences, or nothing. Image 1 of a sequence makes a
pair with each of the others, and two further layouts are read:

* ``pairs.txt``: one pair a line, ``IMAGE_A IMAGE_B [TRUTH]``, relative to the folder; a name with
  spaces is quoted, ``#`` starts a comment. TRUTH is a homography (a -> b) or a list of
  correspondences (rows ``x1 y1 x2 y2``). This is our convention, for any set of pairs.
* ``KIND/SCENE/{01,02}.*`` and ``corrs.txt`` (WxBS): correspondences picked by hand.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.errors import HardnetError
from hardnet.image_files import as_path, require_regular_file
from hardnet.patchsets.patchset import Floats

IMAGE_SUFFIXES = (".png", ".ppm", ".pgm", ".jpg", ".jpeg")
PAIR_LIST = "pairs.txt"
CORRESPONDENCES = "corrs.txt"
MIN_CORRESPONDENCES = 8  # the least that a fundamental matrix needs


@dataclass(frozen=True)
class Target:
    """One further image of a sequence."""

    name: str
    image: Path
    homography: Floats
    """(3, 3), pixels of the reference -> pixels of this image; its determinant is positive."""


@dataclass(frozen=True)
class Sequence:
    """A reference image and the images it is compared with."""

    name: str
    reference: Path
    targets: tuple[Target, ...]

    @property
    def files(self) -> list[Path]:
        return [self.reference, *(target.image for target in self.targets)]


def find_sequences(
    roots: Iterable[Path | str], names: Iterable[str] | None = None
) -> list[Sequence]:
    """All sequences under ``roots``, in the order of the roots and then by name.

    A root is a sequence folder, a folder of such, or a pair folder; ``names`` selects some.
    """
    found: dict[str, Sequence] = {}
    for root in map(Path, roots):
        for sequence in _read_root(root):
            if sequence.name in found:
                raise HardnetError(f"{root}: a sequence called {sequence.name!r} was read before")
            found[sequence.name] = sequence
    if names is None:
        return list(found.values())
    wanted = list(names)
    if unknown := [name for name in wanted if name not in found]:
        raise HardnetError(f"no sequence called {', '.join(unknown)}; there are {', '.join(found)}")
    return [sequence for name, sequence in found.items() if name in wanted]


def read_homography(path: Path) -> Floats:
    """A (3, 3) homography, its sign chosen so that the determinant is positive.

    A photograph of a plane is never mirrored, so a point is then in front of the second camera
    where its third coordinate is positive.
    """
    try:
        require_regular_file(path)
        matrix = np.loadtxt(path, dtype=np.float64)
    except (OSError, ValueError) as error:
        raise HardnetError(f"{path}: cannot read a homography: {error}") from error
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        raise HardnetError(f"{path}: a homography is 3 x 3 finite numbers, got {matrix.shape}")
    determinant = np.linalg.det(matrix)
    if determinant == 0:
        raise HardnetError(f"{path}: the homography is singular")
    return np.asarray(matrix * np.sign(determinant))


def project(homography: ArrayLike, xy: ArrayLike) -> Floats:
    """Map (..., 2) points; a point behind the second camera (see read_homography) becomes NaN."""
    h, points = np.asarray(homography, np.float64), np.asarray(xy, np.float64)
    mapped = points @ h[:, :2].T + h[:, 2]
    depth = np.where(mapped[..., 2:] > 0, mapped[..., 2:], np.nan)
    return np.asarray(mapped[..., :2] / depth)


def inside(xy: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which of the (..., 2) points lie on an image of ``shape`` (H, W); NaN does not."""
    points, (height, width) = np.asarray(xy), shape[:2]
    return np.asarray(((points >= 0) & (points <= [width - 1, height - 1])).all(-1))


def has_sequences(root: Path) -> bool:
    """Whether a folder has one of the two layouts."""
    return bool(_pair_files(root) or _sequence_folders(root))


@dataclass(frozen=True, eq=False)
class ImagePair:
    """Two images of one scene, with at most one kind of ground truth.

    ``homography`` (3, 3) maps a to b; ``correspondences`` (K, 4) are rows x1 y1 x2 y2, K >= 8.
    """

    name: str
    first: Path
    second: Path
    homography: Floats | None = None
    correspondences: Floats | None = None

    @property
    def truth(self) -> Literal["homography", "correspondences", "none"]:
        if self.homography is not None:
            return "homography"
        return "none" if self.correspondences is None else "correspondences"


def find_pairs(root: Path | str) -> list[ImagePair]:
    """The pairs of one folder, in any of the layouts."""
    root = as_path(root)
    if not root.is_dir():
        raise HardnetError(f"{root}: no such folder")
    if (root / PAIR_LIST).is_file():
        return _read_list(root / PAIR_LIST)
    # One or two levels down: KIND may be left out.
    files = [*root.glob(f"*/{CORRESPONDENCES}"), *root.glob(f"*/*/{CORRESPONDENCES}")]
    pairs = []
    for scene in sorted({path.parent for path in files}):
        truth = read_correspondences(scene / CORRESPONDENCES)
        name = scene.relative_to(root).as_posix().replace("/", "-")
        images = image_file(scene, "01"), image_file(scene, "02")
        pairs.append(ImagePair(name, *images, correspondences=truth))
    if pairs:
        return pairs
    if not has_sequences(root):
        raise HardnetError(
            f"{root}: no image pairs here: neither {PAIR_LIST}, nor KIND/SCENE/{CORRESPONDENCES}, "
            "nor H_1_k files, nor folders 1, 2 and h"
        )
    for s in find_sequences([root]):
        for t in s.targets:
            name = s.name if len(s.targets) == 1 else f"{s.name}-1-{t.name}"
            pairs.append(ImagePair(name, s.reference, t.image, homography=t.homography))
    return pairs


def _read_list(path: Path) -> list[ImagePair]:
    pairs: list[ImagePair] = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise HardnetError(f"{path}: line {number}: {error}") from None
        if not words:
            continue
        if len(words) not in (2, 3):
            raise HardnetError(f"{path}: line {number} is not IMAGE_A IMAGE_B [TRUTH]")
        files = [path.parent / word for word in words]
        if missing := [file for file in files if not file.is_file()]:
            raise HardnetError(f"{path}: line {number}: {missing[0]} does not exist")
        first, second, *truth = files
        homography = correspondences = None
        if truth and [len(row) for _, row in _numbers(truth[0])] == [3, 3, 3]:
            homography = read_homography(truth[0])
        elif truth:
            correspondences = read_correspondences(truth[0])
        name = f"{number:03d}-{first.stem}-{second.stem}"
        pairs.append(ImagePair(name, first, second, homography, correspondences))
    if not pairs:
        raise HardnetError(f"{path} lists no pair: write IMAGE_A IMAGE_B [TRUTH] lines")
    return pairs


def read_correspondences(path: Path) -> Floats:
    rows = _numbers(path)
    if wrong := [number for number, row in rows if len(row) != 4]:
        raise HardnetError(f"{path}: line {wrong[0]} is not four numbers x1 y1 x2 y2")
    if len(rows) < MIN_CORRESPONDENCES:
        needed = f"a fundamental matrix needs at least {MIN_CORRESPONDENCES}"
        raise HardnetError(f"{path}: {len(rows)} correspondences, {needed}")
    return np.array([row for _, row in rows], np.float64)


def _read_root(root: Path) -> list[Sequence]:
    if not root.is_dir():
        raise HardnetError(f"{root}: no such folder")
    found = []
    for file in _pair_files(root):
        target = Target("2", image_file(root / "2", file.stem), read_homography(file))
        name = f"{root.resolve().name}-{file.stem}"
        found.append(Sequence(name, image_file(root / "1", file.stem), (target,)))
    for folder in [] if found else _sequence_folders(root):
        targets = []
        for file in _homography_files(folder):
            name = file.name.removeprefix("H_1_")
            targets.append(Target(name, image_file(folder, name), read_homography(file)))
        found.append(Sequence(folder.name, image_file(folder, "1"), tuple(targets)))
    if not found:
        raise HardnetError(f"{root}: no sequence here: neither H_1_k files nor folders 1, 2 and h")
    return found


def _pair_files(root: Path) -> list[Path]:
    is_one = all((root / part).is_dir() for part in ("1", "2", "h"))
    return sorted((root / "h").glob("*.txt")) if is_one else []


def _sequence_folders(root: Path) -> list[Path]:
    if _homography_files(root):
        return [root]
    return sorted(p for p in root.iterdir() if p.is_dir() and _homography_files(p))


def _homography_files(folder: Path) -> list[Path]:
    files = [p for p in folder.glob("H_1_*") if p.name.removeprefix("H_1_").isdecimal()]
    return sorted(files, key=lambda p: int(p.name.removeprefix("H_1_")))


def image_file(folder: Path, stem: str) -> Path:
    """The image ``stem`` of a folder, whatever its format."""
    for suffix in IMAGE_SUFFIXES:
        if (path := folder / f"{stem}{suffix}").is_file():
            return path
    raise HardnetError(f"{folder / stem}: no image ({', '.join(IMAGE_SUFFIXES)})")


def _numbers(path: Path) -> list[tuple[int, list[float]]]:
    rows = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            row = [float(word) for word in line.replace(",", " ").split()]
        except ValueError:
            raise HardnetError(f"{path}: line {number} is not numbers: {line.strip()!r}") from None
        if not np.isfinite(row).all():
            raise HardnetError(f"{path}: line {number} has NaN or infinity")
        if row:
            rows.append((number, row))
    return rows


def _text(path: Path) -> str:
    try:
        require_regular_file(path)
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise HardnetError(f"{path} cannot be read: {reason}") from error
