"""A worker process that describes photos and finds their visual words."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.retrieval.building.index_settings import IndexSettings, compare, identity
from hardnet.retrieval.building.quantise import quantise
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.vocabulary import Vocabulary


@dataclass(frozen=True)
class Photo:
    """A photo to describe.

    Attributes:
        path: of the file, absolute: a worker has a working folder of its own.
        name: what the index calls it.
        state: of the file; see ``interop.feature_files.state_of``.
    """

    path: str
    name: str
    state: Mapping[str, int]


@dataclass(frozen=True)
class Failure:
    """Why a photo could not be described.

    Attributes:
        why: for people.
        unseen_by: the node that does not see the file at all; "" if it was read.
    """

    why: str
    unseen_by: str = ""


class DescribeActor:
    """Has one network, and describes photos as :func:`hardnet.pipeline.extract_many` does.

    Args:
        settings: of the driver, where a person gave them or they were checked.
        weights: of ``index_settings.identity``, as the driver sees them.
        cores: that this process may use.
    """

    def __init__(self, settings: IndexSettings, weights: Mapping[str, Any], cores: int) -> None:
        self._settings = settings
        self._weights = weights
        self._cores = cores
        self._loaded: tuple[Any, Any] | None = None
        self._words: tuple[str, Vocabulary] | None = None

    def ready(self) -> str:
        """The name of the node, once the network is loaded.

        Raises:
            HardnetError: this node cannot load it, or has other weights of that name.
        """
        node = socket.gethostname()
        try:
            self._load()
        except Exception as error:  # whatever it is, people must know which node
            raise HardnetError(f"node {node}: {error}") from error
        return node

    def features(self, photos: Sequence[Photo]) -> list[Features | Failure]:
        """Features of photos; or why one has none."""
        import cv2

        from hardnet.pipeline import extract_many

        cv2.setNumThreads(self._cores)
        detect, describe = self._load()
        settings = self._settings
        results = extract_many(
            [Path(photo.path) for photo in photos],
            detector=detect,
            descriptor=describe,
            keypoints=settings.keypoints,
            max_size=settings.max_size,
            upright=settings.upright,
            workers=self._cores,
        )
        with closing(results):
            return [_plain(path, result) for path, result in results]

    def indexed(
        self, photos: Sequence[Photo], fingerprint: str, vocabulary: Vocabulary
    ) -> list[IndexedImage | Failure]:
        """What an index keeps of photos; or why there is nothing."""
        words = self._kept(fingerprint, vocabulary)
        return [
            found if isinstance(found, Failure) else quantise(photo.name, found, words, photo.state)
            for photo, found in zip(photos, self.features(photos), strict=True)
        ]

    def _kept(self, fingerprint: str, vocabulary: Vocabulary) -> Vocabulary:
        """The vocabulary that came first: each batch brings a new one, with nothing computed."""
        if self._words is None or self._words[0] != fingerprint:
            self._words = fingerprint, vocabulary
        return self._words[1]

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            detect, describe = self._settings.load()
            compare(self._weights, identity(self._settings, describe), "the index")
            if hasattr(describe, "threads"):
                describe.threads = self._cores
            self._loaded = detect, describe
        return self._loaded


def _plain(path: Path, result: Features | HardnetError) -> Features | Failure:
    """What can be sent: not every error can."""
    if isinstance(result, HardnetError):
        return Failure(str(result), "" if os.path.exists(path) else socket.gethostname())
    return replace(result, pixels=None)
