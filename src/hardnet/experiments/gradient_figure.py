"""The paper's figure of gradient magnitudes, drawn from the losses that train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from hardnet.bench.report.canvas import canvas
from hardnet.learn.gradients import gradient_magnitudes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANELS = (("triplet", 1.0), ("softmin", 1.0), ("contrastive", 1.0), ("contrastive", 2.0))
_TITLES = {
    "triplet": "triplet margin, m = {:g}",
    "softmin": "softmin",
    "contrastive": "contrastive, m = {:g}",
}
_ROWS = (
    r"pull of the positive  $|\partial L / \partial p|$",
    r"push of the negative  $|\partial L / \partial n|$",
)
_FURTHEST = 2.0
_SAMPLES = 201  # of a distance; an odd number, so that none lies on the edge d(a, n) = 1 + d(a, p)
_COLOURS = ("#F7F7F7", "#0072B2")  # of 0 and of 1


def draw(path: Path) -> None:
    """One column per loss; above what pulls the positive, below what pushes the negative.

    The paper lays the two over each other; apart, "half of both" does not look like "all of one".
    """
    step = _FURTHEST / _SAMPLES
    distances = (np.arange(_SAMPLES) + 0.5) * step
    with canvas(path, 10.2, 4.9) as figure:
        from matplotlib.colors import (
            LinearSegmentedColormap,
        )  # the canvas has said if it is missing

        colours = LinearSegmentedColormap.from_list("magnitude", _COLOURS)
        grid = figure.subplots(2, len(PANELS), sharex=True, sharey=True)
        for column, (loss, margin) in enumerate(PANELS):
            both = gradient_magnitudes(loss, margin, distances, distances)
            for axes, values in zip(grid[:, column], both, strict=True):
                image = axes.imshow(
                    values,
                    origin="lower",
                    extent=(0, _FURTHEST, 0, _FURTHEST),
                    cmap=colours,
                    vmin=0,
                    vmax=1,
                )
                _dress(axes)
            grid[0, column].set_title(_TITLES[loss].format(margin), fontsize=10)
            grid[1, column].set_xlabel("d(a, n)")
        for x, y, text in ((0.1, 1.75, "negative closer"), (1.05, 0.2, "match closer")):
            grid[0, -1].text(x, y, text, color="white")
        for axes in grid[:, 0]:
            axes.set_ylabel("d(a, p)")
        for line, label in zip(grid, _ROWS, strict=True):
            bar = figure.colorbar(image, ax=list(line), ticks=(0, 0.5, 1), aspect=12, pad=0.01)
            bar.outline.set_visible(False)
            bar.set_label(label)


def _dress(axes: Axes) -> None:
    axes.set_xticks((0, 1, 2))
    axes.set_yticks((0, 1, 2))
    axes.plot([0, _FURTHEST], [0, _FURTHEST], color="black", lw=1, ls=":")
    axes.set_xlim(0, _FURTHEST)
    axes.set_ylim(0, _FURTHEST)
