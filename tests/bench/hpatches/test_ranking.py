import numpy as np
import pytest

from hardnet.bench.hpatches.ranking import PooledRanking, cumulated
from hardnet.bench.hpatches.verification import pooled_scores
from hardnet.bench.metrics import (
    average_precision_at_hits,
    average_precision_trapezoid,
    roc_auc,
)


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
