"""Assigning descriptors to words: ours, faiss flat and faiss HNSW, in one run.

The asmk package assigns with faiss flat. Words of the first size are learned from every second
photograph. Larger vocabularies would take long to learn, so their words are means of two
descriptors of one such word. Descriptors of the other photographs are assigned.

Example: HARDNET_DATA=data python benchmarks/assign_words.py
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from measuring import SKIMAGE, Output, Threads, finish, median_seconds, run_script, use_threads
from numpy.typing import NDArray

from hardnet.features import Features
from hardnet.images import list_images
from hardnet.pipeline import extract_many
from hardnet.retrieval import training
from hardnet.retrieval.training import LARGE, make_cells
from hardnet.retrieval.vocabulary import Vocabulary

Rows = NDArray[np.float32]
Words = NDArray[Any]

REPETITIONS = 3
COUNT = 3  # words per descriptor of a query
QUERY = 500  # descriptors of a query
PRODUCTS = 80_000_000  # descriptors times words for faiss: seconds per repetition
HNSW_LIMIT = 65_536  # larger graphs take minutes to build


def main(
    sizes: Annotated[
        list[int] | None, typer.Option("--size", help="Words [8192 65536 262144].")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Photographs with oxford-affine; else skimage's.", envvar="HARDNET_DATA"),
    ] = None,
    threads: Threads = 2,
    output: Output = Path("results/assign_words.json"),
) -> None:
    """Descriptors per second, recall, and milliseconds for the descriptors of a query."""
    use_threads(threads)
    sizes = sizes or [8_192, 65_536, 262_144]
    photos = list_images(data / "oxford-affine" if data else SKIMAGE)
    described = [f.descriptors for _, f in extract_many(photos) if isinstance(f, Features)]
    learned = np.concatenate(described[::2])
    rows = np.concatenate(described[1::2])
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    first = training.train(learned, min(sizes), descriptor="hardnet", iterations=4)
    measured = {}
    for size in sizes:
        vocabulary = first if size == min(sizes) else _larger(first, learned, size)
        measured[size] = _measure(vocabulary, rows[: max(PRODUCTS // size, QUERY)])
        del vocabulary
    finish(
        "assign_words",
        {"sizes": measured},
        photos,
        output,
        sizes=sizes,
        photos=len(photos),
        descriptors_learned_from=len(learned),
        words_per_descriptor_of_a_query=COUNT,
        descriptors_of_a_query=QUERY,
    )


def _larger(first: Vocabulary, descriptors: Rows, size: int) -> Vocabulary:
    """``size`` means of two descriptors of one word, in cells if there are many."""
    rng = np.random.default_rng(1)
    prepared = first.prepare(descriptors)
    labels = first.assign(prepared)[:, 0]
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(len(first) + 1))
    one = rng.integers(len(prepared), size=size)
    low, high = starts[labels[one]], starts[labels[one] + 1]
    other = order[rng.integers(low, high)]
    share = rng.uniform(0.2, 0.8, (size, 1)).astype(np.float32)
    words = share * prepared[one] + (1 - share) * prepared[other]
    words += np.float32(0.01) * rng.standard_normal(words.shape, np.float32)  # no duplicates
    cells = None
    if size > LARGE:
        words, cells = make_cells(words)
    thresholds = (words @ first.projection.T).astype(np.float16)
    return Vocabulary(words, first.mean, first.projection, thresholds, "hardnet", {}, cells)


def _measure(vocabulary: Vocabulary, descriptors: Rows) -> dict[str, dict[str, float]]:
    """Per contestant: descriptors per second, ratio to faiss flat, recall, ms per query."""
    import faiss

    prepared = vocabulary.prepare(descriptors)
    flat = faiss.IndexFlatL2(prepared.shape[1])
    flat.add(vocabulary.words)

    def both(rows: Rows, count: int) -> Words:
        prepared = vocabulary.prepare(rows)
        words = vocabulary.assign(prepared, count)
        vocabulary.signatures(prepared, words)
        return words

    contestants: dict[str, tuple[Callable[[Rows, int], Words], Rows]] = {
        "faiss flat": (lambda rows, count: flat.search(rows, count)[1], prepared),
        "hardnet": (vocabulary.assign, prepared),
        "hardnet with signatures": (both, descriptors),
    }
    if len(vocabulary) <= HNSW_LIMIT:
        graph = faiss.IndexHNSWFlat(prepared.shape[1], 16)
        graph.hnsw.efSearch = 64
        graph.add(vocabulary.words)
        contestants["faiss HNSW16"] = (lambda rows, count: graph.search(rows, count)[1], prepared)
    for assign, rows in contestants.values():
        assign(rows[:100], 1)
    every = {name: partial(assign, rows, 1) for name, (assign, rows) in contestants.items()}
    query = {n: partial(assign, rows[:QUERY], COUNT) for n, (assign, rows) in contestants.items()}
    seconds, of_query = (median_seconds(each, REPETITIONS) for each in (every, query))
    rate = {name: len(prepared) / taken for name, taken in seconds.items()}
    exact = flat.search(prepared, COUNT)[1]
    out = {}
    for name, (assign, rows) in contestants.items():
        one, several = (
            (exact, exact) if name == "faiss flat" else (assign(rows, 1), assign(rows, COUNT))
        )
        out[name] = {
            "per_second": rate[name],
            "times_faiss_flat": rate[name] / rate["faiss flat"],
            "recall": float((one[:, 0] == exact[:, 0]).mean()),
            "recall_of_several": float((several[:, :, None] == exact[:, None]).any(1).mean()),
            "query_ms": 1000 * of_query[name],
        }
    return out


if __name__ == "__main__":
    run_script(main)
