"""When an image pair counts as matched: the rules, by name.

The paper follows the protocol of the WxBS paper, whose exact rule is not at hand. All readings of
it that we know are here, and the measurements are kept, so that any of them can be applied later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hardnet.bench.real_pairs import MAX_GRID_ERROR, MIN_CORRECT_INLIERS
from hardnet.bench.stereo.curves import THRESHOLDS
from hardnet.bench.stereo.measure import CORRECT_PIXELS
from hardnet.errors import HardnetError

AGREEMENT_PIXELS = 5
MIN_AGREEMENT = 0.5


@dataclass(frozen=True)
class Rule:
    """When a pair is matched.

    Attributes:
        name: what ``--rule`` takes.
        needed: so many inliers at least.
        counts: which inliers are counted, for the rule and for the mean of the table. Where
            nothing is known about a pair, all verified inliers are counted.
        geometry: whether the estimated geometry must be right as well.
        about: the rule in words.
    """

    name: str
    needed: int
    counts: Literal["correct_inliers", "inliers"]
    geometry: bool
    about: str

    def counted(self, row: Mapping[str, Any]) -> int:
        """The inliers of a row (a Measurement's fields) that this rule counts."""
        correct = row["correct_inliers"]
        return int(row["inliers"] if self.counts == "inliers" or correct is None else correct)

    def matched(self, row: Mapping[str, Any]) -> bool:
        """Whether a row (a Measurement's fields) is of a matched pair."""
        if self.counted(row) < self.needed:
            return False
        return not self.geometry or _geometry_is_right(row)


def _geometry_is_right(row: Mapping[str, Any]) -> bool:
    if row["agreement"] is not None:
        return bool(row["agreement"][THRESHOLDS.index(AGREEMENT_PIXELS)] >= MIN_AGREEMENT)
    if row["correct_inliers"] is None:
        return row["geometry"] is not None
    return row["grid_error"] is not None and row["grid_error"] <= MAX_GRID_ERROR


_CORRECT = f"inliers within {CORRECT_PIXELS:g} px of the ground truth"
RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "gt-15",
            MIN_CORRECT_INLIERS,
            "correct_inliers",
            False,
            f"at least {MIN_CORRECT_INLIERS} {_CORRECT}. An assumption: the exact rule of the "
            "paper's protocol is not known",
        ),
        Rule(
            "mods",
            15,
            "inliers",
            False,
            "at least 15 verified inliers, whether right or not: where MODS stops by default",
        ),
        Rule(
            "mods-deep",
            10,
            "inliers",
            False,
            "at least 10 verified inliers, whether right or not: MODS's settings for learned "
            "descriptors",
        ),
        Rule(
            "geometry",
            MIN_CORRECT_INLIERS,
            "correct_inliers",
            True,
            f"at least {MIN_CORRECT_INLIERS} {_CORRECT}, and the geometry is right: a homography "
            f"within {MAX_GRID_ERROR:g} px of the true one on average over the common part, a "
            f"fundamental matrix within {AGREEMENT_PIXELS} px (symmetric) of at least "
            f"{MIN_AGREEMENT:.0%} of the correspondences picked by hand",
        ),
    )
}


def by_name(name: str) -> Rule:
    """The rule called ``name``."""
    try:
        return RULES[name]
    except KeyError:
        raise HardnetError(f"no rule '{name}': choose one of {', '.join(RULES)}") from None
