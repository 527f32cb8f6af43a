"""`hardnet index`: make, change and examine an index of photos."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hardnet.cli import index_build
from hardnet.cli.index_build import AsJson, Folder
from hardnet.cli.lines import say
from hardnet.cli.stage import Stage
from hardnet.errors import HardnetError

_REMOVE = """Remove photos, or all photos of a folder, from an index. The files stay.

The room is free after `hardnet index compact`.

[dim]Examples:[/]  hardnet index remove photos.index photos/blurred.jpg photos/old

           hardnet index remove photos.index --gone
"""
_COMPACT = """Join small segments and free the room of removed photos.

[dim]Example:[/]  hardnet index compact photos.index
"""
_INFO = """Show how many photos and features an index has, and how they were described.

[dim]Example:[/]  hardnet index info photos.index
"""
_VERIFY = """Read all files of an index and compare their checksums.

Exit code 0: all is as it was written. 1: something is damaged; it is named.

[dim]Example:[/]  hardnet index verify photos.index
"""


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    group = typer.Typer(
        help="Make, change and examine an index of photos.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    index_build.register(group)
    group.command("remove", help=_REMOVE)(_remove)
    group.command("compact", help=_COMPACT)(_compact)
    group.command("info", help=_INFO)(_info)
    group.command("verify", help=_VERIFY)(_verify)
    app.add_typer(group, name="index")


def _remove(
    folder: Folder,
    images: Annotated[
        list[Path] | None,
        typer.Argument(metavar="IMAGES...", help="Photos, and folders of photos."),
    ] = None,
    gone: Annotated[
        bool, typer.Option("--gone", help="Also the photos whose files are gone.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    from hardnet.retrieval.index import Index

    if not images and not gone:
        raise HardnetError("name the photos to remove, or use --gone")
    index = Index(folder)
    removed = index.remove(images) if images else 0
    if gone:
        removed += index.remove_gone()
    if as_json:
        print(json.dumps({"index": str(folder), "removed": removed, "images": len(index)}))
    else:
        say(f"{folder}: {removed} photos removed, {len(index)} are left")


def _compact(folder: Folder) -> None:
    from hardnet.retrieval.index import Index

    index = Index(folder)
    before = index.info()
    with Stage() as stage:
        index.compact(progress=stage)
    after = index.info()
    say(
        f"{folder}: {before['segments']} segments became {after['segments']}, "
        f"{_megabytes(before['bytes'])} became {_megabytes(after['bytes'])}",
    )


def _info(folder: Folder, as_json: AsJson = False) -> None:
    from hardnet.retrieval.index import Index

    found = Index(folder).info()
    if as_json:
        print(json.dumps(found))
        return
    settings = found["settings"]
    table = Table(show_header=False, box=None, padding=(0, 2))
    rows: dict[str, Any] = {
        "photos": found["images"],
        "features": found["features"],
        "size": f"{_megabytes(found['bytes'])} in {found['segments']} segments"
        + (f", {found['bytes_per_feature']} bytes per feature" if found["features"] else ""),
        "removed, not yet compacted": found["removed"],
        "words": f"{found['words']} (vocabulary {found['vocabulary']['fingerprint']}, "
        f"{_megabytes(found['vocabulary']['bytes'])})",
        "descriptor": settings["descriptor"],
        "detector": settings["detector"] + (", upright" if settings["upright"] else ""),
        "keypoints": f"{settings['keypoints']} per photo, of {settings['max_size']} pixels"
        if settings["max_size"]
        else f"{settings['keypoints']} per photo",
        "generation": found["generation"],
    }
    for name, value in rows.items():
        table.add_row(name, escape(str(value)))
    Console().print(table)


def _verify(folder: Folder, as_json: AsJson = False) -> None:
    from hardnet.retrieval.store.checks import verify

    with Stage() as stage:
        report = verify(folder, stage)
    if as_json:
        facts = {"index": str(folder), **vars(report), "problems": list(report.problems)}
        print(json.dumps(facts))
    for problem in report.problems:
        say(f"damaged: {problem}", error=True)
    if not as_json and report.ok:
        size = _megabytes(report.bytes)
        say(f"{folder}: {report.files} files, {size}, all as they were written")
    if not report.ok:
        raise typer.Exit(1)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
