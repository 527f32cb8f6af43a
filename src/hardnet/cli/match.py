"""`hardnet match`: match two photos, show what agrees."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hardnet.descriptors import names

if TYPE_CHECKING:
    from hardnet.matching.matches import Matches

_HELP = """Match two photos and verify the matches by a homography or a fundamental matrix.

Exit code 0: verified. 1: nothing could be verified, or an image cannot be read.

[dim]Example:[/]  hardnet match left.jpg right.jpg -o matches.png
"""


class Model(StrEnum):
    """Which geometry to verify the matches with."""

    auto = "auto"
    homography = "homography"
    fundamental = "fundamental"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("match", help=_HELP)(_match)


def _match(
    image_a: Annotated[Path, typer.Argument(metavar="A", help="First photo.")],
    image_b: Annotated[Path, typer.Argument(metavar="B", help="Second photo.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a picture of the matches here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    descriptor: Annotated[
        str, typer.Option(help=f"{', '.join(names())}, a weights file, or MODULE:FUNCTION.")
    ] = "hardnet",
    detector: Annotated[str, typer.Option(help="dog.")] = "dog",
    keypoints: Annotated[int, typer.Option(min=1, help="Keep the strongest per photo.")] = 2048,
    max_size: Annotated[
        int, typer.Option(min=0, help="Shrink longer sides to this many pixels; 0: never.")
    ] = 1600,
    model: Annotated[Model, typer.Option(help="Geometry of the scene.")] = Model.auto,
    ratio: Annotated[
        float | None, typer.Option(min=0.01, max=1, help="Ratio test: smaller is stricter.")
    ] = None,
) -> None:
    # Imported here so that `hardnet --help` does not wait for OpenCV.
    from hardnet.descriptors import load
    from hardnet.features import extract
    from hardnet.matching.matches import match
    from hardnet.matching.neighbours import RATIO

    describe = load(descriptor)
    with Console(stderr=True).status("Matching..."):
        a, b = (
            extract(path, detector, describe, keypoints, max_size or None)
            for path in (image_a, image_b)
        )
        result = match(a, b, model.value, RATIO if ratio is None else ratio)
        verified = result.geometry.kind is not None
        if output is not None and verified:
            result.draw(output)
    if as_json:
        print(json.dumps(_to_json(result)))
    else:
        Console().print(_to_table(result))
    if not verified:
        line = f"no match: {_why_not(result)}"
        Console(stderr=True).print(line, soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(1)
    if output is not None and not as_json:
        Console().print(f"picture: {output}", highlight=False, markup=False, soft_wrap=True)


def _seconds(result: Matches) -> dict[str, float]:
    """Time per stage; what is done to both images is added up."""
    stages = result.a.seconds | {k: result.a.seconds[k] + v for k, v in result.b.seconds.items()}
    return {name: round(value, 4) for name, value in (stages | result.seconds).items()}


def _to_json(result: Matches) -> dict[str, Any]:
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


def _to_table(result: Matches) -> Table:
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


def _why_not(result: Matches) -> str:
    """What a user can do about a pair that does not match."""
    empty = [str(features.path) for features in (result.a, result.b) if not len(features)]
    if empty:
        return f"no keypoints in {' and '.join(empty)}; is there anything but a flat surface?"
    return (
        f"{len(result)} tentative matches between {result.a.path} and {result.b.path}, but no "
        "geometry agrees; try more --keypoints or a larger --max-size"
    )
