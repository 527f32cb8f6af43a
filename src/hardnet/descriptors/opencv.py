"""Descriptors of patches by OpenCV: SIFT, RootSIFT and its learned ones; and the bare pixels.

OpenCV describes keypoints, not patches. Patches are laid out side by side on one image, each with a
margin in which its border pixels are repeated, so that one call describes many and none sees
another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.descriptors import Descriptor, Descriptors, unit_rows
from hardnet.errors import HardnetError
from hardnet.frames import PATCH_SIZE, WINDOW_SIGMAS, check_patches, grey_bytes, resize_patches
from hardnet.threads import map_threads

SMOOTHING = 1.6  # of a SIFT patch, in its pixels, before gradients are taken: OpenCV's default

_BATCH = 256  # patches on one image: 16 x 16 of them
_COLUMNS = 16
_LAYERS = 4
_SIFT_MARGIN = 12  # half a cell (4) + gradient (1) + radius of the blur (6), and one to spare
# VGG's blur reads 6 pixels beyond the patch; BEBLID has another code path, with other rounding,
# for keypoints whose window, times 1.75, leaves the image: 12 pixels beyond the patch.
_LEARNED_MARGIN = 14
_VGG_120 = 100  # OpenCV's numbers of the variants; its Python module does not name them
_BINBOOST_256 = 302


def load(name: str) -> Descriptor:
    if name == "pixels":
        return PixelsDescriptor()
    if name in ("sift", "rootsift"):
        return SiftDescriptor(root=name == "rootsift")
    return OpenCVDescriptor(name)


class PixelsDescriptor:
    """The patch itself at 16 x 16, minus its mean: dot products are normalised correlations."""

    name = "pixels"
    side = 16
    dim = side * side
    weights = f"pixels {side}"

    def __call__(self, patches: ArrayLike) -> Descriptors:
        exact = check_patches(patches).astype(np.float32)  # resizing bytes would round
        rows = resize_patches(exact, self.side).reshape(-1, self.dim).astype(np.float32)
        # The mean of equal float32 numbers may differ from them in the last digit: a flat patch
        # must give zeros here, not amplified rounding.
        flat = rows.max(1, initial=-np.inf) == rows.min(1, initial=np.inf)
        rows -= rows.mean(1, keepdims=True)
        rows[flat] = 0
        return unit_rows(rows)


class SiftDescriptor:
    """SIFT of each patch, or RootSIFT: the square root of SIFT scaled to sum 1.

    The patch *is* SIFT's window: 4 x 4 cells of 3 sigma each, so a patch of side 32 stands for an
    upright keypoint in its centre with sigma = 32 / 12. Cells at the edge of the window read up to
    half a cell beyond it. The L2 distance of RootSIFT (Arandjelovic & Zisserman 2012) is the
    Hellinger distance.

    All keypoints are of octave 0, layer 0, so each patch is smoothed once and never resized.
    (Several layers take less time than one: their blurs are smaller.) OpenCV rounds positions to
    whole pixels; the tiles have an even side, so that this rounding is the same for all patches.
    """

    dim = 128

    def __init__(self, root: bool) -> None:
        self.name = "rootsift" if root else "sift"
        self.weights = f"{self.name} smoothing {SMOOTHING} of OpenCV {cv2.__version__}"
        self._sift = cv2.SIFT.create(nOctaveLayers=_LAYERS, sigma=SMOOTHING)

    def __call__(self, patches: ArrayLike) -> Descriptors:
        checked = resize_patches(check_patches(patches), PATCH_SIZE)
        if checked.dtype != np.uint8:
            # SIFT reads 8-bit images. Stretching each patch does not change its vector, which
            # ignores brightness and is scaled to unit length.
            low = checked.min(axis=(1, 2), keepdims=True, initial=np.inf)
            high = checked.max(axis=(1, 2), keepdims=True, initial=-np.inf)
            span = np.where(high > low, high - low, 1)
            checked = np.asarray(np.round((checked - low) / span * 255), np.uint8)
        out = np.empty((len(checked), self.dim), np.float32)

        def describe(start: int) -> None:
            image, keypoints = self.lay_out(np.asarray(checked[start : start + _BATCH], np.uint8))
            values = np.asarray(self._sift.compute(image, keypoints)[1], np.float32)
            if self.name == "rootsift":
                values = np.sqrt(values / np.maximum(values.sum(1, keepdims=True), 1e-12))
            out[start : start + _BATCH] = unit_rows(values)

        map_threads(describe, range(0, len(checked), _BATCH))
        return out

    def lay_out(self, patches: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], list[cv2.KeyPoint]]:
        """One image with all (n, 32, 32) patches on it, and the keypoint of each."""
        return _lay_out(patches, _SIFT_MARGIN, 2 * PATCH_SIZE / WINDOW_SIGMAS)


class Kind(NamedTuple):
    """How OpenCV makes one of its learned descriptors, and how its window lies."""

    method: str  # class in cv2.xfeatures2d
    create: Callable[[Any], Any]  # the class -> a cv2.Feature2D, for a window of KeyPoint.size
    dim: int  # length of the vector, or number of bits
    binary: bool = True  # packed bits instead of floats
    side: int = 32  # pixels of the window
    shift: float = 0.5  # from the centre of the window to the keypoint


KINDS = {
    "beblid": Kind("BEBLID", lambda cv: cv.create(1.0, _contrib().BEBLID_SIZE_512_BITS), 512),
    "boostdesc": Kind("BoostDesc", lambda cv: cv.create(_BINBOOST_256, True, 1.0), 256),
    "teblid": Kind("TEBLID", lambda cv: cv.create(1.0, _contrib().TEBLID_SIZE_512_BITS), 512),
    "vgg": Kind("VGG", lambda cv: cv.create(desc=_VGG_120, scale_factor=1.0), 120, False, 64, 0.0),
}


def _contrib() -> Any:
    return getattr(cv2, "xfeatures2d", None)


def is_available(name: str) -> bool:
    """Whether the installed OpenCV has it."""
    return hasattr(_contrib(), KINDS[name].method)


class OpenCVDescriptor:
    """One of ``KINDS`` by name.

    All of them were learned on the patches of the Brown sets, so the patch *is* their window,
    resized to the side they were learned at: each sample is one pixel of the patch. They do
    not agree on the middle of an even number of pixels: VGG samples kp - 31.5 ... kp + 31.5, the
    others kp - 16 ... kp + 15.

    BEBLID, TEBLID and BoostDesc compare differences of grey values with learned thresholds: patches
    must have their original contrast, and are never stretched. VGG's vectors are compared as they
    are, by L2, as they were learned; it blurs the patch by 1.4 of its 64 pixels.
    """

    def __init__(self, name: str) -> None:
        self._kind = KINDS[name]
        if not is_available(name):
            raise HardnetError(
                f"this OpenCV ({cv2.__version__}) has no {self._kind.method}; install "
                "opencv-contrib-python-headless instead of opencv-python-headless"
            )
        self.name, self.dim = name, self._kind.dim
        self.weights = f"{name} of OpenCV {cv2.__version__}"
        self._extractor = self._kind.create(getattr(_contrib(), self._kind.method))

    def __call__(self, patches: ArrayLike) -> NDArray[Any]:
        """(N, S, S) or (N, 1, S, S) patches of grey values 0..255 -> (N, D) float32 or bits."""
        given = grey_bytes(check_patches(patches))
        grey = np.asarray(resize_patches(given, self._kind.side), np.uint8)
        width, kind = (self.dim // 8, np.uint8) if self._kind.binary else (self.dim, np.float32)
        out: NDArray[Any] = np.empty((len(grey), width), kind)
        for start in range(0, len(grey), _BATCH):
            batch = grey[start : start + _BATCH]
            kept, values = self._extractor.compute(*self.lay_out(batch))
            if len(kept) != len(batch):  # the margin is there so that this never happens
                raise RuntimeError(f"OpenCV dropped {len(batch) - len(kept)} keypoints")
            out[start : start + len(batch)] = values
        return out

    def lay_out(self, patches: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], list[cv2.KeyPoint]]:
        """One image with all (n, side, side) patches on it, and the keypoint of each."""
        return _lay_out(patches, _LEARNED_MARGIN, float(self._kind.side), self._kind.shift)


def _lay_out(
    patches: NDArray[np.uint8], margin: int, size: float, shift: float = 0.0
) -> tuple[NDArray[np.uint8], list[cv2.KeyPoint]]:
    n, columns = len(patches), min(_COLUMNS, len(patches))
    rows = -(-n // columns)
    tile = patches.shape[1] + 2 * margin
    tiles = np.zeros((rows * columns, tile, tile), np.uint8)
    tiles[:n] = np.pad(patches, ((0, 0), (margin, margin), (margin, margin)), mode="edge")
    image = tiles.reshape(rows, columns, tile, tile).swapaxes(1, 2)
    at = np.arange(n)
    # The centre of a pixel has whole coordinates, so that of a patch of even size ends in .5.
    centres = np.stack([at % columns, at // columns], 1) * tile + (tile - 1) / 2 + shift
    keypoints = [cv2.KeyPoint(x, y, size, 0.0) for x, y in centres.tolist()]
    return np.ascontiguousarray(image).reshape(rows * tile, columns * tile), keypoints
