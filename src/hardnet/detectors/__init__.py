"""Detectors by name: image -> frames and scores, strongest first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hardnet.detectors import affine, dog, hessian, mser
from hardnet.detectors.spread import SpreadDetector, spread_both
from hardnet.errors import InputError
from hardnet.frames import Frames
from hardnet.storage import file_digest
from hardnet.stored_names import check_registered


class Detector(Protocol):
    """A function that finds keypoints."""

    def __call__(
        self, image: NDArray[np.uint8], keypoints: int = 2048, upright: bool = False
    ) -> tuple[Frames, NDArray[np.float32]]:
        """(H, W) uint8 -> (N, 2, 3) frames and (N,) scores, N <= keypoints, strongest first.

        With ``upright`` the patch's "up" is the image's "up", and a place appears once.
        """
        ...


Detected = tuple[Frames, NDArray[np.float32]]
BothWays = Callable[[NDArray[np.uint8], int], tuple[Detected, Detected]]

_DETECTORS: dict[str, Detector] = {
    "dog": dog.detect,
    "hessian": hessian.detect,
    "hessian-affine": affine.detect,
    "mser": mser.detect,
}


def names() -> list[str]:
    """The detectors that :func:`load` knows and that need no further file."""
    return sorted(_DETECTORS)


def registered(name: object, source: Path, again: str) -> str:
    """A name that was read from the file ``source``: one of :func:`names`, never a path.

    ``again`` says, for the error, what a person does about another one.
    """
    return check_registered(name, "detector", names(), source, again)


def load(detector: str | Detector, spread: bool = False) -> Detector:
    """The detector of that name: one of :func:`names`, or one with networks (PyTorch).

    ``affnet:AffNet.pth`` and ``affnet:AffNet.pth,OriNet.pth`` are Hessian keypoints with the shape
    (and orientation) that the networks in these published weights files give. With ``spread`` its
    keypoints lie all over the image. A Detector is returned as it is, or spread.
    """
    found = _named(detector) if isinstance(detector, str) else detector
    return SpreadDetector(found) if spread else found


def _named(name: str) -> Detector:
    if name.startswith(affine.AFFNET):
        return affine.load_affnet_detector(name)
    try:
        return _DETECTORS[name]
    except KeyError:
        known = f"{', '.join(names())}, or {affine.AFFNET}AffNet.pth[,OriNet.pth]"
        raise InputError(f"no detector '{name}': choose one of {known}") from None


def both_ways(detector: Detector) -> BothWays | None:
    """Finds the upright and the turned frames of an image together, if the detector can."""
    if isinstance(detector, SpreadDetector):
        both = both_ways(detector.detector)
        return None if both is None else spread_both(both)
    return dog.detect_both if detector is dog.detect else None


def weights(name: str) -> list[str]:
    """Digests of the weights files that a detector's name mentions: other files, other frames."""
    files = name.partition(":")[2].split(",")
    return [file_digest(file) for file in files if Path(file).is_file()]
