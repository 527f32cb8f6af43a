"""`hardnet search`: find photos that show the same object or place."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from hardnet.cli.options import AsJson, Cluster, KnownDescriptor, argument, option, reads_images
from hardnet.cli.output import console, refuse_inputs, say
from hardnet.errors import HardnetError
from hardnet.retrieval.draw import draw_results
from hardnet.retrieval.index import Index
from hardnet.retrieval.photos import shown
from hardnet.retrieval.query import Box, Results
from hardnet.retrieval.search import DEFAULT_MODE, mode_named

if TYPE_CHECKING:
    from hardnet.retrieval.cluster.shards import ShardedIndex


@reads_images
def search(
    index: Path = argument("Folder of the index.", metavar="INDEX"),
    query: list[Path] = argument("Photos of what to search for.", metavar="QUERY..."),
    box: list[str] | None = option(
        None,
        "Search for this part of the query, in pixels; one per QUERY, in order.",
        metavar="X,Y,W,H",
    ),
    views: bool = option(False, "Treat all QUERY images as views of one object: one query."),
    k: int = option(10, "Largest number of hits.", "-k", min=1),
    mode: str | None = option(
        None,
        "bow, bow+sv, bow+qe, he, he+sv, hqe or hqe+sv: bag of words (bow) or Hamming "
        "embedding (he); sv: geometric verification; qe, hqe: query expansion.",
    ),
    verified: bool = option(False, "Show only verified hits."),
    min_inliers: int = option(0, "Show only hits with at least this many inliers.", min=0),
    output: Path | None = option(None, "Write a picture of the hits here.", "--output", "-o"),
    descriptor: KnownDescriptor = None,
    cluster: Cluster = None,
    shards: int | None = option(None, "With --cluster: number of shards [one per node].", min=1),
    as_json: AsJson = False,
) -> None:
    """Find the photos of an index that show the same object or place as the query.

    Each QUERY is searched separately; with --views, all of them together are one query.
    Queries are described like the photos of the index. Only an index built with a Python function
    needs --descriptor.

    With --cluster, Ray workers search parts of the index (shards); the index must have the same
    path on all nodes. The hits are the same. Shards that do not answer are reported.

    A hit is verified if more features agree with one map from the query to it than chance explains,
    and unsure if only a few do. Modes without sv verify nothing.

    Exit code 0: a hit is verified (in modes without sv: found). 1: none is, or a query cannot be
    read.

    Example: hardnet search photos.index query.jpg --box 120,80,300,200 -o hits.png
    """
    refuse_inputs(output, query)
    boxes = [_box(text) for text in box or []]
    if boxes and len(boxes) != len(query):
        raise HardnetError(f"{len(boxes)} --box for {len(query)} QUERY: give one for each")
    chosen = mode or DEFAULT_MODE
    if shards is not None and cluster is None:
        raise HardnetError("--shards needs --cluster: add --cluster ADDRESS")
    verifies = mode_named(chosen).verification is not None
    if (verified or min_inliers) and not verifies:
        raise HardnetError(f"mode {chosen} verifies nothing: use one with sv, such as he+sv")
    each = [([photo], boxes[number : number + 1]) for number, photo in enumerate(query)]
    asked = [(query, boxes)] if views else each
    answers = []
    with (
        console(stderr=True).status("Searching..."),
        opened(index, descriptor, cluster, shards) as collection,
    ):
        for photos, regions in asked:
            results = collection.search(photos, k, regions or None, chosen)
            kept = (hit for hit in results.hits if hit.verified or not verified)
            hits = [hit for hit in kept if hit.inliers >= min_inliers]
            answers.append(replace(results, hits=hits))
    if as_json:
        objects = [results.to_json(index, len(collection), chosen) for results in answers]
        print(json.dumps(objects[0] if len(asked) == 1 else objects))
    for results in answers:
        if not as_json:
            _show(results, verifies, many=len(asked) > 1)
        _warn(results, len(collection), verifies)
    if output is not None:  # last: if the picture cannot be written, the hits are still printed
        draw_results(output, answers)
        if not as_json:
            say(f"picture: {output}")
    if not any(results.verified if verifies else results.hits for results in answers):
        raise typer.Exit(1)


@contextmanager
def opened(
    folder: Path, descriptor: str | None, address: str | None, shards: int | None
) -> Iterator[Index | ShardedIndex]:
    """The index in this process, or in shards on a cluster."""
    if address is None:
        yield Index(folder, descriptor=descriptor)
        return
    from hardnet.retrieval.cluster.shards import ShardedIndex

    with (
        redirect_stdout(sys.stderr),
        ShardedIndex(folder, address, shards=shards, descriptor=descriptor) as index,
    ):
        yield index


def _warn(results: Results, images: int, verifies: bool) -> None:
    for part in results.missing:
        say(f"missing: {part} did not answer; its photos are not among the hits", error=True)
    if not results.hits:
        why = "no photo of the index matches the query and the options given"
        if not images:
            why = "the index is empty"
        elif not any(one.features for one in results.query):
            where = "in the box" if any(one.box for one in results.query) else "in the query"
            why = f"there is no keypoint {where}; use a sharper photo or a larger part of it"
        say(f"nothing found: {why}", error=True)
    elif verifies and not results.verified:
        say("no hit is verified: the photos listed may show something else", error=True)


def _show(results: Results, verifies: bool, many: bool) -> None:
    if many:
        say(f"query: {results.query[0].path}")
    # Not a rich table, which would wrap long paths that users may want to copy.
    out = partial(console().print, soft_wrap=True)
    if results.hits:
        heading = f"{'inliers':>7}  {'':<12}  " if verifies else ""
        out(f"{'':>4}  {'score':>8}  {heading}photo", style="dim")
    for rank, hit in enumerate(results.hits, 1):
        style = "bold" if hit.verified else "dim"
        geometry = f"[{style}]{hit.inliers or '-':>7}  {hit.verdict:<12}[/]  " if verifies else ""
        out(f"{rank:>4}  {hit.score:>8.4g}  {geometry}{escape(shown(hit.path))}")
    stages = ", ".join(f"{name} {1000 * time:.1f}" for name, time in results.seconds.items())
    out(f"milliseconds: {stages}", style="dim")


def _box(text: str) -> Box:
    try:
        x, y, width, height = (float(word) for word in text.split(","))
    except ValueError:
        raise HardnetError(f"--box {text}: give x,y,width,height in pixels") from None
    return x, y, width, height
