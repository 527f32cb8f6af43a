from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import hardnet
from hardnet import detectors, pipeline
from hardnet.detectors import dog
from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.pipeline import extract_many

PHOTOS = ("chelsea.png", "camera.png", "brick.png", "coffee.png", "astronaut.png")
SETTINGS = {"descriptor": "rootsift", "keypoints": 150, "max_size": 300}


class Slow:
    """Describes by the mean grey value, slowly."""

    name, dim = "mean", 1

    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds, self.inside, self.most = seconds, 0, 0

    def __call__(self, patches: np.ndarray) -> np.ndarray:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(self.seconds)
        self.inside -= 1
        return np.asarray(patches, np.float32).mean((1, 2))[:, None]


@pytest.fixture(scope="module")
def images(photos: Path) -> list[Path]:
    return [photos / name for name in PHOTOS]


def ours() -> list[threading.Thread]:
    names = ("hardnet-find", "hardnet-describe")
    return [t for t in threading.enumerate() if t.name.startswith(names)]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert ours() == []


def same(a: Features, b: Features) -> None:
    for name in ("frames", "scores", "descriptors"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for name in ("image_size", "descriptor", "scale", "path", "pixels"):
        assert getattr(a, name) == getattr(b, name)


def test_bits_and_order_are_those_of_extract(images: list[Path]) -> None:
    expected = [hardnet.extract(path, **SETTINGS) for path in images]
    for workers in (1, 3, None):
        found = list(extract_many(images, workers=workers, **SETTINGS))
        assert [path for path, _ in found] == images
        for (_, features), alone in zip(found, expected, strict=True):
            assert isinstance(features, Features)
            same(features, alone)
    assert list(extract_many([], **SETTINGS)) == []


def test_bits_of_the_network_are_those_of_extract(images: list[Path]) -> None:
    settings = {"keypoints": 70, "max_size": 250, "upright": True}
    for path, features in extract_many(images[:2], workers=2, **settings):
        assert isinstance(features, Features)
        same(features, hardnet.extract(path, **settings))


@pytest.mark.parametrize("detector", [name for name in detectors.names() if name != "dog"])
def test_every_detector_stands_several_threads(images: list[Path], detector: str) -> None:
    settings = SETTINGS | {"detector": detector, "max_size": 200}
    for path, features in extract_many(images[:3], workers=3, **settings):
        assert isinstance(features, Features)
        same(features, hardnet.extract(path, **settings))


def test_a_bad_image_is_an_error_in_its_place(images: list[Path], tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("words")
    (tmp_path / "folder.jpg").mkdir()
    mixed = [tmp_path / "text.jpg", images[0], tmp_path / "folder.jpg", tmp_path / "none.jpg"]
    found = list(extract_many([*mixed, images[1]], **SETTINGS))
    kinds = [type(result) for _, result in found]
    assert kinds == [HardnetError, Features, HardnetError, HardnetError, Features]
    for path, result in found:
        if isinstance(result, HardnetError):
            assert path.name in str(result)


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (MemoryError(), "too large for the memory"),
        (OSError(5, "Input/output error"), "cannot be read: Input/output error"),
        (cv2.error("Insufficient memory"), "OpenCV"),
    ],
)
@pytest.mark.parametrize("stage", ["detector", "descriptor"])
def test_failures_of_one_image_name_it_and_the_others_continue(
    images: list[Path], stage: str, raised: Exception, words: str
) -> None:
    class Broken(Slow):
        """A detector or a descriptor that fails at the second image."""

        calls = 0

        def __call__(self, pixels: np.ndarray, *budget: int) -> Any:
            self.calls += 1
            if self.calls == 2:
                raise raised
            return dog.detect(pixels, *budget) if budget else super().__call__(pixels)

    found = list(extract_many(images[:3], workers=1, **SETTINGS | {stage: Broken(0)}))
    assert [type(result) for _, result in found] == [Features, HardnetError, Features]
    assert images[1].name in str(found[1][1])
    assert words in str(found[1][1])


def test_other_errors_are_not_hidden(images: list[Path]) -> None:
    with pytest.raises(ZeroDivisionError):
        list(extract_many(images, **SETTINGS | {"detector": lambda *_: 1 / 0}))


@pytest.mark.parametrize(
    "wrong", [{"keypoints": 0}, {"max_size": 0}, {"workers": 0}, {"detector": "surf"}]
)
def test_wrong_settings_are_named_before_anything_is_read(wrong: dict[str, int]) -> None:
    with pytest.raises(HardnetError, match=next(iter(wrong))):
        extract_many([Path("nothing.jpg")], **(SETTINGS | wrong))


def test_closing_ends_the_threads(images: list[Path]) -> None:
    many = extract_many(images * 20, descriptor=Slow(), keypoints=20, max_size=200, workers=2)
    next(many)
    assert ours() != []
    start = time.perf_counter()
    many.close()
    assert ours() == []
    assert time.perf_counter() - start < 2


def test_a_slow_caller_bounds_what_is_kept(images: list[Path]) -> None:
    started = []

    def detect(image: np.ndarray, keypoints: int) -> Any:
        started.append(image)
        return dog.detect(image, keypoints)

    settings = {"detector": detect, "descriptor": Slow(0), "keypoints": 5, "max_size": 100}
    many = extract_many(images * 20, workers=2, **settings)
    for taken in range(1, 4):
        next(many)
        time.sleep(0.2)
        # In the queue, in the describing thread, and found or being found.
        assert len(started) <= taken + pipeline.AHEAD + 1 + 2 + pipeline.AHEAD
    many.close()


def test_stages_overlap_and_a_descriptor_is_never_called_twice_at_once(
    images: list[Path],
) -> None:
    # No clock, which a busy machine spoils: the second image is searched only once the first is
    # being described, and that ends only once the second has been searched.
    describing, read, calls = threading.Event(), threading.Event(), count(1)
    met: list[bool] = []

    def detect(image: np.ndarray, keypoints: int) -> Any:
        if next(calls) == 2:
            met.append(describing.wait(30))
            read.set()
        return dog.detect(image, keypoints)

    class Waiting(Slow):
        def __call__(self, patches: np.ndarray) -> np.ndarray:
            describing.set()
            met.append(read.wait(30))
            return super().__call__(patches)

    describe = Waiting()
    settings = {"detector": detect, "descriptor": describe, "keypoints": 5, "max_size": 60}
    list(extract_many(images[:3], workers=1, **settings))
    assert met == [True] * 4
    assert describe.most == 1


def test_images_that_do_not_fit_together_are_looked_at_one_by_one() -> None:
    room, inside, most = pipeline._Room(10), 0, 0
    lock = threading.Lock()

    def visit(size: int) -> None:
        nonlocal inside, most
        with room.of(size):
            with lock:
                inside += size
                most = max(most, inside)
                assert inside <= 10 or inside == size
            time.sleep(0.01)
            with lock:
                inside -= size

    threads = [threading.Thread(target=visit, args=(n,)) for n in (4, 4, 25, 4, 9, 3, 25, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 25


def test_ctrl_c_ends_the_process(photos: Path) -> None:
    script = (
        "import sys, os, signal, threading; from pathlib import Path\n"
        "from hardnet.pipeline import extract_many\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it\n"
        "many = extract_many([Path(sys.argv[1])] * 1000, descriptor='rootsift', keypoints=50)\n"
        "next(many)\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
        "try:\n    list(many)\nexcept KeyboardInterrupt:\n    print('stopped')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, photos / "camera.png"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout == "stopped\n", run.stderr
    assert run.returncode == 0


def test_a_program_that_forgets_the_iterator_ends(photos: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from hardnet.pipeline import extract_many\n"
        "many = extract_many([Path(sys.argv[1])] * 1000, descriptor='rootsift', keypoints=50)\n"
        "next(many)\n"
    )
    command = [sys.executable, "-c", script, photos / "camera.png"]
    assert subprocess.run(command, timeout=60).returncode == 0


def test_one_path_is_not_a_list_of_letters() -> None:
    with pytest.raises(HardnetError, match="images is one path"):
        extract_many("a.png")
