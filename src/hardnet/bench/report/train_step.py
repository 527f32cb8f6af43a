"""The tables of a training step in chunks against the plain one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report.table import Table


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Speed and memory, then how far the gradients are apart."""
    return [_cost(results), _equality(results)]


def _cost(results: Mapping[str, Any]) -> Table:
    speed, batch = results["pairs_per_second"], results["batch"]
    rows = [
        [
            f"pairs/s at batch {batch}",
            f"{speed['plain']:.0f}",
            f"{speed['chunked']:.0f}",
            f"{results['ratio']:.2f}x",
        ]
    ]
    for row in results["memory_mb"]:
        plain = row.get("plain")
        rows.append(
            [
                f"peak memory at batch {row['batch']}",
                f"{plain:.0f} MB" if plain else "",
                f"{row['chunked']:.0f} MB",
                f"{row['share']:.0%}" if plain else "",
            ]
        )
    settings = results["provenance"]["settings"]
    note = (
        f"HardNet, hardest-in-batch triplet loss, chunks of {settings['chunk']} patches, "
        f"{settings['threads']} threads; each measurement in a process of its own, memory with "
        "PyTorch itself. Plain: contiguous layout, whole batch, full distance matrix, autograd."
    )
    return Table("A training step", ["", "plain", "in chunks", "ratio"], rows, note=note)


def _equality(results: Mapping[str, Any]) -> Table:
    rows = []
    for row in results["equality"]:
        named = f"batch {row['batch']}, {row['dtype']}"
        rows.append([f"in chunks - plain, {named}", *_differences(row["chunked_to_plain"])])
        if row["plain_to_float64"]:
            rows.append(
                [f"plain - plain in float64, {named}", *_differences(row["plain_to_float64"])]
            )
    note = (
        "Of the gradients, the worst parameter. In float32 an activation within rounding of zero "
        "passes ReLU in one computation and not in the other, so two correct steps differ; the "
        "lines of plain against plain in float64 show how much."
    )
    columns = ["difference", "loss", "gradients", "of the largest entry", "of the norm"]
    return Table("The same step? Largest differences", columns, rows, note=note)


def _differences(found: Mapping[str, float]) -> list[str]:
    return [f"{found[key]:.0e}" for key in ("loss", "absolute", "largest", "norm")]
