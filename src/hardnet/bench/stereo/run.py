"""Run the stereo benchmark: every detector, pair and descriptor once."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import hardnet
from hardnet import detectors
from hardnet.bench.stereo.measure import measure
from hardnet.bench.stereo.sets import OpenSet
from hardnet.descriptors import Descriptor
from hardnet.descriptors.digest import descriptor_digest, file_digest
from hardnet.errors import HardnetError
from hardnet.features import KEYPOINTS, MAX_SIZE, Features, Found, describe, find, prepare
from hardnet.matching.matches import MODS, Strategy
from hardnet.patchsets.cache import user_cache
from hardnet.patchsets.image_pairs import ImagePair
from hardnet.provenance import versions

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
    rows = []
    for name in detector_names:
        shown = label_of(name)
        images = Images(detectors.load(name), protocol)
        about = {"detector": name, "weights": _weights(name)} | protocol.settings()
        kept = {label: KeptRows(store, d, about) for label, d in descriptors.items()}
        for each in opened:
            for pair in each.pairs:
                for label, descriptor in descriptors.items():
                    found = kept[label].get(pair)
                    if found is None:
                        a = images.described(pair.first, label, descriptor)
                        b = images.described(pair.second, label, descriptor)
                        matches = hardnet.match(
                            a, b, model=protocol.geometry_of(pair), strategy=protocol.strategy
                        )
                        found = asdict(measure(matches, pair))
                        kept[label].put(pair, found)
                    where = {"set": each.name, "pair": pair.name, "truth": pair.truth}
                    rows.append(where | {"detector": shown, "descriptor": label} | found)
                    advance()
    return rows


def label_of(detector: str) -> str:
    """What rows call a detector: its name, without the folders of its weights."""
    kind, _, files = detector.partition(":")
    return f"{kind}:{','.join(Path(file).name for file in files.split(','))}" if files else kind


def _weights(detector: str) -> list[str]:
    """Digests of the weights files that a detector's name mentions."""
    files = detector.partition(":")[2]
    return [file_digest(file) for file in files.split(",")] if files else []


class Images:
    """The last images that were looked at: detected and cut once, the same for all descriptors."""

    def __init__(self, detector: Detector, protocol: Protocol) -> None:
        self._detector = detector
        self._protocol = protocol
        self._found: OrderedDict[Path, tuple[Found, dict[str, Features]]] = OrderedDict()

    def described(self, path: Path, label: str, descriptor: Descriptor) -> Features:
        """The features of an image by one descriptor."""
        if path not in self._found:
            prepared = prepare(path, self._protocol.max_size)
            wanted = self._protocol.keypoints, self._protocol.upright
            self._found[path] = find(prepared, self._detector, *wanted), {}
            while len(self._found) > _IMAGES:
                self._found.popitem(last=False)
        self._found.move_to_end(path)
        found, by_label = self._found[path]
        if label not in by_label:
            by_label[label] = describe(found, descriptor)
        return by_label[label]


_LIBRARIES = (
    "hardnet",
    "numpy",
    "opencv-python-headless",
    "opencv-contrib-python-headless",
    "pydegensac",
)


class KeptRows:
    """The measurements of one descriptor with one detector and protocol.

    Args:
        folder: of the store.
        descriptor: what describes.
        about: the detector and the protocol, as JSON values.
    """

    def __init__(self, folder: Path | None, descriptor: Descriptor, about: Mapping[str, Any]):
        facts = dict(about) | {
            "descriptor": descriptor_digest(descriptor),
            "versions": versions(_LIBRARIES),
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        store = folder if folder is not None else user_cache() / "predictions"
        self.path = store / "stereo" / f"{digest[:24]}.jsonl"
        self._rows = _read(self.path)

    def get(self, pair: ImagePair) -> dict[str, Any] | None:
        """The measurement of a pair, or None."""
        return self._rows.get(pair_digest(pair))

    def put(self, pair: ImagePair, measurement: dict[str, Any]) -> None:
        """Keep the measurement of a pair."""
        key = pair_digest(pair)
        self._rows[key] = measurement
        line = json.dumps({"pair": key, "measurement": measurement}) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                file.seek(0, 2)
                if file.tell():
                    file.seek(-1, 2)
                    if file.read(1) != b"\n":  # the last line was cut short: do not continue it
                        line = "\n" + line
                file.write(line.encode())
        except OSError as error:
            raise HardnetError(
                f"the store {self.path.parent} cannot be written ({error.strerror}): "
                "choose another with --store"
            ) from error


def pair_digest(pair: ImagePair) -> str:
    """Which pair it is, by the content of its images and its ground truth."""
    return _digest(pair.first, pair.second, *_truth_bytes(pair))


def _truth_bytes(pair: ImagePair) -> tuple[bytes, bytes]:
    both = (pair.homography, pair.correspondences)
    first, second = (b"" if array is None else array.tobytes() for array in both)
    return first, second


@cache
def _digest(first: Path, second: Path, homography: bytes, correspondences: bytes) -> str:
    digest = hashlib.sha256()
    for image in (first, second):
        try:
            digest.update(file_digest(image).encode())
        except OSError as error:
            raise HardnetError(f"{image} cannot be read: {error.strerror}") from error
    digest.update(homography + b"|" + correspondences)
    return digest.hexdigest()[:24]


def _read(path: Path) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    try:
        text = path.read_text(errors="replace")
    except FileNotFoundError:
        return rows
    except OSError as error:
        raise HardnetError(
            f"the store {path.parent} cannot be read ({error.strerror}): "
            "choose another with --store"
        ) from error
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            rows[entry["pair"]] = entry["measurement"]
        except (ValueError, KeyError, TypeError):
            continue
    return rows
