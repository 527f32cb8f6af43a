"""An index built by a cluster: workers describe, the driver writes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardnet.retrieval.building.build import BuildReport, build
from hardnet.retrieval.building.index_settings import IndexSettings
from hardnet.retrieval.cluster.connect import Connection
from hardnet.retrieval.cluster.describers import Describers
from hardnet.retrieval.cluster.nodes import check_nodes


def build_on_cluster(
    folder: str | os.PathLike[str],
    photos: Mapping[str, Path],
    settings: IndexSettings | None = None,
    *,
    address: str = "local",
    workers: int | None = None,
    **options: Any,
) -> BuildReport:
    """Make an index, or go on with one, as :func:`hardnet.retrieval.building.build.build` does.

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
