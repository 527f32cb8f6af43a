"""The table of describing a folder of photos with overlapped stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report.table import Table

STAGES = ("decode", "detect", "describe")


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Seconds per photo of each stage, of all in a row, and overlapped."""
    settings = results["provenance"]["settings"]
    rows = []
    for row in results["rows"]:
        each = {name: value / settings["images"] for name, value in row["seconds"].items()}
        rows.append(
            [
                row["descriptor"],
                *(f"{each[name]:.2f}" for name in (*STAGES, "sequential", "overlapped", "hdf5")),
                f"{row['speedup']:.2f}x",
                f"{row['ratio_to_slowest_stage']:.2f}",
                f"{row['ratio_to_all_cores_busy']:.2f}",
                " / ".join(f"{row['memory_mb'][how]:.0f}" for how in ("sequential", "overlapped")),
            ]
        )
    columns = [
        "descriptor",
        *STAGES,
        "one by one",
        "overlapped",
        "`hardnet extract`",
        "speed-up",
        "to slowest stage",
        "to all cores busy",
        "MB, one by one / overlapped",
    ]
    cores = results["provenance"]["machine"]["cores"]
    note = (
        f"Seconds per photo; {settings['images']} photos of {settings['megapixels']:.1f} "
        f"megapixels on average, {settings['detector']}, {settings['keypoints']} keypoints, "
        f"{cores} cores. Every stage alone uses all cores it can, so the lower limit of the time "
        "is the larger of the slowest stage and of the work of all stages spread over all cores "
        '("all cores busy").'
    )
    return [Table("Describing a folder of photos", columns, rows, note=note)]
