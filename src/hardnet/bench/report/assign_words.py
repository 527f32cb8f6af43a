"""The table of the speed of finding the nearest words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report.table import Table


def tables(results: Mapping[str, Any]) -> list[Table]:
    """One row per size of vocabulary and way to search it."""
    settings = results["provenance"]["settings"]
    count, query = (
        settings["words_per_descriptor_of_a_query"],
        settings["descriptors_of_a_query"],
    )
    rows = [
        [
            str(size),
            name,
            f"{row['per_second']:.0f}",
            f"{row['times_faiss_flat']:.1f}x",
            f"{row['recall']:.4f}",
            f"{row['recall_of_several']:.4f}",
            f"{row['query_ms']:.1f}",
        ]
        for size, measured in results["sizes"].items()
        for name, row in measured.items()
    ]
    return [
        Table(
            f"Nearest words of descriptors, {settings['threads']} threads",
            [
                "words",
                "search",
                "descriptors/s",
                "times faiss flat",
                "recall",
                f"recall of {count}",
                f"query of {query}, {count} words each, ms",
            ],
            rows,
        )
    ]
