"""The L2-Net objective by hand, against the whole matrix, and block by block."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from hardnet.learn.losses import distance_matrix, l2net, softmin


def unit(n: int, seed: int, dim: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)


def whole_matrix(
    a: torch.Tensor, p: torch.Tensor, anchor_swap: bool, same_patch: float
) -> torch.Tensor:
    """Two cross entropies over the matrix, copies left out of it."""
    distances = distance_matrix(a, p)
    copies = (distances < same_patch) & ~torch.eye(len(a), dtype=torch.bool)
    logits = (2 - distances).masked_fill(copies, -torch.inf)
    target = torch.arange(len(a))
    by_row = torch.nn.functional.cross_entropy(logits, target)
    if not anchor_swap:
        return by_row
    return (by_row + torch.nn.functional.cross_entropy(logits.T, target)) / 2


def test_by_hand() -> None:
    # Matches at distance 0, all else at sqrt 2: every share is 1 / (1 + 2 e^-sqrt 2).
    corners = torch.eye(3, dtype=torch.float64)
    expected = math.log(1 + 2 * math.exp(-math.sqrt(2)))
    assert l2net(corners, corners).item() == pytest.approx(expected, abs=1e-3)  # the epsilon of D


def test_of_two_pairs_is_softmin_of_rows_and_columns() -> None:
    a, p = unit(2, 1), unit(2, 2)
    d = distance_matrix(a, p)
    row = softmin(d.diagonal(), torch.stack([d[0, 1], d[1, 0]]))
    column = softmin(d.diagonal(), torch.stack([d[1, 0], d[0, 1]]))
    assert l2net(a, p, anchor_swap=False).item() == pytest.approx(row.item(), abs=1e-12)
    assert l2net(a, p).item() == pytest.approx((row + column).item() / 2, abs=1e-12)


def test_anchors_and_positives_are_alike_with_swap_only() -> None:
    a, p = unit(9, 3), unit(9, 4)
    assert l2net(a, p).item() == pytest.approx(l2net(p, a).item(), abs=1e-12)
    assert l2net(a, p, False).item() != pytest.approx(l2net(p, a, False).item(), abs=1e-6)


@pytest.mark.parametrize("block", [1, 8, 100])
@pytest.mark.parametrize("anchor_swap", [True, False])
@pytest.mark.parametrize("same_patch", [0.0, 1.2])
def test_blocks_give_the_loss_and_gradient_of_the_whole_matrix(
    block: int, anchor_swap: bool, same_patch: float
) -> None:
    a1, p1 = unit(20, 8).requires_grad_(), unit(20, 9).requires_grad_()
    a2, p2 = a1.detach().clone().requires_grad_(), p1.detach().clone().requires_grad_()
    whole = whole_matrix(a1, p1, anchor_swap, same_patch)
    blocks = l2net(a2, p2, anchor_swap, same_patch, block)
    whole.backward()
    blocks.backward()
    assert blocks.item() == pytest.approx(whole.item(), abs=1e-12)
    torch.testing.assert_close(a1.grad, a2.grad, atol=1e-12, rtol=0)
    torch.testing.assert_close(p1.grad, p2.grad, atol=1e-12, rtol=0)


def test_a_block_without_anything_for_a_column() -> None:
    """Rows that are all copies of a positive: their block adds nothing to its sum."""
    a, p = unit(4, 10), unit(4, 11)
    p[3] = a[0]
    a, p = a.requires_grad_(), p.requires_grad_()
    loss = l2net(a, p, block=1)
    loss.backward()
    assert loss.item() == pytest.approx(whole_matrix(a, p, True, 0.008).item(), abs=1e-12)
    assert torch.isfinite(a.grad).all()
    assert torch.isfinite(p.grad).all()
