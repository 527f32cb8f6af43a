"""Time and memory of detection and extraction in a large image at full size.

Each row runs in its own process. Keypoints found in tiles are compared with OpenCV's of the whole
image, at a size that OpenCV can handle.

Example: python benchmarks/large_image.py photos/*.jpg
"""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import typer
from measuring import (
    Keypoints,
    Output,
    Threads,
    extra_memory_mb,
    finish,
    in_fresh_process,
    run_script,
)
from numpy.typing import NDArray

import hardnet
from hardnet import detectors
from hardnet.detectors import dog
from hardnet.images import read_image, to_grey

EXTRACT = "extract"
ROWS = ("dog", "hessian", "hessian-affine", "mser", EXTRACT)
ALIKE = (1e-5, 0.01, 0.01, 0.01, 0.1)  # contrast; pixels; pixels; pixels; degrees


def main(
    photos: Annotated[list[Path], typer.Argument(help="The first one becomes the large image.")],
    megapixels: Annotated[float, typer.Option(help="Size of the large image.")] = 100.0,
    compared: Annotated[
        float, typer.Option(help="Megapixels for the comparison with OpenCV.")
    ] = 12.0,
    keypoints: Keypoints = 2048,
    threads: Threads = 2,
    most: Annotated[
        float, typer.Option(help="Memory limit of a row in GB, without the image.")
    ] = 8.0,
    output: Output = Path("results/large_image.json"),
) -> None:
    """Memory of large images; writes a JSON file."""
    os.environ["OMP_NUM_THREADS"] = str(threads)  # for the measuring processes
    rows = []
    for name in ROWS:
        rows.append(
            in_fresh_process(measure, photos[0], name, keypoints, megapixels, threads, most)
        )
        print(rows[-1])
    cv2.setNumThreads(threads)
    equality = []
    for photo in photos:
        equality.append(_compare(to_grey(read_image(photo)), compared, keypoints))
        print(equality[-1])
    found = {"rows": rows, "equality": equality}
    given = {"compared_megapixels": compared, "most_gb": most}
    finish("large_image", found, photos, output, ["PHOTOS"], **given)


def measure(
    file: Path, name: str, keypoints: int, megapixels: float, threads: int, most: float
) -> dict[str, Any]:
    """One row: memory, time and frames of a detector or of extraction; None if memory runs out."""
    cv2.setNumThreads(threads)
    small = read_image(file)
    if name != EXTRACT:
        small, detect = to_grey(small), detectors.load(name)

    def work(image: NDArray[np.uint8]) -> int:
        if name == EXTRACT:
            return len(hardnet.extract(image, keypoints=keypoints, max_size=None))
        return len(detect(image, keypoints)[0])

    factor = (megapixels * 1e6 / (small.shape[0] * small.shape[1])) ** 0.5
    times = int(np.ceil(factor))
    # A mosaic of the photo has the detail of a large image; an enlargement would be smooth.
    image = np.tile(small, (times, times, 1)[: small.ndim])
    height, width = (int(side * factor) for side in small.shape[:2])
    image = np.ascontiguousarray(image[:height, :width])
    work(small)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(most * 1e9),) * 2)
    row: dict[str, Any] = {"name": name, "frames": None, "size": [width, height]}

    def attempt() -> None:
        with suppress(MemoryError, cv2.error):
            row["frames"] = work(image)

    start = time.process_time()
    row["extra_mb"] = extra_memory_mb(attempt)
    return row | {"cpu_seconds": time.process_time() - start}


def _compare(small: NDArray[np.uint8], megapixels: float, places: int) -> dict[str, Any]:
    """How many of the strongest keypoints are found only in the whole image, or only in tiles."""
    factor = (megapixels * 1e6 / small.size) ** 0.5
    image = np.asarray(
        cv2.resize(small, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC), np.uint8
    )
    sift = cv2.SIFT.create(contrastThreshold=dog.CONTRAST, enable_precise_upscale=True)
    whole = dog.sorted_keys(sift.detect(image, None))
    whole = whole[np.cumsum(dog.is_new_place(whole)) <= places]
    tiled = dog.find_keys(image, dog.CONTRAST, places)
    return {
        "keypoints": len(whole),
        "only_whole": _without_like(whole, tiled),
        "only_tiles": _without_like(tiled, whole),
    }


def _without_like(one: NDArray[np.float64], other: NDArray[np.float64]) -> int:
    return sum(bool((np.abs(other - key) > ALIKE).any(1).all()) for key in one)


if __name__ == "__main__":
    run_script(main)
