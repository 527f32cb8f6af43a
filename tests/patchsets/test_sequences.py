import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.sequences import (
    find_sequences,
    inside,
    project,
    read_homography,
)

SHIFT = np.array([[1.0, 0, 5], [0, 1, -3], [0, 0, 1]])


def write_sequence(folder, targets=(2, 3)):
    folder.mkdir(parents=True)
    for k in (1, *targets):
        cv2.imwrite(str(folder / f"{k}.png"), np.full((20, 30), k, np.uint8))
    for k in targets:
        np.savetxt(folder / f"H_1_{k}", SHIFT * k)


def write_pairs(root, names):
    for part in "12h":
        (root / part).mkdir(parents=True)
    for name in names:
        for part in "12":
            cv2.imwrite(str(root / part / f"{name}.png"), np.zeros((20, 30), np.uint8))
        np.savetxt(root / "h" / f"{name}.txt", -SHIFT)


def test_reads_a_folder_of_sequences_in_numeric_order(tmp_path):
    write_sequence(tmp_path / "data" / "wall", targets=(2, 10, 3))
    write_sequence(tmp_path / "data" / "graf")
    graf, wall = find_sequences([tmp_path / "data"])
    assert (graf.name, wall.name) == ("graf", "wall")
    assert [t.name for t in wall.targets] == ["2", "3", "10"]
    assert [f.name for f in wall.files] == ["1.png", "2.png", "3.png", "10.png"]
    np.testing.assert_allclose(wall.targets[1].homography, SHIFT * 3)


def test_reads_one_sequence_folder_and_a_pair_folder_and_selects_by_name(tmp_path):
    write_sequence(tmp_path / "graf")
    write_pairs(tmp_path / "evd", ["fox", "cat"])
    roots = [tmp_path / "graf", tmp_path / "evd"]
    assert [s.name for s in find_sequences(roots)] == ["graf", "evd-cat", "evd-fox"]
    (fox,) = find_sequences(roots, ["evd-fox"])
    assert len(fox.targets) == 1
    with pytest.raises(HardnetError, match="evd-dog"):
        find_sequences(roots, ["evd-dog"])


def test_the_sign_of_a_homography_file_does_not_matter(tmp_path):
    write_pairs(tmp_path / "evd", ["fox"])
    (fox,) = find_sequences([tmp_path / "evd"])
    np.testing.assert_allclose(fox.targets[0].homography, SHIFT)


@pytest.mark.parametrize(
    ("text", "message"),
    [("1 2 3\n4 5 6", "3 x 3"), ("one two three", "cannot read"), ("1 0 0\n" * 3, "singular")],
)
def test_a_broken_homography_is_named(tmp_path, text, message):
    path = tmp_path / "H_1_2"
    path.write_text(text)
    with pytest.raises(HardnetError, match=message) as caught:
        read_homography(path)
    assert str(path) in str(caught.value)


def test_missing_things_are_named(tmp_path):
    with pytest.raises(HardnetError, match="no such folder"):
        find_sequences([tmp_path / "nowhere"])
    with pytest.raises(HardnetError, match="no sequence here"):
        find_sequences([tmp_path])
    write_sequence(tmp_path / "graf")
    (tmp_path / "graf" / "3.png").unlink()
    with pytest.raises(HardnetError, match=r"graf/3: no image"):
        find_sequences([tmp_path])


def test_one_name_twice_is_an_error(tmp_path):
    write_sequence(tmp_path / "a" / "graf")
    write_sequence(tmp_path / "b" / "graf")
    with pytest.raises(HardnetError, match="graf"):
        find_sequences([tmp_path / "a", tmp_path / "b"])


def test_points_behind_the_camera_are_nowhere():
    tilted = np.array([[1.0, 0, 0], [0, 1, 0], [-0.1, 0, 1]])  # w = 1 - x / 10
    points = [[0.0, 0.0], [5.0, 2.0], [20.0, 2.0]]
    np.testing.assert_allclose(project(tilted, points), [[0, 0], [10, 4], [np.nan, np.nan]])
    assert inside(project(tilted, points), (5, 12)).tolist() == [True, True, False]
    assert inside(project(tilted, points), (4, 12)).tolist() == [True, False, False]
