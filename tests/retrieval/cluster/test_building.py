"""An index built by worker processes of Ray is the index that one machine builds."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.cluster.describers import DescribeActor, Describers, Failure
from hardnet.retrieval.photos import IndexSettings
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.vocabulary import Assigner

from .conftest import SETTINGS, SmallIndex, pid_of


@pytest.mark.slow  # test_dispatch has the same death without a process
def test_a_killed_worker_loses_nothing(ray: Any, small: SmallIndex) -> None:
    with Describers(ray, IndexSettings(**SETTINGS), workers=1) as describers:
        states = {name: {"bytes": 1, "mtime_ns": 2} for name in small.photos}
        results = describers.indexed(small.photos, states, small.vocabulary)
        first = next(results)
        os.kill(pid_of(ray, describers.actors[0]), signal.SIGKILL)
        found = dict([first, *results])
    assert list(found) == list(small.photos)
    from hardnet.retrieval.photos import quantise

    for name, image in found.items():
        assert not isinstance(image, HardnetError)
        expected = quantise(name, small.features[name], small.vocabulary, states[name])
        assert (image.name, image.size, image.file_bytes, image.mtime_ns) == (
            expected.name,
            expected.size,
            1,
            2,
        )
        for column in ("words", "signatures", "geometry"):
            np.testing.assert_array_equal(getattr(image, column), getattr(expected, column))


def test_a_worker_prepares_a_vocabulary_once(
    small: SmallIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hardnet.retrieval import vocabulary as module

    made = []

    def count(words: Any) -> Any:
        made.append(words)
        return Assigner(words)

    monkeypatch.setattr(module, "Assigner", count)
    actor = DescribeActor(IndexSettings(**SETTINGS), {}, 1)
    name = "coins.png"
    path, named = str(small.photos[name]), (name, {"bytes": 1, "mtime_ns": 2})
    for digest, expected in (("a", 1), ("a", 1), ("b", 2)):
        # Ray makes a new object for every call.
        [image] = actor.indexed([path], [named], digest, replace(small.vocabulary))
        assert isinstance(image, IndexedImage)
        assert len(image) == len(small.features[name])
        assert len(made) == expected


def test_other_weights_are_refused() -> None:
    settings = SETTINGS | {"descriptor": "hardnet-int8"}
    actor = DescribeActor(IndexSettings(**settings), {"weights": "others"}, 1)
    with pytest.raises(HardnetError, match=r"node \S+: the index was made with other weights"):
        actor.ready()


def test_a_photo_that_only_the_driver_sees(tmp_path: Path) -> None:
    path = tmp_path / "there.png"
    [found] = DescribeActor(IndexSettings(**SETTINGS), {}, 1).features([str(path)])
    assert isinstance(found, Failure)
    assert "does not exist" in str(found.error(str(path), path))  # nobody sees it
    path.touch()
    with pytest.raises(HardnetError, match=r"node \S+ does not see .*there.png: put the photos"):
        found.error(str(path), path)
