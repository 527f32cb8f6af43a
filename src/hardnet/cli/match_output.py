"""What `hardnet match` prints, for machines and for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from hardnet.matching.matches import Matches


def _seconds(result: Matches) -> dict[str, float]:
    """Time per stage; what is done to both images is added up."""
    stages = result.a.seconds | {k: result.a.seconds[k] + v for k, v in result.b.seconds.items()}
    return {name: round(value, 4) for name, value in (stages | result.seconds).items()}


def to_json(result: Matches) -> dict[str, Any]:
    """The object that --json prints; positions in pixels of the upright original images."""
    matrix = result.geometry.model
    rows = zip(result.xy_a.tolist(), result.xy_b.tolist(), strict=True)
    return {
        "images": [
            {"path": f.path, "size": list(f.image_size), "keypoints": len(f)}
            for f in (result.a, result.b)
        ],
        "geometry": {
            "kind": result.geometry.kind,
            "model": None if matrix is None else matrix.tolist(),
        },
        "matches": [[round(v, 3) for v in (*a, *b)] for a, b in rows],
        "inliers": result.inliers.tolist(),
        "seconds": _seconds(result),
    }


def to_table(result: Matches) -> Table:
    """The same for people, without the coordinates."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    for features in (result.a, result.b):
        width, height = features.image_size
        name = escape(Path(features.path or "").name)
        table.add_row(name, f"{width} x {height}, {len(features)} keypoints")
    table.add_row("descriptor", result.a.descriptor)
    table.add_row("matches", str(len(result)))
    table.add_row("inliers", f"[bold]{int(result.inliers.sum())}[/]")
    table.add_row("model", result.geometry.kind or "none")
    table.add_row("seconds", ", ".join(f"{k} {v:.2f}" for k, v in _seconds(result).items()))
    return table


def why_not(result: Matches) -> str:
    """What a user can do about a pair that does not match."""
    empty = [str(features.path) for features in (result.a, result.b) if not len(features)]
    if empty:
        return f"no keypoints in {' and '.join(empty)}; is there anything but a flat surface?"
    return (
        f"{len(result)} tentative matches between {result.a.path} and {result.b.path}, but no "
        "geometry agrees; try more --keypoints or a larger --max-size"
    )
