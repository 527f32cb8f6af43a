"""Run the stereo benchmark: every detector, pair and descriptor once.

Every measurement is kept in the cache, so that a run that was interrupted continues where it was.

The layouts of Oxford-Affine, EVD, HPatches and WxBS are those of their authors. EF, SymB, GDB and
LTLL have been passed on in several forms, so they are read in ours: a folder with the images and
``pairs.txt`` (:mod:`hardnet.patchsets.sequences`); any other layout of that module will do too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import hardnet
from hardnet import detectors
from hardnet.bench.stereo.measure import measure
from hardnet.cache import Cache
from hardnet.descriptors import Descriptor
from hardnet.descriptors.digest import descriptor_digest
from hardnet.errors import HardnetError
from hardnet.features import KEYPOINTS, MAX_SIZE, Features, Found, describe, find, prepare
from hardnet.matching.matches import MODS, Strategy
from hardnet.patchsets.sequences import PAIR_LIST, ImagePair, find_pairs
from hardnet.provenance import PIPELINE, versions
from hardnet.storage import as_path, file_digest, folder_name

if TYPE_CHECKING:
    from hardnet.detectors import Detector

_IMAGES = 2  # image 1 of a sequence, and the one it is matched with
PairModel = Literal["by-truth", "homography", "fundamental"]
MODELS: tuple[PairModel, ...] = ("by-truth", "homography", "fundamental")
STRATEGIES: Mapping[str, Strategy] = {
    "default": Strategy(),
    "mods": MODS,
    "mods-degensac": replace(MODS, estimator="degensac"),
}
"""What ``--strategy`` takes; "mods-degensac" needs pydegensac."""


@dataclass(frozen=True)
class Protocol:
    """What happens to every pair.

    ``model`` is the geometry that is fitted; "by-truth": a homography where the ground truth is
    one, a fundamental matrix where it is correspondences, either where there is none.
    """

    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    upright: bool = False
    model: PairModel = "by-truth"
    strategy: Strategy = field(default_factory=Strategy)

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise HardnetError(f"no model '{self.model}': choose one of {', '.join(MODELS)}")

    def geometry_of(self, pair: ImagePair) -> Literal["auto", "homography", "fundamental"]:
        """The ``model`` that ``hardnet.match`` is given for a pair."""
        if self.model != "by-truth":
            return self.model
        if pair.truth == "none":
            return "auto"
        return "homography" if pair.truth == "homography" else "fundamental"

    def settings(self) -> dict[str, Any]:
        """All choices as JSON values."""
        return asdict(self)


def strategy_by_name(name: str, ratio: float | None = None) -> Strategy:
    """A strategy of :data:`STRATEGIES`, with another ratio if one is given."""
    if name not in STRATEGIES:
        raise HardnetError(f"no strategy '{name}': choose one of {', '.join(STRATEGIES)}")
    chosen = STRATEGIES[name]
    return chosen if ratio is None else replace(chosen, ratio=ratio)


def compare(
    sets: Iterable[OpenSet],
    descriptors: Mapping[str, Descriptor],
    detector_names: Sequence[str],
    protocol: Protocol,
    store: Path | None = None,
    advance: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Measure every descriptor on every pair with every detector.

    One row per set, pair, detector and descriptor, with these names, the kind of ground truth and
    the fields of a Measurement. ``store``: folder of the cache; the user's by default.
    """
    opened = list(sets)
    kept = Cache("stereo", store)
    digests = {label: descriptor_digest(each) for label, each in descriptors.items()}
    rows = []
    for name in detector_names:
        images = Images(detectors.load(name), protocol)
        about = {
            "detector": [name.partition(":")[0], *detectors.weights(name)],
            "protocol": protocol.settings(),
            "versions": versions(PIPELINE),
        }
        for each in opened:
            for pair in each.pairs:
                for label, descriptor in descriptors.items():
                    of_pair = {"pair": pair_digest(pair), "descriptor": digests[label]}
                    make = partial(images.measure, pair, label, descriptor)
                    where = {"set": each.name, "pair": pair.name, "truth": pair.truth}
                    who = {"detector": label_of(name), "descriptor": label}
                    rows.append(where | who | kept.json(about | of_pair, make))
                    advance()
    return rows


def label_of(detector: str) -> str:
    """What rows call a detector: its name, without the folders of its weights."""
    kind, _, files = detector.partition(":")
    return f"{kind}:{','.join(Path(file).name for file in files.split(','))}" if files else kind


class Images:
    """The last images that were looked at: detected and cut once, the same for all descriptors."""

    def __init__(self, detector: Detector, protocol: Protocol) -> None:
        self._detector, self._protocol = detector, protocol
        self._look = lru_cache(_IMAGES)(self._found)

    def measure(self, pair: ImagePair, label: str, descriptor: Descriptor) -> dict[str, Any]:
        """Match a pair by one descriptor, and judge the matches."""
        a, b = (self._described(path, label, descriptor) for path in (pair.first, pair.second))
        model, strategy = self._protocol.geometry_of(pair), self._protocol.strategy
        return asdict(measure(hardnet.match(a, b, model=model, strategy=strategy), pair))

    def _described(self, path: Path, label: str, descriptor: Descriptor) -> Features:
        found, by_label = self._look(path)
        if label not in by_label:
            by_label[label] = describe(found, descriptor)
        return by_label[label]

    def _found(self, path: Path) -> tuple[Found, dict[str, Features]]:
        prepared = prepare(path, self._protocol.max_size)
        return find(prepared, self._detector, self._protocol.keypoints, self._protocol.upright), {}


def pair_digest(pair: ImagePair) -> str:
    """Which pair it is, by the content of its images and its ground truth."""
    digest = hashlib.sha256()
    for image in (pair.first, pair.second):
        digest.update(_image_digest(image).encode())
    for truth in (pair.homography, pair.correspondences):
        digest.update(b"|" if truth is None else truth.tobytes() + b"|")
    return digest.hexdigest()


@cache
def _image_digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror}") from error


_SIDES = "1/NAME.*, 2/NAME.*, h/NAME.txt"
_SEQUENCES = "SEQUENCE/1.* to 6.*, H_1_2 to H_1_6"
_OWN = f"images and {PAIR_LIST} (IMAGE_A IMAGE_B [TRUTH] a line): our convention"


@dataclass(frozen=True)
class StereoSet:
    """What is known about a set: its name in the paper's Table 3, how many pairs it has.

    ``folders``: names of folders that are taken for this set, in small letters.
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
        "OxAff",
        40,
        f"{_SEQUENCES}; 8 sequences",
        "Oxford Affine",
        ("oxaff", "oxford-affine", "oxford_affine", "oxfordaffine"),
    ),
    StereoSet(
        "SymB",
        46,
        _OWN,
        "symmetric architecture, photos and drawings",
        ("symb", "symbench", "symbench_v1"),
    ),
    StereoSet("GDB", 22, _OWN, "GDB-ICP registration pairs", ("gdb", "gdb-icp", "gdbicp")),
    StereoSet(
        "WxBS",
        34,
        "KIND/SCENE/01.*, 02.*, corrs.txt",
        "several changes at once",
        ("wxbs", "wxbs_v1.1", "wxbs-v1.1"),
        "version 1.1; the paper counts 37",
    ),
    StereoSet(
        "LTLL",
        172,
        _OWN,
        "Large Time Lags Locations: old and new photos",
        ("ltll", "large-time-lags"),
    ),
    StereoSet(
        "HPatches",
        580,
        f"{_SEQUENCES}; 116 sequences",
        "HPatches full sequences",
        ("hpatches", "hpatches-sequences", "hpatches-sequences-release"),
        "not in Table 3",
    ),
)
"""In the order of Table 3, then what it does not have."""


@dataclass(frozen=True, eq=False)
class OpenSet:
    """A folder that was read, and what is known about its set."""

    name: str
    folder: Path
    known: StereoSet | None
    pairs: tuple[ImagePair, ...]

    @property
    def complete(self) -> bool:
        """Whether all pairs are there; of a set that is not known, those found are all."""
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
    _, pairs = find_pairs(folder)
    return OpenSet(known.name if known else folder_name(folder), folder, known, tuple(pairs))


def open_sets(specs: Sequence[str]) -> list[OpenSet]:
    """Several; a set comes once, since rows are told apart by its name."""
    sets = [open_set(spec) for spec in specs]
    for number, opened in enumerate(sets):
        if opened.name in {other.name for other in sets[:number]}:
            raise HardnetError(f"{opened.folder}: the set {opened.name} is named twice")
    return sets


def by_name(name: str) -> StereoSet:
    """The set called ``name``, in letters of any size."""
    for known in SETS:
        if name.lower() in (known.name.lower(), *known.folders):
            return known
    names = ", ".join(known.name for known in SETS)
    raise HardnetError(f"no stereo set {name!r}: choose one of {names}")


def by_folder(folder: Path) -> StereoSet | None:
    """The set that a folder of this name holds; None if the name says nothing."""
    name = folder_name(folder).lower()
    return next((known for known in SETS if name in known.folders), None)


def conventions() -> str:
    """One line per set: what a complete folder of it holds."""
    return "\n".join(f"{s.name} ({s.about}): {s.pairs} pairs; {s.layout}" for s in SETS)
