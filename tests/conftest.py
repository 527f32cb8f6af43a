"""Real photographs for all tests."""

from __future__ import annotations

import functools
import io
import os
import signal
import traceback

# Two workers that each start a thread per core wait for each other; before numpy and torch load.
if "PYTEST_XDIST_WORKER" in os.environ:
    for _library in ("OMP", "OPENBLAS", "MKL"):
        os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import typer.testing
from PIL import Image

from hardnet.images import read_image, to_grey

if "PYTEST_XDIST_WORKER" in os.environ:
    cv2.setNumThreads(1)
# Making all commands takes longer than most tests that run one of them.
typer.testing._get_command = functools.cache(typer.testing._get_command)


TRAINING = (
    "tests/bench/experiments/",
    "tests/cli/test_experiment.py",
    "tests/cli/test_foreign_files.py",
    "tests/cli/test_train.py",
    "tests/learn/",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker per file, but one for all that start Ray, and one for all that train.

    Ray takes long to start, and Fabric, which trains, to be imported.
    """
    if config.option.dist != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/retrieval/cluster/"):
                return "cluster"
            return "training" if nodeid.startswith(TRAINING) else super()._split_scope(nodeid)

    config.option.loadscopereorder = False  # else files of few long tests come last
    return Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or fills the user's cache, and values do not depend on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARDNET_PRECISION", "float32")
        patch.setenv("HARDNET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def fork() -> Iterator[Callable[[Callable[[], object]], int]]:
    """Do some work in another process, which has imported already what this one has; its id."""
    started = []

    def start(work: Callable[[], object]) -> int:
        pid = os.fork()
        if pid:
            started.append(pid)
            return pid
        try:
            work()
            os._exit(0)
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 1)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    yield start
    for pid in started:
        with suppress(ChildProcessError):  # it has ended, and somebody has waited for it
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


@pytest.fixture(scope="session")
def small_disk() -> Callable[[int], AbstractContextManager[None]]:
    """No file of this process may become larger than that many bytes: writing fails half-way."""
    resource = pytest.importorskip("resource", reason="limits files as POSIX does")

    @contextmanager
    def limited(size: int) -> Iterator[None]:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


@pytest.fixture(scope="session")
def photos() -> Path:
    """The folder of photographs inside the scikit-image wheel."""
    return Path(str(files("skimage") / "data"))


@pytest.fixture(scope="session")
def camera(photos: Path) -> np.ndarray:
    """A grey photograph, (512, 512) uint8."""
    return to_grey(read_image(photos / "camera.png"))


@pytest.fixture(scope="session")
def data() -> Path:
    """The benchmark images (``HARDNET_DATA``); tests that need them are skipped without them."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("HARDNET_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no benchmark images in {folder}: set HARDNET_DATA to their folder")
    return folder


@dataclass(frozen=True)
class FuzzedImages:
    """A folder of odd and broken image files, and what must become of each.

    Attributes:
        folder: all of them, and nothing else; some lie in a folder inside it.
        readable: name -> what it shows, (H, W) or (H, W, 3) RGB, up to coding losses.
        broken: name -> words of the HardnetError.
    """

    folder: Path
    readable: dict[str, np.ndarray]
    broken: dict[str, str]


@pytest.fixture(scope="session")
def fuzzed_images(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> FuzzedImages:
    """Images as a folder collects them over the years."""
    folder = tmp_path_factory.mktemp("fuzzed")
    cat = Image.open(photos / "chelsea.png").convert("RGB")
    rgb, grey = np.asarray(cat), cat.convert("L")
    readable: dict[str, np.ndarray] = {}

    def save(name: str, picture: Image.Image, shows: np.ndarray = rgb, **options: object) -> None:
        (folder / name).parent.mkdir(exist_ok=True)
        picture.save(folder / name, **options)
        readable[name] = shows

    # Pixels of every kind.
    deep = np.asarray(grey, np.uint16) * 257
    cv2.imwrite(str(folder / "sixteen_bits.png"), deep)
    readable["sixteen_bits.png"] = np.asarray(grey) * (255 / np.asarray(grey).max())
    alpha = np.full(grey.size[::-1], 255, np.uint8)
    alpha[:100] = 0
    over_white = np.where(alpha > 0, np.asarray(grey), 255)
    save("grey_and_alpha.png", Image.merge("LA", (grey, Image.fromarray(alpha))), shows=over_white)
    save("palette.png", cat.quantize(256))
    save("one_bit.png", grey.convert("1"), np.asarray(grey.convert("1")) * np.uint8(255))
    save("cmyk.jpg", cat.convert("CMYK"), quality=95)
    save("cmyk.tiff", cat.convert("CMYK"))
    save("animated.webp", cat, save_all=True, append_images=[cat.rotate(180)], lossless=True)
    save("two_pages.tiff", cat, save_all=True, append_images=[grey])
    # The same photo, stored lying on its side.
    lying = cat.transpose(Image.Transpose.ROTATE_90)
    exif = Image.Exif()
    exif[0x0112] = 6
    for suffix in ("jpg", "png", "webp", "tiff"):
        save(f"rotated.{suffix}", lying, exif=exif, **({"quality": 95} if suffix == "jpg" else {}))
    half = lying.copy()
    half.putalpha(128)
    save("rotated_alpha.png", half, rgb * (128 / 255) + 127.0, exif=exif)
    # Names.
    save("Fußgänger 猫 🐈.png", cat)
    save("with space, comma & 'quotes'.png", cat)
    save("a folder.jpg/photo.JPG", cat, format="JPEG", quality=95)
    # Files that are broken.
    data = io.BytesIO()
    cat.save(data, "JPEG", quality=95)
    jpeg = data.getvalue()
    middle = len(jpeg) // 2
    noise = np.random.default_rng(0).integers(0, 255, 400, np.uint8).tobytes()
    start = jpeg.index(b"\xff\xc0")  # the header with the size
    claim = struct.pack(">HH", 65000, 65000)
    palette = bytearray((folder / "palette.png").read_bytes())
    palette[len(palette) // 2] ^= 0xFF
    contents = {
        "truncated.jpg": (jpeg[:middle], "truncated"),
        "three_bytes.jpg": (jpeg[:3], "truncated"),
        "garbage_header.jpg": (jpeg[:2] + noise + jpeg[402:], "(truncated|damaged)"),
        "bomb.jpg": (jpeg[: start + 5] + claim + jpeg[start + 9 :], "65000x65000"),
        "bomb.png": (_png(30000, 30000), "30000x30000"),
        "no_pixels.png": (_png(0, 0), "damaged"),
        "too_few_pixels.png": (_png(500, 500), "damaged"),
        "wrong_checksum.png": (bytes(palette), "damaged"),
        "nothing.png": (b"", "empty"),
        "text.jpg": (b"these are words, not pixels\n" * 50, "not an image"),
    }
    for name, (content, _) in contents.items():
        (folder / name).write_bytes(content)
    broken = {name: words for name, (_, words) in contents.items()}
    for name, box in {"row": (300, 1), "column": (1, 300), "dot": (1, 1)}.items():
        cat.crop((0, 0, *box)).save(folder / f"{name}.png")
        broken[f"{name}.png"] = "too small"
    # A JPEG decoder cannot know that its data are wrong; the upper half is as it was.
    (folder / "garbage.jpg").write_bytes(jpeg[:middle] + noise + jpeg[middle + 400 :])
    readable["garbage.jpg"] = rgb
    return FuzzedImages(folder, readable, broken)


@pytest.fixture(scope="session")
def huge_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A photo-like PNG of 100 million pixels."""
    tile = np.kron(np.random.default_rng(0).integers(0, 255, (50, 50)), np.ones((10, 10)))
    path = tmp_path_factory.mktemp("huge") / "huge.png"
    cv2.imwrite(str(path), np.tile(tile.astype(np.uint8), (20, 20)))
    return path


def _png(width: int, height: int) -> bytes:
    """A PNG of almost no data, whatever size it claims."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(kind, content)
        for kind, content in ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    )
