"""Pairs of photos that look alike, for structure from motion: a few per photo, not all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from hardnet.errors import HardnetError
from hardnet.retrieval.photos import name_of
from hardnet.retrieval.search import DEFAULT_MODE, LocalShard, Mode, ranking
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.storage import as_path

SIMILAR = 20
"""Photos that each photo is paired with."""

Pair = tuple[str, str]


def similar_pairs(
    index: str | os.PathLike[str],
    photos: Mapping[str, Path],
    similar: int = SIMILAR,
    mode: str | Mode = DEFAULT_MODE,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> tuple[list[Pair], list[str]]:
    """Each photo with those that an index finds most similar to it; nothing is extracted again.

    ``photos`` are what to call them in the pairs -> file; the index may have others, too. Returns
    pairs of names, each once, sorted; and the names of photos that the index does not have.

    Raises:
        HardnetError: the index has not even two of the photos.
    """
    if similar < 1:
        raise HardnetError(f"similar is {similar}: give at least 1")
    folder = as_path(index)
    snapshot = open_snapshot(folder)
    shard = LocalShard(snapshot)
    images = snapshot.find_many([name_of(photo, folder) for photo in photos.values()]).tolist()
    named = list(zip(images, photos, strict=True))
    numbers = {image: name for image, name in named if image >= 0}
    if len(numbers) < 2:
        raise HardnetError(
            f"{folder} has {len(numbers)} of {len(photos)} photos: add them with "
            "`hardnet index add`"
        )
    found: set[Pair] = set()
    for done, (image, name) in enumerate(numbers.items()):
        progress("similar photos", done, len(numbers))
        (features,) = shard.features_of(np.array([image], np.int64))
        ranked = ranking(features.as_query(), shard, mode).tolist()
        others = [numbers[one] for one in ranked if one != image and one in numbers][:similar]
        found |= {(min(name, other), max(name, other)) for other in others}
    return sorted(found), [name for image, name in named if image < 0]


def write_pairs(path: Path, pairs: list[Pair]) -> None:
    """Write pairs as ``hardnet colmap --pairs-file`` reads them."""
    path.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
