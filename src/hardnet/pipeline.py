"""Features of many images: reading, detecting and describing at the same time.

Threads, not processes: OpenCV and onnxruntime compute without Python's lock. ``workers`` threads
read images, detect frames and cut patches; one thread describes them, in the order of the images (a
network uses several cores, and a user's function may not be safe to call from two threads); the
caller's thread is free to write. Only a few images wait between the stages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Condition
from typing import TypeVar

import cv2

from hardnet import descriptors, detectors, features
from hardnet.descriptors import Descriptor
from hardnet.detectors import Detector
from hardnet.errors import HardnetError, InputError
from hardnet.features import KEYPOINTS, MAX_SIZE, DescribeSettings, Features, Found
from hardnet.images import quiet_opencv
from hardnet.threads import in_order, usable_cores

Result = tuple[Path, Features | HardnetError]
Made = TypeVar("Made")

ROOM = 1_760_000_000
"""Bytes that detectors may take at the same time, a pyramid of eight megapixels; an image that
takes more is alone."""

AHEAD = 2  # images that may wait between two stages, in addition to those being processed


def extract_many(
    images: Sequence[str | os.PathLike[str]],
    *,
    detector: str | Detector = "dog",
    descriptor: str | Descriptor = descriptors.DEFAULT,
    keypoints: int = KEYPOINTS,
    max_size: int | None = MAX_SIZE,
    upright: bool = False,
    spread: bool = False,
    workers: int | None = None,
) -> Generator[Result, None, None]:
    """Features of many image files, the same as :func:`hardnet.extract` gives for each.

    The options are those of :func:`hardnet.extract`. ``workers`` threads read and detect, by
    default one per usable core; each holds one image, and may call your Detector.

    Yields:
        Each path with its features, in the order of ``images``; or with the error that says why
        this image has none. Closing the iterator ends the threads.

    Raises:
        HardnetError: the settings are wrong; raised before any image is read.
    """
    if isinstance(images, str | os.PathLike):
        raise InputError(f"images is one path, {os.fspath(images)!r}: give a list, [path]")
    if workers is not None and workers < 1:
        raise InputError(f"workers is {workers}: give at least 1, or None for one per core")
    how = DescribeSettings(detector, descriptor, keypoints, max_size, spread=spread)
    detect, describe = how.load_detector(), how.load_descriptor()
    room = _Room(ROOM)

    def find(path: Path) -> Found:
        prepared = features.prepare(path, max_size)
        with room.of(detectors.memory(detect, prepared.grey.size)):
            found = features.find(prepared, detect, keypoints, upright)
            found.patches(describe)
            return found

    def found_in(path: Path) -> tuple[Path, Found | HardnetError]:
        return path, _attempt(lambda: find(path), path)

    def described(one: tuple[Path, Found | HardnetError]) -> Result:
        path, found = one
        if isinstance(found, HardnetError):
            return path, found
        return path, _attempt(lambda: features.describe(found, describe), path)

    def run() -> Generator[Result, None, None]:
        count = workers or usable_cores()
        with (
            quiet_opencv(),  # around everything: no thread may unmute it while another still reads
            ThreadPoolExecutor(count, "hardnet-find") as finders,
            ThreadPoolExecutor(1, "hardnet-describe") as describer,
        ):
            try:
                finds = in_order(finders, found_in, map(Path, images), count + AHEAD)
                yield from in_order(describer, described, finds, AHEAD + 1)
            finally:
                finders.shutdown(wait=False, cancel_futures=True)
                describer.shutdown(wait=False, cancel_futures=True)

    return run()


def _attempt(stage: Callable[[], Made], path: Path) -> Made | HardnetError:
    try:
        return stage()
    except HardnetError as error:
        return error
    except MemoryError:
        return HardnetError(f"{path} is too large for the memory: use a smaller copy, or max_size")
    except cv2.error as error:
        return HardnetError(f"{path} cannot be processed by OpenCV: {error.err}")
    except OSError as error:
        return HardnetError(f"{path} cannot be read: {error.strerror or error}")


class _Room:
    """Admits threads while their memory fits; one that never fits is admitted alone."""

    def __init__(self, size: int) -> None:
        self._size, self._taken = size, 0
        self._change = Condition()

    @contextmanager
    def of(self, size: int) -> Iterator[None]:
        with self._change:
            self._change.wait_for(lambda: not self._taken or self._taken + size <= self._size)
            self._taken += size
        try:
            yield
        finally:
            with self._change:
                self._taken -= size
                self._change.notify_all()
