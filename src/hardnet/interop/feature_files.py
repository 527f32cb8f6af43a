"""Features in files: one image in an ``.npz`` file, many in an HDF5 file laid out as by hloc.

>>> from hardnet.interop import feature_files
>>> a = feature_files.read_npz("feats/left.jpg.npz")  # doctest: +SKIP
>>> b = feature_files.read_hdf5("feats.h5", "right.jpg")  # doctest: +SKIP
>>> hardnet.match(a, b)  # doctest: +SKIP

Both hold the same arrays of an image, those of hloc, which is why descriptors lie on their side:

=============  ==========================================================================
keypoints      (N, 2) float32, x and y; the centre of the top-left pixel is (0, 0)
descriptors    (D, N) float32 or float16; or (B, N) uint8, packed bits
scores         (N,) float32
image_size     (2,) int64, width and height
frames         (N, 2, 3) float32, ours: without it only positions would be left
=============  ==========================================================================

and facts, which are single values: ``descriptor`` (its name), ``weights`` (the digest of its
weights), ``scale``, ``path`` (of the image, seen from the folder of the file), and ``bytes`` and
``mtime_ns`` of the image when it was read.

An HDF5 file has one group per image, called by its name (``"church/front.jpg"``), with the facts as
its attributes. hloc makes a tensor of every dataset of a group, and takes every group with a
dataset for an image: so all datasets are numbers, and there is nothing else in the file. An npz
file is plain numpy, read without pickle.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.features import NO_FEATURES, Features, refuse_large
from hardnet.frames import check_frames, from_similarity
from hardnet.image_files import require_regular_file
from hardnet.storage import OwnedFolder, as_path, replacing
from hardnet.stored_names import check_inside

SIGMA = 1.0
"""Pixels: the scale of keypoints from files that know positions only, as those of hloc."""
ARRAYS = ("keypoints", "descriptors", "scores", "image_size", "frames")
FACTS = ("descriptor", "weights", "scale", "path", "bytes", "mtime_ns")
NPZ = ".npz"
HDF5 = (".h5", ".hdf5")
SETTINGS = "settings"
"""Attribute of a file: how its features were made, as JSON."""
_BUSY = "another process is using it"
Fact = str | int | float


@dataclass(frozen=True, eq=False)
class Entry:
    """What a file holds of one image."""

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Fact] = field(default_factory=dict)


def read_npz(path: str | os.PathLike[str]) -> Features:
    """Features as :func:`write_npz` or ``hardnet extract`` wrote them."""
    path = as_path(path)
    name = path.name.removesuffix(NPZ)
    return from_entry(read_entry(path), path.parent, str(path), descriptor=name)


def write_npz(path: str | os.PathLike[str], features: Features, *, half: bool = False) -> None:
    """Write a file that is either whole or not there.

    Args:
        path: ends in ``.npz``; its folder is made if it is missing.
        features: of one image.
        half: descriptors as float16: half the size, three digits.
    """
    path = as_path(path)
    write_entry(path, to_entry(features, path.parent, half))


def hdf5_names(path: str | os.PathLike[str]) -> list[str]:
    """The images in a file, sorted."""
    with _open(path) as file:
        return _names(file)


def read_hdf5(path: str | os.PathLike[str], name: str) -> Features:
    """The features of one image.

    Args:
        path: a file of ``hardnet extract`` or :func:`write_hdf5`, which comes back as it was;
            or one of hloc. hloc keeps positions only: its keypoints become upright frames of
            sigma ``SIGMA``, good for matching but not for anything that looks at their shape, and
            the descriptor is called by the file's name, since hloc names files by configuration.
        name: of the image, one of :func:`hdf5_names`.

    Returns:
        Features; their path is None if the image is no longer where it was.
    """
    path = as_path(path)
    with _open(path) as file:
        group = _object_inside(file, name)
        if not isinstance(group, h5py.Group) or "keypoints" not in group:
            known = _names(file)
            near = difflib.get_close_matches(name, known, n=1) or known[:1]
            hint = f", but for example {near[0]!r}" if near else ""
            raise HardnetError(f"{path} has no image {name!r}{hint} ({len(known)} in all)")
        entry = _read(group)
    return from_entry(entry, path.parent, f"{path}: {name}", descriptor=path.stem)


def write_hdf5(
    path: str | os.PathLike[str], name: str, features: Features, *, half: bool = False
) -> None:
    """Add an image to a file, which is made if it is missing; an entry of that name is replaced.

    HDF5 writes in place: a process that is killed in this call can leave a file that does not open.
    :func:`write_hdf5_file` and ``hardnet extract`` have no such moment.

    Args:
        path: of the file.
        name: of the image; parts of a path are separated by "/".
        features: of the image.
        half: descriptors as float16: half the size, three digits.
    """
    path = as_path(path)
    check_inside(name, path)
    entry = to_entry(features, path.parent, half)
    with _writing(path), h5py.File(path, "a") as file:
        _object_inside(file, name)  # a link would lead the writing elsewhere
        try:
            _write(file, name, entry)
        except BaseException:
            file.pop(name, None)  # no half-written entries
            raise


def write_hdf5_file(
    path: Path,
    entries: Iterable[tuple[str, Entry]],
    settings: str | None = None,
    keep: Iterable[str] = (),
    workplace: Path | None = None,
) -> None:
    """Write a whole file under another name, which then takes the place of ``path`` at once.

    Args:
        path: of the file.
        entries: names and entries.
        settings: attribute of the file.
        keep: entries that are taken over from the file that is there.
        workplace: a folder on the same disk to write in; that of ``path`` by default.
    """
    with _writing(path), replacing(path, workplace=workplace) as part:
        with h5py.File(part, "w") as file:
            _fill(file, path, entries, settings, list(keep))
        with part.open("rb+") as stream:
            os.fsync(stream.fileno())


def hdf5_facts(path: Path) -> dict[str, Mapping[str, Fact]]:
    """The facts of every image in a file."""
    with _open(path) as file:
        return {name: _facts(file[name]) for name in _names(file)}


def hdf5_settings(path: Path) -> str | None:
    """How the features were made; None in files of others."""
    with _open(path) as file:
        settings = file.attrs.get(SETTINGS)
    return None if settings is None else str(settings)


def write_entry(path: Path, entry: Entry, owned: OwnedFolder | None = None) -> None:
    """Write an entry; raises OSError if the disk does not take it.

    Args:
        path: of the file.
        entry: the content.
        owned: the folder that the file is in; see :func:`hardnet.storage.replacing`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {name: np.array(value) for name, value in entry.facts.items()}
    with replacing(path, owned) as part, part.open("wb") as stream:
        np.savez(stream, **content | dict(entry.arrays))


def read_entry(path: Path, names: tuple[str, ...] = ARRAYS + FACTS) -> Entry:
    """Read an entry, or only what is called ``names``."""
    try:
        require_regular_file(path)
        with np.load(path, allow_pickle=False) as file:
            refuse_large(path, sum(entry.file_size for entry in file.zip.infolist()))
            found: dict[str, NDArray[Any]] = {n: file[n] for n in names if n in file}
        facts: dict[str, Fact] = {name: found.pop(name).item() for name in FACTS if name in found}
    except FileNotFoundError as error:
        raise HardnetError(f"{path} does not exist: check the path") from error
    except (OSError, MemoryError, EOFError, NotImplementedError, *NO_FEATURES) as error:
        raise HardnetError(f"{path} is not a file of features: {_first_line(error)}") from error
    return Entry(found, facts)


def to_entry(
    features: Features,
    folder: Path,
    half: bool = False,
    state: Mapping[str, int] | None = None,
) -> Entry:
    """The entry of ``features`` in a file.

    Args:
        features: of one image.
        folder: of the file; the path of the image is kept relative to it, so that a project can
            be moved as a whole.
        half: descriptors as float16. They then agree with the original to three digits.
        state: of the image file, by :func:`state_of`, to notice later that it was changed.
    """
    descriptors = np.ascontiguousarray(features.descriptors.T)
    if half and descriptors.dtype != np.uint8:
        descriptors = descriptors.astype(np.float16)
    arrays: dict[str, NDArray[Any]] = {
        "keypoints": features.xy,
        "descriptors": descriptors,
        "scores": features.scores,
        "image_size": np.array(features.image_size, np.int64),
        "frames": features.frames,
    }
    facts: dict[str, Fact] = {"descriptor": features.descriptor, "scale": features.scale}
    if features.weights:
        facts["weights"] = features.weights
    if features.path is not None:
        facts["path"] = _relative(features.path, folder)
    return Entry(arrays, facts | dict(state or {}))


def from_entry(entry: Entry, folder: Path, where: str, descriptor: str) -> Features:
    """The features of an entry; the inverse of :func:`to_entry`.

    Args:
        entry: as read from a file.
        folder: of the file.
        where: what to call the entry in errors.
        descriptor: name of the descriptor if the entry does not say it.
    """
    try:
        return _features(entry, folder, where, descriptor)
    except NO_FEATURES as error:
        raise HardnetError(f"{where} is damaged: {_first_line(error)}") from error


def _features(entry: Entry, folder: Path, where: str, descriptor: str) -> Features:
    arrays = entry.arrays
    for name in ("keypoints", "descriptors", "image_size"):
        if name not in arrays:
            raise HardnetError(f"{where} has no {name}: it does not hold local features")
    for name, array in arrays.items():
        if name in ARRAYS and array.dtype.kind not in "fiu":
            raise ValueError(f"its {name} are no numbers, but {array.dtype}")
    if arrays["descriptors"].ndim != 2:
        raise ValueError(f"its descriptors have the shape {arrays['descriptors'].shape}")
    xy = arrays["keypoints"].astype(np.float32).reshape(-1, 2)
    vectors = np.ascontiguousarray(arrays["descriptors"].T)
    if vectors.dtype != np.uint8:
        vectors = vectors.astype(np.float32, copy=False)
    scores = arrays.get("scores", np.zeros(len(xy))).astype(np.float32, copy=False)
    frames = check_frames(arrays["frames"]) if "frames" in arrays else from_similarity(xy, SIGMA)
    if scores.ndim != 1 or not np.isfinite(xy).all():
        raise ValueError("its keypoints have no place or no score")
    if vectors.dtype != np.uint8 and not np.isfinite(vectors).all():
        raise ValueError("its descriptors contain NaN or infinity")
    if not len(xy) == len(frames) == len(vectors) == len(scores):
        counts = f"{len(xy)} keypoints, {len(frames)} frames, {len(vectors)} descriptors"
        raise HardnetError(f"{where} is damaged: {counts}, {len(scores)} scores")
    width, height = (int(side) for side in arrays["image_size"])
    scale = float(entry.facts.get("scale", 1.0))
    if min(width, height) < 1 or not 0 < scale < float("inf"):
        raise ValueError(f"an image of {width}x{height} pixels at scale {scale}")
    return Features(
        frames=frames,
        scores=scores,
        descriptors=vectors,
        image_size=(width, height),
        descriptor=str(entry.facts.get("descriptor", descriptor)),
        scale=scale,
        path=_found(entry.facts.get("path"), folder),
        weights=str(entry.facts.get("weights", "")),
    )


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).partition("\n")[0]


def state_of(image: Path) -> dict[str, int]:
    """Size and time of an image file: they change when it does."""
    facts = image.stat()
    return {"bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns}


def _relative(path: str, folder: Path) -> str:
    here = os.path.realpath(folder)
    try:
        return Path(os.path.relpath(os.path.abspath(path), here)).as_posix()
    except ValueError:  # Windows: another drive
        return Path(os.path.abspath(path)).as_posix()


def _found(path: Fact | None, folder: Path) -> str | None:
    """The image as seen from here; None if it is no longer there."""
    if path is None:
        return None
    here = os.path.normpath(os.path.join(os.path.realpath(folder), str(path)))
    return here if os.path.isfile(here) else None


@contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[h5py.File]:
    path = as_path(path)
    if not path.is_file():
        raise HardnetError(f"{path} does not exist: check the path")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        busy = isinstance(error, BlockingIOError)
        reason = _BUSY if busy else "it is not an HDF5 file, or damaged"
        raise HardnetError(f"{path} cannot be read: {reason}") from error
    with file:
        try:
            yield file
        except (RuntimeError, OSError, KeyError) as error:
            raise HardnetError(f"{path} is damaged: {_first_line(error)}") from error


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """HDF5's long stories of what it could not do as one line."""
    try:
        yield
    except BlockingIOError as error:
        raise HardnetError(f"{path} cannot be written: {_BUSY}") from error
    except (OSError, RuntimeError) as error:
        raise HardnetError(f"{path} cannot be written: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """The system's word for what went wrong: a file that cannot be closed hides what was before."""
    first: BaseException | None = error
    while first is not None:
        said = re.search(r"errno = (\d+)", str(first))
        number = getattr(first, "errno", None) or (said and int(said[1]))
        if number:
            return os.strerror(number)
        first = first.__context__
    return str(error).partition("\n")[0]


def _object_inside(file: h5py.File, name: str) -> Any:
    """What is called ``name``, with the arrays in it; None if there is nothing.

    HDF5 lets a file refer to others, by links and by datasets whose values lie elsewhere. Such a
    file would show whatever the reader may read, so it is refused before any of it is opened.
    """
    found: Any = file
    for part in filter(None, name.split("/")):
        if not isinstance(found, h5py.Group) or found.get(part, getlink=True) is None:
            return None
        found = _follow(found, part)
    if isinstance(found, h5py.Group):
        for part in found:
            _follow(found, part)
    return found


def _follow(group: h5py.Group, part: str) -> Any:
    if not isinstance(group.get(part, getlink=True), h5py.HardLink):
        raise _leads_out(group, part, "a link")
    found = group[part]
    if isinstance(found, h5py.Dataset) and (found.external or found.is_virtual):
        raise _leads_out(group, part, "a dataset with its values in other files")
    return found


def _leads_out(group: h5py.Group, part: str, what: str) -> HardnetError:
    where = f"{group.name.rstrip('/')}/{part}"
    return HardnetError(
        f"{group.file.filename} has {what}, {where!r}: features are read from one file only; "
        "write them into it, or do not use it"
    )


def _names(file: h5py.File) -> list[str]:
    links: list[str] = []
    file.id.links.visit(lambda name: links.append(name.decode(errors="surrogateescape")))
    for name in links:
        if not isinstance(file.get(name, getlink=True), h5py.HardLink):
            parent, _, part = name.rpartition("/")
            raise _leads_out(file[f"/{parent}"], part, "a link")
    found: list[str] = []

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Group) and "keypoints" in item:
            found.append(check_inside(name, file.filename))

    file.visititems(visit)
    return sorted(found)


def _facts(group: h5py.Group) -> dict[str, Fact]:
    values = {name: group.attrs[name] for name in FACTS if name in group.attrs}
    return {n: v.item() if isinstance(v, np.generic) else v for n, v in values.items()}


def _read(group: h5py.Group) -> Entry:
    stored = {n: item for n, item in group.items() if isinstance(item, h5py.Dataset)}
    refuse_large(group.file.filename, sum(item.nbytes for item in stored.values()))
    try:
        return Entry({n: np.asarray(item) for n, item in stored.items()}, _facts(group))
    except (OSError, RuntimeError, MemoryError, *NO_FEATURES) as error:
        raise HardnetError(
            f"{group.file.filename}: {group.name[1:]} is damaged: {_first_line(error)}"
        ) from error


def _fill(
    file: h5py.File,
    path: Path,
    entries: Iterable[tuple[str, Entry]],
    settings: str | None,
    keep: list[str],
) -> None:
    if settings is not None:
        file.attrs[SETTINGS] = settings
    if keep:
        with _open(path) as old:
            for name in keep:
                _object_inside(old, name)
                old.copy(name, file, name)
    for name, entry in entries:
        _write(file, name, entry)


def _write(file: h5py.File, name: str, entry: Entry) -> None:
    file.pop(name, None)
    group = file.create_group(name)
    for key, array in entry.arrays.items():
        group.create_dataset(key, data=array)
    for key, value in entry.facts.items():
        group.attrs[key] = value
