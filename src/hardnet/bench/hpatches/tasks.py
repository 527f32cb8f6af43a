"""What is compared with what: the pairs and retrieval lists of a split, read or drawn.

Official files are taken where the user has them. Else the lists are drawn by the published rule:
for the official splits of the full set this gives the official lists again; other sets get lists
of their own by the same rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from hardnet.bench.hpatches.list_cache import remembered
from hardnet.bench.hpatches.list_files import (
    PAIR_FILES,
    RETRIEVAL_FILES,
    find_files,
    read_pairs,
    read_retrieval,
)
from hardnet.errors import HardnetError
from hardnet.patchsets.cache import state
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
    data: str | None = None,
    chosen: Collection[str] = ("verification", "retrieval"),
) -> Tasks:
    """The lists of a split; what took long is in the user's cache the next time.

    Args:
        split: its name, as in the names of the official files.
        names: its test sequences, in the order of the split's file.
        counts: patches of each sequence.
        folder: with official csv files; those that are absent are drawn.
        patches: for the contrast of retrieval patches; None takes flat patches, too.
        pairs: rows of each list of pairs.
        progress: called with (rows done, rows in all) while pairs are drawn.
        data: fingerprint of the set: contrasts need not be computed again while it is the same.
        chosen: the tasks that will be run; the lists of the others stay empty.
    """
    if not names:
        raise HardnetError(f"split {split} has no test sequences")
    if pairs < 5:
        raise HardnetError(f"at least 5 pairs are needed, got {pairs}")
    if folder is not None and not folder.is_dir():
        raise HardnetError(f"{folder} is not a folder with task files")
    sizes = [counts[name] for name in names]
    about: list[object] = [list(names), sizes]
    pair_paths = find_files(folder, split, PAIR_FILES)
    if "verification" not in chosen:
        pair_lists = PairLists(*[np.zeros((0, 6), np.int32)] * 3)
    elif pair_paths:
        pair_lists = remembered(
            PairLists,
            [*about, pairs, state(pair_paths)],
            lambda: read_pairs(pair_paths, names, sizes, pairs),
        )
    else:
        pair_lists = remembered(
            PairLists, [*about, pairs, SEED], lambda: draw_pairs(sizes, pairs, SEED, progress)
        )
    retrieval_paths = find_files(folder, split, RETRIEVAL_FILES)
    if "retrieval" not in chosen:
        retrieval = RetrievalLists(*[np.zeros((0, 2), np.int32)] * 2)
    elif retrieval_paths:
        retrieval = read_retrieval(retrieval_paths, names, sizes)
    elif patches is None:
        retrieval = draw_retrieval(sizes)
    else:

        def draw() -> RetrievalLists:
            return draw_retrieval(sizes, lambda k: contrasts(patches(names[k])))

        retrieval = draw() if data is None else remembered(RetrievalLists, [*about, data], draw)
    origin = {
        "pairs": "task files" if pair_paths else f"drawn with seed {SEED}",
        "retrieval": "task files" if retrieval_paths else f"drawn with seed {SEED}",
    }
    return Tasks(split, tuple(names), tuple(sizes), pair_lists, retrieval, origin)


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
