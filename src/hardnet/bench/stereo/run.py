"""Run the stereo benchmark: every detector, pair and descriptor once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hardnet
from hardnet import detectors
from hardnet.bench.stereo.kept_rows import KeptRows
from hardnet.bench.stereo.measure import measure
from hardnet.bench.stereo.protocol import Protocol
from hardnet.bench.stereo.sets import OpenSet
from hardnet.descriptors.digest import file_digest
from hardnet.features import Features, Found, describe, find, prepare

if TYPE_CHECKING:
    from hardnet.descriptors import Descriptor
    from hardnet.detectors import Detector

_IMAGES = 2  # image 1 of a sequence, and the one it is matched with


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
