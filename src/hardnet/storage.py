"""What on the disk is ours to replace or delete, the one way to replace a file, the one cache.

A folder that we work in has a marker, a list of the names that we made there. A name is written to
the list before its file is made, and only where nothing had that name: so whatever the list has is
ours, also after a kill, and whatever it lacks is somebody else's. Nothing else is ever deleted.

A file grows under a name with the number of its folder's marker, which nobody else has, or one
drawn at random; it is made by one process, and only deleted by it or by proof of that number.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.folder_lock import FolderLock

T = TypeVar("T")
V = TypeVar("V")

MARKER = ".hardnet-files"
"""The list: one JSON value per line, the first is the format and the number of the folder."""

PART = ".part"

_FORMAT = "hardnet-files-1"
_MANY = 1000  # lines of a list that may be there in vain
_DEPTH = 4  # folders of ours are not deeper
_LONG = 120  # bytes of a name that leave room for what a part adds


def as_path(path: str | os.PathLike[str]) -> Path:
    """A path that somebody gave; an empty one, as of an unset variable, is not the current folder.

    Raises:
        HardnetError: it is empty.
    """
    if not os.fspath(path):
        raise HardnetError('a path is empty: name a file or folder ("." is the current folder)')
    return Path(path)


class OwnedFolder:
    """A folder with a marker, and the names in it that we made.

    Made by :meth:`find`, :meth:`mark` or :meth:`begin`. Processes that change one folder at the
    same time need a lock, but for :meth:`claim`.

    Attributes:
        path: of the folder.
        number: 16 letters that no other folder has.
        durable: the list survives a power cut, not only a kill.
    """

    def __init__(self, path: Path, number: str, names: Iterable[str], lines: int) -> None:
        self.path = path
        self.number = number
        self.durable = False
        self._names = dict.fromkeys(names)
        self._lines = lines

    @classmethod
    def find(cls, folder: Path) -> OwnedFolder | None:
        """The folder, if it has a marker.

        Raises:
            HardnetError: there is a file of the marker's name that is none.
        """
        path = folder / MARKER
        try:
            lines = path.read_text("utf-8", "surrogateescape").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return None
        head = _value(lines[0]) if lines else None
        if not isinstance(head, dict) or head.get("format") != _FORMAT:
            raise HardnetError(f"{path} is in the way: it is no list of hardnet's files, move it")
        names: dict[str, None] = {}
        for line in lines[1:]:  # the last one may be cut short: its file was never made
            match _value(line):
                case str(name) if _is_below(name):
                    names[name] = None
                case {"removed": str(name)}:
                    names.pop(name, None)
        return cls(folder, str(head.get("number")), names, len(lines))

    @classmethod
    def mark(cls, folder: Path) -> OwnedFolder:
        """A folder that others may use too: it is made if absent; what is in it is not ours."""
        owned = cls.find(folder)
        if owned is not None:
            return owned
        folder.mkdir(parents=True, exist_ok=True)
        part = new_part(folder / MARKER)
        try:
            head = {"format": _FORMAT, "number": secrets.token_hex(8)}
            part.write_text(json.dumps(head) + "\n")
            try:
                os.link(part, folder / MARKER)  # unlike a renaming, never replaces anything
            except FileExistsError:  # another process was faster
                pass
            except OSError:  # a disk without links
                part.rename(folder / MARKER)
        finally:
            part.unlink(missing_ok=True)
        return cls.mark(folder)

    @classmethod
    def begin(cls, folder: Path, besides: Iterable[str] = ()) -> OwnedFolder:
        """A folder that is ours alone: new, empty, or marked before.

        Args:
            folder: made if absent.
            besides: names that may be there, such as that of a lock.

        Raises:
            HardnetError: there is something in it, and no marker; it is named.
        """
        refuse_foreign(folder, besides)
        return cls.mark(folder)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def names(self, suffix: str = "") -> list[str]:
        """What we made and is there: paths below the folder, with "/" between their parts."""
        return [n for n in self._names if n.endswith(suffix) and os.path.lexists(self.path / n)]

    def claim(self, name: str) -> Path:
        """The path of a file that we are about to make or to replace; its folders are made.

        Args:
            name: of the file, as :meth:`names` has it; one that ends in "/" is a folder's.

        Raises:
            HardnetError: somebody else's file is there.
        """
        path = self.path / name
        if not _is_below(name) or not self._reaches(path):
            raise HardnetError(f"{path} lies outside {self.path}: choose another name")
        folders = [f"{parent}/" for parent in PurePosixPath(name).parents if parent.name]
        for made in [*reversed(folders), name]:
            if made not in self._names and not os.path.lexists(self.path / made):
                self.adopt(made)
        if name not in self._names and not name.endswith("/"):
            self._read_again()
        if name not in self._names and not path.is_dir():
            raise HardnetError(f"{path} is in the way: hardnet did not make it; move or rename it")
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        return path

    def adopt(self, *names: str) -> None:
        """List names whose files are proven ours in another way, or not there yet."""
        new = [name for name in names if name not in self._names]
        self._note(new)
        self._names.update(dict.fromkeys(new))

    def remove(self, *names: str) -> None:
        """Delete files that we made, and folders if they are empty; all else is left alone.

        Raises:
            OSError: the system refuses it.
        """
        gone = []
        for name in sorted(names, key=lambda name: (name.endswith("/"), -len(name))):
            path = self.path / name
            if name not in self._names or not self._reaches(path):
                continue
            if name.endswith("/"):
                try:
                    path.rmdir()
                except FileNotFoundError:
                    pass
                except OSError:  # something is in it
                    continue
            elif os.path.lexists(path):  # unlike unlink, no error for a name that is too long
                path.unlink()
            gone.append(name)
        with suppress(OSError):  # a full disk
            self._note([{"removed": name} for name in gone])
        for name in gone:
            del self._names[name]

    def sweep(self) -> None:
        """Delete the parts of files that killed processes left here."""
        for place in ["", *(n for n in self._names if n.endswith("/"))]:
            if self._reaches(self.path / place / PART):
                for left in (self.path / place).glob(f"*.{self.number}-*{PART}"):
                    left.unlink(missing_ok=True)
        if self._lines > _MANY and self._lines > 2 * len(self._names):
            values = [{"format": _FORMAT, "number": self.number}, *self._names]
            with replacing(self.path / MARKER, self) as part:
                part.write_text("".join(f"{json.dumps(value)}\n" for value in values))

    def dissolve(self, lock: FolderLock | None = None) -> None:
        """Delete all that we made here, and the folder if nothing else is in it.

        Args:
            lock: keeps others out of the folder; its file goes last.
        """
        self._read_again()
        self.sweep()
        for place in [name for name in self._names if name.endswith("/")]:
            with suppress(OSError, HardnetError):
                nested = OwnedFolder.find(self.path / place)
                if nested is not None and self._reaches(self.path / place):
                    nested.dissolve()
        self.remove(*self._names)
        (self.path / MARKER).unlink(missing_ok=True)
        if lock is not None:
            lock.remove()
        with suppress(OSError):
            self.path.rmdir()

    def _reaches(self, path: Path) -> bool:
        """Whether a path lies below the folder, whatever links are on the way."""
        here = os.path.realpath(self.path)
        return os.path.commonpath([here, os.path.realpath(path.parent)]) == here

    def _read_again(self) -> None:
        """Another process may have made it meanwhile."""
        found = OwnedFolder.find(self.path)
        if found is not None:
            self._names = found._names

    def _note(self, values: list[str] | list[dict[str, str]]) -> None:
        if not values:
            return
        # A line break in front: the line before may have been cut short by a kill.
        lines = "".join(f"\n{json.dumps(value)}" for value in values) + "\n"
        with (self.path / MARKER).open("ab", buffering=0) as file:
            file.write(lines.encode())
            if self.durable:
                os.fsync(file.fileno())


def refuse_foreign(folder: Path, besides: Iterable[str] = ()) -> None:
    """Raise if a folder has something in it but no marker; see :meth:`OwnedFolder.begin`."""
    if not folder.is_dir():
        if os.path.lexists(folder):
            raise HardnetError(f"{folder} is in the way: it is not a folder, move it")
        return
    if OwnedFolder.find(folder) is None:
        others = sorted(set(os.listdir(folder)) - set(besides))
        others = [name for name in others if not name.startswith(MARKER)]
        if others:
            raise HardnetError(
                f"{folder} is in the way: hardnet did not make what is in it ({others[0]}); "
                "move it, or choose another name"
            )


def claim(path: Path) -> Path:
    """See :meth:`OwnedFolder.claim`: of the nearest folder above with a marker, if there is one."""
    for folder in list(path.parents)[:_DEPTH]:
        owned = OwnedFolder.find(folder)
        if owned is not None:
            return owned.claim(path.relative_to(folder).as_posix())
    return path


def new_part(path: Path, owned: OwnedFolder | None = None) -> Path:
    """A new, empty file beside ``path`` to write to; this process deletes it.

    Args:
        path: the file that it will become.
        owned: the folder that ``path`` is in; by default its parent, if that has a marker.
    """
    if owned is None and path.name != MARKER:
        owned = OwnedFolder.find(path.parent)
    number = owned.number if owned is not None else secrets.token_hex(8)
    name = path.name if len(os.fsencode(path.name)) < _LONG else "long"
    part = path.with_name(f"{name}.{number}-{secrets.token_hex(4)}{PART}")
    part.open("xb").close()
    return part


@contextmanager
def replacing(path: Path, owned: OwnedFolder | None = None) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes its place if the block ends well.

    Args:
        path: the file.
        owned: see :func:`new_part`.
    """
    part = new_part(path, owned)
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def user_cache() -> Path:
    """The user's cache folder: ``HARDNET_CACHE``, else ``hardnet`` in ``XDG_CACHE_HOME``, ~/.cache.

    It is named, not made.
    """
    if named := os.environ.get("HARDNET_CACHE"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hardnet"


def folder_name(folder: Path) -> str:
    """The last part of a path, also when it is given as ``.`` or ``set/``."""
    return os.path.basename(os.path.abspath(folder))


def file_digest(path: Path | str) -> str:
    """SHA-256 of a file's content, as hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_state(files: Iterable[Path]) -> str:
    """Names, sizes and times of ``files`` as 12 letters: changes when one of them does.

    The time of the last change of any kind (ctime) counts too: a repaired file copied over another
    with its old date and the same size would pass for it.
    """
    digest = hashlib.sha256()
    for path in files:
        facts = path.stat()
        digest.update(f"{path.name}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
        digest.update(f"{facts.st_ctime_ns}\0".encode())
    return digest.hexdigest()[:12]


class Cache:
    """What takes long to compute, kept on disk; all of it may be deleted at any time.

    An entry is named by a digest of what it depends on: the version of this package, the settings,
    and the digests of data and weights. If one of them changes it is another entry, so that an old
    value is never taken for a new one. An entry is whole or absent, whoever writes it and however
    often at the same time; a damaged one is computed again.

    Args:
        kind: of the entries: the name of their folder.
        folder: that holds the folder; the user's cache by default.
    """

    def __init__(self, kind: str, folder: Path | str | None = None) -> None:
        self.folder = (user_cache() if folder is None else as_path(folder)) / kind

    def path(self, about: Mapping[str, Any], suffix: str = "", label: str = "") -> Path:
        """Where an entry is, or would be.

        Args:
            about: settings, and digests of data and weights, as JSON values.
            suffix: of the file.
            label: begins its name, for people.
        """
        facts = json.dumps({"version": _version(), **about}, sort_keys=True)
        digest = hashlib.sha256(facts.encode()).hexdigest()[:24]
        return self.folder / f"{label}{'.' if label else ''}{digest}{suffix}"

    def get(
        self,
        about: Mapping[str, Any],
        make: Callable[[], T],
        save: Callable[[Path, T], None],
        load: Callable[[Path], V],
        suffix: str = "",
        label: str = "",
        alone: bool = False,
    ) -> V:
        """An entry, computed if it is absent or damaged.

        Args:
            about: see :meth:`path`.
            make: computes the value.
            save: writes it to a file.
            load: reads such a file; an error says that it is damaged.
            suffix: of the file.
            label: begins its name.
            alone: a new entry takes the place of all others of its label.

        Raises:
            HardnetError: the cache cannot be written.
        """
        path = self.path(about, suffix, label)
        with suppress(OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, HardnetError):
            return load(path)
        value = make()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as part:
                save(part, value)
        except OSError as error:
            raise self.unwritable(error) from error
        if alone:
            names = re.compile(rf"{re.escape(label)}\.[0-9a-f]{{24}}{re.escape(suffix)}")
            for other in self.folder.iterdir():
                if other != path and names.fullmatch(other.name):
                    other.unlink(missing_ok=True)
        return load(path)

    def json(self, about: Mapping[str, Any], make: Callable[[], T]) -> T:
        """An entry of JSON values."""
        value: T = self.get(about, make, _save_json, _load_json, ".json")
        return value

    def array(
        self, about: Mapping[str, Any], make: Callable[[], NDArray[Any]], label: str = ""
    ) -> NDArray[Any]:
        """An entry that is an array, mapped from its file."""
        return self.get(about, make, save_array, load_array, ".npy", label)

    def unwritable(self, error: OSError) -> HardnetError:
        """A full or read-only disk, as something the user can help."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem, advice = "is on a full disk", "make room, or choose"
        else:
            problem, advice = f"cannot be written ({error.strerror})", "choose"
        return HardnetError(
            f"the cache {self.folder} {problem}: {advice} another with --store or HARDNET_CACHE"
        )


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an ``.npy`` file, whatever the path is called."""
    with path.open("wb") as stream:  # np.save would add a suffix to a path
        np.save(stream, array)


def load_array(path: Path) -> NDArray[Any]:
    """An ``.npy`` file, mapped into memory, read-only."""
    array: NDArray[Any] = np.load(path, mmap_mode="r")
    return array


@cache
def _version() -> str:
    return metadata.version("hardnet")


def _save_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def _load_json(path: Path) -> Any:
    return json.loads(path.read_text())


def _value(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_below(name: str) -> bool:
    """A list that somebody else wrote must not lead us out of the folder."""
    return bool(name) and not os.path.isabs(name) and ".." not in PurePosixPath(name).parts
