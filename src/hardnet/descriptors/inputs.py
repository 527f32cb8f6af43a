"""What goes into a descriptor and what comes out: checked here, once, for all of them.

In: (N, S, S) or (N, 1, S, S), any integer or float type, any brightness range, any S; all else
is a HardnetError that says what is wrong. Out: (N, D) float32 of length 1. A patch without any
contrast describes nothing; where a descriptor gives it the zero vector, it becomes the uniform
vector 1/sqrt(D), so that nothing downstream meets a NaN.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.descriptors.base import Descriptors
from hardnet.errors import HardnetError

Patches = NDArray[np.uint8] | NDArray[np.float32]

_ZERO = 1e-6  # shorter than this, a vector's direction is rounding


def check_patches(patches: ArrayLike) -> Patches:
    """The patches as one array.

    Args:
        patches: (N, S, S) or (N, 1, S, S), or an empty list.

    Returns:
        (N, S, S), uint8 if they were, else float32.

    Raises:
        HardnetError: wrong shape or type, not square, NaN or infinity.
    """
    try:
        array: NDArray[Any] = np.asarray(patches)
    except ValueError as error:  # a list of patches of different sizes
        raise HardnetError(f"patches must all have one size: {error}") from error
    if array.ndim == 1 and not len(array):
        return np.zeros((0, 1, 1), np.uint8)
    if array.ndim == 4 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 3:
        raise HardnetError(
            f"patches must have shape (N, S, S) or (N, 1, S, S), got {array.shape}"
            + ("; one patch is patch[None]" if array.ndim == 2 else "")
        )
    if array.shape[1] != array.shape[2]:
        raise HardnetError(f"patches must be square, got {array.shape[1]} x {array.shape[2]}")
    if len(array) and not array.shape[1]:
        raise HardnetError("patches have no pixels")
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating) and not np.issubdtype(array.dtype, np.integer):
        raise HardnetError(f"patches must be numbers, got {array.dtype}")
    array = array.astype(np.float32)
    bad = ~np.isfinite(array).all(axis=(1, 2))
    if bad.any():
        raise HardnetError(
            f"{bad.sum()} of {len(array)} patches contain NaN or infinity, "
            f"the first is number {int(np.argmax(bad))}"
        )
    return array


def resize_patches(patches: Patches, size: int) -> Patches:
    """(N, S, S) -> (N, size, size) of the same type, each patch on its own.

    ``cv2.INTER_LINEAR``, as the published evaluation does: 64 -> 32 is the mean of 2 x 2 pixels.
    Larger ones than 65 -> 32 are first halved by averaging, because bilinear interpolation over
    steps of more than two pixels would skip the pixels between.
    """
    if patches.shape[1] == size or not len(patches):
        return patches.reshape(len(patches), size, size)
    out = np.empty((len(patches), size, size), patches.dtype)
    for i, patch in enumerate(patches):
        while patch.shape[0] > 2 * size + 1:
            half = patch.shape[0] // 2
            patch = cv2.resize(patch, (half, half), interpolation=cv2.INTER_AREA)
        out[i] = cv2.resize(patch, (size, size), interpolation=cv2.INTER_LINEAR)
    return out


def grey_bytes(patches: Patches) -> NDArray[np.uint8]:
    """(N, S, S) as whole grey values 0..255, for what reads nothing else.

    Raises:
        HardnetError: values outside 0..255, or 0..1, which rounding would destroy.
    """
    if patches.dtype == np.uint8:
        return patches.astype(np.uint8, copy=False)
    low, high = float(patches.min(initial=0)), float(patches.max(initial=0))
    whole = np.round(patches)
    if low < 0 or high > 255 or (high <= 1 and not np.array_equal(whole, patches)):
        raise HardnetError(
            f"patches have values from {low:.3g} to {high:.3g}; "
            "this descriptor reads grey values 0..255"
        )
    return np.asarray(whole, np.uint8)


def unit_rows(vectors: NDArray[np.float32]) -> Descriptors:
    """(N, D) -> (N, D) of length 1; a zero row becomes the uniform vector 1/sqrt(D)."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    dim = vectors.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = np.where(length > _ZERO, vectors / length, np.float32(dim**-0.5))
    return unit.astype(np.float32, copy=False)
