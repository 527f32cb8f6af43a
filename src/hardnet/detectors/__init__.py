"""Detectors by name: image -> frames and scores, strongest first."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hardnet.detectors import dog, hessian, hessian_affine
from hardnet.errors import HardnetError
from hardnet.frames import Frames


class Detector(Protocol):
    """A function that finds keypoints."""

    def __call__(
        self, image: NDArray[np.uint8], keypoints: int = 2048, upright: bool = False
    ) -> tuple[Frames, NDArray[np.float32]]:
        """(H, W) uint8 -> (N, 2, 3) frames and (N,) scores, N <= keypoints, strongest first.

        With ``upright`` the patch's "up" is the image's "up", and a place appears once.
        """
        ...


_DETECTORS: dict[str, Detector] = {
    "dog": dog.detect,
    "hessian": hessian.detect,
    "hessian-affine": hessian_affine.detect,
}


def names() -> list[str]:
    """The detectors that :func:`load` knows."""
    return sorted(_DETECTORS)


def load(name: str) -> Detector:
    """The detector called ``name``."""
    try:
        return _DETECTORS[name]
    except KeyError:
        raise HardnetError(f"no detector '{name}': choose one of {', '.join(names())}") from None
