"""The tables of detectors: how repeatable, how fast."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hardnet.bench.report.table import Table


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Repeatability per sequence, then speed, then the large image."""
    rows = results["repeatability"]
    sequences = list(dict.fromkeys(row["sequence"] for row in rows))
    settings = results["provenance"]["settings"]
    names = list(results["mean"])
    best = max(results["mean"][name]["overlap"] for name in names)

    def mean(name: str, sequence: str) -> str:
        part = [r["overlap"] for r in rows if (r["detector"], r["sequence"]) == (name, sequence)]
        return f"{np.mean(part):.3f}"

    def overall(name: str) -> str:
        value = results["mean"][name]["overlap"]
        return f"**{value:.3f}**" if value == best else f"{value:.3f}"

    repeat = Table(
        f"Repeatability, at most {settings['keypoints']} frames",
        ["detector", *sequences, "mean", "mean by distance"],
        [
            [
                name,
                *(mean(name, sequence) for sequence in sequences),
                overall(name),
                f"{results['mean'][name]['distance']:.3f}",
            ]
            for name in names
        ],
        note=f"Repeatability: {results['rules']['overlap']}. By distance: "
        f"{results['rules']['distance']}. Pairs of {', '.join(settings['chosen_on'])} decided the"
        " settings of our affine shape; the other sequences took no part.",
    )
    ratios = results["speed_ratio_to_kornia"]
    speed = Table(
        f"Seconds per image of {settings['timed']}, {settings['threads']} threads",
        ["detector", "seconds", "speed, kornia = 1"],
        [[n, f"{s:.3f}", f"{ratios[n]:.1f}"] for n, s in results["seconds_per_image"].items()],
        note=f"{results['rules']['time'].capitalize()}.",
    )
    large = Table(
        f"A mosaic of {settings['megapixels']:g} Mpixel",
        ["detector", "seconds", "MB besides the image", "frames"],
        [
            [name, f"{row['seconds']:.1f}", f"{row['extra_mb']:.0f}", str(row["frames"])]
            for name, row in results["large_image"].items()
        ],
    )
    return [repeat, speed, large]
