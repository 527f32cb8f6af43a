"""`hardnet groups`: find photos that are copies of each other or show the same scene."""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import typer
from rich.markup import escape

from hardnet.cli.options import AsJson, KnownDescriptor, argument, option, reads_images
from hardnet.cli.output import Stage, console, refuse_inputs, say
from hardnet.errors import HardnetError, counted, printable
from hardnet.retrieval import photos as naming
from hardnet.retrieval.build import build
from hardnet.retrieval.groups import Groups, find_groups, write_page
from hardnet.retrieval.index import Index
from hardnet.retrieval.kinds import KINDS

SHOWN = 12
"""Photos of a group that the terminal lists."""


@reads_images
def groups(
    photos: Path = argument("Index, or folder of photos.", metavar="PHOTOS"),
    output: Path | None = option(None, "Write a report as one .html file.", "--output", "-o"),
    kind: str | None = option(
        None, "Show only these kinds, separated by commas: copy,crop,rotated,..."
    ),
    mirrored: bool = option(True, "Also find mirror images; describes every photo a second time."),
    fresh: bool = option(False, "Compare all photos again and store nothing."),
    descriptor: KnownDescriptor = None,
    listed: bool = option(False, "Print the removable copies, one path per line.", "--list"),
    as_csv: bool = option(False, "Print the pairs as comma-separated values.", "--csv"),
    as_json: AsJson = False,
) -> None:
    """Find copies, crops, rotated and mirrored photos, bursts, panoramas and scenes.

    PHOTOS is an index, or a folder of photos, which is indexed temporarily. Each photo is compared
    with all others, and matches are verified geometrically. Kinds, the closest first:

    copy: the same picture resized, recompressed, recoloured, or with a border or text. crop: one
    lies inside the other. rotated, mirrored: a rotated or mirrored copy. burst: one camera, small
    motion. panorama: a sweep wider than a photo. scene: the same place or object.

    Stop it at any time; the same command resumes. After `hardnet index add`, only new photos are
    compared. Nothing is ever deleted: --list prints all copies except the best one of each group
    (by pixels, sharpness and file size) for you to review.

    Exit code 0: done, whatever was found. 1: photos could not be read.

    Example: hardnet groups photos.index -o report.html
    """
    if as_json + as_csv + listed > 1:
        raise HardnetError("--json, --csv and --list print different things: choose one")
    kinds = KINDS if kind is None else tuple(word.strip() for word in kind.split(","))
    if unknown := [word for word in kinds if word not in KINDS]:
        raise HardnetError(f"no kind '{unknown[0]}': choose {', '.join(KINDS)}")
    refuse_inputs(output, [photos])
    if output is not None:
        if output.suffix.lower() not in (".html", ".htm"):
            raise HardnetError(f"{output}: the report is an HTML page, name it {output.stem}.html")
        if not output.parent.is_dir():
            raise HardnetError(f"cannot write {output}: there is no folder {output.parent}")
    resumes = naming.is_index(photos) and not fresh
    try:
        with Stage(resumes=resumes) as stage, _opened(photos, descriptor, stage) as (index, bad):
            found = find_groups(index, mirrored=mirrored, keep=not fresh, progress=stage)
            found = found.only(kinds)
            if output is not None:
                write_page(output, found, progress=stage)
    except KeyboardInterrupt:
        if not resumes:
            say(
                "stopped: nothing is kept; with an index, the same command would resume", error=True
            )
        raise
    if as_json:
        print(json.dumps(found.to_json()))
    elif as_csv:
        _print_csv(found)
    elif listed:
        for path in found.removable():
            print(printable(path))
    else:
        _show(found)
        if output is not None:
            say(f"page: {output}")
    for why in (*bad, *found.unread.values()):
        say(f"skipped: {why}", error=True)
    if bad or found.unread:
        raise typer.Exit(1)


@contextmanager
def _opened(
    photos: Path, descriptor: str | None, stage: Stage
) -> Iterator[tuple[Index, list[str]]]:
    naming.check_begun(photos)
    if naming.is_index(photos):
        yield Index(photos, descriptor=descriptor), []
        return
    if not photos.is_dir():
        raise HardnetError(f"{photos} is neither an index nor a folder of photos: check the path")
    with tempfile.TemporaryDirectory(prefix="hardnet-groups-") as work:
        folder = Path(work) / "index"
        settings = naming.IndexSettings(descriptor=descriptor or naming.DESCRIPTOR)
        report = build(folder, naming.named_photos([photos], folder), settings, progress=stage)
        yield Index(folder, descriptor=settings.descriptor), list(report.skipped.values())


def _print_csv(found: Groups) -> None:
    table = csv.writer(sys.stdout, lineterminator="\n")
    maps = [f"m{row}{column}" for row in (1, 2) for column in (1, 2, 3)]
    table.writerow(["a", "b", "kind", "inliers", "overlap_a", "overlap_b", *maps])
    for pair in found.pairs:
        value = pair.to_json()
        numbers = [number for row in value["transform"] for number in row]
        table.writerow([pair.a, pair.b, pair.kind, pair.inliers, *value["overlap"], *numbers])


def _show(found: Groups) -> None:
    # Not a rich table, which would wrap long paths that users may want to copy.
    out = partial(console().print, soft_wrap=True)
    for group in found.groups:
        out(f"[bold]{group.kind}[/], {counted(len(group.photos), 'photo')}")
        for path in group.photos[:SHOWN]:
            best = group.kind == "copy" and path == group.best
            line = f"  {'best' if best else '':<4}  {escape(naming.shown(path))}"
            out(f"[bold]{line}[/]" if best else line)
        if len(group.photos) > SHOWN:
            out(f"        and {len(group.photos) - SHOWN} more", style="dim")
    counts = {kind: sum(pair.kind == kind for pair in found.pairs) for kind in KINDS}
    parts = ", ".join(f"{kind} {count}" for kind, count in counts.items() if count) or "none"
    photos, groups = counted(found.photos, "photo"), counted(len(found.groups), "group")
    out(f"{photos}, {groups}; pairs: {parts}", style="dim")
    if removable := found.removable():
        say(f"{counted(len(removable), 'copy')} removable: --list prints them")
