"""Describe many images into a file or a folder; what is there already is not done again.

Every image becomes an ``.npz`` file, which is whole or not there. A folder of these is an output;
an HDF5 file is made of such a folder (``feats.h5.parts``) at the end, and takes the place of the
old one at once: HDF5 writes in place and cannot be killed safely. The folder also has the settings,
because features of different settings must not be mixed, and a lock.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet import descriptors, detectors
from hardnet.entries import FACTS, NPZ, Entry, Fact, read_entry, state_of, write_entry
from hardnet.errors import HardnetError, Progress, Steps, silent
from hardnet.features import KEYPOINTS, MAX_SIZE, Features, to_entry
from hardnet.interop.feature_files import HDF5, hdf5_facts, hdf5_settings, write_hdf5_file
from hardnet.pipeline import extract_many
from hardnet.storage import (
    FolderLock,
    OwnedFolder,
    refuse_foreign,
    refuse_other_settings,
    replacing,
)

if TYPE_CHECKING:
    from hardnet.pipeline import Result


STATE = "extract.json"
_OTHER_FILES = frozenset({".csv", ".hdf", ".json", ".mat", ".npy", ".pkl", ".pt", ".txt", ".zip"})
LOCK = "extract.lock"  # no name that a folder of photos is likely to have
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
    extract: Callable[[Sequence[Path]], Generator[Result, None, None]] | None = None,
    progress: Progress = silent,
) -> ExtractionReport:
    """Describe images into an HDF5 file (``.h5``, ``.hdf5``) or a folder of npz files.

    It can be interrupted at any moment, even by ``kill -9`` or a full disk: called again, it
    continues. Images whose file has not changed since are not done again; one that cannot be read
    is skipped; entries of images that are not named now stay. An output with other settings is
    refused, unless ``overwrite`` begins again. ``extract`` describes files, by default ``workers``
    threads of this process.
    """
    settings = settings or ExtractionSettings()
    describe = descriptors.load(settings.descriptor)
    detect = detectors.load(settings.detector, settings.spread)
    kept: dict[str, Any] = asdict(settings) | {
        "weights": getattr(describe, "weights", None),
        "detector_weights": detectors.weights(settings.detector),
    }
    report = ExtractionReport()
    if extract is None:
        extract = partial(
            extract_many,
            detector=detect,
            descriptor=describe,
            keypoints=settings.keypoints,
            max_size=settings.max_size,
            upright=settings.upright,
            workers=workers,
        )
    with open_output(output, kept, overwrite) as store:
        todo = _todo(store, images, report)
        total = len(todo) + report.unchanged
        progress("describing", report.unchanged, total)
        with closing(extract([images[name] for name in todo])) as results:
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
        try:
            store.finish(lambda done, count: progress("writing", done, count))
        except HardnetError as error:
            raise store.stopped(str(error)) from error
    return report


def _todo(
    store: FeatureOutput, images: Mapping[str, Path], report: ExtractionReport
) -> dict[str, dict[str, int]]:
    todo = {}
    for name, image in images.items():
        try:
            name.encode()
        except UnicodeEncodeError:
            shown = name.encode(errors="backslashreplace").decode()
            given = str(image).encode(errors="backslashreplace").decode()
            report.skipped[shown] = f"{given} is not a name in UTF-8: rename the file"
            continue
        try:
            state = state_of(image)
        except OSError:  # reading it will say why
            state = {}
        if state and store.has(name, state):
            report.unchanged += 1
        else:
            todo[name] = state
    return todo


@contextmanager
def open_output(
    path: Path, settings: Mapping[str, Any], overwrite: bool = False
) -> Iterator[FeatureOutput]:
    """Begin an output, or continue it: an HDF5 file (``.h5``, ``.hdf5``), else a folder.

    ``overwrite`` begins again where there is something already. The old HDF5 file stays until the
    new one takes its place; the files of a folder are deleted at once.
    """
    is_file = path.suffix.lower() in HDF5
    if path.suffix == NPZ:
        raise HardnetError(f"{path}: an npz file holds one image; name a folder for them")
    if path.suffix.lower() in _OTHER_FILES and not path.is_dir():
        raise HardnetError(f"{path}: features are written to a .h5 file or into a folder")
    folder = path.with_name(f"{path.name}.parts") if is_file else path
    if path.exists() and path.is_dir() == is_file:
        raise HardnetError(f"{path} is a {'folder' if is_file else 'file'}: choose another name")
    if not (folder / STATE).exists():
        if is_file:
            refuse_foreign(folder, [LOCK])
        elif any(entry.is_file() for entry in folder.rglob(f"*{NPZ}")):
            raise HardnetError(f"{folder} has .npz files of somebody else: choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, LOCK)
    if not lock.take():
        raise HardnetError(f"another process is writing {path}: wait for its end, or stop it")
    try:
        owned = OwnedFolder.find(folder)
        if owned is None:
            ours = []
            if (folder / STATE).exists():  # made by a version without lists of files
                _read_state(folder, ours=False)
                ours = [STATE, *_old_entries(folder)]
            owned = OwnedFolder.mark(folder)
            owned.adopt(*ours)
        owned.sweep()
        try:
            yield FeatureOutput(path, owned, settings, overwrite)
        finally:
            if is_file and not owned.names(NPZ):
                owned.dissolve(lock)
    finally:
        lock.remove()
        lock.release()


class FeatureOutput:
    """An output that this process may write; see :func:`open_output`."""

    def __init__(
        self, path: Path, owned: OwnedFolder, settings: Mapping[str, Any], overwrite: bool
    ) -> None:
        self.path, self.folder, self._owned = path, owned.path, owned
        self._settings: Mapping[str, Any] = json.loads(json.dumps(settings))
        self._is_file = path != owned.path
        self._old: dict[str, Mapping[str, Fact]] = {}
        self._dropped = False
        self._begin(overwrite)

    def has(self, name: str, state: Mapping[str, int]) -> bool:
        """Whether the image was described when its file was in this state (``state_of``)."""
        part = self._part(name)
        facts = self._old.get(name, {})
        if os.path.exists(part):  # unlike Path.exists, False for a name that is too long
            try:
                facts = read_entry(part, FACTS).facts
            except HardnetError:  # a power failure can do that
                return False
        return all(facts.get(key) == value for key, value in state.items())

    def add(self, name: str, features: Features, state: Mapping[str, int]) -> str | None:
        """Write the features of an image; returns why they cannot have this name, else None."""
        try:
            part = self._owned.claim(f"{name}{NPZ}")
            seen_from = self.path.parent if self._is_file else part.parent
            entry = to_entry(features, seen_from, self._settings["half"], state)
            write_entry(part, entry, self._owned)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return f"{features.path} has too long a name: rename the file"
            if error.errno in _TAKEN:
                return (
                    f"{features.path} cannot be called {name} in {self.folder}, which has "
                    "something else there: rename it, or its folder"
                )
            what = f"{self.folder} cannot be written: {error.strerror}"
            raise self.stopped(what) from error
        return None

    def stopped(self, why: str) -> HardnetError:
        """The error that ends an extraction without losing what is done."""
        return HardnetError(
            f"{why}; what is described is kept in {self.folder}: the same command continues"
        )

    def drop(self, name: str) -> None:
        """Drop an image, if it is there: it has changed and can no longer be read."""
        self._owned.remove(f"{name}{NPZ}")
        if self._old.pop(name, None) is not None:
            self._dropped = True

    def finish(self, progress: Steps = silent) -> None:
        """Make the HDF5 file; ``progress`` is told how many images of how many are in it."""
        if not self._is_file:
            return
        parts = sorted(name.removesuffix(NPZ) for name in self._owned.names(NPZ))
        if parts or self._dropped:
            kept = sorted(set(self._old) - set(parts))

            def entries() -> Iterator[tuple[str, Entry]]:
                for done, name in enumerate(parts, 1):
                    yield name, read_entry(self._part(name))
                    progress(done, len(parts))

            settings = json.dumps(self._settings)
            write_hdf5_file(self.path, entries(), settings, kept, workplace=self.folder)
        # The state first: a folder without it is rubbish, even if this is interrupted.
        self._clear()

    def _part(self, name: str) -> Path:
        return self.folder / f"{name}{NPZ}"

    def _begin(self, overwrite: bool) -> None:
        fresh: dict[str, Any] = {"settings": self._settings, "overwrite": overwrite}
        ours = STATE in self._owned
        try:
            begun = _read_state(self.folder, ours)
        except HardnetError:
            if not overwrite or not ours:
                raise
            begun = None
        if (self.folder / STATE).exists():
            self._owned.claim(STATE)  # or somebody else's
        # An interrupted --overwrite that is repeated continues: nobody wants to lose hours.
        if begun is None or (overwrite and not (self._is_file and begun == fresh)):
            self._clear()
            begun = fresh
        advice = "choose another --output, or begin again with --overwrite"
        refuse_other_settings(begun["settings"], self._settings, self.folder, advice)
        if self._is_file and self.path.exists() and not begun["overwrite"]:
            refuse_other_settings(self._made_with(), self._settings, self.path, advice)
            self._old = hdf5_facts(self.path)
        with replacing(self._owned.claim(STATE)) as part:
            part.write_text(json.dumps(begun, indent=1) + "\n")

    def _made_with(self) -> dict[str, Any]:
        advice = "choose another --output, or replace it with --overwrite"
        was = hdf5_settings(self.path)
        if was is None:
            raise HardnetError(f"{self.path} was not written by hardnet extract: {advice}")
        try:
            return dict(json.loads(was))
        except (ValueError, TypeError):
            raise HardnetError(
                f"{self.path} is damaged: its settings are no JSON; {advice}"
            ) from None

    def _clear(self) -> None:
        self._owned.remove(STATE)
        self._owned.remove(*self._owned.names(NPZ))


def _read_state(folder: Path, ours: bool) -> dict[str, Any] | None:
    path = folder / STATE
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        return {"settings": dict(state["settings"]), "overwrite": bool(state["overwrite"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        if ours:
            raise HardnetError(f"{path} is damaged: begin again with --overwrite") from error
        raise HardnetError(
            f"{path} is in the way: it is not from hardnet extract, or it is damaged; move it, or "
            "choose another --output"
        ) from error


def _old_entries(folder: Path) -> Iterator[str]:
    """Files of features by ``hardnet extract``, which notes the state of each photo's file."""
    for path in folder.rglob(f"*{NPZ}"):
        with suppress(HardnetError):
            if {"bytes", "mtime_ns"} <= read_entry(path, FACTS).facts.keys():
                yield path.relative_to(folder).as_posix()
