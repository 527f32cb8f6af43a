"""The features of two images at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from hardnet.detectors import Detector
from hardnet.features import (
    KEYPOINTS,
    MAX_SIZE,
    Features,
    Found,
    check_keypoints,
    check_max_size,
    describe,
    find,
    load_both,
    prepare,
)
from hardnet.images import Source

if TYPE_CHECKING:
    from hardnet.descriptors import Descriptor


def extract_pair(
    a: Source,
    b: Source,
    detector: str | Detector = "dog",
    descriptor: str | Descriptor = "hardnet",
    keypoints: int = KEYPOINTS,
    max_size: int | None = MAX_SIZE,
    *,
    upright: bool = False,
) -> tuple[Features, Features]:
    """The features of two images, the same as two calls of ``extract`` but sooner.

    Both are read and detected at the same time; describing keeps all cores busy by itself. Their
    ``seconds`` overlap: those of ``b`` leave out the loading, which is done once.
    """
    check_keypoints(keypoints)
    check_max_size(max_size)
    detect, network, seconds = load_both(detector, descriptor)

    def found(image: Source) -> Found:
        return find(prepare(image, max_size), detect, keypoints, upright)

    with ThreadPoolExecutor(2) as pool:  # OpenCV releases the GIL
        both = list(pool.map(found, (a, b)))
    first, second = (describe(one, network) for one in both)
    return (
        replace(first, seconds=seconds | first.seconds),
        replace(second, seconds={"load": 0.0} | second.seconds),
    )
