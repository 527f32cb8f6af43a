"""`hardnet data build`: make patch sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape

from hardnet.cli.options import reads_images
from hardnet.cli.output import Stage
from hardnet.errors import HardnetError, counted

if TYPE_CHECKING:
    from hardnet.patchsets.build.colmap import ColmapReport
    from hardnet.patchsets.build.detected_tracks import DetectedSettings
    from hardnet.patchsets.build.photos import BuildReport


Output = Annotated[Path, typer.Option("--output", "-o", help="The set to write.")]
Pairs = Annotated[int, typer.Option(min=2, help="Rows of the test pair file.")]
Seed = Annotated[int, typer.Option(help="Same seed and photos, same bytes.")]
Window = Annotated[
    float | None,
    typer.Option(min=1, show_default="12", help="Side of the window in sigmas of the keypoint."),
]
Workers = Annotated[int, typer.Option(min=0, help="Processes; 0 for all cores.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the counts as JSON.")]
MinTrack = Annotated[int, typer.Option(min=2, help="Photos that must see a point.")]
MaxTrack = Annotated[int, typer.Option(min=2, help="Most patches of one point.")]
MaxError = Annotated[float, typer.Option(help="Pixels a photo may miss the projected point by.")]
Noise = Annotated[
    float, typer.Option(min=0, help="Disturb the frames by this multiple of HPatches' easy noise.")
]
Upright = Annotated[
    bool, typer.Option("--upright", help="Patch-up is image-up; turned photos are left out.")
]


Detections = Annotated[
    bool,
    typer.Option(
        "--detections",
        help="Detect frames in every photo (DoG, Hessian-Affine) and pair them by the 3D points "
        "around them: also where SIFT has no match.",
    ),
]
Carried = Annotated[
    float,
    typer.Option(min=0, max=1, help="Share of the undetected frames that is carried over."),
]


class Layout(StrEnum):
    """How a set of sequences is laid out on disk."""

    hpatches = "hpatches"
    w1bs = "w1bs"


def register(data: typer.Typer) -> None:
    """Add the command group to ``hardnet data``."""
    build = typer.Typer(help="Build a patch set.", no_args_is_help=True)
    for command in (photos, detections, colmap, sfm, sequences):
        build.command(command.__name__)(reads_images(command))
    data.add_typer(build, name="build")


def photos(
    folder: Annotated[Path, typer.Argument(help="Photos; searched recursively.")],
    output: Output,
    points: Annotated[int, typer.Option(help="Most points from one photo.")] = 500,
    views: Annotated[int, typer.Option(help="Random renderings of each photo.")] = 6,
    max_size: Annotated[int, typer.Option(help="Shrink photos to this long side first.")] = 900,
    jitter: Annotated[
        float,
        typer.Option(
            min=0,
            help="Disturb the frames by this multiple of HPatches' easy noise; above 1, each "
            "frame by a random multiple from 0 to this.",
        ),
    ] = 1.0,
    wear: Annotated[
        float,
        typer.Option(min=0.5, max=3, help="Strength of changed light, blur, noise and JPEG."),
    ] = 1.0,
    pairs: Pairs = 100_000,
    seed: Seed = 0,
    workers: Workers = 0,
    json_: AsJson = False,
) -> None:
    """Make training patches from any folder of photos, in the Brown format.

    Example: hardnet data build photos ~/Pictures -o sets/mine
    """
    from hardnet.patchsets.build.photos import PhotoSettings, build_from_photos

    settings = PhotoSettings(
        points, views, max_size, jitter=jitter, wear=wear, pairs=pairs, seed=seed
    )
    console = Console(stderr=True, emoji=False)
    with Stage(console) as advance:
        step = _photo_step(console, advance)
        report = build_from_photos(folder, output, settings, _processes(workers), step)
    _say_photos(console, json_, output, report)


def detections(
    folders: Annotated[
        list[Path], typer.Argument(metavar="PHOTOS...", help="Folders; searched recursively.")
    ],
    output: Output,
    points: Annotated[int, typer.Option(help="Most points of a kind from one photo.")] = 150,
    views: Annotated[int, typer.Option(help="Random renderings of each photo.")] = 4,
    max_size: Annotated[int, typer.Option(help="Shrink photos to this long side first.")] = 720,
    keypoints: Annotated[int, typer.Option(help="Keypoints looked for in a view.")] = 1000,
    light: Annotated[
        float, typer.Option(min=0, max=2, help="Strength of the changes of light.")
    ] = 1.0,
    still: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of the views in which only the light changes."),
    ] = 0.25,
    turned: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the views turned by any angle.")
    ] = 0.2,
    level: Annotated[
        float, typer.Option(min=0, max=90, help="Most degrees by which other views are turned.")
    ] = 15.0,
    carried: Carried = 0.1,
    pairs: Pairs = 100_000,
    seed: Seed = 0,
    workers: Workers = 0,
    json_: AsJson = False,
) -> None:
    """Make training patches from photos, with frames detected again in every view.

    Example: hardnet data build detections ~/Pictures -o sets/mine
    """
    from hardnet.patchsets.build.detections import DetectionSettings, build_from_detections

    settings = DetectionSettings(
        points=points,
        views=views,
        max_size=max_size,
        keypoints=keypoints,
        light=light,
        still=still,
        turned=turned,
        level=level,
        carried=carried,
        pairs=pairs,
        seed=seed,
    )
    console = Console(stderr=True, emoji=False)
    with Stage(console) as advance:
        step = _photo_step(console, advance)
        report = build_from_detections(folders, output, settings, _processes(workers), step)
    _say_photos(console, json_, output, report)


def colmap(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="COLMAP models, or folders of them.")
    ],
    images: Annotated[Path, typer.Option(help="Folder of the photos the models name.")],
    output: Output,
    database: Annotated[
        Path | None, typer.Option(help="COLMAP's database; by default database.db near the model.")
    ] = None,
    geometry: Annotated[
        bool, typer.Option("--geometry", help="No database: carry keypoints by the cameras.")
    ] = False,
    affine: Annotated[
        bool, typer.Option("--affine", help="Carry the affine shape too, not only a similarity.")
    ] = False,
    detections: Detections = False,
    carried: Carried = 0.1,
    noise: Noise = 0.0,
    upright: Upright = False,
    min_track: MinTrack = 2,
    max_track: MaxTrack = 12,
    max_error: MaxError = 2.0,
    points: Annotated[int, typer.Option(min=0, help="Most points of a model; 0 for all.")] = 0,
    window: Window = None,
    pairs: Pairs = 100_000,
    seed: Seed = 0,
    workers: Workers = 0,
    json_: AsJson = False,
) -> None:
    """Make patches of the 3D points of COLMAP models, in the Brown format.

    Example: hardnet data build colmap work/sparse/0 --images photos -o sets/house
    """
    from hardnet.frames import WINDOW_SIGMAS
    from hardnet.interop.colmap.mapping import find_models
    from hardnet.patchsets.build.colmap import ColmapSettings, build_from_colmap
    from hardnet.patchsets.build.colmap_model import Scene, find_database

    if database is not None and not database.is_file():
        raise HardnetError(f"{database} does not exist: name COLMAP's database file")
    if database is not None and geometry:
        raise HardnetError("--database and --geometry exclude each other: give one of them")
    detected = _detected(
        detections,
        carried,
        {
            "--database": database is not None,
            "--geometry": geometry,
            "--affine": affine,
            "--noise": noise > 0,
            "--upright": upright,
            "--window": window not in (None, WINDOW_SIGMAS),
        },
    )
    scenes = []
    for path in (found for model in models for found in find_models(model)):
        keypoints = None if geometry else database or find_database(path, images)
        scenes.append(Scene(path.resolve().name, path, images, keypoints))
    settings = ColmapSettings(
        min_track,
        max_track,
        max_error,
        window or WINDOW_SIGMAS,
        affine,
        noise,
        upright,
        points,
        pairs,
        seed,
    )
    console = Console(stderr=True, emoji=False)
    with Stage(console) as advance:
        report = build_from_colmap(
            scenes, output, settings, _processes(workers), advance, detected=detected
        )
    _say_points(console, json_, output, report, {})


def sfm(
    folder: Annotated[Path, typer.Argument(metavar="PHOTOS", help="Photos; a scene per folder.")],
    output: Output,
    work: Annotated[
        Path | None,
        typer.Option(help="Where models are kept, to continue from; by default OUTPUT.sfm."),
    ] = None,
    max_size: Annotated[int, typer.Option(help="Find keypoints at this long side.")] = 1600,
    keypoints: Annotated[
        int, typer.Option(min=0, help="Most keypoints of a photo; 0 for COLMAP's default.")
    ] = 0,
    following: Annotated[
        int,
        typer.Option(
            min=0,
            help="Match a photo with this number of those that follow it by name; 0 for all pairs.",
        ),
    ] = 0,
    mapper: Annotated[
        Literal["incremental", "global"],
        typer.Option(help="Photo by photo, or all cameras at once: faster on many photos."),
    ] = "incremental",
    detections: Detections = False,
    carried: Carried = 0.1,
    noise: Noise = 0.0,
    upright: Upright = False,
    min_track: MinTrack = 2,
    max_track: MaxTrack = 12,
    max_error: MaxError = 2.0,
    window: Window = None,
    pairs: Pairs = 100_000,
    seed: Seed = 0,
    workers: Workers = 0,
    json_: AsJson = False,
) -> None:
    """Reconstruct folders of photos with COLMAP, then make patches of their 3D points.

    Example: hardnet data build sfm holiday -o sets/holiday
    """
    from dataclasses import asdict

    from hardnet.frames import WINDOW_SIGMAS
    from hardnet.patchsets.build.colmap import ColmapSettings, build_from_colmap
    from hardnet.patchsets.build.sfm import SfmSettings, reconstruct
    from hardnet.storage import refuse_existing

    others = {
        "--noise": noise > 0,
        "--upright": upright,
        "--window": window not in (None, WINDOW_SIGMAS),
    }
    detected = _detected(detections, carried, others)
    refuse_existing(output)  # now, not after an hour of reconstruction
    how = SfmSettings(
        mapper=mapper,
        max_size=max_size,
        keypoints=keypoints or None,
        following=following,
        seed=seed,
    )
    settings = ColmapSettings(
        min_track,
        max_track,
        max_error,
        window or WINDOW_SIGMAS,
        noise=noise,
        upright=upright,
        pairs=pairs,
        seed=seed,
    )
    console = Console(stderr=True, emoji=False)
    with Stage(console) as advance:
        found = reconstruct(folder, work or output.with_name(f"{output.name}.sfm"), how, advance)
        for name, reason in found.failed.items():
            _warn(console, name, reason)
        report = build_from_colmap(
            found.scenes,
            output,
            settings,
            _processes(workers),
            advance,
            {"sfm": {"settings": asdict(how), "failed": found.failed}},
            detected,
        )
    _say_points(console, json_, output, report, found.failed)


def sequences(
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA...", help="Sequences (1.png, H_1_2) or pairs (1, 2, h)."),
    ],
    output: Output,
    layout: Annotated[
        Layout, typer.Option(help="hpatches: 5 targets, noise; w1bs: pairs, exact.")
    ] = Layout.hpatches,
    subset: Annotated[
        list[str] | None, typer.Option(help="w1bs only: NAME=SEQUENCE,... puts them in a subset.")
    ] = None,
    limit: Annotated[int, typer.Option(min=2, help="Most frames per sequence or pair.")] = 1000,
    window: Window = None,
    seed: Seed = 0,
    workers: Workers = 0,
    json_: AsJson = False,
) -> None:
    """Cut patches from image sequences with homographies, in the HPatches or the W1BS layout.

    Example: hardnet data build sequences oxford-affine -o sets/oxford
    """
    from hardnet.frames import WINDOW_SIGMAS
    from hardnet.patchsets.build.sequences import (
        SequenceSettings,
        build_from_sequences,
        build_photo_pairs,
    )
    from hardnet.patchsets.sequences import find_sequences

    found, subsets = find_sequences(data), _subsets(subset or [])
    if subsets and layout is Layout.hpatches:
        raise HardnetError("--subset belongs to --layout w1bs: HPatches has no subsets")
    console = Console(stderr=True, emoji=False)
    settings = SequenceSettings(limit, window or WINDOW_SIGMAS, seed)
    processes = _processes(workers)
    with Stage(console) as advance:
        step = advance.part("sequences")
        if layout is Layout.hpatches:
            report = build_from_sequences(found, output, settings, processes, step)
        else:
            report = build_photo_pairs(found, output, settings, processes, subsets, step)
        for name, reason in report.skipped.items():
            _warn(console, name, reason)
    counts = {"set": str(output), "patches": report.counts, "skipped": report.skipped}
    what = "sequences" if layout is Layout.hpatches else "pairs"
    line = f"{len(report.counts)} {what} with {sum(report.counts.values())} reference patches"
    _say_result(console, json_, counts, f"{output}: {line}; {len(report.skipped)} skipped")


def _photo_step(
    console: Console, advance: Callable[[str, int, int], None]
) -> Callable[[int, int, str | None], None]:
    def step(done: int, total: int, skipped: str | None) -> None:
        advance("photos", done, total)
        if skipped:
            _warn(console, skipped, "broken or too small")

    return step


def _say_photos(console: Console, json_: bool, output: Path, report: BuildReport) -> None:
    counts = {
        "set": str(output),
        "photos": report.photos,
        "skipped": list(report.skipped),
        "points": report.points,
        "patches": report.patches,
    }
    line = _line(report.patches, report.points, counted(report.photos, "photo"))
    _say_result(console, json_, counts, f"{output}: {line}; {len(report.skipped)} skipped")


def _subsets(texts: list[str]) -> dict[str, str]:
    """``["G=graf,wall"]`` -> sequence -> subset."""
    chosen: dict[str, str] = {}
    for text in texts:
        name, _, members = text.partition("=")
        if not name or not members or "/" in name:
            raise HardnetError(f"--subset {text}: write NAME=SEQUENCE,SEQUENCE")
        chosen |= dict.fromkeys(members.split(","), name)
    return chosen


def _detected(wanted: bool, carried: float, others: Mapping[str, bool]) -> DetectedSettings | None:
    """How to detect frames, or None; ``others`` are the options that do not go with it."""
    from hardnet.patchsets.build.detected_tracks import DetectedSettings

    if not wanted:
        return None
    if given := [option for option, is_given in others.items() if is_given]:
        raise HardnetError(f"--detections and {given[0]} exclude each other: give one of them")
    return DetectedSettings(carried=carried)


def _processes(workers: int) -> int:
    from hardnet.threads import usable_cores

    return workers or usable_cores()


def _warn(console: Console, name: str, reason: str) -> None:
    """Say that something was left out, and why."""
    console.print(f"[yellow]skipped[/] {escape(name)}: {escape(reason)}", soft_wrap=True)


def _say_result(console: Console, as_json: bool, counts: Mapping[str, Any], line: str) -> None:
    """The result: counts for machines on standard output, or a line for people."""
    if as_json:
        print(json.dumps(counts))
    else:
        console.print(escape(line), soft_wrap=True)


def _say_points(
    console: Console, as_json: bool, output: Path, report: ColmapReport, failed: Mapping[str, str]
) -> None:
    """The result of a build from COLMAP models."""
    counts = {
        "set": str(output),
        "points": report.points,
        "patches": report.patches,
        "models": report.models,
        "skipped": dict(failed),
    }
    line = _line(report.patches, report.points, counted(len(report.models), "model"))
    skipped = counted(len(failed), "scene")
    _say_result(console, as_json, counts, f"{output}: {line}; {skipped} skipped")


def _line(patches: int, points: int, source: str) -> str:
    return f"{counted(patches, 'patch')} of {counted(points, 'point')} from {source}"
