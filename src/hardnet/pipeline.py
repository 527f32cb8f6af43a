"""Features of many images: reading, detecting and describing at the same time.

Threads, not processes: OpenCV and onnxruntime compute without Python's lock. ``workers`` threads
read images, detect frames and cut patches; one thread describes them, in the order of the images
(a network has its own threads, and a user's function may not be safe to call from two at once);
the caller's thread is free to write. Only a few images wait between the stages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING, TypeVar

import cv2

from hardnet import descriptors, detectors, features
from hardnet.descriptors import Descriptor
from hardnet.detectors import Detector
from hardnet.errors import HardnetError, InputError
from hardnet.features import KEYPOINTS, MAX_SIZE, DescribeSettings, Features, Found
from hardnet.images import quiet_opencv
from hardnet.threads import in_order, usable_cores

if TYPE_CHECKING:
    Result = tuple[Path, Features | HardnetError]

Given = TypeVar("Given")
Made = TypeVar("Made")

ROOM = 1_760_000_000
"""Bytes that detectors may take at the same time on many cores; an image that takes more is alone.

That is a pyramid of eight megapixels. Large photos are searched in tiles or strips, which take far
less memory (``results/large_image.json``), so several are searched at once."""

AHEAD = 2
"""Images that may wait between two stages, in addition to those being processed."""


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

    Args:
        images: the files.
        detector: as for :func:`hardnet.extract`, like all the following; a Detector of your own is
            called by several threads at once.
        descriptor: see there.
        keypoints: see there.
        max_size: see there.
        upright: see there.
        spread: see there.
        workers: threads that read and detect; by default one per usable core. Memory grows with
            them: each holds one image.

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
    detect, describe = how.load()
    room = _Room(ROOM)

    def find(path: Path) -> Found:
        prepared = features.prepare(path, max_size)
        with room.of(detectors.memory(detect, prepared.grey.size)):
            found = features.find(prepared, detect, keypoints, upright)
            found.patches(describe)
            return found

    return _run(
        [Path(image) for image in images],
        find,
        lambda found: features.describe(found, describe),
        workers,
    )


def _run(
    images: Sequence[Path],
    find: Callable[[Path], Found],
    describe: Callable[[Found], Features],
    workers: int | None,
) -> Generator[Result, None, None]:
    # Ctrl-C during Queue.get may leave its lock held for ever; SimpleQueue.get is safe.
    described: SimpleQueue[Result | BaseException | None] = SimpleQueue()
    places: SimpleQueue[None] = SimpleQueue()
    for _ in range(AHEAD):
        places.put(None)
    stop = Event()

    def say(word: Result | BaseException | None) -> None:
        places.get()
        described.put(word)

    def describe_all() -> None:
        """The thread that describes; it ends with None, or with an unexpected error."""
        try:
            finds = in_order(pool, lambda path: _attempt(find, path, path), images, count + AHEAD)
            for path, found in zip(images, finds, strict=True):
                if stop.is_set():
                    break
                if isinstance(found, HardnetError):
                    say((path, found))
                else:
                    say((path, _attempt(describe, found, path)))
            say(None)
        except BaseException as error:
            say(error)

    count = workers or usable_cores()
    # Around everything: one thread must not unmute OpenCV while another still reads.
    with quiet_opencv(), ThreadPoolExecutor(count, "hardnet-find") as pool:
        # A daemon, so that a program that never closes the iterator can still exit.
        thread = Thread(target=describe_all, name="hardnet-describe", daemon=True)
        thread.start()
        try:
            while (result := described.get()) is not None:
                if isinstance(result, BaseException):
                    raise result
                places.put(None)
                yield result
        finally:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for _ in range(2):  # it may be waiting for a place, and still has to say that it ends
                places.put(None)
            thread.join()


def _attempt(stage: Callable[[Given], Made], given: Given, path: Path) -> Made | HardnetError:
    try:
        return stage(given)
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
        """``with room.of(size):`` waits for a place."""
        with self._change:
            self._change.wait_for(lambda: not self._taken or self._taken + size <= self._size)
            self._taken += size
        try:
            yield
        finally:
            with self._change:
                self._taken -= size
                self._change.notify_all()
