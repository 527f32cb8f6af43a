"""The tables of the speed of matching descriptors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report.table import Table


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Seconds for each number of descriptors; then memory, then recall of approximate search."""
    sizes = results["sizes"]
    names = list(next(iter(sizes.values()))["seconds"])
    times = [
        [
            name,
            *(
                f"{row['seconds'][name]:.3f} s ({row['times_faster_than_opencv'][name]:.1f}x)"
                for row in sizes.values()
            ),
        ]
        for name in names
    ]
    threads = results["provenance"]["settings"]["threads"]
    speed = Table(
        f"Two nearest neighbours and ratio test, {threads} threads (times faster than OpenCV)",
        ["matcher", *(f"{size} x {size}" for size in sizes)],
        times,
    )
    memory = Table(
        "Memory besides the descriptors, MB",
        ["matcher", *(f"{size} x {size}" for size in sizes)],
        [
            [name, *(f"{row[size]:.0f}" for size in sizes)]
            for name, row in results["extra_memory_mb"].items()
        ],
    )
    recall = Table(
        "Nearest neighbours found, of all and of those that pass the ratio test",
        ["search", "all", "matches", "seconds"],
        [
            [name, f"{row['all']:.3f}", f"{row['matches']:.3f}", f"{row['seconds']:.2f}"]
            for name, row in results["recall"].items()
        ],
    )
    return [speed, memory, recall]
