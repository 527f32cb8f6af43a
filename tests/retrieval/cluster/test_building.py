"""An index built by worker processes of Ray is the index that one machine builds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.cluster.describers import DescribeActor, Failure
from hardnet.retrieval.photos import IndexSettings
from hardnet.retrieval.store.segment import IndexedImage

from .conftest import SETTINGS, SmallIndex


def test_a_worker_prepares_a_vocabulary_once(small: SmallIndex) -> None:
    actor = DescribeActor(IndexSettings(**SETTINGS), {}, 1)
    path = str(small.photos["coins.png"])
    # Ray makes a new object for every call.
    first, second, other = (replace(small.vocabulary) for _ in range(3))
    for digest, vocabulary in (("a", first), ("a", second), ("b", other)):
        [image] = actor.describe([path], digest, vocabulary)
        assert isinstance(image, IndexedImage)
        assert len(image) == len(small.features["coins.png"])
    ready = ["_assigner" in vars(one) for one in (first, second, other)]
    assert ready == [True, False, True]


def test_other_weights_are_refused() -> None:
    settings = SETTINGS | {"descriptor": "hardnet-int8"}
    actor = DescribeActor(IndexSettings(**settings), {"weights": "others"}, 1)
    with pytest.raises(HardnetError, match=r"node \S+: the index was made with other weights"):
        actor.ready()


def test_a_photo_that_only_the_driver_sees(tmp_path: Path) -> None:
    path = tmp_path / "there.png"
    [found] = DescribeActor(IndexSettings(**SETTINGS), {}, 1).describe([str(path)])
    assert isinstance(found, Failure)
    assert "does not exist" in str(found.error(str(path), path))  # nobody sees it
    path.touch()
    with pytest.raises(HardnetError, match=r"node \S+ does not see .*there.png: put the photos"):
        found.error(str(path), path)
