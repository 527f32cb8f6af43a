import json

import numpy as np
import pytest

from hardnet.bench.hpatches import list_files
from hardnet.bench.hpatches.list_files import PAIR_FILES, RETRIEVAL_FILES, find_files
from hardnet.errors import HardnetError

NAMES, COUNTS = ("v_a", "i_b"), (10, 4)
HEADER = "s1,t1,idx1,s2,t2,idx2\n"


def read_pairs(folder, pairs):
    return list_files.read_pairs(find_files(folder, "x", PAIR_FILES), NAMES, COUNTS, pairs)


def write(folder, **files):
    for stem, text in files.items():
        (folder / f"{stem}_split-x.csv").write_text(text)


@pytest.fixture
def pair_files(tmp_path):
    write(
        tmp_path,
        verif_pos=HEADER + "v_a,0,9,v_a,4,9\ni_b,1,0,i_b,2,0\n",
        verif_neg_intra=HEADER + "v_a,0,9,v_a,4,3\ni_b,1,0,i_b,2,3\n",
        verif_neg_inter=HEADER + "v_a,0,9,i_b,4,3\ni_b,1,0,v_a,2,8\n",
    )
    return tmp_path


def test_pairs_are_read_by_the_number_of_the_sequence(pair_files):
    lists = read_pairs(pair_files, 100)
    np.testing.assert_array_equal(lists.positive, [[0, 0, 9, 0, 4, 9], [1, 1, 0, 1, 2, 0]])
    np.testing.assert_array_equal(lists.intra, [[0, 0, 9, 0, 4, 3], [1, 1, 0, 1, 2, 3]])
    np.testing.assert_array_equal(lists.inter, [[0, 0, 9, 1, 4, 3], [1, 1, 0, 0, 2, 8]])
    assert len(read_pairs(pair_files, 1).positive) == 1


def test_a_folder_without_files_has_none(tmp_path):
    assert find_files(tmp_path, "x", PAIR_FILES) == []
    assert find_files(tmp_path, "x", RETRIEVAL_FILES) == []
    assert find_files(None, "x", RETRIEVAL_FILES) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("v_a,0,10,v_a,4,9", r"line 3: patch 10 of v_a, which has 10 patches"),
        ("v_a,0,1,i_b,4,4", r"line 3: patch 4 of i_b, which has 4 patches"),
        ("v_a,0,-1,v_a,4,9", r"line 3: patch -1 of v_a"),
        ("v_new,0,1,v_a,4,9", r"line 3: v_new is not a test sequence"),
        ("v_a,6,1,v_a,4,9", r"line 3: image 6 is not 0 to 5"),
        ("v_a,0,1,v_a,4", r"line 3: expected 6 columns, got 5"),
        ("v_a,0,one,v_a,4,9", r"line 3: idx1 is not a number"),
        ("v_a,0,99999999999,v_a,4,9", r"line 3: idx1 is not a number"),
    ],
)
def test_a_bad_row_is_an_error_with_its_line(pair_files, row, message):
    write(pair_files, verif_neg_inter=f"{HEADER}v_a,0,9,i_b,4,3\n{row}\n")
    with pytest.raises(HardnetError, match=rf"verif_neg_inter_split-x.csv, {message}"):
        read_pairs(pair_files, 100)


def test_other_bad_files(pair_files):
    write(pair_files, verif_pos="s,t\n")
    with pytest.raises(HardnetError, match="does not begin with the line s1,t1"):
        read_pairs(pair_files, 100)
    write(pair_files, verif_pos=HEADER)
    with pytest.raises(HardnetError, match="no rows"):
        read_pairs(pair_files, 100)
    (pair_files / "verif_neg_intra_split-x.csv").unlink()
    with pytest.raises(HardnetError, match=r"verif_neg_intra_split-x.csv is missing"):
        read_pairs(pair_files, 100)


@pytest.mark.parametrize("split", ["a", "full"])
def test_official_retrieval_lists(data, split):
    folder = data / "hpatches-tasks"
    files = find_files(folder, split, RETRIEVAL_FILES)
    if not files:
        pytest.skip(f"no retrieval lists in {folder}: task files of the HPatches benchmark")
    names = json.loads((folder / "splits.json").read_text())[split]["test"]
    lists = list_files.read_retrieval(files, names, [2000] * len(names))
    assert lists.queries.shape == (10_000, 2)
    assert lists.distractors.shape == (20_000, 2)
    rows = np.concatenate([lists.queries, lists.distractors])
    assert len(np.unique(rows, axis=0)) == 30_000  # no patch twice, no query a distractor
    # Pools of 20 000 are never full: each sequence owns more than 5 distractors.
    assert np.bincount(lists.distractors[:, 0], minlength=len(names)).min() > 5
    # Their sequences come from the generator of the pairs; flat and repeated patches left gaps.
    stream = iter(np.random.RandomState(42).randint(0, len(names), 40_000).tolist())
    assert all(any(drawn == s for drawn in stream) for s in lists.queries[:, 0].tolist())
    first = [names[s] for s in lists.queries[:4, 0]]
    if split == "a":
        assert first == ["v_birdwoman", "v_strand", "i_salon", "i_zion"]
    with pytest.raises(HardnetError, match="is this the list of another set"):
        list_files.read_retrieval(files, names, [1000] * len(names))
