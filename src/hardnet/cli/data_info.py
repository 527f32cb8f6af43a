"""`hardnet data info SET`: what a patch set holds, and how its patches look."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hardnet.cli.image_option import reads_images

if TYPE_CHECKING:
    from hardnet.patchsets.description import Contents, Description


def register(data: typer.Typer) -> None:
    """Add the command to ``hardnet data``."""
    data.command("info")(reads_images(info))


def info(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="SET",
            help="Folder in the Brown, HPatches or W1BS format, or one HPatches strip (png).",
        ),
    ],
    sheet: Annotated[
        Path | None, typer.Option(help="Picture of matching patches to write, a row per 3D point.")
    ] = None,
    points: Annotated[int, typer.Option(min=1, help="Rows of the picture.")] = 16,
    seed: Annotated[int, typer.Option(help="Of the points drawn and of the sample.")] = 0,
    json_: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
) -> None:
    """Describe a patch set: counts, pairs, splits, contrast, fingerprint.

    Example: hardnet data info sets/mine --sheet matching.png
    """
    from hardnet.patchsets.description import describe

    with Console(stderr=True).status("Reading..."):
        found = describe(path, seed)
        if sheet:
            _draw(path, sheet, points, seed)
    if json_:
        fields = asdict(found)
        print(json.dumps({**fields.pop("contents"), **fields}))
        return
    console = Console()
    _print(console, found)
    if sheet:
        console.print(f"picture: {sheet}", highlight=False, markup=False, soft_wrap=True)


def _draw(path: Path, sheet: Path, points: int, seed: int) -> None:
    from hardnet.images import write_image
    from hardnet.patchsets.catalogue import open_set
    from hardnet.patchsets.contact_sheet import draw_rows, matching_rows, strip_rows
    from hardnet.patchsets.hpatches import read_strip

    if path.is_file():
        picture = draw_rows(strip_rows(read_strip(path), points, seed))
    else:
        picture = draw_rows(*matching_rows(open_set(path), points, seed))
    write_image(sheet, picture)


def _print(console: Console, found: Description) -> None:
    contents, grey = found.contents, found.grey
    table = Table(show_header=False, box=None, padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    least, median, most = contents.per_point
    rows = {
        "set": f"{contents.name} ({contents.kind})",
        "patches": f"{contents.patches} of {contents.points} points",
        "patches per point": (
            f"{least} to {most}, median {median:g}" if least < most else str(most)
        ),
        "side": " or ".join(map(str, contents.sides)) + " pixels",
        "pairs": f"{contents.positive_pairs} matching, {contents.negative_pairs} not",
        "grey values": f"mean {grey.mean:.1f}, std {grey.std:.1f} ({grey.patches} patches)",
        "low contrast": f"{100 * grey.low_contrast:.1f}% of these patches have std < 10",
        "on disk": _size(found.bytes),
        "decoded": ", ".join(
            f"{name.split('.')[0]} {_size(size)}" for name, size in found.cache.items()
        )
        or "not yet",
        "fingerprint": found.fingerprint[:16],
    }
    if contents.kind != "brown":
        del rows["pairs"]
    if contents.kind not in ("brown", "hpatches"):
        del rows["decoded"]
    for name, value in rows.items():
        table.add_row(name, escape(value))
    console.print(table, highlight=False)
    for part in _part_tables(contents):
        console.print(part, highlight=False)


def _part_tables(contents: Contents) -> list[Table]:
    """Tables of the splits and sequences, or of the image pairs and their subsets."""
    tables = []
    if contents.splits:
        tables.append(_table("split", "test", "train", "not on disk"))
        for split in contents.splits:
            row = (split.name, split.test, split.train, split.missing)
            tables[-1].add_row(*map(str, row))
    if contents.parts:
        hpatches = contents.kind == "hpatches"
        names = ("sequence", "group") if hpatches else ("image pair", "subset")
        tables.append(_table(names[1], f"{names[0]}s", "points", "patches"))
        for group in dict.fromkeys(part.group for part in contents.parts):
            parts = [part for part in contents.parts if part.group == group]
            counts = (len(parts), sum(p.points for p in parts), sum(p.patches for p in parts))
            tables[-1].add_row(escape(group), *map(str, counts))
        tables.append(_table(names[0], names[1], "points", "patches"))
        for part in contents.parts:
            points, patches = str(part.points), str(part.patches)
            tables[-1].add_row(escape(part.name), escape(part.group), points, patches)
    return tables


def _table(*columns: str) -> Table:
    table = Table()
    for k, column in enumerate(columns):
        words = k == 0 or column in ("group", "subset")
        table.add_column(column, justify="left" if words else "right", no_wrap=True)
    return table


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
