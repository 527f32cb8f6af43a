"""`hardnet bench groups`: how well copies, crops and scenes are found."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hardnet.cli.bench_output import Json, Output, check_output, finish
from hardnet.cli.options import Keypoints, reads_images
from hardnet.cli.output import Stage


def register(bench: typer.Typer) -> None:
    """Add the command to ``bench``."""
    bench.command("groups")(reads_images(groups))


def groups(
    photos: Annotated[
        list[Path], typer.Argument(metavar="PHOTOS...", help="Folders: copies are made of some.")
    ],
    scenes: Annotated[
        list[Path] | None, typer.Option(help="A folder of photos of one scene; may be repeated.")
    ] = None,
    objects: Annotated[
        list[Path] | None, typer.Option(help="A folder like UKBench: four photos of each object.")
    ] = None,
    sources: Annotated[int, typer.Option(min=1, help="Photos that copies are made of.")] = 40,
    size: Annotated[int, typer.Option(min=64, help="Longer side of all photos.")] = 640,
    keypoints: Keypoints = 500,
    descriptor: Annotated[str, typer.Option(help="Of the index.")] = "hardnet",
    words: Annotated[int, typer.Option(min=1, help="Of the index.")] = 2048,
    most: Annotated[
        int, typer.Option(min=1, help="Photos of each folder of --scenes and --objects.")
    ] = 400,
    pages: Annotated[int, typer.Option(min=0, help="Pages of text, and patterns.")] = 20,
    distance: Annotated[int, typer.Option(min=0, help="Bits between hashes of copies.")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="Of the edits.")] = 0,
    work: Annotated[
        Path | None,
        typer.Option(help="Keep the copies and their index here: the same command continues."),
    ] = None,
    output: Output = None,
    json_: Json = False,
) -> None:
    """Copies, crops and scenes: recall per edit and what is joined wrongly, beside hashes.

    Copies are made with known crops, turns, mirroring, scales, compression, text, colours and
    borders; other photos, views of one scene, pages of text and patterns must not be joined.

    Example: hardnet bench groups photos/val --objects data/ukbench -o groups.json
    """
    from hardnet.bench.groups import RULES, GroupSettings, compare

    check_output(output)
    settings = GroupSettings(
        sources, size, keypoints, descriptor, words, most, pages, distance, seed
    )
    with Stage(resumes=work is not None) as stage, _workplace(work) as place:
        found = compare(photos, scenes or [], objects or [], settings, place, stage)
    body = {"kind": "groups", "rules": RULES, **found}
    finish(body, asdict(settings), [*photos, *(scenes or []), *(objects or [])], output, json_)


@contextmanager
def _workplace(work: Path | None) -> Iterator[Path]:
    if work is not None:
        yield work
        return
    with tempfile.TemporaryDirectory(prefix="hardnet-groups-") as name:
        yield Path(name)
