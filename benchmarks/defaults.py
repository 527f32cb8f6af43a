"""Which defaults suit photos best: detector, window, ratio, mutual matching.

It uses only tuning scenes, never held-out ones (`hardnet.bench.development`). Each detector,
orientation and window is tried with several ratios; the best one is also tried without mutual
matching. `12+24` is one descriptor of two windows. The scores are the pose of photo pairs, and the
homography between frames of a fixed camera and between images of a planar scene: the purpose of
matches, not their number.

Example: python benchmarks/defaults.py data/sfm/lund-door data/webcam/mexico data/oxford-affine
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from measuring import Descriptor, Keypoints, Output, finish, run_script
from numpy.typing import NDArray

from hardnet import detectors
from hardnet.bench import pose
from hardnet.bench.development import CHOOSING, role
from hardnet.bench.light import read_camera
from hardnet.descriptors import load
from hardnet.errors import HardnetError
from hardnet.features import Features, Found, describe, find, prepare
from hardnet.images import read_image
from hardnet.matching.geometry import project, transfer_error, verify
from hardnet.matching.neighbours import match_descriptors
from hardnet.patchsets.sequences import find_sequences

RATIOS = (0.8, 0.85, 0.9, 0.95, 1.0)


def main(
    scenes: Annotated[
        list[Path], typer.Argument(help="Scenes with poses, fixed cameras, sequences.")
    ],
    descriptor: Descriptor = "hardnet",
    found_by: Annotated[str, typer.Option("--detectors")] = "dog,hessian-affine",
    windows: Annotated[str, typer.Option(help="In sigmas.")] = "12,12+24,12+24+48",
    keypoints: Keypoints = 2048,
    output: Output = Path("results/defaults.json"),
) -> None:
    """Score every detector, orientation, window, ratio and mutual matching; writes a JSON file."""
    tasks = [task for folder in scenes for task in _tasks(folder)]
    rows: list[dict[str, Any]] = []
    setups: dict[int, Callable[[Path], Features]] = {}
    for name, upright in product(found_by.split(","), (False, True)):
        found = cache(partial(_found, detectors.load(name), keypoints, upright))
        for window in windows.split(","):
            describe_as = cache(partial(_described, found, load(f"{descriptor}@{window}")))
            about = {"detector": name, "window": window, "upright": upright, "mutual": True}
            for ratio in RATIOS:
                setups[len(rows)] = describe_as
                rows.append(about | {"ratio": ratio} | _score(tasks, describe_as, ratio, True))
            print(max(rows[-len(RATIOS) :], key=lambda row: row["mean"]), flush=True)
    best = max(range(len(rows)), key=lambda number: rows[number]["mean"])
    for ratio in RATIOS:
        scores = _score(tasks, setups[best], ratio, False)
        rows.append(rows[best] | {"mutual": False, "ratio": ratio} | scores)
        print(rows[-1], flush=True)
    finish("defaults", {"rows": rows}, scenes, output)


def _found(detector: Any, keypoints: int, upright: bool, path: Path) -> Found:
    return find(prepare(path), detector, keypoints, upright)


def _described(found: Callable[[Path], Found], network: Any, path: Path) -> Features:
    return describe(found(path), network)


class _Pose:
    kind = "pose"

    def __init__(self, pair: pose.PosePair) -> None:
        self.pair, self.a, self.b = pair, pair.a.path, pair.b.path

    def score(self, a: NDArray[Any], b: NDArray[Any]) -> float:
        return pose.maa([pose.pose_error(pose.estimate_pose(self.pair, a, b), self.pair.truth)])


class _Plane:
    """Two images with a known homography, scored by the corners of the estimated one.

    The score is the share of the thresholds 1, 2, ... 10 px above the mean error of the corners.
    """

    def __init__(self, kind: str, a: Path, b: Path, to_b: NDArray[np.float64]) -> None:
        self.kind, self.a, self.b, self.to_b = kind, a, b, to_b
        height, width = read_image(a).shape[:2]
        self.corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)

    def score(self, a: NDArray[Any], b: NDArray[Any]) -> float:
        found = verify(a.astype(np.float64), b.astype(np.float64), "homography")
        if found.model is None:
            return 0.0
        error = transfer_error(found.model, self.corners, project(self.to_b, self.corners))
        return pose.maa([float(error.mean())])


def _tasks(folder: Path) -> list[Any]:
    name = folder.resolve().name
    if (folder / "images").is_dir():
        _must_choose(name)
        return [_Pose(pair) for _, _, pair in pose.read_pose_scene(folder).pairs]
    try:
        sequences = find_sequences([folder])
    except HardnetError:
        _must_choose(name)
        return [_Plane("light", a, b, np.eye(3)) for a, b, _ in read_camera(folder).pairs]
    for sequence in sequences:
        _must_choose(sequence.name)
    return [
        _Plane("planar", sequence.reference, target.image, target.homography)
        for sequence in sequences
        for target in sequence.targets
    ]


def _must_choose(scene: str) -> None:
    if role(scene) != "choose":
        raise HardnetError(f"{scene} is held out: tune on {', '.join(sorted(CHOOSING))}")


def _score(
    tasks: list[Any], features: Callable[[Path], Features], ratio: float, mutual: bool
) -> dict[str, float]:
    """The mean of each kind of task, and the mean of these."""
    kinds: dict[str, list[float]] = {}
    for task in tasks:
        a, b = features(task.a), features(task.b)
        indices, _ = match_descriptors(a.descriptors, b.descriptors, ratio, mutual)
        xy_a, xy_b = a.xy[indices[:, 0]], b.xy[indices[:, 1]]
        kinds.setdefault(task.kind, []).append(task.score(xy_a, xy_b))
    means = {kind: float(np.mean(scores)) for kind, scores in kinds.items()}
    return means | {"mean": float(np.mean(list(means.values())))}


if __name__ == "__main__":
    run_script(main)
