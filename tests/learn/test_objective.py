"""Every cell of the grid sampling x loss x regularizer x details, against explicit loops.

The loops run on torch scalars, so that their gradient is a second, independent one; finite
differences are the third.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hardnet.errors import HardnetError
from hardnet.learn.losses import (
    EPSILON,
    LOSSES,
    NEGATIVES,
    REGULARIZERS,
    SAMPLINGS,
    Objective,
)

KEYS = ("sampling", "loss", "margin", "regularizer", "anchor_swap", "same_patch")
MORE = (*KEYS, "negatives", "regularizer_weight")
GUARD = 0.3
"""Of the grid. Wide enough to test with: differences are finite at 0.2, not where copies are."""

GRID: list[dict[str, Any]] = [
    dict(zip(KEYS, (sampling, *loss, *rest), strict=True))
    for sampling, loss, *rest in [
        *itertools.product(
            ("hardest", "random", "classical"),
            (("triplet", 1.0), ("softmin", 1.0), ("contrastive", 1.0), ("contrastive", 2.0)),
            ("none", "cpr"),
            (True, False),
            (GUARD, 0.0),
        ),
        *itertools.product(
            ("all",), (("l2net", 1.0),), ("none", "cpr"), (True, False), (GUARD, 0.0)
        ),
    ]
] + [
    dict(zip(MORE, (sampling, *loss, regularizer, swap, guard, *rest), strict=True))
    for sampling, loss, regularizer, swap, guard, *rest in [
        *itertools.product(
            ("hardest",),
            (("triplet", 0.5), ("quadratic", 1.0), ("hybrid", 1.2)),
            ("none", "sos", "lengths"),
            (True, False),
            (GUARD, 0.0),
            ("cross", "all"),
            (0.1,),
        ),
        *itertools.product(
            ("random", "classical"),
            (("quadratic", 1.0), ("hybrid", 1.2)),
            ("none",),
            (True, False),
            (GUARD, 0.0),
            ("cross",),
            (1.0,),
        ),
        ("classical", ("triplet", 1.0), "lengths", True, GUARD, "cross", 0.3),
        ("random", ("softmin", 1.0), "sos", True, 0.0, "cross", 2.0),
        ("all", ("l2net", 1.0), "sos", True, GUARD, "cross", 1.0),
        ("all", ("l2net", 1.0), "lengths", True, GUARD, "cross", 0.1),
        ("hardest", ("contrastive", 2.0), "cpr", True, GUARD, "all", 0.5),
    ]
]


def on_grid(share: int) -> pytest.MarkDecorator:
    """Every cell of the grid; of ``share`` cells one in the default suite."""
    cells = [
        pytest.param(cell, marks=pytest.mark.slow if k % share else ())
        for k, cell in enumerate(GRID)
    ]
    return pytest.mark.parametrize(
        "cell", cells, ids=["-".join(map(str, cell.values())) for cell in GRID]
    )


PLAIN: dict[str, Any] = dict(
    zip(KEYS, ("hardest", "triplet", 1.0, "none", True, 0.008), strict=True)
)


def unit(n: int, seed: int, dim: int = 16, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator, dtype=dtype)
    return x / x.norm(dim=1, keepdim=True)


def distance(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """sqrt(2 - 2 x.y) as section 3.1 has it, and the epsilon under the root."""
    product = sum(x[k] * y[k] for k in range(len(x)))
    return (2 - 2 * product + EPSILON).sqrt()


def negative_of(
    i: int,
    a: torch.Tensor,
    p: torch.Tensor,
    n: torch.Tensor | None,
    sampling: str,
    order: list[int],
    anchor_swap: bool,
    same_patch: float,
    negatives: str = "cross",
) -> torch.Tensor | None:
    """The distance of the negative of pair i; None if it has none."""
    if sampling == "hardest":
        candidates = [distance(a[i], p[j]) for j in range(len(a)) if j != i]
        if anchor_swap:
            candidates += [distance(a[k], p[i]) for k in range(len(a)) if k != i]
        if negatives == "all":
            candidates += [distance(a[i], a[j]) for j in range(len(a)) if j != i]
            if anchor_swap:
                candidates += [distance(p[i], p[j]) for j in range(len(a)) if j != i]
    elif sampling == "random":
        candidates = []
        if order[i] != i:
            candidates.append(distance(a[i], p[order[i]]))
            if anchor_swap:
                candidates.append(distance(a[order[i]], p[i]))
    else:
        assert n is not None
        candidates = [distance(a[i], n[i])]
        if anchor_swap:
            candidates.append(distance(p[i], n[i]))
    candidates = [c for c in candidates if c.item() >= same_patch]
    return min(candidates, key=lambda c: c.item()) if candidates else None


def loss_of(
    positive: torch.Tensor, negative: torch.Tensor | None, loss: str, margin: float
) -> torch.Tensor:
    """The loss of one pair; without a negative, the limit for one that is infinitely far."""
    zero = positive * 0
    if loss == "triplet":
        if negative is None or margin + positive.item() - negative.item() < 0:
            return zero
        return margin + positive - negative
    if loss == "quadratic":
        if negative is None or margin + positive.item() - negative.item() < 0:
            return zero
        return (margin + positive - negative) * (margin + positive - negative)
    if loss == "hybrid":
        if negative is None:
            return zero
        gap = margin + positive + positive * positive - negative - negative * negative
        return gap if gap.item() > 0 else zero
    if loss == "softmin":
        if negative is None:
            return zero
        up = (2 - positive).exp()
        return -(up / (up + (2 - negative).exp())).log()
    if negative is None or negative.item() > margin:
        return positive
    return positive + margin - negative


def softmax_loss(
    a: torch.Tensor, p: torch.Tensor, anchor_swap: bool, same_patch: float
) -> torch.Tensor:
    """L2-Net: -log of the match's share in its row, and in its column."""
    n = len(a)
    total = a.sum() * 0
    for i in range(n):
        own = (2 - distance(a[i], p[i])).exp()
        lines = [[distance(a[i], p[j]) for j in range(n) if j != i]]
        if anchor_swap:
            lines.append([distance(a[k], p[i]) for k in range(n) if k != i])
        for line in lines:
            others = sum((2 - d).exp() for d in line if d.item() >= same_patch)
            total = total - (own / (own + others)).log() / len(lines)
    return total / n


def correlation(x: torch.Tensor) -> torch.Tensor:
    """Frobenius norm of the off-diagonal of the centred products, by loops."""
    n, dim = x.shape
    mean = [sum(x[i, k] for i in range(n)) / n for k in range(dim)]
    squares = x.sum() * 0
    for k in range(dim):
        for m in range(dim):
            if k != m:
                entry = sum((x[i, k] - mean[k]) * (x[i, m] - mean[m]) for i in range(n))
                squares = squares + entry * entry
    return squares.sqrt() / n


def second_order(a: torch.Tensor, p: torch.Tensor, neighbours: int = 8) -> torch.Tensor:
    """SOSNet: the distances of neighbours should be those on the other side."""
    n = len(a)
    near: list[set[int]] = [set() for _ in range(n)]
    for x, y in ((a, a), (p, p), (a, p)):
        for i in range(n):
            others = sorted(
                (j for j in range(n) if j != i), key=lambda j: distance(x[i], y[j]).item()
            )
            for j in others[:neighbours]:
                near[i].add(j)
                near[j].add(i)
    total = a.sum() * 0
    for i in range(n):
        squares = a.sum() * 0
        for j in near[i]:
            squares = squares + (distance(a[i], a[j]) - distance(p[i], p[j])) ** 2
        total = total + (squares + EPSILON).sqrt()
    return total / n


def length(x: torch.Tensor) -> torch.Tensor:
    return (sum(x[k] * x[k] for k in range(len(x))) + 1e-10).sqrt()


def slow_objective(
    a: torch.Tensor,
    p: torch.Tensor,
    n: torch.Tensor | None,
    *,
    sampling: str,
    loss: str,
    margin: float,
    regularizer: str,
    anchor_swap: bool,
    same_patch: float,
    order: list[int],
    negatives: str = "cross",
    regularizer_weight: float = 1.0,
) -> torch.Tensor:
    """Everything ``Objective`` does, one scalar at a time; ``order``: of the random sampling."""
    penalty = a.sum() * 0
    if regularizer == "lengths":
        for x, y in zip(a, p, strict=True):
            penalty = penalty + (length(x) - length(y)) ** 2 / len(a)
        a, p, n = (
            torch.stack([x / length(x) for x in y]) if y is not None else None for y in (a, p, n)
        )
    if loss == "l2net":
        total = softmax_loss(a, p, anchor_swap, same_patch)
    else:
        values = []
        for i in range(len(a)):
            details = anchor_swap, same_patch, negatives
            negative = negative_of(i, a, p, n, sampling, order, *details)
            values.append(loss_of(distance(a[i], p[i]), negative, loss, margin))
        total = sum(values, start=a.sum() * 0) / len(a)
    if regularizer == "cpr":
        penalty = correlation(a)
    if regularizer == "sos":
        penalty = second_order(a, p)
    return total + regularizer_weight * penalty


def batch(n: int = 5, dim: int = 3, scale: bool = False) -> list[torch.Tensor]:
    """Anchors, positives and mined negatives, with copies that the guard has to find.

    p_1 lies within GUARD of a_0 (in batch), n_2 of a_2 and n_3 of p_3 (mined); n_0 and n_4 lie
    beyond it, but within every margin. With ``scale`` they are not of unit length.
    """
    a, p, n_ = unit(n, 1, dim), unit(n, 2, dim), unit(n, 3, dim)
    copies = [(p[1], a[0], 0.1), (n_[2], a[2], 0.1), (n_[3], p[3], 0.1)]
    for copy, original, noise in [*copies, (n_[0], p[0], 0.6), (n_[4], a[4], 0.6)]:
        near = original + noise * unit(1, 4, dim)[0]
        copy[:] = near / near.norm()
    if scale:
        for k, x in enumerate((a, p, n_)):
            x *= 0.5 + 2 * unit(n, 8 + k, dim)[:, :1].abs()
    return [x.requires_grad_() for x in (a, p, n_)]


def seeded(seed: int = 11) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def permutation(n: int, seed: int = 11) -> list[int]:
    order: list[int] = torch.randperm(n, generator=seeded(seed)).tolist()
    return order


def test_the_grid_is_whole() -> None:
    assert {cell["sampling"] for cell in GRID} == set(SAMPLINGS)
    assert {cell["loss"] for cell in GRID} == set(LOSSES)
    assert {cell["regularizer"] for cell in GRID} == set(REGULARIZERS)
    assert {cell.get("negatives") for cell in GRID} == {None, *NEGATIVES}


def test_the_batch_has_what_the_grid_is_about() -> None:
    a, p, n = batch()
    assert EPSILON**0.5 < distance(a[0], p[1]) < GUARD
    assert distance(a[2], n[2]) < GUARD
    assert distance(p[3], n[3]) < GUARD
    assert GUARD < distance(p[0], n[0]) < 1
    assert GUARD < distance(a[4], n[4]) < 1
    order = permutation(5)
    assert any(order[i] == i for i in range(5)), "a pair that the permutation leaves in its place"
    assert order[0] == 1, "the random sampling meets a copy"


@on_grid(5)
def test_loss_and_gradient_equal_explicit_loops(cell: dict[str, Any]) -> None:
    objective = Objective(**cell)
    fast, slow = (batch(scale=objective.any_length) for _ in range(2))
    third = objective.streams == 3
    terms = objective(fast[0], fast[1], fast[2] if third else None, seeded())
    expected = slow_objective(*slow, **cell, order=permutation(5))
    assert terms.loss.item() == pytest.approx(expected.item(), abs=1e-12)
    terms.loss.backward()
    expected.backward()
    for x, y in zip(fast[: objective.streams], slow, strict=False):
        assert x.grad.abs().sum() > 0
        torch.testing.assert_close(x.grad, y.grad, atol=1e-12, rtol=0)


@on_grid(13)
def test_gradient_equals_finite_differences(cell: dict[str, Any]) -> None:
    objective = Objective(**cell)
    inputs = batch(scale=objective.any_length)[: objective.streams]

    def loss(*x: torch.Tensor) -> torch.Tensor:
        return objective(x[0], x[1], x[2] if len(x) == 3 else None, seeded()).loss

    assert torch.autograd.gradcheck(loss, inputs)


@on_grid(13)
def test_terms_are_the_distances_compared(cell: dict[str, Any]) -> None:
    a, p, n = batch()
    objective = Objective(**cell)
    terms = objective(a, p, n if objective.streams == 3 else None, seeded())
    # Where all negatives are looked at, the hardest is reported.
    sampling = "hardest" if cell["sampling"] == "all" else cell["sampling"]
    details = cell["anchor_swap"], cell["same_patch"], cell.get("negatives", "cross")
    for i in range(len(a)):
        slow = negative_of(i, a, p, n, sampling, permutation(5), *details)
        assert terms.positive[i].item() == pytest.approx(distance(a[i], p[i]).item())
        assert terms.negative[i].item() == pytest.approx(2.0 if slow is None else slow.item())


@on_grid(13)
def test_one_pair(cell: dict[str, Any]) -> None:
    a, p, n = (unit(1, seed).requires_grad_() for seed in (1, 2, 3))
    objective = Objective(**cell)
    terms = objective(a, p, n if objective.streams == 3 else None, seeded())
    terms.loss.backward()
    assert all(torch.isfinite(x.grad).all() for x in (a, p))
    if cell["sampling"] != "classical":  # nothing to compare with; contrastive still pulls
        expected = terms.positive[0].item() if cell["loss"] == "contrastive" else 0.0
        if cell["regularizer"] == "sos":
            expected += cell["regularizer_weight"] * EPSILON**0.5  # of no neighbours
        assert terms.loss.item() == pytest.approx(expected)
        assert terms.negative.tolist() == [2.0]


@on_grid(13)
def test_collapsed_network(cell: dict[str, Any]) -> None:
    """All descriptors the same: copies are no negatives unless the guard is off."""
    n, floor = 4, EPSILON**0.5
    x = [unit(1, 7).repeat(n, 1).requires_grad_() for _ in range(3)]
    objective = Objective(**cell)
    order = permutation(n)
    terms = objective(x[0], x[1], x[2] if objective.streams == 3 else None, seeded())
    met = n if cell["sampling"] != "random" else sum(order[i] != i for i in range(n))
    if cell["same_patch"]:
        met = 0
    margin = cell["margin"]
    expected = {
        "triplet": margin * met / n,
        "softmin": math.log(2) * met / n,
        "contrastive": floor + (margin - floor) * met / n,
        "quadratic": margin * margin * met / n,
        "hybrid": margin * met / n,
        "l2net": math.log(n) if met else 0.0,
    }[cell["loss"]]
    if cell["regularizer"] == "sos":
        expected += cell["regularizer_weight"] * floor
    assert terms.loss.item() == pytest.approx(expected, abs=1e-6)
    terms.loss.backward()
    assert all(torch.isfinite(y.grad).all() for y in x[: objective.streams])


@on_grid(13)
def test_nan_descriptors_are_not_hidden(cell: dict[str, Any]) -> None:
    objective = Objective(**cell)
    for stream in range(objective.streams):
        x = [y.detach() for y in batch()]
        x[stream][3, 0] = math.nan
        third = x[2] if objective.streams == 3 else None
        assert math.isnan(objective(x[0], x[1], third, seeded()).loss)


@pytest.mark.parametrize("sampling", ["hardest", "random", "classical"])
@pytest.mark.parametrize("loss", ["triplet", "softmin", "contrastive"])
def test_float32_gives_the_same(sampling: str, loss: str) -> None:
    objective = Objective(**{**PLAIN, "sampling": sampling, "loss": loss})
    x = [unit(50, seed) for seed in (1, 2, 3)]
    both = [
        objective(y[0], y[1], y[2] if objective.streams == 3 else None, seeded()).loss.item()
        for y in (x, [z.float() for z in x])
    ]
    assert both[0] == pytest.approx(both[1], abs=1e-5)


@pytest.mark.parametrize("swap", [True, False])
def test_many_pairs_within_and_across(swap: bool) -> None:
    """More pairs than neighbours: who is one of the eight matters."""
    changes = {"loss": "quadratic", "regularizer": "sos", "negatives": "all", "anchor_swap": swap}
    cell = {**PLAIN, **changes}
    fast, slow = ([unit(16, s, 4).requires_grad_() for s in (1, 2)] for _ in range(2))
    found = Objective(**cell)(*fast, None, seeded()).loss
    expected = slow_objective(*slow, None, **cell, order=[])
    assert found.item() == pytest.approx(expected.item(), abs=1e-12)
    found.backward()
    expected.backward()
    for x, y in zip(fast, slow, strict=True):
        torch.testing.assert_close(x.grad, y.grad, atol=1e-12, rtol=0)


def test_random_follows_the_generator_and_only_it() -> None:
    objective = Objective(**{**PLAIN, "sampling": "random"})
    a, p = unit(30, 1), unit(30, 2)
    first, again, other = (objective(a, p, None, seeded(s)).loss for s in (1, 1, 2))
    assert first == again != other
    generator, state = seeded(1), seeded(1).get_state()
    Objective(**PLAIN)(a, p, None, generator)
    assert torch.equal(generator.get_state(), state)


def test_streams() -> None:
    for sampling, streams in (("hardest", 2), ("random", 2), ("classical", 3)):
        assert Objective(**{**PLAIN, "sampling": sampling}).streams == streams
    objective = Objective(**{**PLAIN, "sampling": "classical"})
    with pytest.raises(ValueError, match="mined"):
        objective(unit(3, 1), unit(3, 2), None, seeded())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": "tripet"}, "loss: unknown name 'tripet'; did you mean triplet?"),
        ({"loss": "softmax"}, "did you mean softmin?"),
        ({"sampling": "hardest-in-batch"}, "did you mean hardest?"),
        ({"regularizer": "CPR"}, "did you mean cpr?"),
        ({"regularizer": "xyz"}, "regularizer: unknown name 'xyz'; known: none, cpr, sos"),
        ({"negatives": "al"}, "negatives: unknown name 'al'; did you mean all?"),
        ({"negatives": "all", "sampling": "random"}, "negatives=all is for sampling=hardest"),
        ({"loss": "hybird"}, "did you mean hybrid?"),
        ({"regularizer": "length"}, "did you mean lengths?"),
        ({"regularizer_weight": -1.0}, "regularizer_weight must not be negative"),
        ({"teacher_cosine": -1.0}, "teacher_cosine must not be negative"),
        ({"teacher_distances": math.inf}, "teacher_distances must not be negative"),
        ({"teacher_cosine": 1.0, "sampling": "random"}, "use sampling=hardest, not random"),
        ({"loss": "l2net"}, "use sampling=all, not hardest"),
        ({"sampling": "all"}, "loss triplet takes one negative per pair"),
        ({"margin": 0.0}, "margin must be positive, got 0.0"),
        ({"margin": math.nan}, "margin must be positive"),
        ({"margin": math.inf}, "margin must be positive"),
        ({"same_patch": -0.1}, "same_patch"),
        ({"same_patch": 2.0}, "same_patch"),
    ],
)
def test_errors_name_the_key_and_the_fix(change: dict[str, Any], message: str) -> None:
    with pytest.raises(HardnetError) as error:
        Objective(**{**PLAIN, **change})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
