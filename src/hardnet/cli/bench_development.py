"""`hardnet bench pose`, `light` and `ratio`: real photographs, keypoints detected in each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from hardnet.cli.bench_output import Detectors, StoredComparison, detector_names, parse_specs
from hardnet.cli.options import Keypoints, argument, grouped, option
from hardnet.cli.output import Stage
from hardnet.errors import HardnetError

Upright = Annotated[
    bool | None,
    option(
        ...,
        "Turn no frame, or turn all to their dominant orientation [both are measured].",
        "--upright/--oriented",
        show_default=False,
    ),
]


Extractors = Annotated[
    str,
    option(
        ...,
        "Rivals with a detector of their own: functions that make hardnet.Features from "
        "(photo, most keypoints). Not for ratio, whose frames are shared.",
        metavar="LABEL=MODULE:FUNCTION,...",
    ),
]


@dataclass(frozen=True)
class Contest(StoredComparison):
    """The options of the three commands."""

    detectors: Detectors = "dog"
    upright: Upright = None
    keypoints: Keypoints = 2048
    extractors: Extractors = ""

    def run(
        self, benchmark: Any, scenes: Sequence[Any], folders: Sequence[Path], about: dict[str, Any]
    ) -> None:
        """Measure every descriptor in every setup; write and show the results.

        ``benchmark`` is a module of ``hardnet.bench`` with ``compare`` and ``RULES``; ``about`` is
        what the results say of the scenes.
        """
        from hardnet.bench.development import Remembered, Setup, contestants
        from hardnet.bench.store import Store
        from hardnet.stored_names import find_code

        kind = benchmark.__name__.rpartition(".")[2]
        ways = (False, True) if self.upright is None else (self.upright,)
        names = detector_names(self.detectors)
        setups = [Setup(detector, way, self.keypoints) for detector in names for way in ways]
        store = Store(self.store)
        described = {label: Remembered(d, store) for label, d in self.load().items()}
        if self.extractors and kind == "ratio":
            raise HardnetError("--extractors: the frames of `bench ratio` are the same for all")
        rivals = parse_specs(self.extractors) if self.extractors else []
        whole = {one.label: find_code(one.spec) for one in rivals}
        total = sum(len(scene.pairs) for scene in scenes)
        total *= len(setups) * len(described) + len(whole)
        with Stage(resumes=True) as stage:
            advance = stage.counter(kind, total)
            if kind == "ratio":
                entries = benchmark.compare(scenes, described, setups, advance)
            else:
                entrants = contestants(described, setups, whole, self.keypoints)
                entries = benchmark.compare(scenes, entrants, advance)
        settings = {
            "setups": [setup.label for setup in setups],
            "keypoints": self.keypoints,
            "max_size": setups[0].max_size,
        }
        if whole:
            settings["extractors"] = list(whole)
        body = {"kind": kind, "rules": benchmark.RULES, **about, "entries": entries}
        self.finish(body, settings, folders)


@grouped
def pose(
    contest: Contest,
    scenes: list[Path] = argument(
        "Folders with images/ and the true cameras: colmap/ or colmap_ground_truth/ (a COLMAP "
        "model) or gt_dense_cameras/ (*.camera).",
        metavar="SCENE...",
    ),
) -> None:
    """Relative pose of photo pairs with known cameras: mAA(10), the mean average accuracy.

    Every descriptor gets the ratio of the ratio test that is best for it on the other scenes.

    Example: hardnet bench pose data/sfm/fountain-P11 data/sfm/sacre-coeur -o results/pose.json
    """
    from hardnet.bench import pose as benchmark

    chosen = [benchmark.read_pose_scene(folder) for folder in scenes]
    about = [{"name": s.name, "pairs": len(s.pairs), "truth": s.origin} for s in chosen]
    contest.run(benchmark, chosen, scenes, {"scenes": about})


@grouped
def light(
    contest: Contest,
    cameras: list[Path] = argument(
        "Folders, each with the frames of a camera.", metavar="CAMERA..."
    ),
) -> None:
    """Changes of light: frames of fixed cameras, where a right match stays where it is.

    Example: hardnet bench light data/webcam/mexico data/webcam/vegas -o results/light.json
    """
    from hardnet.bench import light as benchmark

    chosen = [benchmark.read_camera(folder) for folder in cameras]
    about = [{"name": c.name, "frames": len(c.frames), "pairs": len(c.pairs)} for c in chosen]
    contest.run(benchmark, chosen, cameras, {"cameras": about})


@grouped
def ratio(
    contest: Contest,
    folders: list[Path] = argument(
        "Sequences (N.png, H_1_k), folders of them, or the frames of a fixed camera.",
        metavar="FOLDER...",
    ),
) -> None:
    """Patches at detected frames: is the partner nearer than the hardest negative of its image?

    Example: hardnet bench ratio data/oxford-affine data/webcam/mexico -o results/ratio.json
    """
    from hardnet.bench import ratio as benchmark

    chosen = [scene for folder in folders for scene in benchmark.read_patch_scenes(folder)]
    about = [{"name": scene.name, "pairs": len(scene.pairs)} for scene in chosen]
    contest.run(benchmark, chosen, folders, {"scenes": about})


COMMANDS = (pose, light, ratio)
