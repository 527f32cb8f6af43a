"""Repeatability and speed of our detectors and kornia's, on the same images and threads.

A frame repeats if the other image has one like it (Mikolajczyk et al. 2005).

Example: HARDNET_DATA=data python benchmarks/detect.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import cv2
import numpy as np
import typer
from measuring import Keypoints, Output, Repetitions, Threads, finish, median_seconds, run_script
from numpy.typing import ArrayLike, NDArray

from hardnet import detectors
from hardnet.bench.ratio import MAX_OVERLAP_ERROR, RADIUS, one_to_one, overlap_errors
from hardnet.frames import Frames, centres, transform
from hardnet.images import read_image, to_grey
from hardnet.patchsets.sequences import find_sequences, inside, project

Image = NDArray[np.uint8]
Find = Callable[[Image], Frames]

OURS = ("hessian-affine", "hessian", "dog", "mser")
MAX_DISTANCE = 3.0
"""Pixels between the centres, for the variant that compares places only."""
_CHUNK = 20_000  # pairs of ellipses at a time
TIMED = "graf"
SETS = "oxford-affine", "hpatches-sequences"
CHOSEN_ON = "graf", "wall", "trees", "ubc"
"""The settings of affine shape were tuned on pairs of these."""
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
    keypoints: Keypoints = 2048,
    threads: Threads = 2,
    repetitions: Repetitions = 3,
    output: Output = Path("results/detect.json"),
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
    chosen = [s.name for s in sequences if s.name in CHOSEN_ON]
    finish("detect", measured, files, output, timed=timed.name, chosen_on=chosen)


@dataclass(frozen=True)
class Repeatability:
    """How many frames of two images correspond, by ellipse overlap and by the distance of centres.

    ``visible``: frames of each image whose centre the other image shows.
    """

    visible: tuple[int, int]
    by_overlap: int
    by_distance: int

    @property
    def overlap(self) -> float:
        """Share of the frames visible in both that repeat, by overlap; 0 without frames."""
        return self.by_overlap / max(min(self.visible), 1)

    @property
    def distance(self) -> float:
        """The same, by distance."""
        return self.by_distance / max(min(self.visible), 1)


def repeatability(
    frames_a: Frames,
    frames_b: Frames,
    homography: ArrayLike,
    size_a: tuple[int, int],
    size_b: tuple[int, int],
) -> Repeatability:
    """Do (N, 2, 3) and (M, 2, 3) frames of one scene repeat (Mikolajczyk et al. 2005)?

    Frames of both images count if their centre is visible in the other. A frame of image a, carried
    to image b by the true homography, corresponds to a frame of b if their ellipses overlap enough.
    Each frame corresponds to at most one other, the best overlaps first. Larger ellipses overlap
    more easily, so every pair is scaled, about its own centres, until the carried ellipse has the
    area of a circle of ``RADIUS``: the unit of the frames (their measurement window) does not
    matter.
    """
    forth = np.asarray(homography, np.float64)
    forth = forth * np.sign(np.linalg.det(forth))
    in_b = inside(project(forth, centres(frames_a)), size_b[::-1])
    in_a = inside(project(np.linalg.inv(forth), centres(frames_b)), size_a[::-1])
    carried, there = transform(frames_a[in_b], forth), frames_b[in_a]
    a, b = _candidates(carried, there)
    distance = np.linalg.norm(centres(carried)[a] - centres(there)[b], axis=1).astype(np.float64)
    error = np.ones(len(a))
    areas = [np.abs(np.linalg.det(f[:, :, :2].astype(np.float64))) for f in (carried[a], there[b])]
    # Others could not overlap enough even if one lay within the other.
    possible = np.flatnonzero(np.minimum(*areas) > (1 - MAX_OVERLAP_ERROR) * np.maximum(*areas))
    for start in range(0, len(possible), _CHUNK):
        part = possible[start : start + _CHUNK]
        error[part] = overlap_errors(carried[a[part]], there[b[part]])
    near, alike = distance < MAX_DISTANCE, error < MAX_OVERLAP_ERROR
    return Repeatability(
        (len(carried), len(there)),
        len(one_to_one(a[alike], b[alike], error[alike])[0]),
        len(one_to_one(a[near], b[near], distance[near])[0]),
    )


def _candidates(first: Frames, second: Frames) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    axes = np.linalg.svd(first[:, :, :2].astype(np.float64), compute_uv=False)
    # If a centre lies outside the other ellipse, half of its own ellipse does too.
    reach = np.maximum(RADIUS * np.sqrt(axes[:, 0] / axes[:, 1]), MAX_DISTANCE)
    a, b = centres(first).astype(np.float64), centres(second).astype(np.float64)
    i, j = np.nonzero(np.abs(a[:, None] - b[None]).max(2, initial=0) <= reach[:, None])
    return i, j


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
    run_script(main)
