"""`hardnet match`: match two photos, show what agrees."""

from __future__ import annotations

import json
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from hardnet.cli.options import (
    AsJson,
    DescriptorName,
    DetectorName,
    Keypoints,
    MaxSize,
    Upright,
    reads_images,
)
from hardnet.cli.output import console, say
from hardnet.errors import HardnetError, counted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hardnet.features import Features

    Intrinsics = NDArray[np.float64]
    Cameras = tuple[Intrinsics, Intrinsics]
    from hardnet.matching.matches import Matches


_HELP = """Match two photos and verify the matches by the geometry between them.

Exit code 0: verified. 1: nothing could be verified, or an image cannot be read.

Examples:  hardnet match left.jpg right.jpg -o matches.png

           hardnet match left.jpg right.jpg --guided --model essential --focal 1200 --json
"""

_FIND, _VERIFY = "How matches are found", "How matches are verified"


class Model(StrEnum):
    """Which geometry to verify the matches with."""

    auto = "auto"
    homography = "homography"
    fundamental = "fundamental"
    essential = "essential"


class Orientation(StrEnum):
    """Which way up patches are."""

    auto = "auto"
    upright = "upright"
    dominant = "dominant"


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
    as_json: AsJson = False,
    descriptor: DescriptorName = "hardnet",
    detector: DetectorName = "dog",
    keypoints: Keypoints = 2048,
    max_size: MaxSize = 1600,
    orientation: Annotated[
        Orientation,
        typer.Option(
            help="Turn no frame, or each by what it sees; auto: upright first, and turned frames "
            "where these verify more."
        ),
    ] = Orientation.auto,
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
    from hardnet.images import check_picture_name
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
    if output is not None:
        check_picture_name(output)
    base = MODS if strategy is Preset.mods else Strategy()
    chosen = replace(base, **{name: value for name, value in given.items() if value is not None})
    essential = model is Model.essential
    intrinsics = given_cameras(essential, camera or [], focal)
    with console(stderr=True).status("Matching..."):
        a, b = extract_pair(
            image_a,
            image_b,
            detector,
            descriptor,
            keypoints,
            max_size or None,
            orientation=orientation.value,
            upright=upright,
        )
        known = cameras(a, b, intrinsics, focal) if essential else None
        result = match(a, b, model.value, strategy=chosen, cameras=known)
        verified = result.geometry.kind is not None
        if output is not None and verified:
            result.draw(output)
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        console().print(to_table(result))
    if not verified:
        say(f"no match: {why_not(result)}", error=True)
        raise typer.Exit(1)
    if output is not None and not as_json:
        say(f"picture: {output}")


def given_cameras(essential: bool, files: list[Path], focal: float | None) -> list[Intrinsics]:
    """What --camera gives; nothing for --focal, which needs the photos to know their middle.

    Args:
        essential: an essential matrix is asked for.
        files: one file for both photos, or one for each.
        focal: focal length in pixels of the original.

    Raises:
        HardnetError: these options do not go together, or are no cameras.
    """
    if files and focal is not None:
        raise HardnetError("--camera and --focal exclude each other: give one of them")
    if essential and not files and focal is None:
        raise HardnetError("--model essential needs --camera FILE or --focal PIXELS")
    if not essential and (files or focal is not None):
        raise HardnetError("--camera and --focal are for --model essential: add it, or leave them")
    if focal is not None and not 0 < focal < float("inf"):
        raise HardnetError(f"--focal is {focal}: give the focal length in pixels, above 0")
    if len(files) > 2:
        raise HardnetError(f"--camera is given {len(files)} times: give one file, or one per photo")
    return [read_camera(path) for path in files]


def cameras(a: Features, b: Features, given: list[Intrinsics], focal: float | None) -> Cameras:
    """The intrinsics of both photos: those given, or by a focal length and the middle."""
    if focal is not None:
        return _middle(a, focal), _middle(b, focal)
    return given[0], given[-1]


def read_camera(path: Path) -> Intrinsics:
    """Nine numbers, row by row: fx s cx, 0 fy cy, 0 0 1; commas are spaces."""
    import numpy as np

    from hardnet.matching.geometry import check_cameras

    try:
        words = path.read_text().replace(",", " ").split()
        camera = np.array([float(word) for word in words]).reshape(3, 3)
        return check_cameras((camera, camera))[0]
    except OSError as error:
        raise HardnetError(f"cannot read --camera {path}: {error.strerror}") from None
    except (ValueError, HardnetError):
        raise HardnetError(
            f"--camera {path} is no camera: write nine numbers, fx 0 cx 0 fy cy 0 0 1"
        ) from None


def _middle(features: Features, focal: float) -> Intrinsics:
    import numpy as np

    width, height = features.image_size
    return np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]])


def to_table(result: Matches) -> Table:
    """The same for people, without the coordinates."""
    table = Table(show_header=False, box=None, padding=(0, 2))
    for features in (result.a, result.b):
        width, height = features.image_size
        name = escape(Path(features.path or "").name)
        table.add_row(name, f"{width} x {height}, {counted(len(features), 'keypoint')}")
    table.add_row("descriptor", result.a.descriptor)
    table.add_row("orientation", result.a.orientation)
    table.add_row("matches", str(len(result)))
    table.add_row("inliers", f"[bold]{int(result.inliers.sum())}[/]")
    table.add_row("model", result.geometry.kind or "none")
    table.add_row("seconds", ", ".join(f"{k} {v:.2f}" for k, v in result.all_seconds.items()))
    return table


def why_not(result: Matches) -> str:
    """What a user can do about a pair that does not match."""
    empty = [str(features.path) for features in (result.a, result.b) if not len(features)]
    if empty:
        return f"no keypoints in {' and '.join(empty)}; is there anything but a flat surface?"
    return (
        f"{len(result)} tentative matches between {result.a.path} and {result.b.path}, but no "
        "geometry agrees; try more --keypoints or a larger --max-size"
    )
