"""The distractor figure of the paper: retrieval mAP against the number of distractors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardnet.bench.report import hpatches_numbers as numbers
from hardnet.bench.report.canvas import canvas, line_style


def draw(results: Mapping[str, Any], path: Path) -> None:
    """One line per descriptor, the best first in the legend."""
    counts = sorted({row["distractors"] for row in results["retrieval"]})
    field = f"ap_{numbers.PAPER['retrieval']}"
    means = {k: numbers.mean(results, "retrieval", field, distractors=k) for k in counts}
    names = numbers.descriptors(results)
    with canvas(path, 6.2, 3.6) as figure:
        axes = figure.subplots()
        # The style goes with the place in the file, so that it does not change with the ranking.
        for name in numbers.ranking(results, "retrieval", names):
            known = [k for k in counts if name in means[k]]
            style = line_style(names.index(name))
            axes.plot(known, [means[k][name] for k in known], label=name, ms=4, lw=1.4, **style)
        axes.set_xscale("log")
        axes.set_xticks(counts, _labels(counts))
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.grid(color="#EEEEEE")
        axes.set_axisbelow(True)
        axes.set_xlabel("number of distractors")
        axes.set_ylabel("retrieval mAP")
        figure.legend(loc="outside right upper", frameon=False)


def _labels(counts: list[int]) -> list[str]:
    """The numbers as text; those too close to the next one on a logarithmic axis stay empty."""
    labels, right = [], float("inf")
    for k in reversed(counts):
        close = k > right / 1.4
        labels.append("" if close else f"{k // 1000}k" if k % 1000 == 0 else str(k))
        right = right if close else k
    return labels[::-1]
