from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hardnet
from hardnet.interop import feature_files

from .conftest import ctrl_c_when

QUICK = ("--descriptor", "rootsift", "--keypoints", "80", "--max-size", "200")


Extract = Callable[..., Any]


@pytest.fixture
def extract(command: Extract) -> Extract:
    return partial(command, "extract")


@pytest.fixture
def folder(photos: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    shutil.copy(photos / "camera.png", folder)
    shutil.copy(photos / "chelsea.png", folder / "deep")
    return folder


def test_a_folder_to_a_file_and_back(extract: Extract, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "feats.h5"
    run = extract(folder, "-o", output, *QUICK, "--upright", "--json")
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    found = json.loads(run.stdout)
    assert found.pop("seconds") > 0
    assert found == {
        "output": str(output), "described": 2, "unchanged": 0, "keypoints": 160, "skipped": [],
    }  # fmt: skip
    assert feature_files.hdf5_names(output) == ["camera.png", "deep/chelsea.png"]
    read = feature_files.read_hdf5(output, "deep/chelsea.png")
    direct = hardnet.extract(folder / "deep/chelsea.png", "dog", "rootsift", 80, 200, upright=True)
    np.testing.assert_array_equal(read.descriptors, direct.descriptors)
    np.testing.assert_array_equal(read.frames, direct.frames)
    assert len(hardnet.match(read, direct)) == 80

    again = extract(folder, "-o", output, *QUICK, "--upright")
    assert again.returncode == 0
    assert "0 photos described" in again.stdout
    assert "2 unchanged" in again.stdout
    other = extract(folder, "-o", output, *QUICK)
    assert other.returncode == 1
    assert "upright=True, not False" in other.stderr
    assert "--overwrite" in other.stderr
    assert len(other.stderr.splitlines()) == 1
    new = extract(folder, "-o", output, *QUICK, "--overwrite")
    assert "2 photos described" in new.stdout


def test_files_to_a_folder(extract: Extract, folder: Path, tmp_path: Path) -> None:
    photos = folder / "camera.png", folder / "deep" / "chelsea.png"
    run = extract(*photos, folder / "camera.png", "-o", tmp_path / "out", *QUICK, "--half")
    assert run.returncode == 0, run.stderr
    assert "2 photos described" in run.stdout
    assert "80 keypoints each" in run.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"camera.png.npz", "chelsea.png.npz", "extract.json", ".hardnet-files"}
    assert len(feature_files.read_npz(tmp_path / "out" / "chelsea.png.npz")) == 80


def test_broken_photos_are_listed_and_the_rest_is_there(
    extract: Extract, folder: Path, tmp_path: Path
) -> None:
    (folder / "bad [bold].jpg").write_text("words")
    run = extract(folder, tmp_path / "none.jpg", "-o", tmp_path / "x.h5", *QUICK, "--json")
    assert run.returncode == 1
    found = json.loads(run.stdout)
    assert [bad["image"] for bad in found["skipped"]] == ["bad [bold].jpg", "none.jpg"]
    assert found["described"] == 2
    lines = run.stderr.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("skipped: ")
    assert "bad [bold].jpg" in lines[0]
    assert "none.jpg does not exist" in lines[1]
    assert feature_files.hdf5_names(tmp_path / "x.h5") == ["camera.png", "deep/chelsea.png"]


def test_fuzzed_images_never_end_the_batch(extract: Extract, fuzzed_images, tmp_path: Path) -> None:
    direct = {
        name: hardnet.extract(fuzzed_images.folder / name, "dog", "rootsift", 80, 200)
        for name in fuzzed_images.readable
    }
    output = tmp_path / "x.h5"
    run = extract(fuzzed_images.folder, "-o", output, *QUICK, "--json")
    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    found = json.loads(run.stdout)
    assert {bad["image"] for bad in found["skipped"]} == set(fuzzed_images.broken)
    assert len(run.stderr.splitlines()) == len(fuzzed_images.broken)
    assert found["described"] == len(fuzzed_images.readable)
    for name, picture in fuzzed_images.readable.items():
        read = feature_files.read_hdf5(output, name)
        assert read.image_size == picture.shape[1::-1]
        assert len(read) > 0
        np.testing.assert_array_equal(read.descriptors, direct[name].descriptors)
    assert feature_files.hdf5_names(output) == sorted(fuzzed_images.readable)


@pytest.mark.slow
def test_a_huge_image_in_the_batch(
    extract: Extract, huge_image: Path, folder: Path, tmp_path: Path
) -> None:
    run = extract(folder, huge_image, "-o", tmp_path / "x.h5", *QUICK)
    assert run.returncode == 0, run.stderr
    assert feature_files.read_hdf5(tmp_path / "x.h5", "huge.png").image_size == (10_000, 10_000)


def test_ctrl_c_says_how_to_continue(
    extract: Extract, folder: Path, photos: Path, tmp_path: Path
) -> None:
    for k in range(20):
        shutil.copy(photos / "camera.png", folder / f"{k}.png")
    output = tmp_path / "x.h5"
    parts = tmp_path / "x.h5.parts"
    with ctrl_c_when(lambda: any(parts.rglob("*.npz"))):
        stopped = extract(folder, "-o", output, *QUICK, "--workers", "1")
    assert stopped.returncode == 130
    assert stopped.stderr.strip().startswith("stopped: finished work is kept; run the same command")
    done = len(list(parts.rglob("*.npz")))
    assert 0 < done < 22
    found = json.loads(extract(folder, "-o", output, *QUICK, "--json").stdout)
    assert (found["unchanged"], found["described"]) == (done, 22 - done)


@pytest.mark.parametrize(
    "arguments", [[], ["photos"], ["photos", "-o", "x.h5", "--keypoints", "0"]]
)
def test_wrong_usage_is_code_two(extract: Extract, arguments: list[str]) -> None:
    run = extract(*arguments)
    assert run.returncode == 2
    assert run.stdout == ""


def test_mistakes_are_one_line_and_code_one(extract: Extract, folder: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for arguments, words in {
        (empty, "-o", tmp_path / "x.h5"): "contains no image",
        (folder, "-o", tmp_path / "x.h5", "--detector", "surf"): "surf",
        (folder, "-o", tmp_path / "x.npz"): "name a folder",
        (folder, "-o", folder / "camera.png"): "is a file",
        (folder, "-o", "/proc/nowhere/x.h5"): "/proc/nowhere",
    }.items():
        run = extract(*arguments)
        assert run.returncode == 1
        assert len(run.stderr.splitlines()) == 1, run.stderr
        assert run.stderr.startswith("error:")
        assert words in run.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "photos"]
