"""What training and patch benchmarks consume: patches and the 3D point each one shows.

A set of any format is opened by the name of its folder, and several sets can be joined. On disk,
all formats keep patches in large png or bmp pictures. These are decoded once, into the user's
cache, and mapped into memory from there.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, Steps, silent
from hardnet.image_files import as_path, read_image_file, require_regular_file
from hardnet.images import Pixels, quiet_opencv
from hardnet.provenance import Cache, files_state, load_array, save_array
from hardnet.storage import claim

if TYPE_CHECKING:
    from hardnet.patchsets.brown import Brown
    from hardnet.patchsets.hpatches import HPatches
    from hardnet.patchsets.w1bs import W1BS

Kind = Literal["brown", "hpatches", "w1bs"]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND\xaeB`\x82"
_BMP = b"BM"
_LFS_POINTER = b"version https://git-lfs"


class Patches(Protocol):
    """(N, S, S) uint8, read by index: an array, a memory map, or several of them joined."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> Pixels: ...


@dataclass(frozen=True)
class PatchSet:
    """(N, S, S) patches, usually memory-mapped, and the 3D point of each.

    ``pairs`` (M, 2) are the test pairs; ``sets`` (N,) tells which set of a union a patch is of, and
    ``images`` (N,) which image it was cut from, None where that is not known.
    """

    name: str
    patches: Patches
    points: Ints
    pairs: Ints
    sets: Ints | None = None
    images: Ints | None = None

    @property
    def pair_labels(self) -> NDArray[np.bool_]:
        """(M,) whether the two patches of a test pair show the same point."""
        return np.asarray(self.points[self.pairs[:, 0]] == self.points[self.pairs[:, 1]])

    def __len__(self) -> int:
        return len(self.points)


def join(sets: Sequence[PatchSet]) -> PatchSet:
    """One set of all patches, which stay where they are.

    Neither points nor images of different sets share an id. The images are known if all parts know
    theirs.
    """
    if len(sets) == 1:
        return sets[0]
    sides = {part.name: part.patches.shape[-1] for part in sets}
    if len(set(sides.values())) > 1:
        found = ", ".join(f"{name} {side}" for name, side in sides.items())
        raise HardnetError(f"sets with patches of different sides cannot be joined: {found}")
    points, pairs, images = [], [], []
    next_point = next_patch = next_image = 0
    for part in sets:
        if not len(part):
            raise HardnetError(f"{part.name} has no patches: leave it out")
        _, dense = np.unique(part.points, return_inverse=True)
        points.append(dense + next_point)
        pairs.append(part.pairs + next_patch)
        if part.images is not None:
            images.append(part.images + next_image)
            next_image += int(part.images.max()) + 1
        next_point += int(dense.max()) + 1
        next_patch += len(part)
    return PatchSet(
        "+".join(part.name for part in sets),
        JoinedRows([part.patches for part in sets]),
        np.concatenate(points),
        np.concatenate(pairs),
        np.repeat(np.arange(len(sets)), [len(part) for part in sets]),
        np.concatenate(images) if len(images) == len(sets) else None,
    )


class JoinedRows:
    """The rows of ``parts``, (N_k, ...) each, one after the other.

    Only requested rows are copied, so a union may be larger than memory.
    """

    def __init__(self, parts: Sequence[Patches]) -> None:
        self._parts = tuple(parts)
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self._numbers = np.arange(self._starts[-1])

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self._parts[0].shape[1:])

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """(...) for a number; (n, ...) for a slice, an index array (n,) or a mask (N,)."""
        rows = self._numbers[index]
        part = np.searchsorted(self._starts, rows, side="right") - 1
        if rows.ndim == 0:
            return self._parts[int(part)][int(rows - self._starts[part])]
        out = np.empty((*rows.shape, *self.shape[1:]), self._parts[0][:0].dtype)
        for k in np.unique(part):
            here = part == k
            out[here] = self._parts[k][rows[here] - self._starts[k]]
        return out


def open_sets(names: Sequence[str], size: int, progress: Steps = silent) -> PatchSet:
    """Open sets by name and join them, as HardNet++ and "full Brown" are trained.

    A folder named twice would get two ids for a point, which would count as non-matching.
    """
    from hardnet.patchsets import brown, hpatches

    folders = [Path(folder_and_split(name)[0]).resolve() for name in names]
    for k, name in enumerate(names):
        if folders[k] in folders[:k]:
            raise HardnetError(f"{name} is named twice: name it once and give it a larger weight")
    sets = []
    for name in names:
        folder, split = folder_and_split(name)
        kind = identify(folder)
        if kind == "w1bs":
            raise HardnetError(f"{folder} is a W1BS set, which is for testing only")
        if kind == "brown" and split:
            raise HardnetError(f"{name}: only HPatches sets have splits, {folder} is a Brown set")
        if kind == "brown":
            sets.append(brown.read_brown(folder, size, progress))
            continue
        found = hpatches.read_hpatches(folder)
        sequences = hpatches.choose_split(found, split).train if split else tuple(found.sequences)
        if not sequences:
            raise HardnetError(f"{name}: split {split} has no training sequences")
        patches = hpatches.as_patchset(found, sequences, size, progress)
        sets.append(replace(patches, name=f"{found.name}:{split}") if split else patches)
    return join(sets)


def folder_and_split(name: str) -> tuple[str, str]:
    """The parts of ``FOLDER:SPLIT``, "" for no split; a folder may have a colon in its name."""
    if Path(name).exists() or ":" not in name:
        return name, ""
    folder, _, split = name.rpartition(":")
    return folder, split


def open_set(folder: str | Path) -> Brown | HPatches | W1BS:
    from hardnet.patchsets import brown, hpatches, w1bs

    kind = identify(folder)
    if kind == "brown":
        return brown.open_brown(folder)
    return hpatches.read_hpatches(folder) if kind == "hpatches" else w1bs.read_w1bs(folder)


def identify(folder: str | Path) -> Kind:
    """The format of the set in ``folder``; an error says what would make it one."""
    from hardnet.patchsets import brown, hpatches, w1bs

    def kind_of(folder: Path, folders: Sequence[Path] = ()) -> Kind | None:
        if (folder / brown.INFO).is_file():
            return "brown"
        if any(map(hpatches.has_strips, (folder, *folders))):
            return "hpatches"
        return "w1bs" if any(map(w1bs.has_sides, (folder, *folders))) else None

    folder = as_path(folder)
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise HardnetError(f"{folder} {problem}: name the folder of a patch set")
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    if kind := kind_of(folder, folders):
        return kind
    if any(folder.glob("*.bmp")):
        missing = f"*.bmp sheets but no {brown.INFO}: copy the Brown set again"
        raise HardnetError(f"{folder} has {missing}")
    inside = [path.name for path in folders if kind_of(path)]
    hint = f"; name one of the folders in it: {', '.join(inside[:5])}" if inside else ""
    raise HardnetError(
        f"{folder} is not a patch set: expected info.txt and *.bmp sheets (Brown), "
        "SEQUENCE/ref.png to t5.png (HPatches) or SUBSET/1/NAME.bmp and SUBSET/2/NAME.bmp "
        f"(W1BS){hint}"
    )


def require(folder: str | Path, kind: Kind) -> Path:
    """The folder, if it is a set of this kind; else a HardnetError says which one it is."""
    found = identify(folder)
    if found != kind:
        raise HardnetError(
            f"{folder} is in the {found} layout, not {kind}: use `hardnet bench {found}`"
        )
    return as_path(folder)


def set_cache(folder: Path) -> Cache:
    """Where the decoded arrays of a set are kept: in the user's cache, never in the set itself."""
    resolved = folder.resolve()
    place = hashlib.sha256(str(resolved).encode()).hexdigest()[:12]
    return Cache(f"sets/{resolved.name}-{place}")


def decoded(
    folder: Path, label: str, files: Sequence[Path], read: Callable[[], NDArray[Any]]
) -> NDArray[Any]:
    """An array of a set, read once and mapped later; read again if one of ``files`` changes."""
    about = {"files": files_state(files)}
    return set_cache(folder).get(about, read, save_array, load_array, ".npy", label, alone=True)


def decoded_patches(
    folder: Path,
    label: str,
    files: Sequence[Path],
    shape: tuple[int, int, int],
    pictures: Callable[[], Iterable[Pixels]],
    progress: Steps = silent,
) -> Pixels:
    """The same for the patches in the size wanted, one picture at a time: they may exceed memory.

    Each patch is resized alone: a whole picture would bleed across neighbours at odd sizes.
    """
    count, size, _ = shape

    def save(path: Path, parts: Iterable[Pixels]) -> None:
        # Written, not mapped: a full disk is an error here, but kills a process that maps the file.
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        done = 0
        with path.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            for patches in parts:
                if patches.shape[1] != size:
                    patches = np.stack([cv2.resize(patch, (size, size)) for patch in patches])
                stream.write(np.ascontiguousarray(patches, np.uint8).data)
                done += len(patches)
                progress(done, count)

    about = {"files": files_state(files)}
    return set_cache(folder).get(about, pictures, save, load_array, ".npy", label, alone=True)


def refuse_stand_in(path: Path, content: bytes) -> None:
    """Raise if a file is empty, or is a Git LFS pointer instead of the file."""
    if not content.strip():
        raise HardnetError(f"{path} is empty: copy or download it again")
    if content.startswith(_LFS_POINTER):
        raise HardnetError(
            f"{path} is a Git LFS pointer, not the file itself: run `git lfs pull` there"
        )


def picture_size(path: Path) -> tuple[int, int]:
    """(width, height) of a png or bmp file, without decoding it; a truncated file is an error."""
    try:
        require_regular_file(path)
        with path.open("rb") as stream:
            head = stream.read(34)
            length = stream.seek(0, 2)
            stream.seek(max(0, length - 64))
            tail = stream.read()
    except FileNotFoundError:
        raise HardnetError(f"{path} is missing") from None
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror}") from None
    if head.startswith(_PNG) and len(head) >= 24:
        width, height = struct.unpack_from(">II", head, 16)
        whole = _PNG_END in tail
    elif head.startswith(_BMP) and len(head) >= 34:
        start, _, width, height, _, bits, packed = struct.unpack_from("<IIiiHHI", head, 10)
        row = (width * bits + 31) // 32 * 4  # rows are padded to 4 bytes
        whole = packed or length >= start + row * abs(height)
    else:
        if head:
            refuse_stand_in(path, head)
        raise HardnetError(f"{path} is damaged or neither png nor bmp: copy or download it again")
    if not whole:
        raise HardnetError(f"{path} is truncated: copy or download it again")
    return width, abs(height)


def read_picture(path: Path) -> Pixels:
    """(H, W) grey pixels; of a damaged file OpenCV alone would return half a picture."""
    width, height = picture_size(path)
    data = np.frombuffer(read_image_file(path), np.uint8)
    pixels = None
    with suppress(cv2.error), quiet_opencv():
        pixels = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE)
    if pixels is None or pixels.shape != (height, width):
        raise HardnetError(f"{path} is truncated or damaged: copy or download it again")
    return np.asarray(pixels, np.uint8)


def strip_shape(path: Path) -> tuple[int, int]:
    """(N, S) of a strip, a column of N patches of S x S pixels, from its header."""
    width, height = picture_size(path)
    if not width or not height or height % width:
        raise HardnetError(
            f"{path} is {width} x {height} pixels: the height of a column of square patches is a "
            "multiple of its width"
        )
    return height // width, width


def read_strip(path: Path) -> Pixels:
    """(N, S, S) patches of a strip."""
    return read_picture(path).reshape(-1, *2 * strip_shape(path)[1:])


def write_strip(path: Path, patches: Pixels) -> None:
    """Write (N, S, S) patches as one picture, the first on top; the suffix chooses the format."""
    if patches.ndim != 3 or patches.shape[1] != patches.shape[2] or not len(patches):
        raise ValueError(f"a strip needs (N, S, S) patches, got {patches.shape}")
    good, data = cv2.imencode(path.suffix, patches.reshape(-1, patches.shape[2]))
    if not good:
        raise HardnetError(f"{path}: {len(patches)} patches are too many for one strip")
    claim(path).write_bytes(data.tobytes())
