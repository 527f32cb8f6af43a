import time

import numpy as np
import pytest

from hardnet.bench.hpatches import tasks as module
from hardnet.bench.hpatches.drawing import draw_pairs, draw_retrieval
from hardnet.bench.hpatches.tasks import contrasts, prepare, stored_pairs, tag
from hardnet.errors import HardnetError

NAMES = ("v_a", "i_b", "v_c")
COUNTS = {"v_a": 20, "i_b": 11, "v_c": 30, "i_not_in_the_split": 5}
SIZES = [20, 11, 30]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_lists_are_drawn_without_files():
    tasks = prepare("mine", NAMES, COUNTS, pairs=50)
    assert (tasks.names, tasks.counts) == (NAMES, (20, 11, 30))
    np.testing.assert_array_equal(tasks.pairs.inter, draw_pairs(SIZES, 50).inter)
    np.testing.assert_array_equal(tasks.retrieval.queries, draw_retrieval(SIZES).queries)
    facts = tasks.facts()
    assert (facts["pairs"], facts["queries"]) == (50, 20)
    assert facts["distractors"] == len(tasks.retrieval.distractors)
    assert facts["origin"] == {"pairs": "drawn with seed 42", "retrieval": "drawn with seed 42"}


def test_files_of_the_user_come_first(tmp_path):
    (tmp_path / "retr_queries_split-mine.csv").write_text("s,idx\nv_c,29\n")
    (tmp_path / "retr_distractors_split-mine.csv").write_text("s,idx\nv_a,0\ni_b,10\n")
    tasks = prepare("mine", NAMES, COUNTS, tmp_path, pairs=50)
    assert tasks.retrieval.queries.tolist() == [[2, 29]]
    assert tasks.retrieval.distractors.tolist() == [[0, 0], [1, 10]]
    assert tasks.origin == {"pairs": "drawn with seed 42", "retrieval": "task files"}
    other = prepare("other", NAMES, COUNTS, tmp_path, pairs=50)
    assert other.origin["retrieval"] == "drawn with seed 42"


def test_flat_patches_are_not_asked_for():
    rng = np.random.default_rng(0)
    patches = {name: rng.integers(0, 256, (COUNTS[name], 8, 8), np.uint8) for name in NAMES}
    patches["v_a"][:10] = 77
    tasks = prepare("mine", NAMES, COUNTS, patches=patches.__getitem__, pairs=50)
    for rows in (tasks.retrieval.queries, tasks.retrieval.distractors):
        assert (rows[rows[:, 0] == 0, 1] >= 10).all()


def test_contrast_is_the_standard_deviation_of_each_patch():
    patches = np.random.default_rng(1).integers(0, 256, (300, 5, 5), np.uint8)
    np.testing.assert_allclose(contrasts(patches), [np.std(patch) for patch in patches])


def test_pairs_are_drawn_once(cache, monkeypatch):
    first = stored_pairs(NAMES, SIZES, 3000)
    monkeypatch.setattr(module, "draw_pairs", lambda *_: pytest.fail("drawn again"))
    start = time.perf_counter()
    again = stored_pairs(NAMES, SIZES, 3000)
    assert time.perf_counter() - start < 1
    for kind in ("positive", "intra", "inter"):
        np.testing.assert_array_equal(getattr(first, kind), getattr(again, kind))
        assert getattr(again, kind).dtype == np.int32
    assert [path.suffix for path in (cache / "hpatches-pairs").iterdir()] == [".npz"]
    for other in ((NAMES, [20, 11, 31], 3000), (NAMES, SIZES, 2999), (NAMES, SIZES, 3000, 1)):
        with pytest.raises(pytest.fail.Exception, match="drawn again"):
            stored_pairs(*other)


def test_a_broken_or_unwritable_cache_costs_only_time(cache):
    expected = draw_pairs(SIZES, 10).inter
    cache.write_text("a file where the folder should be")
    np.testing.assert_array_equal(stored_pairs(NAMES, SIZES, 10).inter, expected)
    cache.unlink()
    stored_pairs(NAMES, SIZES, 10)
    (stored,) = (cache / "hpatches-pairs").iterdir()
    stored.write_bytes(stored.read_bytes()[:100])
    np.testing.assert_array_equal(stored_pairs(NAMES, SIZES, 10).inter, expected)
    np.testing.assert_array_equal(np.load(stored)["inter"], expected)


def test_what_cannot_be_prepared(tmp_path):
    with pytest.raises(HardnetError, match="no test sequences"):
        prepare("none", (), COUNTS)
    with pytest.raises(HardnetError, match="at least 5 pairs"):
        prepare("mine", NAMES, COUNTS, pairs=4)
    with pytest.raises(HardnetError, match="not a folder"):
        prepare("mine", NAMES, COUNTS, tmp_path / "absent")


def test_strips_of_images():
    assert [tag(0, "hard"), tag(1, "easy"), tag(4, "hard"), tag(5, "tough")] == [
        "ref",
        "e1",
        "h4",
        "t5",
    ]
