"""Repeatability and speed of our detectors and kornia's, on the same images and threads.

Example: HARDNET_DATA=data python benchmarks/detect.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import typer
from measuring import finish, median_seconds
from numpy.typing import NDArray
from repeatability import MAX_DISTANCE, repeatability

from hardnet import detectors
from hardnet.bench.ratio import MAX_OVERLAP_ERROR, RADIUS
from hardnet.frames import Frames
from hardnet.images import read_image, to_grey
from hardnet.patchsets.sequences import find_sequences

Image = NDArray[np.uint8]
Find = Callable[[Image], Frames]

OURS = ("hessian-affine", "hessian", "dog", "mser")
TIMED = "graf"
SETS = "oxford-affine", "hpatches-sequences"
CHOSEN_ON = (
    "graf",
    "wall",
    "trees",
    "ubc",
)  # the settings of affine shape were tuned on pairs of these
RULES = {
    "overlap": (
        f"number of frames in the common part whose ellipses, scaled to a radius of {RADIUS:g} px,"
        f" overlap one to one with an error below {MAX_OVERLAP_ERROR:.0%}, divided by the smaller"
        " number of frames"
    ),
    "distance": f"the same, for centres less than {MAX_DISTANCE:g} px apart",
    "time": (
        "median over runs of detecting all images of one sequence, with affine shape (if the"
        " detector has one) and one dominant orientation (dog: all)"
    ),
}


def main(
    data: Annotated[
        Path, typer.Option(help="Folder of sequences with H_1_k files.", envvar="HARDNET_DATA")
    ],
    keypoints: Annotated[int, typer.Option(help="Frames per image.")] = 2048,
    threads: Annotated[int, typer.Option(help="Threads of every contestant.")] = 2,
    repetitions: Annotated[int, typer.Option(help="Measurements per median.")] = 3,
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("results/detect.json"),
) -> None:
    """Repeatability and speed of detection; writes a JSON file."""
    cv2.setNumThreads(threads)
    folders = [data / name for name in SETS if (data / name).is_dir()]
    sequences = find_sequences(folders or [data])
    contestants = {"kornia": _kornia(keypoints, threads)}
    contestants |= {name: _ours(name, keypoints) for name in OURS}

    rows = []
    for sequence in sequences:
        images = [to_grey(read_image(path)) for path in sequence.files]
        sizes = [(image.shape[1], image.shape[0]) for image in images]
        for name, find in contestants.items():
            found = [find(image) for image in images]
            for k, target in enumerate(sequence.targets, 1):
                score = repeatability(found[0], found[k], target.homography, sizes[0], sizes[k])
                where = {"sequence": sequence.name, "target": target.name, "detector": name}
                rows.append(
                    where
                    | asdict(score)
                    | {"overlap": score.overlap, "distance": score.distance}
                    | {"frames": [len(found[0]), len(found[k])]}
                )
        print(f"{sequence.name} is done", flush=True)

    timed = next((s for s in sequences if s.name == TIMED), sequences[0])
    images = [to_grey(read_image(path)) for path in timed.files]
    finders = {"kornia": _kornia(keypoints, threads, oriented=True)}
    finders |= {name: _ours(name, keypoints, upright=False) for name in OURS}
    finders["OpenCV SIFT detector"] = _opencv(keypoints)
    for find in finders.values():
        find(images[0])
    spent = median_seconds(
        {n: partial(_all, find, images) for n, find in finders.items()}, repetitions
    )
    seconds = {name: taken / len(images) for name, taken in spent.items()}
    settings = {
        "keypoints": keypoints,
        "threads": threads,
        "repetitions": repetitions,
        "timed": timed.name,
        "chosen_on": [s.name for s in sequences if s.name in CHOSEN_ON],
    }
    measured = {
        "rules": RULES,
        "repeatability": rows,
        "mean": {
            name: {
                key: float(np.mean([row[key] for row in rows if row["detector"] == name]))
                for key in ("overlap", "distance")
            }
            for name in contestants
        },
        "seconds_per_image": seconds,
        "speed_ratio_to_kornia": {n: seconds["kornia"] / s for n, s in seconds.items()},
    }
    files = [path for sequence in sequences for path in sequence.files]
    finish("detect", measured, settings, files, output)


def _ours(name: str, keypoints: int, upright: bool = True) -> Find:
    detect = detectors.load(name)
    return lambda image: detect(image, keypoints, upright=upright)[0]


def _opencv(keypoints: int) -> Find:
    sift = cv2.SIFT.create(nfeatures=keypoints)

    def find(image: Image) -> Frames:
        return np.zeros((len(sift.detect(image, None)), 2, 3), np.float32)

    return find


def _kornia(keypoints: int, threads: int, oriented: bool = False) -> Find:
    """Kornia's Hessian, second-moment shape and, optionally, dominant gradient."""
    import torch
    from kornia import feature
    from kornia.geometry import ScalePyramid

    torch.set_num_threads(threads)
    detector = feature.ScaleSpaceDetector(
        keypoints,
        mr_size=6.0,
        resp_module=feature.BlobHessian(),
        scale_pyr_module=ScalePyramid(3, 1.6, 32, double_image=False),
        aff_module=feature.LAFAffineShapeEstimator(32),
        ori_module=feature.LAFOrienter(32) if oriented else None,
    ).eval()

    def find(image: Image) -> Frames:
        with torch.inference_mode():
            frames, response = detector(torch.from_numpy(image)[None, None].float() / 255)
        return np.asarray(frames[0][response[0] > 0].numpy())

    return find


def _all(find: Find, images: list[Image]) -> None:
    for image in images:
        find(image)


if __name__ == "__main__":
    typer.run(main)
