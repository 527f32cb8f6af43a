from __future__ import annotations

import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hardnet.errors import HardnetError
from hardnet.retrieval import vocabulary
from hardnet.retrieval.training import random_projection
from hardnet.retrieval.vocabulary import Vocabulary, unpack_bits


def _vocabulary(count=50, dim=128, seed=0, **changes):
    rng = np.random.default_rng(seed)
    values = {
        "words": rng.normal(scale=0.08, size=(count, dim)).astype(np.float32),
        "mean": rng.normal(scale=0.01, size=dim).astype(np.float32),
        "projection": random_projection(dim, seed),
        "thresholds": rng.normal(scale=0.05, size=(count, 128)).astype(np.float16),
        "descriptor": "hardnet",
        "provenance": {"photos": 3},
    }
    return Vocabulary(**(values | changes))


def test_prepare_subtracts_the_mean_and_has_unit_length():
    words = _vocabulary(mean=np.array([0.5, 0], np.float32), dim=2)
    prepared = words.prepare(np.array([[3.5, 4], [0.5, -2]]))
    np.testing.assert_allclose(prepared, [[0.6, 0.8], [0, -1]], rtol=1e-6)
    assert prepared.dtype == np.float32


def test_prepare_of_what_has_no_direction_is_zero():
    words = _vocabulary(dim=4)
    given = np.stack([words.mean, [np.nan, 1, 0, 0], [np.inf, 0, 0, 0]]).astype(np.float32)
    with np.errstate(divide="raise"):
        assert np.array_equal(words.prepare(given), np.zeros((3, 4)))


def test_prepare_leaves_what_it_is_given():
    words, given = _vocabulary(), np.ones((2, 128), np.float32)
    words.prepare(given)
    assert (given == 1).all()


def test_prepare_of_other_dimensions_says_so():
    with pytest.raises(HardnetError, match="128 dimensions"):
        _vocabulary().prepare(np.zeros((3, 64)))


def test_assign_gives_the_nearest_words():
    words = _vocabulary()
    rows = words.prepare(np.random.default_rng(1).normal(size=(20, 128)))
    far = np.linalg.norm(rows[:, None] - words.words, axis=2)
    assert np.array_equal(words.assign(rows, 3), np.argsort(far, axis=1)[:, :3])


@pytest.mark.parametrize("dim", [128, 64, 200])
def test_signature_bits_say_what_is_above_the_threshold_of_the_word(dim):
    words = _vocabulary(dim=dim)
    rows = words.prepare(np.random.default_rng(2).normal(size=(30, dim)))
    near = words.assign(rows, 2)
    bits = unpack_bits(words.signatures(rows, near))
    for n in range(30):
        for m in range(2):
            for b in range(128):
                above = rows[n] @ words.projection[b] - np.float32(words.thresholds[near[n, m], b])
                assert bits[n, m, b] == (above > 0) or abs(above) < 1e-6


def test_signatures_of_many_rows_are_those_of_each():
    words = _vocabulary()
    rows = words.prepare(np.random.default_rng(3).normal(size=(2500, 128)))
    near = words.assign(rows)
    every = words.signatures(rows, near)
    some = np.concatenate(
        [words.signatures(rows[k : k + 100], near[k : k + 100]) for k in (0, 2400)]
    )
    different = unpack_bits(np.concatenate([every[:100], every[2400:]]) ^ some).sum()
    assert every.shape == (2500, 1, 2)
    assert different <= 2  # a value that equals its threshold up to rounding may fall either way


def test_no_descriptors():
    words = _vocabulary()
    rows = words.prepare(np.zeros((0, 128), np.float32))
    near = words.assign(rows, 3)
    assert near.shape == (0, 3)
    assert words.signatures(rows, near).shape == (0, 3, 2)


def test_saved_and_loaded(tmp_path):
    words = _vocabulary()
    vocabulary.save(words, tmp_path / "v.safetensors")
    again = vocabulary.load(tmp_path / "v.safetensors")
    for name in ("words", "mean", "projection", "thresholds"):
        one, other = getattr(words, name), getattr(again, name)
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    assert (again.descriptor, again.provenance) == ("hardnet", {"photos": 3})
    assert again.digest == words.digest


def test_equal_vocabularies_are_equal_files(tmp_path):
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    before = os.umask(0o027)
    try:
        for path in paths:
            vocabulary.save(_vocabulary(provenance={"photos": 3, "seed": 1}), path)
    finally:
        os.umask(before)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o640, 0o640]
    # Another program reads the same: the package of the format itself.
    stored = load_file(paths[0])
    assert sorted(stored) == ["mean", "projection", "thresholds", "words"]
    assert np.array_equal(stored["thresholds"], _vocabulary().thresholds)


def test_digest_changes_with_every_array_and_the_descriptor():
    words = _vocabulary()
    prints = {words.digest}
    for name in ("words", "mean", "projection", "thresholds"):
        changed = getattr(words, name).copy()
        changed.flat[-1] += 1
        prints.add(_vocabulary(**{name: changed}).digest)
    prints.add(_vocabulary(descriptor="rootsift").digest)
    assert len(prints) == 6
    assert all(len(p) == 16 and int(p, 16) >= 0 for p in prints)
    assert _vocabulary(provenance={}).digest == words.digest


def test_unreadable_files_are_named(tmp_path):
    path = tmp_path / "v.safetensors"
    with pytest.raises(HardnetError, match="no vocabulary file"):
        vocabulary.load(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(HardnetError, match="is not a readable vocabulary"):
        vocabulary.load(path)
    save_file({"words": np.zeros((2, 3), np.float32)}, path)
    with pytest.raises(HardnetError, match="not a vocabulary"):
        vocabulary.load(path)
    vocabulary.save(_vocabulary(), path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(HardnetError, match="is not a readable vocabulary"):
        vocabulary.load(path)
    vocabulary.save(_vocabulary(thresholds=np.zeros((7, 128), np.float16)), path)
    with pytest.raises(HardnetError, match="thresholds"):
        vocabulary.load(path)


def test_damaged_metadata_is_named(tmp_path):
    path = tmp_path / "v.safetensors"
    vocabulary.save(_vocabulary(provenance={"seed": 1}), path)
    path.write_bytes(path.read_bytes().replace(b'{\\"seed', b'#\\"seed'))
    with pytest.raises(HardnetError, match="damaged metadata"):
        vocabulary.load(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_damaged_numbers_are_named(tmp_path, value):
    words = _vocabulary().words.copy()
    words[0, 0] = value
    vocabulary.save(_vocabulary(words=words), tmp_path / "v.safetensors")
    with pytest.raises(HardnetError, match="words has damaged numbers"):
        vocabulary.load(tmp_path / "v.safetensors")
