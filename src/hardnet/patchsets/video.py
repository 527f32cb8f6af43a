"""Frames of a video: a walk through a scene is many views of it, ready for SfM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.image_files import check_frame


def read_frames(
    path: Path, first: int = 0, last: int | None = None, step: int = 1
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Every ``step``-th frame from number ``first`` up to and with ``last``.

    Args:
        path: the video.
        first: number of the first frame wanted, from 0.
        last: number of the last; None for the end of the video.
        step: distance between two frames.

    Yields:
        (number, (H, W, 3) picture in OpenCV's order of colours).
    """
    if not path.is_file():
        raise HardnetError(f"no video {path}")
    if last is not None and last < first:
        raise HardnetError(f"{path}: the last frame, {last}, is before the first, {first}")
    video = cv2.VideoCapture(str(path))
    check_frame(
        path, int(video.get(cv2.CAP_PROP_FRAME_WIDTH)), int(video.get(cv2.CAP_PROP_FRAME_HEIGHT))
    )
    number = 0
    # Read one by one: seeking is inexact in most codecs and would not be reproducible.
    while last is None or number <= last:
        good, image = video.read()
        if not good:
            break
        if number >= first and (number - first) % step == 0:
            yield number, np.asarray(image, np.uint8)
        number += 1
    if number == 0:
        raise HardnetError(f"{path} cannot be decoded as a video")
    if number <= first or (last is not None and number <= last):
        raise HardnetError(f"{path} cannot be decoded at frame {number}; it ends there or is cut")


def write_frames(
    path: Path, output: Path, first: int = 0, last: int | None = None, step: int = 1
) -> list[Path]:
    """Write frames as ``output/NUMBER.png``; see :func:`read_frames`."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise HardnetError(f"{output} exists and is not an empty folder; choose another")
    written = []
    for number, image in read_frames(path, first, last, step):
        output.mkdir(parents=True, exist_ok=True)
        file = output / f"{number:06d}.png"
        if not cv2.imwrite(str(file), image):
            raise HardnetError(f"cannot write {file}; is the disk full?")
        written.append(file)
    return written
