"""`hardnet bench pose`, `light` and `ratio`: real photographs, keypoints detected in each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hardnet.cli.bench_output import (
    Descriptors,
    Json,
    Output,
    StoreFolder,
    check_output,
    detector_names,
    finish,
    labels,
    parse_specs,
)
from hardnet.cli.output import Stage

if TYPE_CHECKING:
    from hardnet.bench.development import Remembered, Setup
    from hardnet.descriptors import Spec

Detectors = Annotated[str, typer.Option(help="Names of detectors, separated by commas.")]
Upright = Annotated[
    bool | None,
    typer.Option(
        "--upright/--oriented",
        help="Turn no frame, or turn all to their dominant orientation [both are measured].",
        show_default=False,
    ),
]
Keypoints = Annotated[int, typer.Option(min=1, help="Budget per photo.")]


def register(bench: typer.Typer) -> None:
    """Add the commands to ``hardnet bench``."""
    bench.command("pose")(pose)
    bench.command("light")(light)
    bench.command("ratio")(ratio)


def pose(
    scenes: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENE...",
            help="Folders with images/ and the true cameras: colmap/ or colmap_ground_truth/ (a "
            "COLMAP model) or gt_dense_cameras/ (*.camera).",
        ),
    ],
    descriptors: Descriptors = "hardnet,rootsift",
    detectors: Detectors = "dog",
    upright: Upright = None,
    keypoints: Keypoints = 2048,
    store: StoreFolder = None,
    output: Output = None,
    json_: Json = False,
) -> None:
    """Relative pose of photo pairs with known cameras: mAA(10), the mean average accuracy.

    Every descriptor gets the ratio of the ratio test that is best for it on the other scenes.

    Example: hardnet bench pose data/sfm/fountain-P11 data/sfm/sacre-coeur -o results/pose.json
    """
    from hardnet.bench import pose as benchmark

    check_output(output)
    chosen = [benchmark.read_pose_scene(folder) for folder in scenes]
    setups, specs = _setups(detectors, upright, keypoints), _specs(descriptors)
    total = sum(len(scene.pairs) for scene in chosen) * len(setups) * len(specs)
    with Stage() as stage:
        entries = benchmark.compare(
            chosen, _load(specs, store), setups, stage.counter("pose", total)
        )
    about = [{"name": s.name, "pairs": len(s.pairs), "truth": s.origin} for s in chosen]
    body = {"kind": "pose", "rules": benchmark.RULES, "scenes": about, "entries": entries}
    finish(body, _settings(specs, setups), scenes, output, json_)


def light(
    cameras: Annotated[
        list[Path],
        typer.Argument(metavar="CAMERA...", help="Folders, each with the frames of a camera."),
    ],
    descriptors: Descriptors = "hardnet,rootsift",
    detectors: Detectors = "dog",
    upright: Upright = None,
    keypoints: Keypoints = 2048,
    store: StoreFolder = None,
    output: Output = None,
    json_: Json = False,
) -> None:
    """Changes of light: frames of fixed cameras, where a right match stays where it is.

    Example: hardnet bench light data/webcam/mexico data/webcam/vegas -o results/light.json
    """
    from hardnet.bench import light as benchmark

    check_output(output)
    chosen = [benchmark.read_camera(folder) for folder in cameras]
    setups, specs = _setups(detectors, upright, keypoints), _specs(descriptors)
    total = sum(len(camera.pairs) for camera in chosen) * len(setups) * len(specs)
    with Stage() as stage:
        entries = benchmark.compare(
            chosen, _load(specs, store), setups, stage.counter("light", total)
        )
    about = [{"name": c.name, "frames": len(c.frames), "pairs": len(c.pairs)} for c in chosen]
    body = {"kind": "light", "rules": benchmark.RULES, "cameras": about, "entries": entries}
    finish(body, _settings(specs, setups), cameras, output, json_)


def ratio(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Sequences (N.png, H_1_k), folders of them, or the frames of a fixed camera.",
        ),
    ],
    descriptors: Descriptors = "hardnet,rootsift",
    detectors: Detectors = "dog",
    upright: Upright = None,
    keypoints: Keypoints = 2048,
    store: StoreFolder = None,
    output: Output = None,
    json_: Json = False,
) -> None:
    """Patches at detected frames: is the partner nearer than the hardest negative of its image?

    Example: hardnet bench ratio data/oxford-affine data/webcam/mexico -o results/ratio.json
    """
    from hardnet.bench import ratio as benchmark

    check_output(output)
    chosen = [scene for folder in folders for scene in benchmark.read_patch_scenes(folder)]
    setups, specs = _setups(detectors, upright, keypoints), _specs(descriptors)
    total = sum(len(scene.pairs) for scene in chosen) * len(setups) * len(specs)
    with Stage() as stage:
        entries = benchmark.compare(
            chosen, _load(specs, store), setups, stage.counter("ratio", total)
        )
    about = [{"name": scene.name, "pairs": len(scene.pairs)} for scene in chosen]
    body = {"kind": "ratio", "rules": benchmark.RULES, "scenes": about, "entries": entries}
    finish(body, _settings(specs, setups), folders, output, json_)


def _setups(detectors: str, upright: bool | None, keypoints: int) -> list[Setup]:
    from hardnet.bench.development import Setup

    ways = (False, True) if upright is None else (upright,)
    return [
        Setup(detector, way, keypoints) for detector in detector_names(detectors) for way in ways
    ]


def _specs(text: str) -> list[Spec]:

    return parse_specs(text)


def _load(specs: Sequence[Spec], store: Path | None) -> dict[str, Remembered]:
    from hardnet.bench.development import Remembered
    from hardnet.bench.store import Store
    from hardnet.descriptors import load

    return {spec.label: Remembered(load(spec.spec), Store(store)) for spec in specs}


def _settings(specs: Sequence[Spec], setups: Sequence[Setup]) -> dict[str, object]:
    return {
        "descriptors": labels(specs),
        "setups": [setup.label for setup in setups],
        "keypoints": setups[0].keypoints,
        "max_size": setups[0].max_size,
    }
