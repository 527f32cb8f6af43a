from __future__ import annotations

import json
import struct
import zlib
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet import detectors
from hardnet.images import read_image, write_image

from .conftest import Run, run

hardnet = partial(run, "match")


def rootsift(*arguments: object) -> Run:
    return hardnet(*arguments, "--descriptor", "rootsift")


@pytest.fixture(scope="module")
def pair(photos: Path) -> tuple[Path, Path]:
    return photos / "motorcycle_left.png", photos / "motorcycle_right.png"


@pytest.fixture(scope="module")
def small(pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The pair at half its size, for what does not depend on it: detecting is most of the time."""
    folder = tmp_path_factory.mktemp("small")
    for path in pair:
        picture = cv2.imread(str(path))
        half = cv2.resize(picture, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        cv2.imwrite(str(folder / path.name), half)
    return folder / pair[0].name, folder / pair[1].name


def test_json(pair: tuple[Path, Path]) -> None:
    done = rootsift(*pair, "--json", "--keypoints", 1000)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"images", "orientation", "geometry", "matches", "inliers", "seconds"}
    matches = np.array(found["matches"])
    assert matches.shape == (len(found["inliers"]), 4)
    assert set(found["inliers"]) <= {True, False}
    assert found["geometry"]["kind"] == "fundamental"
    assert not found["geometry"]["mirrored"]
    assert np.array(found["geometry"]["model"]).shape == (3, 3)
    assert [image["path"] for image in found["images"]] == [str(path) for path in pair]
    assert found["images"][0]["size"] == [741, 500]
    assert found["images"][0]["keypoints"] == 1000
    assert set(found["seconds"]) == {
        "load", "read", "detect", "cut", "describe", "match", "verify",
    }  # fmt: skip
    inliers = matches[found["inliers"]]
    assert len(inliers) > 200
    assert np.abs(inliers[:, 1] - inliers[:, 3]).mean() < 1  # a rectified pair: rows agree


def test_people_get_a_table_and_a_picture(small: tuple[Path, Path], tmp_path: Path) -> None:
    done = rootsift(*small, "-o", tmp_path / "matches.png", "--keypoints", 800)
    assert done.returncode == 0, done.stderr
    for word in ("keypoints", "matches", "inliers", "fundamental", "seconds", "matches.png"):
        assert word in done.stdout
    assert read_image(tmp_path / "matches.png").shape[1] > 700


def test_a_mirror_image_is_called_one(photos: Path, tmp_path: Path) -> None:
    """Rows of a mirror image fit a fundamental matrix: verified, but not two views of a scene."""
    photo, mirror = photos / "astronaut.png", tmp_path / "mirror.png"
    write_image(mirror, np.ascontiguousarray(read_image(photo)[:, ::-1]))
    options = ("--keypoints", 400, "--max-size", 400)
    found = json.loads(rootsift(photo, mirror, "--json", *options).stdout)
    assert found["geometry"]["kind"] is not None
    assert found["geometry"]["mirrored"]
    assert "mirrored" in rootsift(photo, mirror, *options).stdout


def test_model_option(small: tuple[Path, Path]) -> None:
    done = rootsift(*small, "--json", "--model", "homography", "--keypoints", 1000)
    assert json.loads(done.stdout)["geometry"]["kind"] == "homography"


def test_no_match_is_one_line_code_one_and_valid_json(photos: Path, tmp_path: Path) -> None:
    picture = tmp_path / "no.png"
    two = (photos / "chelsea.png", photos / "brick.png", "--keypoints", 300)
    done = rootsift(*two, "--json", "-o", picture)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert found["geometry"] == {"kind": None, "model": None, "mirrored": False}
    assert not any(found["inliers"])
    assert len(done.stderr.strip().splitlines()) == 1
    assert "no match" in done.stderr
    assert not picture.exists()


def test_no_keypoints_is_no_match(photos: Path, tmp_path: Path) -> None:
    write_image(tmp_path / "even.png", np.full((80, 80), 128, np.uint8))
    done = rootsift(tmp_path / "even.png", photos / "chelsea.png", "--json", "--max-size", 200)
    assert done.returncode == 1
    assert json.loads(done.stdout)["matches"] == []
    assert len(done.stderr.strip().splitlines()) == 1
    assert "no keypoints in" in done.stderr
    assert "even.png" in done.stderr


@pytest.mark.parametrize("kind", ["missing", "text", "dot", "folder", "cut"])
def test_bad_input_is_one_line_and_code_one(photos: Path, tmp_path: Path, kind: str) -> None:
    bad = tmp_path / f"{kind}.jpg"
    if kind == "text":
        bad.write_text("words")
    elif kind == "dot":
        bad.write_bytes(cv2.imencode(".jpg", np.zeros((1, 1, 3), np.uint8))[1].tobytes())
    elif kind == "folder":
        bad.mkdir()
    elif kind == "cut":
        whole = cv2.imencode(".jpg", read_image(photos / "chelsea.png"))[1].tobytes()
        bad.write_bytes(whole[:5000])
    done = rootsift(photos / "chelsea.png", bad, "--json")
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("error:")
    assert bad.name in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["only-one.png"],
        ["a.png", "b.png", "--keypoints", "0"],
        ["a.png", "b.png", "--model", "affine"],
        ["a.png", "b.png", "--ratio", "1.5"],
        ["a.png", "b.png", "--no-such-option"],
    ],
)
def test_wrong_usage_is_code_two(arguments: list[str]) -> None:
    done = hardnet(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""


def test_unknown_descriptor_is_code_one(pair: tuple[Path, Path]) -> None:
    done = hardnet(*pair, "--descriptor", "surf")
    assert done.returncode == 1
    assert done.stderr.startswith("error:")
    assert "surf" in done.stderr


def test_exif_rotation_gives_the_matches_of_the_upright_picture(
    small: tuple[Path, Path], tmp_path: Path
) -> None:
    left, right = small
    upright = read_image(right)
    write_image(tmp_path / "upright.png", upright)
    # Stored on its side, with the tag (6) that says: turn clockwise to view. No loss in between.
    stored = np.ascontiguousarray(np.rot90(upright, 1))
    png = cv2.imencode(".png", stored[:, :, ::-1])[1].tobytes()
    tiff = b"MM\x00*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    chunk = b"eXIf" + tiff
    header = 8 + 25  # signature and IHDR
    exif = struct.pack(">I", len(tiff)) + chunk + struct.pack(">I", zlib.crc32(chunk))
    (tmp_path / "turned.png").write_bytes(png[:header] + exif + png[header:])

    results = [
        json.loads(rootsift(left, tmp_path / name, "--json", "--keypoints", 400).stdout)
        for name in ("upright.png", "turned.png")
    ]
    for field in ("matches", "inliers", "geometry"):
        assert results[0][field] == results[1][field]
    assert results[1]["images"][1]["size"] == list(upright.shape[1::-1])


def test_max_size_reports_original_pixels(pair: tuple[Path, Path]) -> None:
    found = json.loads(rootsift(*pair, "--json", "--max-size", 400).stdout)
    matches = np.array(found["matches"])[found["inliers"]]
    assert found["images"][0]["size"] == [741, 500]
    assert matches[:, 0].max() > 600
    assert np.median(np.abs(matches[:, 1] - matches[:, 3])) < 1


def test_detectors_are_named() -> None:
    help_text = hardnet("--help").stdout
    for name in detectors.names():
        assert name in help_text


@pytest.mark.parametrize(
    "options",
    [
        ["--guided", "--fginn", "10", "--symmetric"],
        ["--no-mutual", "--duplicates", "2", "--neighbours", "flann"],
        ["--strategy", "mods", "--frame-check", "--threshold", "2"],
        ["--upright", "--detector", "hessian-affine"],
    ],
)
def test_ways_to_match(small: tuple[Path, Path], options: list[str]) -> None:
    done = rootsift(*small, "--json", "--keypoints", 1000, *options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"images", "orientation", "geometry", "matches", "inliers", "seconds"}
    inliers = np.array(found["matches"])[found["inliers"]]
    assert len(inliers) > 100
    assert np.median(np.abs(inliers[:, 1] - inliers[:, 3])) < 1


def test_options_override_those_of_the_strategy(small: tuple[Path, Path]) -> None:
    def count(*options: str) -> int:
        done = rootsift(*small, "--json", "--keypoints", 500, "--strategy", "mods", *options)
        return len(json.loads(done.stdout)["matches"])

    assert count("--mutual") < count() < count("--ratio", "1")


def test_essential_matrix(small: tuple[Path, Path], tmp_path: Path) -> None:
    options = ("--json", "--keypoints", 800, "--model", "essential")
    by_focal = rootsift(*small, *options, "--focal", 500)
    assert by_focal.returncode == 0, by_focal.stderr
    found = json.loads(by_focal.stdout)["geometry"]
    assert found["kind"] == "essential"
    # A rectified pair: the camera moved sideways and did not turn.
    essential = np.array(found["model"]) / np.abs(found["model"]).max()
    np.testing.assert_allclose(np.abs(essential[1:, 1:]), [[0, 1], [1, 0]], atol=0.05)
    file = tmp_path / "camera.txt"
    file.write_text("500, 0, 184.5\n0 500 124.5\n0 0 1\n")  # the middle of 370 x 250
    by_file = rootsift(*small, *options, "--camera", file, "--camera", file)
    assert json.loads(by_file.stdout)["geometry"] == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "essential"], "needs --camera FILE or --focal"),
        (["--model", "essential", "--focal", "9", "--camera", "x"], "exclude each other"),
        (["--model", "essential", "--camera", "missing.txt"], "cannot read --camera missing.txt"),
        (["--model", "essential", "--camera", __file__], "nine numbers"),
        (["--model", "essential", "--focal", "-5"], "--focal is -5.0"),
        (["--model", "essential", "--focal", "nan"], "--focal is nan"),
        (["--model", "essential", "--focal", "9", "--estimator", "degensac"], "use the estimator"),
        (["--focal", "900"], "need --model essential: add it"),
        (["--camera", "x"], "need --model essential: add it"),
        (["--fginn", "0"], "fginn is 0.0"),
        (["--threshold", "-1"], "threshold is -1.0"),
        (["--model", "essential", *3 * ["--camera", "a"]], "3 times"),
    ],
)
def test_wrong_options_are_one_line_and_code_one(
    small: tuple[Path, Path], options: list[str], message: str
) -> None:
    done = rootsift(*small, "--keypoints", 50, *options)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("error:")
    assert message in done.stderr
