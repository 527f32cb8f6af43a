"""One Ray for all tests of the cluster, and a small index of several segments."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
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
    """A small Ray, ended after the last test here."""
    module = pytest.importorskip(
        "ray", reason='TESTS OF THE CLUSTER DO NOT RUN: pip install "hardnet[cluster]"'
    )
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    module.init(
        address="local",
        num_cpus=1,
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


class RayHere:
    """The calls of Ray that we make, answered in this process; actors can die or hang."""

    def __init__(self) -> None:
        self.exceptions = importlib.import_module("ray.exceptions")
        self.is_initialized = lambda: True
        self.get_runtime_context = lambda: SimpleNamespace(gcs_address="here")

    def nodes(self) -> list[dict[str, Any]]:
        name = {"NodeID": "00" * 28, "NodeManagerHostname": "here"}
        return [{**name, "Alive": True, "Resources": {"CPU": 2.0}}]

    def put(self, value: Any) -> Answer:
        return Answer(lambda: value, ())

    def remote(self, **options: Any) -> Any:
        return Remote

    def wait(
        self, answers: list[Answer], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Answer], list[Answer]]:
        assert len(set(answers)) == len(answers)
        ready = [one for one in answers if one.is_ready]
        return ready, [one for one in answers if one not in ready]

    def get(self, answer: Answer) -> Any:
        assert answer.is_ready
        if isinstance(answer.result, Exception):
            raise answer.result
        return answer.result

    def kill(self, actor: Actor, no_restart: bool = True) -> None:
        actor.restart()


class Remote:
    """A function or class that Ray may run elsewhere."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def options(self, **options: Any) -> Remote:
        return self

    def remote(self, *given: Any) -> Any:
        if isinstance(self.thing, type):
            return Actor(self.thing)
        return Answer(self.thing, given)


class Actor:
    """An object in a process of its own, which is "alive", "dying", "hanging" or "starting"."""

    def __init__(self, kind: Any) -> None:
        self.kind, self.object, self.state, self.starts = kind, kind(), "alive", 1

    def __getattr__(self, method: str) -> Any:
        def run(*given: Any) -> Any:
            if self.state == "dying":
                self.restart()
                raise importlib.import_module("ray.exceptions").ActorDiedError
            return getattr(self.object, method)(*given)

        return SimpleNamespace(remote=lambda *given: Answer(run, given, self))

    def restart(self) -> None:
        self.object, self.state, self.starts = self.kind(), "starting", self.starts + 1


class Answer:
    """A result to come."""

    def __init__(self, run: Any, given: Any, actor: Actor | None = None) -> None:
        self.run, self.given, self.actor = run, given, actor
        self.result: Any = None

    @property
    def is_ready(self) -> bool:
        if self.run is not None:
            if self.actor is not None and self.actor.state in ("hanging", "starting"):
                return False
            run, self.run = self.run, None
            given = [one.run() if isinstance(one, Answer) else one for one in self.given]
            try:
                self.result = run(*given)
            except Exception as error:
                self.result = error
        return True


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> RayHere:
    """Ray without processes."""
    pytest.importorskip(
        "ray.util.scheduling_strategies",
        reason='TESTS OF THE CLUSTER DO NOT RUN: pip install "hardnet[cluster]"',
    )
    fake = RayHere()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def pid_of(ray: Any, actor: Any) -> int:
    """The process of an actor."""
    pid: int = ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))
    return pid
