"""`hardnet bench pairs`, `stereo`, `sfm`, `pose`, `light`, `ratio`: keypoints of whole images."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hardnet import detectors
from hardnet.bench import light as lighting
from hardnet.bench import pairs as image_pairs
from hardnet.bench import pose as relative_pose
from hardnet.bench import ratio as patch_ratio
from hardnet.bench import sfm as reconstruction
from hardnet.bench.development import Remembered, Setup, contestants, label_of
from hardnet.bench.stereo import RULES, STRATEGIES, Protocol, compare, summarise
from hardnet.bench.stereo_sets import conventions, open_sets
from hardnet.cli.bench_output import Comparison, StoredComparison, parse_specs
from hardnet.cli.options import Keypoints, Seed, Upright, argument, option, reads_images
from hardnet.cli.output import Stage, say
from hardnet.errors import HardnetError
from hardnet.interop.colmap.database import require_pycolmap
from hardnet.patchsets.sequences import find_sequences
from hardnet.storage import find_code

Detectors = Annotated[str, option(..., "Names of detectors, separated by commas.")]


def detector_names(text: str) -> list[str]:
    """Detector names, checked before any work; the comma of ``affnet:A.pth,O.pth`` is kept."""
    names: list[str] = []
    for word in text.split(","):
        if names and names[-1].startswith("affnet:") and word.endswith(".pth"):
            names[-1] += f",{word}"
        else:
            names.append(word.strip())
    for name in names:
        detectors.load(name)
    return list(dict.fromkeys(names))


@reads_images
def pairs(
    rivals: Comparison,
    data: list[Path] = argument("Folders of sequences (N.png, H_1_k) or of pairs (1/, 2/, h/)."),
    sequences: str | None = option(None, "Only these, by name, separated by commas."),
    keypoints: Keypoints = 2048,
) -> None:
    """Correct matches and verified image pairs, in the pipeline of `hardnet match`.

    Example: hardnet bench pairs data/oxford-affine data/evd -o results/match_real_pairs.json
    """
    chosen = find_sequences(data, None if sequences is None else sequences.split(","))
    contestants = rivals.load()
    total = sum(len(s.targets) for s in chosen) * len(contestants)
    with Stage() as stage:
        rows = image_pairs.compare(chosen, contestants, keypoints, stage.counter("pairs", total))
    names = [sequence.name for sequence in chosen]
    settings = {"sequences": names, "keypoints": keypoints, "model": "homography"}
    total_of = image_pairs.summarise(rows, "sequence")
    body = {"kind": "pairs", "rules": image_pairs.RULES, "total": total_of, "rows": rows}
    rivals.finish(body, settings, data)


@reads_images
def stereo(
    rivals: StoredComparison,
    sets: list[str] | None = argument(
        "Folders of image pairs; the name of a folder says which set it is, else write "
        "SET=FOLDER with SET one of EF, EVD, OxAff, SymB, GDB, WxBS, LTLL, HPatches.",
        default=None,
        metavar="FOLDER...",
    ),
    detectors: Detectors = "dog",
    rule: Literal["gt-15", "mods", "mods-deep", "geometry"] = option(
        "gt-15", "When a pair counts as matched."
    ),
    strategy: Literal["default", "mods", "mods-degensac"] = option("default", "How to match."),
    ratio: float | None = option(None, "Ratio of the ratio test [that of the strategy]."),
    model: Literal["by-truth", "homography", "fundamental"] = option("by-truth", "Model to fit."),
    keypoints: Keypoints = 2048,
    upright: Upright = False,
    check: bool = option(
        False,
        "Only check whether the sets are complete (exit code 1 if not); without a folder, list "
        "what each set should contain.",
    ),
) -> None:
    """Image pairs matched and inliers per matched pair, for descriptors x detectors.

    A folder holds sequences (N.png, H_1_k), pairs (1/, 2/, h/), scenes with corrs.txt (WxBS), or
    images and pairs.txt: a line IMAGE_A IMAGE_B [TRUTH] for each pair, TRUTH a file with a
    homography or with rows x1 y1 x2 y2. An interrupted run continues where it stopped.

    Example: hardnet bench stereo data/evd data/wxbs --detectors dog,hessian-affine -o stereo.json
    """
    if not sets:
        if not check:
            raise HardnetError("no folder of image pairs: name one, or list the sets with --check")
        print(conventions())
        return
    opened = open_sets(sets)
    if check:
        for each in opened:
            say(each.summary())
            if not each.complete and each.known is not None:
                say(f"  a complete {each.name} holds {each.known.layout}")
        raise typer.Exit(0 if all(each.complete for each in opened) else 1)
    how = STRATEGIES[strategy]
    if ratio is not None:
        how = replace(how, ratio=ratio)
    setup = Protocol(keypoints=keypoints, upright=upright, model=model, strategy=how)
    found_by, contestants = detector_names(detectors), rivals.load()
    total = sum(len(each.pairs) for each in opened) * len(found_by) * len(contestants)
    with Stage(resumes=True) as stage:
        advance = stage.counter("stereo", total)
        rows = compare(opened, contestants, found_by, setup, rivals.store, advance)
    settings = {"detectors": [label_of(name) for name in found_by], "rule": rule}
    settings |= {"strategy_name": strategy} | asdict(setup)
    body = {
        "kind": "stereo",
        "rule": {"name": rule, "about": RULES[rule].about},
        "sets": [
            {"name": s.name, "pairs": len(s.pairs), "complete": s.known.pairs if s.known else None}
            for s in opened
        ],
        "summary": summarise(rows, RULES[rule]),
        "rows": rows,
    }
    rivals.finish(body, settings, [each.folder for each in opened])


@reads_images
def sfm(
    rivals: Comparison,
    scenes: list[Path] = argument(
        "Folders with images/ and the true cameras: colmap_ground_truth/ (a COLMAP "
        "model) or gt_dense_cameras/ (*.camera).",
        metavar="SCENE...",
    ),
    detectors: Detectors = "dog,hessian-affine",
    keypoints: int = option(
        4096,
        "Limit of COLMAP's SIFT per photo; the others may keep as many keypoints as it kept.",
        min=1,
    ),
    max_size: int = option(1600, "Shrink longer sides to this many pixels.", min=16),
    seed: Seed = 0,
) -> None:
    """Structure from motion: registered photos, points, tracks, and how far the cameras are off.

    COLMAP's own SIFT takes part in every run; matching is exhaustive and the mapper the same.

    Example: hardnet bench sfm data/sfm/lund-door data/sfm/fountain-P11 -o results/sfm.json
    """
    require_pycolmap()
    found_by, rivals_by_label = detector_names(detectors), {s.label: s.spec for s in rivals.specs}
    chosen = [reconstruction.read_scene(folder) for folder in scenes]
    with Stage() as stage, tempfile.TemporaryDirectory(prefix="hardnet-sfm-") as work:
        rows = reconstruction.compare(
            chosen, rivals_by_label, found_by, keypoints, Path(work), max_size, seed, stage
        )
    names = [scene.name for scene in chosen]
    settings = {"detectors": found_by, "scenes": names, "keypoints": keypoints}
    settings |= {"max_size": max_size, "seed": seed}
    rivals.finish({"kind": "sfm", "rules": reconstruction.RULES, "rows": rows}, settings, scenes)


@dataclass(frozen=True)
class Contest(StoredComparison):
    """The options of `pose`, `light` and `ratio`."""

    detectors: Detectors = "dog"
    upright: bool | None = option(
        None,
        "Upright frames, or frames in their dominant orientation [both are measured].",
        "--upright/--oriented",
        show_default=False,
    )
    keypoints: Keypoints = 2048
    extractors: str = option(
        "",
        "Rivals with a detector of their own: functions that make hardnet.Features from "
        "(photo, most keypoints). Not for ratio, whose frames are shared.",
        metavar="LABEL=MODULE:FUNCTION,...",
    )

    def run(
        self, benchmark: Any, scenes: Sequence[Any], folders: Sequence[Path], about: dict[str, Any]
    ) -> None:
        """Measure every descriptor in every setup; write and show the results.

        ``benchmark`` is a module of ``hardnet.bench`` with ``compare`` and ``RULES``; ``about``
        describes the scenes in the results.
        """
        kind = benchmark.__name__.rpartition(".")[2]
        ways = (False, True) if self.upright is None else (self.upright,)
        names = detector_names(self.detectors)
        setups = [Setup(detector, way, self.keypoints) for detector in names for way in ways]
        described = {label: Remembered(d, self.store) for label, d in self.load().items()}
        if self.extractors and kind == "ratio":
            raise HardnetError("--extractors: the frames of `bench ratio` are the same for all")
        rivals = parse_specs(self.extractors) if self.extractors else []
        whole = {one.label: find_code(one.spec) for one in rivals}
        total = sum(len(scene.pairs) for scene in scenes)
        total *= len(setups) * len(described) + len(whole)
        with Stage(resumes=True) as stage:
            entrants = contestants(described, setups, whole, self.keypoints)
            entries = benchmark.compare(scenes, entrants, stage.counter(kind, total))
        settings = {"setups": [setup.label for setup in setups], "keypoints": self.keypoints}
        settings |= {"max_size": setups[0].max_size}
        settings |= {"extractors": list(whole)} if whole else {}
        body = {"kind": kind, "rules": benchmark.RULES, **about, "entries": entries}
        self.finish(body, settings, folders)


@reads_images
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
    chosen = [relative_pose.read_pose_scene(folder) for folder in scenes]
    about = [{"name": s.name, "pairs": len(s.pairs), "truth": s.origin} for s in chosen]
    contest.run(relative_pose, chosen, scenes, {"scenes": about})


@reads_images
def light(
    contest: Contest,
    cameras: list[Path] = argument("Folders, each with frames of one camera.", metavar="CAMERA..."),
) -> None:
    """Changes of light: frames of fixed cameras, where a right match stays where it is.

    Example: hardnet bench light data/webcam/mexico data/webcam/vegas -o results/light.json
    """
    chosen = [lighting.read_camera(folder) for folder in cameras]
    about = [{"name": c.name, "frames": len(c.photos), "pairs": len(c.pairs)} for c in chosen]
    contest.run(lighting, chosen, cameras, {"cameras": about})


@reads_images
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
    chosen = [scene for folder in folders for scene in patch_ratio.read_patch_scenes(folder)]
    about = [{"name": scene.name, "pairs": len(scene.pairs)} for scene in chosen]
    contest.run(patch_ratio, chosen, folders, {"scenes": about})


COMMANDS = (pairs, stereo, sfm, pose, light, ratio)
