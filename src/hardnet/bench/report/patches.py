"""Tables of the sequence patches benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench import sequence_patches
from hardnet.bench.report.cells import BASELINE, by_name, ratio
from hardnet.bench.report.table import Table


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Means per noise level, then per sequence."""
    by_noise = sequence_patches.summarise(results["rows"], "noise")
    levels = list(sequence_patches.NOISE_LEVELS)
    baseline = by_noise.get(BASELINE, {}).get("all")
    rows = []
    for label, means in by_noise.items():
        numbers = [f"{means[level]:.3f}" for level in (*levels, "all")]
        rows.append([label, *numbers, ratio(means["all"], baseline)])
    columns = ["descriptor", *levels, "mean", f"/ {BASELINE}"]
    summary = Table("Matching mAP on sequence patches", columns, rows)
    return [summary, by_name("Matching mAP per sequence", "sequence", values(results))]


def values(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Descriptor -> sequence -> mAP."""
    means = sequence_patches.summarise(results["rows"], "sequence")
    return {
        label: {name: value for name, value in groups.items() if name != "all"}
        for label, groups in means.items()
    }
