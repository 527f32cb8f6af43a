from __future__ import annotations

import pytest

from hardnet.errors import HardnetError
from hardnet.matching.strategy import MODS, Strategy


def test_the_matcher_of_mods() -> None:
    assert (MODS.neighbours, MODS.mutual, MODS.ratio, MODS.fginn) == ("flann", False, 0.8, 10)
    assert (MODS.duplicates, MODS.threshold, MODS.frame_check) == (2, 4, True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ratio": 0.0},
        {"ratio": 1.01},
        {"neighbours": "annoy"},
        {"estimator": "ransac"},
        {"fginn": 0.0},
        {"duplicates": -1.0},
        {"threshold": float("nan")},
        {"threshold": float("inf")},
    ],
)
def test_wrong_values_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(HardnetError, match=next(iter(wrong))):
        Strategy(**wrong)  # type: ignore[arg-type]
