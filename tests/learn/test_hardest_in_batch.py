"""The paper's loss against explicit loops, by hand, and at the edges of its domain."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from hardnet.learn.distances import EPSILON, distance_matrix, pair_distances  # noqa: E402
from hardnet.learn.losses import hardnet_loss, hardnet_loss_blockwise, triplet_margin  # noqa: E402
from hardnet.learn.sampling import (  # noqa: E402
    FAR,
    SAME_PATCH,
    hardest_in_batch,
    hardest_in_batch_blockwise,
)


def unit(n: int, seed: int, dim: int = 16, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator, dtype=dtype)
    return x / x.norm(dim=1, keepdim=True)


def loop_loss(a: torch.Tensor, p: torch.Tensor, margin: float = 1.0) -> float:
    """Equation 1, one scalar at a time."""
    n = len(a)

    def d(x: torch.Tensor, y: torch.Tensor) -> float:
        return math.sqrt(
            sum((float(u) - float(v)) ** 2 for u, v in zip(x, y, strict=True)) + EPSILON
        )

    total = 0.0
    for i in range(n):
        candidates = [d(a[i], p[j]) for j in range(n) if j != i]
        candidates += [d(a[k], p[i]) for k in range(n) if k != i]
        candidates = [c for c in candidates if c >= SAME_PATCH]
        if candidates:
            total += max(0.0, margin + d(a[i], p[i]) - min(candidates))
    return total / n


@pytest.mark.parametrize("n", [2, 3, 17])
@pytest.mark.parametrize("margin", [0.5, 1.0])
def test_equals_explicit_loops(n: int, margin: float) -> None:
    a, p = unit(n, 1), unit(n, 2)
    assert hardnet_loss(a, p, margin).item() == pytest.approx(loop_loss(a, p, margin), abs=1e-9)


def test_by_hand() -> None:
    # Angles on the circle: distance between two unit vectors is 2 sin(half the angle).
    def at(*degrees: float) -> torch.Tensor:
        t = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
        return torch.stack([t.cos(), t.sin()], 1)

    a, p = at(0, 90, 200), at(10, 80, 190)

    def chord(degrees: float) -> float:
        return 2 * math.sin(math.radians(degrees) / 2)

    # Pair 0: a0-p1 is 80 apart, a1-p0 is 80. Pair 1: the same two. Pair 2: p2-a1 is 100 apart,
    # a2-p1 is 120 and a2-p0 170.
    expected = [chord(80), chord(80), chord(100)]
    found = hardest_in_batch(distance_matrix(a, p))
    assert found.tolist() == pytest.approx(expected, abs=1e-5)
    loss = sum(max(0.0, 1 + chord(10) - e) for e in expected) / 3
    assert hardnet_loss(a, p).item() == pytest.approx(loss, abs=1e-5)


def test_hardest_is_searched_in_columns_too() -> None:
    distances = torch.tensor([[0.5, 1.2, 1.3], [0.9, 0.4, 1.1], [1.4, 1.0, 0.3]])
    # Row 0 alone would say 1.2; column 0 holds 0.9.
    assert hardest_in_batch(distances).tolist() == pytest.approx([0.9, 0.9, 1.0])


def test_margin_boundary() -> None:
    positive, negative = torch.tensor([0.2, 0.2]), torch.tensor([1.2, 1.1])
    assert triplet_margin(positive, negative).item() == pytest.approx(0.05)


def test_batch_of_one_has_no_negative_and_no_loss() -> None:
    a, p = unit(1, 3).requires_grad_(), unit(1, 4)
    for loss in (hardnet_loss(a, p), hardnet_loss_blockwise(a, p)):
        assert loss.item() == 0
        loss.backward()
        assert torch.isfinite(a.grad).all()


def test_copies_of_a_patch_are_not_negatives() -> None:
    a, p = unit(4, 5), unit(4, 6)
    a[1], p[1] = a[0], p[0]  # the same point under two names: a0-p1 equals a0-p0
    close = a.clone()
    p[0] = a[0]
    p[1] = a[0]
    found = hardest_in_batch(distance_matrix(close, p))
    assert (found[:2] > SAME_PATCH).all()
    assert hardnet_loss(a, p).item() == pytest.approx(loop_loss(a, p), abs=1e-9)
    assert hardnet_loss_blockwise(a, p).item() == pytest.approx(loop_loss(a, p), abs=1e-9)


def test_only_copies_gives_no_loss() -> None:
    a = unit(1, 7).repeat(3, 1)
    assert (hardest_in_batch(distance_matrix(a, a)) >= FAR).all()
    assert hardnet_loss(a, a).item() == 0
    assert hardnet_loss_blockwise(a, a).item() == 0


@pytest.mark.parametrize("block", [1, 3, 8, 100])
def test_blockwise_gives_same_loss_and_gradient(block: int) -> None:
    a1, p1 = unit(20, 8).requires_grad_(), unit(20, 9).requires_grad_()
    a2, p2 = a1.detach().clone().requires_grad_(), p1.detach().clone().requires_grad_()
    full, blocks = hardnet_loss(a1, p1), hardnet_loss_blockwise(a2, p2, block=block)
    full.backward()
    blocks.backward()
    assert blocks.item() == pytest.approx(full.item(), abs=1e-12)
    assert torch.allclose(a1.grad, a2.grad, atol=1e-12)
    assert torch.allclose(p1.grad, p2.grad, atol=1e-12)


def test_blockwise_never_builds_the_matrix() -> None:
    """The largest tensor it makes has block x n elements."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for item in out if isinstance(out, tuple | list) else (out,):
                if isinstance(item, torch.Tensor):
                    largest = max(largest, item.numel())
            return out

    a, p = unit(64, 10), unit(64, 11)
    with Watch():
        hardest_in_batch_blockwise(a, p, block=8)
    assert largest <= 64 * 16


def test_gradients_numerically() -> None:
    a, p = unit(5, 12, 6).requires_grad_(), unit(5, 13, 6).requires_grad_()
    assert torch.autograd.gradcheck(hardnet_loss, (a, p))
    assert torch.autograd.gradcheck(hardnet_loss_blockwise, (a, p))


def test_gradient_is_finite_for_identical_pairs() -> None:
    a = unit(3, 14).requires_grad_()
    loss = hardnet_loss(a, a.detach().clone())
    loss.backward()
    assert torch.isfinite(a.grad).all()


def test_pair_distances_are_the_diagonal() -> None:
    a, p = unit(6, 15), unit(6, 16)
    assert torch.allclose(pair_distances(a, p), distance_matrix(a, p).diagonal())
