"""Bars: one group per sequence, one bar per descriptor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hardnet.bench.report.canvas import canvas


def draw(values: Mapping[str, Mapping[str, float]], label: str, path: Path) -> None:
    """Draw descriptor -> sequence -> value."""
    names = list(next(iter(values.values())))
    width = 0.8 / len(values)
    with canvas(path, 1.5 + 0.9 * len(names), 3.6) as figure:
        axes = figure.subplots()
        for i, (descriptor, by_sequence) in enumerate(values.items()):
            places = [k + (i - (len(values) - 1) / 2) * width for k in range(len(names))]
            axes.bar(places, [by_sequence[n] for n in names], width, label=descriptor)
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_ylabel(label)
        axes.legend(frameon=False, ncols=len(values), loc="lower left", bbox_to_anchor=(0, 1))
