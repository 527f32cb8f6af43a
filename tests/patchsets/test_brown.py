"""The Brown format: what is written is what is read, and damage is named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets import brown
from hardnet.patchsets.brown import PAIR_FILE, BrownWriter, draw_pairs, open_brown, read_brown
from hardnet.patchsets.patchset import set_cache
from hardnet.storage import OwnedFolder


def write(folder: Path, count: int = 300) -> np.ndarray:
    patches = np.random.default_rng(0).integers(0, 256, (count, 64, 64), np.uint8)
    points = np.arange(count) // 3
    with BrownWriter(folder) as writer:
        half = count // 2
        writer.add(patches[:half], points[:half], group=0)
        writer.add(patches[half:], points[half:], group=1)
        writer.finish(pairs=100, seed=0, extra_files={"set.json": "{}"})
    return patches


def test_round_trip_over_two_sheets(tmp_path: Path) -> None:
    patches = write(tmp_path / "set")
    found = read_brown(tmp_path / "set")
    assert np.array_equal(found.patches, patches)
    assert np.array_equal(found.points, np.arange(300) // 3)
    assert len(found.pairs) == 100
    assert found.pair_labels.sum() == 50


def test_layout_is_sixteen_by_sixteen_in_reading_order(tmp_path: Path) -> None:
    patches = write(tmp_path / "set")
    sheets = sorted((tmp_path / "set").glob("*.bmp"))
    assert [s.name for s in sheets] == ["patches0000.bmp", "patches0001.bmp"]
    first = cv2.imread(str(sheets[0]), cv2.IMREAD_UNCHANGED)
    assert first.shape == (1024, 1024)
    assert np.array_equal(first[64:128, 128:192], patches[16 + 2])
    last = cv2.imread(str(sheets[1]), cv2.IMREAD_UNCHANGED)
    assert (last[3 * 64 :] == 0).all()  # 300 - 256 = 44 patches fill 2 rows and 12 of the third
    rows = (tmp_path / "set" / "info.txt").read_text().splitlines()
    assert rows[7] == "2 0"


def test_the_image_of_each_patch_is_kept(tmp_path: Path) -> None:
    patches = np.random.default_rng(0).integers(0, 256, (6, 64, 64), np.uint8)
    with BrownWriter(tmp_path / "set") as writer:
        writer.add(patches[:4], np.array([0, 0, 1, 1]), 0, np.array([3, 5, 3, 5]))
        writer.add(patches[4:], np.array([2, 2]), 1, 7)
        writer.finish(pairs=4, seed=0, extra_files={})
    assert (tmp_path / "set/info.txt").read_text().splitlines()[1] == "0 5"
    images = read_brown(tmp_path / "set").images
    assert images is not None
    assert images.tolist() == [3, 5, 3, 5, 7, 7]


def test_small_patches_are_two_by_two_means(tmp_path: Path) -> None:
    patches = write(tmp_path / "set")
    small = read_brown(tmp_path / "set", size=32).patches
    means = patches.reshape(300, 32, 2, 32, 2).mean((2, 4))
    assert np.abs(small - means).max() <= 0.5


def test_second_opening_reads_only_the_cache(tmp_path: Path) -> None:
    patches = write(tmp_path / "set")
    first = read_brown(tmp_path / "set")
    cache = set_cache(tmp_path / "set").folder
    times = {path: path.stat().st_ctime_ns for path in cache.iterdir()}
    second = read_brown(tmp_path / "set")
    assert np.array_equal(second.patches, patches)
    assert np.array_equal(second.points, first.points)
    assert np.array_equal(second.pairs, first.pairs)
    for array in (second.patches, second.points, second.pairs):
        assert isinstance(array, np.memmap)
    assert times == {path: path.stat().st_ctime_ns for path in cache.iterdir()}


def test_a_changed_set_is_read_again(tmp_path: Path) -> None:
    patches = write(tmp_path / "set")
    before = read_brown(tmp_path / "set", size=32)
    sheet = tmp_path / "set" / "patches0000.bmp"
    cv2.imwrite(str(sheet), np.full((1024, 1024), 9, np.uint8))
    (tmp_path / "set" / "info.txt").write_text("".join(f"{k // 3} 0\n" for k in range(299)))
    (tmp_path / "set" / PAIR_FILE).write_text("0 0 0 298 99 0\n")
    after = read_brown(tmp_path / "set", size=32)
    assert (after.patches[:256] == 9).all()
    assert np.array_equal(after.patches[256:], before.patches[256:299])
    assert len(after) == 299
    assert after.pairs.tolist() == [[0, 298]]
    assert len(list(set_cache(tmp_path / "set").folder.iterdir())) == 3
    assert np.array_equal(read_brown(tmp_path / "set").patches[256:], patches[256:299])


def test_nothing_is_written_into_the_set(tmp_path: Path, monkeypatch) -> None:
    patches = write(tmp_path / "set")
    before = sorted((tmp_path / "set").rglob("*"))
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path / "user"))
    assert np.array_equal(read_brown(tmp_path / "set").patches, patches)
    assert sorted((tmp_path / "set").rglob("*")) == before
    assert len(list((tmp_path / "user").rglob("*.npy"))) == 3


def test_some_patches_without_a_cache(tmp_path: Path) -> None:
    patches = write(tmp_path / "set")
    found = open_brown(tmp_path / "set")
    assert len(found) == 300
    assert np.array_equal(found.patches([299, 0, 17, 256]), patches[[299, 0, 17, 256]])
    assert not list(set_cache(tmp_path / "set").folder.glob("patches*"))


@pytest.mark.parametrize("name", ["liberty", "Yosemite-Harris", "notredame_harris"])
def test_known_sets_have_known_counts(tmp_path: Path, name: str) -> None:
    write(tmp_path / name)
    count = brown.COUNTS[name.lower().replace("-", "_")]
    with pytest.raises(HardnetError, match=rf"has 300 rows, but {name} has {count} patches"):
        read_brown(tmp_path / name)


def test_which_pair_file(tmp_path: Path) -> None:
    write(tmp_path / "set")
    folder = tmp_path / "set"
    (folder / "m50_200000_200000_0.txt").write_text("0 0 0 1 0 0\n")
    (folder / "m50_3000_3000_0.txt").write_text("0 0 0 2 0 0\n")
    assert len(read_brown(folder).pairs) == 100
    (folder / PAIR_FILE).unlink()
    assert read_brown(folder).pairs.tolist() == [[0, 1]]  # the largest, by number not by letter


def test_no_pair_file_is_no_pairs(tmp_path: Path) -> None:
    write(tmp_path / "set")
    (tmp_path / "set" / PAIR_FILE).unlink()
    assert read_brown(tmp_path / "set").pairs.shape == (0, 2)


def test_other_pictures_are_not_sheets(tmp_path: Path) -> None:
    patches = write(tmp_path / "set")
    cv2.imwrite(str(tmp_path / "set" / "contact.bmp"), np.zeros((1024, 1024), np.uint8))
    assert np.array_equal(read_brown(tmp_path / "set").patches, patches)


@pytest.mark.slow
def test_450k_patches_open_at_once_the_second_time(tmp_path: Path, camera: np.ndarray) -> None:
    count, pairs = brown.COUNTS["liberty"], 100_000
    folder = tmp_path / "liberty"
    folder.mkdir()
    cv2.imwrite(str(folder / "patches0000.bmp"), np.tile(camera, (2, 2)))
    for k in range(1, -(-count // 256)):  # links: the real number of files, not their bytes
        os.link(folder / "patches0000.bmp", folder / f"patches{k:04d}.bmp")
    points = np.arange(count) // 3
    np.savetxt(folder / "info.txt", np.stack([points, 0 * points], 1), "%d")
    a, b = np.random.default_rng(0).integers(0, count, (2, pairs))
    rows = np.stack([a, points[a], 0 * a, b, points[b], 0 * b], 1)
    np.savetxt(folder / PAIR_FILE, rows, "%d")
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        found = read_brown(folder, size=32)
        labels = found.pair_labels
        seconds.append(time.perf_counter() - start)
    print(f"{count} patches: first {seconds[0]:.1f} s, second {seconds[1]:.3f} s")
    assert found.patches.shape == (count, 32, 32)
    assert np.array_equal(labels, points[a] == points[b])
    assert seconds[1] < 1


def test_pairs_are_half_matching_and_negatives_share_the_scene() -> None:
    points = np.arange(600) // 3
    groups = np.arange(600) // 300
    pairs = draw_pairs(points, groups, 1000, seed=1)
    same = points[pairs[:, 0]] == points[pairs[:, 1]]
    assert same.sum() == 500
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert (groups[pairs[:, 0]] == groups[pairs[:, 1]]).all()
    assert np.array_equal(pairs, draw_pairs(points, groups, 1000, seed=1))


def test_no_matching_pair_comes_twice_and_few_patches_give_few_pairs() -> None:
    points = np.array([0, 0, 0, 1, 1, 2])
    pairs = draw_pairs(points, np.zeros(6, int), 1000, seed=0)
    same = points[pairs[:, 0]] == points[pairs[:, 1]]
    matching = {tuple(sorted(pair)) for pair in pairs[same].tolist()}
    assert matching == {(0, 1), (0, 2), (1, 2), (3, 4)}
    assert same.sum() == (~same).sum() == 4


@pytest.mark.parametrize("points", [[0, 0], [0, 1], [0]])
def test_a_set_without_two_kinds_of_pairs_is_refused(points: list[int]) -> None:
    with pytest.raises(HardnetError, match="two 3D points"):
        draw_pairs(np.array(points), np.zeros(len(points), int), 10, seed=0)


def test_two_writers_of_one_name_do_not_meet(tmp_path: Path) -> None:
    stale = tmp_path / "set.999999999-0123abcd.part"
    OwnedFolder.mark(stale).claim("patches0000.bmp").write_text("of a killed process")
    foreign = tmp_path / "set.999999999-4567.part"
    foreign.mkdir()
    script = (
        "import sys, numpy as np\n"
        "from hardnet.patchsets.brown import BrownWriter\n"
        "writer = BrownWriter(sys.argv[1])\n"
        "writer.add(np.zeros((4, 64, 64), np.uint8), np.array([0, 0, 1, 1]), 0)\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "writer.finish(4, 0, {})\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "set")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        assert not stale.exists()
        assert foreign.exists()
        with BrownWriter(tmp_path / "set") as mine:
            mine.add(np.ones((4, 64, 64), np.uint8), np.array([0, 0, 1, 1]), 0)
            other.communicate("\n")
            assert other.returncode == 0
            with pytest.raises(HardnetError, match="exists already"):
                mine.finish(4, 0, {})
    assert read_brown(tmp_path / "set").patches.max() == 0


def test_nothing_appears_when_writing_fails(tmp_path: Path) -> None:
    wrong = np.zeros((300, 65, 64), np.uint8)
    with pytest.raises(ValueError, match="broadcast"), BrownWriter(tmp_path / "set") as writer:  # noqa: PT012
        writer.add(np.concatenate([wrong[:, :64], wrong[:, :64]]), np.arange(600), 0)
        writer.add(wrong, np.arange(300), 0)
    assert list(tmp_path.iterdir()) == []


def test_the_second_column_is_the_image(tmp_path: Path) -> None:
    write(tmp_path / "set")
    info = tmp_path / "set" / "info.txt"
    assert open_brown(tmp_path / "set").images is None  # the same in all rows
    info.write_text("".join(f"{k // 3} {k % 7}\n" for k in range(300)))
    images = read_brown(tmp_path / "set").images
    assert images is not None
    assert images.tolist() == [k % 7 for k in range(300)]
    info.write_text("".join(f"{k // 3}\n" for k in range(300)))
    assert open_brown(tmp_path / "set").images is None


def test_an_existing_set_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "set")
    with pytest.raises(HardnetError, match="exists already"):
        BrownWriter(tmp_path / "set")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: (s / "info.txt").unlink(), "no info.txt"),
        (lambda s: (s / "info.txt").write_text(""), "is empty"),
        (lambda s: (s / "info.txt").write_text("x 0\n"), "point number"),
        (
            lambda s: (s / "info.txt").write_text("".join(f"{k // 3} x\n" for k in range(300))),
            "second column must be the number of an image",
        ),
        (lambda s: (s / "patches0001.bmp").unlink(), "has 1 sheets"),
        (lambda s: shutil.copy(s / "patches0001.bmp", s / "patches0002.bmp"), "300 rows .* need 2"),
        (lambda s: (s / "patches0001.bmp").write_bytes(b"BM123"), r"patches0001\.bmp is damaged"),
        (
            lambda s: (s / "patches0001.bmp").write_bytes(
                (s / "patches0001.bmp").read_bytes()[:-5000]
            ),
            r"patches0001\.bmp is truncated",
        ),
        (
            lambda s: cv2.imwrite(str(s / "patches0001.bmp"), np.zeros((1024, 512), np.uint8)),
            r"patches0001\.bmp is 512 x 1024 pixels: expected a 1024 x 1024 sheet",
        ),
        (
            lambda s: (s / PAIR_FILE).write_text("0 0 0 1 0 0\n0 0 0 300 7 0\n"),
            r"row 2 names patch 300, but .*info\.txt has 300 rows",
        ),
        (lambda s: (s / PAIR_FILE).write_text("-1 0 0 1 0 0\n"), "row 1 names patch -1"),
        (
            lambda s: (s / PAIR_FILE).write_text("0 0 0 4 5 0\n"),
            r"row 1 says that patch 4 shows point 5, but .*info\.txt says 1",
        ),
        (lambda s: (s / PAIR_FILE).write_text(""), f"{PAIR_FILE} is empty"),
        (
            lambda s: (s / "patches0001.bmp").write_text("version https://git-lfs.github.com/x\n"),
            r"patches0001\.bmp is a Git LFS pointer",
        ),
        (lambda s: (s / PAIR_FILE).write_text("0 5\n"), "pair file"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage, message: str) -> None:
    write(tmp_path / "set")
    damage(tmp_path / "set")
    with pytest.raises(HardnetError, match=message):
        read_brown(tmp_path / "set")
    assert not list(set_cache(tmp_path / "set").folder.glob("*.part"))
