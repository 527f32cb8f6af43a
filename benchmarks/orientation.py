"""Upright frames, dominant orientations, or the choice for each pair: what each of them verifies.

Photo pairs with known cameras, as `hardnet bench pose` reads them, are matched in the three ways,
and once more with the second photo turned. Where it is not turned, the pose is judged, too. What a
choice costs is how often a pair had to be described a second time.

Example: python benchmarks/orientation.py data/sfm/sacre-coeur data/sfm/lund-door
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from report.tables import write

from hardnet import provenance
from hardnet.bench.pose import PosePair, PoseScene, estimate_pose, maa, pose_error, read_pose_scene
from hardnet.descriptors import load
from hardnet.features import Features, extract
from hardnet.images import read_image
from hardnet.matching.matches import Matches, match
from hardnet.provenance import without_folders

WAYS = ("dominant", "upright", "auto")


def main(
    scenes: Annotated[list[Path], typer.Argument(help="Folders with images/ and true cameras.")],
    turns: Annotated[str, typer.Option(help="Quarter turns of the second photo.")] = "0,1,2",
    descriptor: Annotated[str, typer.Option(help="Name or weights file.")] = "hardnet",
    keypoints: Annotated[int, typer.Option(help="Per photo.")] = 2048,
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("results/orientation.json"),
) -> None:
    """Pairs verified, inliers and pose accuracy of each way; writes a JSON file."""
    read = [read_pose_scene(folder) for folder in scenes]
    describe = load(descriptor)

    def features(path: Path, quarters: int) -> Features:
        image = np.ascontiguousarray(np.rot90(read_image(path), quarters))
        return extract(image, descriptor=describe, keypoints=keypoints, orientation="auto")

    rows = []
    for scene in read:
        views = {v.path for pair in scene.pairs for v in (pair.a, pair.b)}
        level = {path: features(path, 0) for path in sorted(views)}
        for quarters in map(int, turns.split(",")):
            turned = {p: features(p, quarters) for p in level} if quarters else level
            rows += [_measure(scene, level, turned, 90 * quarters, way) for way in WAYS]
            for row in rows[-len(WAYS) :]:
                print(row)
    results: dict[str, Any] = {
        "kind": "orientation",
        "rows": rows,
        "provenance": provenance.collect(
            f"python benchmarks/orientation.py {shlex.join(map(without_folders, sys.argv[1:]))}",
            {"descriptor": descriptor, "keypoints": keypoints, "turns": turns},
            scenes,
        ),
    }
    write(results, output)


def _measure(
    scene: PoseScene,
    level: dict[Path, Features],
    turned: dict[Path, Features],
    degrees: int,
    way: str,
) -> dict[str, Any]:
    """One line: a scene, a turn, a way."""
    found = [
        (pair, match(_as(level[pair.a.path], way), _as(turned[pair.b.path], way)))
        for pair in scene.pairs
    ]
    row: dict[str, Any] = {
        "scene": scene.name,
        "pairs": len(found),
        "turned": degrees,
        "way": way,
        "verified": sum(result.geometry.kind is not None for _, result in found),
        "inliers": float(np.mean([result.inliers.sum() for _, result in found])),
        "dominant": sum(result.a.orientation == "dominant" for _, result in found),
    }
    if degrees == 0:
        row["maa"] = maa([_pose_error(pair, result) for pair, result in found])
    return row


def _as(features: Features, way: str) -> Features:
    """The features of one way, from those that leave the choice open."""
    if way == "dominant":
        assert features.turned is not None
        return features.turned()
    return features if way == "auto" else replace(features, turned=None)


def _pose_error(pair: PosePair, result: Matches) -> float:
    return pose_error(estimate_pose(pair, result.xy_a, result.xy_b), pair.truth)


if __name__ == "__main__":
    typer.run(main)
