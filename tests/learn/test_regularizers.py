"""The correlation penalty by hand and where it has no slope."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from hardnet.learn.regularizers import correlation_penalty  # noqa: E402


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


def test_the_sign_of_the_correlation_does_not_matter() -> None:
    x = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    flipped = x * torch.tensor([1, -1, 1, -1])
    assert correlation_penalty(x).item() == pytest.approx(correlation_penalty(flipped).item())


def test_is_not_normalised_by_the_variance() -> None:
    x = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert correlation_penalty(3 * x).item() == pytest.approx(9 * correlation_penalty(x).item())


def test_does_not_grow_with_the_batch() -> None:
    x = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert correlation_penalty(x.repeat(5, 1)).item() == pytest.approx(
        correlation_penalty(x).item()
    )


@pytest.mark.parametrize("n", [1, 4])
def test_no_variation_no_slope(n: int) -> None:
    x = rows((0.6, 0.8)).repeat(n, 1).requires_grad_()
    penalty = correlation_penalty(x)
    penalty.backward()
    assert penalty.item() == 0
    assert x.grad.tolist() == [[0, 0]] * n
