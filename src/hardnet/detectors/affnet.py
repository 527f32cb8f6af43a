"""Hessian keypoints whose shape, and optionally orientation, published networks tell."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hardnet.detectors.affine_shape import MAX_STRETCH, axes
from hardnet.detectors.hessian import find_places
from hardnet.detectors.orientation import orient, turn
from hardnet.errors import HardnetError, MissingExtraError
from hardnet.frames import Frames
from hardnet.patches import PATCH_SIZE, cut_patches

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "affnet:"
"""``affnet:AffNet.pth`` or ``affnet:AffNet.pth,OriNet.pth`` names this detector."""

_BATCH = 256


class AffNetDetector:
    """A detector with learned shapes.

    Args:
        shape_weights: the published AffNet.pth.
        orientation_weights: the published OriNet.pth; without it the dominant gradient decides.
    """

    def __init__(self, shape_weights: Path, orientation_weights: Path | None = None) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("torch", "train") from error
        from hardnet.nets.frame_nets import load_affnet, load_orinet

        self._torch = torch
        self._affnet = load_affnet(shape_weights)
        self._orinet = load_orinet(orientation_weights) if orientation_weights else None

    def __call__(
        self, image: NDArray[np.uint8], keypoints: int = 2048, upright: bool = False
    ) -> tuple[Frames, NDArray[np.float32]]:
        """See :class:`hardnet.detectors.Detector`."""
        places = find_places(image)
        frames, scores = places.frames()[:keypoints], places.scores[:keypoints]
        frames = self.shape(image, frames)
        short, long = axes(frames[:, :, :2])
        good = long < MAX_STRETCH * short
        frames, scores = frames[good], scores[good]
        if upright:
            return frames, scores
        return self.orient(image, frames) if self._orinet else orient(image, frames), scores

    def shape(self, image: NDArray[np.uint8], frames: Frames) -> Frames:
        """Upright round frames (N, 2, 3) with the shape AffNet gives them; the area stays."""
        out = frames.copy()
        with self._torch.inference_mode():
            for part in _batches(frames):
                shapes = self._affnet.shapes(self._patches(image, frames[part])).numpy()
                out[part, :, :2] = frames[part, :, :2] @ shapes
        return out

    def orient(self, image: NDArray[np.uint8], frames: Frames) -> Frames:
        """Frames (N, 2, 3) turned, within their shape, by OriNet."""
        if self._orinet is None:
            raise HardnetError("this detector was loaded without OriNet's weights")
        angles = np.zeros(len(frames))
        with self._torch.inference_mode():
            for part in _batches(frames):
                angles[part] = self._orinet.angles(self._patches(image, frames[part])).numpy()
        return turn(frames, angles)

    def _patches(self, image: NDArray[np.uint8], frames: Frames) -> Tensor:
        patches = cut_patches(image, frames, PATCH_SIZE)[:, None].astype(np.float32)
        return self._torch.from_numpy(patches)


def _batches(frames: Frames) -> list[slice]:
    return [slice(i, i + _BATCH) for i in range(0, len(frames), _BATCH)]


@lru_cache(maxsize=2)
def load(name: str) -> AffNetDetector:
    """The detector called ``affnet:AffNet.pth`` or ``affnet:AffNet.pth,OriNet.pth``."""
    files = name.removeprefix(PREFIX).split(",")
    if len(files) > 2 or not all(files):
        raise HardnetError(
            f"detector '{name}': write affnet:AffNet.pth or affnet:AffNet.pth,OriNet.pth"
        )
    return AffNetDetector(*map(Path, files))
