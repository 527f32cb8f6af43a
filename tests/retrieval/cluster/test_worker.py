"""What a worker of a cluster does with photos, without one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.cluster.describers import Failure, describe
from hardnet.retrieval.photos import IndexSettings, weights_of
from hardnet.retrieval.store.segment import IndexedImage

from .conftest import SETTINGS, SmallIndex

QUICK = IndexSettings(**SETTINGS)
WEIGHTS = json.dumps(weights_of(QUICK, QUICK.load()[1]))


def test_a_worker_prepares_a_vocabulary_once(small: SmallIndex) -> None:
    path = str(small.photos["coins.png"])
    # Ray makes a new object for every call.
    first, second, other = (replace(small.vocabulary) for _ in range(3))
    for digest, vocabulary in (("a", first), ("a", second), ("b", other)):
        [image] = describe(QUICK, WEIGHTS, 1, [path], digest, vocabulary)
        assert isinstance(image, IndexedImage)
        assert len(image) == len(small.features["coins.png"])
    ready = ["_assigner" in vars(one) for one in (first, second, other)]
    assert ready == [True, False, True]


def test_other_weights_are_refused() -> None:
    settings = IndexSettings(**SETTINGS | {"descriptor": "hardnet-int8"})
    with pytest.raises(HardnetError, match=r"node \S+: the index was made with other weights"):
        describe(settings, '{"weights": "others"}', 1, [])


def test_a_photo_that_only_the_driver_sees(tmp_path: Path) -> None:
    path = tmp_path / "there.png"
    [found] = describe(QUICK, WEIGHTS, 1, [str(path)])
    assert isinstance(found, Failure)
    assert "does not exist" in str(found.error(str(path), path))  # nobody sees it
    path.touch()
    with pytest.raises(HardnetError, match=r"node \S+ does not see .*there.png: put the photos"):
        found.error(str(path), path)
