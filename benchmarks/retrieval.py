"""Building and querying an index: ours, the asmk package, and faiss over all descriptors.

One run with the same descriptors and visual words for all. Features are extracted once, untimed,
and kept in the user's cache. Runs alternate, so that load affects all equally.

Example: HARDNET_DATA=data python benchmarks/retrieval.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from measuring import (
    Descriptor,
    Keypoints,
    Output,
    Repetitions,
    Threads,
    finish,
    run_script,
    say,
    seconds_of,
    use_threads,
)
from numpy.typing import NDArray

from hardnet import descriptors
from hardnet.bench.development import Setup
from hardnet.bench.retrieval.collections import OTHERS, PhotoCollection, read_ukbench
from hardnet.bench.retrieval.features import (
    BenchPhoto,
    FeatureStore,
    for_words,
    images_of,
    split,
)
from hardnet.bench.retrieval.run import ASMK, AsmkIndex, OurIndex, judge, parse_mode
from hardnet.features import Features
from hardnet.retrieval import vocabulary as vocabularies
from hardnet.retrieval.query import MA, make_query
from hardnet.retrieval.search import MODES, search
from hardnet.retrieval.vocabulary import Vocabulary

FLAT = "faiss flat"
NEIGHBOURS = 5
"""Neighbours of each query feature in the flat search: as many as asmk's words."""
TIMED = 5
"""Every fifth query is timed in every repetition; all run once for the scores."""
FLAT_PART = 4
"""The flat search uses only some of these: one view of each object for its scores."""

ASKED = (*MODES, "he+sv:ma5", "he:ma8", "he+sv:ma8")
"""All modes, and some with more words per query feature: five, as asmk, and eight."""

Named = list[tuple[str, Features]]


@dataclass
class Times:
    """Seconds of one method, per repetition."""

    build: list[float] = field(default_factory=list)
    query: list[float] = field(default_factory=list)


class FlatIndex:
    """Compares all descriptors with all of the query; an image's votes are sums of s^3."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        import faiss

        self._vocabulary = vocabulary
        self._index = faiss.IndexFlatIP(vocabulary.words.shape[1])
        self._names: list[str] = []

    def add(self, photos: Named) -> None:
        """Add all photos at once."""
        self._names = [name for name, _ in photos]
        counts = [len(features) for _, features in photos]
        self._image = np.repeat(np.arange(len(photos)), counts)
        rows = np.concatenate([features.descriptors for _, features in photos])
        self._index.add(self._vocabulary.prepare(rows))

    def rank(self, features: Features) -> list[str]:
        """Names of the photos with votes, best first."""
        near, index = self._index.search(self._vocabulary.prepare(features.descriptors), NEIGHBOURS)
        votes = np.bincount(
            self._image[index].ravel(), np.maximum(near, 0).ravel() ** 3, len(self._names)
        )
        order: NDArray[np.intp] = np.argsort(-votes, kind="stable")
        return [self._names[i] for i in order if votes[i] > 0]


def main(
    vocabulary_images: Annotated[
        list[Path] | None,
        typer.Option(help="Folders of photos for training the words [DATA/multiview]."),
    ] = None,
    vocabulary: Annotated[Path | None, typer.Option(help="A trained vocabulary instead.")] = None,
    data: Annotated[Path, typer.Option(help="Folder with ukbench/.", envvar="HARDNET_DATA")] = Path(
        "data"
    ),
    descriptor: Descriptor = "hardnet",
    words: Annotated[int, typer.Option(help="Of the vocabulary.")] = 8192,
    keypoints: Keypoints = 395,
    size: Annotated[int, typer.Option(help="Longer side of the photos.")] = 640,
    objects: Annotated[
        int, typer.Option(help="Number of objects, the last of the first 100.")
    ] = 75,
    repetitions: Repetitions = 3,
    threads: Threads = 2,
    output: Output = Path("results/retrieval_speed.json"),
) -> None:
    """Seconds to build, milliseconds per query, bytes per feature, mAP and N-S."""
    use_threads(threads)
    collection = read_ukbench(data / "ukbench", range(100 - objects, 100))
    photos = [BenchPhoto(name, path, longer_side=size) for name, path in collection.images.items()]
    describe = {descriptor: descriptors.load(descriptor)}
    setup = Setup(keypoints=keypoints, max_size=None)
    store = FeatureStore(None, describe, setup)
    store.fill(photos, say)
    if vocabulary is not None:
        trained = vocabularies.load(vocabulary)
    else:
        named = images_of(vocabulary_images or [data / "multiview"])
        others = [BenchPhoto(name, path) for name, path in split(named, named)[0]]
        many = FeatureStore(None, describe, for_words(setup))
        many.fill(others, say)
        trained = many.words(others, descriptor, words, 0, say)
    features = list(store.read_all(photos, descriptor))
    rows = _measure(collection, features, trained, repetitions)
    total = sum(len(each) for _, each in features)
    settings: dict[str, Any] = {
        "photos": len(photos),
        "longer_side": size,
        "features": total,
        "features_per_photo": total / len(photos),
        "words": len(trained),
        "vocabulary": trained.digest,
        "timed_queries": len(features[::TIMED]),
        "neighbours_of_flat_search": NEIGHBOURS,
        "flat_search_scored_on": len(features[::FLAT_PART]),
    }
    finish("retrieval_speed", {"rows": rows}, collection.images.values(), output, **settings)


def _measure(
    collection: PhotoCollection, features: Named, vocabulary: Vocabulary, repetitions: int
) -> dict[str, dict[str, Any]]:
    ours = {f"hardnet {mode}": mode for mode in ASKED}
    times = {name: Times() for name in (*ours, ASMK, FLAT)}
    timed = [each for _, each in features[::TIMED]]
    with tempfile.TemporaryDirectory(prefix="hardnet-retrieval-") as work:
        warm = OurIndex(Path(work) / "warm", vocabulary)
        warm.add(features[:8])  # the first call of each kernel compiles or loads it
        for mode in ASKED:
            warm.rank(features[0][1], None, mode)
        for repetition in range(repetitions):
            folder = Path(work) / str(repetition)
            own, peer = OurIndex(folder, vocabulary), AsmkIndex(vocabulary)
            flat = FlatIndex(vocabulary)
            built = seconds_of(partial(own.add, features))
            for name in ours:
                times[name].build.append(built)
            times[ASMK].build.append(seconds_of(partial(peer.add, features)))
            times[FLAT].build.append(seconds_of(partial(flat.add, features)))
            for name, mode in ours.items():
                times[name].query.append(_per_query(timed, partial(answer, own, mode)))
            times[ASMK].query.append(_per_query(timed, partial(peer.rank, box=None)))
            times[FLAT].query.append(_per_query(timed[::FLAT_PART], flat.rank))
        scores = {
            name: judge(
                collection.questions, [own.rank(each, None, mode)[0] for _, each in features]
            )
            for name, mode in ours.items()
        }
        scores[ASMK] = judge(
            collection.questions, [peer.rank(each, None)[0] for _, each in features]
        )
        scores[FLAT] = judge(
            collection.questions[::FLAT_PART],
            [flat.rank(each) for _, each in features[::FLAT_PART]],
        )
        count = sum(len(each) for _, each in features)
        size = {name: _bytes_on_disk(folder) / count for name in ours}
        size[ASMK] = peer.bytes() / count
        size[FLAT] = 4.0 * vocabulary.words.shape[1] + 8
    return {name: _row(times[name], times[ASMK], scores[name], size[name]) for name in times}


def answer(index: OurIndex, mode: str, features: Features) -> object:
    """The time that a user of our index waits, without extraction."""
    chosen = parse_mode(mode)
    query = make_query(features, index.vocabulary, max(MA, chosen.scoring.ma))
    return search(query, index.shard, chosen, 10)


def _row(
    times: Times, peer: Times, scores: dict[str, Any], bytes_per_feature: float
) -> dict[str, Any]:
    """Medians; ratios are medians of the ratios within a repetition."""
    return {
        "build_seconds": float(np.median(times.build)),
        "build_ratio": float(np.median(np.array(peer.build) / times.build)),
        "query_milliseconds": 1000 * float(np.median(times.query)),
        "query_ratio": float(np.median(np.array(peer.query) / times.query)),
        "bytes_per_feature": bytes_per_feature,
        "map": scores["map"][OTHERS],
        "ns": scores["ns"],
    }


def _per_query(features: Sequence[Features], ask: Callable[[Features], object]) -> float:
    """Mean seconds of a query."""
    return seconds_of(lambda: [ask(each) for each in features]) / len(features)


def _bytes_on_disk(folder: Path) -> int:
    """All files of an index except its vocabulary."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if not path.name.startswith("vocabulary"))


if __name__ == "__main__":
    run_script(main)
