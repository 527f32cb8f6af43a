"""Speed of patch cutting against kornia's pyramid sampler: same image, same frames, same run.

    python benchmarks/cut_patches.py [IMAGE]

Prints both times and their ratio; CPU only, with the default threads of OpenCV and PyTorch. It also
prints differences in value: both read a pyramid, but not the same one.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from kornia.feature import extract_patches_from_pyramid
from measuring import SKIMAGE, median_seconds
from numpy.typing import NDArray

from hardnet.detectors.dog import detect
from hardnet.frames import PATCH_SIZE, Frames, cut_patches
from hardnet.images import read_image, to_grey

COUNTS = 2_000, 10_000
REPEATS = 5


def main(path: Annotated[Path, typer.Argument()] = SKIMAGE / "motorcycle_left.png") -> None:
    """Seconds of both, and how much their patches differ."""
    image = to_grey(read_image(path))
    found, _ = detect(image, max(COUNTS))
    print(f"{path.name}, {image.shape[1]} x {image.shape[0]}, median of {REPEATS}, taking turns")
    print(
        f"{'frames':>8} {'kornia s':>10} {'hardnet s':>10} {'times':>7} {'grey levels apart':>18}"
    )
    for count in COUNTS:
        # Repeat keypoints if a photo has too few.
        frames = found[np.arange(count) % len(found)]
        work = {
            "kornia": partial(kornia_patches, image, frames),
            "hardnet": partial(cut_patches, image, frames),
        }
        difference = np.abs(work["kornia"]().astype(float) - work["hardnet"]()).mean()
        kornia, ours = median_seconds(work, REPEATS).values()
        print(f"{count:>8} {kornia:>10.4f} {ours:>10.4f} {kornia / ours:>7.1f} {difference:>18.2f}")


def kornia_patches(image: NDArray[np.uint8], frames: Frames) -> NDArray[np.uint8]:
    """(N, S, S) patches by kornia, from uint8 to uint8 as ours."""
    with torch.inference_mode():
        grey = torch.from_numpy(image)[None, None].float()
        lafs = torch.from_numpy(np.ascontiguousarray(frames))[None]
        patches = extract_patches_from_pyramid(grey, lafs, PATCH_SIZE)[0, :, 0]
        return np.asarray(patches.round().clamp(0, 255).byte().numpy())


if __name__ == "__main__":
    typer.run(main)
