"""The whole benchmark on a small collection of real photographs."""

from dataclasses import replace

import cv2
import numpy as np
import pytest

pytest.importorskip("numba")

from hardnet import descriptors
from hardnet.bench.development import Setup
from hardnet.bench.retrieval import run
from hardnet.bench.retrieval.collections import Judgement, PhotoCollection, Question, read_ukbench
from hardnet.bench.retrieval.features import BenchPhoto, crops
from hardnet.bench.retrieval.run import parse_mode
from hardnet.errors import HardnetError
from hardnet.images import read_image, to_grey, write_image

THINGS = ("astronaut.png", "chelsea.png", "coffee.png")
OTHERS = ("rocket.jpg", "brick.png", "grass.png", "gravel.png")


@pytest.fixture(scope="module")
def ukbench(photos, tmp_path_factory):
    """Three objects, four views each, at 320 x 240."""
    folder = tmp_path_factory.mktemp("ukbench")
    for thing, name in enumerate(THINGS):
        pixels = to_grey(read_image(photos / name))
        height, width = pixels.shape
        for view in range(4):
            matrix = cv2.getRotationMatrix2D((width / 2, height / 2), 15 * view, 0.55 + 0.06 * view)
            matrix[:, 2] += np.array([160, 120]) - (width / 2, height / 2)
            seen = cv2.warpAffine(pixels, matrix, (320, 240), flags=cv2.INTER_AREA)
            write_image(folder / f"ukbench{4 * thing + view:05d}.png", seen)
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


SETTINGS = run.RetrievalSettings(
    Setup(max_size=None, keypoints=150), words=64, modes=("bow", "he+sv", "hqe:sa"), asmk=False
)


def compare(collection, photos, store, work, settings=SETTINGS, distractors=()):
    vocabulary = [BenchPhoto(name, photos / name) for name in OTHERS]
    used = {"rootsift": descriptors.load("rootsift")}
    return run.compare(collection, used, settings, vocabulary, distractors, store, work)


def test_views_of_an_object_are_found(ukbench, photos, store, tmp_path):
    unreadable, rows = compare(read_ukbench(ukbench), photos, store, tmp_path)
    assert unreadable == {}
    assert [row["mode"] for row in rows] == ["bow", "he+sv", "hqe:sa"]
    verified = rows[1]
    assert verified["map"]["others"] > 0.95
    assert verified["ns"] > 3.8
    assert len(verified["ap"]["others"]) == len(verified["ns_each"]) == 12
    assert rows[0]["map"]["others"] <= verified["map"]["others"]
    assert all(row["milliseconds"] > 0 for row in rows)
    assert 50 < verified["features"] <= 150


def test_distractors_come_on_top_of_the_collection(ukbench, photos, store, tmp_path):
    cut = crops(
        [("brick", photos / "brick.png"), ("gravel", photos / "gravel.png")], (320, 240), None
    )
    assert len(cut) == 2  # quarters of 512 pixels are too small
    settings = replace(SETTINGS, modes=("bow",), distractors=(1, 100))
    _, rows = compare(read_ukbench(ukbench), photos, store, tmp_path, settings, cut)
    assert [row["distractors"] for row in rows] == [0, 1, 2]
    assert "ap" in rows[0]
    assert "ap" not in rows[1]


def test_the_query_is_the_region_and_unreadable_photos_are_not_searched(
    ukbench, photos, store, tmp_path
):
    """A photo of two things: the box says which of them is asked for."""
    folder = tmp_path / "both"
    folder.mkdir()
    left, right = (to_grey(read_image(ukbench / f"ukbench{number:05d}.png")) for number in (0, 4))
    write_image(folder / "both.png", np.hstack([left, right]))
    (folder / "broken.png").write_bytes(b"no picture")
    images = {path.name: path for path in sorted(ukbench.iterdir())}
    first, second = (frozenset(list(images)[4 * k : 4 * k + 4]) for k in (0, 1))
    questions = tuple(
        Question(name, "both.png", name, {"classic": Judgement(right_ones)}, box)
        for name, right_ones, box in (
            ("left", first, (0, 0, 320, 240)),
            ("right", second, (320, 0, 320, 240)),
        )
    )
    collection = PhotoCollection(
        "both",
        images | {"broken.png": folder / "broken.png"},
        questions,
        {"both.png": folder / "both.png"},
    )
    settings = replace(SETTINGS, modes=("he+sv",), longer_side=640)
    unreadable, rows = compare(collection, photos, store, tmp_path / "work", settings)
    assert list(unreadable) == ["broken.png"]
    assert rows[0]["ap"]["classic"] == [1.0, 1.0]
    # With the boxes exchanged nothing is right.
    swapped = tuple(replace(q, box=r.box) for q, r in zip(questions, questions[::-1], strict=True))
    collection = replace(collection, questions=swapped)
    _, rows = compare(collection, photos, store, tmp_path / "again", settings)
    assert rows[0]["map"]["classic"] < 0.4


def test_asmk_takes_part_with_the_same_words(ukbench, photos, store, tmp_path):
    pytest.importorskip("asmk")
    settings = replace(SETTINGS, modes=("he:ma5",), asmk=True)
    _, rows = compare(read_ukbench(ukbench), photos, store, tmp_path, settings)
    assert [row["mode"] for row in rows] == ["he:ma5", "asmk"]
    assert rows[1]["map"]["others"] > 0.8


def test_single_assignment_and_wrong_modes():
    mode = parse_mode("hqe+sv:sa")
    assert mode.scoring.ma == mode.first.ma == mode.verification.ma == 1
    assert parse_mode("hqe+sv").scoring.ma == 3
    assert parse_mode("he:ma8").scoring.ma == 8
    assert parse_mode("he:ma8").verification is None
    assert replace(mode, scoring=replace(mode.scoring, ma=3)).expansion == "hqe"
    for wrong in ("bow+magic", "he:ma0", "he:sa:sa"):
        with pytest.raises(HardnetError, match="no mode"):
            run.RetrievalSettings(SETTINGS.extraction, modes=(wrong,), asmk=False)


def test_too_few_features_for_the_words(ukbench, photos, store, tmp_path):
    settings = replace(SETTINGS, words=100_000)
    with pytest.raises(HardnetError, match="cannot train 100000 words"):
        compare(read_ukbench(ukbench), photos, store, tmp_path, settings)
