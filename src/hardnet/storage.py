"""Which files are ours to replace or delete; the one lock and the one way to replace a file.

A folder that we work in has a marker file, which lists the names that we created there. A name is
added to the list before its file is created, and only if nothing of that name exists. So every
listed file is ours, even after a kill, and every other file is someone else's and is never deleted.

A file is first written under a temporary name that contains the unique number of its folder's
marker, or a random one. It is deleted only by the process that made it or by one that knows that
number.

Files travel: an index, a file of features or a COLMAP model may come from anybody, who can also
compute its checksums. So a name that was read from a file is checked here before anything is loaded
or opened by it: it is never code, and never a place outside the folder it is read with.
"""

from __future__ import annotations

import glob
import importlib
import json
import os
import secrets
import sys
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePath
from typing import Any, BinaryIO, Self

from hardnet.errors import HardnetError
from hardnet.image_files import as_path

MARKER = ".hardnet-files"
"""The list: one JSON value per line, the first is the format and the number of the folder."""

PART = ".part"

_FORMAT = "hardnet-files-1"
_MANY = 1000  # lines that a list may have before outdated ones are dropped
_DEPTH = 4  # our folders are never deeper
_LONG = 120  # bytes of a name that leave room for what a part adds
_LOCK = b"lock of hardnet\n"
_POLL = 0.1  # seconds between two attempts to take a lock


class OwnedFolder:
    """A folder with a marker, and the names in it that we made.

    Created by :meth:`find`, :meth:`mark` or :meth:`begin`. Processes that change a folder at the
    same time need a lock, except for :meth:`claim`. The ``number`` is unique to the folder. The
    list survives a kill; if the folder is ``durable``, also a power cut.
    """

    def __init__(self, path: Path, number: str, names: Iterable[str], lines: int) -> None:
        self.path = path
        self.number = number
        self.durable = False
        self._names = dict.fromkeys(names)
        self._lines = lines

    @classmethod
    def find(cls, folder: Path) -> OwnedFolder | None:
        """The folder, if it has a marker; another file of the marker's name is an error."""
        path = folder / MARKER
        try:
            lines = path.read_text("utf-8", "surrogateescape").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return None
        values = []
        for line in lines:  # the last one may be cut short: its file was never made
            try:
                values.append(json.loads(line))
            except ValueError:
                values.append(None)
        head = values[0] if values else None
        if not isinstance(head, dict) or head.get("format") != _FORMAT:
            raise HardnetError(f"{path} is in the way: it is no list of hardnet's files, move it")
        names: dict[str, None] = {}
        for value in values[1:]:
            match value:
                case str(name) if _is_inside(name):
                    names[name] = None
                case {"removed": str(name)}:
                    names.pop(name, None)
        return cls(folder, str(head.get("number")), names, len(lines))

    @classmethod
    def mark(cls, folder: Path) -> OwnedFolder:
        """A folder that others may use too: made if absent; what is in it is not ours."""
        owned = cls.find(folder)
        if owned is not None:
            return owned
        folder.mkdir(parents=True, exist_ok=True)
        part = _new_part(folder / MARKER, secrets.token_hex(8))
        try:
            head = {"format": _FORMAT, "number": secrets.token_hex(8)}
            part.write_text(json.dumps(head) + "\n")
            try:
                os.link(part, folder / MARKER)  # unlike a rename, this never replaces anything
            except FileExistsError:  # another process was faster
                pass
            except OSError:  # a disk without links
                part.rename(folder / MARKER)
        finally:
            part.unlink(missing_ok=True)
        return cls.mark(folder)

    @classmethod
    def begin(cls, folder: Path, besides: Iterable[str] = ()) -> OwnedFolder:
        """A folder that is ours alone: new, empty but for ``besides``, or marked before."""
        refuse_foreign(folder, besides)
        return cls.mark(folder)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def names(self, suffix: str = "") -> list[str]:
        """What we made and still exists: paths below the folder, with "/" between their parts."""
        return [n for n in self._names if n.endswith(suffix) and os.path.lexists(self.path / n)]

    def claim(self, name: str) -> Path:
        """The path of a file that we are about to make or replace; its folders are made.

        A name that ends in "/" is a folder. It is an error if someone else's file is there.
        """
        path = self.path / name
        if not _is_inside(name) or not self._reaches(path):
            raise HardnetError(f"{path} lies outside {self.path}: choose another name")
        folders = [f"{parent}/" for parent in PurePath(name).parents if parent.name]
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
        """List names whose files are proven ours in another way, or do not exist yet."""
        new = [name for name in names if name not in self._names]
        self._note(new)
        self._names.update(dict.fromkeys(new))

    def remove(self, *names: str) -> None:
        """Delete files that we made, and folders if they are empty; all else is left alone."""
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
        """Delete all that we made here, and the folder if nothing else is in it; the lock last."""
        self._read_again()
        self.sweep()
        for place in [name for name in self._names if name.endswith("/")]:
            if self._reaches(self.path / place):
                _discard(self.path / place)
        self.remove(*self._names)
        (self.path / MARKER).unlink(missing_ok=True)
        if lock is not None:
            lock.remove()
        with suppress(OSError):
            self.path.rmdir()

    def _reaches(self, path: Path) -> bool:
        here = os.path.realpath(self.path)
        return os.path.commonpath([here, os.path.realpath(path.parent)]) == here

    def _read_again(self) -> None:
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
        others = {name for name in os.listdir(folder) if not name.startswith(MARKER)}
        if others := others - set(besides):
            raise HardnetError(
                f"{folder} is in the way: hardnet did not make what is in it ({min(others)}); "
                "move it, or choose another name"
            )


def claim(path: Path) -> Path:
    """:meth:`OwnedFolder.claim` of the nearest folder above that has a marker, if any."""
    for folder in list(path.parents)[:_DEPTH]:
        owned = OwnedFolder.find(folder)
        if owned is not None:
            return owned.claim(path.relative_to(folder).as_posix())
    return path


class NewFolder:
    """A folder that gets its name only when it is complete, and is deleted after an error.

    Nothing of that name may exist. Files are written to the paths that ``claim`` gives. What killed
    runs have left beside the folder is deleted, but not what another run is writing.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = as_path(folder)
        refuse_existing(self.folder)
        parent, name = self.folder.parent, self.folder.name
        if parent.exists() and not parent.is_dir():
            raise HardnetError(f"{folder} cannot be made: {parent} is not a folder")
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob(f"{glob.escape(name)}.*-*{PART}"):
            process = left.name.removeprefix(f"{name}.").partition("-")[0]
            if process.isdecimal() and not _is_running(int(process)):
                _discard(left)
        self.path = parent / f"{name}.{os.getpid()}-{secrets.token_hex(4)}{PART}"
        self.path.mkdir()
        self.claim = OwnedFolder.mark(self.path).claim

    def publish(self) -> None:
        """Give the complete folder its name."""
        refuse_existing(self.folder)  # another run may have been faster
        (self.path / MARKER).unlink()
        os.replace(self.path, self.folder)

    def discard(self) -> None:
        """Delete the folder unless it has its name."""
        _discard(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.publish()
        finally:
            self.discard()


def refuse_existing(folder: str | Path) -> None:
    """Raise if there is something at ``folder``: what is made as a whole is never overwritten."""
    if as_path(folder).exists():
        raise HardnetError(f"{folder} exists already; choose another name or delete it")


def _discard(part: Path) -> None:
    with suppress(OSError, HardnetError):
        if (owned := OwnedFolder.find(part)) is not None:
            owned.dissolve()


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:  # a process that exists may belong to another user
        return not isinstance(error, ProcessLookupError)
    return True


@contextmanager
def replacing(
    path: Path, owned: OwnedFolder | None = None, workplace: Path | None = None
) -> Iterator[Path]:
    """A file beside ``path``, or in ``workplace``, which takes its place if the block ends well.

    ``owned`` is the folder that is written in, if it is known to have a marker.
    """
    place = path if workplace is None else workplace / path.name
    owned = owned or OwnedFolder.find(place.parent)
    part = _new_part(place, owned.number if owned is not None else secrets.token_hex(8))
    try:
        yield part
        with suppress(FileNotFoundError):  # who may read it stays as it was
            part.chmod(path.stat().st_mode & 0o777)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _new_part(path: Path, number: str) -> Path:
    name = path.name if len(os.fsencode(path.name)) < _LONG else "long"
    part = path.with_name(f"{name}.{number}-{secrets.token_hex(4)}{PART}")
    part.open("xb").close()
    return part


def publish(part: Path, path: Path) -> None:
    """Give a finished file its name, once its content has reached the disk."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())  # else a power cut may leave the name without the content
    os.replace(part, path)


@dataclass(frozen=True)
class FileFacts:
    """What a file must be: its size, and the crc32 of its bytes."""

    bytes: int
    crc32: int


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileFacts:
    """Write and sync a new file; its name is on the disk after :func:`sync_folder`.

    It must not exist: another process may have it mapped and would see it change.
    """
    with path.open("xb", buffering=0) as file:
        return _write(file, chunks)


def replace_file(path: Path, content: bytes) -> None:
    """Give a file a new content, at once and for good: a reader sees the old one or the new one."""
    with replacing(path) as part, part.open("wb", buffering=0) as file:
        _write(file, [content])
    sync_folder(path.parent)


def _write(file: FileIO, chunks: Iterable[bytes | memoryview]) -> FileFacts:
    size = crc = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        crc, size = zlib.crc32(view, crc), size + len(view)
        while len(view):
            view = view[file.write(view) :]
    os.fsync(file.fileno())
    return FileFacts(size, crc)


def sync_folder(folder: Path) -> None:
    """Names made or replaced in a folder survive a power cut from here on."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_facts(path: Path) -> FileFacts:
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 24):
            crc, size = zlib.crc32(chunk, crc), size + len(chunk)
    return FileFacts(size, crc)


class FolderLock:
    """A lock file in a folder, which must exist when the lock is taken.

    The system releases it when the process ends, however it ends: a killed run blocks nobody.
    Another program's file of that name, told by its content, is locked but never deleted.
    """

    def __init__(self, folder: Path, name: str = "lock") -> None:
        self._path = folder / name
        self._file: BinaryIO | None = None

    def take(self, seconds: float = 0.0) -> bool:
        """Whether we have the lock now; others are given ``seconds`` to release it."""
        try:
            import fcntl
        except ImportError:  # Windows: no guard
            return True
        deadline = time.monotonic() + seconds
        while True:
            try:
                file = self._path.open("xb", buffering=0)
                file.write(_LOCK)
            except FileExistsError:
                file = self._path.open("ab", buffering=0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_POLL)
                continue
            # The last owner may have deleted it: a lock on a file without a name protects nothing.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), self._path.stat()):
                    self._file = file
                    return True
            file.close()

    def remove(self) -> None:
        """Delete the file, if we have the lock and made the file; before it is released."""
        with suppress(FileNotFoundError):
            if self._file is not None and self._path.read_bytes() == _LOCK:
                self._path.unlink()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def refuse_other_settings(
    was: Mapping[str, Any], now: Mapping[str, Any], where: Path | str, advice: str
) -> None:
    """Raise if what exists was made with other settings than those that are wanted now.

    All keys of ``now`` must have their values (JSON) in ``was``; a switch that an older version did
    not know was off.
    """
    for key, value in now.items():
        before = was.get(key, False if isinstance(value, bool) else None)
        if before != value:
            made = _difference(key, before, value)
            raise HardnetError(f"{where} was made with {made}: {advice}")


def _difference(key: str, was: Any, now: Any) -> str:
    if isinstance(was, dict) and isinstance(now, dict):
        inner = next(name for name in {**was, **now} if was.get(name) != now.get(name))
        return _difference(f"{key} {inner}", was.get(inner), now.get(inner))
    text = f"{key}={was}, not {now}"
    # Digests and long lists say nothing to people.
    return f"other {key}" if key.endswith("weights") or len(text) > _LONG else text


def folder_name(folder: Path) -> str:
    """The last part of a path, also of ``.`` or ``set/``."""
    return os.path.basename(os.path.abspath(folder))


def check_registered(
    name: object, what: str, known: Collection[str], source: Path, again: str
) -> str:
    """The name, read from the file ``source``, if it is known; ``again`` is the advice if not."""
    if isinstance(name, str) and name in known:
        return name
    if isinstance(name, str) and ":" in name:
        raise HardnetError(
            f"{source} names the {what} {name!r}: a file may not name code to run; if you know "
            f"this code and trust it, {again}"
        )
    raise HardnetError(f"{source} names the {what} {name!r}, which is not known here; {again}")


def check_inside(name: str, source: Path | str) -> str:
    """A relative name, read from the file ``source``, that stays in the folder it is joined to."""
    if not _is_inside(name):
        raise HardnetError(
            f"{source} names the image {name!r}, which does not lie inside a folder of images: "
            "rename it there, or do not use this file"
        )
    return name


def _is_inside(name: str) -> bool:
    path = PurePath(name)
    return bool(path.parts) and not path.anchor and ".." not in path.parts and "\0" not in name


def find_code(spec: str) -> Any:
    """What a person, never a file, means by ``module:name``; the current folder comes first."""
    module_name, _, path = spec.partition(":")
    if not module_name or not path:
        raise HardnetError(f"{spec!r} is not of the form module:function")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise HardnetError(f"no module {module_name!r} here or among the installed") from error
        raise HardnetError(f"{module_name} needs {error.name!r}, which is not installed") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise HardnetError(f"{module_name} cannot be imported: {reason}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise HardnetError(f"{module_name} has no {path!r}")
        found = getattr(found, part)
    return found
