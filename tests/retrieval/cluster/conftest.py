"""One Ray for all tests of the cluster, and a small index of several segments."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hardnet import extract
from hardnet.features import Features
from hardnet.retrieval.index import Index
from hardnet.retrieval.photos import quantise_many
from hardnet.retrieval.search import MODES
from hardnet.retrieval.store.writer import Writer
from hardnet.retrieval.training import train
from hardnet.retrieval.vocabulary import Vocabulary

NAMES = (
    "astronaut.png",
    "brick.png",
    "camera.png",
    "chelsea.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "page.png",
    "text.png",
)
# The quickest descriptor: none of these tests depends on which one it is.
SETTINGS = {
    "detector": "dog",
    "descriptor": "rootsift",
    "keypoints": 200,
    "max_size": 300,
    "upright": False,
    "spread": True,
}


@dataclass(frozen=True)
class SmallIndex:
    """An index of four segments, and what it was made of."""

    folder: Path
    photos: dict[str, Path]
    features: dict[str, Features]
    vocabulary: Vocabulary


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """A Ray with two worker processes' worth of room; ended after the last test here."""
    module = pytest.importorskip(
        "ray", reason='TESTS OF THE CLUSTER DO NOT RUN: pip install "hardnet[cluster]"'
    )
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    module.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        object_store_memory=100 * 2**20,
    )
    yield module
    module.shutdown()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End Ray, whose idle processes take time of the other tests."""
    here = Path(__file__).parent
    if "ray" in sys.modules and (nextitem is None or here not in nextitem.path.parents):
        sys.modules["ray"].shutdown()


@pytest.fixture(scope="session")
def small(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> SmallIndex:
    paths = {name: photos / name for name in NAMES}
    features = {name: extract(path, **SETTINGS) for name, path in paths.items()}
    rows = [one.descriptors for one in features.values()]
    vocabulary = train(np.concatenate(rows), 64, descriptor="rootsift", seed=0)
    folder = tmp_path_factory.mktemp("cluster") / "index"
    with Writer(folder, {"settings": dict(SETTINGS), "vocabulary": vocabulary}) as writer:
        for group in (NAMES[:2], NAMES[2:3], NAMES[3:6], NAMES[6:]):
            writer.add(quantise_many([(name, features[name]) for name in group], vocabulary))
            writer.commit()
    return SmallIndex(folder, paths, features, vocabulary)


@pytest.fixture(scope="session")
def local(small: SmallIndex) -> Index:
    """The same index in this process; its kernels are compiled before others need them."""
    index = Index(small.folder)
    for mode in MODES:
        index.search(small.features["camera.png"], mode=mode)
    return index


def pid_of(ray: Any, actor: Any) -> int:
    """The process of an actor."""
    pid: int = ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))
    return pid
