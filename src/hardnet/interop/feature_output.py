"""Where ``hardnet extract`` writes: an output that may be left half done at any moment.

Every image becomes an ``.npz`` file of its own, which is whole or not there. A folder of these is
an output. An HDF5 file is made of such a folder (``feats.h5.parts``) at the end: it is written
inside it and takes the place of the old one at once. HDF5 itself writes in place and cannot be
killed safely, so no file that has its final name is ever open for writing. The price is room for
the features twice, at the end.

The folder also has the settings, because features of different settings must not be mixed, and a
lock while somebody is writing.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.folder_lock import FolderLock
from hardnet.interop import hdf5, npz
from hardnet.interop.entry import FACTS, Entry, Fact, to_entry
from hardnet.patchsets.cache import replacing

STATE = "extract.json"
LOCK = "extract.lock"  # no name that a folder of photos is likely to have

Settings = Mapping[str, Any]


@contextmanager
def open_output(path: Path, settings: Settings, overwrite: bool = False) -> Iterator[FeatureOutput]:
    """Begin an output, or go on with it.

    Args:
        path: ends in ``.h5`` or ``.hdf5`` for an HDF5 file; else a folder.
        settings: JSON values.
        overwrite: begin anew where there is something already. The old HDF5 file stays until the
            new one takes its place; the files of a folder are deleted at once.

    Raises:
        HardnetError: other settings, not our file, somebody else is writing.
    """
    is_file = path.suffix.lower() in hdf5.SUFFIXES
    if path.suffix == npz.SUFFIX:
        raise HardnetError(f"{path}: an npz file holds one image; name a folder for them")
    folder = path.with_name(f"{path.name}.parts") if is_file else path
    if path.exists() and path.is_dir() == is_file:
        raise HardnetError(f"{path} is a {'folder' if is_file else 'file'}: choose another name")
    if not is_file and not (folder / STATE).exists() and any(_entries(folder)):
        raise HardnetError(f"{folder} has .npz files of somebody else: choose another --output")
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, LOCK)
    if not lock.take():
        raise HardnetError(f"another process is writing {path}: wait for its end, or stop it")
    try:
        yield FeatureOutput(path, folder, settings, overwrite)
    finally:
        if is_file and not any(_entries(folder)):
            shutil.rmtree(folder, ignore_errors=True)
        (folder / LOCK).unlink(missing_ok=True)  # before it is released: see FolderLock
        lock.release()


class FeatureOutput:
    """An output that this process may write; see :func:`open_output`."""

    def __init__(self, path: Path, folder: Path, settings: Settings, overwrite: bool) -> None:
        self.path, self.folder = path, folder
        self._settings: Settings = json.loads(json.dumps(settings))
        self._is_file = path != folder
        self._old: dict[str, Mapping[str, Fact]] = {}
        self._dropped = False
        self._begin(overwrite)
        for left in _files(folder, ".part"):  # by a process that was killed
            left.unlink(missing_ok=True)

    def has(self, name: str, state: Mapping[str, int]) -> bool:
        """Whether the image was described when its file was in this state (``entry.state_of``)."""
        part = self._part(name)
        facts = self._old.get(name, {})
        if os.path.exists(part):  # unlike Path.exists, False for a name that is too long
            try:
                facts = npz.read_entry(part, FACTS).facts
            except HardnetError:  # a power failure can do that
                return False
        return all(facts.get(key) == value for key, value in state.items())

    def add(self, name: str, features: Features, state: Mapping[str, int], half: bool) -> None:
        """Write the features of an image; raises OSError if the disk does not take them."""
        part = self._part(name)
        seen_from = self.path.parent if self._is_file else part.parent
        npz.write_entry(part, to_entry(features, seen_from, half, state))

    def drop(self, name: str) -> None:
        """Forget an image, if it is there: it has changed, and cannot be read any more."""
        part = self._part(name)
        if os.path.exists(part):
            part.unlink()
        if self._old.pop(name, None) is not None:
            self._dropped = True

    def finish(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Make the HDF5 file; ``progress`` is told how many images of how many are in it."""
        if not self._is_file:
            return
        parts = sorted(_entries(self.folder))
        if parts or self._dropped:
            kept = sorted(set(self._old) - set(parts))

            def entries() -> Iterator[tuple[str, Entry]]:
                for done, name in enumerate(parts, 1):
                    yield name, npz.read_entry(self._part(name))
                    progress(done, len(parts))

            settings = json.dumps(self._settings)
            hdf5.write_file(self.path, entries(), settings, kept, workplace=self.folder)
        # The state first: a folder without it is rubbish, even if this is interrupted.
        (self.folder / STATE).unlink(missing_ok=True)
        for name in parts:
            self._part(name).unlink(missing_ok=True)

    def _part(self, name: str) -> Path:
        return self.folder / f"{name}{npz.SUFFIX}"

    def _begin(self, overwrite: bool) -> None:
        """Compare the settings with those of what is there, and note them."""
        fresh: dict[str, Any] = {"settings": self._settings, "overwrite": overwrite}
        begun = self._read_state(overwrite)
        # An interrupted --overwrite that is repeated goes on: nobody wants to lose hours.
        if begun is None or (overwrite and not (self._is_file and begun == fresh)):
            self._clear()
            begun = fresh
        self._compare(begun["settings"], self.folder)
        if self._is_file and self.path.exists() and not begun["overwrite"]:
            was = hdf5.read_settings(self.path)
            if was is None:
                raise HardnetError(
                    f"{self.path} was not written by hardnet extract: choose another --output, or "
                    "replace it with --overwrite"
                )
            self._compare(json.loads(was), self.path)
            self._old = hdf5.read_facts(self.path)
        with replacing(self.folder / STATE) as part:
            part.write_text(json.dumps(begun, indent=1) + "\n")

    def _read_state(self, overwrite: bool) -> dict[str, Any] | None:
        path = self.folder / STATE
        try:
            state: dict[str, Any] = json.loads(path.read_text())
            return {"settings": dict(state["settings"]), "overwrite": bool(state["overwrite"])}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            if overwrite:
                return None
            raise HardnetError(f"{path} is damaged: begin anew with --overwrite") from error

    def _compare(self, was: Settings, where: Path) -> None:
        for key, value in self._settings.items():
            if was.get(key) != value:
                made = f"{key}={was.get(key)}, not {value}"
                if key.endswith("weights"):  # a digest says nothing to people
                    made = f"other {key}"
                raise HardnetError(
                    f"{where} was made with {made}: choose another --output, or begin anew with "
                    "--overwrite"
                )

    def _clear(self) -> None:
        (self.folder / STATE).unlink(missing_ok=True)
        for name in list(_entries(self.folder)):
            self._part(name).unlink(missing_ok=True)


def _entries(folder: Path) -> Iterator[str]:
    """Names of the images that have a file in a folder."""
    for path in _files(folder, npz.SUFFIX):
        yield path.relative_to(folder).as_posix().removesuffix(npz.SUFFIX)


def _files(folder: Path, suffix: str) -> Iterator[Path]:
    """Files only: a folder of photos may be called "church.part" or "church.npz"."""
    return (path for path in folder.rglob(f"*{suffix}") if path.is_file())
