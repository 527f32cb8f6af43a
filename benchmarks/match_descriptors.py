"""Nearest two neighbours with ratio test: ours, OpenCV's BFMatcher and faiss flat, in one run.

Speed does not depend on the vectors, so it is measured on random ones; recall of approximate search
does, and is measured on descriptors of photographs.

Example: HARDNET_DATA=data python benchmarks/match_descriptors.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import typer
from measuring import (
    SKIMAGE,
    Output,
    Threads,
    extra_memory_mb,
    finish,
    in_fresh_process,
    run_script,
    use_threads,
)
from numpy.typing import NDArray

from hardnet.features import Features
from hardnet.images import list_images
from hardnet.matching.neighbours import (
    RATIO,
    FarSecond,
    approximate_nearest,
    match_descriptors,
    two_nearest,
    two_nearest_and_back,
)
from hardnet.pipeline import extract_many

Rows = NDArray[np.float32]
Pairs = set[tuple[int, int]]

REPETITIONS = {2_000: 5, 10_000: 3}  # larger sets once
BF_LIMIT = 10_000  # OpenCV would take minutes for more: it gets only some of the queries
DIM = 128


def main(
    sizes: Annotated[
        list[int] | None, typer.Option("--size", help="Descriptors per side [2000 10000 50000].")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Photographs with oxford-affine; else skimage's.", envvar="HARDNET_DATA"),
    ] = None,
    threads: Threads = 2,
    output: Output = Path("results/match_descriptors.json"),
) -> None:
    """Seconds, agreement and memory of exact matching, and recall of approximate search."""
    use_threads(threads)
    sizes = sizes or [2_000, 10_000, 50_000]
    rows = {size: _measure(size) for size in sizes}
    memory = {
        name: {n: round(in_fresh_process(extra_memory, name, n), 1) for n in sizes}
        for name in ("hardnet", "hardnet fginn")
    }
    photos = list_images(data / "oxford-affine" if data else SKIMAGE)
    recall = _recall(photos)
    found = {"sizes": rows, "extra_memory_mb": memory, "recall": recall}
    settings: dict[str, Any] = {"sizes": sizes, "dim": DIM, "ratio": RATIO, "photos": len(photos)}
    finish("match_descriptors", found, photos, output, **settings)


def descriptors(count: int) -> tuple[Rows, Rows]:
    """Two sets of unit vectors; half of the second are noisy copies from the first.

    Exact search does the same work for any vectors; about half of the rows find a match.
    """
    rng = np.random.default_rng(0)
    a = rng.normal(size=(count, DIM)).astype(np.float32)
    b = rng.normal(size=(count, DIM)).astype(np.float32)
    half = count // 2
    b[:half] = a[rng.permutation(count)[:half]] + 0.8 * b[:half]
    for rows in (a, b):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return a, b


def _measure(size: int) -> dict[str, dict[str, float]]:
    a, b = descriptors(size)
    contestants = _contestants(a, b)
    seconds: dict[str, list[float]] = {}
    found: dict[str, Pairs] = {}
    for _ in range(REPETITIONS.get(size, 1)):
        for name, run in contestants.items():  # alternating, so that load affects all equally
            start = time.perf_counter()
            found[name] = run()
            seconds.setdefault(name, []).append(time.perf_counter() - start)
    median = {name: float(np.median(times)) for name, times in seconds.items()}
    if size > BF_LIMIT:
        median["opencv"] *= size / BF_LIMIT
    same = {}
    for name, pairs in found.items():
        limit = BF_LIMIT if name == "opencv" else size
        ours = {(i, j) for i, j in found["hardnet"] if i < limit}
        same[name] = len(pairs & ours) / max(len(pairs | ours), 1)
    return {
        "seconds": median,
        "times_faster_than_opencv": {n: median["opencv"] / s for n, s in median.items()},
        "same_matches": same,
    }


def _contestants(a: Rows, b: Rows) -> dict[str, Callable[[], Pairs]]:
    """Each finds the matches that pass the ratio test; "mutual" in both directions."""
    import faiss

    def opencv() -> Pairs:
        pairs = cv2.BFMatcher(cv2.NORM_L2).knnMatch(a[:BF_LIMIT], b, 2)
        return {(m.queryIdx, m.trainIdx) for m, n in pairs if m.distance < RATIO * n.distance}

    def faiss_flat() -> Pairs:
        index = faiss.IndexFlatL2(DIM)
        index.add(b)
        squared, near = index.search(a, 2)
        keep = np.flatnonzero(squared[:, 0] < RATIO**2 * squared[:, 1])
        return set(zip(keep.tolist(), near[keep, 0].tolist(), strict=True))

    def ours() -> Pairs:
        return _pairs(match_descriptors(a, b, RATIO, mutual=False)[0])

    def mutual() -> Pairs:
        return _pairs(match_descriptors(a, b, RATIO)[0])

    return {"opencv": opencv, "faiss flat": faiss_flat, "hardnet": ours, "hardnet mutual": mutual}


def _pairs(indices: NDArray[np.intp]) -> Pairs:
    return set(map(tuple, indices.tolist()))


def _recall(photos: list[Path]) -> dict[str, dict[str, float]]:
    """Share of the true nearest neighbours that approximate search finds, and its time.

    Every tenth descriptor of every second photo is searched for in the others.
    """
    described = [f.descriptors for _, f in extract_many(photos) if isinstance(f, Features)]
    a, b = np.concatenate(described[::2])[::10], np.concatenate(described[1::2])
    start = time.perf_counter()
    index, distance = two_nearest(a, b)
    exact = time.perf_counter() - start
    clear = distance[:, 0] < RATIO * distance[:, 1]
    print(f"recall: {len(a)} descriptors in {len(b)}")
    rows = {"exact": {"all": 1.0, "matches": 1.0, "seconds": exact}}
    start = time.perf_counter()
    found = approximate_nearest(a, b, 2)[0][:, 0] == index[:, 0]
    rows["flann"] = {
        "all": float(found.mean()),
        "matches": float(found[clear].mean()),
        "seconds": time.perf_counter() - start,
    }
    return rows


def extra_memory(name: str, size: int) -> float:
    """Peak memory in MB of one call, without its input and output."""
    a, b = descriptors(size)
    xy = np.random.default_rng(1).uniform(0, 4000, (size, 2))
    two_nearest_and_back(a[:300], b[:300])  # BLAS allocates its buffers once

    def work() -> None:
        fginn = FarSecond(xy, xy, 10.0) if name.endswith("fginn") else None
        match_descriptors(a, b, RATIO, fginn=fginn)

    return extra_memory_mb(work)


if __name__ == "__main__":
    run_script(main)
