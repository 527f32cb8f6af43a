"""`hardnet bench pairs`, `stereo` and `sfm`: whole images, from detection to geometry."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hardnet.cli.bench_output import Comparison, Detectors, StoredComparison, detector_names
from hardnet.cli.options import Keypoints, Upright, argument, grouped, option, reads_images
from hardnet.cli.output import Stage, say
from hardnet.errors import HardnetError

if TYPE_CHECKING:
    from hardnet.bench.stereo import OpenSet


@reads_images
@grouped
def pairs(
    rivals: Comparison,
    data: list[Path] = argument("Folders of sequences (N.png, H_1_k) or of pairs (1/, 2/, h/)."),
    sequences: str | None = option(None, "Only these, by name, separated by commas."),
    keypoints: Keypoints = 2048,
) -> None:
    """Correct matches and verified image pairs, in the pipeline of `hardnet match`.

    Example: hardnet bench pairs data/oxford-affine data/evd -o results/match_real_pairs.json
    """
    from hardnet.bench import pairs as benchmark
    from hardnet.patchsets.sequences import find_sequences

    chosen = find_sequences(data, None if sequences is None else sequences.split(","))
    contestants = rivals.load()
    total = sum(len(s.targets) for s in chosen) * len(contestants)
    with Stage() as stage:
        rows = benchmark.compare(chosen, contestants, keypoints, stage.counter("pairs", total))
    settings = {
        "sequences": [s.name for s in chosen],
        "keypoints": keypoints,
        "model": "homography",
    }
    body = {
        "kind": "pairs",
        "rules": benchmark.RULES,
        "total": benchmark.summarise(rows, "sequence"),
        "rows": rows,
    }
    rivals.finish(body, settings, data)


@reads_images
@grouped
def stereo(
    rivals: StoredComparison,
    sets: list[str] | None = argument(
        "Folders of image pairs; the name of a folder says which set it is, else write "
        "SET=FOLDER with SET one of EF, EVD, OxAff, SymB, GDB, WxBS, LTLL, HPatches.",
        default=None,
        metavar="FOLDER...",
    ),
    detectors: Detectors = "dog",
    rule: str = option("gt-15", "When a pair is matched: gt-15, mods, mods-deep or geometry."),
    strategy: str = option("default", "How it is matched: default, mods or mods-degensac."),
    ratio: float | None = option(None, "Of the ratio test, instead of the strategy's."),
    model: str = option("by-truth", "What is fitted: by-truth, homography or fundamental."),
    keypoints: Keypoints = 2048,
    upright: Upright = False,
    check: bool = option(
        False,
        "Only say whether the sets are complete, exit code 1 if not; without a folder: "
        "what a complete one of each set holds.",
        "--check",
    ),
) -> None:
    """Image pairs matched and inliers per matched pair, for descriptors x detectors.

    A folder holds sequences (N.png, H_1_k), pairs (1/, 2/, h/), scenes with corrs.txt (WxBS), or
    images and pairs.txt: a line IMAGE_A IMAGE_B [TRUTH] for each pair, TRUTH a file with a
    homography or with rows x1 y1 x2 y2. An interrupted run continues where it was.

    Example: hardnet bench stereo data/evd data/wxbs --detectors dog,hessian-affine -o stereo.json

    Is my copy complete? hardnet bench stereo EF=data/edge --check
    """
    from hardnet.bench.development import label_of
    from hardnet.bench.stereo import (
        Protocol,
        compare,
        conventions,
        open_sets,
        rule_by_name,
        strategy_by_name,
        summarise,
    )

    if not sets:
        if not check:
            raise HardnetError("no folder of image pairs: name one, or ask with --check what it is")
        print(conventions())
        return
    opened = open_sets(sets)
    if check:
        _check(opened)
        return
    chosen = rule_by_name(rule)
    setup = Protocol(
        keypoints=keypoints,
        upright=upright,
        model=model,  # type: ignore[arg-type]  # Protocol says which there are
        strategy=strategy_by_name(strategy, ratio),
    )
    found_by = detector_names(detectors)
    contestants = rivals.load()
    total = sum(len(each.pairs) for each in opened) * len(found_by) * len(contestants)
    with Stage(resumes=True) as stage:
        advance = stage.counter("stereo", total)
        rows = compare(opened, contestants, found_by, setup, rivals.store, advance)
    shown = [label_of(name) for name in found_by]
    settings = {"detectors": shown, "rule": rule}
    settings |= {"strategy_name": strategy} | asdict(setup)
    body = {
        "kind": "stereo",
        "rule": {"name": chosen.name, "about": chosen.about},
        "sets": [_about(each) for each in opened],
        "summary": summarise(rows, chosen),
        "rows": rows,
    }
    rivals.finish(body, settings, [each.folder for each in opened])


def _about(opened: OpenSet) -> dict[str, Any]:
    return {
        "name": opened.name,
        "pairs": len(opened.pairs),
        "complete": opened.known.pairs if opened.known else None,
    }


def _check(opened: list[OpenSet]) -> None:
    for each in opened:
        say(each.summary())
        if not each.complete and each.known is not None:
            say(f"  a complete {each.name} holds {each.known.layout}")
    if not all(each.complete for each in opened):
        raise typer.Exit(1)


@reads_images
@grouped
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
        "COLMAP's limit of places per photo; the others may keep as many keypoints as it kept.",
        min=1,
    ),
    max_size: int = option(1600, "Shrink longer sides to this many pixels.", min=16),
    seed: int = option(0, "Of COLMAP's random samples.", min=0),
) -> None:
    """Structure from motion: registered photos, points, tracks, and how far the cameras are off.

    COLMAP's own SIFT takes part in every run; matching is exhaustive and the mapper the same.

    Example: hardnet bench sfm data/sfm/lund-door data/sfm/fountain-P11 -o results/sfm.json
    """
    from hardnet.bench import sfm as benchmark
    from hardnet.bench.sfm import read_scene
    from hardnet.interop.colmap.database import require_pycolmap

    require_pycolmap()
    finders = detector_names(detectors)
    chosen = [read_scene(folder) for folder in scenes]
    with Stage() as stage, tempfile.TemporaryDirectory(prefix="hardnet-sfm-") as work:
        rows = benchmark.compare(
            chosen,
            {spec.label: spec.spec for spec in rivals.specs},
            finders,
            keypoints,
            Path(work),
            max_size,
            seed,
            stage,
        )
    settings = {
        "detectors": finders,
        "scenes": [scene.name for scene in chosen],
        "keypoints": keypoints,
        "max_size": max_size,
        "seed": seed,
    }
    body = {"kind": "sfm", "rules": benchmark.RULES, "rows": rows}
    rivals.finish(body, settings, scenes)


COMMANDS = (pairs, stereo, sfm)
