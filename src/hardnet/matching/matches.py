"""Match two images: nearest neighbours, then the geometry that explains them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.features import Features, extract
from hardnet.images import Source, write_image
from hardnet.matching.draw import draw_matches
from hardnet.matching.estimators import NO_CAMERAS, check_cameras
from hardnet.matching.geometry import Cameras, Geometry, Model, verify
from hardnet.matching.neighbours import match_descriptors
from hardnet.matching.strategy import Strategy


@dataclass(frozen=True, eq=False)
class Matches:
    """Matches between two images, best first.

    Attributes:
        indices: (M, 2) indices into the features of a and of b.
        scores: (M,) one minus the ratio of nearest to second nearest distance.
        geometry: what the inliers agree on; its kind is None if nothing could be verified.
        a: features of the first image.
        b: features of the second image.
        seconds: time per stage ("match", "verify").
    """

    indices: NDArray[np.intp]
    scores: NDArray[np.float32]
    geometry: Geometry
    a: Features = field(repr=False)
    b: Features = field(repr=False)
    seconds: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def xy_a(self) -> NDArray[np.float32]:
        """(M, 2) positions in the first image."""
        return self.a.xy[self.indices[:, 0]]

    @property
    def xy_b(self) -> NDArray[np.float32]:
        """(M, 2) positions in the second image."""
        return self.b.xy[self.indices[:, 1]]

    @property
    def inliers(self) -> NDArray[np.bool_]:
        """(M,) which matches agree with the geometry."""
        return self.geometry.inliers

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of both photos and the inliers between them (.png, .jpg, ...)."""
        caption = f"{self.a.descriptor}: {self.inliers.sum()} of {len(self)} matches verified"
        if self.geometry.kind:
            caption += f" ({self.geometry.kind})"
        picture = draw_matches(
            self.a.read_pixels(),
            self.b.read_pixels(),
            self.xy_a[self.inliers],
            self.xy_b[self.inliers],
            caption,
        )
        write_image(path, picture)


def match(
    a: Features | Source,
    b: Features | Source,
    model: Model = "auto",
    ratio: float | None = None,
    strategy: Strategy | None = None,
    cameras: Cameras | None = None,
) -> Matches:
    """Match two images and verify the matches.

    Args:
        a: features, or an image (path or array) to extract them from with default settings.
        b: the same, for the other image.
        model: "homography" (planes, panoramas), "fundamental" (scenes with depth), "auto" for the
            better of these two, or "essential" (as fundamental, for cameras that are known).
        ratio: of the ratio test: smaller is stricter, 1 switches it off; default: the strategy's.
        strategy: how matches are found and verified.
        cameras: (3, 3) intrinsics of both images, in original pixels; "essential" needs them.

    Returns:
        Matches; ``geometry.kind`` is None if they do not support any geometry.
    """
    strategy = strategy or Strategy()
    if ratio is not None:
        strategy = replace(strategy, ratio=ratio)
    if model not in ("auto", "homography", "fundamental", "essential"):
        raise HardnetError(f"no model '{model}': choose auto, homography, fundamental or essential")
    if model == "essential" and cameras is None:
        raise HardnetError(NO_CAMERAS)
    a = a if isinstance(a, Features) else extract(a)
    b = b if isinstance(b, Features) else extract(b)
    if a.descriptor != b.descriptor:
        raise HardnetError(
            f"cannot match {a.descriptor} with {b.descriptor}: describe both images alike"
        )
    start = perf_counter()
    indices, scores = match_descriptors(a.descriptors, b.descriptors, strategy.ratio)
    matched = perf_counter()
    geometry = _verify(a, b, indices, model, strategy, cameras)
    seconds = {"match": matched - start, "verify": perf_counter() - matched}
    return Matches(indices, scores, geometry, a, b, seconds)


def _verify(
    a: Features,
    b: Features,
    indices: NDArray[np.intp],
    model: Model,
    strategy: Strategy,
    cameras: Cameras | None,
) -> Geometry:
    """Verify in the pixels that were looked at; the geometry returned is in original pixels.

    So the inlier threshold means the same for a photo of 2 and of 40 megapixels.
    """
    to_a, to_b = np.diag([a.scale, a.scale, 1.0]), np.diag([b.scale, b.scale, 1.0])
    original = None if cameras is None else check_cameras(cameras)
    looked_at = None if original is None else (to_a @ original[0], to_b @ original[1])
    found = verify(
        a.xy[indices[:, 0]] * a.scale,
        b.xy[indices[:, 1]] * b.scale,
        model,
        strategy.threshold,
        strategy.estimator,
        looked_at,
    )
    if found.model is None:
        return found
    if found.kind == "homography":
        matrix = np.linalg.inv(to_b) @ found.model @ to_a
        matrix = matrix / matrix[2, 2]
    elif found.kind == "fundamental":
        matrix = to_b @ found.model @ to_a
        matrix = matrix / np.linalg.norm(matrix)
    else:  # in units of the focal length: resizing does not change it
        matrix = found.model
    return Geometry(found.kind, matrix, found.inliers, original if found.cameras else None)
