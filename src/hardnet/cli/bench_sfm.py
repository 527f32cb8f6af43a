"""`hardnet bench sfm`: reconstruct scenes with our features and with COLMAP's own SIFT."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from hardnet.cli.bench_output import Descriptors, Json, Output, check_output, finish, labels
from hardnet.cli.image_option import reads_images
from hardnet.cli.stage import Stage


def register(bench: typer.Typer) -> None:
    """Add the command to ``bench``."""
    bench.command("sfm")(reads_images(sfm))


def sfm(
    scenes: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENE...",
            help="Folders with images/ and the true cameras: colmap_ground_truth/ (a COLMAP "
            "model) or gt_dense_cameras/ (*.camera).",
        ),
    ],
    descriptors: Descriptors = "hardnet,rootsift",
    detectors: Annotated[
        str, typer.Option(help="Names of detectors, separated by commas.")
    ] = "dog,hessian-affine",
    keypoints: Annotated[
        int,
        typer.Option(
            min=1,
            help="COLMAP's limit of places per photo; the others may keep as many keypoints as "
            "it kept.",
        ),
    ] = 4096,
    max_size: Annotated[
        int, typer.Option(min=16, help="Shrink longer sides to this many pixels.")
    ] = 1600,
    seed: Annotated[int, typer.Option(min=0, help="Of COLMAP's random samples.")] = 0,
    output: Output = None,
    json_: Json = False,
) -> None:
    """Structure from motion: registered photos, points, tracks, and how far the cameras are off.

    COLMAP's own SIFT takes part in every run; matching is exhaustive and the mapper the same.

    Example: hardnet bench sfm data/sfm/lund-door data/sfm/fountain-P11 -o results/sfm.json
    """
    from hardnet.bench import sfm as benchmark
    from hardnet.bench.sfm import read_scene
    from hardnet.descriptors import parse_specs
    from hardnet.detectors import load as load_detector
    from hardnet.sfm.colmap import require_pycolmap

    check_output(output)
    require_pycolmap()
    specs = parse_specs(descriptors)
    finders = [name.strip() for name in detectors.split(",")]
    for name in finders:
        load_detector(name)  # a wrong name shows now, not after the first scene
    chosen = [read_scene(folder) for folder in scenes]
    with Stage() as stage, tempfile.TemporaryDirectory(prefix="hardnet-sfm-") as work:
        rows = benchmark.compare(
            chosen,
            {spec.label: spec.spec for spec in specs},
            finders,
            keypoints,
            Path(work),
            max_size,
            seed,
            stage,
        )
    settings = {
        "descriptors": labels(specs),
        "detectors": finders,
        "scenes": [scene.name for scene in chosen],
        "keypoints": keypoints,
        "max_size": max_size,
        "seed": seed,
    }
    body = {"kind": "sfm", "rules": benchmark.RULES, "rows": rows}
    finish(body, settings, scenes, output, json_)
