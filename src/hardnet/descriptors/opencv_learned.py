"""The learned descriptors of OpenCV's contrib modules, of patches.

All of them were learned on the patches of the Brown sets, so the patch *is* their window, resized
to the side they were learned at: 64 pixels for VGG, 32 for the others. They describe keypoints of
an image, and take a window of ``scale_factor * KeyPoint.size`` around a keypoint; with that equal
to the side, one of their samples is one pixel of the patch. They do not agree on the middle of an
even number of pixels: VGG samples kp - 31.5 ... kp + 31.5, the others kp - 16 ... kp + 15, so their
keypoint lies half a pixel to the right of and below the centre.

BEBLID, TEBLID and BoostDesc compare differences of grey values with learned thresholds: patches
must have their original contrast, and are never stretched. VGG's vectors are compared as they are,
by L2; it was learned without scaling them to unit length. It blurs the patch by 1.4 of its 64
pixels, as in its learning. (In a photograph OpenCV blurs by 1.4 pixels of the photograph, far more
for small keypoints: patches of a photograph that was blurred before score as OpenCV does there.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.descriptors import canvas
from hardnet.descriptors.inputs import check_patches, grey_bytes, resize_patches
from hardnet.errors import HardnetError

_VGG_120 = 100  # OpenCV's numbers of the variants; its Python module does not name them
_BINBOOST_256 = 302
_MARGIN = 14
"""VGG's blur reads 6 pixels beyond the patch; BEBLID has another code path, with other rounding,
for keypoints whose window, times 1.75, leaves the image: 12 pixels beyond the patch."""


@dataclass(frozen=True)
class Kind:
    """How OpenCV makes one of them, and how its window lies.

    Attributes:
        method: class in ``cv2.xfeatures2d``.
        create: (module) -> the cv2.Feature2D, for a window equal to ``KeyPoint.size``.
        dim: length of the vector, or number of bits.
        binary: packed bits instead of floats.
        side: pixels of the window.
        shift: from the centre of the window to the keypoint.
    """

    method: str
    create: Callable[[Any], Any]
    dim: int
    binary: bool
    side: int
    shift: float


KINDS = {
    "beblid": Kind(
        "BEBLID",
        lambda module: module.BEBLID.create(1.0, module.BEBLID_SIZE_512_BITS),
        *(512, True, 32, 0.5),
    ),
    "boostdesc": Kind(
        "BoostDesc",
        lambda module: module.BoostDesc.create(_BINBOOST_256, True, 1.0),
        *(256, True, 32, 0.5),
    ),
    "teblid": Kind(
        "TEBLID",
        lambda module: module.TEBLID.create(1.0, module.TEBLID_SIZE_512_BITS),
        *(512, True, 32, 0.5),
    ),
    "vgg": Kind(
        "VGG",
        lambda module: module.VGG.create(desc=_VGG_120, scale_factor=1.0),
        *(120, False, 64, 0.0),
    ),
}


def is_available(name: str) -> bool:
    """Whether the installed OpenCV has it."""
    return hasattr(_contrib(), KINDS[name].method)


class OpenCVDescriptor:
    """One of ``KINDS`` by name.

    Raises:
        HardnetError: this OpenCV does not have it.
    """

    def __init__(self, name: str) -> None:
        self._kind = KINDS[name]
        if not is_available(name):
            raise HardnetError(
                f"this OpenCV ({cv2.__version__}) has no {self._kind.method}; install "
                "opencv-contrib-python-headless instead of opencv-python-headless"
            )
        self.name = name
        self.dim = self._kind.dim
        self.identity = f"{name} of OpenCV {cv2.__version__}"
        self._extractor = self._kind.create(_contrib())

    def __call__(self, patches: ArrayLike) -> NDArray[Any]:
        """(N, S, S) or (N, 1, S, S) patches of grey values 0..255 -> (N, D) float32 or bits."""
        given = grey_bytes(check_patches(patches))
        grey = np.asarray(resize_patches(given, self._kind.side), np.uint8)
        width, kind = (self.dim // 8, np.uint8) if self._kind.binary else (self.dim, np.float32)
        out: NDArray[Any] = np.empty((len(grey), width), kind)
        for start in range(0, len(grey), canvas.BATCH):
            batch = grey[start : start + canvas.BATCH]
            image, keypoints = self.lay_out(batch)
            kept, values = self._extractor.compute(image, keypoints)
            if len(kept) != len(batch):  # the margin is there so that this never happens
                raise RuntimeError(f"OpenCV dropped {len(batch) - len(kept)} keypoints")
            out[start : start + len(batch)] = values
        return out

    def lay_out(self, patches: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], list[cv2.KeyPoint]]:
        """One image with all (n, side, side) patches on it, and the keypoint of each."""
        image, centres = canvas.lay_out(patches, _MARGIN)
        size = float(self._kind.side)
        return image, [cv2.KeyPoint(x, y, size, 0.0) for x, y in (centres + self._kind.shift)]


def _contrib() -> Any:
    """OpenCV's module of them, or None."""
    return getattr(cv2, "xfeatures2d", None)
