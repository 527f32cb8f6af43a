"""How matches are found and verified: every choice, with its default, in one place."""

from __future__ import annotations

from dataclasses import dataclass

from hardnet.errors import HardnetError
from hardnet.matching.geometry import INLIER_PIXELS, Estimator
from hardnet.matching.neighbours import RATIO, Neighbours


def _choose(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise HardnetError(f"no {name} '{value}': choose {', '.join(known[:-1])} or {known[-1]}")


@dataclass(frozen=True)
class Strategy:
    """How matches are found and verified.

    All distances in pixels are in pixels of the images as they were looked at, that is after
    ``max_size`` of :func:`hardnet.extract`, so they mean the same for small and large photos.

    Attributes:
        neighbours: "exact" compares every descriptor with every other, in portions; "flann" and
            "faiss" look at a part of them: faster for very large sets, and some matches are missed.
        mutual: keep a match only if each of its descriptors is the nearest one of the other.
        ratio: keep a match only if it is nearer than this times the second neighbour; 1: off.
        symmetric: ask for the ratio in both directions.
        fginn: pixels; the second neighbour of the ratio test is the first one that lies farther
            than this from the nearest neighbour (first geometrically inconsistent neighbour), so a
            keypoint found twice does not reject itself. None: any second neighbour.
        duplicates: pixels; of matches that agree to this in both images, keep the best. None: all.
        estimator: "magsac" (MAGSAC++ of OpenCV) or "degensac" (DEGENSAC of pydegensac).
        threshold: pixels; how far a match may lie from where the geometry puts it.
        frame_check: drop inliers whose frames (size, shape, orientation) contradict the geometry.
        guided: look again for matches along the geometry that was found.
    """

    neighbours: Neighbours = "exact"
    mutual: bool = True
    ratio: float = RATIO
    symmetric: bool = False
    fginn: float | None = None
    duplicates: float | None = None
    estimator: Estimator = "magsac"
    threshold: float = INLIER_PIXELS
    frame_check: bool = False
    guided: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise HardnetError(f"ratio is {self.ratio}: give a number above 0 and up to 1")
        _choose("neighbours", self.neighbours, ("exact", "flann", "faiss"))
        _choose("estimator", self.estimator, ("magsac", "degensac"))
        for name in ("fginn", "duplicates", "threshold"):
            pixels = getattr(self, name)
            if pixels is not None and not 0 < pixels < float("inf"):
                raise HardnetError(f"{name} is {pixels}: give a number of pixels above 0")


MODS = Strategy(
    neighbours="flann",
    mutual=False,
    ratio=0.8,
    fginn=10.0,
    duplicates=2.0,
    threshold=4.0,
    frame_check=True,
)
"""The matcher of MODS, which the paper's stereo experiments use, without its view synthesis.

Its RANSAC is DEGENSAC: ``dataclasses.replace(MODS, estimator="degensac")`` if pydegensac is there.
"""
