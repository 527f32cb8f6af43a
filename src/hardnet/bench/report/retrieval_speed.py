"""The table of the speed of building and querying an index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report.cells import number
from hardnet.bench.report.table import Table


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Times, memory and scores of ours and of its peers, in one run."""
    settings = results["provenance"]["settings"]
    rows = []
    for name, row in results["rows"].items():
        rows.append(
            [
                name,
                number(row["build_seconds"], "{:.2f}"),
                number(row["build_ratio"], "{:.1f}x"),
                number(row["query_milliseconds"], "{:.2f}"),
                number(row["query_ratio"], "{:.1f}x"),
                number(row["bytes_per_feature"], "{:.1f}"),
                number(100 * row["map"], "{:.2f}"),
                number(row["ns"], "{:.3f}"),
            ]
        )
    columns = [
        "method",
        "build (s)",
        "times faster",
        "query (ms)",
        "times faster",
        "bytes per feature",
        "mAP (%)",
        "N-S",
    ]
    note = (
        f"{settings['photos']} photos of {settings['longer_side']} pixels, "
        f"{settings['features_per_photo']:.0f} {settings['descriptor']} features each, "
        f"{settings['words']} words, {settings['threads']} threads; times faster than asmk, median "
        "of repeats that take turns. Assignment to words is in both times, extraction in neither. "
        "Bytes: all files of the index besides the vocabulary. The flat search, which is slow, has "
        f"its scores of {settings['flat_search_scored_on']} queries, one per object."
    )
    return [Table("Building and querying an index", columns, rows, note=note)]
