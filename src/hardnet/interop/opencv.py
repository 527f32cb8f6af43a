"""HardNet for programs that use OpenCV's SIFT: change the line that creates it, keep the rest.

>>> from hardnet.interop.opencv import HardNet
>>> sift = HardNet()  # was: cv2.SIFT_create()  # doctest: +SKIP
>>> keypoints, descriptors = sift.detectAndCompute(image, None)  # doctest: +SKIP

The keypoints are those of OpenCV's SIFT with the same parameters; the descriptors are learned.
Return values, None and errors are the same as with SIFT. Importing this module also makes
``cv2.KeyPoint`` and ``cv2.DMatch`` work with ``pickle`` and ``copy``.
"""

# ruff: noqa: N802, N803  (OpenCV's spelling)
from __future__ import annotations

import copyreg
from functools import partial
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet import descriptors as registry
from hardnet.descriptors import Descriptor
from hardnet.errors import HardnetError, counted
from hardnet.frames import PATCH_SIZE, WINDOW_SIGMAS, cut_for, from_opencv
from hardnet.images import as_array, read_image, to_colour

KeyPoints = tuple[cv2.KeyPoint, ...]


class OpenCVError(HardnetError, cv2.error):
    """What ``except cv2.error`` in an existing program expects."""


class HardNet:
    """Behaves like ``cv2.SIFT`` with another descriptor.

    It does not inherit from ``cv2.Feature2D``: C++ code such as ``cv2.BOWImgDescriptorExtractor``
    cannot call it. It has the getters and setters of SIFT's parameters, and ``write`` and ``read``
    for them. The first five arguments are those of ``cv2.SIFT_create``.

    Args:
        enable_precise_upscale: on, unlike in ``cv2.SIFT_create``, because without it all keypoints
            lie a quarter of a pixel too far right and down.
        descriptor: name of a descriptor ("hardnet-int8" is the faster one), a weights file, or a
            Descriptor.
        window: side of the described square, in units of half a keypoint's size. The default is
            SIFT's, and best for SIFT, AKAZE and GFTT. Other detectors define ``KeyPoint.size``
            differently: try 6 for FAST, 4 for BRISK and 2 to 4 for ORB.
    """

    def __init__(
        self,
        nfeatures: int = 0,
        nOctaveLayers: int = 3,
        contrastThreshold: float = 0.04,
        edgeThreshold: float = 10,
        sigma: float = 1.6,
        enable_precise_upscale: bool = True,
        *,
        descriptor: str | Descriptor = registry.DEFAULT,
        window: float = WINDOW_SIGMAS,
    ) -> None:
        self._sift = cv2.SIFT.create(
            nfeatures,
            nOctaveLayers,
            contrastThreshold,
            edgeThreshold,
            sigma,
            enable_precise_upscale=enable_precise_upscale,
        )
        if not window > 0:
            raise HardnetError(f"window is {window}: give a number above 0")
        self._precise, self._window, self._descriptor = enable_precise_upscale, window, descriptor
        self._describe = (
            registry.load(registry.for_photos(descriptor))
            if isinstance(descriptor, str)
            else descriptor
        )
        # One descriptor shows the length of a row and its type, which decides the metric.
        self._row = self._describe(np.zeros((1, PATCH_SIZE, PATCH_SIZE), np.uint8))[0]

    @classmethod
    def create(cls, *arguments: Any, **options: Any) -> HardNet:
        """Like ``cv2.SIFT.create``, with the arguments of the class."""
        return cls(*arguments, **options)

    def detect(self, image: Any, mask: Any = None) -> Any:
        """SIFT keypoints of an image, or of each image of a list, where its mask is not 0.

        An image is (H, W) grey or (H, W, 3) BGR, uint8, or a Pillow image.
        """
        image = _unwrapped(image)
        pairs = zip(image, mask, strict=False) if _is_list(image, mask) else [(image, mask)]
        for one, its_mask in pairs:  # OpenCV checks that there are as many masks as images
            arrays = isinstance(one, np.ndarray) and isinstance(its_mask, np.ndarray)
            # OpenCV reads past the end of a mask that is smaller than its image.
            if arrays and its_mask.size and its_mask.shape[:2] != one.shape[:2]:
                shapes = f"mask has shape {its_mask.shape}, its image {one.shape}"
                raise OpenCVError(f"{shapes}: make it fit")
        return self._sift.detect(image, mask)

    def compute(self, image: Any, keypoints: Any, descriptors: Any = None) -> tuple[Any, Any]:
        """Describe keypoints of any detector, for one image or for each image of a list.

        As with SIFT, none is dropped and the order is kept. A keypoint without position or size
        (NaN, or a size of 0) gets a descriptor of zeros; an angle of -1 means upright. Rows are
        written to ``descriptors`` if that is an array of the right shape and type.

        Returns the keypoints, and (N, 128) float32, or None without keypoints or image.
        """
        image = _unwrapped(image)
        if _is_list(image):
            if len(image) != len(keypoints):
                lists = f"{counted(len(keypoints), 'list')} of keypoints"
                raise OpenCVError(f"{counted(len(image), 'image')} with {lists}")
            both = [self.compute(*pair) for pair in zip(image, keypoints, strict=True)]
            return tuple(kept for kept, _ in both), tuple(rows for _, rows in both)
        points = _check_keypoints(keypoints)
        if not points or _is_empty(image):
            return points, None
        table = np.array([(*point.pt, point.size, point.angle) for point in points])
        good = np.flatnonzero(np.isfinite(table).all(1) & (table[:, 2] > 0))
        rows = np.zeros((len(table), len(self._row)), self._row.dtype)
        pixels = _grey(image)
        if len(good):
            frames = from_opencv([points[i] for i in good], self._window)
            rows[good] = self._describe(cut_for(self._describe, pixels, frames))
        if isinstance(image, cv2.UMat):
            return points, cv2.UMat(rows)  # type: ignore[call-overload]
        fits = isinstance(descriptors, np.ndarray) and descriptors.shape == rows.shape
        if fits and descriptors.dtype == rows.dtype:
            descriptors[...] = rows
            return points, descriptors
        return points, rows

    def detectAndCompute(
        self,
        image: Any,
        mask: Any = None,
        descriptors: Any = None,
        useProvidedKeypoints: bool = False,
    ) -> tuple[KeyPoints, Any]:
        """:meth:`detect` and :meth:`compute`; nothing if ``useProvidedKeypoints``, as in OpenCV."""
        image = _unwrapped(image)
        if _is_list(image) or _is_empty(image):
            raise OpenCVError(
                "image is empty or not an array: was it read? give (H, W) or BGR uint8"
            )
        _grey(image)  # for its error
        if useProvidedKeypoints:
            return (), None
        return self.compute(image, self.detect(image, mask), descriptors)

    def descriptorSize(self) -> int:
        """Numbers (or bytes of bits) in a descriptor."""
        return len(self._row)

    def descriptorType(self) -> int:
        """``cv2.CV_32F``, or ``cv2.CV_8U`` for packed bits."""
        return int(cv2.CV_8U if self._row.dtype == np.uint8 else cv2.CV_32F)

    def defaultNorm(self) -> int:
        """For ``cv2.BFMatcher``: ``cv2.NORM_L2``, or ``cv2.NORM_HAMMING`` for packed bits."""
        return int(cv2.NORM_HAMMING if self._row.dtype == np.uint8 else cv2.NORM_L2)

    def getDefaultName(self) -> str:
        return "Feature2D.HardNet"

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("get", "set")) or name in ("clear", "empty", "read", "save", "write"):
            return getattr(self._sift, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        sift = self._sift
        thresholds = sift.getContrastThreshold(), sift.getEdgeThreshold()
        first = sift.getNFeatures(), sift.getNOctaveLayers(), *thresholds, sift.getSigma()
        options: dict[str, Any] = {"descriptor": self._descriptor, "window": self._window}
        return partial(type(self), *first, self._precise, **options), ()


HardNet_create = HardNet.create


def _is_list(*values: Any) -> bool:
    return all(isinstance(value, list | tuple) for value in values)


def _unwrapped(image: Any) -> Any:
    """Pillow images, alone or in a list, as OpenCV's arrays; anything else unchanged."""
    if _is_list(image):
        return type(image)(_unwrapped(one) for one in image)
    is_pillow = hasattr(image, "convert") and as_array(image) is not None
    return to_colour(read_image(image))[:, :, ::-1].copy() if is_pillow else image


def _grey(image: Any) -> NDArray[np.uint8]:
    array = image.get() if isinstance(image, cv2.UMat) else image
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise OpenCVError(f"image has incorrect depth ({kind}): give uint8, as SIFT needs")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim == 3 and array.shape[2] in (3, 4):
        array = cv2.cvtColor(array, cv2.COLOR_BGR2GRAY)
    if array.ndim != 2:
        raise OpenCVError(f"image has shape {array.shape}: give (H, W) or (H, W, 3) BGR")
    return np.ascontiguousarray(array, np.uint8)


def _is_empty(image: Any) -> bool:
    array = image.get() if isinstance(image, cv2.UMat) else image
    return array is None or (isinstance(array, np.ndarray) and not array.size)


def _check_keypoints(keypoints: Any) -> KeyPoints:
    if isinstance(keypoints, cv2.KeyPoint):
        raise OpenCVError("keypoints: give a sequence of keypoints, not a single one")
    points = () if keypoints is None else tuple(keypoints)
    for i, point in enumerate(points):
        if not isinstance(point, cv2.KeyPoint):
            kind = type(point).__name__
            raise OpenCVError(f"keypoints: item {i} has a wrong type ({kind}, not cv2.KeyPoint)")
    return points


copyreg.pickle(
    cv2.KeyPoint,
    lambda p: (cv2.KeyPoint, (*p.pt, p.size, p.angle, p.response, p.octave, p.class_id)),
)
copyreg.pickle(cv2.DMatch, lambda m: (cv2.DMatch, (m.queryIdx, m.trainIdx, m.imgIdx, m.distance)))
