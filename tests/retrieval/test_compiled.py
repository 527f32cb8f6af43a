"""Machine code and numpy give the same answers; numpy answers first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.retrieval import query as scoring
from hardnet.retrieval import verification, vocabulary
from hardnet.retrieval.index import Index

pytest.importorskip("numba")

from hardnet.retrieval.compiled import kernels, maps


@pytest.mark.parametrize(("dim", "axes"), [(1, 1), (7, 16), (128, 128), (130, 48)])
def test_projections_are_equal_in_the_last_bit(dim: int, axes: int) -> None:
    rng = np.random.default_rng(dim)
    rows = rng.normal(size=(33, dim)).astype(np.float32)
    turned = rng.normal(size=(dim, axes)).astype(np.float32)
    both = vocabulary.project(rows, turned), kernels.project(rows, turned)
    assert np.array_equal(*both)


@pytest.mark.parametrize("words", [1, 3, 8])
def test_signatures_are_equal(words: int) -> None:
    rng = np.random.default_rng(words)
    along, levels = (rng.normal(size=(n, 128)).astype(np.float32) for n in (20, 50))
    along[:, 7] = levels[:, 7] = 0.5  # at a threshold: not above it
    nearest = rng.integers(0, 50, (20, words), np.int32)
    plain = vocabulary.sign(along, levels, nearest)
    fast = kernels.sign(along, levels, nearest)
    assert plain.dtype == fast.dtype
    assert np.array_equal(plain, fast)


@pytest.mark.parametrize("different", [3, 1000, 10**6])
@pytest.mark.parametrize(("columns", "count"), [(1, 1), (9, 12), (1000, 4), (5003, 11)])
def test_promising_columns_are_equal(different: int, columns: int, count: int) -> None:
    scores = np.random.default_rng(0).integers(-different, different, (40, columns), np.int32)
    both = vocabulary.promising(scores, count), kernels.promising(scores, count)
    for a, b in zip(*both, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_nearest_words_are_equal(count: int) -> None:
    rng = np.random.default_rng(count)
    rows, words = (rng.normal(size=(n, 128)).astype(np.float32) for n in (50, 500))
    words[250:] = words[:250]  # equal ones: the lower number comes first
    owner, found = np.nonzero(rng.random((50, 500)) < 0.1)
    given = rows, words, vocabulary.half_squares(words), owner, found, count
    plain, fast = vocabulary.nearest_of(*given), kernels.nearest_of(*given)
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
    segment = kernels.Lists(offsets, image_ids, signatures, np.zeros(51), None)
    words = rng.integers(0, 30, 40).astype(np.int32)
    weights, starts = rng.random(40), np.array([0, 3, 4, 11, 12, 30, 40])
    decay = np.exp(-((np.arange(129) / 32) ** 2))
    theirs = rng.integers(0, 2**64, (40, 2), np.uint64)
    for matching in (
        scoring.Matching(theirs, starts, decay, 64, True),
        scoring.Matching(theirs, starts, decay, 64, False),
        None,
    ):
        sums = []
        for module in (scoring, kernels):
            out = np.zeros(last - first)
            lookup = scoring.Lookup(words, weights, 1.0, True, matching)
            (module.add_bow if matching is None else module.add_he)(lookup, segment, first, out)
            sums.append(out)
        assert sums[0].any()
        assert np.array_equal(*sums)


@pytest.mark.parametrize("seed", range(30))
def test_maps_and_inliers_are_equal(seed: int) -> None:
    """Few and many pairs, one to one and not, several groups, frames without area."""
    rng = np.random.default_rng(seed)
    count, images = int(rng.integers(3, 60)), 4
    query = rng.normal(0, 5, (count, 2, 3))
    query[:, [0, 1], [0, 1]] += 8
    query[:, :, 2] = rng.uniform(0, 1000, (count, 2))
    if seed % 3 == 0:
        query[0, :, :2] = 0
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
    columns = np.concatenate(features), np.concatenate(places), np.concatenate(distances)
    none = np.zeros(0, np.int64)
    pairs = verification.Correspondences(none, none, columns[0], none, *columns[1:])
    given = (
        *(np.array(bounds), pairs, query.reshape(-1, 6)[pairs.features]),
        *(np.concatenate(frames).reshape(-1, 6), verification.Rules(1600.0, np.log(32), 4, 512)),
    )
    plain, fast = verification.best_maps(*given), maps.best_maps(*given)
    for a, b in zip(plain, fast, strict=True):
        assert a.dtype == b.dtype
        assert np.allclose(a, b, rtol=1e-12, atol=1e-9)
    if count > 10:
        assert plain[0].max() >= 4


def test_numpy_answers_first_and_loading_changes_nothing(tmp_path: Path) -> None:
    script = """
import sys
from hardnet.retrieval import compiled
from hardnet.retrieval.index import Index
folder, *photos = sys.argv[1:]
def ask():
    return [
        [(h.path, h.score, h.inliers, None if h.transform is None else h.transform.tolist())
         for h in index.search(photos[1], mode=mode)]
        for mode in ("bow+qe", "he+sv", "hqe+sv")
    ]
index = Index(folder)
first = ask()
assert [answer[0][0] for answer in first] == [photos[1]] * 3
assert not {"numba", "h5py", "scipy", "matplotlib"} & set(sys.modules), "loaded for one search"
compiled.ENOUGH, sys.modules["numba"] = 1000, None  # not installed
Index.build(folder + ".2", photos, words=300, descriptor="rootsift", keypoints=400)
assert first == ask()
assert not compiled._twins
del sys.modules["numba"]
ask()
assert "numba" in sys.modules
assert compiled._twins
assert first == ask()
"""
    photos, folder = _photos(tmp_path), tmp_path / "index"
    Index.build(folder, photos, words=300, descriptor="rootsift", keypoints=400)
    command = [sys.executable, "-c", script, str(folder), *map(str, photos)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _photos(folder: Path) -> list[Path]:
    """Three photos of noise."""
    rng = np.random.default_rng(0)
    photos = [folder / f"{k}.png" for k in range(3)]
    for photo in photos:
        noise = rng.integers(0, 256, (60, 80), np.uint8)
        cv2.imwrite(str(photo), cv2.resize(noise, None, fx=5, fy=5))
    return photos
