import cv2
import numpy as np
import pytest

from hardnet.bench.stereo_sets import SETS, by_folder, by_name, conventions, open_set, open_sets
from hardnet.errors import HardnetError


def write_list(folder, count):
    folder.mkdir(parents=True)
    cv2.imwrite(str(folder / "a.png"), np.zeros((20, 30), np.uint8))
    (folder / "pairs.txt").write_text("a.png a.png\n" * count)


def test_the_pairs_of_table_3():
    counts = {known.name: known.pairs for known in SETS}
    assert counts == {
        "EF": 33,
        "EVD": 15,
        "OxAff": 40,
        "SymB": 46,
        "GDB": 22,
        "WxBS": 34,
        "LTLL": 172,
        "HPatches": 580,
    }
    assert "37" in by_name("wxbs").note
    assert len(conventions().splitlines()) == len(SETS)


def test_a_folder_is_known_by_its_name_or_by_what_is_typed(tmp_path):
    write_list(tmp_path / "SymBench", 46)
    write_list(tmp_path / "mine", 2)
    symb = open_set(str(tmp_path / "SymBench"))
    assert symb.summary() == "SymB: 46 of 46 pairs (no ground truth)"
    assert symb.complete
    mine = open_set(str(tmp_path / "mine"))
    assert mine.complete
    assert mine.summary() == "mine: 2 pairs (no ground truth); not a set of Table 3"
    edge = open_set(f"ef={tmp_path / 'mine'}")
    assert (edge.name, edge.complete) == ("EF", False)
    assert edge.summary().startswith("EF: 2 of 33 pairs")
    assert by_folder(tmp_path / "somewhere") is None


def test_mistakes_are_named(tmp_path):
    write_list(tmp_path / "mine", 1)
    with pytest.raises(HardnetError, match="no stereo set 'XY'"):
        open_set(f"XY={tmp_path / 'mine'}")
    with pytest.raises(HardnetError, match="EF is named twice"):
        open_sets([f"EF={tmp_path / 'mine'}"] * 2)
    with pytest.raises(HardnetError, match="no such folder"):
        open_set(str(tmp_path / "nowhere"))


def test_the_copies_here_are_parts_of_sets(data):
    assert open_set(str(data / "evd")).summary() == "EVD: 8 of 15 pairs (homography)"
    assert open_set(str(data / "wxbs")).summary().startswith("WxBS: 14 of 34 pairs")
    assert not open_set(str(data / "oxford-affine")).complete
