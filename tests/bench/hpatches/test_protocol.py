"""The three tasks against the protocol in words, as loops: slow, and as plain as can be."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hardnet.bench.hpatches import protocol
from hardnet.bench.hpatches.lists import RetrievalLists
from hardnet.errors import HardnetError

LEVELS = {"easy": "e", "hard": "h", "tough": "t"}


def distance_loop(a, b):
    """L2 of float vectors, differing bits of uint8."""
    if a.dtype == "uint8":
        return float(sum(bin(int(x) ^ int(y)).count("1") for x, y in zip(a, b, strict=True)))
    # Rounded, so that equal distances stay equal whatever the order of the sum.
    return round(math.sqrt(sum((float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True))), 9)


def average_precisions_loop(scored, positives):
    """(trapezoid, hits) of a list of (distance, right); equal distances are accepted together."""
    trapezoid = hits = recall = 0.0
    precision = 1.0
    for threshold in sorted({d for d, _ in scored}):
        accepted = [right for d, right in scored if d <= threshold]
        new_precision, new_recall = sum(accepted) / len(accepted), sum(accepted) / positives
        trapezoid += (new_recall - recall) * (precision + new_precision) / 2
        hits += (new_recall - recall) * new_precision
        precision, recall = new_precision, new_recall
    return trapezoid, hits


def auc_loop(true, false):
    """How often a true pair is nearer than a false one."""
    won = sum((t < f) + (t == f) / 2 for t in true for f in false)
    return won / (len(true) * len(false))


def strip(image, level):
    return "ref" if image == 0 else f"{level}{image}"


def verification_loop(lookup, names, pairs, false_pairs, level):
    """auc, trapezoid, hits."""

    def measure(rows):
        out = []
        for s1, t1, i1, s2, t2, i2 in rows.tolist():
            a = lookup(names[s1], strip(t1, level))[i1]
            b = lookup(names[s2], strip(t2, level))[i2]
            out.append(distance_loop(a, b))
        return out

    true, false = measure(pairs), measure(false_pairs)
    some = true[: int(len(true) * 0.2)]
    scored = [(d, True) for d in some] + [(d, False) for d in false]
    return (auc_loop(true, false), *average_precisions_loop(scored, len(some)))


def matching_loop(lookup, name, level):
    """Mean over the targets of trapezoid, hits, success."""
    totals = [0.0, 0.0, 0.0]
    reference = lookup(name, "ref")
    for k in range(1, 6):
        target = lookup(name, f"{level}{k}")
        scored = []
        for i, row in enumerate(reference):
            distances = [distance_loop(row, other) for other in target]
            nearest = distances.index(min(distances))
            scored.append((distances[nearest], nearest == i))
        scores = average_precisions_loop(scored, len(reference))
        totals[0] += scores[0] / 5
        totals[1] += scores[1] / 5
        totals[2] += sum(right for _, right in scored) / len(scored) / 5
    return totals


def retrieval_loop(lookup, names, queries, distractors, level, pool_size):
    """Mean over the queries of trapezoid, hits."""
    each = []
    for s, i in queries.tolist():
        query = lookup(names[s], "ref")[i]
        pool = [
            (distance_loop(query, lookup(names[s], f"{level}{k}")[i]), True) for k in range(1, 6)
        ]
        for other, j in distractors.tolist():
            if other != s:
                pool.append((distance_loop(query, lookup(names[other], "ref")[j]), False))
        each.append(average_precisions_loop(pool[:pool_size], 5))
    return sum(a for a, _ in each) / len(each), sum(b for _, b in each) / len(each)


def approx(values):
    return pytest.approx(values, abs=1e-6)


def test_verification_equals_the_loops(lookup, tasks):
    rows, _ = protocol.verification(lookup, tasks, resamples=3)
    assert [(r["noise"], r["negatives"]) for r in rows] == [
        (noise, kind) for noise in LEVELS for kind in ("intra", "inter")
    ]
    for row in rows:
        false = getattr(tasks.pairs, row["negatives"])
        expected = verification_loop(
            lookup, tasks.names, tasks.pairs.positive, false, LEVELS[row["noise"]]
        )
        assert (row["auc"], row["ap_trapezoid"], row["ap_hits"]) == approx(expected)


def test_matching_equals_the_loops(lookup, tasks):
    rows, _ = protocol.matching(lookup, tasks)
    assert len(rows) == len(tasks.names) * 3
    for row in rows:
        expected = matching_loop(lookup, row["sequence"], LEVELS[row["noise"]])
        assert [row["ap_trapezoid"], row["ap_hits"], row["success"]] == approx(expected)
    assert {r["sequence"]: r["group"] for r in rows} == {
        "v_wall": "viewpoint",
        "i_night": "illumination",
        "i_dawn": "illumination",
        "v_graf": "viewpoint",
    }


def test_retrieval_equals_the_loops_at_every_cut(lookup, tasks, monkeypatch):
    monkeypatch.setattr(protocol, "_BLOCK", 100)  # several portions of queries per sequence
    queries, distractors = tasks.retrieval.queries, tasks.retrieval.distractors
    found = protocol.average_precisions(lookup, tasks, [7, 20, len(distractors)])
    trapezoid, hits = (each.mean(0) for each in found)  # (noise levels, pools)
    for n, level in enumerate(LEVELS.values()):
        for k, cut in enumerate((7, 20, None)):
            expected = retrieval_loop(lookup, tasks.names, queries, distractors, level, cut)
            assert (trapezoid[n, k], hits[n, k]) == approx(expected)
    rows, _ = protocol.retrieval(lookup, tasks)
    assert [row["ap_hits"] for row in rows] == approx(hits[:, -1].tolist())


def test_a_pool_is_cut_after_the_distractors_of_the_own_sequence_are_removed(tasks):
    # Query 0 of sequence 0; the list begins with its own sequence, which must not use up the cut.
    lists = RetrievalLists(
        np.array([[0, 0]], np.int32), np.array([[0, 1], [0, 2], [1, 0], [2, 0], [1, 1]], np.int32)
    )
    tasks = replace(tasks, retrieval=lists)
    place = {(0, 0): 0.0, (0, 1): 0.1, (0, 2): 0.1, (1, 0): 0.5, (2, 0): 0.2, (1, 1): 0.1}

    def lookup(name, tag):
        s = tasks.names.index(name)
        value = [place.get((s, i), 9.0) for i in range(tasks.counts[s])]
        if tag != "ref":
            value[0] = 0.3
        return np.array(value, np.float32)[:, None]

    _, hits = protocol.average_precisions(lookup, tasks, [6, 7, 5])
    # Right answers at 0.3. One distractor: 0.5. Two: one nearer. All three: two nearer.
    assert hits[0, 0] == pytest.approx([1, 5 / 6, 5 / 7])


def test_a_perfect_descriptor_scores_one(perfect, tasks):
    # Published as they are: "different sequences" may be the same one, and even the same point.
    same = (tasks.pairs.inter[:, [0, 2]] == tasks.pairs.inter[:, [3, 5]]).all(1)
    assert 0 < same.sum() < 20
    tasks = replace(tasks, pairs=tasks.pairs._replace(inter=tasks.pairs.inter[~same]))
    for task in (protocol.verification, protocol.matching, protocol.retrieval):
        rows, mean = task(perfect, tasks, resamples=5)
        for row in rows:
            assert row["ap_trapezoid"] == row["ap_hits"] == pytest.approx(1)
        assert (mean["value"], mean["low"], mean["high"]) == pytest.approx((1, 1, 1))


def test_a_descriptor_that_sees_nothing(blind, tasks):
    rows, _ = protocol.verification(blind, tasks, resamples=0)
    for row in rows:
        assert row["auc"] == pytest.approx(0.5)
        assert row["ap_hits"] == pytest.approx(80 / 480)  # the share of true pairs
    rows, _ = protocol.retrieval(blind, tasks)
    queries, distractors = tasks.retrieval.queries, tasks.retrieval.distractors
    own = (queries[:, :1] == distractors[:, 0]).sum(1)
    assert rows[0]["ap_hits"] == pytest.approx(np.mean(5 / (5 + len(distractors) - own)))


def test_matches_computed_by_hand():
    reference = np.array([[0], [10], [20]], np.float32)
    target = np.array([[1], [14], [6]], np.float32)
    # nearest: 0 -> 0 at 1 (second 6), right; 1 -> 1 at 4 (second 4), right; 2 -> 1 at 6 (14), wrong
    trapezoid, hits, success = protocol.match_scores(reference, target)
    assert success == pytest.approx(2 / 3)
    assert trapezoid == hits == pytest.approx(2 / 3)


def test_one_patch_and_equal_patches_match():
    one = np.ones((1, 4), np.float32)
    assert protocol.match_scores(one, one) == (1, 1, 1)
    same = np.ones((4, 4), np.float32)  # the lowest number wins: one of four is right, all tied
    assert protocol.match_scores(same, same)[1:] == pytest.approx((1 / 16, 1 / 4))


def test_wrong_descriptors_are_errors_that_name_the_strip(lookup, tasks):
    lookup["i_dawn", "h2"] = lookup["i_dawn", "h2"][:-1]
    for task in (protocol.verification, protocol.matching, protocol.retrieval):
        with pytest.raises(HardnetError, match=r"i_dawn/h2.*31 patches.*30"):
            task(lookup, tasks, resamples=0)


def test_descriptors_of_two_lengths_are_an_error(perfect, tasks):
    perfect["i_dawn", "e1"] = perfect["i_dawn", "e1"][:, :8]
    with pytest.raises(HardnetError, match="cannot be compared"):
        protocol.verification(perfect, tasks, resamples=0)


def test_one_sequence_has_no_retrieval(perfect, tasks):
    alone = replace(tasks, names=tasks.names[:1], counts=tasks.counts[:1])
    with pytest.raises(HardnetError, match="another sequence"):
        protocol.retrieval(perfect, alone)


def test_official_pools_that_a_list_is_long_enough_for():
    assert protocol.pool_sizes(20_000) == (100, 500, 1_000, 5_000, 10_000, 15_000, 20_000)
    assert protocol.pool_sizes(700) == (100, 500, 700)
    assert protocol.pool_sizes(60) == (60,)


@pytest.mark.parametrize("spread", [0.0, 2.0, 4.0])
def test_distances_keep_their_order_whatever_the_lengths(spread):
    """Against differences in double precision; and copies of one vector are equally far."""
    rng = np.random.default_rng(0)
    lengths = np.exp(spread * rng.normal(size=(500, 1)))
    others = (rng.normal(size=(500, 16)) * lengths).astype(np.float32)
    queries = others[:40] + rng.normal(size=(40, 16)).astype(np.float32)
    answers = np.stack([queries + 0.5, queries * np.float32(1.1)], 1)
    answers[:, 1] = others[100:140]
    right, wrong = protocol.comparable_distances(queries, answers, others)
    exact_right = ((answers.astype(float) - queries[:, None]) ** 2).sum(-1)
    exact_wrong = ((others[None].astype(float) - queries[:, None]) ** 2).sum(-1)
    nearer = (wrong[:, None] < right[:, :, None]).sum(-1)
    assert np.array_equal(nearer, (exact_wrong[:, None] < exact_right[:, :, None]).sum(-1))
    assert (right[:, 1] == wrong[np.arange(40), np.arange(100, 140)]).all()
