"""`hardnet data build`: make patch sets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def register(data: typer.Typer) -> None:
    """Add the command group to ``hardnet data``."""
    build = typer.Typer(help="Build a patch set.", no_args_is_help=True)
    build.command("photos")(photos)
    data.add_typer(build, name="build")


def photos(
    folder: Annotated[Path, typer.Argument(help="Photos; searched recursively.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The set to write.")],
    points: Annotated[int, typer.Option(help="Most points from one photo.")] = 500,
    views: Annotated[int, typer.Option(help="Random renderings of each photo.")] = 6,
    max_size: Annotated[int, typer.Option(help="Shrink photos to this long side first.")] = 900,
    pairs: Annotated[int, typer.Option(help="Rows of the test pair file.")] = 100_000,
    seed: Annotated[int, typer.Option(help="Same seed and photos, same bytes.")] = 0,
    workers: Annotated[int, typer.Option(help="Processes; 0 for all cores.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Make training patches from any folder of photos, in the Brown format.

    Example: hardnet data build photos ~/Pictures -o sets/mine
    """
    from hardnet.patchsets.build.from_photos import PhotoSettings, build_from_photos

    settings = PhotoSettings(points=points, views=views, max_size=max_size, pairs=pairs, seed=seed)
    console = Console(stderr=True)
    columns = (TextColumn("photos"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("photos", total=None)

        def advance(done: int, total: int, skipped: str | None) -> None:
            bar.update(task, completed=done, total=total)
            if skipped:
                bar.console.print(f"[yellow]skipped[/] {skipped}: broken or too small")

        report = build_from_photos(
            folder, output, settings, workers or os.cpu_count() or 1, advance
        )
    counts = {
        "set": str(output),
        "photos": report.photos,
        "skipped": list(report.skipped),
        "points": report.points,
        "patches": report.patches,
    }
    if json_:
        print(json.dumps(counts))
    else:
        console.print(
            f"{output}: {report.patches} patches of {report.points} points from {report.photos} "
            f"photos; {len(report.skipped)} skipped"
        )
