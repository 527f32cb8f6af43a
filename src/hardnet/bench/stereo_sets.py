"""The sets of image pairs of the paper's Table 3, and the folders that hold them.

The layouts of Oxford-Affine, EVD, HPatches and WxBS are those of their authors. EF, SymB, GDB and
LTLL circulate in several forms, so they are read in ours: a folder with the images and
``pairs.txt`` (:mod:`hardnet.patchsets.sequences`); any other layout of that module will do too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hardnet.errors import HardnetError
from hardnet.image_files import as_path
from hardnet.patchsets.sequences import PAIR_LIST, ImagePair, find_pairs
from hardnet.storage import folder_name

_SIDES = "1/NAME.*, 2/NAME.*, h/NAME.txt"
_SEQUENCES = "SEQUENCE/1.* to 6.*, H_1_2 to H_1_6; {} sequences"
_SCENES = "KIND/SCENE/01.*, 02.*, corrs.txt"
_OWN = f"images and {PAIR_LIST} (IMAGE_A IMAGE_B [TRUTH] a line): our convention"


class StereoSet(NamedTuple):
    """What is known about a set: its name in the paper's Table 3, how many pairs it has.

    ``folders``: names of folders recognised as this set, in lower case.
    """

    name: str
    pairs: int
    layout: str
    about: str
    folders: tuple[str, ...]
    note: str = ""


SETS = (
    StereoSet("EF", 33, _OWN, "Edge Foci", ("ef", "edge-foci", "edgefoci")),
    StereoSet("EVD", 15, _SIDES, "Extreme View Dataset", ("evd", "extreme-view")),
    StereoSet(
        "OxAff", 40, _SEQUENCES.format(8), "Oxford Affine",
        ("oxaff", "oxford-affine", "oxford_affine", "oxfordaffine"),
    ),
    StereoSet(
        "SymB", 46, _OWN, "symmetric architecture, photos and drawings",
        ("symb", "symbench", "symbench_v1"),
    ),
    StereoSet("GDB", 22, _OWN, "GDB-ICP registration pairs", ("gdb", "gdb-icp", "gdbicp")),
    StereoSet(
        "WxBS", 34, _SCENES, "several changes at once", ("wxbs", "wxbs_v1.1", "wxbs-v1.1"),
        "version 1.1; the paper counts 37",
    ),
    StereoSet(
        "LTLL", 172, _OWN, "Large Time Lags Locations: old and new photos",
        ("ltll", "large-time-lags"),
    ),
    StereoSet(
        "HPatches", 580, _SEQUENCES.format(116), "HPatches full sequences",
        ("hpatches", "hpatches-sequences", "hpatches-sequences-release"), "not in Table 3",
    ),
)  # fmt: skip
"""In the order of Table 3, then others."""


@dataclass(frozen=True, eq=False)
class OpenSet:
    """A folder that was read, and what is known about its set."""

    name: str
    folder: Path
    known: StereoSet | None
    pairs: tuple[ImagePair, ...]

    @property
    def complete(self) -> bool:
        return self.known is None or len(self.pairs) == self.known.pairs

    def summary(self) -> str:
        """One line: ``EVD: 8 of 15 pairs (homography)``."""
        truths = sorted({pair.truth for pair in self.pairs})
        shown = ", ".join("no ground truth" if truth == "none" else truth for truth in truths)
        if self.known is None:
            return f"{self.name}: {len(self.pairs)} pairs ({shown}); not a set of Table 3"
        note = f"; {self.known.note}" if self.known.note else ""
        return f"{self.name}: {len(self.pairs)} of {self.known.pairs} pairs ({shown}{note})"


def open_set(spec: str) -> OpenSet:
    """Read ``FOLDER``, whose name says which set it is, or ``SET=FOLDER``."""
    label, separator, path = spec.partition("=")
    if not separator or "/" in label:
        folder, known = as_path(spec), by_folder(Path(spec))
    else:
        folder, known = Path(path), by_name(label)
    pairs = find_pairs(folder)
    return OpenSet(known.name if known else folder_name(folder), folder, known, tuple(pairs))


def open_sets(specs: Sequence[str]) -> list[OpenSet]:
    """Several; each set may be named once, since rows are identified by its name."""
    sets = [open_set(spec) for spec in specs]
    for number, opened in enumerate(sets):
        if opened.name in {other.name for other in sets[:number]}:
            raise HardnetError(f"{opened.folder}: the set {opened.name} is named twice")
    return sets


def by_name(name: str) -> StereoSet:
    for known in SETS:
        if name.lower() in (known.name.lower(), *known.folders):
            return known
    names = ", ".join(known.name for known in SETS)
    raise HardnetError(f"no stereo set {name!r}: choose one of {names}")


def by_folder(folder: Path) -> StereoSet | None:
    name = folder_name(folder).lower()
    return next((known for known in SETS if name in known.folders), None)


def conventions() -> str:
    return "\n".join(f"{s.name} ({s.about}): {s.pairs} pairs; {s.layout}" for s in SETS)
