"""How pairs are matched: everything that is the same for all descriptors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from hardnet.errors import HardnetError
from hardnet.features import KEYPOINTS, MAX_SIZE
from hardnet.matching.matches import MODS, Strategy
from hardnet.patchsets.image_pairs import ImagePair

PairModel = Literal["by-truth", "homography", "fundamental"]
MODELS: tuple[PairModel, ...] = ("by-truth", "homography", "fundamental")
STRATEGIES: Mapping[str, Strategy] = {
    "default": Strategy(),
    "mods": MODS,
    "mods-degensac": replace(MODS, estimator="degensac"),
}
"""What ``--strategy`` takes; "mods-degensac" needs pydegensac."""


@dataclass(frozen=True)
class Protocol:
    """What happens to every pair.

    Attributes:
        keypoints: budget per image and detector.
        max_size: larger images are shrunk to this longer side before detection.
        upright: no frame is turned.
        model: the geometry that is fitted; "by-truth": a homography where the ground truth is one,
            a fundamental matrix where it is correspondences, either where there is none.
        strategy: how matches are found and verified.
    """

    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    upright: bool = False
    model: PairModel = "by-truth"
    strategy: Strategy = field(default_factory=Strategy)

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise HardnetError(f"no model '{self.model}': choose one of {', '.join(MODELS)}")

    def geometry_of(self, pair: ImagePair) -> Literal["auto", "homography", "fundamental"]:
        """The ``model`` that ``hardnet.match`` is given for a pair."""
        if self.model != "by-truth":
            return self.model
        if pair.truth == "none":
            return "auto"
        return "homography" if pair.truth == "homography" else "fundamental"

    def settings(self) -> dict[str, Any]:
        """All choices as JSON values."""
        return asdict(self)


def strategy_by_name(name: str, ratio: float | None = None) -> Strategy:
    """A strategy of :data:`STRATEGIES`, with another ratio if one is given."""
    if name not in STRATEGIES:
        raise HardnetError(f"no strategy '{name}': choose one of {', '.join(STRATEGIES)}")
    chosen = STRATEGIES[name]
    return chosen if ratio is None else replace(chosen, ratio=ratio)
