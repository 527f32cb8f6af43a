"""What the benchmarks on photographs (pose, light, ratio) share: features, scenes, intervals.

They decide which weights, data and settings we use, so they must agree with real photographs:
frames are detected in every image independently, and some scenes choose while others only report.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from hardnet import detectors
from hardnet.bench.metrics import (
    MEAN_RESAMPLES,
    Floats,
    interval,
    multiplicities,
    precision_recall,
)
from hardnet.bench.store import Predictions
from hardnet.errors import HardnetError, silent
from hardnet.features import KEYPOINTS, MAX_SIZE, Features, Found, describe, find, prepare
from hardnet.frames import windows_of
from hardnet.images import Source

if TYPE_CHECKING:
    from hardnet.descriptors import Descriptor, Descriptors

Truth = TypeVar("Truth")
Scored = TypeVar("Scored")

CHOOSING = frozenset(
    {"fountain-P11", "lund-door", "mexico", "panorama", "graf", "wall", "bikes", "trees", "ubc"}
)
"""The scenes on which weights, data and settings are chosen; every other scene only reports.

sacre-coeur, tourist photos of different cameras and days, is closest to what users match; a choice
made on it would flatter us most, so it reports. Of the webcams the longest series reports; of the
sequences those of HPatches report and Oxford's choose."""

SAME_PLACE = 3.0
"""Pixels: a keypoint this close to its true place is correct."""

PRECISION = 0.8
"""The precision at which correct matches are counted."""

CORRECT_MATCHES = (
    f"the largest number at any ratio threshold that keeps {PRECISION:.0%} of the matches correct; "
    "mean over pairs"
)
"""The rule of :func:`correct_at_precision`, in words, for results files."""


def role(scene: str) -> str:
    """Whether a scene is for tuning ("choose") or held out ("report")."""
    return "choose" if scene in CHOOSING else "report"


@dataclass(frozen=True, eq=False)
class Scene(Generic[Truth]):
    """Pairs of photos of one scene: two files, and what is known about the pair.

    ``origin`` says where the truth comes from.
    """

    name: str
    pairs: tuple[tuple[Path, Path, Truth], ...]
    origin: str = ""

    @property
    def photos(self) -> list[Path]:
        return list(dict.fromkeys(path for pair in self.pairs for path in pair[:2]))


@dataclass(frozen=True)
class Setup:
    """How keypoints are found."""

    detector: str = "dog"
    upright: bool = False
    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    spread: bool = False

    @property
    def label(self) -> str:
        return label_of(self.detector) + (" upright" if self.upright else "")

    def finder(self) -> Callable[[Source], Found]:
        """A photo -> its keypoints; the detector is loaded now."""
        detector = detectors.load(self.detector, self.spread)

        def found(image: Source) -> Found:
            return find(prepare(image, self.max_size), detector, self.keypoints, self.upright)

        return found

    def describer(self, kept: int | None = None) -> Callable[[Descriptor, Path], Features]:
        """(descriptor, photo) -> features; keypoints are found once, the same for all descriptors.

        Those of the ``kept`` photos used last are remembered; of all by default.
        """
        found = lru_cache(kept)(self.finder())
        return lambda descriptor, path: describe(found(path), descriptor)


def label_of(detector: str) -> str:
    """The name of a detector in results: without the folders of its weights."""
    kind, _, files = detector.partition(":")
    return f"{kind}:{','.join(Path(file).name for file in files.split(','))}" if files else kind


Extractor = Callable[[Path, int], Features]
"""(photo, most keypoints) -> features, by another detector and descriptor."""


@dataclass(frozen=True)
class Contestant:
    """One line of a table: a way to make features of a photo, and its name."""

    setup: str
    label: str
    features: Callable[[Path], Features]


def contestants(
    descriptors: Mapping[str, Descriptor],
    setups: Iterable[Setup],
    extractors: Mapping[str, Extractor] | None = None,
    keypoints: int = KEYPOINTS,
) -> Iterator[Contestant]:
    for setup in setups:
        features = setup.describer()
        for label, descriptor in descriptors.items():
            yield Contestant(setup.label, label, partial(features, descriptor))
    for label, extract in (extractors or {}).items():
        yield Contestant("own detector", label, cache(partial(_whole, extract, label, keypoints)))


def _whole(extract: Extractor, label: str, keypoints: int, path: Path) -> Features:
    found = extract(path, keypoints)
    if not isinstance(found, Features):
        raise HardnetError(f"{label} returned {type(found).__name__}, not hardnet.Features")
    return found


class Remembered:
    """A descriptor whose results are cached in ``store`` by the content of the patches."""

    def __init__(self, descriptor: Descriptor, store: Path | None = None) -> None:
        self.name, self.dim = descriptor.name, descriptor.dim
        self.windows = windows_of(descriptor)
        self._predictions = Predictions(descriptor, "photos", store)

    def __call__(self, patches: ArrayLike) -> Descriptors:
        """(N, S, S) patches, or (N, K, S, S) of K windows -> (N, D)."""
        pixels = np.ascontiguousarray(patches, np.uint8)
        key = hashlib.sha256(pixels.tobytes()).hexdigest()[:24]
        return self._predictions.get(key, lambda: pixels)


def compare(
    scenes: Sequence[Scene[Truth]],
    entrants: Iterable[Contestant],
    score: Callable[[Features, Features, Truth], Scored],
    summarise: Callable[[Mapping[str, list[Scored]]], dict[str, Any]],
    advance: Callable[[], None] = silent,
) -> list[dict[str, Any]]:
    """One entry per contestant: its names, and the summary of scene -> scores of its pairs."""
    entries = []
    for one in entrants:
        found: dict[str, list[Scored]] = {}
        for scene in scenes:
            features = {path: one.features(path) for path in scene.photos}
            found[scene.name] = []
            for a, b, truth in scene.pairs:
                found[scene.name].append(score(features[a], features[b], truth))
                advance()
        entries.append({"setup": one.setup, "descriptor": one.label} | summarise(found))
    return entries


def correct_at_precision(ratios: ArrayLike, correct: ArrayLike) -> int:
    """The most correct matches up to any ratio at which a share ``PRECISION`` is correct."""
    hit = np.asarray(correct, bool)
    if not len(hit):
        return 0
    shares, recall = precision_recall(ratios, hit)
    counts = np.rint(recall * hit.sum()).astype(int)
    return int(counts[shares >= PRECISION - 1e-12].max(initial=0))


def resampled(
    values: Sequence[float],
    pairs: Sequence[tuple[Path, Path]],
    seed: int = 0,
    resamples: int = MEAN_RESAMPLES,
) -> Floats:
    """(R,) means over pairs of bootstrap samples of the photos; NaN if no pair is left.

    Pairs share photos: a pair counts as often as its first photo times its second.
    """
    names = sorted({name for pair in pairs for name in pair})
    first, second = (np.array([names.index(pair[k]) for pair in pairs]) for k in (0, 1))
    drawn = multiplicities(len(names), resamples, seed)
    weights = drawn[:, first] * drawn[:, second]
    with np.errstate(invalid="ignore"):
        return np.asarray(weights @ np.asarray(values, np.float64) / weights.sum(1))


def summary(
    scenes: Sequence[Scene[Any]],
    field: str,
    scores: Mapping[str, Sequence[float | None]],
    facts: Mapping[str, Mapping[str, Any]],
    key: str = "scenes",
) -> dict[str, Any]:
    """The mean, called ``field``, over the scenes of each role with its interval; every scene.

    ``scores``: scene -> a number per pair, None if the pair has none; a scene without numbers is
    left out. ``facts``: what else is told about a scene.
    """
    means: dict[str, float] = {}
    drawn: dict[str, list[Floats]] = {"choose": [], "report": []}
    for scene in scenes:
        known = [(v, pair[:2]) for v, pair in zip(scores[scene.name], scene.pairs, strict=True)]
        values = [v for v, _ in known if v is not None]
        if values:
            places = drawn[role(scene.name)]
            pairs = [pair for v, pair in known if v is not None]
            places.append(resampled(values, pairs, len(places)))
            means[scene.name] = float(np.mean(values))
    entry: dict[str, Any] = {}
    for wanted, each in drawn.items():
        chosen = [mean for name, mean in means.items() if role(name) == wanted]
        entry[wanted] = {
            field: float(np.mean(chosen)) if chosen else None,
            "interval": interval(np.mean(each, axis=0)) if each else (None, None),
        }
    entry[key] = {
        name: {"role": role(name), field: mean, **facts[name]} for name, mean in means.items()
    }
    return entry
