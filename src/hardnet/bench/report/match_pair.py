"""The tables of two photos to verified matches: how fast against whom, and where the time goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report.table import Table


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Time per pair with the ratios, then the stages."""
    return [_totals(results), _stages(results)]


def _totals(results: Mapping[str, Any]) -> Table:
    found = results["found"]
    judged = any("correct" in row for row in found.values())
    rows = []
    for name, seconds in results["seconds"].items():
        counts = [str(found[name]["inliers"])]
        if judged:
            counts.append(str(found[name]["correct"]))
        rows.append(
            [
                name,
                f"{seconds['total']:.2f}",
                f"{results['speed_of_kornia'][name]:.1f}x",
                f"{results['speed_of_sift'][name]:.2f}x",
                *counts,
            ]
        )
    columns = ["", "seconds", "speed of kornia", "speed of SIFT", "inliers"]
    settings = results["provenance"]["settings"]
    note = (
        f"{' and '.join(settings['images'])}, {settings['keypoints']} keypoints, "
        f"{settings['threads']} threads, median of {settings['repetitions']} runs that take turns. "
        "kornia: Hessian, dominant orientation, HardNet with the same weights. Models are loaded "
        "before; the verification is the same for all."
    )
    title = "From two image files to verified matches"
    return Table(title, [*columns, "correct"] if judged else columns, rows, note=note)


def _stages(results: Mapping[str, Any]) -> Table:
    rows = []
    for name, seconds in results["seconds"].items():
        total = seconds["total"]
        parts = [
            f"{stage} {value:.3f} ({value / total:.0%})"
            for stage, value in seconds.items()
            if stage != "total"
        ]
        rows.append([name, ", ".join(parts)])
    return Table("Where the time goes", ["", "seconds (share) per stage"], rows)
