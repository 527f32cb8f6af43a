"""What every descriptor is: a callable from patches to vectors that can be compared.

What goes in and what comes out is checked here, once, for all of them. In: (N, S, S) or
(N, 1, S, S), any integer or float type, any brightness range, any S; all else is a HardnetError
that says what is wrong. Out: (N, D) float32 of length 1. A patch without any contrast describes
nothing; where a descriptor gives it the zero vector, it becomes the uniform vector 1/sqrt(D), so
that nothing downstream meets a NaN.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.errors import HardnetError, InputError

Descriptors = NDArray[np.float32]
"""(N, D) float32, one unit vector per patch."""

Patches = NDArray[np.uint8] | NDArray[np.float32]

_ZERO = 1e-6  # shorter than this, a vector's direction is rounding


@runtime_checkable
class Descriptor(Protocol):
    """Describes patches; any benchmark and any pipeline takes any descriptor.

    The type of what it returns is the metric: float32 vectors are compared by L2 distance, uint8
    rows are packed bits, compared by Hamming distance (``hardnet.matching.neighbours``). Vectors
    have length 1, except where a descriptor was learned otherwise (VGG) or is somebody's function.

    A descriptor may have an attribute ``weights``: a text that says which weights, source or
    library computes it, for ``hardnet.descriptors.digest``; and an attribute ``digest`` of its
    weights file, by which features of different weights are told apart.
    """

    @property
    def name(self) -> str:
        """What tables and files call it."""
        ...

    @property
    def dim(self) -> int:
        """Length D of a vector, or the number of bits."""
        ...

    def __call__(self, patches: ArrayLike) -> NDArray[Any]:
        """Describe (N, S, S) or (N, 1, S, S) grey patches of any size.

        Returns:
            (N, D) float32 vectors, or (N, D / 8) uint8 packed bits.
        """
        ...


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
        raise InputError(f"patches must all have one size: {error}") from error
    if array.ndim == 1 and not len(array):
        return np.zeros((0, 1, 1), np.uint8)
    if array.ndim == 4 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 3:
        raise InputError(
            f"patches must have shape (N, S, S) or (N, 1, S, S), got {array.shape}"
            + ("; one patch is patch[None]" if array.ndim == 2 else "")
        )
    if array.shape[1] != array.shape[2]:
        raise InputError(f"patches must be square, got {array.shape[1]} x {array.shape[2]}")
    if len(array) and not array.shape[1]:
        raise InputError("patches have no pixels")
    if array.dtype == np.uint8:
        return array
    if not np.issubdtype(array.dtype, np.floating) and not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"patches must be numbers, got {array.dtype}")
    array = array.astype(np.float32)
    bad = ~np.isfinite(array).all(axis=(1, 2))
    if bad.any():
        raise InputError(
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
    import cv2  # here: the names of all descriptors are in the help of commands, without OpenCV

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
        raise InputError(
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


def finite_rows(vectors: NDArray[Any], name: str) -> Descriptors:
    """:func:`unit_rows` of what a network gives, which is an error where it is no number."""
    if not np.isfinite(vectors).all():
        bad = int((~np.isfinite(vectors).all(axis=1)).sum())
        raise HardnetError(
            f"the network {name} gives NaN or infinity for {bad} of {len(vectors)} patches: its "
            "weights are damaged, or its training left the finite numbers"
        )
    return unit_rows(vectors.astype(np.float32, copy=False))


class PixelsDescriptor:
    """The patch itself: what learning and engineering have to beat.

    Grey values of the patch at 16 x 16, minus their mean, scaled to unit length.

    The dot product of two such vectors is the normalised cross-correlation of the patches.
    """

    name = "pixels"
    side = 16
    dim = side * side
    weights = f"pixels {side}"

    def __call__(self, patches: ArrayLike) -> Descriptors:
        """(N, S, S) or (N, 1, S, S) grey patches -> (N, 256) unit vectors."""
        exact = check_patches(patches).astype(np.float32)  # resizing bytes would round
        rows = resize_patches(exact, self.side).reshape(-1, self.dim).astype(np.float32)
        # The mean of equal float32 numbers may differ from them in the last digit: a flat patch
        # must give zeros here, not amplified rounding.
        flat = rows.max(1, initial=-np.inf) == rows.min(1, initial=np.inf)
        rows -= rows.mean(1, keepdims=True)
        rows[flat] = 0
        return unit_rows(rows)
