"""`hardnet bench groups`: how well copies, crops and scenes are found."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from hardnet.cli.bench_output import Json, Output, check_output, finish
from hardnet.cli.options import Keypoints, argument, option, reads_images
from hardnet.cli.output import Stage


@reads_images
def groups(
    photos: list[Path] = argument("Folders: copies are made of some.", metavar="PHOTOS..."),
    scenes: list[Path] | None = option(None, "A folder of photos of one scene; may be repeated."),
    objects: list[Path] | None = option(None, "A folder like UKBench: four photos of each object."),
    sources: int = option(40, "Photos that copies are made of.", min=1),
    size: int = option(640, "Longer side of all photos.", min=64),
    keypoints: Keypoints = 500,
    descriptor: str = option("hardnet", "Of the index."),
    words: int = option(2048, "Of the index.", min=1),
    most: int = option(400, "Photos of each folder of --scenes and --objects.", min=1),
    pages: int = option(20, "Pages of text, and patterns.", min=0),
    distance: int = option(8, "Bits between hashes of copies.", min=0),
    seed: int = option(0, "Of the edits.", min=0),
    work: Path | None = option(
        None, "Keep the copies and their index here: the same command continues."
    ),
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


COMMANDS = (groups,)
