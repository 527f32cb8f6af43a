"""The table of the HPatches tasks against the size of the set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report.table import Table

_LISTS = {
    "verification": "3 x {pairs:,} pairs",
    "matching": "{sequences} sequences",
    "retrieval": "{queries:,} queries, {distractors:,} distractors",
}


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Time and memory of each task at each size."""
    order = {task: i for i, task in enumerate(_LISTS)}
    rows = [
        [
            row["task"],
            _LISTS[row["task"]].format(**row),
            f"{row['seconds']:.1f} s",
            f"{row['memory_mb']:.0f} MB",
            f"{row['descriptors_mb']:.0f} MB",
            f"{row['ratio']:.1f}x",
        ]
        for row in sorted(results["rows"], key=lambda row: (order[row["task"]], row["size"]))
    ]
    columns = ["task", "size", "time", "memory above descriptors", "descriptors", "plain / ours"]
    patches = results["from_patches"]
    note = (
        "All three noise levels. Times are with intervals; the ratio to the plain way, which has "
        "none and is extrapolated from a part, is without. Describing comes before: "
        f"{patches['patches_per_second']:.0f} patches/s with hardnet here, so about "
        f"{patches['full_set_minutes']:.0f} minutes for the full set, once (extrapolated)."
    )
    return [Table("HPatches tasks against the size of the set", columns, rows, note=note)]
