"""Many photos quantised together are those quantised one by one."""

from __future__ import annotations

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.retrieval import training
from hardnet.retrieval.photos import PHOTOS, quantise_many


def _photo(count: int, rng: np.random.Generator) -> Features:
    frames = rng.uniform(1, 60, (count, 2, 3)).astype(np.float32)
    frames[:, 0, 1] = frames[:, 1, 0] = 0
    vectors = rng.normal(size=(count, 128)).astype(np.float32)
    return Features(frames, np.ones(count, np.float32), vectors, (64, 64), "random")


def test_many_are_as_each() -> None:
    rng = np.random.default_rng(3)
    photos = [
        (f"{i}.png", _photo(count, rng))
        for i, count in enumerate((5, 0, 70, 1, 33, *[9] * PHOTOS, 0))
    ]
    rows = np.concatenate([photo.descriptors for _, photo in photos])
    vocabulary = training.train(rows, 20, descriptor="random", iterations=2)
    together = list(quantise_many(iter(photos), vocabulary))
    assert [image.name for image in together] == [name for name, _ in photos]
    for image, (name, photo) in zip(together, photos, strict=True):
        [alone] = quantise_many([(name, photo)], vocabulary)
        np.testing.assert_array_equal(image.words, alone.words)
        np.testing.assert_array_equal(image.signatures, alone.signatures)
        np.testing.assert_array_equal(image.geometry, alone.geometry)


def test_bits_have_no_words() -> None:
    rng = np.random.default_rng(0)
    photo = _photo(4, rng)
    vocabulary = training.train(photo.descriptors, 2, descriptor="random", iterations=1)
    bits = Features(
        photo.frames, photo.scores, np.zeros((4, 32), np.uint8), photo.image_size, "beblid"
    )
    with pytest.raises(HardnetError, match="beblid makes bits"):
        list(quantise_many([("a.png", bits)], vocabulary))
