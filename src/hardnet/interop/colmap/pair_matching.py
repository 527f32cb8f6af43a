"""Match pairs of photos into a COLMAP database, as many at once as there are cores.

A pair whose matches are in the database is done: a run that was killed goes on with the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.features import Features
from hardnet.interop.colmap.database import read_photos, write_pair
from hardnet.interop.colmap.own_geometry import own_geometry
from hardnet.interop.colmap.pairs import Pair
from hardnet.interop.colmap.two_view import Verification, verify_pair
from hardnet.matching.matches import Strategy, find_matches, match
from hardnet.sfm.colmap import require_pycolmap
from hardnet.threads import usable_cores

BLOCK = 64
"""Photos whose pairs are matched together; the features of two blocks are kept in memory."""


def match_pairs(
    path: Path,
    features: Callable[[str], Features],
    pairs: Sequence[Pair],
    strategy: Strategy,
    seed: int,
    workers: int | None = None,
    verification: Verification = "colmap",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Find and verify the matches of pairs of photos; pairs that are done are not repeated.

    Args:
        path: the database, with keypoints.
        features: the features of a photo, by name; called by several threads.
        pairs: of names.
        strategy: how matches are found.
        seed: of COLMAP's random samples.
        workers: threads; by default one per usable core.
        verification: by COLMAP, or by the strategy.
        progress: called with (pairs done, pairs in all).
    """
    pycolmap = require_pycolmap()
    load = lru_cache(4 * BLOCK)(features)
    with pycolmap.Database.open(path) as database:
        photos = read_photos(database, path)

        def is_done(pair: Pair) -> bool:
            first, second = (photos[name].id for name in pair)
            return bool(database.exists_matches(first, second))

        def work(pair: Pair) -> tuple[Pair, NDArray[np.intp], Any]:
            a, b = (photos[name] for name in pair)
            first, second = map(load, pair)
            if verification == "hardnet":
                found = match(first, second, strategy=strategy)
                return pair, found.indices, own_geometry(a, b, found)
            if strategy.guided:  # along our geometry; COLMAP verifies all of them
                indices = match(first, second, strategy=strategy).indices
            else:
                indices, _ = find_matches(first, second, strategy)
            return pair, indices, verify_pair(a, b, indices, seed)

        left = [pair for pair in pairs if not is_done(pair)]
        done = len(pairs) - len(left)
        progress(done, len(pairs))
        for (a, b), indices, geometry in _in_threads(work, in_blocks(left), workers):
            write_pair(database, photos[a], photos[b], indices, geometry)
            done += 1
            progress(done, len(pairs))


def in_blocks(pairs: Sequence[Pair], block: int = BLOCK) -> list[Pair]:
    """The same pairs, those of the same two blocks of photos together.

    Row by row, every pair of a thousand photos would read the features of its second photo again.
    """
    order: Mapping[str, int] = {
        name: number for number, name in enumerate(dict.fromkeys(n for p in pairs for n in p))
    }
    return sorted(pairs, key=lambda p: (order[p[0]] // block, order[p[1]] // block))


def _in_threads(
    work: Callable[[Pair], tuple[Pair, NDArray[np.intp], Any]],
    pairs: Sequence[Pair],
    workers: int | None,
) -> Iterator[tuple[Pair, NDArray[np.intp], Any]]:
    """The results in the order of the pairs, with only a few in memory."""
    count = workers or usable_cores()
    waiting: deque[Future[tuple[Pair, NDArray[np.intp], Any]]] = deque()
    with ThreadPoolExecutor(count, "hardnet-match") as pool:
        try:
            for pair in pairs:
                waiting.append(pool.submit(work, pair))
                if len(waiting) > 2 * count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # an error in one must not wait for all the others
            pool.shutdown(wait=False, cancel_futures=True)
