"""Speed of patch cutting against kornia's pyramid sampler: same image, same frames, same run.

    python benchmarks/cut_patches.py [IMAGE]

Prints the time of both and how many times faster ours is; CPU only, as many threads as OpenCV and
PyTorch choose. Differences in value are printed, too: both read a pyramid, but not the same one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from kornia.feature import extract_patches_from_pyramid
from numpy.typing import NDArray

from hardnet.detectors.dog import detect
from hardnet.frames import Frames
from hardnet.images import read_image, to_grey
from hardnet.patches import PATCH_SIZE, cut_patches

COUNTS = 2_000, 10_000
REPEATS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("image", nargs="?", type=Path, help="default: motorcycle_left.png")
    path = parser.parse_args().image or Path(str(files("skimage") / "data/motorcycle_left.png"))
    image = to_grey(read_image(path))
    found, _ = detect(image, max(COUNTS))
    print(f"{path.name}, {image.shape[1]} x {image.shape[0]}, best of {REPEATS}, taking turns")
    print(
        f"{'frames':>8} {'kornia s':>10} {'hardnet s':>10} {'times':>7} {'grey levels apart':>18}"
    )
    for count in COUNTS:
        # A photo with fewer keypoints lends each of them more than once.
        frames = found[np.arange(count) % len(found)]
        seconds, patches = race(
            lambda frames=frames: kornia_patches(image, frames),  # type: ignore[misc]
            lambda frames=frames: cut_patches(image, frames),  # type: ignore[misc]
        )
        difference = np.abs(patches[0].astype(float) - patches[1]).mean()
        times = seconds[0] / seconds[1]
        print(
            f"{count:>8} {seconds[0]:>10.4f} {seconds[1]:>10.4f} {times:>7.1f} {difference:>18.2f}"
        )


def kornia_patches(image: NDArray[np.uint8], frames: Frames) -> NDArray[np.uint8]:
    """(N, S, S) by kornia, from uint8 to uint8 as ours."""
    with torch.inference_mode():
        grey = torch.from_numpy(image)[None, None].float()
        lafs = torch.from_numpy(np.ascontiguousarray(frames))[None]
        patches = extract_patches_from_pyramid(grey, lafs, PATCH_SIZE)[0, :, 0]
        return np.asarray(patches.round().clamp(0, 255).byte().numpy())


def race(
    *contestants: Callable[[], NDArray[np.uint8]],
) -> tuple[list[float], list[NDArray[np.uint8]]]:
    """Best seconds and results of each, run in turns so that a busy machine is fair to all."""
    best = [float("inf")] * len(contestants)
    results = [run() for run in contestants]
    for _ in range(REPEATS):
        for i, run in enumerate(contestants):
            start = perf_counter()
            run()
            best[i] = min(best[i], perf_counter() - start)
    return best, results


if __name__ == "__main__":
    main()
