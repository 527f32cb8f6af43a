"""How the photos of an index, and every query to it, are described.

:class:`IndexSettings` are a person's choice. What the manifest of an index says becomes settings by
:func:`stored_settings` only, which takes nothing from it that could run code.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from hardnet import descriptors, detectors, features
from hardnet.descriptors import Descriptor
from hardnet.detectors import Detector, affine
from hardnet.errors import HardnetError
from hardnet.retrieval.store.manifest import MANIFEST
from hardnet.storage import file_digest, replacing

KEYPOINTS = 1024
"""Half as many as for matching: 10,000 photos take 280 MB, and a query half the time."""

MAX_SIZE = 1024
"""Pixels of the longer side: fine structure that only large photos have is seldom seen twice."""

WEIGHTS = "weights"
"""The folder inside an index with copies of the weights files, each in a folder named by digest."""


@dataclass(frozen=True)
class IndexSettings:
    """What decides the features of a photo; see :func:`hardnet.extract`.

    A descriptor ``module:function`` is imported by :meth:`load`. Weights files are named by
    absolute path here, and in JSON by the last part of it: an index has copies of them.
    """

    detector: str = "dog"
    descriptor: str = "hardnet"
    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    upright: bool = False

    def __post_init__(self) -> None:
        features.check_settings(self.keypoints, self.max_size)
        if self.descriptor not in descriptors.names():
            object.__setattr__(self, "descriptor", _absolute(self.descriptor))
        kind, colon, files = self.detector.partition(":")
        found = ",".join(_absolute(file) for file in files.split(","))
        object.__setattr__(self, "detector", f"{kind}{colon}{found}" if files else kind)

    def to_json(self) -> dict[str, Any]:
        """As JSON values; :func:`stored_settings` reads them again."""
        kind, colon, files = self.detector.partition(":")
        detector = f"{kind}{colon}{','.join(_last_part(file) for file in files.split(','))}"
        return asdict(self) | {"detector": detector, "descriptor": _last_part(self.descriptor)}

    def load(self) -> tuple[Detector, Descriptor]:
        """The detector and the descriptor."""
        return detectors.load(self.detector), descriptors.load(self.descriptor)


def stored_settings(
    kept: Mapping[str, Any], folder: Path, descriptor: str | None = None
) -> IndexSettings:
    """The settings of an index that was made before, by whomever.

    Args:
        kept: settings and identity, as the manifest has them.
        folder: of the index. Weights files are its copies (:func:`keep_weights`), which must have
            the digests of the identity.
        descriptor: named by a person, in place of the one in the manifest.

    Raises:
        HardnetError: the manifest names neither registered names nor weights of the index.
    """
    source = folder / MANIFEST
    name = kept["descriptor"]
    digest = str(kept.get("weights") or "").rpartition(" ")[2]
    again = "name it yourself with --descriptor (descriptor= in Python)"
    if descriptor is None:
        if Path(str(name)).suffix.lower() in descriptors.WEIGHTS_SUFFIXES:
            descriptor = _kept_file(str(name), digest, folder, again)
        else:
            descriptor = descriptors.registered(name, source, again)
    kind, _, files = str(kept["detector"]).partition(":")
    rebuild = "build the index again"
    if f"{kind}:" == affine.AFFNET:
        digests = kept.get("detector_weights") or []
        pairs = zip_longest(files.split(","), map(str, digests), fillvalue="")
        found = [_kept_file(file, digest, folder, rebuild) for file, digest in pairs]
        detector = affine.AFFNET + ",".join(found)
    else:
        detector = detectors.registered(kept["detector"], source, rebuild)
    plain = ("keypoints", "max_size", "upright")
    return IndexSettings(detector, descriptor, **{name: kept[name] for name in plain})


def keep_weights(settings: IndexSettings, folder: Path) -> IndexSettings:
    """Copy the weights files of the settings into an index; returns settings that name the copies.

    So an index needs no file of elsewhere, and can be given away.
    """
    kind, colon, files = settings.detector.partition(":")
    copies = ",".join(_copy(file, folder) for file in files.split(","))
    return replace(
        settings, detector=f"{kind}{colon}{copies}", descriptor=_copy(settings.descriptor, folder)
    )


def identity(settings: IndexSettings, descriptor: Descriptor) -> dict[str, Any]:
    """Which weights are behind the names: they must stay the same as long as the index lives."""
    return {
        "weights": getattr(descriptor, "weights", None),
        "detector_weights": detectors.weights(settings.detector),
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


def _copy(name: str, folder: Path) -> str:
    if not os.path.isfile(name):
        return name
    copy = _copy_path(name, file_digest(name), folder)
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True)
        with replacing(copy) as part:
            shutil.copyfile(name, part)
    return str(copy)


def _kept_file(name: str, digest: str, folder: Path, again: str) -> str:
    """The copy of a weights file that an index has; its content is checked before it is used."""
    copy = _copy_path(name, digest, folder)
    if not re.fullmatch(r"[0-9a-f]{64}", digest) or not copy.is_file():
        raise HardnetError(
            f"{folder / MANIFEST} names the weights {name!r}, but {folder / WEIGHTS} has no copy "
            f"of them; {again}"
        )
    if file_digest(copy) != digest:
        raise HardnetError(f"{copy} is not the file that {folder} was made with; {again}")
    return str(copy)


def _copy_path(name: str, digest: str, folder: Path) -> Path:
    return Path(os.path.abspath(folder)) / WEIGHTS / digest / _last_part(name)


def _last_part(name: str) -> str:
    return os.path.basename(name)


def _absolute(name: str) -> str:
    return os.path.abspath(name) if os.path.isfile(name) else name
