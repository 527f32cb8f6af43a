"""A folder of photos becomes a model; killed half-way, it continues; other inputs are refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")

from hardnet import match
from hardnet.errors import HardnetError, MissingExtraError
from hardnet.images import read_image
from hardnet.interop import feature_files
from hardnet.interop.colmap import CameraSettings, ReconstructionSettings, reconstruct
from hardnet.matching.matches import Strategy

SMALL = ReconstructionSettings(descriptor="rootsift", keypoints=200, max_size=300)

CHAIR = ReconstructionSettings(descriptor="hardnet-small", keypoints=700)

CHILD = """
import os, signal, sys
from pathlib import Path
from hardnet.interop.colmap import ReconstructionSettings, reconstruct

def progress(what, done, total):
    if (what, done) == (sys.argv[3], int(sys.argv[4])):
        os.kill(os.getpid(), signal.SIGKILL)

settings = ReconstructionSettings(descriptor="rootsift", keypoints=200, max_size=300)
reconstruct(Path(sys.argv[1]), Path(sys.argv[2]), settings, mapping=False, progress=progress)
"""


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """Two views of a motorcycle in a subfolder, others that show something else, one broken."""
    folder = tmp_path_factory.mktemp("album")
    (folder / "moto é").mkdir()
    for side in ("left", "right"):
        shutil.copy(photos / f"motorcycle_{side}.png", folder / "moto é" / f"{side} 1.png")
    for name in ("camera.png", "coffee.png"):
        shutil.copy(photos / name, folder)
    (folder / "broken.jpg").write_bytes(b"no photo")
    return folder


def _pairs(database: Path) -> dict[tuple[str, str], tuple[list[list[int]], list[list[int]]]]:
    """Names -> matches, and which of them are verified."""
    with pycolmap.Database.open(database) as opened:
        names = {image.image_id: image.name for image in opened.read_all_images()}
        found = {}
        for pair, rows in zip(*opened.read_all_matches(), strict=True):
            a, b = pycolmap.pair_id_to_image_pair(pair)
            inliers = opened.read_two_view_geometry(a, b).inlier_matches
            found[names[a], names[b]] = rows.tolist(), inliers.tolist()
    return found


@pytest.fixture(scope="module")
def whole(album: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work folder of a run that nobody disturbed."""
    work = tmp_path_factory.mktemp("whole") / "work"
    report = reconstruct(album, work, SMALL, mapping=False, workers=1)
    assert list(report.skipped) == ["broken.jpg"]
    assert "damaged" in report.skipped["broken.jpg"]
    assert (report.photos, report.pairs, report.models) == (5, 6, None)
    return work


def test_only_photos_of_the_same_thing_are_verified(whole: Path) -> None:
    pairs = _pairs(whole / "database.db")
    assert len(pairs) == 6
    verified = [names for names, (_, inliers) in pairs.items() if inliers]
    assert verified == [("moto é/left 1.png", "moto é/right 1.png")]
    matches, inliers = pairs[verified[0]]
    assert len(inliers) >= 15
    assert {tuple(row) for row in inliers} <= {tuple(row) for row in matches}


@pytest.mark.parametrize(
    ("stage", "done", "again"),
    # Of the first two photos one is broken, and tried once more.
    [
        pytest.param("describing", 2, 1, marks=pytest.mark.slow),
        pytest.param("database", 0, 0, marks=pytest.mark.slow),
        ("matches", 3, 3),
    ],
)
def test_a_killed_run_continues(
    album: Path, whole: Path, tmp_path: Path, stage: str, done: int, again: int
) -> None:
    work = tmp_path / "work"
    command = [sys.executable, "-c", CHILD, str(album), str(work), stage, str(done)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    steps: list[tuple[str, int]] = []
    note = lambda what, done, total: steps.append((what, done))  # noqa: E731
    reconstruct(album, work, SMALL, mapping=False, workers=3, progress=note)
    assert steps[0] == (stage, again)  # what was done before was not done again
    # Nor do threads change the result: the whole run had one.
    assert _pairs(work / "database.db") == _pairs(whole / "database.db")
    steps.clear()
    reconstruct(album, work, SMALL, mapping=False, progress=note)
    assert not steps


def test_other_inputs_need_another_folder(album: Path, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="made with settings keypoints=200, not 100"):
        reconstruct(album, whole, replace(SMALL, keypoints=100), mapping=False)
    fewer = tmp_path / "fewer"
    shutil.copytree(album, fewer)
    (fewer / "camera.png").unlink()
    with pytest.raises(HardnetError, match="made with other photos"):
        reconstruct(fewer, whole, SMALL, mapping=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("not yours")
    with pytest.raises(HardnetError, match="is in the way"):
        reconstruct(album, tmp_path / "mine", SMALL)


def test_photos_that_do_not_fit_together(album: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "work")
    report = reconstruct(album, tmp_path / "work", SMALL)
    assert report.models == {}
    assert report.verified_pairs == 1


def test_deleted_results_are_made_again(album: Path, whole: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(whole, work)
    (work / "features.h5").unlink()  # not needed any more
    steps: list[str] = []
    note = lambda what, done, total: steps.append(what)  # noqa: E731
    reconstruct(album, work, SMALL, mapping=False, progress=note)
    assert not steps
    (work / "database.db").unlink()
    reconstruct(album, work, SMALL, mapping=False, progress=note)
    assert dict.fromkeys(steps) == dict.fromkeys(["describing", "writing", "database", "matches"])
    assert _pairs(work / "database.db") == _pairs(whole / "database.db")


def test_a_full_disk(album: Path, whole: Path, tmp_path: Path) -> None:
    """COLMAP's complaint is one line, and the next run continues."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))"
    work = tmp_path / "work"
    shutil.copytree(whole, work)
    (work / "database.db").unlink()
    command = [sys.executable, "-c", f"{limit}\n{CHILD}", str(album), str(work), "no stage", "0"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert f"HardnetError: COLMAP failed in {work}" in done.stderr
    assert "is the disk full" in done.stderr
    reconstruct(album, work, SMALL, mapping=False)
    assert _pairs(work / "database.db") == _pairs(whole / "database.db")


def test_too_few_photos(photos: Path, tmp_path: Path) -> None:
    one = tmp_path / "one"
    one.mkdir()
    shutil.copy(photos / "camera.png", one)
    with pytest.raises(HardnetError, match="1 of 1 photo can be used, 2 are needed"):
        reconstruct(one, tmp_path / "a", SMALL)
    assert not (tmp_path / "a").exists()  # or it would refuse the photos that are added now
    (one / "broken.png").write_bytes(b"")
    with pytest.raises(HardnetError, match=r"1 of 2 photos .*broken\.png is empty"):
        reconstruct(one, tmp_path / "b", SMALL)
    with pytest.raises(HardnetError, match="is not a folder"):
        reconstruct(tmp_path / "absent", tmp_path / "c", SMALL)


def test_wrong_settings_before_any_work(album: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    with pytest.raises(HardnetError, match="no camera model 'X'"):
        reconstruct(album, work, replace(SMALL, cameras=CameraSettings("X")))
    with pytest.raises(HardnetError, match="cannot be read as a list of pairs"):
        reconstruct(album, work, replace(SMALL, pairs=tmp_path / "absent.txt"))
    assert not work.exists()


def test_pairs_of_a_file_and_a_photo_without_keypoints(album: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(album, folder)
    cv2.imwrite(str(folder / "flat.png"), np.full((64, 64), 128, np.uint8))
    listed = tmp_path / "pairs.txt"
    listed.write_text("camera.png flat.png\nmoto é/left 1.png moto é/right 1.png\n", "utf-8")
    settings = replace(SMALL, pairs=listed)
    report = reconstruct(folder, tmp_path / "work", settings, mapping=False)
    found = _pairs(tmp_path / "work" / "database.db")
    assert list(found) == [("moto é/left 1.png", "moto é/right 1.png")]
    assert (report.pairs, report.verified_pairs) == (2, 1)
    listed.write_text("camera.png moto é/right 1.png\n", "utf-8")
    with pytest.raises(HardnetError, match=r"settings pairs=list \w{16}, not list \w{16}: "):
        reconstruct(folder, tmp_path / "work", settings, mapping=False)


def test_a_wrong_list_of_pairs_is_refused_at_once(album: Path, tmp_path: Path) -> None:
    work, listed = tmp_path / "work", tmp_path / "pairs.txt"
    listed.write_text("camera.png nobody.png\n")
    with pytest.raises(HardnetError, match=r"line 1: no photo is called nobody\.png"):
        reconstruct(album, work, replace(SMALL, pairs=listed), mapping=False)
    assert not work.exists()


def test_guided_matches(album: Path, tmp_path: Path) -> None:
    names = ("left 1.png", "right 1.png")
    counts = []
    for guided in (False, True):
        strategy = Strategy(guided=guided, threshold=1.0)
        work = tmp_path / f"{guided}"
        settings = replace(SMALL, strategy=strategy)
        reconstruct(album / "moto é", work, settings, mapping=False)
        matches, verified = _pairs(work / "database.db")[names]
        counts.append(len(verified))
        features = [feature_files.read_hdf5(work / "features.h5", name) for name in names]
        assert matches == match(*features, strategy=strategy).indices.tolist()
    assert counts[1] > counts[0]


def test_without_pycolmap(album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(MissingExtraError, match=r"hardnet\[sfm\]"):
        reconstruct(album, tmp_path / "work", SMALL)
    assert not (tmp_path / "work").exists()


@pytest.fixture(scope="module")
def chair(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four photos around a chair."""
    folder = tmp_path_factory.mktemp("chair")
    for photo in sorted((data / "multiview" / "chair").glob("*.jpg"))[:4]:
        shutil.copy(photo, folder)
    return folder


@pytest.fixture(scope="module")
def chair_work(chair: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("chair-work")
    reconstruct(chair, work, CHAIR)
    return work


def test_a_model_of_real_photos(chair: Path, chair_work: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in chair_work.rglob("*.bin")}
    report = reconstruct(chair, chair_work, CHAIR)
    assert {p: p.stat().st_mtime_ns for p in chair_work.rglob("*.bin")} == before
    assert report.models is not None
    (numbers,) = report.models.values()
    assert numbers.registered == 4
    assert numbers.points > 150
    assert numbers.observations == round(numbers.points * numbers.track_length)
    assert numbers.reprojection_error < 1
    assert json.loads((chair_work / "report.json").read_text()) == report.to_json()
    assert (
        f"element vertex {numbers.points}\n".encode() in (chair_work / "model-0.ply").read_bytes()
    )
    assert read_image(chair_work / "model-0.jpg").shape[1] > 100


@pytest.mark.slow
def test_the_same_model_every_time(chair: Path, chair_work: Path, tmp_path: Path) -> None:
    reconstruct(chair, tmp_path, CHAIR)
    for name in ("sparse/0/points3D.bin", "sparse/0/images.bin", "report.json"):
        assert (tmp_path / name).read_bytes() == (chair_work / name).read_bytes()
