"""What a teacher adds to the objective, against explicit loops and finite differences."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hardnet.learn.losses import Objective

from .test_objective import GUARD, PLAIN, batch, distance, length, seeded, unit


def slow_teacher_terms(
    a: torch.Tensor,
    p: torch.Tensor,
    teacher: tuple[torch.Tensor, torch.Tensor],
    cosine: float,
    distances: float,
    within: bool,
    anchor_swap: bool,
    same_patch: float,
) -> torch.Tensor:
    """Cosine of every vector, and the distances of every pair and of its hardest negative."""
    n, (ta, tp) = len(a), teacher
    total = a.sum() * 0
    for i in range(n):
        for own, taught in ((a[i], ta[i]), (p[i], tp[i])):
            total = total + cosine * (1 - (own * taught).sum()) / (2 * n)
        gaps = [distance(a[i], p[i]) - distance(ta[i], tp[i])]
        candidates = []
        for j in (j for j in range(n) if j != i):
            candidates.append((a[i], p[j], ta[i], tp[j]))
            if anchor_swap:
                candidates.append((a[j], p[i], ta[j], tp[i]))
            if within:
                candidates.append((a[i], a[j], ta[i], ta[j]))
            if within and anchor_swap:
                candidates.append((p[i], p[j], tp[i], tp[j]))
        candidates = [c for c in candidates if distance(c[0], c[1]).item() >= same_patch]
        if candidates:
            c = min(candidates, key=lambda c: distance(c[0], c[1]).item())
            gaps.append(distance(c[0], c[1]) - distance(c[2], c[3]))
        total = total + sum(distances * gap * gap / n for gap in gaps)
    return total


TAUGHT = pytest.mark.parametrize(
    ("changes", "cosine", "distances"),
    [
        ({}, 1.0, 0.0),
        ({}, 0.0, 1.0),
        ({"loss": "quadratic", "negatives": "all"}, 0.5, 2.0),
        ({"anchor_swap": False}, 0.3, 0.7),
        ({"anchor_swap": False, "negatives": "all", "same_patch": 0.0}, 0.3, 0.7),
        ({"regularizer": "lengths", "regularizer_weight": 0.1}, 0.4, 0.6),
        ({"same_patch": 1.9}, 0.4, 0.6),  # nobody has a negative
    ],
)


@TAUGHT
def test_teacher_terms_equal_explicit_loops(
    changes: dict[str, Any], cosine: float, distances: float
) -> None:
    cell = {**PLAIN, "same_patch": GUARD, **changes}
    weights = {"teacher_cosine": cosine, "teacher_distances": distances}
    taught, alone = Objective(**cell, **weights), Objective(**cell)
    teacher = unit(5, 21, 3), unit(5, 22, 3)
    fast, slow = (batch(scale=taught.any_length)[:2] for _ in range(2))
    terms = taught(*fast, None, seeded(), teacher)
    rest = alone(*slow, None, seeded())
    vectors = [torch.stack([x / length(x) for x in side]) for side in slow]
    if not taught.any_length:
        vectors = slow
    details = cell.get("negatives") == "all", cell["anchor_swap"], cell["same_patch"]
    expected = slow_teacher_terms(*vectors, teacher, cosine, distances, *details)
    assert terms.teacher is not None
    assert terms.teacher.item() == pytest.approx(expected.item(), abs=1e-12)
    assert terms.loss.item() == pytest.approx((rest.loss + expected).item(), abs=1e-12)
    torch.testing.assert_close(terms.negative, rest.negative)
    terms.loss.backward()
    (rest.loss + expected).backward()
    for x, y in zip(fast, slow, strict=True):
        torch.testing.assert_close(x.grad, y.grad, atol=1e-12, rtol=0)


@TAUGHT
def test_teacher_gradients_equal_finite_differences(
    changes: dict[str, Any], cosine: float, distances: float
) -> None:
    weights = {"teacher_cosine": cosine, "teacher_distances": distances}
    objective = Objective(**{**PLAIN, "same_patch": GUARD, **changes}, **weights)
    teacher = unit(5, 21, 3), unit(5, 22, 3)
    inputs = batch(scale=objective.any_length)[:2]
    assert torch.autograd.gradcheck(
        lambda a, p: objective(a, p, None, seeded(), teacher).loss, inputs
    )


def test_a_perfect_student_is_told_nothing() -> None:
    objective = Objective(**PLAIN, teacher_cosine=1.0, teacher_distances=1.0)
    a, p = unit(20, 1), unit(20, 2)
    assert objective(a, p, None, seeded(), (a, p)).teacher.item() == pytest.approx(0, abs=1e-12)
    away = objective(a, p, None, seeded(), (-a, -p)).teacher  # as far apart, and all wrong
    assert away.item() == pytest.approx(2.0)
