"""`hardnet match`: match two photos, show what agrees."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hardnet.cli.feature_options import (
    DescriptorName,
    DetectorName,
    Keypoints,
    MaxSize,
    Upright,
)
from hardnet.cli.image_option import reads_images
from hardnet.cli.lines import say
from hardnet.cli.match_cameras import cameras, given_cameras
from hardnet.cli.match_output import to_json, to_table, why_not

_HELP = """Match two photos and verify the matches by the geometry between them.

Exit code 0: verified. 1: nothing could be verified, or an image cannot be read.

[dim]Examples:[/]  hardnet match left.jpg right.jpg -o matches.png

           hardnet match left.jpg right.jpg --guided --model essential --focal 1200 --json
"""

_FIND, _VERIFY = "How matches are found", "How matches are verified"


class Model(StrEnum):
    """Which geometry to verify the matches with."""

    auto = "auto"
    homography = "homography"
    fundamental = "fundamental"
    essential = "essential"


class Preset(StrEnum):
    """Where the options that are not given come from."""

    default = "default"
    mods = "mods"


class Neighbours(StrEnum):
    """How nearest descriptors are searched."""

    exact = "exact"
    flann = "flann"
    faiss = "faiss"


class Estimator(StrEnum):
    """Which robust estimator fits the geometry."""

    magsac = "magsac"
    degensac = "degensac"


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("match", help=_HELP)(reads_images(_match))


def _match(
    image_a: Annotated[Path, typer.Argument(metavar="A", help="First photo.")],
    image_b: Annotated[Path, typer.Argument(metavar="B", help="Second photo.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write a picture of the matches here.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    descriptor: DescriptorName = "hardnet",
    detector: DetectorName = "dog",
    keypoints: Keypoints = 2048,
    max_size: MaxSize = 1600,
    upright: Upright = False,
    strategy: Annotated[
        Preset,
        typer.Option(
            help="What is not given below: our default, or the matcher of MODS.",
            rich_help_panel=_FIND,
        ),
    ] = Preset.default,
    ratio: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=1, help="Ratio test: smaller is stricter.", rich_help_panel=_FIND
        ),
    ] = None,
    mutual: Annotated[
        bool | None,
        typer.Option(
            "--mutual/--no-mutual", help="Nearest in both directions.", rich_help_panel=_FIND
        ),
    ] = None,
    symmetric: Annotated[
        bool | None,
        typer.Option("--symmetric", help="Ratio test in both directions.", rich_help_panel=_FIND),
    ] = None,
    fginn: Annotated[
        float | None,
        typer.Option(
            metavar="PIXELS",
            help="The ratio test's second neighbour is farther than this from the first; 10 is "
            "usual.",
            rich_help_panel=_FIND,
        ),
    ] = None,
    duplicates: Annotated[
        float | None,
        typer.Option(
            metavar="PIXELS",
            help="Of matches that agree to this in both photos, keep the best.",
            rich_help_panel=_FIND,
        ),
    ] = None,
    neighbours: Annotated[
        Neighbours | None,
        typer.Option(help="exact; the others miss some.", rich_help_panel=_FIND),
    ] = None,
    model: Annotated[
        Model, typer.Option(help="Geometry of the scene.", rich_help_panel=_VERIFY)
    ] = Model.auto,
    camera: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="For essential: nine numbers, fx 0 cx 0 fy cy 0 0 1; one file, or one per photo.",
            rich_help_panel=_VERIFY,
        ),
    ] = None,
    focal: Annotated[
        float | None,
        typer.Option(
            metavar="PIXELS",
            help="For essential: focal length of both, in pixels of the originals.",
            rich_help_panel=_VERIFY,
        ),
    ] = None,
    estimator: Annotated[
        Estimator | None, typer.Option(help="Robust estimator.", rich_help_panel=_VERIFY)
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            metavar="PIXELS",
            help="How far an inlier may be off, after --max-size.",
            rich_help_panel=_VERIFY,
        ),
    ] = None,
    frame_check: Annotated[
        bool | None,
        typer.Option(
            "--frame-check",
            help="Size and orientation of keypoints must agree, too.",
            rich_help_panel=_VERIFY,
        ),
    ] = None,
    guided: Annotated[
        bool | None,
        typer.Option(
            "--guided", help="Look again along the geometry found.", rich_help_panel=_VERIFY
        ),
    ] = None,
) -> None:
    # Imported here so that `hardnet --help` does not wait for OpenCV.
    from hardnet.features import extract_pair
    from hardnet.matching.matches import MODS, Strategy, match

    given: dict[str, Any] = {
        "ratio": ratio,
        "mutual": mutual,
        "symmetric": symmetric,
        "fginn": fginn,
        "duplicates": duplicates,
        "neighbours": neighbours and neighbours.value,
        "estimator": estimator and estimator.value,
        "threshold": threshold,
        "frame_check": frame_check,
        "guided": guided,
    }
    base = MODS if strategy is Preset.mods else Strategy()
    chosen = replace(base, **{name: value for name, value in given.items() if value is not None})
    essential = model is Model.essential
    intrinsics = given_cameras(essential, camera or [], focal)
    with Console(stderr=True).status("Matching..."):
        a, b = extract_pair(
            image_a, image_b, detector, descriptor, keypoints, max_size or None, upright=upright
        )
        known = cameras(a, b, intrinsics, focal) if essential else None
        result = match(a, b, model.value, strategy=chosen, cameras=known)
        verified = result.geometry.kind is not None
        if output is not None and verified:
            result.draw(output)
    if as_json:
        print(json.dumps(to_json(result)))
    else:
        Console().print(to_table(result))
    if not verified:
        say(f"no match: {why_not(result)}", error=True)
        raise typer.Exit(1)
    if output is not None and not as_json:
        say(f"picture: {output}")
