"""From an image to features: detect frames, cut patches, describe them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hardnet import descriptors, detectors, frames
from hardnet.errors import HardnetError
from hardnet.frames import Frames
from hardnet.images import Pixels, Source, read_image, shrink, to_grey
from hardnet.patches import cut_patches

if TYPE_CHECKING:
    from hardnet.descriptors import Descriptor, Descriptors


@dataclass(frozen=True, eq=False)
class Features:
    """The described keypoints of one image, strongest first, in pixels of the upright original.

    Attributes:
        frames: (N, 2, 3).
        scores: (N,) detector response.
        descriptors: (N, D) float32, or (N, B) uint8 packed bits.
        image_size: (width, height) of the image.
        descriptor: name of the descriptor that made ``descriptors``.
        scale: by how much the image was shrunk before detection; one over this is the size, in
            pixels of the original, of the pixels that were looked at.
        path: the file, or None if the image was an array.
        pixels: the image if it was an array, None if it can be read from ``path``.
        seconds: time per stage.
    """

    frames: Frames
    scores: NDArray[np.float32]
    descriptors: Descriptors
    image_size: tuple[int, int]
    descriptor: str
    scale: float = 1.0
    path: str | None = None
    pixels: Pixels | None = field(default=None, repr=False)
    seconds: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def xy(self) -> NDArray[np.float32]:
        """(N, 2) positions of the keypoints."""
        return frames.centres(self.frames)

    def read_pixels(self) -> Pixels:
        """The image the features come from, (H, W) grey or (H, W, 3) RGB."""
        if self.pixels is not None:
            return self.pixels
        if self.path is None:
            raise HardnetError("these features keep neither their image nor its path")
        return read_image(self.path)


def extract(
    image: Source,
    detector: str = "dog",
    descriptor: str | Descriptor = "hardnet",
    keypoints: int = 2048,
    max_size: int | None = 1600,
) -> Features:
    """Detect and describe the keypoints of an image.

    Args:
        image: path, or array (grey or RGB).
        detector: name of a detector.
        descriptor: name of a descriptor, a weights file, or a Descriptor.
        keypoints: at most so many are kept, the strongest.
        max_size: shrink the image to a longer side of at most this before detection (the results
            are in pixels of the original all the same); None for never.

    Returns:
        Features; none at all (N = 0) for an image without structure.
    """
    if keypoints < 1:
        raise HardnetError(f"keypoints is {keypoints}: ask for at least 1")
    if max_size is not None and max_size < 1:
        raise HardnetError(f"max_size is {max_size}: give a size in pixels, or None")
    seconds: dict[str, float] = {}
    clock = _stopwatch(seconds)
    find = detectors.load(detector)
    describe = descriptors.load(descriptor) if isinstance(descriptor, str) else descriptor
    clock("load")
    pixels = read_image(image)
    grey, factors = shrink(to_grey(pixels), max_size)
    clock("read")
    found, scores = find(grey, keypoints)
    clock("detect")
    patches = cut_patches(grey, found)
    clock("cut")
    vectors = describe(patches) if len(patches) else np.zeros((0, describe.dim), np.float32)
    clock("describe")
    is_array = isinstance(image, np.ndarray)
    return Features(
        frames=frames.rescale(found, (1 / factors[0], 1 / factors[1])),
        scores=scores,
        descriptors=vectors,
        image_size=(pixels.shape[1], pixels.shape[0]),
        descriptor=describe.name,
        scale=float(np.sqrt(factors[0] * factors[1])),
        path=None if is_array else os.fspath(image),  # type: ignore[arg-type]
        pixels=pixels if is_array else None,
        seconds=seconds,
    )


def _stopwatch(seconds: dict[str, float]) -> Callable[[str], None]:
    """A function that books the time since its last call under a stage's name."""
    last = perf_counter()

    def clock(stage: str) -> None:
        nonlocal last
        now = perf_counter()
        seconds[stage] = now - last
        last = now

    return clock
