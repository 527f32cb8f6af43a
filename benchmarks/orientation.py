"""Upright frames, dominant orientations, or a choice per pair: how many matches each verifies.

Photo pairs with known cameras, as `hardnet bench pose` reads them, are matched in these three ways,
and again with the second photo rotated. Without rotation, the pose is scored as well. The cost of
choosing is how often a pair had to be described a second time. Features with their own detectors
have no choice of orientation and are matched unchanged.

Example: python benchmarks/orientation.py data/sfm/sacre-coeur
             --extractors ALIKED-n16=benchmarks.rivals:aliked
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import typer
from measuring import Descriptor, Keypoints, Output, finish, run_script

from hardnet.bench.development import Extractor, Scene
from hardnet.bench.pose import PosePair, estimate_pose, maa, pose_error, read_pose_scene
from hardnet.cli.bench_output import parse_specs
from hardnet.descriptors import load
from hardnet.features import Features, extract
from hardnet.images import read_image
from hardnet.matching.matches import match
from hardnet.storage import find_code

WAYS = ("dominant", "upright", "auto")
Found = Callable[[Path, int], Features]
"""The features of a photo after some quarter turns."""


def main(
    scenes: Annotated[list[Path], typer.Argument(help="Folders with images/ and true cameras.")],
    turns: Annotated[str, typer.Option(help="Quarter turns of the second photo.")] = "0,1,2",
    descriptor: Descriptor = "hardnet-small@12+24+48",
    extractors: Annotated[str, typer.Option(help="Rivals: LABEL=MODULE:FUNCTION,...")] = "",
    keypoints: Keypoints = 2048,
    output: Output = Path("results/orientation.json"),
) -> None:
    """Verified pairs, inliers and pose accuracy of each method; writes a JSON file."""
    read = [read_pose_scene(folder) for folder in scenes]
    describe = load(descriptor)

    def features(path: Path, quarters: int) -> Features:
        image = np.ascontiguousarray(np.rot90(read_image(path), quarters))
        return extract(image, descriptor=describe, keypoints=keypoints, orientation="auto")

    entrants: dict[str, tuple[Found, str]] = {way: (features, way) for way in WAYS}
    for rival in parse_specs(extractors) if extractors else ():
        entrants[rival.label] = (_turning(find_code(rival.spec), keypoints), "upright")
    rows = []
    for scene in read:
        found = {
            (of, quarters): {path: of(path, quarters) for path in scene.photos}
            for of in dict.fromkeys(of for of, _ in entrants.values())
            for quarters in {0, *map(int, turns.split(","))}
        }
        for quarters in map(int, turns.split(",")):
            for label, (of, way) in entrants.items():
                level, turned = found[of, 0], found[of, quarters]
                row = _measure(scene, level, turned, 90 * quarters, way)
                rows.append(row | {"way": label})
                print(rows[-1])
    finish("orientation", {"rows": rows}, scenes, output)


def _turning(extractor: Extractor, keypoints: int) -> Found:
    """The features that an extractor of photo files finds in a rotated photo."""

    def features(path: Path, quarters: int) -> Features:
        if not quarters:
            return extractor(path, keypoints)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "turned.png"
            turned = np.ascontiguousarray(np.rot90(read_image(path), quarters))
            cv2.imwrite(str(file), turned if turned.ndim == 2 else turned[:, :, ::-1])
            return extractor(file, keypoints)

    return features


def _measure(
    scene: Scene[PosePair],
    level: dict[Path, Features],
    turned: dict[Path, Features],
    degrees: int,
    way: str,
) -> dict[str, Any]:
    """One row: a scene, a rotation, a method."""
    found = [(pair, match(_as(level[a], way), _as(turned[b], way))) for a, b, pair in scene.pairs]
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
        poses = [(pair, estimate_pose(pair, result.xy_a, result.xy_b)) for pair, result in found]
        row["maa"] = maa([pose_error(pose, pair.truth) for pair, pose in poses])
    return row


def _as(features: Features, way: str) -> Features:
    """The features of one orientation, from those that contain both."""
    if way == "dominant":
        assert features.turned is not None
        return features.turned()
    return features if way == "auto" else replace(features, turned=None)


if __name__ == "__main__":
    run_script(main)
