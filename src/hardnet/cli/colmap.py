"""`hardnet colmap`: a folder of photos becomes a COLMAP database and a 3D model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from hardnet.cli.options import (
    AsJson,
    DescriptorName,
    DetectorName,
    Keypoints,
    MaxSize,
    Upright,
    argument,
    given,
    option,
    reads_images,
)
from hardnet.cli.output import Stage, say, show
from hardnet.descriptors import for_photos
from hardnet.errors import HardnetError, counted

if TYPE_CHECKING:
    from hardnet.interop.colmap.reconstruction import ReconstructionReport


@reads_images
def colmap(
    images: Path = argument("Folder of the photos.", metavar="IMAGES"),
    output: Path = option(..., "Folder to write.", "--output", "-o", metavar="WORK"),
    detector: DetectorName = "dog",
    descriptor: DescriptorName = "hardnet-small@12",
    keypoints: Keypoints = 8192,
    max_size: MaxSize = 1600,
    upright: Upright = False,
    pairs: Literal["exhaustive", "sequential", "retrieval"] = option(
        "exhaustive", "All pairs, photos taken one after the other, or similar photos."
    ),
    pairs_file: Path | None = option(
        None, "Instead: match these pairs, two names of photos per line."
    ),
    overlap: int = option(10, "Sequential: with this many of the following photos.", min=1),
    quadratic: bool = option(True, "Sequential: also with those 2, 4, 8, ... photos later."),
    loop: int = option(0, "Sequential: every n-th photo with each other; 0: none.", min=0),
    index: Path | None = option(
        None, "Retrieval: the photos in an index of `hardnet index build`."
    ),
    similar: int = option(20, "Retrieval: with this many of the most similar photos.", min=1),
    ratio: float | None = option(None, "Ratio test: smaller is stricter.", min=0.01, max=1),
    guided: bool = option(False, "Look for more matches along the geometry of a pair.", "--guided"),
    verification: Literal["colmap", "hardnet"] = option(
        "colmap", "Who verifies matches: COLMAP, by its cameras, or hardnet as in match."
    ),
    camera_model: str = option("SIMPLE_RADIAL", "COLMAP's camera model."),
    single_camera: bool = option(
        False, "One camera and one zoom took all photos.", "--single-camera"
    ),
    focal: float | None = option(None, "Focal length in pixels, if EXIF does not know it."),
    camera_params: str | None = option(
        None, "Parameters of a calibrated camera, separated by commas; kept as given."
    ),
    min_images: int = option(3, "Drop models of fewer photos.", min=2),
    seed: int = option(0, "Of COLMAP's random samples.", min=0),
    mapping: bool = option(True, "Build models of the database.", "--mapping/--no-mapping"),
    workers: int = option(0, "Threads; 0: one per core.", min=0),
    as_json: AsJson = False,
) -> None:
    """Reconstruct a folder of photos with COLMAP: features, matches, database, 3D model.

    Writes database.db, sparse/0 (the model; more folders if the photos show several scenes),
    model-0.ply and model-0.jpg (its points, and a picture of them and the cameras), features.h5 and
    report.json. Run it again after it was stopped and it continues where it was.

    Exit code 0: there is a model. 1: the photos do not fit together, or something cannot be read.

    Examples:  hardnet colmap photos -o work

               hardnet colmap photos -o work --pairs retrieval --index photos.index
    """
    from hardnet.images import list_images
    from hardnet.interop.colmap import CameraSettings, PairSettings, matching
    from hardnet.interop.colmap.mapping import MapperSettings
    from hardnet.interop.colmap.reconstruction import ReconstructionSettings, reconstruct
    from hardnet.matching.matches import Strategy

    strategy = Strategy(**given(Strategy, locals()))
    if index is not None and (pairs != "retrieval" or pairs_file is not None):
        raise HardnetError("--index is of use with --pairs retrieval only: add that, or leave it")
    chosen: PairSettings | Path
    if pairs_file is not None:
        chosen = pairs_file
    elif pairs == "retrieval":
        chosen = _similar(images, index, similar, output)
    else:
        chosen = PairSettings(pairs, overlap, quadratic, loop)
    asked = given(ReconstructionSettings, locals())
    asked |= {"max_size": max_size or None, "pairs": chosen, "strategy": strategy}
    asked["descriptor"] = for_photos(descriptor)
    settings = ReconstructionSettings(
        **asked,
        cameras=CameraSettings(camera_model.upper(), single_camera, focal, _numbers(camera_params)),
        mapper=MapperSettings(min_images=min_images, seed=seed),
    )
    count = len(list_images(images))
    exhaustive = isinstance(chosen, PairSettings) and chosen.method == "exhaustive"
    if exhaustive and count > matching.MANY_PHOTOS:
        say(
            f"note: {count} photos have {count * (count - 1) // 2} pairs; for photos taken one "
            "after the other, --pairs sequential is much faster; else --pairs retrieval",
            error=True,
        )
    with Stage(resumes=True) as stage:
        report = reconstruct(
            images, output, settings, mapping=mapping, workers=workers or None, progress=stage
        )
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        _show(report, output)
    if mapping and not report.models:
        say(f"no model: {_why_not(report, min_images)}", error=True)
        raise typer.Exit(1)


def _similar(images: Path, index: Path | None, similar: int, output: Path) -> Path:
    from hardnet.images import list_images
    from hardnet.retrieval.comparing import similar_pairs, write_pairs

    if index is None:
        raise HardnetError(
            "--pairs retrieval needs --index: make one with `hardnet index build INDEX IMAGES`"
        )
    photos = {path.relative_to(images).as_posix(): path for path in list_images(images)}
    with Stage() as stage:
        pairs, unknown = similar_pairs(index, photos, similar, progress=stage)
    if unknown:
        left_out = counted(len(unknown), "photo")
        say(
            f"note: {left_out} not in {index} and without pairs ({unknown[0]}, "
            "...); unless they cannot be read, add them with `hardnet index add`",
            error=True,
        )
    path = output.with_name(f"{output.name}.pairs.txt")
    write_pairs(path, pairs)
    return path


def _numbers(text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise HardnetError(f"--camera-params {text}: give numbers, separated by commas") from None


def _show(report: ReconstructionReport, work: Path) -> None:
    rows: list[tuple[str, object]] = [
        ("photos", f"{report.photos - len(report.skipped)} of {report.photos}"),
        ("keypoints", report.keypoints),
        ("pairs", f"{report.verified_pairs} of {report.pairs} verified"),
        ("matches", report.matches),
    ]
    for folder, numbers in (report.models or {}).items():
        rows += [
            ("model", work / folder),
            ("registered photos", numbers.registered),
            ("3D points", numbers.points),
            ("observations", numbers.observations),
            ("mean track length", f"{numbers.track_length:.2f}"),
            ("mean reprojection error", f"{numbers.reprojection_error:.3f} px"),
        ]
    show(rows, bold=("registered photos", "3D points"))
    for name, why in report.skipped.items():
        say(f"skipped {name}: {why}", error=True)


def _why_not(report: ReconstructionReport, min_images: int) -> str:
    usable = report.photos - len(report.skipped)
    if usable < min_images:
        return f"{counted(usable, 'photo')} can be used, {min_images} are needed"
    if not report.verified_pairs:
        return "no two photos show the same things; try more --keypoints or a larger --max-size"
    pairs = counted(report.verified_pairs, "pair")
    return (
        f"{pairs} of photos verified, but from places too close to "
        "each other or with too few points; take photos from more places, or try more --keypoints"
    )
