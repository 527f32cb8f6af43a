"""`hardnet bench pairs`, `stereo` and `sfm`: whole images, from detection to geometry."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hardnet.cli.bench_output import (
    Descriptors,
    Detectors,
    Json,
    Output,
    StoreFolder,
    check_output,
    detector_names,
    finish,
    labels,
    parse_specs,
)
from hardnet.cli.options import Keypoints, Upright, reads_images
from hardnet.cli.output import Stage, say
from hardnet.errors import HardnetError

if TYPE_CHECKING:
    from hardnet.bench.stereo.run import OpenSet


def register(bench: typer.Typer) -> None:
    """Add the commands to ``hardnet bench``."""
    bench.command("pairs")(reads_images(pairs))
    bench.command("stereo")(reads_images(stereo))
    bench.command("sfm")(reads_images(sfm))


def pairs(
    data: Annotated[
        list[Path],
        typer.Argument(help="Folders of sequences (N.png, H_1_k) or of pairs (1/, 2/, h/)."),
    ],
    output: Output = None,
    descriptors: Descriptors = "hardnet,rootsift",
    sequences: Annotated[
        str | None, typer.Option(help="Only these, by name, separated by commas.")
    ] = None,
    keypoints: Keypoints = 2048,
    json_: Json = False,
) -> None:
    """Correct matches and verified image pairs, in the pipeline of `hardnet match`.

    Example: hardnet bench pairs data/oxford-affine data/evd -o results/match_real_pairs.json
    """
    from hardnet.bench import pairs as benchmark
    from hardnet.descriptors import load
    from hardnet.patchsets.sequences import find_sequences

    check_output(output)
    chosen = find_sequences(data, None if sequences is None else sequences.split(","))
    specs = parse_specs(descriptors)
    contestants = {spec.label: load(spec.spec) for spec in specs}
    total = sum(len(s.targets) for s in chosen) * len(contestants)
    with Stage() as stage:
        rows = benchmark.compare(chosen, contestants, keypoints, stage.counter("pairs", total))
    settings = {
        "descriptors": labels(specs),
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
    finish(body, settings, data, output, json_)


def stereo(
    sets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FOLDER...",
            help="Folders of image pairs; the name of a folder says which set it is, else write "
            "SET=FOLDER with SET one of EF, EVD, OxAff, SymB, GDB, WxBS, LTLL, HPatches.",
        ),
    ] = None,
    output: Output = None,
    descriptors: Descriptors = "hardnet,rootsift",
    detectors: Detectors = "dog",
    rule: Annotated[
        str, typer.Option(help="When a pair is matched: gt-15, mods, mods-deep or geometry.")
    ] = "gt-15",
    strategy: Annotated[
        str, typer.Option(help="How it is matched: default, mods or mods-degensac.")
    ] = "default",
    ratio: Annotated[
        float | None, typer.Option(help="Of the ratio test, instead of the strategy's.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="What is fitted: by-truth, homography or fundamental.")
    ] = "by-truth",
    keypoints: Keypoints = 2048,
    upright: Upright = False,
    store: StoreFolder = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Only say whether the sets are complete, exit code 1 if not; without a folder: "
            "what a complete one of each set holds.",
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """Image pairs matched and inliers per matched pair, for descriptors x detectors.

    A folder holds sequences (N.png, H_1_k), pairs (1/, 2/, h/), scenes with corrs.txt (WxBS), or
    images and pairs.txt: a line IMAGE_A IMAGE_B [TRUTH] for each pair, TRUTH a file with a
    homography or with rows x1 y1 x2 y2. An interrupted run continues where it was.

    Example: hardnet bench stereo data/evd data/wxbs --detectors dog,hessian-affine -o stereo.json

    Is my copy complete? hardnet bench stereo EF=data/edge --check
    """
    from hardnet.bench.stereo.measure import rule_by_name, summarise
    from hardnet.bench.stereo.run import (
        Protocol,
        compare,
        conventions,
        label_of,
        open_sets,
        strategy_by_name,
    )
    from hardnet.descriptors import load

    if not sets:
        if not check:
            raise HardnetError("no folder of image pairs: name one, or ask with --check what it is")
        print(conventions())
        return
    opened = open_sets(sets)
    if check:
        _check(opened)
        return
    check_output(output)
    chosen = rule_by_name(rule)
    setup = Protocol(
        keypoints=keypoints,
        upright=upright,
        model=model,  # type: ignore[arg-type]  # Protocol says which there are
        strategy=strategy_by_name(strategy, ratio),
    )
    found_by = detector_names(detectors)
    specs = parse_specs(descriptors)
    contestants = {spec.label: load(spec.spec) for spec in specs}
    total = sum(len(each.pairs) for each in opened) * len(found_by) * len(contestants)
    with Stage(resumes=True) as stage:
        advance = stage.counter("stereo", total)
        rows = compare(opened, contestants, found_by, setup, store, advance)
    shown = [label_of(name) for name in found_by]
    settings = {"descriptors": labels(specs), "detectors": shown, "rule": rule}
    settings |= {"strategy_name": strategy} | setup.settings()
    body = {
        "kind": "stereo",
        "rule": {"name": chosen.name, "about": chosen.about},
        "sets": [_about(each) for each in opened],
        "summary": summarise(rows, chosen),
        "rows": rows,
    }
    finish(body, settings, [each.folder for each in opened], output, json_)


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
    detectors: Detectors = "dog,hessian-affine",
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
    from hardnet.interop.colmap.database import require_pycolmap

    check_output(output)
    require_pycolmap()
    specs, finders = parse_specs(descriptors), detector_names(detectors)
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
