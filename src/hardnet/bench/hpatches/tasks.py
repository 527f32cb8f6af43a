"""What is compared with what: the pairs and retrieval lists of a split, read or drawn.

Official files are taken where the user has them. Else the lists are drawn by the published rule:
for the official splits of the full set this gives the official lists again; other sets get lists
of their own by the same rule.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.hpatches.drawing import (
    PAIRS,
    SEED,
    PairLists,
    Progress,
    RetrievalLists,
    draw_pairs,
    draw_retrieval,
)
from hardnet.bench.hpatches.list_files import read_pairs, read_retrieval
from hardnet.errors import HardnetError
from hardnet.patchsets.cache import replacing, user_cache
from hardnet.patchsets.hpatches import LEVELS

_PATCHES_AT_ONCE = 256

ReferencePatches = Callable[[str], NDArray[np.uint8]]
"""Sequence -> its (N, S, S) reference patches."""


@dataclass(frozen=True)
class Tasks:
    """All that the three tasks need to know of a split, the same for every descriptor."""

    split: str
    names: tuple[str, ...]
    """Test sequences; the lists refer to them by number."""
    counts: tuple[int, ...]
    pairs: PairLists
    retrieval: RetrievalLists
    origin: Mapping[str, str]
    """Where "pairs" and "retrieval" come from, in words."""

    def facts(self) -> dict[str, Any]:
        """Sizes and origin of the lists, for the results file."""
        return {
            "pairs": len(self.pairs.positive),
            "queries": len(self.retrieval.queries),
            "distractors": len(self.retrieval.distractors),
            "origin": dict(self.origin),
        }


def prepare(
    split: str,
    names: Sequence[str],
    counts: Mapping[str, int],
    folder: Path | None = None,
    patches: ReferencePatches | None = None,
    pairs: int = PAIRS,
    progress: Progress | None = None,
) -> Tasks:
    """The lists of a split.

    Args:
        split: its name, as in the names of the official files.
        names: its test sequences, in the order of the split's file.
        counts: patches of each sequence.
        folder: with official csv files; those that are absent are drawn.
        patches: for the contrast of retrieval patches; None takes flat patches, too.
        pairs: rows of each list of pairs.
        progress: called with (rows done, rows in all) while pairs are drawn.
    """
    if not names:
        raise HardnetError(f"split {split} has no test sequences")
    if pairs < 5:
        raise HardnetError(f"at least 5 pairs are needed, got {pairs}")
    if folder is not None and not folder.is_dir():
        raise HardnetError(f"{folder} is not a folder with task files")
    sizes = [counts[name] for name in names]
    drawn = f"drawn with seed {SEED}"
    pair_lists = read_pairs(folder, split, names, sizes, pairs) if folder else None
    retrieval = read_retrieval(folder, split, names, sizes) if folder else None
    origin = {
        "pairs": drawn if pair_lists is None else "task files",
        "retrieval": drawn if retrieval is None else "task files",
    }
    if retrieval is None:
        contrast = None if patches is None else (lambda k: contrasts(patches(names[k])))
        retrieval = draw_retrieval(sizes, contrast)
    if pair_lists is None:
        pair_lists = stored_pairs(names, sizes, pairs, SEED, progress)
    return Tasks(split, tuple(names), tuple(sizes), pair_lists, retrieval, origin)


def stored_pairs(
    names: Sequence[str],
    counts: Sequence[int],
    pairs: int,
    seed: int = SEED,
    progress: Progress | None = None,
) -> PairLists:
    """:func:`draw_pairs`, from the user's cache if they were drawn before."""
    key = hashlib.sha256(json.dumps([list(names), list(counts), pairs, seed]).encode())
    path = user_cache() / "hpatches-pairs" / f"{key.hexdigest()[:16]}.npz"
    try:
        with np.load(path) as stored:
            return PairLists(stored["positive"], stored["intra"], stored["inter"])
    except (OSError, ValueError, BadZipFile, KeyError):
        pass  # absent or broken: drawn again
    lists = draw_pairs(counts, pairs, seed, progress)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part, part.open("wb") as stream:
            np.savez(stream, **asdict(lists))
    except OSError:
        pass  # a cache that cannot be written costs time, not the result
    return lists


def contrasts(patches: NDArray[np.uint8]) -> NDArray[np.float64]:
    """(N, S, S) -> (N,) standard deviations of the grey values."""
    out = np.empty(len(patches))
    for start in range(0, len(patches), _PATCHES_AT_ONCE):
        part = slice(start, start + _PATCHES_AT_ONCE)
        out[part] = patches[part].reshape(len(patches[part]), -1).std(1)
    return out


def tag(image: int, noise: str) -> str:
    """The strip of an image at a noise level: 0 is ``ref`` at all of them."""
    return f"{LEVELS[noise]}{image}" if image else "ref"


def each_and_all(labels: Iterable[str]) -> list[tuple[int | slice, str]]:
    """Where each label is on an axis, and then "all", which is the whole axis."""
    return [*enumerate(labels), (slice(None), "all")]
