"""What every trained network is tested on: pairs of Brown sets and sequences of an HPatches set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.bench import brown
from hardnet.bench.hpatches import matching, run
from hardnet.bench.hpatches.lists import Tasks, prepare
from hardnet.bench.metrics import mean_interval
from hardnet.errors import HardnetError
from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.hpatches import LEVELS, TAGS, as_patchset, read_hpatches
from hardnet.patchsets.patchset import Patches, PatchSet, Progress

Describe = Callable[[Patches], NDArray[np.float32]]
"""(N, S, S) patches -> (N, D) descriptors."""
CONVENTION = f"ap_{run.PAPER_CONVENTION['matching']}"


@dataclass(frozen=True)
class Strips:
    """An HPatches set at the network's size: all strips in one array.

    Attributes:
        name: of the set.
        patches: (N, S, S), the 16 strips of the first sequence, then those of the next.
        counts: sequence -> patches of one of its strips.
        limit: patches taken of each strip, evenly from all of it; 0 takes all.
    """

    name: str
    patches: Patches
    counts: Mapping[str, int]
    limit: int = 0

    def rows(self, sequence: str, tag: str) -> NDArray[np.int64]:
        """Places in ``patches`` of the patches taken from a strip."""
        first, count = 0, self.counts[sequence]
        for name in self.counts:
            if name == sequence:
                break
            first += len(TAGS) * self.counts[name]
        first += TAGS.index(tag) * count
        taken = min(self.limit or count, count)
        return first + np.arange(taken, dtype=np.int64) * count // taken

    def tasks(self) -> Tasks:
        """The sequences as the matching benchmark wants them."""
        counts = {name: len(self.rows(name, "ref")) for name in self.counts}
        return prepare("full", tuple(counts), counts, chosen=("matching",))


@dataclass(frozen=True)
class HeldOut:
    """The test sets, opened once for all cells."""

    brown: tuple[PatchSet, ...]
    hpatches: Strips | None

    def score(self, describe: Describe) -> dict[str, Any]:
        """FPR95 with its interval on each Brown set, matching mAP on the sequences."""
        scores: dict[str, Any] = {"brown": [_verify(describe, s) for s in self.brown]}
        scores["matching"] = _match(describe, self.hpatches) if self.hpatches else None
        return scores


def open_held_out(
    browns: Sequence[Path],
    hpatches: Path | None,
    size: int,
    pairs: int = 0,
    limit: int = 0,
    progress: Progress | None = None,
) -> HeldOut:
    """Open the test sets.

    Args:
        browns: sets in the Brown layout with test pairs.
        hpatches: a set in the HPatches layout; None for none.
        size: side of the patches of the network.
        pairs: test pairs taken of each Brown set, from the start of its list; 0 takes all.
        limit: patches taken of each strip of the HPatches set; 0 takes all.
        progress: called while patches are decoded for the first time.
    """
    opened = []
    for folder in browns:
        found = read_brown(folder, size, progress)
        found = replace(found, pairs=found.pairs[:pairs]) if pairs else found
        labels = found.pair_labels
        if not len(labels) or labels.all() or not labels.any():
            raise HardnetError(f"{folder}: FPR95 needs test pairs of both kinds, same and other")
        opened.append(found)
    strips = None
    if hpatches is not None:
        sequences = read_hpatches(hpatches).sequences
        patches = as_patchset(read_hpatches(hpatches), tuple(sequences), size, progress)
        counts = {name: sequence.count for name, sequence in sequences.items()}
        strips = Strips(patches.name, patches.patches, counts, limit)
    return HeldOut(tuple(opened), strips)


def _verify(describe: Describe, patchset: PatchSet) -> dict[str, Any]:
    row = brown.evaluate(lambda key, patches: describe(patches()), patchset, "")
    return {key: row[key] for key in ("set", "pairs", "fpr95", "low", "high")}


def _match(describe: Describe, strips: Strips) -> dict[str, Any]:
    def lookup(sequence: str, tag: str) -> NDArray[np.float32]:
        return described[sequence, tag]

    # The reference is asked for at each noise level: describe every strip once.
    described = {
        (name, tag): describe(np.asarray(strips.patches[strips.rows(name, tag)]))
        for name in strips.counts
        for tag in TAGS
    }
    rows, _ = matching.evaluate(lookup, strips.tasks(), resamples=1)
    names = [row["sequence"] for row in rows]
    values = [row[CONVENTION] for row in rows]
    low, high = mean_interval(values, names)
    return {
        "set": strips.name,
        "value": float(np.mean(values)),
        "low": low,
        "high": high,
        "noise": {noise: _mean(rows, "noise", noise) for noise in LEVELS},
        "sequences": {name: _mean(rows, "sequence", name) for name in strips.counts},
    }


def _mean(rows: Sequence[Mapping[str, Any]], key: str, value: str) -> float:
    return float(np.mean([row[CONVENTION] for row in rows if row[key] == value]))
