"""Sets by name and their unions; pictures whose size is read from headers, damage that is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.brown import Brown, BrownWriter
from hardnet.patchsets.hpatches import TAGS, HPatches
from hardnet.patchsets.patchset import (
    JoinedRows,
    PatchSet,
    identify,
    join,
    open_set,
    open_sets,
    picture_size,
    read_picture,
)
from hardnet.patchsets.w1bs import W1BS


def make(name: str, points: list[int], pairs: list[tuple[int, int]], grey: int) -> PatchSet:
    patches = np.full((len(points), 2, 2), grey, np.uint8)
    return PatchSet(name, patches, np.array(points), np.array(pairs))


def test_points_never_collide_and_pairs_follow_their_patches() -> None:
    one = make("one", [7, 7, 9], [(0, 1), (1, 2)], 10)
    two = make("two", [7, 3, 7], [(0, 2), (0, 1)], 20)
    both = join([one, two])
    assert both.name == "one+two"
    # 7 and 9 of the first become 0 and 1; 3 and 7 of the second become 2 and 3.
    assert both.points.tolist() == [0, 0, 1, 3, 2, 3]
    assert both.pairs.tolist() == [[0, 1], [1, 2], [3, 5], [3, 4]]
    assert both.pair_labels.tolist() == [True, False, True, False]
    assert both.patches[:][:, 0, 0].tolist() == [10, 10, 10, 20, 20, 20]
    assert both.sets is not None
    assert both.sets.tolist() == [0, 0, 0, 1, 1, 1]


def test_images_never_collide() -> None:
    plain = make("plain", [7, 7, 9], [(0, 1)], 10)
    known = replace(make("known", [7, 3, 7], [(0, 2)], 20), images=np.array([4, 0, 1]))
    assert join([known, plain]).images is None
    images = join([known, known]).images
    assert images is not None
    assert images.tolist() == [4, 0, 1, 9, 5, 6]


def test_a_single_set_is_not_copied() -> None:
    one = make("one", [1, 1], [(0, 1)], 0)
    assert join([one]) is one


def test_a_union_is_not_copied_into_memory(tmp_path: Path) -> None:
    """Opened, joined and sampled, two maps of 64 MB take less than 8 MB of memory of our own."""
    sets = []
    for k in range(2):
        np.save(tmp_path / f"{k}.npy", np.full((65_536, 32, 32), k, np.uint8))
        patches = np.load(tmp_path / f"{k}.npy", mmap_mode="r")
        points = np.arange(65_536) // 2
        sets.append(PatchSet(str(k), patches, points, np.zeros((0, 2), np.int64)))
    before = _own_memory()
    both = join(sets)
    batch = both.patches[np.arange(0, 131_072, 64)]
    assert _own_memory() - before < 8e6
    assert (batch[:1024] == 0).all()
    assert (batch[1024:] == 1).all()


def _own_memory() -> int:
    """Bytes of this process that no file backs."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("memory is read from /proc")
    return 1024 * int(status.read_text().split("RssAnon:")[1].split()[0])


def test_joined_patches_are_indexed_like_an_array() -> None:
    rng = np.random.default_rng(0)
    parts = [rng.integers(0, 256, (n, 3, 3)).astype(np.uint8) for n in (4, 1, 7)]
    joined, array = JoinedRows(parts), np.concatenate(parts)
    assert joined.shape == array.shape
    assert len(joined) == len(array)
    indices = [
        *(0, 3, 4, 5, 11, -1, np.int64(4)),
        *(slice(None), slice(2, 9), slice(-3, None), slice(None, None, -2), slice(20, 30)),
        *([], [4], [11, 0, 4, 4, -12], rng.integers(-12, 12, 50), rng.integers(0, 12, (3, 5))),
        rng.random(12) < 0.5,
    ]
    for index in indices:
        rows = np.asarray(index, np.int64) if isinstance(index, list) else index
        assert np.array_equal(joined[index], array[rows]), index
        assert joined[index].shape == array[rows].shape
    for wrong in (12, -13, [0, 12], [0.5], np.ones(5, bool)):
        with pytest.raises(IndexError):
            joined[wrong]


def test_sets_that_cannot_be_joined() -> None:
    one = make("one", [1, 1], [(0, 1)], 0)
    large = PatchSet("large", np.zeros((2, 3, 3), np.uint8), one.points, one.pairs)
    with pytest.raises(HardnetError, match=r"different sides.*one 2, large 3"):
        join([one, large])
    with pytest.raises(HardnetError, match="none has no patches"):
        join([one, PatchSet("none", one.patches[:0], one.points[:0], one.pairs[:0])])


@pytest.mark.parametrize("suffix", [".png", ".bmp"])
@pytest.mark.parametrize("shape", [(30, 10), (130, 65), (3, 7), (17, 5, 3)])
def test_size_and_pixels(tmp_path: Path, suffix: str, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    path = tmp_path / f"ä b{suffix}"
    path.write_bytes(cv2.imencode(suffix, pixels)[1].tobytes())
    assert picture_size(path) == (shape[1], shape[0])
    grey = pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
    assert np.abs(read_picture(path).astype(int) - grey).max() <= (pixels.ndim == 3)


@pytest.mark.parametrize("suffix", [".png", ".bmp"])
@pytest.mark.parametrize("keep", [0.02, 0.5, 0.999])
def test_a_file_cut_short_is_named(
    tmp_path: Path, camera: np.ndarray, suffix: str, keep: float
) -> None:
    path = tmp_path / f"cut{suffix}"
    data = cv2.imencode(suffix, camera)[1].tobytes()
    path.write_bytes(data[: int(len(data) * keep)])
    for read in (picture_size, read_picture):
        with pytest.raises(HardnetError, match=rf"cut\{suffix} is truncated"):
            read(path)


def test_damage_inside_is_named_on_decoding(
    tmp_path: Path, camera: np.ndarray, capfd: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(cv2.imencode(".png", camera)[1].tobytes())
    data[len(data) // 2 : len(data) // 2 + 500] = bytes(500)
    (tmp_path / "bad.png").write_bytes(data)
    with pytest.raises(HardnetError, match=r"bad\.png is truncated or damaged"):
        read_picture(tmp_path / "bad.png")


@pytest.mark.parametrize("content", [b"", b"BM123", b"\x89PNG\r\n\x1a\n", b"<html>Moved</html>"])
def test_other_things_are_not_pictures(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(HardnetError, match=r"x\.png is damaged or neither"):
        picture_size(tmp_path / "x.png")


def test_an_absent_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match=r"x\.png is missing"):
        read_picture(tmp_path / "x.png")


@pytest.fixture
def sets(tmp_path: Path, camera: np.ndarray) -> Path:
    """A folder with one small set of each format."""
    patches = np.stack([camera[8 * i : 8 * i + 64, :64] for i in range(6)])
    with BrownWriter(tmp_path / "brown") as writer:
        writer.add(patches, np.arange(6) // 2, group=0)
        writer.finish(pairs=4, seed=0, extra_files={})
    for tag in TAGS:
        (tmp_path / "hpatches" / "v_x").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / "hpatches" / "v_x" / f"{tag}.png"), camera[:130, :65])
    for side in "12":
        (tmp_path / "w1bs" / "A" / side).mkdir(parents=True)
        cv2.imwrite(str(tmp_path / "w1bs" / "A" / side / "x.bmp"), camera[:64, :32])
    return tmp_path


@pytest.mark.parametrize(
    ("path", "kind", "opened"),
    [
        ("brown", "brown", Brown),
        ("hpatches", "hpatches", HPatches),
        ("hpatches/v_x", "hpatches", HPatches),
        ("w1bs", "w1bs", W1BS),
        ("w1bs/A", "w1bs", W1BS),
    ],
)
def test_kinds(sets: Path, path: str, kind: str, opened: type) -> None:
    assert identify(sets / path) == kind
    assert isinstance(open_set(str(sets / path)), opened)


def test_what_is_no_set(sets: Path) -> None:
    with pytest.raises(HardnetError, match="absent does not exist"):
        identify(sets / "absent")
    with pytest.raises(HardnetError, match=r"info\.txt is a file"):
        identify(sets / "brown" / "info.txt")
    (sets / "empty").mkdir()
    with pytest.raises(HardnetError, match=r"not a patch set: expected info\.txt.*\(W1BS\)$"):
        identify(sets / "empty")
    (sets / "brown" / "info.txt").unlink()
    with pytest.raises(HardnetError, match=r"sheets but no info\.txt"):
        identify(sets / "brown")


def test_a_folder_of_sets_names_them(sets: Path, tmp_path: Path) -> None:
    (sets / "more").mkdir()
    (sets / "brown").rename(sets / "more" / "liberty")
    with pytest.raises(HardnetError, match="name one of the folders in it: liberty"):
        identify(sets / "more")


@pytest.fixture
def folders(tmp_path: Path, camera: np.ndarray) -> Path:
    """A Brown set of 3 points and an HPatches set of two sequences with 2 and 1 points."""
    patches = np.stack([camera[8 * i : 8 * i + 64, :64] for i in range(6)])
    with BrownWriter(tmp_path / "brown") as writer:
        writer.add(patches, np.arange(6) // 2, group=0)
        writer.finish(pairs=4, seed=0, extra_files={})
    for name, count in {"v_x": 2, "i_y": 1}.items():
        (tmp_path / "hp" / name).mkdir(parents=True)
        for k, tag in enumerate(TAGS):
            strip = camera[k : k + 65 * count, :65]
            cv2.imwrite(str(tmp_path / "hp" / name / f"{tag}.png"), strip)
    (tmp_path / "hp" / "splits.json").write_text('{"a": {"test": ["v_x"], "train": ["i_y"]}}')
    return tmp_path


def test_brown_and_hpatches_are_joined(folders: Path) -> None:
    both = open_sets([str(folders / "brown"), str(folders / "hp")], 32)
    assert both.name == "brown+hp"
    assert both.patches.shape == (6 + 16 * 3, 32, 32)
    assert np.bincount(both.points).tolist() == [2, 2, 2, 16, 16, 16]
    assert len(both.pairs) == 4


def test_a_split_means_its_training_sequences(folders: Path, camera: np.ndarray) -> None:
    found = open_sets([f"{folders / 'hp'}:a"], 65)
    assert found.name == "hp:a"
    assert found.points.tolist() == [0] * 16
    assert np.array_equal(found.patches[3], camera[3:68, :65])


def test_a_colon_in_a_folder_name_is_no_split(folders: Path) -> None:
    (folders / "brown").rename(folders / "brown:a")
    assert len(open_sets([str(folders / "brown:a")], 64)) == 6


@pytest.mark.parametrize("second", ["brown", "./brown", "../{}/brown", "hp:a"])
def test_a_folder_is_named_once(folders: Path, second: str) -> None:
    first = f"{folders / 'hp'}" if second == "hp:a" else f"{folders / 'brown'}"
    with pytest.raises(HardnetError, match="is named twice"):
        open_sets([first, f"{folders}/{second.format(folders.name)}"], 32)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hp:b", "split b is not known"),
        ("hp:full", "split full has no training sequences"),
        ("brown:a", "only HPatches sets have splits"),
        ("absent", "does not exist"),
        ("absent:a", "absent does not exist"),
    ],
)
def test_what_cannot_be_trained_on(folders: Path, name: str, message: str) -> None:
    with pytest.raises(HardnetError, match=message):
        open_sets([str(folders / name)], 32)


def test_w1bs_is_for_testing(folders: Path, camera: np.ndarray) -> None:
    for side in "12":
        (folders / "w" / "A" / side).mkdir(parents=True)
        cv2.imwrite(str(folders / "w" / "A" / side / "x.bmp"), camera[:64, :32])
    with pytest.raises(HardnetError, match="for testing only"):
        open_sets([str(folders / "w")], 32)
