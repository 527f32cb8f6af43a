"""From two image files to verified matches: ours, kornia's HardNet pipeline and OpenCV's SIFT.

All read the same files, keep the same number of keypoints, use the same number of threads and
verify matches with the same function. Models are loaded before the clock starts. Runs alternate, so
that load on the machine affects all equally.

Example: python benchmarks/match_pair.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import typer
from measuring import (
    SKIMAGE,
    Keypoints,
    Output,
    Repetitions,
    Threads,
    finish,
    photo_pair,
    run_script,
)
from numpy.typing import NDArray

from hardnet.descriptors import WEIGHTS, load, shipped_names
from hardnet.errors import HardnetError
from hardnet.features import DescribeSettings, Orientation, extract_together
from hardnet.matching.geometry import transfer_error, verify
from hardnet.matching.matches import match

Points = NDArray[np.float32]
Seconds = dict[str, float]
Run = Callable[[Path, Path], tuple[Points, Points, Seconds]]
"""Two files -> verified positions in a and in b, (M, 2) each, and the time per stage."""

OURS = (
    *("hardnet", "hardnet-int8", "hardnet-small", "hardnet-small-int8"),
    *("hardnet-small@12+24+48", "hardnet-small-int8@12+24+48", "rootsift"),
)
RATIO = 0.8  # for OpenCV's and kornia's ratio test, as in their tutorials
CORRECT_PIXELS = 3.0


def main(
    pair: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Two images [graf 1 and 3 of HARDNET_DATA, else a stereo pair]."),
    ] = None,
    keypoints: Keypoints = 2048,
    threads: Threads = 2,
    repetitions: Repetitions = 7,
    descriptor: Annotated[
        list[str] | None,
        typer.Option(help="Names or weights files [hardnet and hardnet-small, rootsift]."),
    ] = None,
    kornia: Annotated[bool, typer.Option(help="Also measure kornia's pipeline.")] = True,
    output: Output = Path("results/match_pair.json"),
) -> None:
    """Time per pair and per stage, and the matches found; writes a JSON file."""
    image_a, image_b, homography = _pair(pair)
    cv2.setNumThreads(threads)
    ours = descriptor or list(OURS)
    contestants = _contestants(keypoints, threads, ours, kornia)
    runs: dict[str, list[Seconds]] = {name: [] for name in contestants}
    found: dict[str, dict[str, int]] = {}
    for repetition in range(repetitions + 1):
        for name, run in contestants.items():
            start = time.perf_counter()
            a, b, seconds = run(image_a, image_b)
            total = time.perf_counter() - start
            if repetition:  # the first one warms up
                runs[name].append(seconds | {"total": total})
            found[name] = _judge(a, b, homography)
    medians = {
        name: {stage: float(np.median([row[stage] for row in rows])) for stage in rows[0]}
        for name, rows in runs.items()
    }
    networks = sorted({name.partition("@")[0] for name in ours})
    measured = {
        "seconds": medians,
        "found": found,
        **({"speed_of_kornia": _ratios(medians, "kornia")} if kornia else {}),
        "speed_of_sift": _ratios(medians, "opencv-sift"),
    }
    weights = [WEIGHTS / f"{name}.onnx" for name in networks if name in shipped_names()]
    images = [f"{image.parent.name}/{image.name}" for image in (image_a, image_b)]
    finish("match_pair", measured, [image_a, image_b, *weights], output, images=images)


def _pair(pair: tuple[Path, Path] | None) -> tuple[Path, Path, NDArray[np.float64] | None]:
    """The images, and the true homography between them if it is known."""
    if pair is not None:
        return *pair, None
    a, b = photo_pair(3)
    return a, b, None if a.parent == SKIMAGE else np.loadtxt(a.parent / "H_1_3")


def _contestants(
    keypoints: int, threads: int, descriptors: list[str], kornia: bool
) -> dict[str, Run]:
    out: dict[str, Run] = {"opencv-sift": _sift(keypoints)}
    if kornia:
        out["kornia"] = _kornia(keypoints, threads, doubled=True)
        out["kornia, not doubled"] = _kornia(keypoints, threads, doubled=False)
    for detector in ("dog", "hessian-affine"):
        for descriptor in descriptors:
            name = f"{detector} + {Path(descriptor).stem}"
            out[name] = _ours(detector, descriptor, keypoints, threads, "dominant")
            if detector == "dog":
                out[f"{name}, auto"] = _ours(detector, descriptor, keypoints, threads, "auto")
    return out


def _ours(
    detector: str, descriptor: str, keypoints: int, threads: int, orientation: Orientation
) -> Run:
    """``auto`` is the default of hardnet.match: upright, then dominant orientation if needed."""
    describe = load(descriptor, threads)
    how = DescribeSettings(detector, describe, keypoints, orientation=orientation)

    def run(image_a: Path, image_b: Path) -> tuple[Points, Points, Seconds]:
        clock = _Clock()
        a, b = extract_together([image_a, image_b], how)
        clock("extract")
        result = match(a, b)
        # Reading and detecting overlap between the images; describing does not.
        describing = a.seconds["describe"] + b.seconds["describe"]
        seconds = {
            "read, detect and cut": clock.seconds["extract"] - describing,
            "describe": describing,
            **result.seconds,
        }
        return result.xy_a[result.inliers], result.xy_b[result.inliers], seconds

    return run


def _sift(keypoints: int) -> Run:
    sift = cv2.SIFT.create(nfeatures=keypoints)
    matcher = cv2.BFMatcher(cv2.NORM_L2)

    def run(image_a: Path, image_b: Path) -> tuple[Points, Points, Seconds]:
        clock = _Clock()
        images = [_read(image_a), _read(image_b)]
        clock("read")
        (ka, da), (kb, db) = (sift.detectAndCompute(image, None) for image in images)
        clock("detect and describe")
        pairs = matcher.knnMatch(da, db, k=2)
        good = [m for m, n in pairs if m.distance < RATIO * n.distance]
        a = np.array([ka[m.queryIdx].pt for m in good], np.float32).reshape(-1, 2)
        b = np.array([kb[m.trainIdx].pt for m in good], np.float32).reshape(-1, 2)
        clock("match")
        inliers = verify(a, b).inliers
        clock("verify")
        return a[inliers], b[inliers], clock.seconds

    return run


def _kornia(keypoints: int, threads: int, doubled: bool) -> Run:
    """Hessian blobs, dominant gradient orientation and HardNet with our weights, by kornia.

    ``doubled``: the image is doubled in size before detection, as in kornia's ready-made detectors,
    in SIFT and in ours; without it, small blobs are lost.
    """
    import kornia.feature as kf
    import torch
    from kornia.geometry import ScalePyramid
    from safetensors.torch import load_file

    torch.set_num_threads(threads)
    net = kf.HardNet(False).eval()
    net.load_state_dict(load_file(WEIGHTS / "hardnet.safetensors"))
    detector = kf.ScaleSpaceDetector(
        keypoints,
        resp_module=kf.BlobHessian(),
        scale_pyr_module=ScalePyramid(3, 1.6, 32, double_image=doubled),
        ori_module=kf.LAFOrienter(19),
        mr_size=6.0,
    ).eval()
    descriptor = kf.LAFDescriptor(net, patch_size=32, grayscale_descriptor=True).eval()

    def run(image_a: Path, image_b: Path) -> tuple[Points, Points, Seconds]:
        clock = _Clock()
        images = [torch.from_numpy(_read(i)).float()[None, None] / 255 for i in (image_a, image_b)]
        clock("read")
        with torch.inference_mode():
            frames = [detector(image, None)[0] for image in images]
            clock("detect")
            da, db = (descriptor(i, f)[0] for i, f in zip(images, frames, strict=True))
            clock("cut and describe")
            _, indices = kf.match_snn(da, db, RATIO)
            a, b = (kf.get_laf_center(f)[0].numpy() for f in frames)
            a, b = a[indices[:, 0].numpy()], b[indices[:, 1].numpy()]
        clock("match")
        inliers = verify(a, b).inliers
        clock("verify")
        return a[inliers], b[inliers], clock.seconds

    return run


class _Clock:
    """Adds the time since its last call to a stage."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}
        self._last = time.perf_counter()

    def __call__(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage], self._last = now - self._last, now


def _read(path: Path) -> NDArray[np.uint8]:
    image = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if image is None:
        raise HardnetError(f"{path} cannot be read")
    return np.asarray(image, np.uint8)


def _judge(a: Points, b: Points, homography: NDArray[np.float64] | None) -> dict[str, int]:
    """How many matches are verified, and how many of them are correct."""
    found = {"inliers": len(a)}
    if homography is not None:
        error = transfer_error(homography, a.astype(np.float64), b.astype(np.float64))
        found["correct"] = int((error < CORRECT_PIXELS).sum())
    return found


def _ratios(medians: dict[str, Seconds], rival: str) -> dict[str, float]:
    """How many times faster than the rival each contestant is."""
    return {name: medians[rival]["total"] / row["total"] for name, row in medians.items()}


if __name__ == "__main__":
    run_script(main)
