import json

import numpy as np
import pytest

import hardnet
from hardnet.bench import stereo as run
from hardnet.bench.stereo import RULES, Protocol, pair_digest
from hardnet.bench.stereo_sets import open_set
from hardnet.descriptors import load

PROTOCOL, FEW = Protocol(keypoints=400), Protocol(keypoints=30)


class Counting:
    """A descriptor that counts the patches it is given."""

    dim = 128

    def __init__(self, name="rootsift"):
        self.name = name
        self.weights = name
        self.inner = load(name)
        self.calls = []

    def __call__(self, patches):
        self.calls.append(np.asarray(patches).copy())
        return self.inner(patches)


@pytest.fixture(scope="module")
def opened(stereo_folder):
    return open_set(str(stereo_folder))


@pytest.fixture(scope="module")
def rows(opened, tmp_path_factory):
    contestants = {name: load(name) for name in ("hardnet", "rootsift", "pixels")}
    store = tmp_path_factory.mktemp("store")
    return run.compare([opened], contestants, ["dog"], PROTOCOL, store)


def test_easy_pairs_are_matched_and_unrelated_ones_are_not(rows):
    assert len(rows) == 4 * 3
    for row in rows:
        if row["descriptor"] == "pixels":
            continue
        judged = {name: rule.matched(row) for name, rule in RULES.items()}
        related = "brick" not in row["pair"]
        assert set(judged.values()) == {related}, row
        if row["truth"] == "homography" and related:
            assert row["corner_error"] < 3
            assert row["correct_inliers"] > 0.9 * row["inliers"]
            assert row["accuracy"][3] > 0.7
    assert [row["truth"] for row in rows[::3]] == ["homography"] * 3 + ["none"]


def test_numbers_are_those_of_the_ordinary_pipeline(rows, opened):
    pair = opened.pairs[1]
    a, b = (
        hardnet.extract(path, descriptor="hardnet@12", keypoints=400)
        for path in (pair.first, pair.second)
    )
    matches = hardnet.match(a, b, model="homography")
    (row,) = [r for r in rows if r["pair"] == pair.name and r["descriptor"] == "hardnet"]
    assert (row["tentative"], row["inliers"]) == (len(matches), int(matches.inliers.sum()))
    # The correct ones, one by one.
    correct = 0
    for (x, y), (u, v) in zip(matches.xy_a, matches.xy_b, strict=True):
        px, py, w = pair.homography @ [x, y, 1]
        correct += np.hypot(px / w - u, py / w - v) <= 4
    assert row["correct"] == correct


def test_every_descriptor_gets_the_same_patches(opened, tmp_path):
    contestants = {"a": Counting(), "b": Counting("sift")}
    run.compare([opened], contestants, ["dog"], FEW, tmp_path)
    for first, second in zip(contestants["a"].calls, contestants["b"].calls, strict=True):
        np.testing.assert_array_equal(first, second)


def measured(opened, descriptor, store, protocol=FEW, detector="dog"):
    """How many of the four pairs had to be measured."""
    before = len(descriptor.calls)
    rows = run.compare([opened], {"a": descriptor}, [detector], protocol, store)
    assert len(rows) == 4
    return len(descriptor.calls) - before - PROBES


PROBES = 3  # patches of three sizes, for the digest


def test_a_second_run_measures_nothing_again(opened, tmp_path):
    descriptor = Counting()
    steps = []
    compare = [opened], {"rootsift": descriptor}, ["dog"], FEW, tmp_path
    first = run.compare(*compare, lambda: steps.append(1))
    calls = len(descriptor.calls)
    again = run.compare(*compare, lambda: steps.append(1))
    assert json.dumps(again) == json.dumps(first)
    assert len(steps) == 8
    assert len(descriptor.calls) == calls + PROBES


def test_other_settings_or_weights_are_measured_again(opened, tmp_path):
    assert measured(opened, Counting(), tmp_path) > 0
    assert measured(opened, Counting(), tmp_path) == 0
    for other in (
        {"descriptor": Counting("sift")},
        {"protocol": Protocol(keypoints=31)},
        {"protocol": Protocol(keypoints=30, upright=True)},
        {"detector": "mser"},
    ):
        chosen = {"descriptor": Counting()} | other
        assert measured(opened, store=tmp_path, **chosen) > 0


def test_pairs_are_told_apart_by_content(opened):
    digests = [pair_digest(pair) for pair in opened.pairs]
    assert len(set(digests)) == 4  # the same images with and without ground truth differ


def test_the_geometry_that_is_fitted_follows_the_truth(opened):
    assert [PROTOCOL.geometry_of(pair) for pair in opened.pairs] == ["homography"] * 3 + ["auto"]
    fixed = Protocol(model="fundamental")
    assert {fixed.geometry_of(pair) for pair in opened.pairs} == {"fundamental"}


def test_detectors_are_called_without_folders():
    assert run.label_of("dog") == "dog"
    assert run.label_of("affnet:/w/AffNet.pth,/w/OriNet.pth") == "affnet:AffNet.pth,OriNet.pth"
