"""The ways to search: which stages run, with which parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hardnet.errors import HardnetError
from hardnet.retrieval.ranking.scoring import Scoring
from hardnet.retrieval.verification.spatial import Verification

Expansion = Literal["average", "hqe"]


@dataclass(frozen=True)
class Mode:
    """How to search; the names and values are those of the papers.

    Attributes:
        scoring: how images are scored; with ``expansion``, in the second pass.
        verification: the best images are verified by geometry and re-ranked by their inliers.
        expansion: what the first pass finds extends the query of a second one. "average": the
            word vectors of the images that are verified for sure (``Verification.is_sure``) are
            averaged with the query's (Chum et al. 2007).
            "hqe": the signatures of reliable images are joined per word (Tolias and Jegou 2014).
        first: how images are scored in the first pass, where that differs.
        shortlist: hqe: so many of the best images may be reliable.
        h_t_strict: hqe: correspondences of at most this Hamming distance count for reliability.
        reliable: hqe: an image with so many of them is reliable. With ``verification``, an image
            that is verified for sure is reliable instead, and of it only what lies in the region
            that the query asks for.
        alpha: hqe: new words, as a share of the words of the query.
        seed: hqe: of bits that are undecided.
    """

    scoring: Scoring
    verification: Verification | None = None
    expansion: Expansion | None = None
    first: Scoring | None = None
    shortlist: int = 100
    h_t_strict: int = 32
    reliable: int = 5
    alpha: float = 0.5
    seed: int = 0


_BOW = Scoring(method="bow", ma=1)
_HE = Scoring(method="he")
_HQE_FIRST = Scoring(method="he", idf=False, normalise=False)

MODES: dict[str, Mode] = {
    "bow": Mode(_BOW),
    "bow+sv": Mode(_BOW, Verification()),
    "bow+qe": Mode(_BOW, Verification(), "average"),
    "he": Mode(_HE),
    "he+sv": Mode(_HE, Verification()),
    "hqe": Mode(_HE, None, "hqe", _HQE_FIRST),
    "hqe+sv": Mode(_HE, Verification(), "hqe", _HQE_FIRST),
}
"""By name: bag of words or Hamming embedding (he), spatial verification (sv), query expansion."""

DEFAULT_MODE = "he+sv"
"""What a search uses if it is not told: the best on the first 100 photos of UKBench.

With 8192 words of other photos (1024 keypoints of at most 1024 pixels) its mAP was 0.9995 and its
N-S score 3.99; bow 0.980, bow+sv 0.996, bow+qe 0.996, he 0.999, hqe 0.965, hqe+sv 0.997. With four
photos of each object there is little to expand a query with, and much to expand it wrongly.
"""


def mode_named(mode: str | Mode) -> Mode:
    """A mode by its name, or as it is."""
    if isinstance(mode, Mode):
        return mode
    if mode not in MODES:
        raise HardnetError(f"no mode '{mode}': choose {', '.join(MODES)}")
    return MODES[mode]
