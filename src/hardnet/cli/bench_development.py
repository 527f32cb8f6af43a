"""`hardnet bench pose`, `light` and `ratio`: real photographs, keypoints detected in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hardnet.cli.bench_output import (
    Descriptors,
    Detectors,
    Json,
    Output,
    Spec,
    StoreFolder,
    check_output,
    detector_names,
    finish,
    labels,
    parse_specs,
)
from hardnet.cli.options import Keypoints, grouped
from hardnet.cli.output import Stage
from hardnet.errors import HardnetError

Upright = Annotated[
    bool | None,
    typer.Option(
        "--upright/--oriented",
        help="Turn no frame, or turn all to their dominant orientation [both are measured].",
        show_default=False,
    ),
]


def register(bench: typer.Typer) -> None:
    """Add the commands to ``hardnet bench``."""
    bench.command("pose")(grouped(pose))
    bench.command("light")(grouped(light))
    bench.command("ratio")(grouped(ratio))


Extractors = Annotated[
    str,
    typer.Option(
        metavar="LABEL=MODULE:FUNCTION,...",
        help="Rivals with a detector of their own: functions that make hardnet.Features from "
        "(photo, most keypoints). Not for ratio, whose frames are shared.",
    ),
]


@dataclass(frozen=True)
class Contest:
    """The options of the three commands."""

    descriptors: Descriptors = "hardnet,rootsift"
    detectors: Detectors = "dog"
    upright: Upright = None
    keypoints: Keypoints = 2048
    extractors: Extractors = ""
    store: StoreFolder = None
    output: Output = None
    json_: Json = False

    def run(
        self, benchmark: Any, scenes: Sequence[Any], about: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Measure every descriptor in every setup; the body of the results and the settings.

        Args:
            benchmark: a module of ``hardnet.bench`` with ``compare`` and ``RULES``.
            scenes: what it compares on.
            about: what the results say of the scenes.
        """
        from hardnet.bench.development import Remembered, Setup, contestants
        from hardnet.bench.store import Store
        from hardnet.descriptors import load
        from hardnet.stored_names import find_code

        kind = benchmark.__name__.rpartition(".")[2]
        specs = parse_specs(self.descriptors)
        ways = (False, True) if self.upright is None else (self.upright,)
        names = detector_names(self.detectors)
        setups = [Setup(detector, way, self.keypoints) for detector in names for way in ways]
        described = {spec.label: Remembered(load(spec.spec), Store(self.store)) for spec in specs}
        whole = {one.label: find_code(one.spec) for one in self._rivals(kind)}
        total = sum(len(scene.pairs) for scene in scenes)
        total *= len(setups) * len(specs) + len(whole)
        with Stage(resumes=True) as stage:
            advance = stage.counter(kind, total)
            if kind == "ratio":
                entries = benchmark.compare(scenes, described, setups, advance)
            else:
                entrants = contestants(described, setups, whole, self.keypoints)
                entries = benchmark.compare(scenes, entrants, advance)
        settings = {
            "descriptors": labels(specs),
            "setups": [setup.label for setup in setups],
            "keypoints": self.keypoints,
            "max_size": setups[0].max_size,
        }
        if whole:
            settings["extractors"] = list(whole)
        return {"kind": kind, "rules": benchmark.RULES, **about, "entries": entries}, settings

    def _rivals(self, kind: str) -> list[Spec]:
        if self.extractors and kind == "ratio":
            raise HardnetError("--extractors: the frames of `bench ratio` are the same for all")
        return parse_specs(self.extractors) if self.extractors else []


def pose(
    scenes: Annotated[
        list[Path],
        typer.Argument(
            metavar="SCENE...",
            help="Folders with images/ and the true cameras: colmap/ or colmap_ground_truth/ (a "
            "COLMAP model) or gt_dense_cameras/ (*.camera).",
        ),
    ],
    contest: Contest,
) -> None:
    """Relative pose of photo pairs with known cameras: mAA(10), the mean average accuracy.

    Every descriptor gets the ratio of the ratio test that is best for it on the other scenes.

    Example: hardnet bench pose data/sfm/fountain-P11 data/sfm/sacre-coeur -o results/pose.json
    """
    from hardnet.bench import pose as benchmark

    check_output(contest.output)
    chosen = [benchmark.read_pose_scene(folder) for folder in scenes]
    about = [{"name": s.name, "pairs": len(s.pairs), "truth": s.origin} for s in chosen]
    results = contest.run(benchmark, chosen, {"scenes": about})
    finish(*results, scenes, contest.output, contest.json_)


def light(
    cameras: Annotated[
        list[Path],
        typer.Argument(metavar="CAMERA...", help="Folders, each with the frames of a camera."),
    ],
    contest: Contest,
) -> None:
    """Changes of light: frames of fixed cameras, where a right match stays where it is.

    Example: hardnet bench light data/webcam/mexico data/webcam/vegas -o results/light.json
    """
    from hardnet.bench import light as benchmark

    check_output(contest.output)
    chosen = [benchmark.read_camera(folder) for folder in cameras]
    about = [{"name": c.name, "frames": len(c.frames), "pairs": len(c.pairs)} for c in chosen]
    results = contest.run(benchmark, chosen, {"cameras": about})
    finish(*results, cameras, contest.output, contest.json_)


def ratio(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="FOLDER...",
            help="Sequences (N.png, H_1_k), folders of them, or the frames of a fixed camera.",
        ),
    ],
    contest: Contest,
) -> None:
    """Patches at detected frames: is the partner nearer than the hardest negative of its image?

    Example: hardnet bench ratio data/oxford-affine data/webcam/mexico -o results/ratio.json
    """
    from hardnet.bench import ratio as benchmark

    check_output(contest.output)
    chosen = [scene for folder in folders for scene in benchmark.read_patch_scenes(folder)]
    about = [{"name": scene.name, "pairs": len(scene.pairs)} for scene in chosen]
    results = contest.run(benchmark, chosen, {"scenes": about})
    finish(*results, folders, contest.output, contest.json_)
