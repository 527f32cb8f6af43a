"""Photos described by all workers of a cluster; the driver writes the index."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.retrieval.building.build import BuildReport, build
from hardnet.retrieval.building.index_settings import IndexSettings, identity
from hardnet.retrieval.closable import Closable
from hardnet.retrieval.cluster.connect import Connection
from hardnet.retrieval.cluster.describe_actor import DescribeActor, Failure, Photo
from hardnet.retrieval.cluster.dispatch import BATCH, dispatch
from hardnet.retrieval.cluster.nodes import check_nodes, working_nodes
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.vocabulary import Vocabulary

CORES = 4
"""Of one worker process: more share a network, fewer keep more photos in memory."""


def build_on_cluster(
    folder: str | os.PathLike[str],
    photos: Mapping[str, Path],
    settings: IndexSettings | None = None,
    *,
    address: str = "local",
    workers: int | None = None,
    **options: Any,
) -> BuildReport:
    """Make an index, or go on with one, as :func:`~hardnet.retrieval.building.build.build` does.

    The index is the same, to the last bit. The photos must be on a disk that all nodes share,
    under the same path; the folder of the index need not be.

    Args:
        folder: of the index.
        photos: name -> file, by ``photo_names.named_photos``.
        settings: how photos are described.
        address: of the cluster; see :class:`~hardnet.retrieval.cluster.connect.Connection`.
        workers: processes; by default as many as the cores of the cluster can keep busy.
        options: further options of :func:`hardnet.retrieval.building.build.build`.
    """
    settings = settings or IndexSettings()
    with describers_on(address, settings, workers) as describers:
        return build(Path(folder), photos, settings, describing=describers, **options)


@contextmanager
def describers_on(
    address: str, settings: IndexSettings, workers: int | None = None
) -> Iterator[Describers]:
    """Workers of the cluster at ``address``, all of which can work with us."""
    with Connection(address) as connection:
        check_nodes(connection.ray)
        with Describers(connection.ray, settings, workers) as describers:
            yield describers


class Describers(Closable):
    """Worker processes on all nodes of a cluster, each with a network of its own.

    Args:
        ray: the module, connected.
        settings: how photos are described.
        workers: processes; by default as many as the cores of the cluster can keep busy.
    """

    def __init__(self, ray: Any, settings: IndexSettings, workers: int | None = None) -> None:
        self._ray = ray
        cores = [int(node["Resources"]["CPU"]) for node in working_nodes(ray)]
        own = max(min(CORES, *cores), 1)
        count = workers or max(sum(cores) // own, 1)
        _, describe = settings.load()
        # The batches of a worker that died are done again by us, not by Ray: others are free.
        remote = ray.remote(
            num_cpus=own, max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD"
        )(DescribeActor)
        weights = identity(settings, describe)
        self.actors = [remote.remote(settings, weights, own) for _ in range(count)]

    def features(self, images: Sequence[Path]) -> Generator[tuple[Path, Any], None, None]:
        """Features of image files; see :func:`hardnet.pipeline.extract_many`."""
        photos = [Photo(os.path.abspath(image), "", {}) for image in images]
        results = self._run(photos, images, lambda actor, batch: actor.features.remote(batch))
        with closing(results):
            for image, result in zip(images, results, strict=True):
                if isinstance(result, Features):
                    result = replace(result, path=str(image))
                yield image, result

    def indexed(
        self,
        photos: Mapping[str, Path],
        states: Mapping[str, Mapping[str, int]],
        vocabulary: Vocabulary,
    ) -> Generator[tuple[str, IndexedImage | HardnetError], None, None]:
        """What an index keeps of photos, as a ``Describing`` of building/describing.py gives it."""
        sent = [
            Photo(os.path.abspath(path), name, dict(states[name])) for name, path in photos.items()
        ]
        # A copy without what the original may have computed for itself.
        shared = self._ray.put(replace(vocabulary))
        results = self._run(
            sent,
            list(photos.values()),
            lambda actor, batch: actor.indexed.remote(batch, vocabulary.fingerprint, shared),
        )
        with closing(results):
            yield from zip(photos, results, strict=True)

    def close(self) -> None:
        """End the processes."""
        for actor in self.actors:
            self._ray.kill(actor)
        self.actors = []

    def _run(
        self,
        photos: Sequence[Photo],
        images: Sequence[Path],
        ask: Callable[[Any, list[Photo]], Any],
    ) -> Generator[Any, None, None]:
        """Results of photos, in order; HardnetError for those that could not be described."""
        batch = max(min(BATCH, -(-len(photos) // len(self.actors))), 1)
        results = dispatch(
            self._ray,
            self.actors,
            len(photos),
            lambda actor, places: ask(actor, [photos[place] for place in places]),
            lambda place, why: Failure(
                f"{images[place]} cannot be described: {why}, again and again; use a smaller copy"
            ),
            batch,
        )
        with closing(results):
            for photo, image, result in zip(photos, images, results, strict=True):
                yield _error(photo, image, result) if isinstance(result, Failure) else result


def _error(photo: Photo, image: Path, failure: Failure) -> HardnetError:
    """The error of a photo, with the path by which the user called it."""
    if failure.unseen_by and os.path.exists(image):
        raise HardnetError(
            f"node {failure.unseen_by} does not see {photo.path}: put the photos on a disk that "
            "all nodes share, under the same path"
        )
    return HardnetError(failure.why.replace(photo.path, str(image)))
