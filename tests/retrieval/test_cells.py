from __future__ import annotations

import numpy as np
import pytest

from hardnet.retrieval import training, vocabulary
from hardnet.retrieval.training import make_cells
from hardnet.retrieval.vocabulary import ROUGH_PROBES, Assigner, CellAssigner, Cells


def _words(count=2000, rows=500, dim=32, seed=0):
    """Words and rows around some directions, as descriptors are."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(100, dim))

    def around(many):
        near = centres[rng.integers(100, size=many)] + 0.5 * rng.normal(size=(many, dim))
        return (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)

    return around(count) * np.float32(0.8), around(rows)


def test_each_word_is_in_the_cell_of_its_nearest_centre():
    words, _ = _words()
    ordered, made = make_cells(words)
    assert np.array_equal(np.sort(ordered, axis=0), np.sort(words, axis=0))
    assert made.starts[0] == 0
    assert made.starts[-1] == len(words)
    of_word = np.repeat(np.arange(len(made.centres)), np.diff(made.starts))
    assert np.array_equal(Assigner(made.centres)(ordered)[:, 0], of_word)


@pytest.mark.parametrize("count", [1, 3, 5])
def test_all_cells_give_the_nearest_words(count):
    words, made = make_cells(_words()[0])
    rows = _words()[1]
    far = np.linalg.norm(rows[:, None] - words, axis=2)
    found = CellAssigner(words, made, 1000)(rows, count)
    assert found.dtype == np.int32
    assert (found == np.argsort(far, axis=1)[:, :count]).mean() > 0.999


def test_more_cells_find_more():
    words, made = make_cells(_words()[0])
    rows = _words()[1]
    exact = np.linalg.norm(rows[:, None] - words, axis=2).argmin(axis=1)
    shares = []
    for probes in (1, 4, 16):
        assign = CellAssigner(words, made, probes)
        shares.append((assign(rows)[:, 0] == exact).mean())
    assert shares == sorted(shares)
    assert shares[0] < 0.97 < shares[-1]


def test_result_does_not_depend_on_the_other_rows():
    words, made = make_cells(_words()[0])
    rows = _words(rows=3000)[1]
    assign = CellAssigner(words, made)
    parts = np.concatenate([assign(rows[:3], 3), assign(rows[3:], 3)])
    assert np.array_equal(assign(rows, 3), parts)


def test_near_cells_without_words():
    """Then all words are looked at; an answer is always a word."""
    words = np.eye(4, dtype=np.float32)
    made = Cells(-np.eye(4, dtype=np.float32)[:2], np.array([0, 0, 4]))
    assign = CellAssigner(words, made)
    assert assign(np.eye(4, dtype=np.float32))[:, 0].tolist() == [0, 1, 2, 3]
    assert sorted(assign(words[:1], 9)[0].tolist()) == [0, 1, 2, 3]
    centres = np.repeat([[1, 0, 0, 0], [-9, 0, 0, 0]], [ROUGH_PROBES, 1], axis=0)
    starts = np.array([0] * (ROUGH_PROBES + 1) + [4])
    assign = CellAssigner(words, Cells(centres.astype(np.float32), starts), ROUGH_PROBES)
    rows = np.array([[1, 0, 0, 0], [0.9, 0, 0.4, 0]], np.float32)
    assert assign.roughly(rows).tolist() == assign(rows)[:, 0].tolist() == [0, 0]


def test_large_vocabularies_are_trained_and_stored_with_cells(monkeypatch, tmp_path):
    monkeypatch.setattr(training, "LARGE", 500)
    rows = _words(rows=4000, dim=128)[1]
    path = tmp_path / "words.checkpoint"
    made = training.train(rows, 600, descriptor="x", iterations=3)
    training.train(rows, 600, descriptor="x", iterations=1, checkpoint=path)
    resumed = training.train(rows, 600, descriptor="x", iterations=3, checkpoint=path)
    assert resumed.digest == made.digest
    assert made.cells is not None
    assert made.cells.starts[-1] == len(made)
    vocabulary.save(made, tmp_path / "v.safetensors")
    again = vocabulary.load(tmp_path / "v.safetensors")
    assert again.cells is not None
    assert again.digest == made.digest
    prepared = made.prepare(rows[:50])
    far = np.linalg.norm(prepared[:, None] - made.words, axis=2)
    assert np.array_equal(again.assign(prepared, 3), made.assign(prepared, 3))
    assert (again.assign(prepared)[:, 0] == far.argmin(axis=1)).mean() > 0.9
    assert training.train(rows, 400, descriptor="x", iterations=1).cells is None
