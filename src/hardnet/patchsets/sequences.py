"""Image sequences with ground-truth homographies, as they lie on disk.

Two layouts are read:

* a *sequence folder* holds ``1.png`` ... ``N.png`` and ``H_1_2`` ... ``H_1_N`` (Oxford affine and
  HPatches full sequences);
* a *pair folder* holds ``1/NAME.png``, ``2/NAME.png`` and ``h/NAME.txt`` (Extreme View Dataset):
  each name becomes a sequence with one target, called FOLDER-NAME.

A homography file is three rows of three numbers and maps pixels of image 1 to pixels of image k.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.errors import HardnetError

IMAGE_SUFFIXES = (".png", ".ppm", ".pgm", ".jpg", ".jpeg")


@dataclass(frozen=True)
class Target:
    """One further image of a sequence."""

    name: str
    image: Path
    homography: NDArray[np.float64]
    """(3, 3), pixels of the reference -> pixels of this image; its determinant is positive."""


@dataclass(frozen=True)
class Sequence:
    """A reference image and the images it is compared with."""

    name: str
    reference: Path
    targets: tuple[Target, ...]

    @property
    def files(self) -> list[Path]:
        """The images, reference first."""
        return [self.reference, *(target.image for target in self.targets)]


def find_sequences(
    roots: Iterable[Path | str], names: Iterable[str] | None = None
) -> list[Sequence]:
    """All sequences under ``roots``, in the order of the roots and then by name.

    Args:
        roots: each a sequence folder, a folder of sequence folders, or a pair folder.
        names: keep only these sequences; a name that does not exist is an error.
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


def read_homography(path: Path) -> NDArray[np.float64]:
    """A (3, 3) homography, its sign chosen so that the determinant is positive.

    A homography is defined up to its sign. With this choice, and because a photograph of a plane
    is never mirrored, a point is in front of the second camera where its third coordinate is
    positive.
    """
    try:
        matrix = np.loadtxt(path, dtype=np.float64)
    except (OSError, ValueError) as error:
        raise HardnetError(f"{path}: cannot read a homography: {error}") from error
    if matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        raise HardnetError(f"{path}: a homography is 3 x 3 finite numbers, got {matrix.shape}")
    determinant = np.linalg.det(matrix)
    if determinant == 0:
        raise HardnetError(f"{path}: the homography is singular")
    return np.asarray(matrix * np.sign(determinant))


def project(homography: ArrayLike, xy: ArrayLike) -> NDArray[np.float64]:
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


def _read_root(root: Path) -> list[Sequence]:
    if not root.is_dir():
        raise HardnetError(f"{root}: no such folder")
    if files := _pair_files(root):
        return [_read_pair(root, file) for file in files]
    folders = _sequence_folders(root)
    if not folders:
        raise HardnetError(f"{root}: no sequence here: neither H_1_k files nor folders 1, 2 and h")
    return [_read_sequence(folder) for folder in folders]


def _pair_files(root: Path) -> list[Path]:
    """The homographies of a pair folder; none if it is not one."""
    if not all((root / part).is_dir() for part in ("1", "2", "h")):
        return []
    return sorted((root / "h").glob("*.txt"))


def _sequence_folders(root: Path) -> list[Path]:
    """``root`` if it is a sequence folder, else those in it."""
    if _homography_files(root):
        return [root]
    return sorted(p for p in root.iterdir() if p.is_dir() and _homography_files(p))


def _read_sequence(folder: Path) -> Sequence:
    targets = []
    for file in _homography_files(folder):
        name = file.name.removeprefix("H_1_")
        targets.append(Target(name, image_file(folder, name), read_homography(file)))
    return Sequence(folder.name, image_file(folder, "1"), tuple(targets))


def _read_pair(root: Path, file: Path) -> Sequence:
    target = Target("2", image_file(root / "2", file.stem), read_homography(file))
    name = f"{root.resolve().name}-{file.stem}"
    return Sequence(name, image_file(root / "1", file.stem), (target,))


def _homography_files(folder: Path) -> list[Path]:
    """``H_1_k`` of a folder, in the order of the numbers k."""
    files = [p for p in folder.glob("H_1_*") if p.name.removeprefix("H_1_").isdecimal()]
    return sorted(files, key=lambda p: int(p.name.removeprefix("H_1_")))


def image_file(folder: Path, stem: str) -> Path:
    """The image ``stem`` of a folder, whatever its format."""
    for suffix in IMAGE_SUFFIXES:
        if (path := folder / f"{stem}{suffix}").is_file():
            return path
    raise HardnetError(f"{folder / stem}: no image ({', '.join(IMAGE_SUFFIXES)})")
