"""SIFT and RootSIFT of patches, computed by OpenCV.

Window convention: the patch *is* SIFT's window. SIFT describes 4 x 4 cells of 3 sigma each, so a
patch of side 32 stands for a keypoint in its centre (15.5, 15.5) with sigma = 32 / 12, which
OpenCV writes as ``KeyPoint.size`` = 2 sigma; angle 0, since a patch is already upright.

``cv2.SIFT.compute`` rebuilds a scale space and takes each keypoint's image from the level packed
in ``KeyPoint.octave``; what it builds depends on the smallest octave among *all* keypoints. All
keypoints here are of octave 0, layer 0, and the object is created with the smoothing we want
there, so each patch is smoothed once and never resized. OpenCV also rounds the position to a whole
pixel; the tiles have an even side, so that this rounding is the same for all patches.

Cells at the edge of the window read up to half a cell beyond it; the border pixels are repeated
there. Many patches are laid out in one image, far enough apart not to see each other, and described
in one call.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.descriptors import canvas
from hardnet.descriptors.base import Descriptors
from hardnet.descriptors.inputs import Patches, check_patches, resize_patches, unit_rows
from hardnet.frames import WINDOW_SIGMAS
from hardnet.patches import PATCH_SIZE

SMOOTHING = 1.6
"""Blur of the patch in its own pixels before gradients are taken, OpenCV's default. It also matches
best: AP of RootSIFT on patches of the Oxford sequences is .783, .810, .828, .804, .801 for a blur
of 0.5 (none), 1.0, 1.6, 2.1 and 2.67 (the sigma of the window)."""

_MARGIN = 12  # half a cell (4) + gradient (1) + radius of the blur (6), and one to spare


class SiftDescriptor:
    """SIFT of each patch, or RootSIFT: the square root of SIFT scaled to sum 1.

    Args:
        root: RootSIFT (Arandjelovic & Zisserman 2012), whose L2 distance is the Hellinger distance.
    """

    dim = 128

    def __init__(self, root: bool) -> None:
        self.name = "rootsift" if root else "sift"
        self.identity = f"{self.name} smoothing {SMOOTHING} of OpenCV {cv2.__version__}"
        self._root = root
        self._sift = cv2.SIFT.create(nOctaveLayers=1, sigma=SMOOTHING)

    def __call__(self, patches: ArrayLike) -> Descriptors:
        """(N, S, S) or (N, 1, S, S) grey patches -> (N, 128) unit vectors."""
        checked = _to_bytes(resize_patches(check_patches(patches), PATCH_SIZE))
        out = np.empty((len(checked), self.dim), np.float32)
        for start in range(0, len(checked), canvas.BATCH):
            batch = checked[start : start + canvas.BATCH]
            values = np.asarray(self._sift.compute(*lay_out(batch))[1], np.float32)
            if self._root:
                values = np.sqrt(values / np.maximum(values.sum(1, keepdims=True), 1e-12))
            out[start : start + len(batch)] = unit_rows(values)
        return out


def lay_out(patches: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], list[cv2.KeyPoint]]:
    """One image with all (n, 32, 32) patches on it, and the keypoint of each."""
    image, centres = canvas.lay_out(patches, _MARGIN)
    size = 2 * PATCH_SIZE / WINDOW_SIGMAS
    return image, [cv2.KeyPoint(x, y, size, 0.0) for x, y in centres.tolist()]


def _to_bytes(patches: Patches) -> NDArray[np.uint8]:
    """SIFT reads 8-bit images: float patches are stretched to 0..255 each, which it does not see.

    SIFT's vector is scaled to unit length, so contrast cancels, and gradients ignore brightness.
    """
    if patches.dtype == np.uint8:
        return patches.astype(np.uint8, copy=False)
    low = patches.min(axis=(1, 2), keepdims=True, initial=np.inf)
    high = patches.max(axis=(1, 2), keepdims=True, initial=-np.inf)
    span = np.where(high > low, high - low, 1)
    return np.asarray(np.round((patches - low) / span * 255), np.uint8)
