"""The option --cluster of commands that can work on many machines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hardnet.retrieval.cluster.shards import ShardedIndex
    from hardnet.retrieval.index import Index
    from hardnet.retrieval.photos import Describing, IndexSettings


Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Work on a Ray cluster: HOST:PORT of its head, auto for the one that this machine "
        "belongs to, ray://HOST:PORT from outside, or local to start one here.",
    ),
]


@contextmanager
def describing_on(
    address: str | None, settings: IndexSettings, workers: int | None
) -> Iterator[Describing | None]:
    """Who describes photos: the workers of a cluster, or None without an address."""
    if address is None:
        yield None
        return
    from hardnet.retrieval.cluster.describers import describers_on

    # Ray reports dead workers on stdout, where a machine expects JSON.
    with redirect_stdout(sys.stderr), describers_on(address, settings, workers) as describers:
        yield describers


@contextmanager
def opened(
    folder: Path, descriptor: str | None, address: str | None, shards: int | None
) -> Iterator[Index | ShardedIndex]:
    """The index in this process, or in shards on a cluster."""
    if address is None:
        from hardnet.retrieval.index import Index

        yield Index(folder, descriptor=descriptor)
        return
    from hardnet.retrieval.cluster.shards import ShardedIndex

    with (
        redirect_stdout(sys.stderr),
        ShardedIndex(folder, address, shards=shards, descriptor=descriptor) as index,
    ):
        yield index
