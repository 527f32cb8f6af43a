"""`hardnet colmap` and `hardnet bench sfm` from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")

from hardnet.cli.app import app
from hardnet.errors import HardnetError
from hardnet.interop.colmap.reconstruction import (
    ModelNumbers,
    PairSettings,
    ReconstructionReport,
    ReconstructionSettings,
)

run = CliRunner()
FAST = ["--descriptor", "rootsift", "--keypoints", "300", "--max-size", "300"]


@pytest.fixture
def album(photos: Path, tmp_path: Path) -> Path:
    """Two views of a motorcycle, something else, and a broken file."""
    folder = tmp_path / "photos [1]"
    folder.mkdir()
    for name in ("motorcycle_left.png", "motorcycle_right.png", "camera.png"):
        shutil.copy(photos / name, folder)
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


def test_options_become_settings(
    album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[ReconstructionSettings] = []
    numbers = ModelNumbers(3, 1234, 5000, 4.05, 0.51)

    def pretend(
        images: Path, work: Path, settings: ReconstructionSettings, **options: object
    ) -> ReconstructionReport:
        given.append(settings)
        return ReconstructionReport(3, {}, 9, 3, 3, 99, {"sparse/0": numbers})

    monkeypatch.setattr("hardnet.cli.colmap.reconstruct", pretend)
    monkeypatch.setattr("hardnet.interop.colmap.reconstruction.MANY_PHOTOS", 2)
    command = ["colmap", str(album), "-o", str(tmp_path / "work")]
    done = run.invoke(app, command)
    assert given == [ReconstructionSettings()]
    assert "4 photos have 6 pairs" in done.stderr
    for part in ("1234", "4.05", "0.510 px"):
        assert part in done.stdout
    options = "--pairs sequential --overlap 5 --no-quadratic --loop 7 --max-size 0 --upright "
    options += "--camera-model pinhole --single-camera --focal 900 --ratio 0.8 --min-images 4 "
    options += "--guided"
    done = run.invoke(app, [*command, *options.split()])
    assert "pairs;" not in done.stderr
    assert given[1].pairs == PairSettings("sequential", 5, False, 7)
    assert (given[1].max_size, given[1].upright, given[1].strategy.ratio) == (None, True, 0.8)
    camera = given[1].cameras
    assert (camera.model, camera.single, camera.focal) == ("PINHOLE", True, 900)
    assert given[1].mapper.min_images == 4
    assert given[1].strategy.guided


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


def test_pairs_of_an_index(album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[ReconstructionSettings] = []

    def pretend(
        images: Path, work: Path, settings: ReconstructionSettings, **options: object
    ) -> ReconstructionReport:
        given.append(settings)
        return ReconstructionReport(
            3, {}, 9, 3, 3, 99, {"sparse/0": ModelNumbers(3, 1234, 5000, 4.05, 0.51)}
        )

    def found(index: Path, photos: dict[str, Path], similar: int, **_: object) -> tuple:
        assert (index, similar, len(photos)) == (Path("some.index"), 2, 4)
        return [("camera.png", "motorcycle_left.png")], ["broken.jpg"]

    monkeypatch.setattr("hardnet.cli.colmap.reconstruct", pretend)
    monkeypatch.setattr("hardnet.cli.colmap.similar_pairs", found)
    command = ["colmap", str(album), "-o", str(tmp_path / "work"), "--pairs", "retrieval"]
    done = run.invoke(app, command)
    assert "--pairs retrieval needs --index" in str(done.exception)
    done = run.invoke(app, [*command[:-2], "--index", "some.index"])
    assert "--index works only with --pairs retrieval" in str(done.exception)
    done = run.invoke(app, [*command, "--index", "some.index", "--similar", "2"])
    assert done.exit_code == 0, done.exception
    assert "1 photo not in some.index" in done.stderr
    assert given[0].pairs == tmp_path / "work.pairs.txt"
    assert (tmp_path / "work.pairs.txt").read_text() == "camera.png\tmotorcycle_left.png\n"
