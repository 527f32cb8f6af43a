"""The losses by hand, against the formulas as published, and at the edges of their domain."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hardnet.errors import HardnetError
from hardnet.learn.losses import (
    PAIR_LOSSES,
    Objective,
    contrastive,
    gradient_magnitudes,
    hardnet_loss,
    hybrid,
    pair_loss,
    quadratic,
    softmin,
    triplet_margin,
)


def values(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_triplet_by_hand() -> None:
    # max(0, 1 + 0.2 - 1.2), max(0, 1 + 0.2 - 1.1), max(0, 1 + 0.1 - 1.9)
    loss = triplet_margin(values(0.2, 0.2, 0.1), values(1.2, 1.1, 1.9))
    assert loss.item() == pytest.approx((0 + 0.1 + 0) / 3)
    loss = triplet_margin(values(0.2, 0.2), values(1.2, 0.5), margin=0.5)
    assert loss.item() == pytest.approx((0 + 0.2) / 2)


def test_softmin_by_hand() -> None:
    # Equal distances: the odds are even. A negative log 3 further away: one to three.
    loss = softmin(values(0.7, 0.2), values(0.7, 0.2 + math.log(3)))
    assert loss.item() == pytest.approx((math.log(2) + math.log(4 / 3)) / 2)


def test_softmin_is_the_published_formula() -> None:
    positive, negative = torch.rand(2, 500, dtype=torch.float64, generator=generator()) * 2
    up, down = (2 - positive).exp(), (2 - negative).exp()
    assert softmin(positive, negative).item() == pytest.approx(
        -(up / (up + down)).log().mean().item(), abs=1e-14
    )
    published = -(up / (up + down + 1e-8)).log().mean().item()
    assert abs(softmin(positive, negative).item() - published) < 1e-8


def test_softmin_does_not_overflow() -> None:
    positive = torch.tensor([1e4, 0.0]).requires_grad_()
    loss = softmin(positive, torch.tensor([0.0, 1e4]))
    loss.backward()
    assert loss.item() == pytest.approx(5e3)
    assert positive.grad.tolist() == pytest.approx([0.5, 0])


def test_contrastive_by_hand() -> None:
    # 0.2 + max(0, 1 - 1.2), 0.3 + max(0, 1 - 0.9)
    positive, negative = values(0.2, 0.3), values(1.2, 0.9)
    assert contrastive(positive, negative).item() == pytest.approx((0.2 + 0.4) / 2)
    # With margin 2 all count: 0.2 + 0.8, 0.3 + 1.1
    assert contrastive(positive, negative, margin=2).item() == pytest.approx((1.0 + 1.4) / 2)


def test_quadratic_by_hand() -> None:
    # 1 + 0.5 - 0.9 = 0.6 and 1 + 0.1 - 1.6 < 0.
    assert quadratic(values(0.5, 0.1), values(0.9, 1.6)).item() == pytest.approx(0.36 / 2)
    assert quadratic(values(0.5, 0.1), values(0.9, 1.6), 0.5).item() == pytest.approx(0.01 / 2)


def test_hybrid_by_hand() -> None:
    # s(0.5) = 0.75, s(0.9) = 1.71, s(0.1) = 0.11, s(1.6) = 4.16.
    assert hybrid(values(0.5, 0.1), values(0.9, 1.6)).item() == pytest.approx(0.24 / 2)
    assert hybrid(values(0.5, 0.1), values(0.9, 1.6), 2.0).item() == pytest.approx(1.04 / 2)


@pytest.mark.parametrize("name", PAIR_LOSSES)
def test_a_pair_without_negative_is_not_pushed(name: str) -> None:
    positive = values(0.5).requires_grad_()
    negative = values(math.inf).requires_grad_()
    loss = pair_loss(name, 1.0)(positive, negative)
    loss.backward()
    pulled = 1.0 if name == "contrastive" else 0.0
    assert loss.item() == pytest.approx(0.5 * pulled)
    assert positive.grad.tolist() == [pulled]
    assert negative.grad.tolist() == [0]


def test_names() -> None:
    one = values(0.4), values(0.9)
    assert pair_loss("triplet", 0.7)(*one).item() == pytest.approx(0.2)
    assert pair_loss("contrastive", 1.5)(*one).item() == pytest.approx(1.0)
    assert pair_loss("softmin", 9.0)(*one) == softmin(*one)
    assert pair_loss("quadratic", 0.7)(*one).item() == pytest.approx(0.04)
    assert pair_loss("hybrid", 1.2)(*one) == hybrid(*one)
    with pytest.raises(HardnetError, match="l2net"):
        pair_loss("l2net", 1.0)


@pytest.mark.parametrize("margin", [0.5, 1.0])
def test_the_papers_three_steps_are_the_default_objective(margin: float) -> None:
    a, p = (torch.nn.functional.normalize(x) for x in torch.randn(2, 40, 8, generator=generator()))
    objective = Objective(
        sampling="hardest",
        loss="triplet",
        margin=margin,
        regularizer="none",
        anchor_swap=True,
        same_patch=0.008,
    )
    found = objective(a, p, None, generator()).loss.item()
    assert found == pytest.approx(hardnet_loss(a, p, margin).item(), abs=1e-6)
    assert found > 0.1


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


P, N = np.linspace(0.03, 1.97, 8), np.linspace(0.05, 1.9, 13)  # off the kinks
POSITIVE, NEGATIVE = np.meshgrid(P, N, indexing="ij")


@pytest.mark.parametrize("margin", [0.5, 1.0])
def test_gradient_of_triplet(margin: float) -> None:
    active = margin + POSITIVE - NEGATIVE > 0
    assert 0 < active.sum() < active.size
    for found in gradient_magnitudes("triplet", margin, P, N):
        np.testing.assert_allclose(found, active.astype(float), atol=1e-12)


def test_gradient_of_softmin() -> None:
    expected = 1 / (1 + np.exp(NEGATIVE - POSITIVE))
    for found in gradient_magnitudes("softmin", 1.0, P, N):
        np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("margin", [1.0, 2.0])
def test_gradient_of_contrastive(margin: float) -> None:
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
