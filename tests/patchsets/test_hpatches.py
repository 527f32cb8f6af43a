"""HPatches on disk: strips are read right, damage is named, splits keep their order."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.hpatches import (
    SIDE,
    TAGS,
    as_patchset,
    choose_split,
    find_splits,
    group_of,
    read_hpatches,
    read_splits,
    read_strip,
)
from hardnet.patchsets.patchset import set_cache


def tiles(photo: np.ndarray, count: int, shift: int) -> np.ndarray:
    """(count, 65, 65) patches of a photograph, others for another shift."""
    rng = np.random.default_rng(shift)
    corners = rng.integers(0, 512 - SIDE, (count, 2))
    return np.stack([photo[y : y + SIDE, x : x + SIDE] for x, y in corners])


def write_strip(path: Path, patches: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), patches.reshape(-1, SIDE))


@pytest.fixture
def folder(tmp_path: Path, camera: np.ndarray) -> Path:
    """Three sequences of 4, 3 and 2 patches; strip t of sequence s is tiles(.., 100 s + t)."""
    for s, (name, count) in enumerate({"v_wall": 4, "i_lamp": 3, "v_book": 2}.items()):
        for t, tag in enumerate(TAGS):
            patches = tiles(camera, count, 100 * s + t)
            write_strip(tmp_path / "set" / name / f"{tag}.png", patches)
    (tmp_path / "set" / "notes").mkdir()
    (tmp_path / "set" / "README.txt").write_text("not a sequence")
    return tmp_path / "set"


def test_the_sixteen_strips() -> None:
    assert " ".join(TAGS) == "ref e1 e2 e3 e4 e5 h1 h2 h3 h4 h5 t1 t2 t3 t4 t5"


def test_sequences_are_sorted_and_strips_are_columns(folder: Path, camera: np.ndarray) -> None:
    found = read_hpatches(folder)
    assert found.name == "set"
    assert {s.name: s.count for s in found.sequences.values()} == {
        "i_lamp": 3,
        "v_book": 2,
        "v_wall": 4,
    }
    assert list(found.sequences) == ["i_lamp", "v_book", "v_wall"]
    assert len(found) == 16 * 9
    for tag in ("ref", "h2"):
        expected = tiles(camera, 3, 100 + TAGS.index(tag))
        assert np.array_equal(found.sequences["i_lamp"].patches(tag), expected)


def test_opening_decodes_nothing(folder: Path) -> None:
    path = folder / "i_lamp" / "e1.png"
    data = path.read_bytes()
    path.write_bytes(data[:200] + bytes(500) + data[700:])  # header and end are whole
    found = read_hpatches(folder)
    with pytest.raises(HardnetError, match=r"e1\.png is truncated or damaged"):
        found.sequences["i_lamp"].patches("e1")


def test_one_sequence_is_a_set_and_links_keep_their_name(
    folder: Path, tmp_path: Path, monkeypatch
) -> None:
    assert list(read_hpatches(folder / "v_wall").sequences) == ["v_wall"]
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "v_other").symlink_to(folder / "v_wall")
    assert list(read_hpatches(tmp_path / "linked").sequences) == ["v_other"]
    monkeypatch.chdir(folder / "v_wall")
    assert list(read_hpatches(".").sequences) == ["v_wall"]


def test_the_real_strip(data: Path) -> None:
    path = data / "hpatches-strip" / "ref.png"
    patches = read_strip(path)
    assert patches.shape == (1123, 65, 65)
    assert patches.dtype == np.uint8
    whole = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    assert np.array_equal(patches[1122], whole[65 * 1122 :])
    # Rows of one patch continue smoothly; a cut at the wrong place would have jumps in its middle.
    steps = np.abs(np.diff(patches.astype(float), axis=1)).mean((0, 2))
    jump = np.abs(patches[1:, 0].astype(float) - patches[:-1, -1]).mean()
    assert steps.max() < jump / 3


def test_colour_strips_become_grey(tmp_path: Path, camera: np.ndarray) -> None:
    strip = tiles(camera, 2, 0).reshape(-1, SIDE)
    cv2.imwrite(str(tmp_path / "x.png"), np.repeat(strip[:, :, None], 3, 2))
    assert np.array_equal(read_strip(tmp_path / "x.png").reshape(-1, SIDE), strip)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda s: (s / "v_wall" / "h3.png").unlink(),
            r"v_wall has 15 of the 16 strips.*missing: h3\.png",
        ),
        (
            lambda s: write_strip(s / "v_wall" / "t2.png", np.zeros((3, SIDE, SIDE), np.uint8)),
            r"v_wall/t2\.png has 3 patches, but ref\.png of the same sequence has 4",
        ),
        (
            lambda s: cv2.imwrite(str(s / "v_wall" / "e1.png"), np.zeros((260, 64), np.uint8)),
            r"v_wall/e1\.png is 64 x 260 pixels: the height of a column",
        ),
        (
            lambda s: cv2.imwrite(str(s / "v_wall" / "e1.png"), np.zeros((256, 64), np.uint8)),
            r"v_wall/e1\.png is 64 pixels wide: a strip of HPatches has 65",
        ),
        (lambda s: cut(s / "v_wall" / "e4.png"), r"v_wall/e4\.png is truncated"),
        (lambda s: (s / "v_wall" / "e4.png").write_bytes(b"no"), r"e4\.png is damaged"),
    ],
)
def test_damage_is_named(folder: Path, damage, message: str) -> None:
    damage(folder)
    with pytest.raises(HardnetError, match=message):
        read_hpatches(folder)


def test_no_sequences(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="is not a patch set"):
        read_hpatches(tmp_path)
    with pytest.raises(HardnetError, match="does not exist"):
        read_hpatches(tmp_path / "absent")


def test_groups() -> None:
    assert [group_of(n) for n in ("v_a", "i_a", "graf", "viola")] == [
        "viewpoint",
        "illumination",
        "other",
        "other",
    ]


# ---- splits -------------------------------------------------------------------------------------


def test_splits_keep_the_order_of_the_file(folder: Path, tmp_path: Path) -> None:
    table = {"a": {"name": "a", "test": ["v_wall", "i_lamp"], "train": ["v_book"]}}
    (folder / "splits.json").write_text(json.dumps(table))
    found = read_hpatches(folder)
    split = choose_split(found, "a")
    assert (split.name, split.test, split.train) == ("a", ("v_wall", "i_lamp"), ("v_book",))
    table["a"]["test"].reverse()
    (tmp_path / "mine.json").write_text(json.dumps(table))
    assert choose_split(found, "a", tmp_path / "mine.json").test == ("i_lamp", "v_wall")


def test_full_view_and_illum_follow_from_names(folder: Path) -> None:
    found = read_hpatches(folder)
    assert choose_split(found, "full").test == (
        "v_wall",
        "i_lamp",
        "v_book",
    )  # published ones first
    assert choose_split(found, "view").test == ("v_wall", "v_book")
    assert choose_split(found, "illum").test == ("i_lamp",)
    (folder / "splits.json").write_text('{"full": {"test": ["v_wall", "i_lamp"]}}')
    assert choose_split(found, "full").test == ("v_wall", "i_lamp")
    assert list(find_splits(found)) == ["full", "view", "illum"]


def test_unknown_splits_and_absent_sequences_are_named(folder: Path, tmp_path: Path) -> None:
    found = read_hpatches(folder)
    with pytest.raises(HardnetError, match=r"split a is not known: .*splits\.json must name"):
        choose_split(found, "a")
    (folder / "splits.json").write_text('{"a": {"test": ["v_wall", "v_moon"], "train": ["i_x"]}}')
    with pytest.raises(HardnetError, match=r"split a names 2 of 3 .*: v_moon, i_x"):
        choose_split(found, "a")
    with pytest.raises(HardnetError, match=r"absent\.json does not exist"):
        choose_split(found, "a", tmp_path / "absent.json")


@pytest.mark.parametrize("text", ["{", "[]", '{"a": {}}', '{"a": 3}'])
def test_a_broken_split_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "splits.json").write_text(text)
    with pytest.raises(HardnetError, match=r"splits\.json is not a split file"):
        read_splits(tmp_path / "splits.json")


def test_the_official_splits(data: Path) -> None:
    splits = read_splits(data / "hpatches-tasks" / "splits.json")
    sizes = {name: (len(s.test), len(s.train)) for name, s in splits.items()}
    assert sizes == {
        **dict.fromkeys("abc", (40, 76)),
        "illum": (57, 0),
        "view": (59, 0),
        "full": (116, 0),
    }
    assert splits["a"].test[:2] == ("i_ajuntament", "i_resort")


# ---- for training -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [65, 32])
def test_sixteen_patches_of_each_point(folder: Path, camera: np.ndarray, size: int) -> None:
    done = []
    found = read_hpatches(folder)
    patches = as_patchset(found, ["v_wall", "v_book"], size, lambda k, n: done.append((k, n)))
    assert patches.patches.shape == (16 * 6, size, size)
    assert patches.pairs.shape == (0, 2)
    assert done[-1] == (96, 96)
    assert np.bincount(patches.points).tolist() == [16] * 6
    assert patches.images is not None
    assert np.bincount(patches.images).tolist() == [4] * 16 + [2] * 16
    assert np.array_equal(patches.images[patches.points == 5], np.arange(16, 32))
    for point, (s, count, row) in {1: (0, 4, 1), 5: (2, 2, 1)}.items():
        expected = [tiles(camera, count, 100 * s + t)[row] for t in range(16)]
        resized = [p if size == SIDE else cv2.resize(p, (size, size)) for p in expected]
        assert np.array_equal(patches.patches[patches.points == point], resized)


def test_the_cache_is_used_and_follows_changes(folder: Path) -> None:
    found = read_hpatches(folder)
    before = as_patchset(found, ["i_lamp"], 32)
    assert isinstance(before.patches, np.memmap)
    as_patchset(found, ["v_book"], 32)
    times = {path: path.stat().st_ctime_ns for path in set_cache(folder).folder.iterdir()}
    assert np.array_equal(as_patchset(found, ["i_lamp"], 32).patches, before.patches)
    assert times == {path: path.stat().st_ctime_ns for path in set_cache(folder).folder.iterdir()}
    write_strip(folder / "i_lamp" / "e1.png", np.full((3, SIDE, SIDE), 7, np.uint8))
    assert (as_patchset(found, ["i_lamp"], 32).patches[3:6] == 7).all()
    assert len(list(set_cache(folder).folder.glob("*.npy"))) == 2
    assert list(read_hpatches(folder).sequences) == list(found.sequences)


def test_a_strip_that_grew_after_opening_is_an_error(folder: Path) -> None:
    found = read_hpatches(folder)
    write_strip(folder / "i_lamp" / "e1.png", np.full((4, SIDE, SIDE), 7, np.uint8))
    with pytest.raises(HardnetError, match=r"e1\.png has 4 patches.*3"):
        as_patchset(found, ["i_lamp"], 32)
    assert not list(set_cache(folder).folder.iterdir())
    with pytest.raises(HardnetError, match=r"e1\.png has 4 patches.*3"):
        found.sequences["i_lamp"].patches("e1")


def test_unknown_or_no_names(folder: Path) -> None:
    found = read_hpatches(folder)
    with pytest.raises(HardnetError, match="v_moon"):
        as_patchset(found, ["v_moon"])
    with pytest.raises(HardnetError, match="no sequence was chosen"):
        as_patchset(found, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "is a Git LFS pointer"),
    ],
)
def test_files_that_are_not_there_really(folder: Path, content: str, message: str) -> None:
    (folder / "splits.json").write_text(content)
    with pytest.raises(HardnetError, match=rf"splits\.json {message}"):
        find_splits(read_hpatches(folder))
