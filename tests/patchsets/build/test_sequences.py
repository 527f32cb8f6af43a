"""HPatches and W1BS layouts from generated sequences of a real photo."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.frames import from_similarity, to_similarity
from hardnet.patchsets.build import sequences as fs
from hardnet.patchsets.build.views import add_noise
from hardnet.patchsets.hpatches import TAGS, choose_split, read_hpatches
from hardnet.patchsets.sequences import Sequence, find_sequences
from hardnet.patchsets.w1bs import read_w1bs

SETTINGS = fs.SequenceSettings(limit=40)
SHIFT = np.array([[1.0, 0, 12], [0, 1, -7], [0, 0, 1]])
TILT = np.array([[0.9, 0.05, 20], [-0.04, 0.95, 30], [1e-4, 5e-5, 1]])


def write_sequence(folder: Path, image: np.ndarray, homographies: list[np.ndarray]) -> None:
    folder.mkdir(parents=True)
    cv2.imwrite(str(folder / "1.png"), image)
    height, width = image.shape
    for k, homography in enumerate(homographies, 2):
        moved = cv2.warpPerspective(image, homography, (width, height))
        cv2.imwrite(str(folder / f"{k}.png"), moved)
        np.savetxt(folder / f"H_1_{k}", homography)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, camera: np.ndarray) -> list[Sequence]:
    """Two full sequences (one does not move), one of six targets, one short."""
    root = tmp_path_factory.mktemp("data")
    write_sequence(root / "still", camera, [np.eye(3)] * 5)
    write_sequence(root / "tilted", camera, [SHIFT, TILT, SHIFT @ TILT, TILT @ TILT, np.eye(3)])
    write_sequence(root / "v_long", camera, [SHIFT] * 6)
    write_sequence(root / "short", camera, [SHIFT, TILT])
    return find_sequences([root])


def tree(folder: Path) -> dict[str, bytes]:
    files = [p for p in folder.rglob("*") if p.is_file() and "cache" not in p.parts]
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


@pytest.fixture(scope="module")
def lost(found: list[Sequence]) -> Sequence:
    """One whose homographies leave nothing inside its images."""
    outside = np.array([[1, 0, 5e3], [0, 1, 0], [0, 0, 1.0]])
    away = tuple(replace(target, homography=outside) for target in found[0].targets)
    return replace(found[0], name="lost", targets=(away * 5)[:5])


@pytest.fixture(scope="module")
def made(
    found: list[Sequence], lost: Sequence, tmp_path_factory: pytest.TempPathFactory
) -> tuple[fs.SequenceReport, Path]:
    """A set in the HPatches layout, of all of them."""
    folder, steps = tmp_path_factory.mktemp("made") / "set", []
    report = fs.build_from_sequences(
        [*found, lost], folder, SETTINGS, 1, lambda done, total: steps.append((done, total))
    )
    assert steps == [(1, 4), (2, 4), (3, 4), (4, 4)]
    return report, folder


def test_hpatches_layout_names_splits_and_skips(made: tuple[fs.SequenceReport, Path]) -> None:
    report, folder = made
    assert dict(report.counts) == {"i_still": 40, "v_tilted": 40, "v_long": 40}
    assert list(report.skipped) == ["short", "lost"]
    assert "fewer than 2 keypoints" in report.skipped["lost"]
    hpatches = read_hpatches(folder)
    assert sorted(hpatches.sequences) == ["i_still", "v_long", "v_tilted"]
    for sequence in hpatches.sequences.values():
        assert sorted(p.stem for p in sequence.folder.glob("*.png")) == sorted(TAGS)
        assert sequence.patches("t5").shape == (40, 65, 65)
    assert choose_split(hpatches, "full").test == ("i_still", "v_long", "v_tilted")
    assert choose_split(hpatches, "view").test == ("v_long", "v_tilted")
    assert choose_split(hpatches, "illum").test == ("i_still",)
    # The official extractor takes whatever glob finds for a sequence.
    assert {p.name for p in folder.glob("[!.]*")} == set(hpatches.sequences)
    about = json.loads((folder / ".set.json").read_text())
    assert about["settings"]["limit"] == 40
    assert "short" in about["skipped"]


def test_every_strip_shows_the_patches_cut_by_the_noisy_frames(
    found: list[Sequence], made: tuple[fs.SequenceReport, Path]
) -> None:
    (tilted,) = (s for s in found if s.name == "tilted")
    reference, targets = fs.cut_sequence(tilted, SETTINGS)
    written = read_hpatches(made[1]).sequences["v_tilted"]
    assert np.array_equal(written.patches("ref"), reference)
    for level, letter in (("easy", "e"), ("hard", "h"), ("tough", "t")):
        for k in range(5):
            assert np.array_equal(written.patches(f"{letter}{k + 1}"), targets[level][k])
    distance = [
        np.mean([np.abs(t.astype(int) - reference).mean() for t in targets[level]])
        for level in ("easy", "hard", "tough")
    ]
    assert distance[0] < distance[1] < distance[2]


@pytest.mark.slow
def test_the_same_bytes_whatever_the_number_of_processes(
    found: list[Sequence], tmp_path: Path
) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        fs.build_from_sequences(found, tmp_path / name, SETTINGS, workers)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    for workers in (1, 2):
        fs.build_photo_pairs(found, tmp_path / f"w1bs-{workers}", SETTINGS, workers)
    assert tree(tmp_path / "w1bs-1") == tree(tmp_path / "w1bs-2")
    other = fs.SequenceSettings(limit=40, seed=1)
    fs.build_from_sequences(found, tmp_path / "other", other, 1)
    assert tree(tmp_path / "other")["i_still/e1.png"] != tree(tmp_path / "one")["i_still/e1.png"]
    assert tree(tmp_path / "other")["i_still/ref.png"] == tree(tmp_path / "one")["i_still/ref.png"]


def test_the_window_is_in_sigmas(found: list[Sequence]) -> None:
    image = cv2.imread(str(found[0].reference), cv2.IMREAD_GRAYSCALE)
    _, narrow, _ = to_similarity(fs.reference_frames(image, 6.0))
    _, wide, _ = to_similarity(fs.reference_frames(image, 24.0))
    np.testing.assert_allclose(wide, 4 * narrow, rtol=1e-5)


def test_noise_has_the_documented_size() -> None:
    frames = from_similarity([[100.0, 50.0]] * 2, 5.0, 0.3)  # half-size 30 px
    extreme = np.array([[1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]], np.float64)
    for factor in (1.0, 3.0):
        shifted, turned = add_noise(frames, extreme, factor)
        step = 30 * 0.15 * factor
        expected = [100 + step * np.cos(0.3), 50 + step * np.sin(0.3)]
        np.testing.assert_allclose(shifted[:, 2], expected, rtol=1e-5)
        np.testing.assert_allclose(shifted[:, :2], frames[0, :, :2], rtol=1e-5)
        _, sigma, angle = to_similarity(turned[None])
        assert sigma[0] == pytest.approx(5 * 2 ** (0.15 * factor), rel=1e-5)
        assert angle[0] == pytest.approx(0.3 + np.deg2rad(10 * factor), rel=1e-5)


def test_stretch_keeps_the_area_and_has_the_documented_ratio() -> None:
    frames = from_similarity([[100.0, 50.0]], 5.0)
    (out,) = add_noise(frames, np.array([[0, 0, 0, 0, 1, 0.4]]), 2.0)
    axes = np.linalg.svd(out[:, :2].astype(np.float64), compute_uv=False)
    assert axes[0] / axes[1] == pytest.approx(2 ** (2 * 0.1), rel=1e-5)
    assert axes.prod() == pytest.approx(30**2, rel=1e-5)


def test_only_frames_inside_all_images_are_kept() -> None:
    frames = from_similarity([[20, 20], [160, 120], [305, 120], [20, 120]], 2.0)  # half-size 12
    image = np.zeros((240, 320), np.uint8)
    kept = fs.visible_everywhere(frames, image, [(image, SHIFT)])
    # The first just stays in the shifted image (20 - 12 - 7 = 1), the third leaves on the right.
    np.testing.assert_array_equal(kept[:, :, 2], [[20, 20], [160, 120], [20, 120]])
    kept = fs.visible_everywhere(frames, image, [(image, SHIFT), (image[:, :150], np.eye(3))])
    np.testing.assert_array_equal(kept[:, :, 2], [[20, 20], [20, 120]])


def test_a_set_of_nothing_is_not_written(lost: Sequence, tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="lost: fewer than 2 keypoints"):
        fs.build_from_sequences([lost], tmp_path / "none", SETTINGS, 1)
    assert not list(tmp_path.iterdir())


def test_sets_are_not_overwritten_and_short_sequences_are_named(
    found: list[Sequence], tmp_path: Path
) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(HardnetError, match="exists already"):
        fs.build_from_sequences(found, tmp_path / "set", SETTINGS, 1)
    short = [s for s in found if s.name == "short"]
    with pytest.raises(HardnetError, match=r"5 target images.*short"):
        fs.build_from_sequences(short, tmp_path / "other", SETTINGS, 1)
    still = next(s for s in found if s.name == "still")
    twins = [still, replace(still, name="i_still")]
    with pytest.raises(HardnetError, match="i_still"):
        fs.build_from_sequences(twins, tmp_path / "x", SETTINGS, 1)


def test_the_real_sequences_get_the_right_prefix(data: Path) -> None:
    names = [fs.hpatches_name(s) for s in find_sequences([data / "oxford-affine"])]
    assert names == ["i_bikes", "v_graf", "i_trees", "i_ubc", "v_wall"]


def test_w1bs_pairs_are_exact_and_grouped(found: list[Sequence], tmp_path: Path) -> None:
    settings = fs.SequenceSettings(limit=30)
    subsets = {"short": "G"}
    fs.build_photo_pairs(found, tmp_path / "set", settings, 1, subsets)
    w1bs = read_w1bs(tmp_path / "set")
    assert set(w1bs.subsets) == {"G", "viewpoint", "photometric"}
    assert len(w1bs.pairs) == 5 + 5 + 6 + 2
    pairs = {pair.name: pair for pair in w1bs.pairs}
    assert (pairs["short-2"].subset, pairs["still-6"].subset) == ("G", "photometric")
    still = pairs["still-3"]
    assert np.array_equal(still.patches(1), still.patches(2))  # no noise at all
    moved = pairs["v_long-2"]  # by whole pixels: equal but for the phase of the pyramid
    assert np.abs(moved.patches(1).astype(int) - moved.patches(2)).mean() < 2
    tilted = pairs["tilted-3"]
    assert tilted.patches(1).shape == (30, 64, 64)
    assert np.abs(tilted.patches(1).astype(int) - tilted.patches(2)).mean() < 8
    with pytest.raises(HardnetError, match="no sequence called graf"):
        fs.build_photo_pairs(found, tmp_path / "x", settings, 1, {"graf": "G"})


def test_very_tall_strips_are_read_back(tmp_path: Path) -> None:
    from hardnet.patchsets.patchset import read_picture, write_strip

    rng = np.random.default_rng(0)
    patches = rng.integers(0, 255, (1500, 65, 65), np.uint8)  # 97 500 rows
    for name in ("strip.png", "strip.bmp"):
        write_strip(tmp_path / name, patches)
        assert np.array_equal(read_picture(tmp_path / name).reshape(-1, 65, 65), patches)
