"""The pairs and retrieval lists of HPatches, drawn again exactly from their published seed.

The lists were drawn with numpy's legacy generator, whose stream never changes, so patch counts and
the order of the split's test sequences are all it takes. The order of the draws is the protocol:
do not reorder them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError

SEED = 42
PAIRS = 1_000_000
"""Rows of each of the three official lists of pairs."""
IMAGES = 5
"""Images a pair is drawn from: the reference and four targets; the fifth target is never used."""
QUERIES, DISTRACTORS = 10_000, 20_000
"""Rows of the official retrieval lists."""
QUERY_DRAWS, DISTRACTOR_DRAWS = 4, 10
"""Candidates drawn for each row that is wanted: repeated and flat patches are dropped."""
MIN_CONTRAST = 10.0
"""Retrieval takes patches whose grey values have a larger standard deviation."""

Rows = NDArray[np.int32]
Contrast = Callable[[int], NDArray[np.float64]]
"""Number of a sequence -> (N,) standard deviations of its reference patches."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class PairLists:
    """The three lists of verification pairs, each (P, 6): s1, t1, idx1, s2, t2, idx2.

    s is the number of the sequence in the split's test list, t the image (0 is the reference, k the
    target k at the noise level that is evaluated) and idx the patch.
    """

    positive: Rows
    intra: Rows
    """Negatives from one sequence."""
    inter: Rows
    """Negatives whose second patch is from any sequence; as published, at times the same one."""


@dataclass(frozen=True)
class RetrievalLists:
    """Reference patches, each (N, 2): s, idx."""

    queries: Rows
    distractors: Rows
    """Their order matters: pools are cut from the front."""


def draw_pairs(
    counts: Sequence[int], pairs: int = PAIRS, seed: int = SEED, progress: Progress | None = None
) -> PairLists:
    """The three lists of pairs; 1M pairs of real sequences take about half a minute.

    Args:
        counts: patches of each test sequence, in the order of the split.
        pairs: rows of each list.
        seed: 42 gives the official lists.
        progress: called with (rows done, rows in all).
    """
    if not counts or min(counts) < 2:
        raise HardnetError("verification needs sequences of at least 2 patches each")
    rng = np.random.RandomState(seed)
    sequence = rng.randint(0, len(counts), pairs)
    size = np.asarray(counts)
    patch, image = np.empty((pairs, 2), np.int32), np.empty((pairs, 2), np.int32)
    # Two different numbers below n are the head of a whole permutation of n in this generator.
    for row, n in enumerate(size[sequence].tolist()):
        patch[row] = rng.permutation(n)[:2]
        if progress and row % 10_000 == 0:
            progress(row, pairs)
    for row in range(pairs):
        image[row] = rng.permutation(IMAGES)[:2]
    other = rng.randint(0, len(counts), pairs)
    other_patch = rng.randint(0, size[other])
    if progress:
        progress(pairs, pairs)

    def rows(second: NDArray[np.int64], second_patch: NDArray[np.signedinteger]) -> Rows:
        columns = (sequence, image[:, 0], patch[:, 0], second, image[:, 1], second_patch)
        return np.stack(columns, 1).astype(np.int32)

    return PairLists(
        positive=rows(sequence, patch[:, 0]),
        intra=rows(sequence, patch[:, 1]),
        inter=rows(other, other_patch),
    )


def draw_retrieval(
    counts: Sequence[int], contrast: Contrast | None = None, seed: int = SEED
) -> RetrievalLists:
    """Queries and distractors by the rule of the official lists, as many as the set has.

    The official splits of the full set give the official lists. Wanted are 10 000 queries and
    20 000 distractors; of a set with fewer than 30 000 reference patches a third become queries and
    at most two thirds distractors. Candidates are drawn with replacement, first a sequence, then a
    patch of it; flat and repeated ones are dropped, and a distractor is never a query. A few less
    than wanted may remain.

    Args:
        counts: patches of each test sequence, in the order of the split.
        contrast: gives the contrast of patches; None takes flat patches, too.
        seed: 42 as for the official lists.
    """
    total = sum(counts)
    wanted = min(QUERIES, total // 3)
    if not wanted:
        raise HardnetError(f"retrieval needs at least 3 reference patches, the set has {total}")
    limit = min(DISTRACTORS, 2 * wanted)
    rng = np.random.RandomState(seed)
    first = _draw_patches(rng, counts, QUERY_DRAWS * wanted)
    drawn = np.concatenate([first, _draw_patches(rng, counts, DISTRACTOR_DRAWS * limit)])
    flat = np.zeros(len(drawn), bool) if contrast is None else _flat(drawn, counts, contrast)
    queries = _unique(first[~flat[: len(first)]])[:wanted]
    others = _unique(drawn[len(first) :][~flat[len(first) :]])
    others = others[~np.isin(_code(others), _code(queries))]
    lists = RetrievalLists(queries, others[:limit])
    if not len(lists.queries) or not len(lists.distractors):
        raise HardnetError(
            f"retrieval needs patches with a contrast above {MIN_CONTRAST:g} grey levels, "
            f"found {len(lists.queries)} queries and {len(lists.distractors)} distractors"
        )
    return lists


def _draw_patches(rng: np.random.RandomState, counts: Sequence[int], number: int) -> Rows:
    sequence = rng.randint(0, len(counts), number)
    patch = rng.randint(0, np.asarray(counts)[sequence])
    return np.stack([sequence, patch], 1).astype(np.int32)


def _flat(rows: Rows, counts: Sequence[int], contrast: Contrast) -> NDArray[np.bool_]:
    flat = np.zeros(len(rows), bool)
    for sequence, count in enumerate(counts):
        here = np.flatnonzero(rows[:, 0] == sequence)
        if len(here):
            values = contrast(sequence)
            if len(values) != count:
                raise ValueError(f"sequence {sequence}: {len(values)} contrasts, {count} patches")
            flat[here] = values[rows[here, 1]] <= MIN_CONTRAST
    return flat


def _unique(rows: Rows) -> Rows:
    """Without repetitions, in the order of the first ones."""
    _, first = np.unique(_code(rows), return_index=True)
    unique: Rows = rows[np.sort(first)]
    return unique


def _code(rows: Rows) -> NDArray[np.int64]:
    """One number per (s, idx)."""
    return rows[:, 0].astype(np.int64) << 32 | rows[:, 1]
