import numpy as np
import pytest

from hardnet.bench.metrics import (
    average_precision_at_hits,
    average_precision_trapezoid,
    fdr95,
    fdr_at_recall,
    fpr95,
    fpr_at_recall,
    precision_recall,
    roc_auc,
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
    assert fpr95(distances, labels) == 3 / 5
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
    assert fpr95(np.zeros(10), [1, 0] * 5) == 1.0
    assert fpr_at_recall(np.zeros(10), [1, 0] * 5, ties="before") == 0.0


def test_fpr_of_separated_and_of_inverted_pairs():
    labels = [1] * 50 + [0] * 50
    assert fpr95(np.arange(100), labels) == 0.0
    assert fpr95(-np.arange(100), labels) == 1.0


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
        fpr95(distances, labels)


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
    assert fdr95(distances, labels) == 3 / (3 + 19)
    assert fdr_at_recall(distances, labels, ties="before") == 2 / (2 + 19)
    assert fdr_at_recall(distances, labels, recall=1.0) == 4 / (4 + 20)


def test_fdr_of_tied_true_pairs_counts_all_that_are_accepted():
    # 3 true pairs, 2 are needed for a recall of 0.5; two are tied at 2 and accepted together.
    assert fdr_at_recall([1, 2, 2, 2, 9], [1, 1, 1, 0, 0], recall=0.5) == 1 / (1 + 3)
    assert fdr95(np.zeros(10), [1, 0] * 5) == 0.5


def test_fdr_follows_from_fpr_on_a_balanced_set():
    # The relation that turns the numbers of MatchNet and TFeat into false positive rates.
    rng = np.random.default_rng(2)
    labels = np.arange(20_000) % 2 == 0
    distances = rng.normal(np.where(labels, 0.0, 2.5))
    fpr = fpr95(distances, labels)
    assert 0.05 < fpr < 0.5
    assert fdr95(distances, labels) == pytest.approx(fpr / (fpr + 0.95), rel=1e-12)


def test_fdr_refuses_what_has_no_answer():
    with pytest.raises(ValueError, match="both kinds"):
        fdr95([1.0, 2.0], [0, 0])
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
        assert fpr95(distances, labels) == pytest.approx(fpr[tpr >= 0.95 - 1e-12][0])
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
    for metric in (fpr95, fdr95, roc_auc, average_precision_trapezoid, average_precision_at_hits):
        assert metric(distances, labels) == metric(distances.astype(np.float64), labels)
        np.testing.assert_array_equal(distances, copy)
