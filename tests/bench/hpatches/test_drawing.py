import json

import numpy as np
import pytest

from hardnet.bench.hpatches.drawing import draw_pairs, draw_retrieval
from hardnet.bench.hpatches.list_files import RETRIEVAL_FILES, find_files, read_retrieval
from hardnet.errors import HardnetError

NAMES = ("v_b", "i_a", "v_c", "i_z")
COUNTS = (7, 300, 2, 33)


def pairs_loop(names, counts, pairs):
    """The published draws, row by row, with numpy's global legacy generator."""
    size = dict(zip(names, counts, strict=True))
    before = np.random.get_state()
    try:
        np.random.seed(42)
        sequence = np.random.choice(names, pairs)
        patch = [np.random.choice(np.arange(size[s]), 2, replace=False) for s in sequence]
        image = [np.random.choice(np.arange(5), 2, replace=False) for _ in sequence]
        other = np.random.choice(names, pairs)
        other_patch = [np.random.randint(size[s]) for s in other]
    finally:
        np.random.set_state(before)
    positive, intra, inter = [], [], []
    for k, s in enumerate(sequence):
        first = (names.index(s), image[k][0], patch[k][0])
        positive.append((*first, names.index(s), image[k][1], patch[k][0]))
        intra.append((*first, names.index(s), image[k][1], patch[k][1]))
        inter.append((*first, names.index(other[k]), image[k][1], other_patch[k]))
    return positive, intra, inter


@pytest.mark.parametrize("pairs", [5, 700])
def test_pairs_are_the_published_draws(pairs):
    lists = draw_pairs(COUNTS, pairs)
    positive, intra, inter = pairs_loop(NAMES, COUNTS, pairs)
    np.testing.assert_array_equal(lists.positive, positive)
    np.testing.assert_array_equal(lists.intra, intra)
    np.testing.assert_array_equal(lists.inter, inter)


def test_pairs_are_what_they_are_called():
    lists = draw_pairs(COUNTS, 2000)
    for rows in (lists.positive, lists.intra, lists.inter):
        for s, t, patch in (rows[:, :3].T, rows[:, 3:].T):
            assert (patch < np.array(COUNTS)[s]).all()
            assert set(t) == {0, 1, 2, 3, 4}  # the fifth target is never used
        assert (rows[:, 1] != rows[:, 4]).all()
    np.testing.assert_array_equal(lists.positive[:, [0, 2]], lists.positive[:, [3, 5]])
    np.testing.assert_array_equal(lists.intra[:, 0], lists.intra[:, 3])
    assert (lists.intra[:, 2] != lists.intra[:, 5]).all()
    assert (lists.inter[:, 0] != lists.inter[:, 3]).mean() == pytest.approx(0.75, abs=0.05)


@pytest.fixture(scope="module")
def split_a(data):
    """Test sequences of the official split a."""
    file = data / "hpatches-tasks" / "splits.json"
    if not file.is_file():
        pytest.skip(f"no {file}: the splits of the HPatches benchmark")
    return tuple(json.loads(file.read_text())["a"]["test"])


@pytest.mark.slow  # all sequences are drawn before the first patch: it takes the million
def test_first_pairs_of_split_a_are_the_documented_ones(split_a):
    # Rows shown in the documentation of the benchmark. What is drawn for the other sequences comes
    # later, so their counts do not matter here.
    known = {"v_birdwoman": 2000, "v_strand": 1816, "i_salon": 1102, "i_zion": 2000}
    rows = draw_pairs([known.get(name, 2) for name in split_a]).positive
    assert [(split_a[s], patch) for s, patch in rows[:4, [0, 2]].tolist()] == [
        ("v_birdwoman", 251),
        ("v_strand", 1625),
        ("i_salon", 1100),
        ("i_zion", 1766),
    ]


def test_first_sequences_of_split_a_are_the_documented_ones(split_a):
    rows = draw_pairs([10] * len(split_a), 4).positive
    assert [split_a[s] for s in rows[:, 0]] == ["v_birdwoman", "v_strand", "i_salon", "i_zion"]


# fmt: off
SPLIT_A_COUNTS = (
    853, 1682, 2000, 298, 345, 471, 409, 2000, 1998, 635, 474, 1982, 1950, 1989, 1102, 1091,
    1002, 1708, 726, 1999, 1506, 1996, 1891, 2000, 1048, 1992, 2000, 1991, 1816, 1810, 1617,
    1592, 2000, 1644, 713, 1529, 1656, 1994, 2000, 2000,
)
# fmt: on
"""Patches of the test sequences of split a, found from the official lists: every draw that they
keep or skip fits. Some may be a little larger: no draw fell on what is left open."""


def test_official_retrieval_lists_are_drawn_again(data, split_a):
    folder = data / "hpatches-tasks"
    files = find_files(folder, "a", RETRIEVAL_FILES)
    if not files:
        pytest.skip(f"no retrieval lists in {folder}: task files of the HPatches benchmark")
    official = read_retrieval(files, split_a, SPLIT_A_COUNTS)
    # The patches are not at hand: those in a list have contrast, all others count as flat.
    contrast = [np.zeros(count) for count in SPLIT_A_COUNTS]
    for s, patch in np.concatenate([official.queries, official.distractors]).tolist():
        contrast[s][patch] = 20.0
    drawn = draw_retrieval(SPLIT_A_COUNTS, lambda k: contrast[k])
    np.testing.assert_array_equal(drawn.queries, official.queries)
    np.testing.assert_array_equal(drawn.distractors, official.distractors)


def test_a_sequence_of_one_patch_has_no_pairs():
    with pytest.raises(HardnetError, match="at least 2 patches"):
        draw_pairs([5, 1], 10)


def retrieval_loop(counts, std, wanted, limit):
    """The published rule for a set of any size, row by row."""
    rng = np.random.RandomState(42)

    def draw(number):
        sequence = [int(rng.randint(0, len(counts))) for _ in range(number)]
        return [(s, int(rng.randint(counts[s]))) for s in sequence]

    queries, others = draw(4 * wanted), draw(10 * limit)
    kept = []
    for row in queries:
        if std[row[0]][row[1]] > 10 and row not in kept:
            kept.append(row)
    kept = kept[:wanted]
    pool = []
    for row in others:
        if std[row[0]][row[1]] > 10 and row not in pool and row not in kept:
            pool.append(row)
    return kept, pool[:limit]


def test_retrieval_lists_follow_the_rule():
    counts = (40, 13, 70)
    rng = np.random.default_rng(0)
    std = [rng.uniform(8, 30, count) for count in counts]
    std[1][4] = 10.0  # not above 10: flat
    lists = draw_retrieval(counts, lambda k: std[k])
    queries, distractors = retrieval_loop(counts, std, 41, 82)
    assert len(queries) == 41
    assert 40 < len(distractors) <= 82
    np.testing.assert_array_equal(lists.queries, queries)
    np.testing.assert_array_equal(lists.distractors, distractors)


def test_retrieval_lists_of_a_large_set_have_the_official_size():
    lists = draw_retrieval([1300] * 40)
    assert lists.queries.shape == (10_000, 2)
    assert lists.distractors.shape == (20_000, 2)
    rows = {tuple(row) for row in np.concatenate([lists.queries, lists.distractors]).tolist()}
    assert len(rows) == 30_000


def test_retrieval_without_contrast_is_an_error():
    with pytest.raises(HardnetError, match="contrast"):
        draw_retrieval([30, 30], lambda k: np.zeros(30))
    with pytest.raises(HardnetError, match="3 reference patches"):
        draw_retrieval([1, 1])
