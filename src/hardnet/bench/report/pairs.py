"""Tables of the benchmark on real image pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench import real_pairs
from hardnet.bench.report.cells import BASELINE, by_name, ratio
from hardnet.bench.report.table import Table


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Totals, then correct matches and verified pairs per sequence."""
    totals = real_pairs.summarise(results["rows"], "sequence")
    baseline = totals.get(BASELINE, {}).get("all", {}).get("correct")
    rows = []
    for label, groups in totals.items():
        counts = groups["all"]
        fields = ("tentative", "correct", "inliers", "correct_inliers")
        numbers = [f"{counts[field]}" for field in fields]
        verified = f"{counts['verified']} / {counts['pairs']}"
        rows.append([label, verified, *numbers, ratio(counts["correct"], baseline)])
    columns = ["descriptor", "verified pairs", "matches", "correct", "inliers", "correct inliers"]
    return [
        Table("Matches on real pairs", [*columns, f"correct / {BASELINE}"], rows),
        by_name("Correct matches per sequence", "sequence", values(results), "{:.0f}"),
        by_name("Verified pairs per sequence", "sequence", values(results, "verified"), "{:.0f}"),
    ]


def values(results: Mapping[str, Any], field: str = "correct") -> dict[str, dict[str, float]]:
    """Descriptor -> sequence -> one of the counts."""
    totals = real_pairs.summarise(results["rows"], "sequence")
    return {
        label: {name: float(counts[field]) for name, counts in groups.items() if name != "all"}
        for label, groups in totals.items()
    }
