import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.sequences import (
    find_pairs,
    find_sequences,
    inside,
    project,
    read_correspondences,
    read_homography,
)

SHIFT = np.array([[1.0, 0, 5], [0, 1, -3], [0, 0, 1]])
ROWS = np.arange(40.0).reshape(10, 4) ** 1.1


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


def write_image(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.zeros((20, 30), np.uint8))


def write_scene(folder, rows=ROWS, suffixes=(".png", ".jpg")):
    for stem, suffix in zip(("01", "02"), suffixes, strict=True):
        write_image(folder / f"{stem}{suffix}")
    np.savetxt(folder / "corrs.txt", rows)
    np.savetxt(folder / "crossval_errors.txt", np.ones(len(rows)))


def test_reads_the_layout_of_wxbs(tmp_path):
    write_scene(tmp_path / "WGBS" / "church")
    write_scene(tmp_path / "WLABS" / "kyiv")
    (tmp_path / "README.txt").write_text("about")
    church, kyiv = find_pairs(tmp_path)
    assert (church.name, kyiv.name) == ("WGBS-church", "WLABS-kyiv")
    assert (church.first.name, church.second.name) == ("01.png", "02.jpg")
    assert church.truth == "correspondences"
    np.testing.assert_allclose(church.correspondences, ROWS)
    assert [pair.name for pair in find_pairs(tmp_path / "WGBS")] == ["church"]


def test_image_1_of_a_sequence_makes_a_pair_with_each_of_the_others(tmp_path):
    for k in (1, 2, 3):
        write_image(tmp_path / "wall" / f"{k}.png")
    for k in (2, 3):
        np.savetxt(tmp_path / "wall" / f"H_1_{k}", SHIFT * k)
    pairs = find_pairs(tmp_path)
    assert [pair.name for pair in pairs] == ["wall-1-2", "wall-1-3"]
    assert [(p.first.name, p.second.name) for p in pairs] == [
        ("1.png", "2.png"),
        ("1.png", "3.png"),
    ]
    np.testing.assert_allclose(pairs[1].homography, SHIFT * 3)


def test_a_list_of_pairs_tells_the_kinds_of_truth_apart(tmp_path):
    for name in ("a.png", "b.png", "my photo.png"):
        write_image(tmp_path / "images" / name)
    np.savetxt(tmp_path / "h.txt", SHIFT)
    np.savetxt(tmp_path / "c.txt", ROWS)
    (tmp_path / "pairs.txt").write_text(
        "# a comment\n"
        "images/a.png images/b.png h.txt\n"
        "\n"
        "images/b.png images/a.png c.txt   # by hand\n"
        'images/a.png "images/my photo.png"\n'
    )
    pairs = find_pairs(tmp_path)
    assert [pair.truth for pair in pairs] == ["homography", "correspondences", "none"]
    assert [pair.name for pair in pairs] == ["002-a-b", "004-b-a", "005-a-my photo"]
    np.testing.assert_allclose(pairs[0].homography, SHIFT)
    assert pairs[2].second == tmp_path / "images" / "my photo.png"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 2 3 4\n" * 3 + "5 6 7\n" + "1 2 3 4\n" * 8, "line 4 is not four numbers"),
        ("1 2 3 4\n" * 7, "7 correspondences"),
        ("1 2 three 4\n", "line 1 is not numbers"),
        ("1 2 nan 4\n", "NaN"),
        ("", "0 correspondences"),
    ],
)
def test_broken_correspondences_are_named(tmp_path, text, message):
    path = tmp_path / "corrs.txt"
    path.write_text(text)
    with pytest.raises(HardnetError, match=message) as caught:
        read_correspondences(path)
    assert str(path) in str(caught.value)


def test_missing_images_are_named(tmp_path):
    write_scene(tmp_path / "WGBS" / "church")
    (tmp_path / "WGBS" / "church" / "02.jpg").unlink()
    with pytest.raises(HardnetError, match=r"church/02: no image"):
        find_pairs(tmp_path)
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "pairs.txt").write_text("a.png b.png\n")
    with pytest.raises(HardnetError, match=r"line 1: .*a\.png does not exist"):
        find_pairs(tmp_path / "list")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.png\n", "line 1 is not IMAGE_A"),
        ("a.png a.png h.txt more\n", "line 1 is not IMAGE_A"),
        ("# nothing\n", "lists no pair"),
        ('"a.png a.png\n', "line 1: No closing quotation"),
        ("a.png a.png bad.txt\n", "7 correspondences|is not four numbers"),
    ],
)
def test_broken_lists_are_named(tmp_path, text, message):
    write_image(tmp_path / "a.png")
    (tmp_path / "bad.txt").write_text("1 0\n0 1\n")
    (tmp_path / "pairs.txt").write_text(text)
    with pytest.raises(HardnetError, match=message):
        find_pairs(tmp_path)


def test_a_folder_without_pairs_says_what_was_looked_for(tmp_path):
    with pytest.raises(HardnetError, match=r"neither pairs\.txt, nor KIND/SCENE/corrs\.txt"):
        find_pairs(tmp_path)
    with pytest.raises(HardnetError, match="no such folder"):
        find_pairs(tmp_path / "nowhere")


def test_the_real_sets_are_read(data):
    counts = {name: len(find_pairs(data / name)) for name in ("evd", "oxford-affine", "wxbs")}
    assert counts == {"evd": 8, "oxford-affine": 25, "wxbs": 14}
