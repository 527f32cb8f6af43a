"""`hardnet match`: match two photos and verify the matches."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import typer
from numpy.typing import NDArray

from hardnet.cli.options import AsJson, Describing, argument, given, option, reads_images
from hardnet.cli.output import console, refuse_inputs, say, show
from hardnet.errors import HardnetError, counted
from hardnet.features import DescribeSettings, Features, extract_together
from hardnet.image_files import require_regular_file
from hardnet.images import check_picture_name
from hardnet.matching import matches
from hardnet.matching.geometry import check_cameras
from hardnet.matching.matches import Matches

Intrinsics = NDArray[np.float64]
FINDING, VERIFYING = "How matches are found", "How matches are verified"
find = partial(option, None, rich_help_panel=FINDING)
verify = partial(option, None, rich_help_panel=VERIFYING)
PIXELS = "PIXELS"


@reads_images
def match(
    how: Describing,
    image_a: Path = argument("First photo.", metavar="A"),
    image_b: Path = argument("Second photo.", metavar="B"),
    output: Path | None = option(None, "Write a picture of the matches here.", "--output", "-o"),
    as_json: AsJson = False,
    orientation: Literal["auto", "upright", "dominant"] = option(
        "auto",
        "Upright frames, or frames rotated to their dominant orientation; auto: upright first, "
        "then dominant if that verifies more matches.",
    ),
    strategy: Literal["default", "mods"] = option(
        "default",
        "Preset for the options below: our default, or the matcher of MODS.",
        rich_help_panel=FINDING,
    ),
    ratio: float | None = find("Ratio test: smaller is stricter.", min=0.01, max=1),
    mutual: bool | None = find("Keep only mutual nearest neighbours.", "--mutual/--no-mutual"),
    symmetric: bool | None = find("Apply the ratio test in both directions.", "--symmetric"),
    fginn: float | None = find(
        "Ratio test: ignore second neighbours closer than this to the first; 10 is usual.",
        metavar=PIXELS,
    ),
    duplicates: float | None = find(
        "Keep only the best of matches that are this close in both photos.", metavar=PIXELS
    ),
    neighbours: Literal["exact", "flann"] | None = find("Exact, or flann, which misses some."),
    model: Literal["auto", "homography", "fundamental", "essential"] = option(
        "auto", "Geometric model.", rich_help_panel=VERIFYING
    ),
    camera: list[Path] | None = verify(
        "For essential: nine numbers, fx 0 cx 0 fy cy 0 0 1; one file, or one per photo.",
        metavar="FILE",
    ),
    focal: float | None = verify("For essential: focal length in original pixels.", metavar=PIXELS),
    estimator: Literal["magsac", "degensac"] | None = verify("Robust estimator."),
    threshold: float | None = verify(
        "Largest error of an inlier, in pixels after --max-size.", metavar=PIXELS
    ),
    frame_check: bool | None = verify(
        "Also require size and orientation of keypoints to agree.", "--frame-check"
    ),
    guided: bool | None = verify("Search for more matches that fit the geometry.", "--guided"),
) -> None:
    """Match two photos and verify the matches geometrically.

    Exit code 0: verified. 1: nothing could be verified, or an image cannot be read.

    Example: hardnet match left.jpg right.jpg -o matches.png
    """
    refuse_inputs(output, [image_a, image_b, *(camera or [])])
    asked = given(matches.Strategy, locals())
    if output is not None:
        check_picture_name(output)
    chosen = replace(matches.MODS if strategy == "mods" else matches.Strategy(), **asked)
    given_cameras = _given_cameras(model == "essential", camera or [], focal)
    wanted = DescribeSettings(**how.asked(orientation=orientation))
    with console(stderr=True).status("Matching..."):
        a, b = extract_together([image_a, image_b], wanted)
        cameras = given_cameras and (given_cameras[0], given_cameras[-1])
        if focal is not None:
            cameras = _middle(a, focal), _middle(b, focal)
        result = matches.match(a, b, model, strategy=chosen, cameras=cameras or None)
        verified = result.geometry.kind is not None
        if output is not None and verified:
            result.draw(output)
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        _show(result)
    if not verified:
        why = f"{len(result)} tentative matches between {a.path} and {b.path}, but no geometry fits"
        why += " them; try more --keypoints or a larger --max-size"
        if empty := [str(photo.path) for photo in (a, b) if not len(photo)]:
            why = f"no keypoints in {' and '.join(empty)}; do they show only flat surfaces?"
        say(f"no match: {why}", error=True)
        raise typer.Exit(1)
    if output is not None and not as_json:
        say(f"picture: {output}")


def _given_cameras(essential: bool, files: list[Path], focal: float | None) -> list[Intrinsics]:
    if files and focal is not None:
        raise HardnetError("--camera and --focal exclude each other: give one of them")
    if essential and not files and focal is None:
        raise HardnetError("--model essential needs --camera FILE or --focal PIXELS")
    if not essential and (files or focal is not None):
        raise HardnetError("--camera and --focal need --model essential: add it, or omit them")
    if focal is not None and not 0 < focal < float("inf"):
        raise HardnetError(f"--focal is {focal}: give a focal length in pixels, above 0")
    if len(files) > 2:
        raise HardnetError(f"--camera is given {len(files)} times: give one file, or one per photo")
    return [_read_camera(path) for path in files]


def _read_camera(path: Path) -> Intrinsics:
    """Nine numbers, row by row: fx s cx, 0 fy cy, 0 0 1; commas count as spaces."""
    try:
        require_regular_file(path)
        words = path.read_text(errors="replace").replace(",", " ").split()
    except OSError as error:
        raise HardnetError(f"cannot read --camera {path}: {error.strerror}") from None
    try:
        camera = np.array([float(word) for word in words]).reshape(3, 3)
        return check_cameras((camera, camera))[0]
    except (ValueError, HardnetError):
        raise HardnetError(
            f"--camera {path} is not a camera: write nine numbers, fx 0 cx 0 fy cy 0 0 1"
        ) from None


def _middle(features: Features, focal: float) -> Intrinsics:
    width, height = features.image_size
    return np.array([[focal, 0, (width - 1) / 2], [0, focal, (height - 1) / 2], [0, 0, 1]])


def _show(result: Matches) -> None:
    def photo(one: Features) -> tuple[str, str]:
        size = "{} x {}".format(*one.image_size)
        return Path(one.path or "").name, f"{size}, {counted(len(one), 'keypoint')}"

    mirrored = ", mirrored: one photo is a mirror image of the other" if result.mirrored else ""
    rows = [
        photo(result.a),
        photo(result.b),
        ("descriptor", result.a.descriptor),
        ("orientation", result.a.orientation),
        ("matches", len(result)),
        ("inliers", result.inliers.sum()),
        ("model", f"{result.geometry.kind or 'none'}{mirrored}"),
        ("seconds", ", ".join(f"{k} {v:.2f}" for k, v in result.all_seconds.items())),
    ]
    show(rows, bold=["inliers"])
