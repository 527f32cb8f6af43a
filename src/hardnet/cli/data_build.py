"""`hardnet data build`: make patch sets."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from hardnet.cli.options import AsJson, argument, given, grouped, option, reads_images
from hardnet.cli.output import Stage, say
from hardnet.errors import HardnetError, counted, printable
from hardnet.threads import usable_cores

if TYPE_CHECKING:
    from hardnet.patchsets.build.colmap import ColmapReport, ColmapSettings
    from hardnet.patchsets.build.photos import BuildReport
    from hardnet.patchsets.build.tracks import DetectedSettings

Window = Annotated[
    float | None,
    option(..., "Side of the window in sigmas of the keypoint.", min=1, show_default="12"),
]
Windows = Annotated[
    str,
    option(..., "Windows of detected frames in sigmas, e.g. 12+24+48; each gives its own points."),
]
Views = Annotated[int, option(..., "Random renderings of each photo.")]
LongSide = Annotated[int, option(..., "Shrink photos to this long side first.")]
Carried = Annotated[
    float, option(..., "Share of frames not detected again that are carried over.", min=0, max=1)
]


@dataclass(frozen=True)
class NewSet:
    """The options of every new set."""

    output: Annotated[Path, option(..., "The set to write.", "--output", "-o")]
    seed: Annotated[int, option(..., "Same seed and photos, same bytes.")] = 0
    workers: Annotated[int, option(..., "Processes; 0 for all cores.", min=0)] = 0
    as_json: AsJson = False

    @property
    def processes(self) -> int:
        """The number of processes."""
        return self.workers or usable_cores()

    def say(self, counts: Mapping[str, Any], line: str) -> None:
        """Report what was made."""
        if self.as_json:
            print(json.dumps({"set": str(self.output), **counts}))
        else:
            say(f"{self.output}: {line}", error=True)


@dataclass(frozen=True)
class BrownSet(NewSet):
    """The options of a set in the Brown format."""

    pairs: Annotated[int, option(..., "Rows of the test pair file.", min=2)] = 100_000

    def say_photos(self, report: BuildReport) -> None:
        """Report what was made from photos."""
        line = _line(report.patches, report.points, counted(report.photos, "photo"))
        self.say(asdict(report), f"{line}; {len(report.skipped)} skipped")


@dataclass(frozen=True)
class ModelSet(BrownSet):
    """The options of a set made from the points of COLMAP models."""

    detections: Annotated[
        bool,
        option(
            ...,
            "Detect frames in every photo (DoG, Hessian-Affine) and pair them by the 3D points "
            "around them, whether or not SIFT matched them.",
            "--detections",
        ),
    ] = False
    carried: Carried = 0.1
    windows: Windows = "12"
    noise: Annotated[
        float, option(..., "Disturb frames by this multiple of HPatches' easy noise.", min=0)
    ] = 0.0
    upright: Annotated[
        bool, option(..., "Patch-up is image-up; rotated photos are left out.", "--upright")
    ] = False
    min_track: Annotated[int, option(..., "Photos that must see a point.", min=2)] = 2
    max_track: Annotated[int, option(..., "Most patches of one point.", min=2)] = 12
    max_error: Annotated[
        float, option(..., "Largest distance to the projected point, in pixels.")
    ] = 2.0
    window: Window = None

    def settings(self, **more: Any) -> ColmapSettings:
        """The settings of the set."""
        from hardnet.patchsets.build.colmap import ColmapSettings

        return ColmapSettings(**given(ColmapSettings, vars(self) | more))

    def detected(self, others: Mapping[str, object]) -> DetectedSettings | None:
        """How to detect frames, or None; excludes options that take frames from elsewhere."""
        from hardnet.frames import WINDOW_SIGMAS
        from hardnet.patchsets.build.tracks import DetectedSettings

        sigmas = _windows(self.windows)
        if not self.detections:
            if sigmas != (WINDOW_SIGMAS,):
                raise HardnetError(
                    f"--windows {self.windows} needs --detections; --window gives another one"
                )
            return None
        other = self.window not in (None, WINDOW_SIGMAS)
        own = {"--noise": self.noise, "--upright": self.upright, "--window": other}
        if named := [name for name, value in {**others, **own}.items() if value]:
            raise HardnetError(f"--detections and {named[0]} exclude each other: give one of them")
        return DetectedSettings(sigmas, carried=self.carried)

    def say_points(self, report: ColmapReport, failed: Mapping[str, str]) -> None:
        """Report what was made from models."""
        line = _line(report.patches, report.points, counted(len(report.models), "model"))
        counts = {**asdict(report), "skipped": dict(failed)}
        self.say(counts, f"{line}; {counted(len(failed), 'scene')} skipped")


app = typer.Typer(
    name="build", help="Build a patch set.", no_args_is_help=True, add_completion=False
)


@app.command()
@reads_images
@grouped
def photos(
    made: BrownSet,
    folder: Path = argument("Photos; searched recursively."),
    points: int = option(500, "Most points from one photo."),
    views: Views = 6,
    max_size: LongSide = 900,
    jitter: float = option(
        1.0,
        "Disturb the frames by this multiple of HPatches' easy noise; above 1, each frame by a "
        "random multiple from 0 to this.",
        min=0,
    ),
    wear: float = option(1.0, "Strength of changed light, blur, noise and JPEG.", min=0.5, max=3),
) -> None:
    """Make training patches from any folder of photos, in the Brown format.

    Example: hardnet data build photos ~/Pictures -o sets/mine
    """
    from hardnet.patchsets.build.photos import PhotoSettings, build_from_photos

    settings = PhotoSettings(**given(PhotoSettings, locals() | vars(made)))
    with Stage() as stage:
        step = _photo_step(stage)
        report = build_from_photos([folder], made.output, settings, made.processes, step)
    made.say_photos(report)


@app.command()
@reads_images
@grouped
def detections(
    made: BrownSet,
    folders: list[Path] = argument("Folders; searched recursively.", metavar="PHOTOS..."),
    points: int = option(150, "Most points of a kind from one photo."),
    views: Views = 4,
    max_size: LongSide = 720,
    keypoints: int = option(1000, "Keypoints to detect in a view."),
    light: float = option(1.0, "Strength of the changes of light.", min=0, max=2),
    still: float = option(
        0.25, "Share of the views in which only the light changes.", min=0, max=1
    ),
    turned: float = option(0.2, "Share of the views rotated by any angle.", min=0, max=1),
    level: float = option(15.0, "Largest rotation of the other views, in degrees.", min=0, max=90),
    carried: Carried = 0.1,
    windows: Windows = "12",
) -> None:
    """Make training patches from photos, with frames detected again in every view.

    Example: hardnet data build detections ~/Pictures -o sets/mine
    """
    from hardnet.patchsets.build.photos import DetectionSettings, build_from_photos

    chosen = {"windows": _windows(windows)}
    settings = DetectionSettings(**given(DetectionSettings, locals() | vars(made)) | chosen)
    with Stage() as stage:
        step = _photo_step(stage)
        report = build_from_photos(folders, made.output, settings, made.processes, step)
    made.say_photos(report)


@app.command()
@reads_images
@grouped
def colmap(
    made: ModelSet,
    models: list[Path] = argument("COLMAP models, or folders of them.", metavar="MODEL..."),
    images: Path = option(..., "Folder of the photos the models name."),
    database: Path | None = option(
        None, "COLMAP's database; by default database.db near the model."
    ),
    geometry: bool = option(False, "No database: carry keypoints by the cameras.", "--geometry"),
    affine: bool = option(False, "Carry the affine shape too, not only a similarity.", "--affine"),
    points: int = option(0, "Most points of a model; 0 for all.", min=0),
) -> None:
    """Make patches of the 3D points of COLMAP models, in the Brown format.

    Example: hardnet data build colmap work/sparse/0 --images photos -o sets/house
    """
    from hardnet.interop.colmap.mapping import find_models
    from hardnet.patchsets.build.colmap import build_from_colmap
    from hardnet.patchsets.build.colmap_model import Scene, find_database

    if database is not None and not database.is_file():
        raise HardnetError(f"{database} does not exist: name COLMAP's database file")
    if database is not None and geometry:
        raise HardnetError("--database and --geometry exclude each other: give one of them")
    settings = made.settings(affine=affine, points=points)
    others = {"--database": database, "--geometry": geometry, "--affine": affine}
    detected = made.detected(others)
    scenes = []
    for path in (found for model in models for found in find_models(model)):
        keypoints = None if geometry else database or find_database(path, images)
        scenes.append(Scene(path.resolve().name, path, images, keypoints))
    with Stage() as stage:
        report = build_from_colmap(
            scenes, made.output, settings, made.processes, stage, detected=detected
        )
    made.say_points(report, {})


@app.command()
@reads_images
@grouped
def sfm(
    made: ModelSet,
    folder: Path = argument("Photos; a scene per folder.", metavar="PHOTOS"),
    work: Path | None = option(
        None, "Where models are kept, to continue from; by default OUTPUT.sfm."
    ),
    max_size: int = option(1600, "Find keypoints at this long side."),
    keypoints: int = option(0, "Most keypoints of a photo; 0 for COLMAP's default.", min=0),
    following: int = option(
        0,
        "Match each photo with the next N by name; 0 for all pairs.",
        min=0,
    ),
    mapper: Literal["incremental", "global"] = option(
        "incremental", "Photo by photo, or all cameras at once, which is faster for many photos."
    ),
) -> None:
    """Reconstruct folders of photos with COLMAP, then make patches of their 3D points.

    Example: hardnet data build sfm holiday -o sets/holiday
    """
    from hardnet.patchsets.build.colmap import build_from_colmap
    from hardnet.patchsets.build.colmap_model import SfmSettings, reconstruct
    from hardnet.storage import refuse_existing

    how = SfmSettings(
        seed=made.seed, **given(SfmSettings, locals()) | {"keypoints": keypoints or None}
    )
    output, settings, detected = made.output, made.settings(), made.detected({})
    refuse_existing(output)  # now, not after an hour of reconstruction
    with Stage() as stage:
        found = reconstruct(folder, work or output.with_name(f"{output.name}.sfm"), how, stage)
        for name, reason in found.failed.items():
            _warn(stage, name, reason)
        origin = {"sfm": {"settings": asdict(how), "failed": found.failed}}
        report = build_from_colmap(
            found.scenes, output, settings, made.processes, stage, origin, detected
        )
    made.say_points(report, found.failed)


@app.command()
@reads_images
@grouped
def sequences(
    made: NewSet,
    data: list[Path] = argument("Sequences (1.png, H_1_2) or pairs (1, 2, h).", metavar="DATA..."),
    layout: Literal["hpatches", "w1bs"] = option(
        "hpatches", "hpatches: 5 targets with noise; w1bs: pairs without noise."
    ),
    subset: list[str] | None = option(
        None, "w1bs only: NAME=SEQUENCE,... puts sequences into a subset."
    ),
    limit: int = option(1000, "Most frames per sequence or pair.", min=2),
    window: Window = None,
) -> None:
    """Cut patches from image sequences with homographies, in the HPatches or the W1BS layout.

    Example: hardnet data build sequences oxford-affine -o sets/oxford
    """
    from hardnet.patchsets.build import sequences as build
    from hardnet.patchsets.sequences import find_sequences

    found, subsets = find_sequences(data), _subsets(subset or [])
    if subsets and layout == "hpatches":
        raise HardnetError("--subset belongs to --layout w1bs: HPatches has no subsets")
    settings = build.SequenceSettings(**given(build.SequenceSettings, locals() | vars(made)))
    output, processes = made.output, made.processes
    with Stage() as stage:
        step = stage.part("sequences")
        if layout == "hpatches":
            report = build.build_from_sequences(found, output, settings, processes, step)
        else:
            report = build.build_photo_pairs(found, output, settings, processes, subsets, step)
        for name, reason in report.skipped.items():
            _warn(stage, name, reason)
    counts = {"patches": report.counts, "skipped": report.skipped}
    what = "sequences" if layout == "hpatches" else "pairs"
    line = f"{len(report.counts)} {what} with {sum(report.counts.values())} reference patches"
    made.say(counts, f"{line}; {len(report.skipped)} skipped")


def _photo_step(stage: Stage) -> Callable[[int, int, str | None], None]:
    def step(done: int, total: int, skipped: str | None) -> None:
        stage("photos", done, total)
        if skipped:
            _warn(stage, skipped, "broken or too small")

    return step


def _subsets(texts: list[str]) -> dict[str, str]:
    """``["G=graf,wall"]`` -> sequence -> subset."""
    chosen: dict[str, str] = {}
    for text in texts:
        name, _, members = text.partition("=")
        if not name or not members or "/" in name:
            raise HardnetError(f"--subset {text}: write NAME=SEQUENCE,SEQUENCE")
        chosen |= dict.fromkeys(members.split(","), name)
    return chosen


def _windows(text: str) -> tuple[float, ...]:
    """``12+24+48`` -> (12, 24, 48)."""
    from hardnet.descriptors import split_windows

    sigmas = split_windows(f"net@{text}")[1]
    if not sigmas or min(sigmas) <= 0:
        raise HardnetError(f"--windows {text}: give windows in sigmas, e.g. 12+24+48")
    return sigmas


def _warn(stage: Stage, name: str, reason: str) -> None:
    line = f"[yellow]skipped[/] {escape(printable(name))}: {escape(printable(reason))}"
    stage.console.print(line, soft_wrap=True)


def _line(patches: int, points: int, source: str) -> str:
    return f"{counted(patches, 'patch')} of {counted(points, 'point')} from {source}"
