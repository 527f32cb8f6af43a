"""Query images are described as the photos of their index were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hardnet import features
from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.images import Source
from hardnet.retrieval.building.index_settings import (
    IndexSettings,
    compare,
    identity,
    stored_settings,
)
from hardnet.retrieval.hits import Box
from hardnet.retrieval.words.vocabulary import Vocabulary

if TYPE_CHECKING:
    from hardnet.descriptors import Descriptor
    from hardnet.detectors import Detector


class QueryDescriber:
    """Describes query images; loads what it needs at the first one, for any number of threads.

    Args:
        kept: settings of the index, with what identifies its weights.
        folder: of the index.
        descriptor: named by a person, in place of the one that the index names.
    """

    def __init__(
        self, kept: Mapping[str, Any], folder: Path, descriptor: str | None = None
    ) -> None:
        self._kept, self._folder, self._descriptor = kept, folder, descriptor
        self._loaded: tuple[Detector, Descriptor] | None = None
        self._warm: Vocabulary | None = None
        self._lock = Lock()

    @cached_property
    def settings(self) -> IndexSettings:
        """How the photos of the index were described.

        Raises:
            HardnetError: only a person may name this descriptor, and none has.
        """
        return stored_settings(self._kept, self._folder, self._descriptor)

    def extract(self, image: Source) -> Features:
        """Features of an image.

        Raises:
            HardnetError: the image cannot be read, or the descriptor has other weights than when
                the index was made.
        """
        start = perf_counter()
        detect, describe = self._load()
        seconds = {"load": perf_counter() - start}
        settings = self.settings
        found = features.extract(
            image,
            detect,
            describe,
            settings.keypoints,
            settings.max_size,
            upright=settings.upright,
        )
        return replace(found, seconds=found.seconds | seconds)

    def ready(self, vocabulary: Vocabulary) -> float:
        """Make ready what the first query needs, and no later one; returns the seconds."""
        start = perf_counter()
        with self._lock:
            if self._warm is not vocabulary:
                row = np.ones((1, vocabulary.words.shape[1]), np.float32)
                vocabulary.signatures(row, vocabulary.assign(row))
                self._warm = vocabulary
        return perf_counter() - start

    def _load(self) -> tuple[Detector, Descriptor]:
        with self._lock:
            if self._loaded is None:
                detect, describe = self.settings.load()
                now = self.settings.to_json() | identity(self.settings, describe)
                compare(self._kept, now, self._folder)
                self._loaded = detect, describe
            return self._loaded


def check_box(box: Box | None, view: Features) -> None:
    """Raise if a box has no part of the image in it."""
    if box is None:
        return
    x, y, width, height = box
    across, down = view.image_size
    if x >= across or y >= down or x + width <= 0 or y + height <= 0:
        raise HardnetError(
            f"the box {x:g},{y:g},{width:g},{height:g} lies outside the query, which is "
            f"{across}x{down} pixels"
        )
