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

and facts, single values: ``descriptor`` (its name), ``weights`` (their digest), ``scale``,
``orientation`` if it is upright, ``path`` (of the image, seen from the folder of the file), and
``bytes`` and ``mtime_ns`` of the image when it was read.

An HDF5 file has one group per image, called by its name (``"church/front.jpg"``), with the facts as
its attributes. hloc makes a tensor of every dataset of a group, and takes every group with a
dataset for an image: so all datasets are numbers, and there is nothing else in the file.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hardnet.errors import HardnetError
from hardnet.features import (
    ARRAYS,
    FACTS,
    NO_FEATURES,
    Entry,
    Features,
    first_line,
    from_entry,
    refuse_large,
    to_entry,
    write_entry,
)
from hardnet.image_files import as_path
from hardnet.storage import check_inside, replacing

SETTINGS = "settings"
"""Attribute of a file: how its features were made, as JSON."""
_BUSY = "another process is using it"


def read_npz(path: str | os.PathLike[str]) -> Features:
    """Features as :func:`write_npz` or ``hardnet extract`` wrote them."""
    return Features.load(path)


def write_npz(path: str | os.PathLike[str], features: Features, *, half: bool = False) -> None:
    """Write a file that is either whole or absent; its folder is made if it is missing.

    ``half`` keeps descriptors as float16: half the size, three digits.
    """
    path = as_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_entry(path, to_entry(features, path.parent, half))


def hdf5_names(path: str | os.PathLike[str]) -> list[str]:
    """The images in a file, sorted."""
    with _open(path) as file:
        return _names(file)


def read_hdf5(path: str | os.PathLike[str], name: str) -> Features:
    """The features of one image; their path is None if the image is no longer where it was.

    What ``hardnet extract`` or :func:`write_hdf5` wrote comes back as it was. hloc keeps positions
    only: its keypoints become upright frames of sigma ``features.SIGMA``, good for matching but not
    for anything that looks at their shape. It names files by configuration, so the descriptor is
    called like the file.
    """
    path = as_path(path)
    with _open(path) as file:
        group = _object_inside(file, name)
        if not isinstance(group, h5py.Group) or "keypoints" not in group:
            known = _names(file)
            near = difflib.get_close_matches(name, known, n=1) or known[:1]
            hint = f", but for example {near[0]!r}" if near else ""
            raise HardnetError(f"{path} has no image {name!r}{hint} ({len(known)} in all)")
        stored = {n: group[n] for n in ARRAYS if isinstance(group.get(n), h5py.Dataset)}
        refuse_large(path, sum(item.nbytes for item in stored.values()))
        try:
            entry = {n: np.asarray(item) for n, item in stored.items()} | _facts(group)
        except (OSError, RuntimeError, MemoryError, *NO_FEATURES) as error:
            raise HardnetError(f"{path}: {name} is damaged: {first_line(error)}") from error
    return from_entry(entry, path.parent, f"{path}: {name}", descriptor=path.stem)


def write_hdf5(
    path: str | os.PathLike[str], name: str, features: Features, *, half: bool = False
) -> None:
    """Add an image to a file, which is made if it is missing; an entry of that name is replaced.

    HDF5 writes in place: a process that is killed in this call can leave a file that does not open.
    ``hardnet extract`` has no such moment.
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
    settings: str,
    keep: Iterable[str],
    workplace: Path,
) -> None:
    """Write a whole file in the folder ``workplace``, which then replaces ``path`` at once.

    Entries that are called ``keep`` are copied from the old file.
    """
    with _writing(path), replacing(path, workplace=workplace) as part:
        with h5py.File(part, "w") as file:
            file.attrs[SETTINGS] = settings
            if keep := list(keep):
                with _open(path) as old:
                    for name in keep:
                        _object_inside(old, name)
                        old.copy(name, file, name)
            for name, entry in entries:
                _write(file, name, entry)
        with part.open("rb+") as stream:
            os.fsync(stream.fileno())


def read_hdf5_facts(path: Path) -> tuple[str | None, dict[str, Entry]]:
    """How the features were made (None if not by ``hardnet extract``), and facts of every image."""
    with _open(path) as file:
        settings = file.attrs.get(SETTINGS)
        facts = {name: _facts(file[name]) for name in _names(file)}
    return None if settings is None else str(settings), facts


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
            raise HardnetError(f"{path} is damaged: {first_line(error)}") from error


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Errors of HDF5 as one line."""
    try:
        yield
    except BlockingIOError as error:
        raise HardnetError(f"{path} cannot be written: {_BUSY}") from error
    except (OSError, RuntimeError) as error:
        raise HardnetError(f"{path} cannot be written: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """What the system says went wrong, perhaps in an error before this one."""
    first: BaseException | None = error
    while first is not None:
        said = re.search(r"errno = (\d+)", str(first))
        number = getattr(first, "errno", None) or (said and int(said[1]))
        if number:
            return os.strerror(number)
        first = first.__context__
    return first_line(error)


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
        raise _leads_out(group.file, f"{group.name}/{part}", "a link")
    found = group[part]
    if isinstance(found, h5py.Dataset) and (found.external or found.is_virtual):
        what = "a dataset with its values in other files"
        raise _leads_out(group.file, f"{group.name}/{part}", what)
    return found


def _leads_out(file: h5py.File, where: str, what: str) -> HardnetError:
    return HardnetError(
        f"{file.filename} has {what}, '/{where.lstrip('/')}': features are read from one file "
        "only; write them into it, or do not use it"
    )


def _names(file: h5py.File) -> list[str]:
    links: list[str] = []
    file.id.links.visit(lambda name: links.append(name.decode(errors="surrogateescape")))
    for name in links:
        if not isinstance(file.get(name, getlink=True), h5py.HardLink):
            raise _leads_out(file, name, "a link")
    found: list[str] = []

    def visit(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Group) and "keypoints" in item:
            found.append(check_inside(name, file.filename))

    file.visititems(visit)
    return sorted(found)


def _facts(group: h5py.Group) -> Entry:
    values = {name: group.attrs[name] for name in FACTS if name in group.attrs}
    return {n: v.item() if isinstance(v, np.generic) else v for n, v in values.items()}


def _write(file: h5py.File, name: str, entry: Entry) -> None:
    file.pop(name, None)
    group = file.create_group(name)
    for key, value in entry.items():
        if key in ARRAYS:
            group.create_dataset(key, data=value)
        else:
            group.attrs[key] = value
