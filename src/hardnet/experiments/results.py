"""The results file of an experiment: every cell beside the paper, and what the numbers show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardnet.bench.bootstrap import mean_interval
from hardnet.experiments.claims import judge
from hardnet.experiments.folder import read_score
from hardnet.experiments.grid import Grid
from hardnet.experiments.run import Run

MEASURES = ("matching", "fpr95")


def collect(grid: Grid, runs: Sequence[Run]) -> dict[str, Any]:
    """The results file without provenance.

    Args:
        grid: the experiment.
        runs: of all its cells; those that are not finished are listed as missing.
    """
    cells, missing = [], []
    for cell in grid.cells:
        found = [(run, read_score(run.folder)) for run in runs if run.cell == cell]
        missing += [run.folder.name for run, score in found if score is None]
        scores = [score for _, score in found if score is not None]
        about = {"cell": cell.name, "row": cell.row, "column": cell.column, "paper": cell.paper}
        cells.append(about | {"changes": dict(cell.changes)} | summarise(scores))
    known = {cell["cell"]: cell for cell in cells}
    claims = [judge(claim, known, m) for claim in grid.claims for m in _order(grid, cells)]
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
        "claims": claims,
        "missing": missing,
    }


def summarise(scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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


def _order(grid: Grid, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """The measures that were taken, the paper's first."""
    ordered = sorted(MEASURES, key=lambda measure: measure != grid.measure)
    return [m for m in ordered if any(m in cell for cell in cells)]
