from __future__ import annotations

import numpy as np
import pytest

from hardnet.bench.hpatches.protocol import pooled_scores
from hardnet.bench.metrics import (
    PooledRanking,
    align,
    average_precision_at_hits,
    average_precision_trapezoid,
    cumulated,
    fdr_at_recall,
    fpr_at_recall,
    interval,
    mean_interval,
    multiplicities,
    precision_recall,
    roc_auc,
    rotation_angle,
)


def fpr_loop(distances, labels, recall, ties):
    """Raise the threshold through every distance until enough true pairs are accepted."""
    positives = sum(labels)
    for threshold in sorted(distances):
        found = sum(1 for d, m in zip(distances, labels, strict=True) if m and d <= threshold)
        if found >= recall * positives - 1e-9:
            break
    wrong = 0
    for d, m in zip(distances, labels, strict=True):
        if not m and (d < threshold or (ties == "within" and d == threshold)):
            wrong += 1
    return wrong / (len(labels) - positives)


def ap_loops(distances, correct, positives):
    """Both average precisions, threshold by threshold."""
    trapezoid = hits_area = 0.0
    last_recall, last_precision = 0.0, 1.0
    for threshold in sorted(set(distances)):
        accepted = [c for d, c in zip(distances, correct, strict=True) if d <= threshold]
        precision, recall = sum(accepted) / len(accepted), sum(accepted) / positives
        trapezoid += (recall - last_recall) * (precision + last_precision) / 2
        hits_area += (recall - last_recall) * precision
        last_recall, last_precision = recall, precision
    return trapezoid, hits_area


def test_fpr_of_a_batch_computed_by_hand():
    # 20 true pairs at 1..20: 19 of them are needed, so the threshold is 19.
    distances = [*range(1, 21), 3.5, 18.5, 19, 19.5, 40]
    labels = [1] * 20 + [0] * 5
    assert fpr_at_recall(distances, labels) == 3 / 5
    assert fpr_at_recall(distances, labels, ties="before") == 2 / 5
    assert fpr_at_recall(distances, labels) == 3 / 5
    assert fpr_at_recall(distances, labels, recall=1.0) == 4 / 5


@pytest.mark.parametrize("ties", ["within", "before"])
@pytest.mark.parametrize("recall", [0.5, 0.8, 0.95, 1.0])
def test_fpr_equals_the_explicit_loop(ties, recall):
    rng = np.random.default_rng(0)
    for size in (5, 40, 101):
        distances = rng.integers(0, 12, size).astype(float)  # many ties
        labels = rng.random(size) < 0.5
        labels[:2] = True, False
        expected = fpr_loop(distances.tolist(), labels.tolist(), recall, ties)
        assert fpr_at_recall(distances, labels, recall, ties) == pytest.approx(expected)


def test_a_collapsed_descriptor_gets_the_worst_fpr():
    assert fpr_at_recall(np.zeros(10), [1, 0] * 5) == 1.0
    assert fpr_at_recall(np.zeros(10), [1, 0] * 5, ties="before") == 0.0


@pytest.mark.parametrize(
    ("distances", "labels", "message"),
    [
        ([1.0, np.nan], [1, 0], "NaN"),
        ([1.0, 2.0], [1, 1], "both kinds"),
        ([1.0, 2.0, 3.0], [1, 0], "two"),
    ],
)
def test_fpr_refuses_what_has_no_answer(distances, labels, message):
    with pytest.raises(ValueError, match=message):
        fpr_at_recall(distances, labels)


def test_average_precision_computed_by_hand():
    # ranks: right, wrong, right, wrong; 4 positives exist, 2 are found at precision 1 and 2/3.
    distances, correct = [0.1, 0.2, 0.3, 0.4], [1, 0, 1, 0]
    assert average_precision_at_hits(distances, correct, 4) == pytest.approx((1 + 2 / 3) / 4)
    # trapezoids: (0,1)-(1/4,1), then from precision 1/2 to 2/3 over another quarter of recall
    expected = 0.25 * 1 + 0.25 * (1 / 2 + 2 / 3) / 2
    assert average_precision_trapezoid(distances, correct, 4) == pytest.approx(expected)
    assert average_precision_at_hits(distances, correct) == pytest.approx((1 + 2 / 3) / 2)


def test_average_precision_with_all_distances_equal():
    correct = [1, 0, 0, 1]
    assert average_precision_at_hits(np.ones(4), correct, 4) == pytest.approx(2 / 4 * 2 / 4)
    assert average_precision_trapezoid(np.ones(4), correct, 4) == pytest.approx(0.5 * 1.5 / 2)


def test_average_precision_equals_the_explicit_loop_and_ignores_the_order_of_ties():
    rng = np.random.default_rng(1)
    for levels in (4, 1000):
        distances = rng.integers(0, levels, 60).astype(float)
        correct = rng.random(60) < 0.4
        trapezoid, hits = ap_loops(distances.tolist(), correct.tolist(), 60)
        shuffle = rng.permutation(60)
        for order in (slice(None), shuffle):
            assert average_precision_trapezoid(
                distances[order], correct[order], 60
            ) == pytest.approx(trapezoid)
            assert average_precision_at_hits(distances[order], correct[order], 60) == pytest.approx(
                hits
            )


def test_average_precision_without_any_answer_or_hit_is_zero():
    for metric in (average_precision_trapezoid, average_precision_at_hits):
        assert metric([], [], 5) == 0.0
        assert metric([0.5, 0.6], [0, 0], 5) == 0.0
        assert metric([0.5, 0.6], [1, 1], 2) == 1.0


def test_more_hits_than_positives_is_an_error():
    with pytest.raises(ValueError, match="positives"):
        precision_recall([1.0, 2.0], [1, 1], 1)


def auc_loop(distances, labels):
    """Every true pair against every false pair."""
    true = [d for d, m in zip(distances, labels, strict=True) if m]
    false = [d for d, m in zip(distances, labels, strict=True) if not m]
    won = sum((t < f) + (t == f) / 2 for t in true for f in false)
    return won / (len(true) * len(false))


def test_fdr_of_a_batch_computed_by_hand():
    # 20 true pairs at 1..20: the threshold is 19, where 19 true pairs are accepted.
    distances = [*range(1, 21), 3.5, 18.5, 19, 19.5, 40]
    labels = [1] * 20 + [0] * 5
    assert fdr_at_recall(distances, labels) == 3 / (3 + 19)
    assert fdr_at_recall(distances, labels, ties="before") == 2 / (2 + 19)
    assert fdr_at_recall(distances, labels, recall=1.0) == 4 / (4 + 20)


def test_fdr_of_tied_true_pairs_counts_all_that_are_accepted():
    # 3 true pairs, 2 are needed for a recall of 0.5; two are tied at 2 and accepted together.
    assert fdr_at_recall([1, 2, 2, 2, 9], [1, 1, 1, 0, 0], recall=0.5) == 1 / (1 + 3)
    assert fdr_at_recall(np.zeros(10), [1, 0] * 5) == 0.5


def test_fdr_refuses_what_has_no_answer():
    with pytest.raises(ValueError, match="both kinds"):
        fdr_at_recall([1.0, 2.0], [0, 0])
    with pytest.raises(ValueError, match="recall"):
        fdr_at_recall([1.0, 2.0], [1, 0], recall=0.0)


def test_auc_computed_by_hand():
    # true 1, 3 against false 2, 3, 4: won 3 + (0 + 1/2 + 1) of 6
    assert roc_auc([1, 3, 2, 3, 4], [1, 1, 0, 0, 0]) == pytest.approx(4.5 / 6)
    assert roc_auc([1, 2, 3, 4], [1, 1, 0, 0]) == 1.0
    assert roc_auc([1, 2, 3, 4], [0, 0, 1, 1]) == 0.0
    assert roc_auc(np.ones(9), [1, 0, 0] * 3) == 0.5
    with pytest.raises(ValueError, match="both kinds"):
        roc_auc([1.0, 2.0], [1, 1])


@pytest.mark.parametrize("levels", [3, 10, 10_000])
def test_auc_equals_the_explicit_loop(levels):
    rng = np.random.default_rng(levels)
    distances = rng.integers(0, levels, 90).astype(np.float32)
    labels = rng.random(90) < 0.3
    labels[:2] = True, False
    assert roc_auc(distances, labels) == pytest.approx(auc_loop(distances.tolist(), labels))


@pytest.mark.slow  # the import takes two seconds, and the loops above say the same
@pytest.mark.parametrize("levels", [5, 100_000])
def test_scikit_learn_agrees(levels):
    sklearn = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(levels)
    for size in (30, 3000):
        labels = rng.random(size) < 0.4
        labels[:2] = True, False
        distances = rng.integers(0, levels, size) + np.where(labels, 0, levels // 5)
        assert roc_auc(distances, labels) == pytest.approx(
            sklearn.roc_auc_score(labels, -distances)
        )
        assert average_precision_at_hits(distances, labels) == pytest.approx(
            sklearn.average_precision_score(labels, -distances)
        )
        fpr, tpr, _ = sklearn.roc_curve(labels, -distances, drop_intermediate=False)
        assert fpr_at_recall(distances, labels) == pytest.approx(fpr[tpr >= 0.95 - 1e-12][0])
        precision, recall, _ = sklearn.precision_recall_curve(labels, -distances)
        # scikit-learn's curve ends at (recall 0, precision 1), too: its area is the trapezoid's.
        assert average_precision_trapezoid(distances, labels) == pytest.approx(
            sklearn.auc(recall, precision)
        )


def test_nothing_is_changed_and_float32_is_enough():
    rng = np.random.default_rng(4)
    labels = rng.random(500) < 0.5
    distances = rng.random(500).astype(np.float32)
    copy = distances.copy()
    for metric in (
        fpr_at_recall,
        fdr_at_recall,
        roc_auc,
        average_precision_trapezoid,
        average_precision_at_hits,
    ):
        assert metric(distances, labels) == metric(distances.astype(np.float64), labels)
        np.testing.assert_array_equal(distances, copy)


def test_every_resample_has_as_many_groups_as_there_are():
    drawn = multiplicities(7, 500, seed=3)
    assert drawn.shape == (500, 7)
    assert (drawn.sum(1) == 7).all()
    assert drawn.mean(0) == pytest.approx(np.ones(7), abs=0.2)
    np.testing.assert_array_equal(drawn, multiplicities(7, 500, seed=3))
    assert (drawn != multiplicities(7, 500, seed=4)).any()


def test_interval_computed_by_hand():
    assert interval(np.arange(201)) == pytest.approx((5, 195))
    assert interval([1.0, np.nan, 1.0]) == (1.0, 1.0)
    assert interval([np.nan]) == (None, None)


def test_mean_interval_equals_the_loop_over_drawn_groups():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 5, 60)
    values = rng.random(60)
    expected = []
    for drawn in multiplicities(5, 300, seed=9):
        members = [v for g in range(5) for _ in range(drawn[g]) for v in values[groups == g]]
        expected.append(np.mean(members))
    low, high = mean_interval(values, groups, resamples=300, seed=9)
    assert (low, high) == pytest.approx(tuple(np.quantile(expected, [0.025, 0.975])))


def test_one_group_has_no_interval():
    assert mean_interval([0.5]) == (None, None)
    assert mean_interval([0.5, 0.7], ["a", "a"]) == (None, None)
    with pytest.raises(ValueError, match="nothing"):
        multiplicities(0, 5)


# A similarity that is known is found; angles have all their digits.


def _turn(axis: int, degrees: float) -> np.ndarray:
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    matrix = np.eye(3)
    i, j = [k for k in range(3) if k != axis]
    matrix[i, i] = matrix[j, j] = c
    matrix[i, j], matrix[j, i] = -s, s
    return matrix


def test_a_known_similarity() -> None:
    points = np.random.default_rng(0).normal(size=(7, 3)) * (1, 2, 5)
    rotation = _turn(0, 20) @ _turn(2, -75)
    target = 2.5 * points @ rotation.T + (1, -2, 30)
    found = align(points, target)
    assert found.scale == pytest.approx(2.5)
    np.testing.assert_allclose(found.rotation, rotation, atol=1e-12)
    np.testing.assert_allclose(found.translation, (1, -2, 30), atol=1e-10)
    np.testing.assert_allclose(found(points), target, atol=1e-10)


def test_a_flat_scene_and_a_mirrored_one_give_a_rotation() -> None:
    flat = np.array([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [3, 1, 0]])
    np.testing.assert_allclose(
        align(flat, 2 * flat @ _turn(1, 30).T).rotation, _turn(1, 30), atol=1e-12
    )
    points = np.random.default_rng(1).normal(size=(8, 3))
    found = align(points, points * (1, 1, -1))
    assert np.linalg.det(found.rotation) == pytest.approx(1)


def test_no_other_similarity_is_closer() -> None:
    rng = np.random.default_rng(2)
    points = rng.normal(size=(6, 3))
    target = 1.5 * points @ _turn(1, 40).T + rng.normal(size=(6, 3)) * 0.1
    best = align(points, target)
    least = ((best(points) - target) ** 2).sum()
    for axis in range(3):
        for degrees in (-1.0, 1.0):
            turned = best.rotation @ _turn(axis, degrees)
            moved = best.scale * points @ turned.T
            moved += (target - moved).mean(0)  # the best translation of this rotation
            assert ((moved - target) ** 2).sum() > least
    for factor in (0.99, 1.01):
        moved = factor * best.scale * points @ best.rotation.T
        moved += (target - moved).mean(0)
        assert ((moved - target) ** 2).sum() > least


def test_what_cannot_be_aligned() -> None:
    line = np.arange(12.0).reshape(4, 3)
    with pytest.raises(ValueError, match="one line"):
        align(line, line)
    with pytest.raises(ValueError, match="N >= 3"):
        align(line[:2], line[:2])


@pytest.mark.parametrize("degrees", [0.0, 1e-6, 0.5, 90.0, 179.0])
def test_angles_between_rotations(degrees: float) -> None:
    base = _turn(0, 33) @ _turn(1, 12)
    angle = rotation_angle([base @ _turn(2, degrees)], [base])
    np.testing.assert_allclose(angle, [degrees], rtol=1e-6, atol=1e-10)


def metrics(true, false):
    distances = np.concatenate([true, false])
    labels = np.arange(len(distances)) < len(true)
    return (
        roc_auc(distances, labels),
        average_precision_trapezoid(distances, labels),
        average_precision_at_hits(distances, labels),
    )


@pytest.mark.parametrize("levels", [1, 4, 100_000])
def test_whole_weights_are_repetitions(levels):
    rng = np.random.default_rng(levels)
    true = rng.integers(0, levels, 60).astype(np.float32)
    false = (rng.integers(0, levels, 90) + levels // 5).astype(np.float32)
    ranking = PooledRanking(true, false)
    for trial in range(4):
        often_true = rng.integers(0, 4, 60) if trial else np.ones(60, int)
        often_false = rng.integers(0, 4, 90) if trial else np.ones(90, int)
        weights = (
            often_true[ranking.true_order].astype(float),
            cumulated(often_false[ranking.false_order].astype(float)),
        )
        expected = metrics(np.repeat(true, often_true), np.repeat(false, often_false))
        found = (ranking.auc(*weights), *ranking.average_precision(*weights))
        assert found == pytest.approx(expected)


def test_nothing_to_score_is_nan():
    ranking = PooledRanking(np.ones(2, np.float32), np.ones(3, np.float32))
    ones, zeros = cumulated(np.ones(3)), cumulated(np.zeros(3))
    assert np.isnan(ranking.auc(np.zeros(2), ones))
    assert np.isnan(ranking.auc(np.ones(2), zeros))
    assert np.isnan(ranking.average_precision(np.zeros(2), ones)).all()
    assert ranking.average_precision(np.ones(2), zeros) == (1, 1)


@pytest.mark.parametrize("inter", [False, True])
def test_a_resample_of_sequences_repeats_their_pairs(inter):
    rng = np.random.default_rng(5)
    true_rows, false_rows = np.zeros((50, 6), np.int32), np.zeros((70, 6), np.int32)
    for rows in (true_rows, false_rows):
        rows[:, 0] = rows[:, 3] = rng.integers(0, 3, len(rows))
    if inter:
        false_rows[:, 3] = rng.integers(0, 3, 70)
    true, false = (rng.integers(low, 12, n).astype(np.float32) for low, n in ((0, 50), (3, 70)))
    weights = np.array([[1, 1, 1], [2, 1, 0], [0, 0, 3]])
    scores = pooled_scores(true, true_rows, false, false_rows, weights)
    for weight, found in zip(weights, scores, strict=True):
        often_false = weight[false_rows[:, 0]]
        if inter:
            often_false = often_false * weight[false_rows[:, 3]]
        often_true = weight[true_rows[:, 0]]
        repeated = np.repeat(false, often_false)
        auc, _, _ = metrics(np.repeat(true, often_true), repeated)
        _, trapezoid, hits = metrics(np.repeat(true[:10], often_true[:10]), repeated)
        assert found == pytest.approx([auc, trapezoid, hits])
