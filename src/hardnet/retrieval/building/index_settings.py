"""How the photos of an index, and every query to it, are described."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hardnet import descriptors, detectors, features
from hardnet.descriptors import Descriptor
from hardnet.descriptors.fingerprint import file_digest
from hardnet.detectors import Detector
from hardnet.errors import HardnetError

KEYPOINTS = 1024
"""Half as many as for matching: 10,000 photos take 280 MB, and a query half the time."""

MAX_SIZE = 1024
"""Pixels of the longer side: fine structure that only large photos have is seldom seen twice."""


@dataclass(frozen=True)
class IndexSettings:
    """What decides the features of a photo; see :func:`hardnet.extract`.

    Weights files are kept by absolute path, so that the index can be used from any folder.
    """

    detector: str = "dog"
    descriptor: str = "hardnet"
    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    upright: bool = False

    def __post_init__(self) -> None:
        features.check_keypoints(self.keypoints)
        features.check_max_size(self.max_size)
        object.__setattr__(self, "descriptor", _absolute(self.descriptor))
        kind, colon, files = self.detector.partition(":")
        found = ",".join(_absolute(file) for file in files.split(","))
        object.__setattr__(self, "detector", f"{kind}{colon}{found}" if files else kind)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> IndexSettings:
        """The inverse of :meth:`to_json`; further values are passed over."""
        return cls(**{name: values[name] for name in cls.__dataclass_fields__})

    def load(self) -> tuple[Detector, Descriptor]:
        """The detector and the descriptor."""
        return detectors.load(self.detector), descriptors.load(self.descriptor)


def identity(settings: IndexSettings, descriptor: Descriptor) -> dict[str, Any]:
    """Which weights are behind the names: they must stay the same as long as the index lives."""
    files = settings.detector.partition(":")[2].split(",")
    return {
        "weights": getattr(descriptor, "identity", None),
        "detector_weights": [file_digest(file) for file in files if Path(file).is_file()],
    }


def compare(was: Mapping[str, Any], given: Mapping[str, Any], where: Path | str) -> None:
    """Raise if ``given`` settings are not those that ``where`` was made with."""
    for key, value in given.items():
        if key in was and was[key] != value:
            # A digest says nothing to people.
            made = f"other {key}" if key.endswith("weights") else f"{key}={was[key]}, not {value}"
            raise HardnetError(
                f"{where} was made with {made}: use the same settings, or build another index"
            )


def _absolute(name: str) -> str:
    return os.path.abspath(name) if os.path.isfile(name) else name
