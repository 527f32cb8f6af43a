"""Machine code and numpy give the same answers; numpy answers first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.retrieval import assignment, compiled, hypotheses, scoring, vocabulary
from hardnet.retrieval.index import Index

pytest.importorskip("numba")

from hardnet.retrieval.compiled import assignment as compiled_assignment
from hardnet.retrieval.compiled import hypotheses as compiled_hypotheses
from hardnet.retrieval.compiled import scanning


@pytest.mark.parametrize(("dim", "axes"), [(1, 1), (7, 16), (128, 128), (130, 48)])
def test_projections_are_equal_in_the_last_bit(dim: int, axes: int) -> None:
    rng = np.random.default_rng(dim)
    rows = rng.normal(size=(33, dim)).astype(np.float32)
    turned = rng.normal(size=(dim, axes)).astype(np.float32)
    both = assignment.project(rows, turned), compiled_assignment.project(rows, turned)
    assert np.array_equal(*both)


@pytest.mark.parametrize("words", [1, 3, 8])
def test_signatures_are_equal(words: int) -> None:
    rng = np.random.default_rng(words)
    along, levels = (rng.normal(size=(n, 128)).astype(np.float32) for n in (20, 50))
    along[:, 7] = levels[:, 7] = 0.5  # at a threshold: not above it
    nearest = rng.integers(0, 50, (20, words), np.int32)
    plain = vocabulary.sign(along, levels, nearest)
    fast = compiled_assignment.sign(along, levels, nearest)
    assert plain.dtype == fast.dtype
    assert np.array_equal(plain, fast)


@pytest.mark.parametrize("different", [3, 1000, 10**6])
@pytest.mark.parametrize(
    ("columns", "count", "group"), [(1, 1, 1), (9, 12, 1), (1000, 4, 62), (5003, 11, 113)]
)
def test_promising_columns_are_equal(different: int, columns: int, count: int, group: int) -> None:
    scores = np.random.default_rng(0).integers(-different, different, (40, columns), np.int32)
    plain = assignment.find_promising(scores, count, group)
    fast = compiled_assignment.find_promising(scores, count, group)
    for a, b in zip(plain, fast, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_nearest_words_are_equal(count: int) -> None:
    rng = np.random.default_rng(count)
    rows, words = (rng.normal(size=(n, 128)).astype(np.float32) for n in (50, 500))
    words[250:] = words[:250]  # equal ones: the lower number comes first
    owner, found = np.nonzero(rng.random((50, 500)) < 0.1)
    given = rows, words, assignment.half_squares(words), owner, found, count
    plain, fast = assignment.nearest_of(*given), compiled_assignment.nearest_of(*given)
    assert plain.dtype == fast.dtype
    assert np.array_equal(plain, fast)


@pytest.mark.parametrize("at_once", [1, 100, 10**6])
@pytest.mark.parametrize(("first", "last"), [(0, 50), (0, 20), (20, 50), (13, 14)])
def test_scores_are_equal_in_the_last_bit(
    monkeypatch: pytest.MonkeyPatch, at_once: int, first: int, last: int
) -> None:
    monkeypatch.setattr(scoring, "AT_ONCE", at_once)
    rng = np.random.default_rng(first + last)
    sizes = rng.integers(0, 60, 30)
    offsets = np.append(0, np.cumsum(sizes)).astype(np.uint32)
    image_ids = np.concatenate([np.sort(rng.integers(0, 50, n)) for n in sizes]).astype(np.uint16)
    signatures = rng.integers(0, 2**64, (len(image_ids), 2), np.uint64)
    words = rng.integers(0, 30, 40).astype(np.int32)
    weights, starts = rng.random(40), np.array([0, 3, 4, 11, 12, 30, 40])
    decay = np.exp(-((np.arange(129) / 32) ** 2))
    images = np.int64(50)
    for burstiness in (True, False):
        matching = (rng.integers(0, 2**64, (40, 2), np.uint64), starts, decay, 64, burstiness)
        sums = []
        for add in (scoring.add_he, scanning.add_he):
            out = np.zeros(last - first)
            lists = offsets, image_ids, signatures
            add(words, weights, *matching, *lists, np.int64(first), images, out)
            sums.append(out)
        assert sums[0].any()
        assert np.array_equal(*sums)
    sums = []
    for add_bow in (scoring.add_bow, scanning.add_bow):
        out = np.zeros(last - first)
        add_bow(words, weights, offsets, image_ids, np.int64(first), images, out)
        sums.append(out)
    assert np.array_equal(*sums)


@pytest.mark.parametrize("seed", range(30))
def test_maps_and_inliers_are_equal(seed: int) -> None:
    """Few and many pairs, one to one and not, several images and views, frames without area."""
    rng = np.random.default_rng(seed)
    count, images = int(rng.integers(3, 60)), 4
    query = rng.normal(0, 5, (count, 2, 3))
    query[:, [0, 1], [0, 1]] += 8
    query[:, :, 2] = rng.uniform(0, 1000, (count, 2))
    if seed % 3 == 0:
        query[0, :, :2] = 0
    views = np.sort(rng.integers(0, 2, count))
    features, places, distances, frames, bounds = [], [], [], [], [0]
    for image in range(images):
        linear = rng.normal(0, 0.3, (2, 2)) + np.eye(2) * rng.uniform(0.5, 2)
        shown = query.copy()
        shown[:, :, :2] = linear @ query[:, :, :2]
        shown[:, :, 2] = query[:, :, 2] @ linear.T + rng.normal(0, 8, (count, 2))
        moved = rng.random(count) < 0.2 * image
        shown[moved, :, 2] = rng.uniform(0, 1000, (int(moved.sum()), 2))
        pairs = np.concatenate(
            [np.arange(count)[:, None].repeat(2, 1), rng.integers(0, count, (image * count, 2))]
        )
        pairs = np.unique(pairs, axis=0)
        features.append(pairs[:, 0])
        places.append(pairs[:, 1])
        distances.append(rng.integers(0, 49, len(pairs)))
        frames.append(shown[pairs[:, 1]])
        bounds.append(bounds[-1] + len(pairs))
    given = (
        *(np.array(bounds), np.concatenate(features), np.concatenate(places)),
        *(np.concatenate(distances), views, query.reshape(-1, 6)),
        *(np.concatenate(frames).reshape(-1, 6), 1600.0, 1000**0.5, 4, 512),
    )
    plain, fast = hypotheses.verify(*given), compiled_hypotheses.verify(*given)
    for a, b in zip(plain, fast, strict=True):
        assert a.dtype == b.dtype
        assert np.allclose(a, b, rtol=1e-12, atol=1e-9)
    if count > 10:
        assert plain[0].max() >= 4


def test_loading_changes_who_answers_and_nothing_else(tmp_path: Path) -> None:
    script = """
import json, sys
from hardnet.retrieval import compiled
from hardnet.retrieval.index import Index
index = Index(sys.argv[1])
def ask():
    return [
        [(h.path, h.score, h.inliers, None if h.transform is None else h.transform.tolist())
         for h in index.search(sys.argv[2], mode=mode)]
        for mode in ("bow+qe", "he+sv", "hqe+sv")
    ]
first = ask()
assert not {"numba", "h5py", "scipy", "matplotlib"} & set(sys.modules), "loaded for one search"
compiled.ENOUGH = 1000
second = ask()
assert "numba" in sys.modules
assert compiled._twins
assert first == ask(), (first, second)
"""
    photos = _photos(tmp_path)
    Index.build(tmp_path / "index", photos, words=300, descriptor="rootsift", keypoints=400)
    _run(script, str(tmp_path / "index"), str(photos[1]))


def test_building_and_searching_need_no_numba(tmp_path: Path) -> None:
    script = """
import sys
sys.modules["numba"] = None
from hardnet.retrieval import compiled
from hardnet.retrieval.index import Index
compiled.ENOUGH = 0
folder, *photos = sys.argv[1:]
index = Index.build(folder, photos, words=300, descriptor="rootsift", keypoints=400)
for mode in ("bow+qe", "he+sv", "hqe+sv"):
    assert index.search(photos[1], mode=mode)[0].path == photos[1]
assert not compiled._twins
"""
    _run(script, str(tmp_path / "index"), *map(str, _photos(tmp_path)))


def _photos(folder: Path) -> list[Path]:
    """Three photos of noise."""
    rng = np.random.default_rng(0)
    photos = [folder / f"{k}.png" for k in range(3)]
    for photo in photos:
        noise = rng.integers(0, 256, (60, 80), np.uint8)
        cv2.imwrite(str(photo), cv2.resize(noise, None, fx=5, fy=5))
    return photos


def _run(script: str, *words: str) -> None:
    command = [sys.executable, "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_numba_numpy_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise ImportError

    monkeypatch.setattr(compiled, "_twins", {})
    monkeypatch.setattr(compiled, "_load", missing)
    compiled.load()
    assert compiled.faster(scoring.add_he) is scoring.add_he
