from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval import training
from hardnet.retrieval.training import size_for, train


def _blobs(count=40, each=60, dim=128, spread=0.05, seed=0):
    """Unit vectors around ``count`` directions: (count * each, dim), and the directions."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(count, dim))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    rows = np.repeat(centres, each, axis=0) + spread * rng.normal(size=(count * each, dim))
    rows = rows[rng.permutation(len(rows))].astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _lloyd(rows, words):
    """One iteration, by explicit loops."""
    members = [[] for _ in words]
    for row in rows:
        members[int(((words - row) ** 2).sum(axis=1).argmin())].append(row)
    return np.array([np.mean(m, axis=0) if m else w for m, w in zip(members, words, strict=True)])


def test_an_iteration_is_that_of_lloyd():
    rows = _blobs(10, 30)
    start = train(rows, 10, descriptor="x", iterations=0)
    once = train(rows, 10, descriptor="x", iterations=1)
    expected = _lloyd(start.prepare(rows), start.words)
    far = np.linalg.norm(once.words[:, None] - expected, axis=2)
    assert (far.min(axis=1) < 1e-6).all()  # some of them: words that end up empty are left out
    assert len(once) >= 8


def test_first_words_are_descriptors():
    rows = _blobs(10, 30)
    start = train(rows, 10, descriptor="x", iterations=0)
    far = np.linalg.norm(start.prepare(rows)[:, None] - start.words, axis=2)
    assert (far.min(axis=0) < 1e-6).all()


def test_iterations_bring_words_nearer():
    rows = _blobs()
    far = [
        train(rows, 40, descriptor="x", iterations=n).provenance["mean_squared_distance"]
        for n in (0, 1, 3, 8)
    ]
    assert far == sorted(far, reverse=True)
    assert far[-1] < 0.7 * far[0]


def test_training_ends_when_words_hardly_move(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(2000, 16)).astype(np.float32)
    short = train(rows, 250, descriptor="x", iterations=40)
    monkeypatch.setattr(training, "LEAST_GAIN", -1.0)
    whole = train(rows, 250, descriptor="x", iterations=40)
    assert 2 <= short.provenance["iterations"] < 20
    assert whole.provenance["iterations"] == 40
    near, nearest = (one.provenance["mean_squared_distance"] for one in (short, whole))
    assert nearest < near < 1.02 * nearest


def test_same_seed_same_vocabulary():
    rows = _blobs()
    prints = [train(rows, 30, descriptor="x", seed=s, iterations=3).digest for s in (1, 1, 2)]
    assert prints[0] == prints[1] != prints[2]


def test_thresholds_are_medians_of_the_descriptors_of_the_word():
    rows = _blobs(6, 60)
    words = train(rows, 6, descriptor="x", iterations=5)
    prepared = words.prepare(rows)
    near = words.assign(prepared)[:, 0]
    for word in range(6):
        projected = prepared[near == word] @ words.projection.T
        expected = np.median(projected, axis=0)
        np.testing.assert_allclose(words.thresholds[word], expected, atol=1e-3)


def test_thresholds_of_a_word_of_few_descriptors_are_its_own_projection():
    rows = _blobs(30, 3)
    words = train(rows, 30, descriptor="x", iterations=4)
    counts = np.bincount(words.assign(words.prepare(rows))[:, 0], minlength=30)
    few = counts < 8
    assert few.any()
    own = words.words @ words.projection.T
    np.testing.assert_allclose(words.thresholds[few], own[few], atol=1e-3)


@pytest.mark.parametrize("dim", [128, 64, 48, 256])
def test_projection_has_orthogonal_rows(dim):
    rows = _blobs(10, 20, dim)
    projection = train(rows, 5, descriptor="x", iterations=1).projection
    assert projection.shape == (128, dim)
    for start in range(0, 128, dim):
        block = projection[start : start + dim]
        np.testing.assert_allclose(block @ block.T, np.eye(len(block)), atol=1e-5)


def test_fewer_descriptors_than_words():
    rows = _blobs(7, 1)
    words = train(np.concatenate([rows, rows]), 1000, descriptor="x")
    assert len(words) == 7
    assert sorted(words.assign(words.prepare(rows))[:, 0]) == list(range(7))


def test_descriptors_all_alike_are_one_word():
    assert len(train(np.ones((20, 128), np.float32), 5, descriptor="x")) == 1


def test_broken_descriptors_are_left_out():
    rows = _blobs(10, 20)
    broken = rows.copy()
    broken[::9, 3] = np.nan
    good = np.isfinite(broken).all(axis=1)
    words = train(broken, 10, descriptor="x", iterations=2)
    assert words.provenance["training_descriptors"] == good.sum()
    assert words.digest == train(rows[good], 10, descriptor="x", iterations=2).digest


def test_nothing_to_learn_from():
    for rows in (np.zeros((0, 128), np.float32), np.full((3, 128), np.nan, np.float32)):
        with pytest.raises(HardnetError, match="no descriptors"):
            train(rows, 10, descriptor="x")
    with pytest.raises(HardnetError, match="expected"):
        train(np.zeros(128, np.float32), 10, descriptor="x")


def test_an_empty_word_takes_half_of_the_largest():
    words = np.eye(4, 6, dtype=np.float32)
    sums = np.array([[2, 0, 0, 0, 0, 0], [0] * 6, [0, 0, 9, 9, 0, 0], [0, 0, 0, 1, 0, 0]], float)
    new = training.means(words, sums, np.array([2, 0, 9, 1]))
    np.testing.assert_allclose(new[0], [1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(new[[1, 2]], [[0, 0, 1, 1, 0, 0]] * 2, rtol=2e-3)
    assert np.abs(new[1] - new[2]).max() > 1e-3
    np.testing.assert_allclose(new[3], [0, 0, 0, 1, 0, 0])


def test_a_sample_of_many_descriptors():
    words = train(_blobs(), 20, descriptor="x", iterations=2)
    assert words.provenance["training_descriptors"] == 20 * training.PER_WORD


def test_in_chunks_as_at_once(monkeypatch, tmp_path):
    rows = _blobs()
    whole = train(rows, 20, descriptor="x", iterations=3).digest
    monkeypatch.setattr(training, "_CHUNK", 700)
    np.save(tmp_path / "rows.npy", rows)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert train(mapped, 20, descriptor="x", iterations=3).digest == whole


def test_progress_ends_where_it_said():
    calls = []
    train(_blobs(), 40, descriptor="x", iterations=3, progress=lambda *call: calls.append(call))
    what, done, total = zip(*calls, strict=True)
    assert set(what) == {"learning words"}
    assert list(done) == sorted(done)
    assert done[-1] == total[-1] == 4 * 2400


class _Interrupted(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2, 3])
def test_an_interrupted_training_continues_with_the_same_result(tmp_path, after):
    """And ends as early as without the interruption."""
    rows, path = np.random.default_rng(0).normal(size=(2000, 16)), tmp_path / "words.checkpoint"
    calls, left = [], []
    whole = train(rows, 250, descriptor="x", progress=lambda *call: calls.append(call))
    assert 3 <= whole.provenance["iterations"] < training.ITERATIONS
    seen = iter(range(after))

    def stop(what, done, total):
        if next(seen, None) is None:
            raise _Interrupted

    with pytest.raises(_Interrupted):
        train(rows, 250, descriptor="x", checkpoint=path, progress=stop)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    how = {"checkpoint": path, "progress": lambda *call: left.append(call)}
    again = train(rows, 250, descriptor="x", **how)
    assert again.digest == whole.digest
    assert again.provenance == whole.provenance
    assert left == calls[after:]


KILLED = """
import os, sys
from pathlib import Path
import numpy as np
from hardnet.retrieval.training import train
rows = np.load(sys.argv[1])
def stop(what, done, total):
    if done > 2 * len(rows):
        os.kill(os.getpid(), 9)
train(rows, 30, descriptor="x", iterations=4, checkpoint=Path(sys.argv[2]), progress=stop)
"""


@pytest.mark.slow
def test_a_killed_training_continues_with_the_same_result(tmp_path):
    rows, path = _blobs(), tmp_path / "words.checkpoint"
    np.save(tmp_path / "rows.npy", rows)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "rows.npy"), str(path)])
    assert done.returncode == -9
    whole = train(rows, 30, descriptor="x", iterations=4)
    again = train(rows, 30, descriptor="x", iterations=4, checkpoint=path)
    assert again.digest == whole.digest


def test_a_checkpoint_of_another_training_is_not_used(tmp_path):
    path = tmp_path / "words.checkpoint"
    for rows, size, iterations in ((_blobs(seed=1), 30, 2), (_blobs(), 31, 2), (_blobs(), 30, 1)):
        train(_blobs(), 30, descriptor="x", iterations=3, checkpoint=path)
        again = train(rows, size, descriptor="x", iterations=iterations, checkpoint=path)
        whole = train(rows, size, descriptor="x", iterations=iterations)
        assert again.digest == whole.digest
    path.write_bytes(b"broken")
    with pytest.raises(HardnetError, match="not a readable checkpoint"):
        train(_blobs(), 30, descriptor="x", checkpoint=path)


def test_a_full_disk_leaves_the_old_checkpoint(tmp_path, small_disk):
    path = tmp_path / "words.checkpoint"
    train(_blobs(), 30, descriptor="x", iterations=1, checkpoint=path)
    before = path.read_bytes()
    with small_disk(1000), pytest.raises(OSError, match="too large"):
        train(_blobs(), 30, descriptor="x", iterations=2, checkpoint=path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_size_grows_with_the_collection():
    sizes = [size_for(10**power) for power in range(12)]
    assert sizes == sorted(sizes)
    assert all(size & (size - 1) == 0 for size in sizes)
    assert size_for(0) == sizes[0] == 1 << 10
    assert size_for(118_000) == 1 << 13
    assert size_for(1_000_000) == size_for(100_000_000) == 1 << 16
    assert size_for(1_000_000_000) == 1 << 19
    assert sizes[-1] == 1 << 20
