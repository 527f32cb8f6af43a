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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.interop import hdf5, npz
from hardnet.interop.entry import FACTS, Entry, Fact, to_entry
from hardnet.storage import FolderLock, OwnedFolder, refuse_foreign, replacing

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
    if not is_file and not (folder / STATE).exists() and _has_entries(folder):
        raise HardnetError(f"{folder} has .npz files of somebody else: choose another --output")
    if is_file and not (folder / STATE).exists():
        refuse_foreign(folder, [LOCK])
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, LOCK)
    if not lock.take():
        raise HardnetError(f"another process is writing {path}: wait for its end, or stop it")
    try:
        owned = _owned(folder)
        try:
            yield FeatureOutput(path, owned, settings, overwrite)
        finally:
            if is_file and not owned.names(npz.SUFFIX):
                owned.dissolve(lock)
    finally:
        lock.remove()
        lock.release()


def _owned(folder: Path) -> OwnedFolder:
    """The folder with what is ours in it, also if a version without lists of files made it."""
    owned = OwnedFolder.find(folder)
    if owned is None:
        ours = []
        if (folder / STATE).exists():
            _read_state(folder)
            ours = [STATE, *_old_entries(folder)]
        owned = OwnedFolder.mark(folder)
        owned.adopt(*ours)
    owned.sweep()
    return owned


class FeatureOutput:
    """An output that this process may write; see :func:`open_output`."""

    def __init__(self, path: Path, owned: OwnedFolder, settings: Settings, overwrite: bool) -> None:
        self.path, self.folder, self._owned = path, owned.path, owned
        self._settings: Settings = json.loads(json.dumps(settings))
        self._is_file = path != owned.path
        self._old: dict[str, Mapping[str, Fact]] = {}
        self._dropped = False
        self._begin(overwrite)

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
        part = self._owned.claim(f"{name}{npz.SUFFIX}")
        seen_from = self.path.parent if self._is_file else part.parent
        npz.write_entry(part, to_entry(features, seen_from, half, state), self._owned)

    def drop(self, name: str) -> None:
        """Forget an image, if it is there: it has changed, and cannot be read any more."""
        self._owned.remove(f"{name}{npz.SUFFIX}")
        if self._old.pop(name, None) is not None:
            self._dropped = True

    def finish(self, progress: Callable[[int, int], None] = lambda done, total: None) -> None:
        """Make the HDF5 file; ``progress`` is told how many images of how many are in it."""
        if not self._is_file:
            return
        parts = sorted(name.removesuffix(npz.SUFFIX) for name in self._owned.names(npz.SUFFIX))
        if parts or self._dropped:
            kept = sorted(set(self._old) - set(parts))

            def entries() -> Iterator[tuple[str, Entry]]:
                for done, name in enumerate(parts, 1):
                    yield name, npz.read_entry(self._part(name))
                    progress(done, len(parts))

            settings = json.dumps(self._settings)
            hdf5.write_file(self.path, entries(), settings, kept, workplace=self.folder)
        # The state first: a folder without it is rubbish, even if this is interrupted.
        self._clear()

    def _part(self, name: str) -> Path:
        return self.folder / f"{name}{npz.SUFFIX}"

    def _begin(self, overwrite: bool) -> None:
        """Compare the settings with those of what is there, and note them."""
        fresh: dict[str, Any] = {"settings": self._settings, "overwrite": overwrite}
        begun = self._read_state(overwrite)
        if (self.folder / STATE).exists():
            self._owned.claim(STATE)  # or somebody else's
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
        with replacing(self._owned.claim(STATE)) as part:
            part.write_text(json.dumps(begun, indent=1) + "\n")

    def _read_state(self, overwrite: bool) -> dict[str, Any] | None:
        try:
            return _read_state(self.folder)
        except HardnetError:
            if overwrite and STATE in self._owned:
                return None
            raise

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
        self._owned.remove(STATE)
        self._owned.remove(*self._owned.names(npz.SUFFIX))


def _read_state(folder: Path) -> dict[str, Any] | None:
    path = folder / STATE
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        return {"settings": dict(state["settings"]), "overwrite": bool(state["overwrite"])}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise HardnetError(
            f"{path} is damaged, or not of hardnet extract: begin again with --overwrite, or move "
            "it if it is another program's"
        ) from error


def _has_entries(folder: Path) -> bool:
    return any(path.is_file() for path in folder.rglob(f"*{npz.SUFFIX}"))


def _old_entries(folder: Path) -> Iterator[str]:
    """Files of features by ``hardnet extract``, which notes the state of each photo's file."""
    for path in folder.rglob(f"*{npz.SUFFIX}"):
        with suppress(HardnetError):
            if {"bytes", "mtime_ns"} <= npz.read_entry(path, FACTS).facts.keys():
                yield path.relative_to(folder).as_posix()
