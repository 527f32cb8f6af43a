"""The layout of the HPatches patch release, read and written.

A folder per sequence, ``v_*`` (viewpoint) or ``i_*`` (illumination), each with 16 strips: the
reference ``ref.png`` and five targets at three levels of noise, ``e1.png`` to ``t5.png``. A strip
is a column of N grey 65 x 65 patches; row k of all 16 shows the same 3D point. A split says which
sequences are for training and which for testing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import numpy as np

from hardnet.errors import HardnetError, Steps, silent
from hardnet.image_files import require_regular_file
from hardnet.images import Pixels
from hardnet.patchsets.patchset import (
    PatchSet,
    decoded_patches,
    read_strip,
    refuse_stand_in,
    require,
    strip_shape,
    write_strip,
)
from hardnet.provenance import CACHE
from hardnet.storage import claim, folder_name

SIDE = 65
LEVELS = {"easy": "e", "hard": "h", "tough": "t"}
TARGETS = 5
TAGS = ("ref", *(f"{level}{k}" for level in LEVELS.values() for k in range(1, TARGETS + 1)))
"""The 16 strips of a sequence."""

SPLITS_FILE = "splits.json"
GROUPS = {"v_": "viewpoint", "i_": "illumination"}


@dataclass(frozen=True)
class HPatchesSequence:
    """One sequence: ``count`` patches in each of its 16 strips."""

    name: str
    folder: Path
    count: int

    def patches(self, tag: str) -> Pixels:
        """(N, 65, 65) patches of the strip ``tag``, decoded at each call."""
        path = self.folder / f"{tag}.png"
        patches = read_strip(path)
        if len(patches) != self.count:
            raise HardnetError(
                f"{path} has {len(patches)} patches, but had {self.count} when the set was opened"
            )
        return patches


@dataclass(frozen=True)
class HPatches:
    """A set of sequences, by name in sorted order."""

    name: str
    folder: Path
    sequences: Mapping[str, HPatchesSequence]

    def __len__(self) -> int:
        return len(TAGS) * sum(sequence.count for sequence in self.sequences.values())


@dataclass(frozen=True)
class Split:
    """Test and training sequences, in the order of the file, which task lists depend on."""

    name: str
    test: tuple[str, ...]
    train: tuple[str, ...]


def group_of(name: str) -> str:
    return GROUPS.get(name[:2], "other")


def read_hpatches(folder: str | Path) -> HPatches:
    """Open a set of sequences, or a single one; strips are checked by their headers alone."""
    folder = require(folder, "hpatches")
    found = [folder] if has_strips(folder) else sorted(filter(has_strips, folder.iterdir()))
    sequences = {}
    for place in found:
        strips = {tag: place / f"{tag}.png" for tag in TAGS}
        missing = [path.name for path in strips.values() if not path.is_file()]
        if missing:
            raise HardnetError(
                f"{place} has {len(TAGS) - len(missing)} of the {len(TAGS)} strips of a sequence; "
                f"missing: {', '.join(missing)}"
            )
        shapes = {path: strip_shape(path) for path in strips.values()}
        count, _ = shapes[strips["ref"]]
        for path, (other, side) in shapes.items():
            if side != SIDE:
                raise HardnetError(f"{path} is {side} pixels wide: a strip of HPatches has {SIDE}")
            if other != count:
                expected = f"but ref.png of the same sequence has {count}"
                raise HardnetError(f"{path} has {other} patches, {expected}")
        sequences[folder_name(place)] = HPatchesSequence(folder_name(place), place, count)
    return HPatches(folder_name(folder), folder, MappingProxyType(sequences))


def has_strips(folder: Path) -> bool:
    return folder.name != CACHE and any((folder / f"{tag}.png").is_file() for tag in TAGS)


def read_splits(path: str | Path) -> dict[str, Split]:
    """Read ``splits.json`` of the benchmark: ``{"a": {"test": [...], "train": [...]}, ...}``."""
    try:
        require_regular_file(Path(path))
        text = Path(path).read_text("utf-8")
        refuse_stand_in(Path(path), text.encode())
        table = json.loads(text)
        return {
            str(name): Split(str(name), tuple(entry["test"]), tuple(entry.get("train", ())))
            for name, entry in table.items()
        }
    except FileNotFoundError:
        raise HardnetError(f"{path} does not exist: check the path") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HardnetError(
            f"{path} is not a split file: expected "
            f'{{"a": {{"test": [...], "train": [...]}}, ...}} ({error})'
        ) from None


_ILLUMINATION = """
    crownnight table objects nescafe nijmegen whitebuilding porta santuario dc castle steps
    contruction melon yellowtent miniature troulos veggies zion gonnenberg autannes boutique
    fruits pool fog fenis village ajuntament partyfood kurhaus school chestnuts smurf indiana
    pinard lionnight kions ski greenhouse ktirio tools toy bridger lionday brooklyn crownday
    londonbridge greentea leuven nuts resort bologna duda dome pencils books parking salon
"""
_VIEWPOINT = """
    circus charing colors astronautis maskedman talent london underground coffeehouse calder
    grace yard dogman laptop eastsouth boat strand busstop artisans machines soldiers home
    wapping wounded weapons adam there vitro cartooncity abstract dirtywall beyus apprentices
    sunseason wall war bricks fest churchill blueprint tempera samples man bees pomegranate
    bip feast azzola woman yuri posters bird graffiti bark wormhole tabletop courses birdwoman
    gardens
"""
PUBLISHED_ORDER = (
    *(f"i_{name}" for name in _ILLUMINATION.split()),
    *(f"v_{name}" for name in _VIEWPOINT.split()),
)
"""The sequences in the order of the release's split "full": the published lists depend on it."""


def find_splits(hpatches: HPatches, splits_file: str | Path | None = None) -> dict[str, Split]:
    """All splits of a set: those of ``splits_file`` or its ``splits.json``, and derived ones.

    Those are "full", "view" and "illum", by the names of the sequences, in the published order.
    """
    if splits_file is None and (hpatches.folder / SPLITS_FILE).is_file():
        splits_file = hpatches.folder / SPLITS_FILE
    splits = read_splits(splits_file) if splits_file else {}
    place = {name: k for k, name in enumerate(PUBLISHED_ORDER)}
    ordered = sorted(hpatches.sequences, key=lambda s: (place.get(s, len(place)), s))
    for name, prefix in (("full", ""), ("view", "v_"), ("illum", "i_")):
        test = tuple(s for s in ordered if s.startswith(prefix))
        if test:
            splits.setdefault(name, Split(name, test, ()))
    return splits


def choose_split(hpatches: HPatches, name: str, splits_file: str | Path | None = None) -> Split:
    """The split ``name``, all of whose sequences are there; see :func:`find_splits`."""
    splits = find_splits(hpatches, splits_file)
    if name not in splits:
        where = splits_file or hpatches.folder / SPLITS_FILE
        raise HardnetError(
            f"split {name} is not known: {where} must name its sequences (or give --splits FILE); "
            f"known are {', '.join(splits)}"
        )
    split = splits[name]
    _check_names(hpatches, (*split.test, *split.train), f"split {name}")
    return split


def as_patchset(
    hpatches: HPatches, names: Sequence[str], size: int = SIDE, progress: Steps = silent
) -> PatchSet:
    """The sequences ``names`` for training: 16 patches of each 3D point, ``size`` pixels wide."""
    _check_names(hpatches, names, hpatches.name)
    if not names:
        raise HardnetError(f"{hpatches.folder}: no sequence was chosen")
    chosen = [hpatches.sequences[name] for name in names]
    strips = [(sequence, tag) for sequence in chosen for tag in TAGS]
    files = [sequence.folder / f"{tag}.png" for sequence, tag in strips]

    def pictures() -> Iterator[Pixels]:
        return (sequence.patches(tag) for sequence, tag in strips)

    key = hashlib.sha256("\0".join(names).encode()).hexdigest()[:8]
    firsts = np.cumsum([0, *(sequence.count for sequence in chosen)])
    points = [np.arange(*ends) for ends in pairwise(firsts) for _ in TAGS]
    images = np.repeat(np.arange(len(strips)), [len(each) for each in points])
    label, shape = f"hpatches-{size}-{key}", (len(images), size, size)
    patches = decoded_patches(hpatches.folder, label, files, shape, pictures, progress)
    no_pairs = np.zeros((0, 2), np.int64)
    return PatchSet(hpatches.name, patches, np.concatenate(points), no_pairs, images=images)


def _check_names(hpatches: HPatches, names: Sequence[str], what: str) -> None:
    absent = [name for name in names if name not in hpatches.sequences]
    if absent:
        listed = ", ".join(absent[:8]) + (", ..." if len(absent) > 8 else "")
        raise HardnetError(
            f"{what} names {len(absent)} of {len(names)} sequences that are not in "
            f"{hpatches.folder}: {listed}"
        )


def write_sequence(
    folder: Path, reference: Pixels, targets: Mapping[str, Iterable[Pixels]]
) -> None:
    """Write one sequence: ``ref.png``, and ``e1.png`` ... ``t5.png`` for the targets.

    ``targets`` has (N, S, S) patches per target image for each noise level.
    """
    if folder.exists():
        raise FileExistsError(folder)
    claim(folder / "ref.png")  # before its folder is made
    folder.mkdir(parents=True, exist_ok=True)
    write_strip(folder / "ref.png", reference)
    for level, strips in targets.items():
        for number, patches in enumerate(strips, 1):
            if patches.shape != reference.shape:
                raise ValueError(f"{level} {number}: {patches.shape}, not {reference.shape}")
            write_strip(folder / f"{LEVELS[level]}{number}.png", patches)
