"""The tables of an index that grows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report.table import Table

STAGES = {
    "he": "Hamming embedding",
    "bow": "bag of words",
    "top_k": "best 100 of all scores",
    "reliable": "close features of 100 images",
    "features_of": "features of 10 images",
}
"""What is timed of a query; the best scores are part of the first two."""


def tables(results: Mapping[str, Any]) -> list[Table]:
    """What an index of each size takes, and how long its queries do."""
    settings = results["provenance"]["settings"]
    shape = settings["shape"]
    note = (
        f"Images drawn like those of an index of {shape['images']} photos: {settings['features']} "
        f"features on average, {settings['words']:,} words, "
        f"{100 * shape['matching_pairs']:.1f} % of the features of a word match. Extraction is not "
        "part of it. Own memory is what opening and querying take; mapped memory is the part of "
        "the files that was read, which the system takes back when it needs it."
    )
    return [_size_table(results, note), _query_table(results)]


def _size_table(results: Mapping[str, Any], note: str) -> Table:
    rows = [
        [
            f"{row['images']:,}",
            f"{row['features'] / 1e6:.1f} M",
            f"{row['build_seconds']:.1f} s",
            f"{row['add_one_seconds']:.2f} s",
            f"{row['bytes'] / 1e6:,.0f} MB",
            f"{row['bytes'] / row['features']:.1f}",
            f"{row['open_ms']:.1f} ms",
            f"{row['own_memory_mb']:.0f} MB",
            f"{row['mapped_memory_mb']:,.0f} MB",
        ]
        for row in results["rows"]
    ]
    columns = [
        "images",
        "features",
        "write all",
        "add one image",
        "on disk",
        "bytes per feature",
        "open",
        "own memory",
        "mapped memory",
    ]
    return Table("Growth of an index", columns, rows, note=note)


def _query_table(results: Mapping[str, Any]) -> Table:
    settings = results["provenance"]["settings"]
    rows = [
        [
            f"{row['images']:,}",
            f"{row['postings_per_query'] / 1e6:.2f} M",
            f"{row['first_query_ms']:.1f}",
            *(f"{row['query_ms'][stage]:.2f}" for stage in STAGES),
        ]
        for row in results["rows"]
    ]
    columns = ["images", "postings read", "first query", *STAGES.values()]
    note = (
        f"Milliseconds, median of {settings['queries']} queries; ma "
        f"{settings['scoring']['ma']} for the Hamming embedding, whose postings are counted. Files "
        "are in the page cache; the first query maps them."
    )
    return Table("Time of a query against the size of the index", columns, rows, note=note)
