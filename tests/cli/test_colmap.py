"""`hardnet colmap` and `hardnet bench sfm` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import pytest
from typer.testing import CliRunner

pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")

from hardnet.cli.app import app
from hardnet.descriptors import for_photos
from hardnet.errors import HardnetError
from hardnet.interop.colmap import CameraSettings
from hardnet.interop.colmap.mapping import MapperSettings
from hardnet.interop.colmap.reconstruction import PairSettings, ReconstructionSettings
from hardnet.matching.matches import Strategy
from hardnet.retrieval.index import Index

run = CliRunner()
FAST = ["--descriptor", "rootsift", "--keypoints", "300", "--max-size", "300"]


@pytest.fixture
def album(photos: Path, tmp_path: Path) -> Path:
    """Two views of a motorcycle, something else, and a broken file."""
    folder = tmp_path / "photos [1]"
    folder.mkdir()
    for name in ("motorcycle_left.png", "motorcycle_right.png", "camera.png"):
        photo = cv2.imread(str(photos / name))
        size = (300, round(300 * photo.shape[0] / photo.shape[1]))
        cv2.imwrite(str(folder / name), cv2.resize(photo, size, interpolation=cv2.INTER_AREA))
    (folder / "broken.jpg").write_bytes(b"no photo")
    return folder


def test_a_database_only(album: Path, tmp_path: Path) -> None:
    command = ["colmap", str(album), "-o", str(tmp_path / "work"), "--no-mapping", *FAST]
    done = run.invoke(app, [*command, "--json"])
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert report == json.loads((tmp_path / "work" / "report.json").read_text())
    assert (report["pairs"], report["verified_pairs"]) == (3, 1)
    assert list(report["skipped"]) == ["broken.jpg"]
    shown = run.invoke(app, command)
    assert "3 of 4" in shown.stdout
    assert "1 of 3 verified" in shown.stdout
    assert "skipped broken.jpg" in shown.stderr


def test_no_model_is_exit_code_1_with_a_reason(album: Path, tmp_path: Path) -> None:
    command = ["colmap", str(album), "-o", str(tmp_path / "work"), *FAST]
    done = run.invoke(app, [*command, "--json"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["models"] == {}
    assert "no model: 1 pair of photos verified" in done.stderr


def kept_settings(work: Path) -> dict[str, Any]:
    """The settings that a work folder says it was made with."""
    settings: dict[str, Any] = json.loads((work / "state.json").read_text())["settings"]
    return settings


def as_stored(settings: ReconstructionSettings) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(json.dumps(settings.to_json()))
    return stored


def test_options_become_settings(album: Path, tmp_path: Path) -> None:
    (album / "camera.png").unlink()  # of another size: --single-camera would refuse it
    plain = ReconstructionSettings(descriptor=for_photos(ReconstructionSettings.descriptor))
    command = ["colmap", str(album), "--no-mapping"]
    done = run.invoke(app, [*command, "-o", str(tmp_path / "plain")])
    assert done.exit_code == 0, done.exception
    assert kept_settings(tmp_path / "plain") == as_stored(plain)
    options = "--pairs sequential --overlap 5 --no-quadratic --loop 7 --max-size 0 --upright "
    options += "--camera-model pinhole --single-camera --focal 900 --ratio 0.8 --min-images 4 "
    options += "--guided --descriptor rootsift --keypoints 50"
    done = run.invoke(app, [*command, "-o", str(tmp_path / "other"), *options.split()])
    assert done.exit_code == 0, done.exception
    assert kept_settings(tmp_path / "other") == as_stored(
        ReconstructionSettings(
            descriptor="rootsift",
            keypoints=50,
            max_size=None,
            upright=True,
            pairs=PairSettings("sequential", 5, False, 7),
            strategy=Strategy(ratio=0.8, guided=True),
            cameras=CameraSettings("PINHOLE", True, 900.0),
            mapper=MapperSettings(min_images=4),
        )
    )


def test_all_pairs_of_many_photos_take_long(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(301):
        (tmp_path / "photos" / f"{number}.jpg").write_bytes(b"no photo")
    command = ["colmap", str(tmp_path / "photos"), "-o", str(tmp_path / "work"), *FAST]
    note = "note: 301 photos have 45150 pairs; --pairs sequential"
    assert note in run.invoke(app, command).stderr
    assert note not in run.invoke(app, [*command, "--pairs", "sequential"]).stderr


def test_mistakes_are_named(album: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ([str(tmp_path / "absent")], "is not a folder"),
        ([str(album), "--camera-model", "round"], "no camera model 'ROUND'"),
        ([str(album), "--camera-params", "1,x"], "give comma-separated numbers"),
        ([str(album), "--camera-params", "1,2"], "got 2 numbers"),
        ([str(album), "--camera-params", "900,nan,9,0"], "must be numbers"),
        ([str(album), "--camera-params", "-900,9,9,0"], "focal length above 0"),
        ([str(album), "--detector", "absent"], "no detector 'absent'"),
        ([str(album), "--pairs-file", str(tmp_path / "absent")], "list of pairs"),
    ):
        done = run.invoke(app, ["colmap", *arguments, "-o", str(tmp_path / "work"), *FAST])
        assert isinstance(done.exception, HardnetError)
        assert message in str(done.exception)
        assert not (tmp_path / "work").exists()
    assert run.invoke(app, ["colmap", str(album)]).exit_code == 2


def test_a_benchmark_that_cannot_begin(tmp_path: Path, album: Path) -> None:
    for arguments, message in (
        ([str(tmp_path / "absent")], "not a folder of photos"),
        ([str(album), "--detectors", "dog,absent"], "no detector 'absent'"),
        ([str(album), "-o", str(tmp_path)], "is a folder"),
    ):
        done = run.invoke(app, ["bench", "sfm", *arguments])
        assert isinstance(done.exception, HardnetError)
        assert message in str(done.exception)


def test_pairs_of_an_index(album: Path, tmp_path: Path) -> None:
    index = tmp_path / "some.index"
    settings = {"words": 16, "descriptor": "rootsift", "keypoints": 100}
    Index.build(index, [album / "camera.png", album / "motorcycle_left.png"], **settings)
    command = ["colmap", str(album), "-o", str(tmp_path / "work"), "--no-mapping", *FAST]
    done = run.invoke(app, [*command, "--pairs", "retrieval"])
    assert "--pairs retrieval needs --index" in str(done.exception)
    done = run.invoke(app, [*command, "--index", str(index)])
    assert "--index works only with --pairs retrieval" in str(done.exception)
    more = ["--pairs", "retrieval", "--index", str(index), "--similar", "2", "--json"]
    done = run.invoke(app, [*command, *more])
    assert done.exit_code == 0, done.exception
    assert f"2 photos not in {index}" in done.stderr
    assert (tmp_path / "work.pairs.txt").read_text() == "camera.png\tmotorcycle_left.png\n"
    assert json.loads(done.stdout)["pairs"] == 1
