"""A mode with one word per feature uses no others, whatever the query has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hardnet.bench.retrieval.run import parse_mode
from hardnet.frames import from_similarity
from hardnet.retrieval.query import Query
from hardnet.retrieval.search import MODES, LocalShard, search
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.retrieval.store.writer import Writer


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory, made: SimpleNamespace) -> LocalShard:
    """Ten images of random words whose signatures are all the same."""
    rng = np.random.default_rng(0)
    folder: Path = tmp_path_factory.mktemp("single") / "index"
    with Writer(folder, {"settings": {}, "vocabulary": made.make_vocabulary()}) as writer:
        words = len(made.make_vocabulary())
        writer.add(
            IndexedImage(
                str(number),
                (400, 300),
                rng.integers(0, words, 12).astype(np.int32),
                np.zeros((12, 2), np.uint64),
                rng.integers(0, 2**16, (12, 3)).astype(np.uint16),
            )
            for number in range(10)
        )
        writer.commit()
    return LocalShard(open_snapshot(folder))


@pytest.mark.parametrize("name", MODES)
def test_a_query_of_three_words_is_searched_like_one_of_one(shard: LocalShard, name: str) -> None:
    rng = np.random.default_rng(1)
    words = np.stack([rng.permutation(shard.snapshot.words)[:3] for _ in range(20)])
    query = Query(
        words=words.astype(np.int32),
        signatures=np.zeros((20, 3, 2), np.uint64),
        frames=from_similarity(rng.uniform(20, 280, (20, 2)), 5.0),
        view=np.zeros(20, np.int32),
        view_sizes=((400, 300),),
        boxes=(None,),
    )
    single = replace(parse_mode(f"{name}:sa"), reliable=4)
    found, expected = (
        [(hit.path, hit.score, hit.inliers) for hit in search(asked, shard, single)]
        for asked in (query, query.nearest(1))
    )
    assert len(expected) > 3
    assert found == expected
