"""Training curves: the loss and the held-out FPR95 of runs, from their ``log.csv``."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.report.canvas import canvas, line_style
from hardnet.errors import HardnetError

_POINTS = 120  # of a drawn curve: each is the mean of the steps around it


def read_curve(run: Path, column: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Pairs seen and the values of a column of a run's log, where it has any.

    Returns:
        (n,) pairs and (n,) values.
    """
    path = run / "log.csv"
    if not path.is_file():
        raise HardnetError(f"{run} is not a training run: it has no log.csv")
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get(column)]
    return (
        np.array([float(row["pairs"]) for row in rows]),
        np.array([float(row[column]) for row in rows]),
    )


def thin(values: NDArray[np.float64], count: int = _POINTS) -> NDArray[np.float64]:
    """At most ``count`` means of neighbouring values, in order."""
    parts = np.array_split(values, min(count, len(values))) if len(values) else []
    return np.array([part.mean() for part in parts])


def draw(runs: Sequence[Path], path: Path) -> None:
    """Loss on the left, FPR95 on the held-out pairs on the right; one line per run."""
    curves = {run.name: [read_curve(run, c) for c in ("loss", "fpr95")] for run in runs}
    with canvas(path, 8.5, 3.2) as figure:
        left, right = figure.subplots(1, 2)
        for number, (name, (loss, fpr95)) in enumerate(curves.items()):
            style = line_style(number)
            left.plot(thin(loss[0]) / 1e6, thin(loss[1]), label=name, **style | {"marker": ""})
            right.plot(fpr95[0] / 1e6, 100 * fpr95[1], ms=3, label=name, **style)
        left.set_ylabel("loss")
        right.set_ylabel("FPR95 on held-out pairs, %")
        right.set_yscale("log")
        for axes in (left, right):
            axes.set_xlabel("million pairs")
            axes.grid(color="#EEEEEE")
        left.legend(frameon=False)
