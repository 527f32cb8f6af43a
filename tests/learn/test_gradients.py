"""The gradient magnitudes against the derivatives one writes down by hand."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from hardnet.errors import HardnetError
from hardnet.learn.objective import gradient_magnitudes

P, N = np.linspace(0.03, 1.97, 8), np.linspace(0.05, 1.9, 13)  # off the kinks
POSITIVE, NEGATIVE = np.meshgrid(P, N, indexing="ij")


@pytest.mark.parametrize("margin", [0.5, 1.0])
def test_triplet(margin: float) -> None:
    active = margin + POSITIVE - NEGATIVE > 0
    assert 0 < active.sum() < active.size
    for found in gradient_magnitudes("triplet", margin, P, N):
        np.testing.assert_allclose(found, active.astype(float), atol=1e-12)


def test_softmin() -> None:
    expected = 1 / (1 + np.exp(NEGATIVE - POSITIVE))
    for found in gradient_magnitudes("softmin", 1.0, P, N):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("margin", [1.0, 2.0])
def test_contrastive(margin: float) -> None:
    pull, push = gradient_magnitudes("contrastive", margin, P, N)
    np.testing.assert_allclose(pull, 1, atol=1e-12)
    np.testing.assert_allclose(push, (margin > NEGATIVE).astype(float), atol=1e-12)


def test_what_the_papers_figure_claims() -> None:
    """Section 4.2 and the caption of its figure."""
    soft = gradient_magnitudes("softmin", 1.0, [0.5], [0.5, 1.0, 1.5])[1][0]
    assert soft[0] > soft[1] > soft[2]  # decreases where d(a, n) > d(a, p) ...
    assert (gradient_magnitudes("triplet", 1.0, [0.5], [0.5, 1.0, 1.4])[1] == 1).all()
    # ... and the triplet margin and the wide contrastive loss agree on most of the square.
    grid = np.linspace(0.01, 1.99, 60)
    triplet, wide = (
        gradient_magnitudes(name, margin, grid, grid)[1]
        for name, margin in (("triplet", 1.0), ("contrastive", 2.0))
    )
    assert (triplet == wide).mean() == pytest.approx(7 / 8, abs=0.02)


def test_l2net_is_no_function_of_two_distances() -> None:
    with pytest.raises(HardnetError, match="l2net"):
        gradient_magnitudes("l2net", 1.0, P, N)
