"""The regularizers by hand, block by block, and where they have no slope."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from hardnet.learn.losses import (
    EPSILON,
    correlation_penalty,
    distance_matrix,
    length_difference,
    second_order_similarity,
)


def rows(*values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_by_hand() -> None:
    # Centred: (-1, -2), (1, 2). The products off the diagonal are 4 and 4, their norm sqrt 32.
    x = rows((0, 1), (2, 5))
    assert correlation_penalty(x).item() == pytest.approx(math.sqrt(32) / 2)


def test_uncorrelated_channels_cost_nothing_and_a_shift_neither() -> None:
    x = rows((1, 1), (1, -1), (-1, 1), (-1, -1))
    assert correlation_penalty(x).item() == 0
    assert correlation_penalty(x + 7).item() == pytest.approx(0, abs=1e-12)


def test_neither_signs_nor_the_batch_matter_but_the_variance_does() -> None:
    x = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    penalty = correlation_penalty(x).item()
    flipped = x * torch.tensor([1, -1, 1, -1])
    assert correlation_penalty(flipped).item() == pytest.approx(penalty)
    assert correlation_penalty(x.repeat(5, 1)).item() == pytest.approx(penalty)
    assert correlation_penalty(3 * x).item() == pytest.approx(9 * penalty)


@pytest.mark.parametrize("n", [1, 4])
def test_no_variation_no_slope(n: int) -> None:
    x = rows((0.6, 0.8)).repeat(n, 1).requires_grad_()
    penalty = correlation_penalty(x)
    penalty.backward()
    assert penalty.item() == 0
    assert x.grad.tolist() == [[0, 0]] * n


def at(*degrees: float) -> torch.Tensor:
    """Unit vectors at these angles of the circle."""
    t = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([t.cos(), t.sin()], 1)


def test_second_order_by_hand() -> None:
    # Anchors at 0, 60 and 180 degrees, positives at 0, 90 and 180. Chords: 60 -> 1, 90 -> sqrt 2,
    # 120 -> sqrt 3, 180 -> 2.
    a, p = at(0, 60, 180), at(0, 90, 180)
    gaps = {(0, 1): 1 - math.sqrt(2), (1, 2): math.sqrt(3) - math.sqrt(2), (0, 2): 0.0}
    all_of_them = [
        math.sqrt(sum(gap**2 for pair, gap in gaps.items() if i in pair)) for i in range(3)
    ]
    found = second_order_similarity(a, p)
    assert found.item() == pytest.approx(sum(all_of_them) / 3, abs=1e-4)
    # One neighbour each: 0-1 and 1-2 are near, 0-2 is nobody's nearest; its gap is 0 anyway.
    assert second_order_similarity(a, p, 1).item() == pytest.approx(found.item(), abs=1e-12)
    # Now a gap between points that are far apart, which no one sees with one neighbour.
    a, p = at(0, 10, 100, 110), at(0, 10, 130, 140)
    near = second_order_similarity(a, p, 1).item()
    assert near == pytest.approx(math.sqrt(EPSILON), abs=1e-6)
    assert second_order_similarity(a, p, 3).item() > 0.3


def test_second_order_is_zero_for_a_rotation_and_blocks_change_nothing() -> None:
    generator = torch.Generator().manual_seed(3)
    a, p = torch.nn.functional.normalize(
        torch.randn(2, 50, 6, dtype=torch.float64, generator=generator), dim=2
    )
    turn, _ = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64, generator=generator))
    assert second_order_similarity(a, a @ turn).item() == pytest.approx(EPSILON**0.5, abs=1e-9)
    whole = second_order_similarity(a, p, block=50)
    for block in (1, 7, 49):
        assert second_order_similarity(a, p, block=block) == whole
    everyone = distance_matrix(a, a) - distance_matrix(p, p)
    expected = (everyone.square().sum(1) + EPSILON).sqrt().mean()
    assert second_order_similarity(a, p, 49).item() == pytest.approx(expected.item(), abs=1e-12)


def test_length_difference_by_hand() -> None:
    a, p = rows((3, 4), (0, 1)), rows((0, 3), (0.6, 0.8))
    assert length_difference(a, p).item() == pytest.approx((5 - 3) ** 2 / 2)
    zero = rows((0, 0)).requires_grad_()
    length_difference(zero, rows((0, 1))).backward()
    assert zero.grad.tolist() == [[0, 0]]
