import numpy as np
import pytest

from hardnet.bench.hpatches import tasks as module
from hardnet.bench.hpatches.drawing import draw_pairs, draw_retrieval
from hardnet.bench.hpatches.list_files import PAIR_FILES
from hardnet.bench.hpatches.tasks import contrasts, prepare, tag
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
    first = prepare("mine", NAMES, COUNTS, pairs=3000).pairs
    monkeypatch.setattr(module, "draw_pairs", lambda *_: pytest.fail("drawn again"))
    again = prepare("the split's name does not matter", NAMES, COUNTS, pairs=3000).pairs
    for kind in ("positive", "intra", "inter"):
        np.testing.assert_array_equal(getattr(first, kind), getattr(again, kind))
        assert getattr(again, kind).dtype == np.int32
    assert [path.suffix for path in (cache / "hpatches-lists").iterdir()] == [".npz"]
    others = (
        (NAMES, COUNTS | {"v_c": 31}, 3000),
        (NAMES, COUNTS, 2999),
        (NAMES[::-1], COUNTS, 3000),
    )
    for names, counts, pairs in others:
        with pytest.raises(pytest.fail.Exception, match="drawn again"):
            prepare("mine", names, counts, pairs=pairs)


def test_pairs_are_read_once_and_again_when_a_file_changes(tmp_path, monkeypatch):
    for stem in PAIR_FILES:
        (tmp_path / f"{stem}_split-x.csv").write_text(
            "s1,t1,idx1,s2,t2,idx2\n" + "v_a,0,1,v_a,1,1\n" * 6
        )
    first = prepare("x", NAMES, COUNTS, tmp_path, pairs=5)
    assert first.origin["pairs"] == "task files"
    assert first.pairs.inter.tolist() == [[0, 0, 1, 0, 1, 1]] * 5
    read = module.read_pairs
    monkeypatch.setattr(module, "read_pairs", lambda *_: pytest.fail("read again"))
    again = prepare("x", NAMES, COUNTS, tmp_path, pairs=5)
    np.testing.assert_array_equal(first.pairs.inter, again.pairs.inter)
    monkeypatch.setattr(module, "read_pairs", read)
    path = tmp_path / "verif_neg_inter_split-x.csv"
    path.write_text(path.read_text().replace("1,1\n", "2,19\n"))
    changed = prepare("x", NAMES, COUNTS, tmp_path, pairs=5)
    assert changed.pairs.inter.tolist() == [[0, 0, 1, 0, 2, 19]] * 5


def test_patches_are_looked_at_once_per_fingerprint():
    calls = []

    def patches(name):
        calls.append(name)
        return np.random.default_rng(0).integers(0, 256, (COUNTS[name], 8, 8), np.uint8)

    first = prepare("mine", NAMES, COUNTS, patches=patches, pairs=50, data="one")
    assert sorted(calls) == sorted(NAMES)
    again = prepare("mine", NAMES, COUNTS, patches=patches, pairs=50, data="one")
    assert len(calls) == 3
    np.testing.assert_array_equal(first.retrieval.queries, again.retrieval.queries)
    np.testing.assert_array_equal(first.retrieval.distractors, again.retrieval.distractors)
    prepare("mine", NAMES, COUNTS, patches=patches, pairs=50, data="two")
    prepare("mine", NAMES, COUNTS, patches=patches, pairs=50)
    assert len(calls) == 9


def test_a_broken_or_unwritable_cache_costs_only_time(cache):
    expected = draw_pairs(SIZES, 10).inter

    def drawn():
        return prepare("mine", NAMES, COUNTS, pairs=10).pairs.inter

    cache.write_text("a file where the folder should be")
    np.testing.assert_array_equal(drawn(), expected)
    cache.unlink()
    drawn()
    (stored,) = (cache / "hpatches-lists").iterdir()
    for broken in (stored.read_bytes()[:100], b""):
        stored.write_bytes(broken)
        np.testing.assert_array_equal(drawn(), expected)
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
