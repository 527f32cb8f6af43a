"""The table of the speed of describing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report.table import Table


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Patches per second for each batch size."""
    rates, ratios = results["patches_per_second"], results["ratio_to_kornia"]
    rows = [
        [name, *(f"{rates[batch][name]:.0f} ({ratios[batch][name]:.2f}x)" for batch in rates)]
        for name in next(iter(rates.values()))
    ]
    columns = ["descriptor", *(f"patches/s, batch {batch} (ratio)" for batch in rates)]
    return [Table("Describing real patches, 2 threads", columns, rows)]
