"""The samplings by hand, block by block, in bounded memory, and at the edges of their domain."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode

from hardnet.learn.losses import (
    SAME_PATCH,
    distance_matrix,
    hardest_in_batch,
    hardest_negatives,
    l2net,
    mined,
    only_negatives,
    pair_distances,
    random_in_batch,
    second_order_similarity,
)


def unit(n: int, seed: int, dim: int = 16, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator, dtype=dtype)
    return x / x.norm(dim=1, keepdim=True)


def at(*degrees: float) -> torch.Tensor:
    """Unit vectors at these angles of the circle."""
    t = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([t.cos(), t.sin()], 1)


def chord(degrees: float) -> float:
    """The distance of two unit vectors that are so far apart."""
    return 2 * math.sin(math.radians(degrees) / 2)


def hardest_in_batch_blockwise(
    a: torch.Tensor, p: torch.Tensor, *details: float, **more: float
) -> torch.Tensor:
    return hardest_negatives(a, p, *details, **more)(a, p)


def permutation(n: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def test_hardest_by_hand() -> None:
    a, p = at(0, 90, 200), at(10, 80, 190)
    # Pair 0: a0-p1 is 80 apart, a1-p0 is 80. Pair 1: the same two. Pair 2: p2-a1 is 100 apart,
    # a2-p1 is 120 and a2-p0 170.
    expected = [chord(80), chord(80), chord(100)]
    assert hardest_in_batch(distance_matrix(a, p)).tolist() == pytest.approx(expected, abs=1e-5)
    assert hardest_in_batch_blockwise(a, p).tolist() == pytest.approx(expected, abs=1e-5)
    # The anchors alone: a2 has nothing closer than p1.
    expected = [chord(80), chord(80), chord(120)]
    assert hardest_in_batch(distance_matrix(a, p), False).tolist() == pytest.approx(
        expected, abs=1e-5
    )
    assert hardest_in_batch_blockwise(a, p, False).tolist() == pytest.approx(expected, abs=1e-5)


def test_hardest_is_searched_in_columns_too() -> None:
    distances = torch.tensor([[0.5, 1.2, 1.3], [0.9, 0.4, 1.1], [1.4, 1.0, 0.3]])
    # Row 0 alone would say 1.2; column 0 holds 0.9.
    assert hardest_in_batch(distances).tolist() == pytest.approx([0.9, 0.9, 1.0])
    assert hardest_in_batch(distances, anchor_swap=False).tolist() == pytest.approx([1.2, 0.9, 1.0])


def test_on_a_tie_the_positive_keeps_its_negative() -> None:
    """Section 3.1: the anchor's negative only if it is strictly closer."""
    distances = torch.tensor([[0.1, 0.9], [0.9, 0.1]], requires_grad=True)
    hardest_in_batch(distances)[0].backward()
    assert distances.grad.tolist() == [[0, 0], [1, 0]]
    a = torch.tensor([[1.0, 0.0], [0.6, 0.8]]).requires_grad_()
    p = a.detach().clone().requires_grad_()  # d(a_0, p_1) is d(a_1, p_0) to the bit
    for found in (hardest_in_batch(distance_matrix(a, p)), hardest_in_batch_blockwise(a, p)):
        by_anchors, by_positives = torch.autograd.grad(found[0], (a, p))
        assert by_anchors[1].any()
        assert by_positives[0].any()
        assert not by_anchors[0].any()
        assert not by_positives[1].any()


def test_random_by_hand() -> None:
    a, p = at(0, 90, 200), at(10, 80, 190)
    seed = next(s for s in range(99) if permutation(3, s) == [1, 0, 2])
    for swap in (True, False):
        found = random_in_batch(a, p, torch.Generator().manual_seed(seed), swap)
        # Pairs 0 and 1 meet each other, 80 degrees apart both ways; pair 2 stays in its place.
        assert found[:2].tolist() == pytest.approx([chord(80)] * 2, abs=1e-5)
        assert found[2] == math.inf
    seed = next(s for s in range(99) if permutation(3, s) == [1, 2, 0])
    # a1-p2 is 100 apart, a2-p1 is 120; a2-p0 is 170 apart, a0-p2 too (360 - 190).
    found = random_in_batch(a, p, torch.Generator().manual_seed(seed), True)
    assert found.tolist() == pytest.approx([chord(80), chord(100), chord(170)], abs=1e-5)
    a, p = p, a  # now the positive has the closer one
    found = random_in_batch(a, p, torch.Generator().manual_seed(seed), True)
    assert found[1].item() == pytest.approx(chord(100), abs=1e-5)
    found = random_in_batch(a, p, torch.Generator().manual_seed(seed), False)
    assert found[1].item() == pytest.approx(chord(120), abs=1e-5)


def test_random_meets_every_other_pair_alike() -> None:
    """Seen from the gradient: a_0 is pulled towards each of the others, itself never."""
    a, p = unit(4, 1, 4), torch.eye(4, dtype=torch.float64)
    met = torch.zeros(4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        x = a.clone().requires_grad_()
        negative = random_in_batch(x, p, generator, anchor_swap=False)
        if negative[0].isfinite():
            negative[0].backward()
            met += (x.grad[0] != 0).float()
    assert met[0] == 0
    assert ((met[1:] - 100).abs() < 35).all()  # four standard deviations


def test_mined_by_hand() -> None:
    a, p, n = at(0, 90, 200), at(10, 80, 190), at(40, 135, 200)
    found = mined(a, p, n)
    # n2 is a copy of a2, so p2's distance to it is taken; p0 and a1 are closer than a0 and p1.
    assert found.tolist() == pytest.approx([chord(30), chord(45), chord(10)], abs=1e-5)
    found = mined(a, p, n, anchor_swap=False)
    assert found.tolist() == pytest.approx([chord(40), chord(45), math.inf], abs=1e-5)
    assert mined(a, p, n, same_patch=0)[2] < SAME_PATCH


def test_copies_of_a_patch_are_not_negatives() -> None:
    a, p = unit(4, 5), unit(4, 6)
    a[1] = p[0] = p[1] = a[0]  # the same point under two names
    for found in (hardest_in_batch(distance_matrix(a, p)), hardest_in_batch_blockwise(a, p)):
        assert (found > SAME_PATCH).all()
        assert found.isfinite().all()
    for found in (
        hardest_in_batch(distance_matrix(a, p), same_patch=0),
        hardest_in_batch_blockwise(a, p, same_patch=0),
    ):
        assert (found[:2] < SAME_PATCH).all()


def test_only_copies_and_a_single_pair_have_no_negative() -> None:
    generator = torch.Generator().manual_seed(0)
    for x in (unit(1, 7).repeat(3, 1), unit(1, 7)):
        assert hardest_in_batch(distance_matrix(x, x)).tolist() == [math.inf] * len(x)
        assert hardest_in_batch_blockwise(x, x).tolist() == [math.inf] * len(x)
        assert random_in_batch(x, x, generator).tolist() == [math.inf] * len(x)
        assert mined(x, x, x).tolist() == [math.inf] * len(x)


@pytest.mark.parametrize("block", [1, 7, 100])
@pytest.mark.parametrize("anchor_swap", [True, False])
@pytest.mark.parametrize("same_patch", [0.0, 1.1])
@pytest.mark.parametrize("within", [False, True])
def test_blockwise_gives_same_negative_and_gradient(
    block: int, anchor_swap: bool, same_patch: float, within: bool
) -> None:
    x = [unit(60, seed).requires_grad_() for seed in (8, 9)]
    y = [z.detach().clone().requires_grad_() for z in x]
    full = hardest_in_batch(distance_matrix(*x), anchor_swap, same_patch)
    for side in x[: within * (1 + anchor_swap)]:
        closest = only_negatives(distance_matrix(side, side), 0, same_patch).min(1).values
        assert (closest < full).any()
        full = torch.minimum(full, closest)
    assert same_patch == 0 or (full > same_patch).all()
    blocks = hardest_in_batch_blockwise(*y, anchor_swap, same_patch, block, within=within)
    weights = torch.arange(60.0)
    (full * weights).sum().backward()
    (blocks * weights).sum().backward()
    torch.testing.assert_close(full, blocks, atol=1e-12, rtol=0)
    for a, b in zip(x, y, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-12, rtol=0)


def test_within_by_hand() -> None:
    a, p = at(0, 30, 200), at(100, 170, 300)
    # Across: a0-p2 60, a2-p1 30 (pair 1 by its column, pair 2 by its row). Within: a0-a1 is 30.
    across = hardest_in_batch_blockwise(a, p)
    assert across.tolist() == pytest.approx([chord(60), chord(30), chord(30)], abs=1e-5)
    within = hardest_in_batch_blockwise(a, p, within=True)
    assert within.tolist() == pytest.approx([chord(30), chord(30), chord(30)], abs=1e-5)
    within = hardest_in_batch_blockwise(at(0, 0.1, 90), at(180, 200, 270), within=True)
    # a0 and a1 are copies: p0-p1 is 20 apart.
    assert within[:2].tolist() == pytest.approx([chord(20)] * 2, abs=1e-5)


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that was made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for item in out if isinstance(out, tuple | list) else (out,):
            if isinstance(item, torch.Tensor):
                self.numbers = max(self.numbers, item.numel())
        return out


@pytest.mark.parametrize(
    "loss",
    [
        lambda a, p, block: hardest_in_batch_blockwise(a, p, block=block).sum(),
        lambda a, p, block: hardest_in_batch_blockwise(a, p, block=block, within=True).sum(),
        lambda a, p, block: l2net(a, p, block=block),
        lambda a, p, block: random_in_batch(a, p, torch.Generator().manual_seed(3)).nan_to_num(
            posinf=0
        ),
    ],
    ids=["hardest", "within", "l2net", "random"],
)
def test_memory_is_bounded_by_the_block(
    loss: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor],
) -> None:
    n, dim, block = 256, 4, 16
    a, p = unit(n, 10, dim).requires_grad_(), unit(n, 11, dim).requires_grad_()
    with Largest() as watch:
        loss(a, p, block).sum().backward()
    assert 0 < watch.numbers <= block * n
    assert a.grad.abs().sum() > 0


def test_second_order_holds_no_matrix() -> None:
    n, dim, block = 512, 4, 16
    a, p = unit(n, 10, dim).requires_grad_(), unit(n, 11, dim).requires_grad_()
    with Largest() as watch:
        second_order_similarity(a, p, block=block).backward()
    assert watch.numbers <= 3 * 8 * n * dim  # the descriptors of all neighbours
    assert a.grad.abs().sum() > 0


def test_the_watch_sees_a_whole_matrix() -> None:
    a, p = unit(256, 10, 4), unit(256, 11, 4)
    with Largest() as watch:
        hardest_in_batch(distance_matrix(a, p))
    assert watch.numbers == 256 * 256


def test_pair_distances_are_the_diagonal() -> None:
    a, p = unit(6, 15), unit(6, 16)
    assert torch.allclose(pair_distances(a, p), distance_matrix(a, p).diagonal())


def test_gradient_is_finite_for_identical_pairs() -> None:
    a = unit(3, 14).requires_grad_()
    (pair_distances(a, a.detach()) - hardest_in_batch_blockwise(a, a.detach())).sum().backward()
    assert torch.isfinite(a.grad).all()
