"""Run the stereo benchmark: every detector, pair and descriptor once.

Every measurement is kept in the cache, so that a run that was interrupted continues where it was.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import hardnet
from hardnet import detectors
from hardnet.bench.stereo.measure import measure
from hardnet.bench.stereo.sets import OpenSet
from hardnet.cache import Cache
from hardnet.descriptors import Descriptor
from hardnet.descriptors.digest import descriptor_digest
from hardnet.errors import HardnetError
from hardnet.features import KEYPOINTS, MAX_SIZE, Features, Found, describe, find, prepare
from hardnet.matching.matches import MODS, Strategy
from hardnet.patchsets.image_pairs import ImagePair
from hardnet.provenance import PIPELINE, versions
from hardnet.storage import file_digest

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

    Attributes:
        keypoints: budget per image and detector.
        max_size: larger images are shrunk to this longer side before detection.
        upright: no frame is turned.
        model: the geometry that is fitted; "by-truth": a homography where the ground truth is one,
            a fundamental matrix where it is correspondences, either where there is none.
        strategy: how matches are found and verified.
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

    Args:
        sets: the pairs.
        descriptors: label -> descriptor.
        detector_names: what ``hardnet.detectors.load`` takes.
        protocol: what is the same for all.
        store: folder for measurements of interrupted runs; the user's cache by default.
        advance: called after each measurement.

    Returns:
        One row per set, pair, detector and descriptor, with these names, the kind of ground truth
        and the fields of a Measurement.
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
                    found = kept.json(
                        about | of_pair, partial(_measure, images, pair, label, descriptor)
                    )
                    where = {"set": each.name, "pair": pair.name, "truth": pair.truth}
                    who = {"detector": label_of(name), "descriptor": label}
                    rows.append(where | who | found)
                    advance()
    return rows


def _measure(images: Images, pair: ImagePair, label: str, descriptor: Descriptor) -> dict[str, Any]:
    a, b = (images.described(path, label, descriptor) for path in (pair.first, pair.second))
    protocol = images.protocol
    matches = hardnet.match(a, b, model=protocol.geometry_of(pair), strategy=protocol.strategy)
    return asdict(measure(matches, pair))


def label_of(detector: str) -> str:
    """What rows call a detector: its name, without the folders of its weights."""
    kind, _, files = detector.partition(":")
    return f"{kind}:{','.join(Path(file).name for file in files.split(','))}" if files else kind


class Images:
    """The last images that were looked at: detected and cut once, the same for all descriptors."""

    def __init__(self, detector: Detector, protocol: Protocol) -> None:
        self._detector = detector
        self.protocol = protocol
        self._found: OrderedDict[Path, tuple[Found, dict[str, Features]]] = OrderedDict()

    def described(self, path: Path, label: str, descriptor: Descriptor) -> Features:
        """The features of an image by one descriptor."""
        if path not in self._found:
            prepared = prepare(path, self.protocol.max_size)
            wanted = self.protocol.keypoints, self.protocol.upright
            self._found[path] = find(prepared, self._detector, *wanted), {}
            while len(self._found) > _IMAGES:
                self._found.popitem(last=False)
        self._found.move_to_end(path)
        found, by_label = self._found[path]
        if label not in by_label:
            by_label[label] = describe(found, descriptor)
        return by_label[label]


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
