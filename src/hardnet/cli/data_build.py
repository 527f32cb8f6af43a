"""`hardnet data build`: make patch sets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from hardnet.cli.options import AsJson, Seed, Workers, argument, given, group, option, reads_images
from hardnet.cli.output import Stage, say
from hardnet.descriptors import split_windows
from hardnet.errors import HardnetError, counted
from hardnet.frames import WINDOW_SIGMAS
from hardnet.interop.colmap.mapping import find_models
from hardnet.patchsets.build import sequences as build
from hardnet.patchsets.build.colmap import ColmapSettings, build_from_colmap
from hardnet.patchsets.build.colmap_model import Scene, SfmSettings, find_database, reconstruct
from hardnet.patchsets.build.photos import DetectionSettings, PhotoSettings, build_from_photos
from hardnet.patchsets.build.tracks import DetectedSettings
from hardnet.patchsets.sequences import find_sequences
from hardnet.storage import refuse_existing
from hardnet.threads import usable_cores

Window = Annotated[
    float | None,
    option(..., "Side of the window in sigmas of the keypoint.", min=1, show_default="12"),
]
Windows = Annotated[
    str,
    option(..., "Windows of detected frames in sigmas, e.g. 12+24+48; each gives separate points."),
]
Views = Annotated[int, option(..., "Random renderings of each photo.")]
LongSide = Annotated[int, option(..., "Shrink photos to this long side first.")]
Carried = Annotated[
    float, option(..., "Share of frames not detected again that are carried over.", min=0, max=1)
]

app = group("build", "Build a patch set.")


@dataclass(frozen=True)
class NewSet:
    """The options of every new set."""

    output: Path = option(..., "The set to write.", "--output", "-o")
    seed: Seed = 0
    workers: Workers = None
    as_json: AsJson = False

    @property
    def processes(self) -> int:
        return self.workers or usable_cores()

    def say(self, counts: Mapping[str, Any], line: str) -> None:
        if self.as_json:
            print(json.dumps({"set": str(self.output), **counts}))
        else:
            say(f"{self.output}: {line}", error=True)


@dataclass(frozen=True)
class BrownSet(NewSet):
    """The options of a set in the Brown format."""

    pairs: int = option(100_000, "Rows of the test pair file.", min=2)

    def from_photos(self, folders: list[Path], settings: PhotoSettings | DetectionSettings) -> None:
        """Build a set and report what was made."""

        def step(done: int, total: int, skipped: str | None) -> None:
            stage("photos", done, total)
            if skipped:
                stage.warn("skipped", f"{skipped}: broken or too small")

        with Stage() as stage:
            report = build_from_photos(folders, self.output, settings, self.processes, step)
        self.say_patches(report, f"{counted(report.photos, 'photo')}; {len(report.skipped)}")

    def say_patches(self, report: Any, source: str, **more: Any) -> None:
        """Report the patches of a set; ``source`` ends with the number of what was skipped."""
        patches, points = counted(report.patches, "patch"), counted(report.points, "point")
        self.say({**asdict(report), **more}, f"{patches} of {points} from {source} skipped")


@dataclass(frozen=True)
class ModelSet(BrownSet):
    """The options of a set made from the points of COLMAP models."""

    detections: bool = option(
        False,
        "Detect frames in every photo (DoG, Hessian-Affine) and pair them by the 3D points "
        "around them, whether or not SIFT matched them.",
    )
    carried: Carried = 0.1
    windows: Windows = "12"
    noise: float = option(0.0, "Disturb frames by this multiple of HPatches' easy noise.", min=0)
    upright: bool = option(False, "Patch-up is image-up; rotated photos are left out.")
    min_track: int = option(2, "Photos that must see a point.", min=2)
    max_track: int = option(12, "Most patches of one point.", min=2)
    max_error: float = option(2.0, "Largest distance to the projected point, in pixels.")
    window: Window = None

    def detected(self, **others: object) -> DetectedSettings | None:
        """How to detect frames, or None; excludes options that take frames from elsewhere."""
        sigmas = _windows(self.windows)
        if not self.detections:
            if sigmas != (WINDOW_SIGMAS,):
                raise HardnetError(
                    f"--windows {self.windows} needs --detections; --window gives another one"
                )
            return None
        others |= {"noise": self.noise, "upright": self.upright}
        others["window"] = self.window not in (None, WINDOW_SIGMAS)
        for name, value in others.items():
            if value:
                raise HardnetError(
                    f"--detections and --{name} exclude each other: give one of them"
                )
        return DetectedSettings(sigmas, carried=self.carried)

    def from_models(
        self,
        stage: Stage,
        scenes: Sequence[Scene],
        detected: DetectedSettings | None,
        failed: Mapping[str, str],
        origin: dict[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Build the set from the models of scenes, and report what was made."""
        settings = ColmapSettings(**given(ColmapSettings, vars(self) | more))
        report = build_from_colmap(
            scenes, self.output, settings, self.processes, stage, origin, detected
        )
        source = f"{counted(len(report.models), 'model')}; {counted(len(failed), 'scene')}"
        self.say_patches(report, source, skipped=dict(failed))


@app.command()
@reads_images
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
    settings = PhotoSettings(**given(PhotoSettings, locals() | vars(made)))
    made.from_photos([folder], settings)


@app.command()
@reads_images
def detections(
    made: BrownSet,
    folders: list[Path] = argument("Folders; searched recursively.", metavar="PHOTOS..."),
    points: int = option(150, "Most points of a kind from one photo."),
    views: Views = 4,
    max_size: LongSide = 720,
    keypoints: int = option(1000, "Keypoints to detect in a view."),
    light: float = option(1.0, "Strength of the changes of light.", min=0, max=2),
    still: float = option(0.25, "Share of views in which only the light changes.", min=0, max=1),
    turned: float = option(0.2, "Share of the views rotated by any angle.", min=0, max=1),
    level: float = option(15.0, "Largest rotation of the other views, in degrees.", min=0, max=90),
    carried: Carried = 0.1,
    windows: Windows = "12",
) -> None:
    """Make training patches from photos, with frames detected again in every view.

    Example: hardnet data build detections ~/Pictures -o sets/mine
    """
    chosen = given(DetectionSettings, locals() | vars(made)) | {"windows": _windows(windows)}
    made.from_photos(folders, DetectionSettings(**chosen))


@app.command()
@reads_images
def colmap(
    made: ModelSet,
    models: list[Path] = argument("COLMAP models, or folders of them.", metavar="MODEL..."),
    images: Path = option(..., "Folder of the photos the models name."),
    database: Path | None = option(None, "COLMAP's database [database.db near the model]."),
    geometry: bool = option(False, "No database: carry keypoints by the cameras."),
    affine: bool = option(False, "Carry the affine shape too, not only a similarity."),
    points: int = option(0, "Most points of a model; 0 for all.", min=0),
) -> None:
    """Make patches of the 3D points of COLMAP models, in the Brown format.

    Example: hardnet data build colmap work/sparse/0 --images photos -o sets/house
    """
    if database is not None and not database.is_file():
        raise HardnetError(f"{database} does not exist: name COLMAP's database file")
    if database is not None and geometry:
        raise HardnetError("--database and --geometry exclude each other: give one of them")
    detected = made.detected(database=database, geometry=geometry, affine=affine)
    scenes = []
    for path in (found for model in models for found in find_models(model)):
        keypoints = None if geometry else database or find_database(path, images)
        scenes.append(Scene(path.resolve().name, path, images, keypoints))
    with Stage() as stage:
        made.from_models(stage, scenes, detected, {}, affine=affine, points=points)


@app.command()
@reads_images
def sfm(
    made: ModelSet,
    folder: Path = argument("Photos; a scene per folder.", metavar="PHOTOS"),
    work: Path | None = option(None, "Where models are kept, to resume [OUTPUT.sfm]."),
    max_size: int = option(1600, "Find keypoints at this long side."),
    keypoints: int = option(0, "Most keypoints of a photo; 0 for COLMAP's default.", min=0),
    following: int = option(0, "Match each photo with the next N by name; 0 for all pairs.", min=0),
    mapper: Literal["incremental", "global"] = option(
        "incremental", "Photo by photo, or all cameras at once, which is faster for many photos."
    ),
) -> None:
    """Reconstruct folders of photos with COLMAP, then make patches of their 3D points.

    Example: hardnet data build sfm holiday -o sets/holiday
    """
    chosen = given(SfmSettings, locals()) | {"keypoints": keypoints or None, "seed": made.seed}
    how, output, detected = SfmSettings(**chosen), made.output, made.detected()
    refuse_existing(output)  # now, not after an hour of reconstruction
    with Stage() as stage:
        found = reconstruct(folder, work or output.with_name(f"{output.name}.sfm"), how, stage)
        for name, reason in found.failed.items():
            stage.warn("skipped", f"{name}: {reason}")
        origin = {"sfm": {"settings": asdict(how), "failed": found.failed}}
        made.from_models(stage, found.scenes, detected, found.failed, origin)


@app.command()
@reads_images
def sequences(
    made: NewSet,
    data: list[Path] = argument("Sequences (1.png, H_1_2) or pairs (1, 2, h).", metavar="DATA..."),
    layout: Literal["hpatches", "w1bs"] = option(
        "hpatches", "hpatches: 5 targets with noise; w1bs: pairs without noise."
    ),
    subset: list[str] | None = option(None, "w1bs only: NAME=SEQUENCE,... forms a subset."),
    limit: int = option(1000, "Most frames per sequence or pair.", min=2),
    window: Window = None,
) -> None:
    """Cut patches from image sequences with homographies, in the HPatches or the W1BS layout.

    Example: hardnet data build sequences oxford-affine -o sets/oxford
    """
    found = find_sequences(data)
    subsets: dict[str, str] = {}  # sequence -> subset
    for text in subset or []:
        name, _, members = text.partition("=")
        if not name or not members or "/" in name:
            raise HardnetError(f"--subset {text}: write NAME=SEQUENCE,SEQUENCE")
        subsets |= dict.fromkeys(members.split(","), name)
    if subsets and layout == "hpatches":
        raise HardnetError("--subset belongs to --layout w1bs: HPatches has no subsets")
    settings = build.SequenceSettings(**given(build.SequenceSettings, locals() | vars(made)))
    what, make = "sequences", build.build_from_sequences
    if layout == "w1bs":
        what, make = "pairs", partial(build.build_photo_pairs, subsets=subsets)
    with Stage() as stage:
        step = partial(stage, "sequences")
        report = make(found, made.output, settings, made.processes, progress=step)
        for name, reason in report.skipped.items():
            stage.warn("skipped", f"{name}: {reason}")
    counts = {"patches": report.counts, "skipped": report.skipped}
    line = f"{len(report.counts)} {what} with {sum(report.counts.values())} reference patches"
    made.say(counts, f"{line}; {len(report.skipped)} skipped")


def _windows(text: str) -> tuple[float, ...]:
    sigmas = split_windows(f"net@{text}")[1]
    if not sigmas or min(sigmas) <= 0:
        raise HardnetError(f"--windows {text}: give windows in sigmas, e.g. 12+24+48")
    return sigmas
