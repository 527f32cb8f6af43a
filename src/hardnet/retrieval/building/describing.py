"""Who describes the photos of an index: this process, or others."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hardnet.errors import HardnetError
from hardnet.pipeline import extract_many
from hardnet.retrieval.building.index_settings import IndexSettings
from hardnet.retrieval.building.quantise import quantise
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.vocabulary import Vocabulary

if TYPE_CHECKING:
    from hardnet.pipeline import Result


class Describing(Protocol):
    """Makes of photos what an index needs; always the same, whoever does it."""

    def features(self, images: Sequence[Path]) -> Generator[Result, None, None]:
        """Features of image files, in order; see :func:`hardnet.pipeline.extract_many`."""

    def indexed(
        self,
        photos: Mapping[str, Path],
        states: Mapping[str, Mapping[str, int]],
        vocabulary: Vocabulary,
    ) -> Generator[tuple[str, IndexedImage | HardnetError], None, None]:
        """What an index keeps of photos (name -> file), in order.

        Args:
            photos: name -> file.
            states: name -> bytes and time of change of the file.
            vocabulary: of the index.

        Yields:
            Each name with its image; or with the error that says why there is none.
        """


class DescribingHere:
    """The threads of this process.

    Args:
        settings: how photos are described.
        workers: threads; see :func:`hardnet.pipeline.extract_many`.
    """

    def __init__(self, settings: IndexSettings, workers: int | None = None) -> None:
        self._settings, self._workers = settings, workers

    def features(self, images: Sequence[Path]) -> Generator[Result, None, None]:
        """See :class:`Describing`."""
        detect, describe = self._settings.load()
        return extract_many(
            images,
            detector=detect,
            descriptor=describe,
            keypoints=self._settings.keypoints,
            max_size=self._settings.max_size,
            upright=self._settings.upright,
            workers=self._workers,
        )

    def indexed(
        self,
        photos: Mapping[str, Path],
        states: Mapping[str, Mapping[str, int]],
        vocabulary: Vocabulary,
    ) -> Generator[tuple[str, IndexedImage | HardnetError], None, None]:
        """See :class:`Describing`."""
        with closing(self.features(list(photos.values()))) as results:
            for name, (_, result) in zip(photos, results, strict=True):
                if isinstance(result, HardnetError):
                    yield name, result
                else:
                    yield name, quantise(name, result, vocabulary, states[name])
