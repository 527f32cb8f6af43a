"""Which files are ours to replace or delete; the one lock and the one way to replace a file.

A folder that we work in has a marker file, which lists the names that we created there. A name is
added to the list before its file is created, and only if nothing of that name exists. So every
listed file is ours, even after a kill, and every other file is someone else's and is never deleted.

A file is first written under a temporary name that contains the unique number of its folder's
marker, or a random one. It is deleted only by its own process or by one that knows that number.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Self

from hardnet.errors import HardnetError

MARKER = ".hardnet-files"
"""The list: one JSON value per line, the first is the format and the number of the folder."""

PART = ".part"

_FORMAT = "hardnet-files-1"
_MANY = 1000  # lines that a list may have before outdated ones are dropped
_DEPTH = 4  # our folders are never deeper
_LONG = 120  # bytes of a name that leave room for what a part adds
_LOCK = b"lock of hardnet\n"
_POLL = 0.1  # seconds between two attempts to take a lock
_CHUNK = 1 << 24


def as_path(path: str | os.PathLike[str]) -> Path:
    """A path from a user; an empty one, as from an unset variable, is an error."""
    if not os.fspath(path):
        raise HardnetError('a path is empty: name a file or folder ("." is the current folder)')
    return Path(path)


class OwnedFolder:
    """A folder with a marker, and the names in it that we made.

    Created by :meth:`find`, :meth:`mark` or :meth:`begin`. Processes that change a folder at the
    same time need a lock, except for :meth:`claim`. ``number`` is 16 letters, unique to the folder;
    if the folder is ``durable``, the list survives a power cut as well as a kill.
    """

    def __init__(self, path: Path, number: str, names: Iterable[str], lines: int) -> None:
        self.path = path
        self.number = number
        self.durable = False
        self._names = dict.fromkeys(names)
        self._lines = lines

    @classmethod
    def find(cls, folder: Path) -> OwnedFolder | None:
        """The folder, if it has a marker; a file of the marker's name that is none is an error."""
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
        """What we made and is there: paths below the folder, with "/" between their parts."""
        return [n for n in self._names if n.endswith(suffix) and os.path.lexists(self.path / n)]

    def claim(self, name: str) -> Path:
        """The path of a file that we are about to make or to replace; its folders are made.

        A name that ends in "/" is a folder. It is an error if someone else's file is there.
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
    """See :meth:`OwnedFolder.claim`: of the nearest folder above with a marker, if there is one."""
    for folder in list(path.parents)[:_DEPTH]:
        owned = OwnedFolder.find(folder)
        if owned is not None:
            return owned.claim(path.relative_to(folder).as_posix())
    return path


class NewFolder:
    """A folder that gets its name only when it is complete, and is deleted after an error.

    Nothing of that name may exist. Files are written to the paths that ``claim`` gives, see
    :meth:`OwnedFolder.claim`. What killed runs have left beside the folder is deleted; what another
    run is writing there is not.
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
        """Delete the folder if it has not got its name."""
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


def new_part(path: Path, owned: OwnedFolder | None = None) -> Path:
    """A new, empty file beside ``path`` to write to; this process deletes it.

    ``owned`` is the folder that it is in; by default its parent, if that has a marker.
    """
    if owned is None and path.name != MARKER:
        owned = OwnedFolder.find(path.parent)
    number = owned.number if owned is not None else secrets.token_hex(8)
    name = path.name if len(os.fsencode(path.name)) < _LONG else "long"
    part = path.with_name(f"{name}.{number}-{secrets.token_hex(4)}{PART}")
    part.open("xb").close()
    return part


@contextmanager
def replacing(
    path: Path, owned: OwnedFolder | None = None, workplace: Path | None = None
) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes its place if the block ends well.

    ``owned`` is as in :func:`new_part`; ``workplace`` a folder of the same disk to write in, by
    default that of ``path``.
    """
    part = new_part(path if workplace is None else workplace / path.name, owned)
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


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


def _write(file: FileIO, chunks: Iterable[bytes | memoryview]) -> FileFacts:
    size = crc = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        crc = zlib.crc32(view, crc)
        size += len(view)
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


def replace_file(path: Path, content: bytes) -> FileFacts:
    """Give a file a new content, at once and for good: a reader sees the old one or the new one."""
    with replacing(path) as part, part.open("wb", buffering=0) as file:
        facts = _write(file, [content])
    sync_folder(path.parent)
    return facts


def file_facts(path: Path) -> FileFacts:
    """Size and crc32 of a file as it is."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
    return FileFacts(size, crc)


class FolderLock:
    """A lock file in a folder, which must exist when the lock is taken.

    The system lets it go when the process ends, however it ends: a killed run blocks nobody. Its
    content says that it is ours: a file of that name by others is locked, but never deleted.
    """

    def __init__(self, folder: Path, name: str = "lock") -> None:
        self._path = folder / name
        self._file: BinaryIO | None = None

    def take(self, seconds: float = 0.0) -> bool:
        """Whether the folder is ours now; others are given ``seconds`` to let it go."""
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
            # Whoever had it before may have deleted it: a lock on a file without a name is none.
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
        """Let it go, if we have it."""
        if self._file is not None:
            self._file.close()
            self._file = None


def refuse_other_settings(
    was: Mapping[str, Any], now: Mapping[str, Any], where: Path | str, advice: str
) -> None:
    """Raise if what is there was made with other settings than those that are wanted now.

    All keys of ``now`` must have their values in ``was``, JSON values; ``advice`` tells a user what
    to do. A switch that an older version did not know was off.
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
    """The last part of a path, also when it is given as ``.`` or ``set/``."""
    return os.path.basename(os.path.abspath(folder))


def file_digest(path: Path | str) -> str:
    """SHA-256 of a file's content, as hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_state(path: Path) -> tuple[int, ...]:
    """What changes when a file does; for keeping what was read from it while it stays the same."""
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _value(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _is_below(name: str) -> bool:
    """A list that someone else wrote must not lead us out of the folder."""
    return bool(name) and not os.path.isabs(name) and ".." not in PurePosixPath(name).parts
