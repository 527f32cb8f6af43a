"""An index that grows from a thousand images to a million: time and memory against its size.

A million photos are not available, so images are simulated from the statistics of real ones: see
``synthetic.py``. The code that writes and reads them is that of every index. Extraction and word
assignment, which take the same time per image at any size, are not included.

Example: python benchmarks/retrieval_growth.py --photos photos --largest 100000
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from measuring import Output, choose, finish, in_fresh_process, memory_mb, photos_of, run_script
from numpy.typing import NDArray
from synthetic import Collection, measure_shape

from hardnet.errors import HardnetError
from hardnet.retrieval import compiled
from hardnet.retrieval.index import Index
from hardnet.retrieval.query import Query, Scoring, best, query_terms
from hardnet.retrieval.search import LocalShard
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.retrieval.store.writer import Writer

SIZES = (1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
WORDS = 1 << 16
"""Size of the vocabulary of the growing index, as in the HQE paper."""
BATCH = 5000
QUERIES = 12
LIMIT = 100
BYTES_PER_FEATURE = 28


def main(
    photos: Annotated[
        list[Path] | None,
        typer.Option(help="Folders of photos to measure [HARDNET_DATA/ukbench, or skimage's]."),
    ] = None,
    count: Annotated[int, typer.Option(help="Number of photos, spread evenly.")] = 100,
    largest: Annotated[int, typer.Option(help="Images of the largest index.")] = 100_000,
    features: Annotated[int, typer.Option(help="Features per image, on average.")] = 400,
    words: Annotated[int, typer.Option(help="Words of the growing index.")] = WORDS,
    work: Annotated[
        Path | None, typer.Option(help="Folder for the index, deleted afterwards [temporary].")
    ] = None,
    output: Output = Path("results/retrieval_growth.json"),
) -> None:
    """Build time, bytes, memory and query time at each size; writes a JSON file."""
    sizes = [size for size in SIZES if size < largest] + [largest]
    paths = choose(photos or [photos_of("ukbench")], count)
    with tempfile.TemporaryDirectory(dir=work) as name:
        folder = Path(name)
        _check_space(folder, largest * features * BYTES_PER_FEATURE)
        print(f"indexing {len(paths)} photos", flush=True)
        shape = measure_shape(Index.build(folder / "real", paths).snapshot)
        print(json.dumps(shape.facts()))
        collection = Collection(shape, words, features)
        rows = grow(folder / "index", folder / "real", collection, sizes)
    finish(
        "retrieval_growth",
        {"rows": rows},
        paths,
        output,
        photos=len(paths),
        shape=shape.facts(),
        queries=QUERIES,
        limit=LIMIT,
        scoring=vars(Scoring()),
        note="files are in the page cache; built and queried on all cores",
    )


def grow(
    folder: Path, warm: Path, collection: Collection, sizes: list[int]
) -> list[dict[str, Any]]:
    """One row per size; each index is the previous one with images added."""
    rows, images, build = [], 0, 0.0
    known = collection.images(0, min(BATCH, sizes[0] - 1))[:QUERIES]
    queries = [collection.query(image, Scoring().ma) for image in known]
    names = [image.name for image in known]
    create: Any = {"settings": {}, "vocabulary": collection.vocabulary()}
    for size in sizes:
        start = perf_counter()
        with Writer(folder, create) as writer:
            build += perf_counter() - start
            while images < size - 1:
                batch = collection.images(images, min(images + BATCH, size - 1))
                start = perf_counter()
                writer.add(batch)
                build += perf_counter() - start
                images += len(batch)
            start = perf_counter()
            writer.commit()
            build += perf_counter() - start
            last = collection.images(images, size)
            start = perf_counter()
            writer.add(last)
            writer.commit()
            one, images = perf_counter() - start, size
        create = None
        measured = in_fresh_process(measure, folder, warm, queries, names)
        stored = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        stored -= sum(path.stat().st_size for path in folder.glob("*vocabulary*"))
        row = {"images": size, "build_seconds": build, "add_one_seconds": one, "bytes": stored}
        rows.append(row | measured)
        print(json.dumps(rows[-1]), flush=True)
    return rows


def measure(folder: Path, warm: Path, queries: list[Query], names: list[str]) -> dict[str, Any]:
    """Open an index and search it in a new process, where ``warm`` loads the kernels.

    Each query runs twice, and the second time counts; ``names``: the image that each shows.
    """
    compiled.load()
    _ask(LocalShard(open_snapshot(warm)), queries[0])
    before = {kind: memory_mb(kind) for kind in ("RssAnon", "RssFile")}
    start = perf_counter()
    snapshot = open_snapshot(folder)
    shard = LocalShard(snapshot)
    opened = perf_counter() - start
    _, first = _ask(shard, queries[0])
    for query in queries:
        _ask(shard, query)
    answers = [_ask(shard, query) for query in queries]
    grown = {kind: memory_mb(kind) - was for kind, was in before.items()}
    found = [
        shard.names(images[:1]) == [name] for (images, _), name in zip(answers, names, strict=True)
    ]
    return {
        "features": snapshot.features,
        "segments": len(snapshot.segments),
        "postings_per_query": _postings(shard, queries),
        "open_ms": 1e3 * opened,
        "own_memory_mb": grown["RssAnon"],
        "mapped_memory_mb": grown["RssFile"],
        "first_query_ms": 1e3 * first["he"],
        "query_ms": {
            stage: 1e3 * float(np.median([seconds[stage] for _, seconds in answers]))
            for stage in first
        },
        "found_first": float(np.mean(found)),
    }


def _ask(shard: LocalShard, query: Query) -> tuple[NDArray[np.int64], dict[str, float]]:
    """The best images by Hamming embedding, and the seconds of each stage."""
    he, bow = Scoring(), Scoring(method="bow", ma=1)
    scores = np.random.default_rng(0).random(shard.snapshot.images, np.float32)
    times = [perf_counter()]
    images, _ = shard.score(query_terms(query, he), he, LIMIT)
    times.append(perf_counter())
    shard.score(query_terms(query, bow), bow, LIMIT)
    times.append(perf_counter())
    best(scores, LIMIT)
    times.append(perf_counter())
    shard.reliable(query, images, 32)
    times.append(perf_counter())
    shard.features_of(images[:10])
    times.append(perf_counter())
    stages = ("he", "bow", "top_k", "reliable", "features_of")
    return images, dict(zip(stages, np.diff(times).tolist(), strict=True))


def _postings(shard: LocalShard, queries: list[Query]) -> float:
    """How many postings a query reads, on average."""
    total = sum(
        int(
            np.sum(segment.offsets[query.words + 1].astype(np.int64) - segment.offsets[query.words])
        )
        for segment in shard.snapshot.segments
        for query in queries
    )
    return total / len(queries)


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < 1.2 * needed:
        raise HardnetError(
            f"{folder} has {free / 1e9:.1f} GB free and the index needs {needed / 1e9:.1f} GB: "
            "choose another --work folder, or a smaller --largest"
        )


if __name__ == "__main__":
    run_script(main)
