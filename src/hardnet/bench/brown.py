"""The Brown (UBC PhotoTour) benchmark: does a pair of patches show the same point?

Only the patches of the test pairs are described, in blocks that are stored one by one: memory stays
bounded, and an interrupted run continues where it stopped.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.bench.metrics import fdr_at_recall, fpr_at_recall, roc_auc
from hardnet.bench.store import Describe
from hardnet.errors import HardnetError, Steps, silent
from hardnet.images import Pixels
from hardnet.matching.neighbours import pair_distances
from hardnet.patchsets.brown import PAIR_FILE
from hardnet.patchsets.patchset import Ints, JoinedRows, PatchSet

BLOCK = 8192
"""Patches described at once, and stored under one key."""
REPEATS = 10_000
"""Resamplings of the interval."""


def evaluate(
    describe: Describe,
    patchset: PatchSet,
    label: str,
    trained: str | None = None,
    progress: Steps = silent,
) -> dict[str, Any]:
    """One row: the rates of one descriptor on one set, as shares.

    ``trained`` is the set it was trained on; None for a handcrafted one.
    """
    distances = distances_of_pairs(describe, patchset, progress)
    labels = patchset.pair_labels
    if labels.all() or not labels.any():
        kind = "matching" if labels.all() else "non-matching"
        raise HardnetError(f"{patchset.name}: all test pairs are {kind}; the rates need both kinds")
    low, high = fpr95_interval(distances, labels)
    return {
        "descriptor": label,
        "trained": trained,
        "set": patchset.name,
        "pairs": len(labels),
        "fpr95": fpr_at_recall(distances, labels),
        "fpr95_before": fpr_at_recall(distances, labels, ties="before"),
        "fdr95": fdr_at_recall(distances, labels),
        "auc": roc_auc(distances, labels),
        "low": low,
        "high": high,
    }


def distances_of_pairs(
    describe: Describe, patchset: PatchSet, progress: Steps = silent
) -> NDArray[np.float32]:
    if not len(patchset.pairs):
        raise HardnetError(
            f"{patchset.name} has no test pairs: add {PAIR_FILE} to its folder "
            "(columns patch, point, 0, patch, point, 0)"
        )
    named, places = np.unique(patchset.pairs, return_inverse=True)
    places = places.reshape(-1, 2)  # (M, 2) into ``named``; numpy 1 and 2 differ in the shape
    rows = JoinedRows(_blocks(describe, patchset, named, progress))
    distances = np.empty(len(places), np.float32)
    for start in range(0, len(places), BLOCK):
        part = places[start : start + BLOCK]
        distances[start : start + BLOCK] = pair_distances(rows[part[:, 0]], rows[part[:, 1]])
    return distances


def fpr95_interval(distances: ArrayLike, labels: ArrayLike) -> tuple[float, float]:
    """95 % percentile bootstrap interval of FPR95 over pairs, true and false ones separately.

    Brown has no sequences to resample, and pairs of the same point are not independent: the
    interval is a lower bound of the uncertainty.

    The bootstrap is simulated. The k-th smallest of P draws with replacement from P sorted true
    distances has the place floor(P u), u the k-th smallest of P uniform numbers, which is Beta(k,
    P - k + 1); and of N draws from the false distances a binomial number lies below a threshold.
    """
    distance, match = np.asarray(distances, np.float64), np.asarray(labels, bool)
    true, false = np.sort(distance[match]), np.sort(distance[~match])
    rng = np.random.default_rng(0)
    needed = math.ceil(0.95 * len(true) - 1e-9)
    uniform = rng.beta(needed, len(true) - needed + 1, REPEATS)
    place = np.minimum((len(true) * uniform).astype(np.int64), len(true) - 1)
    share = np.searchsorted(false, true[place], side="right") / len(false)
    rates = rng.binomial(len(false), share) / len(false)
    low, high = np.quantile(rates, [0.025, 0.975])
    return float(low), float(high)


def _blocks(
    describe: Describe, patchset: PatchSet, named: Ints, progress: Steps
) -> list[NDArray[Any]]:
    # Other pairs or another patch size must not reuse these blocks.
    digest = hashlib.sha256(named.astype("<i8").tobytes() + repr(patchset.patches.shape).encode())
    folder = f"pairs-{digest.hexdigest()[:12]}"
    blocks: list[NDArray[Any]] = []
    starts = range(0, len(named), BLOCK)
    for start in starts:
        rows = named[start : start + BLOCK]
        key = f"{folder}/{start:08d}-{start + len(rows):08d}"

        def take(rows: Ints = rows) -> Pixels:
            return np.array(patchset.patches[rows])

        found = describe(key, take)
        if len(found) != len(rows):
            raise HardnetError(
                f"{patchset.name}: {len(found)} descriptors for {len(rows)} patches of a block"
            )
        blocks.append(found)
        progress(len(blocks), len(starts))
    return blocks
