"""The results file of an experiment: every cell beside the paper, and which claims hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardnet.bench.experiments.grids import Claim, Grid
from hardnet.bench.metrics import mean_interval

MEASURES = ("matching", "fpr95")

Score = Mapping[str, Any]
"""What one training run gave: steps, seconds, loss, and what it scored or why it failed."""


def collect(grid: Grid, runs: Mapping[str, Mapping[str, Score | None]]) -> dict[str, Any]:
    """The results file without provenance.

    Args:
        grid: the experiment.
        runs: cell -> run -> its score; those that are not finished have None, and are listed.
    """
    cells = []
    for cell in grid.cells:
        scores = [score for score in runs[cell.name].values() if score is not None]
        about = {"cell": cell.name, "row": cell.row, "column": cell.column, "paper": cell.paper}
        cells.append(about | {"changes": dict(cell.changes)} | summarise(scores))
    known = {cell["cell"]: cell for cell in cells}
    ordered = sorted(MEASURES, key=lambda measure: measure != grid.measure)  # the paper's first
    taken = [m for m in ordered if any(m in cell for cell in cells)]
    return {
        "kind": "experiment",
        "experiment": grid.name,
        "title": grid.title,
        "corner": grid.corner,
        "measure": grid.measure,
        "source": grid.source,
        "says": grid.says,
        "notes": list(grid.notes),
        "cells": cells,
        "claims": [judge(claim, known, m) for claim in grid.claims for m in taken],
        "missing": [n for cell in grid.cells for n, s in runs[cell.name].items() if s is None],
    }


def summarise(scores: Sequence[Score]) -> dict[str, Any]:
    """One cell: the mean over its seeds of each measure that was taken, and all runs.

    The interval is the bootstrap's: of sequences for matching, of test pairs for FPR95 (several
    sets: the mean of their ends, as if they all erred alike). It does not cover what another seed
    would change: that is the range of ``seeds``.
    """
    good = [score for score in scores if "failed" not in score]
    summary: dict[str, Any] = {"runs": [dict(score) for score in scores]}
    if len(good) < len(scores):
        summary["failed"] = len(scores) - len(good)
    matched = [score["matching"] for score in good if score["matching"]]
    if matched:
        names = matched[0]["sequences"]
        means = {n: float(np.mean([m["sequences"][n] for m in matched])) for n in names}
        low, high = mean_interval(list(means.values()))
        seeds = [m["value"] for m in matched]
        summary["matching"] = _measure(seeds, low, high) | {"sequences": means}
    if good and good[0]["brown"]:
        ends = [[(s["fpr95"], s["low"], s["high"]) for s in score["brown"]] for score in good]
        values = np.mean(ends, axis=1)  # (seeds, 3)
        low, high = (float(end) for end in values.mean(0)[1:])
        summary["fpr95"] = _measure(values[:, 0].tolist(), low, high)
    return summary


def _measure(seeds: list[float], low: float | None, high: float | None) -> dict[str, Any]:
    return {"value": float(np.mean(seeds)), "low": low, "high": high, "seeds": seeds}


def judge(claim: Claim, scores: Mapping[str, Mapping[str, Any]], measure: str) -> dict[str, Any]:
    """What the numbers say to a claim.

    A pair for which both cells were run holds or does not; how sure that is, is said apart: it is
    *clear* if the interval of the difference leaves out zero (see :func:`compare`).

    Args:
        claim: the statement.
        scores: cell -> what :func:`summarise` says of it.
        measure: "matching" or "fpr95".

    Returns:
        JSON: the claim, the measure, the answer ("yes": all pairs were run and hold; "no": some
        pair contradicts; "open": none contradicts, but some were not run), the number of pairs
        that hold, those that hold clearly, those that contradict, and those not run.
    """
    verdict: dict[str, Any] = {"claim": claim.text, "measure": measure}
    holds, clear, against, missing = [], [], [], []
    for better, worse in claim.pairs:
        pair = f"{better} > {worse}" if claim.gain else f"{better} ~ {worse}"
        if not all(scores.get(name, {}).get(measure) for name in (better, worse)):
            missing.append(pair)
            continue
        found = compare(scores[better], scores[worse], measure)
        says = f"{pair}: {_signed(found, measure)}"
        sure = found["clear"]
        if found["gain"] > 0 if claim.gain else not (sure and found["gain"] > 0):
            holds.append(says)
            if sure and claim.gain:
                clear.append(says)
        else:
            against.append(says + (", clear" if sure else ", not clear"))
    verdict["answer"] = "no" if against else "open" if missing or not holds else "yes"
    counts = {"pairs": len(claim.pairs), "hold": len(holds), "clear": len(clear)}
    return verdict | counts | {"holds": holds, "against": against, "not_run": missing}


def compare(better: Mapping[str, Any], worse: Mapping[str, Any], measure: str) -> dict[str, Any]:
    """How much better one cell is than another, positive if it is.

    Matching: the same sequences were matched by both, so the interval is that of the mean
    difference when sequences are drawn again. FPR95: the difference is clear if the intervals of
    the two do not overlap, which is cautious. With several seeds it is clear only if, in addition,
    every seed of the one is better than every seed of the other.
    """
    a, b = better[measure], worse[measure]
    sign = 1 if measure == "matching" else -1
    low = high = None
    if measure == "matching":
        names = a["sequences"]
        low, high = mean_interval([names[name] - b["sequences"][name] for name in names])
        clear = low is not None and high is not None and (low > 0 or high < 0)
    else:
        clear = _apart(a["low"], a["high"], b["low"], b["high"])
    if max(len(a["seeds"]), len(b["seeds"])) > 1:
        clear &= _apart(min(a["seeds"]), max(a["seeds"]), min(b["seeds"]), max(b["seeds"]))
    gain = sign * (a["value"] - b["value"])
    return {"gain": float(gain), "low": low, "high": high, "clear": bool(clear)}


def _apart(
    low: float | None, high: float | None, other_low: float | None, other_high: float | None
) -> bool:
    if low is None or high is None or other_low is None or other_high is None:
        return False
    return bool(high < other_low or other_high < low)


def _signed(found: Mapping[str, Any], measure: str) -> str:
    """The gain as text: mAP, or points of FPR95 (fewer are a gain)."""
    text = (
        f"{found['gain']:+.3f}" if measure == "matching" else f"{100 * found['gain']:+.2f} points"
    )
    if found["low"] is None:
        return text
    return f"{text} [{found['low']:+.3f}, {found['high']:+.3f}]"
