"""`hardnet colmap`: turn a folder of photos into a COLMAP database and a 3D model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import typer

from hardnet.cli import options as shared
from hardnet.cli.options import argument, option, reads_images
from hardnet.cli.output import Stage, say, show
from hardnet.descriptors import for_photos
from hardnet.errors import HardnetError, counted
from hardnet.images import list_images
from hardnet.interop.colmap import CameraSettings, PairSettings, reconstruction
from hardnet.interop.colmap.mapping import MapperSettings
from hardnet.interop.colmap.reconstruction import (
    ReconstructionReport,
    ReconstructionSettings,
    reconstruct,
)
from hardnet.matching.matches import Strategy
from hardnet.retrieval.comparing import similar_pairs, write_pairs


@reads_images
def colmap(
    images: Path = argument("Folder of photos.", metavar="IMAGES"),
    output: Path = option(..., "Folder to write.", "--output", "-o", metavar="WORK"),
    detector: shared.DetectorName = "dog",
    descriptor: shared.DescriptorName = "hardnet-small@12",
    keypoints: shared.Keypoints = 8192,
    max_size: shared.MaxSize = 1600,
    upright: shared.Upright = False,
    pairs: Literal["exhaustive", "sequential", "retrieval"] = option(
        "exhaustive", "Match all pairs, photos close in sequence, or similar photos."
    ),
    pairs_file: Path | None = option(None, "Match these pairs instead: two photo names per line."),
    overlap: int = option(10, "Sequential: number of following photos to match each with.", min=1),
    quadratic: bool = option(True, "Sequential: also match photos that are 2, 4, 8, ... apart."),
    loop: int = option(
        0, "Sequential: also match all n-th photos with each other; 0: none.", min=0
    ),
    index: Path | None = option(None, "Retrieval: index of the photos from `hardnet index build`."),
    similar: int = option(20, "Retrieval: match each photo with this many similar ones.", min=1),
    ratio: float | None = option(None, "Ratio test: smaller is stricter.", min=0.01, max=1),
    guided: bool = option(False, "Search for more matches that fit the geometry."),
    camera_model: str = option("SIMPLE_RADIAL", "COLMAP's camera model."),
    single_camera: bool = option(False, "All photos were taken with one camera and one zoom."),
    focal: float | None = option(None, "Focal length in pixels for photos without one in EXIF."),
    camera_params: str | None = option(
        None, "Comma-separated parameters of a calibrated camera; kept fixed."
    ),
    min_images: int = option(3, "Drop models with fewer photos.", min=2),
    seed: shared.Seed = 0,
    mapping: bool = option(True, "Build models from the database.", "--mapping/--no-mapping"),
    workers: shared.Workers = None,
    as_json: shared.AsJson = False,
) -> None:
    """Reconstruct a folder of photos with COLMAP: features, matches, database, 3D model.

    Writes database.db, sparse/0 (the model; more folders if the photos show several scenes),
    model-0.ply and model-0.jpg (its points, and a picture of points and cameras), features.h5 and
    report.json. Stop it at any time; the same command resumes.

    Exit code 0: there is a model. 1: the photos do not fit together, or something cannot be read.

    Example: hardnet colmap photos -o work
    """
    strategy = Strategy(**shared.given(Strategy, locals()))
    if index is not None and (pairs != "retrieval" or pairs_file is not None):
        raise HardnetError("--index works only with --pairs retrieval: add that, or omit --index")
    chosen: PairSettings | Path
    if pairs_file is not None:
        chosen = pairs_file
    elif pairs == "retrieval":
        chosen = _similar(images, index, similar, output)
    else:
        chosen = PairSettings(pairs, overlap, quadratic, loop)
    cameras = CameraSettings(camera_model.upper(), single_camera, focal, _numbers(camera_params))
    settings = ReconstructionSettings(
        **shared.given(ReconstructionSettings, locals())
        | {
            "descriptor": for_photos(descriptor),
            "max_size": max_size or None,
            "pairs": chosen,
            "mapper": MapperSettings(min_images=min_images, seed=seed),
        }
    )
    count = len(list_images(images))
    exhaustive = isinstance(chosen, PairSettings) and chosen.method == "exhaustive"
    if exhaustive and count > reconstruction.MANY_PHOTOS:
        say(
            f"note: {count} photos have {count * (count - 1) // 2} pairs; --pairs sequential "
            "(photos taken in sequence) or --pairs retrieval is much faster",
            error=True,
        )
    with Stage(resumes=True) as stage:
        report = reconstruct(
            images, output, settings, mapping=mapping, workers=workers, progress=stage
        )
    if as_json:
        print(json.dumps(report.to_json()))
    else:
        _show(report, output)
    if mapping and not report.models:
        usable, verified = report.photos - len(report.skipped), report.verified_pairs
        why = (
            f"{counted(verified, 'pair')} of photos verified, but the viewpoints are too close "
            "together or there are too few points; add viewpoints or try more --keypoints"
        )
        if usable < min_images:
            why = f"only {counted(usable, 'photo')} usable, {min_images} needed"
        elif not verified:
            why = "no two photos show the same scene; try more --keypoints or a larger --max-size"
        say(f"no model: {why}", error=True)
        raise typer.Exit(1)


def _similar(images: Path, index: Path | None, similar: int, output: Path) -> Path:
    if index is None:
        raise HardnetError(
            "--pairs retrieval needs --index: make one with `hardnet index build INDEX IMAGES`"
        )
    photos = {path.relative_to(images).as_posix(): path for path in list_images(images)}
    with Stage() as stage:
        pairs, unknown = similar_pairs(index, photos, similar, progress=stage)
    if unknown:
        say(
            f"note: {counted(len(unknown), 'photo')} not in {index}, so without pairs "
            f"({unknown[0]}, ...); add the readable ones with `hardnet index add`",
            error=True,
        )
    path = output.with_name(f"{output.name}.pairs.txt")
    write_pairs(path, pairs)
    return path


def _numbers(text: str | None) -> tuple[float, ...] | None:
    try:
        return None if text is None else tuple(float(word) for word in text.split(","))
    except ValueError:
        raise HardnetError(f"--camera-params {text}: give comma-separated numbers") from None


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
