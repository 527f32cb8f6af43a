"""Describe many images into a file or a folder, skipping those that were described before.

Every image becomes an ``.npz`` file, which is whole or absent. A folder of these is an output; an
HDF5 file is made of such a folder (``feats.h5.parts``) at the end and replaces the old one at once:
HDF5 writes in place and cannot be killed safely. The folder also has the settings, because features
of different settings must not be mixed, and a lock.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hardnet import descriptors, detectors
from hardnet.errors import HardnetError, Progress, silent
from hardnet.features import (
    FACTS,
    KEYPOINTS,
    MAX_SIZE,
    NPZ,
    Entry,
    Features,
    read_entry,
    to_entry,
    write_entry,
)
from hardnet.image_files import state_of
from hardnet.interop.feature_files import read_hdf5_facts, write_hdf5_file
from hardnet.pipeline import extract_many
from hardnet.storage import (
    FolderLock,
    OwnedFolder,
    refuse_foreign,
    refuse_other_settings,
    replacing,
)

_HDF5 = (".h5", ".hdf5")
_OTHER_FILES = frozenset({".csv", ".hdf", ".json", ".mat", ".npy", ".pkl", ".pt", ".txt", ".zip"})
_STATE = "extract.json"
_LOCK = "extract.lock"  # no name that a folder of photos is likely to have
_TAKEN = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR)  # a folder where a file is, or the reverse


@dataclass(frozen=True)
class ExtractionSettings:
    """What decides the features of an image; see :func:`hardnet.extract`.

    ``half`` keeps descriptors as float16: half the size, three digits.
    """

    detector: str = "dog"
    descriptor: str = field(default_factory=lambda: descriptors.for_photos(descriptors.DEFAULT))
    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    upright: bool = False
    half: bool = False
    spread: bool = False


@dataclass
class ExtractionReport:
    """How many images were described, with how many keypoints, and had been described before.

    ``skipped`` has the name of each that could not be described, and why.
    """

    described: int = 0
    unchanged: int = 0
    keypoints: int = 0
    skipped: dict[str, str] = field(default_factory=dict)


def extract_to(
    output: Path,
    images: Mapping[str, Path],
    settings: ExtractionSettings | None = None,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Progress = silent,
) -> ExtractionReport:
    """Describe images into an HDF5 file (``.h5``, ``.hdf5``) or a folder of npz files.

    Stopped at any moment, even by ``kill -9`` or a full disk, it continues when called again.
    Images whose file has not changed are not described again; one that cannot be read is skipped;
    entries of images that are not named now stay. An output with other settings is refused, unless
    ``overwrite`` begins again: the old HDF5 file stays until the new one replaces it, the files of
    a folder are deleted at once.
    """
    settings = settings or ExtractionSettings()
    describe = descriptors.load(settings.descriptor)
    detect = detectors.load(settings.detector, settings.spread)
    kept: dict[str, Any] = asdict(settings) | {
        "weights": getattr(describe, "weights", None),
        "detector_weights": detectors.weights(settings.detector),
    }
    report = ExtractionReport()
    with _open_output(output, kept, overwrite) as store:
        todo = _todo(store, images, report)
        total = len(todo) + report.unchanged
        progress("describing", report.unchanged, total)
        described = extract_many(
            [images[name] for name in todo],
            detector=detect,
            descriptor=describe,
            keypoints=settings.keypoints,
            max_size=settings.max_size,
            upright=settings.upright,
            workers=workers,
        )
        with closing(described) as results:
            for done, (name, (_, result)) in enumerate(zip(todo, results, strict=True), 1):
                if isinstance(result, HardnetError):
                    store.drop(name)
                    report.skipped[name] = str(result)
                elif why := store.add(name, result, todo[name]):
                    report.skipped[name] = why
                else:
                    report.described += 1
                    report.keypoints += len(result)
                progress("describing", report.unchanged + done, total)
        store.finish(progress)
    return report


def _todo(
    store: _Output, images: Mapping[str, Path], report: ExtractionReport
) -> dict[str, dict[str, int]]:
    todo: dict[str, dict[str, int]] = {}
    for name, image in images.items():
        shown = name.encode(errors="backslashreplace").decode()
        if shown != name:
            given = str(image).encode(errors="backslashreplace").decode()
            report.skipped[shown] = f"{given} is not a name in UTF-8: rename the file"
            continue
        state: dict[str, int] = {}
        with suppress(OSError):  # reading it will say why
            state = state_of(image)
        if state and store.has(name, state):
            report.unchanged += 1
        else:
            todo[name] = state
    return todo


@contextmanager
def _open_output(path: Path, settings: Mapping[str, Any], overwrite: bool) -> Iterator[_Output]:
    is_file = path.suffix.lower() in _HDF5
    if path.suffix == NPZ:
        raise HardnetError(f"{path}: an npz file holds one image; name a folder for them")
    if path.suffix.lower() in _OTHER_FILES and not path.is_dir():
        raise HardnetError(f"{path}: features are written to a .h5 file or into a folder")
    folder = path.with_name(f"{path.name}.parts") if is_file else path
    if path.exists() and path.is_dir() == is_file:
        raise HardnetError(f"{path} is a {'folder' if is_file else 'file'}: choose another name")
    if (folder / _STATE).exists():
        if _STATE not in (OwnedFolder.find(folder) or ()):
            raise HardnetError(
                f"{folder / _STATE} is in the way: it is not from hardnet extract; move it, or "
                "choose another --output"
            )
    elif is_file:
        refuse_foreign(folder, [_LOCK])
    elif any(entry.is_file() for entry in folder.rglob(f"*{NPZ}")):
        raise HardnetError(f"{folder} has .npz files of somebody else: choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, _LOCK)
    if not lock.take():
        raise HardnetError(f"another process is writing {path}: wait for its end, or stop it")
    try:
        owned = OwnedFolder.mark(folder)
        owned.sweep()
        try:
            yield _Output(path, owned, settings, overwrite)
        finally:
            if is_file and not owned.names(NPZ):
                owned.dissolve(lock)
    finally:
        lock.remove()
        lock.release()


class _Output:
    """A folder of npz files that this process may write, and the HDF5 file it will become."""

    def __init__(
        self, path: Path, owned: OwnedFolder, settings: Mapping[str, Any], overwrite: bool
    ) -> None:
        self._path, self._folder, self._owned = path, owned.path, owned
        self._settings: Mapping[str, Any] = json.loads(json.dumps(settings))
        self._is_file = path != owned.path
        self._old: dict[str, Entry] = {}  # what the HDF5 file knows of its images
        self._dropped = False
        self._begin({"settings": self._settings, "overwrite": overwrite})

    def _begin(self, wanted: dict[str, Any]) -> None:
        overwrite, state = wanted["overwrite"], self._folder / _STATE
        begun: dict[str, Any] | None = None
        try:
            if state.exists():
                found = json.loads(state.read_text())
                begun = {"settings": dict(found["settings"]), "overwrite": bool(found["overwrite"])}
        except (ValueError, KeyError, TypeError) as error:
            if not overwrite:
                raise HardnetError(f"{state} is damaged: begin again with --overwrite") from error
        # An interrupted --overwrite that is repeated continues: nobody wants to lose hours.
        if begun is None or (overwrite and not (self._is_file and begun == wanted)):
            self._clear()
            begun = wanted
        advice = "choose another --output, or begin again with --overwrite"
        refuse_other_settings(begun["settings"], self._settings, self._folder, advice)
        if self._is_file and self._path.exists() and not begun["overwrite"]:
            self._read_old(advice)
        with replacing(self._owned.claim(_STATE)) as part:
            part.write_text(json.dumps(begun, indent=1) + "\n")

    def _read_old(self, advice: str) -> None:
        made_with, self._old = read_hdf5_facts(self._path)
        replace = "choose another --output, or replace it with --overwrite"
        if made_with is None:
            raise HardnetError(f"{self._path} was not written by hardnet extract: {replace}")
        try:
            was = dict(json.loads(made_with))
        except (ValueError, TypeError):
            raise HardnetError(
                f"{self._path} is damaged: its settings are no JSON; {replace}"
            ) from None
        refuse_other_settings(was, self._settings, self._path, advice)

    def has(self, name: str, state: Mapping[str, int]) -> bool:
        """Whether the image was described when its file was in this state."""
        part, facts = self._folder / f"{name}{NPZ}", self._old.get(name, {})
        if os.path.exists(part):  # unlike Path.exists, False for a name that is too long
            try:
                facts = read_entry(part, FACTS)
            except HardnetError:  # a power failure can do that
                return False
        return all(facts.get(key) == value for key, value in state.items())

    def add(self, name: str, features: Features, state: Mapping[str, int]) -> str | None:
        """Write the features of an image; returns why they cannot have this name, else None."""
        try:
            part = self._owned.claim(f"{name}{NPZ}")
            seen_from = self._path.parent if self._is_file else part.parent
            entry = to_entry(features, seen_from, self._settings["half"], state)
            write_entry(part, entry, self._owned)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return f"{features.path} has too long a name: rename the file"
            if error.errno in _TAKEN:
                return (
                    f"{features.path} cannot be called {name} in {self._folder}, which has "
                    "something else there: rename it, or its folder"
                )
            raise self._stopped(f"{self._folder} cannot be written: {error.strerror}") from error
        return None

    def drop(self, name: str) -> None:
        """Drop an image that has changed and can no longer be read."""
        self._owned.remove(f"{name}{NPZ}")
        if self._old.pop(name, None) is not None:
            self._dropped = True

    def finish(self, progress: Progress) -> None:
        """Make the HDF5 file."""
        if not self._is_file:
            return
        parts = sorted(name.removesuffix(NPZ) for name in self._owned.names(NPZ))
        if parts or self._dropped:

            def entries() -> Iterator[tuple[str, Entry]]:
                for done, name in enumerate(parts, 1):
                    yield name, read_entry(self._folder / f"{name}{NPZ}")
                    progress("writing", done, len(parts))

            kept = sorted(set(self._old) - set(parts))
            settings = json.dumps(self._settings)
            try:
                write_hdf5_file(self._path, entries(), settings, kept, self._folder)
            except HardnetError as error:
                raise self._stopped(str(error)) from error
        self._clear()

    def _stopped(self, why: str) -> HardnetError:
        return HardnetError(
            f"{why}; what is described is kept in {self._folder}: the same command continues"
        )

    def _clear(self) -> None:
        # The state first: a folder without it is rubbish, even if this is interrupted.
        self._owned.remove(_STATE)
        self._owned.remove(*self._owned.names(NPZ))
