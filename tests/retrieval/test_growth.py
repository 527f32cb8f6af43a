from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hardnet.bench.report import tables

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "retrieval_growth.py"


@pytest.mark.slow
def test_an_index_of_drawn_images_grows_and_finds_them(tmp_path: Path, photos: Path) -> None:
    work, output = tmp_path / "work", tmp_path / "growth.json"
    work.mkdir()
    options = ["--photos", photos, "--count", 8, "--largest", 3000, "--words", 4096]
    options += ["--work", work, "--output", output]
    subprocess.run([sys.executable, SCRIPT, *map(str, options)], check=True, timeout=300)
    assert not list(work.iterdir())
    results = json.loads(output.read_text())
    first, second = results["rows"]
    assert (first["images"], second["images"]) == (1000, 3000)
    for row in (first, second):
        assert row["found_first"] == 1
        # 400 features are the mean of what is drawn from a wide distribution.
        assert 350 < row["features"] / row["images"] < 450
        assert 27 < row["bytes"] / row["features"] < 28
    assert 2.5 < second["postings_per_query"] / first["postings_per_query"] < 3.5
    assert second["own_memory_mb"] < 10
    assert [line[0] for line in tables(results)[0].rows] == ["1,000", "3,000"]


def test_drawn_images_have_the_shape_they_are_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from synthetic import Collection, Shape

    from hardnet.retrieval.query import Scoring
    from hardnet.retrieval.vocabulary import distances

    popularity = np.repeat([0.1, 1.9], 500)
    shape = Shape(np.array([10, 30]), popularity, np.array([1, 1, 1, 3]), close=0.1)
    collection = Collection(shape, words=1000, features=100.0)
    images = collection.images(0, 2000)
    assert {len(image) for image in images} == {50, 150}
    assert sum(map(len, images)) / 2000 == pytest.approx(100, rel=0.05)
    words = np.concatenate([image.words for image in images])
    signatures = np.concatenate([image.signatures for image in images])
    used = np.sort(np.bincount(words, minlength=1000) / (len(words) / 1000))
    assert used[:400].mean() == pytest.approx(0.1, abs=0.05)
    assert used[600:].mean() == pytest.approx(1.9, abs=0.1)
    order = np.argsort(words, kind="stable")
    pairs = [order[i : i + 2] for i in range(0, len(order) - 1, 37)]
    close = [
        distances(signatures[a], signatures[b]) <= Scoring().h_t
        for a, b in pairs
        if words[a] == words[b]
    ]
    assert np.mean(close) == pytest.approx(0.1, abs=0.02)
    again = collection.images(0, 2000)[1999]
    np.testing.assert_array_equal(again.signatures, images[1999].signatures)
