from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import hardnet
from hardnet.cli.app import app
from hardnet.errors import HardnetError
from hardnet.image_files import foreign_format, looks_like_image
from hardnet.images import list_images, read_image, to_colour
from hardnet.interop.opencv import HardNet

WIDTH, HEIGHT = 320, 240


@pytest.fixture(scope="module")
def picture() -> np.ndarray:
    noise = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    smooth = cv2.GaussianBlur(noise, (0, 0), 4)
    return cv2.normalize(smooth, None, 0, 255, cv2.NORM_MINMAX)


def by_pillow(picture: np.ndarray, kind: str, **options: object) -> bytes:
    data = io.BytesIO()
    Image.fromarray(picture).save(data, kind, **options)
    return data.getvalue()


def heic(picture: np.ndarray) -> bytes:
    return _heic(picture.tobytes(), picture.shape)


@cache
def _heic(pixels: bytes, shape: tuple[int, ...]) -> bytes:
    picture = np.frombuffer(pixels, np.uint8).reshape(shape)
    pillow_heif = pytest.importorskip("pillow_heif", reason="HEIC needs hardnet[formats]")
    data = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(picture)).save(data, quality=90)
    return data.getvalue()


def dng(picture: np.ndarray) -> bytes:
    """A raw file as a camera makes it: one colour per pixel, 16 bits, red first."""
    height, width = picture.shape[:2]
    mosaic = picture[:, :, 1].astype("<u2")
    mosaic[::2, ::2], mosaic[1::2, 1::2] = picture[::2, ::2, 0], picture[1::2, 1::2, 2]
    pixels = (mosaic * 256).tobytes()
    identity = [1 if i % 4 == 0 else 0 for i in range(9)]
    rational = b"".join(struct.pack("<ii", value, 1) for value in identity)
    tags: list[tuple[int, int, int, bytes]] = [
        (254, 4, 1, struct.pack("<I", 0)),
        (256, 4, 1, struct.pack("<I", width)),
        (257, 4, 1, struct.pack("<I", height)),
        (258, 3, 1, struct.pack("<H", 16)),
        (259, 3, 1, struct.pack("<H", 1)),
        (262, 3, 1, struct.pack("<H", 32803)),
        (271, 2, 5, b"None\0"),
        (272, 2, 5, b"None\0"),
        (273, 4, 1, b"????"),
        (277, 3, 1, struct.pack("<H", 1)),
        (278, 4, 1, struct.pack("<I", height)),
        (279, 4, 1, struct.pack("<I", len(pixels))),
        (33421, 3, 2, struct.pack("<HH", 2, 2)),
        (33422, 1, 4, bytes([0, 1, 1, 2])),
        (50706, 1, 4, bytes([1, 4, 0, 0])),
        (50708, 2, 5, b"None\0"),
        (50721, 10, 9, rational),
    ]
    start = 8 + 2 + 12 * len(tags) + 4
    extra = b""
    table = struct.pack("<H", len(tags))
    for tag, kind, count, value in tags:
        if tag == 273:
            value = struct.pack("<I", start + 200)
        if len(value) > 4:
            place = struct.pack("<I", start + len(extra))
            extra += value
            value = place
        table += struct.pack("<HHI", tag, kind, count) + value.ljust(4, b"\0")
    return b"II*\0\x08\0\0\0" + table + bytes(4) + extra.ljust(200, b"\0") + pixels


FORMATS: dict[str, Callable[[np.ndarray], bytes]] = {
    "avif": lambda p: by_pillow(p, "AVIF", quality=95),
    "gif": lambda p: by_pillow(p, "GIF"),
    "jp2": lambda p: by_pillow(p, "JPEG2000"),
    "heic": heic,
    "dng": dng,
}


@pytest.mark.parametrize("suffix", FORMATS)
def test_formats_are_read_and_found_in_folders(
    picture: np.ndarray, tmp_path: Path, suffix: str
) -> None:
    if suffix == "dng":
        pytest.importorskip("rawpy", reason="raw files need hardnet[formats]")
    named, plain = tmp_path / f"named.{suffix}", tmp_path / "no suffix"
    for path in (named, plain):
        path.write_bytes(FORMATS[suffix](picture))
    assert list_images(tmp_path) == [named, plain]
    found = read_image(plain)
    assert found.shape == picture.shape
    if suffix == "dng":  # colours and brightness are made from the mosaic
        assert np.corrcoef(found[..., 1].ravel(), picture[..., 1].ravel())[0, 1] > 0.8
    else:
        assert np.abs(found.astype(float) - picture).mean() < 6


def test_transparent_avif_is_white(picture: np.ndarray, tmp_path: Path) -> None:
    clear = np.dstack([picture, np.full((HEIGHT, WIDTH), 255, np.uint8)])
    clear[:100, :, 3] = 0
    (tmp_path / "a.avif").write_bytes(by_pillow(clear, "AVIF", quality=95))
    found = read_image(tmp_path / "a.avif")
    assert (found[:90] == 255).all()
    assert np.abs(found[110:].astype(float) - picture[110:]).mean() < 6


def test_a_folder_loses_no_photo(picture: np.ndarray, tmp_path: Path) -> None:
    """Whatever looks like an image is read, or is named with the reason."""
    photos = tmp_path / "photos"
    photos.mkdir()
    good = {
        "no suffix": by_pillow(picture, "JPEG"),
        "photo.jpg.bak": by_pillow(picture, "PNG"),
        "a.JPE": by_pillow(picture, "JPEG"),
        "a.pbm": b"P4\n64 64\n" + bytes(512),
        "b": by_pillow(picture, "BMP"),
        "c.dat": by_pillow(picture, "TIFF"),
        "d.png": by_pillow(picture, "GIF"),
    }
    unread = {
        "x": (b"\xff\x0a" + bytes(99), "JPEG XL"),
        "y.psd": (b"8BPS\x00\x01" + bytes(99), "Photoshop"),
        "z.jpg": (b"these are words", "not an image"),
        "w.exr": (b"\x76\x2f\x31\x01" + bytes(99), "OpenEXR"),
    }
    other = {"Thumbs.db": b"\xd0\xcf\x11\xe0", "BMW.txt": b"BMW, P1 and RIFF", "P5 notes": b"P5 a"}
    for name, data in (good | other | {n: data for n, (data, _) in unread.items()}).items():
        (photos / name).write_bytes(data)
    assert {path.name for path in list_images(photos)} == {*good, *unread}
    for name in good:
        read_image(photos / name)
    for name, (_, words) in unread.items():
        with pytest.raises(HardnetError, match=words):
            read_image(photos / name)
    quick = ["--descriptor", "rootsift", "--keypoints", "50"]
    result = CliRunner().invoke(app, ["extract", str(photos), "-o", str(tmp_path / "f.h5"), *quick])
    assert result.exit_code == 1  # some were skipped
    for name, (_, words) in unread.items():
        assert name in result.output
        assert words in result.output


def test_a_folder_that_may_not_be_looked_into_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "b.png").write_bytes(b"")
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if parent.name.startswith(("pytest-", "popen-")):
            parent.chmod(0o755)
    (tmp_path / "secret").chmod(0)
    child = os.fork()
    if not child:
        code = 1
        try:
            if not os.geteuid():
                os.setuid(65534)  # the superuser may look into everything
            assert [p.name for p in list_images(tmp_path)] == ["a.png", "secret"]
            with pytest.raises(HardnetError, match="may not read"):
                read_image(tmp_path / "secret")
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (tmp_path / "secret").chmod(0o755)


@pytest.mark.parametrize(
    ("suffix", "package", "words"),
    [("heic", "pillow_heif", "HEIC: pillow-heif"), ("dng", "rawpy", "camera raw: rawpy")],
)
def test_a_missing_extra_is_named_with_the_format(
    picture: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    package: str,
    words: str,
) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(FORMATS[suffix](picture))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(HardnetError, match=rf"{words} is not installed; .*\[formats\]"):
        read_image(path)


def with_size(data: bytes, width: int, height: int) -> bytes:
    """An AVIF or HEIC file that claims another size of its picture."""
    at = data.index(b"ispe") + 8
    return data[:at] + struct.pack(">II", width, height) + data[at + 8 :]


@pytest.mark.parametrize("suffix", ["avif", "heic"])
def test_claims_and_lies_of_the_header(picture: np.ndarray, tmp_path: Path, suffix: str) -> None:
    data = FORMATS[suffix](picture)
    (tmp_path / "claim").write_bytes(with_size(data, 30000, 30000))
    with pytest.raises(HardnetError, match="claims 30000x30000 pixels, 2700 MB decoded: more than"):
        read_image(tmp_path / "claim")
    (tmp_path / "lie").write_bytes(with_size(data, 16, 16))
    if suffix == "avif":  # its decoder cuts the picture to what the header says
        assert read_image(tmp_path / "lie", max_bytes=100_000).shape == (16, 16, 3)
    else:
        with pytest.raises(HardnetError, match=r"more than 0.1 MB|damaged"):
            read_image(tmp_path / "lie", max_bytes=100_000)


def test_a_raw_file_keeps_to_the_limit(picture: np.ndarray, tmp_path: Path) -> None:
    pytest.importorskip("rawpy", reason="raw files need hardnet[formats]")
    (tmp_path / "a.dng").write_bytes(dng(picture))
    with pytest.raises(HardnetError, match="more than"):
        read_image(tmp_path / "a.dng", max_bytes=200_000)


@pytest.mark.parametrize("suffix", ["avif", "heic", "dng"])
def test_damaged_files_are_refused_in_one_line(
    picture: np.ndarray, tmp_path: Path, suffix: str
) -> None:
    data = FORMATS[suffix](picture)
    (tmp_path / f"a.{suffix}").write_bytes(data[: len(data) // 3])
    with pytest.raises(HardnetError, match="damaged") as caught:
        read_image(tmp_path / f"a.{suffix}")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_memory_of_a_lying_avif_is_limited(tmp_path: Path) -> None:
    flat = np.zeros((9000, 9000, 3), np.uint8)
    data = by_pillow(flat, "AVIF", speed=10)
    assert len(data) < 1_000_000
    (tmp_path / "bomb.avif").write_bytes(with_size(data, 16, 16))
    program = (
        "import resource, sys; from pathlib import Path; from hardnet.images import read_image\n"
        "try: read_image(Path(sys.argv[1]), max_bytes=10**6)\n"
        "except Exception as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "bomb.avif")],
        capture_output=True,
        text=True,
        check=True,
    )
    words, kilobytes = done.stdout.splitlines()
    assert "memory" in words
    assert int(kilobytes) < 450_000  # its pixels have 243 MB, and the decoder's copy as many


def test_raw_files_are_known_by_content() -> None:
    assert foreign_format(dng(np.zeros((32, 32, 3), np.uint8))) == "camera raw"
    assert foreign_format(b"II*\x00\x10\x00\x00\x00CR\x02\x00") == "camera raw"
    assert foreign_format(b"FUJIFILMCCD-RAW 0201") == "camera raw"
    assert foreign_format(by_pillow(np.zeros((32, 32, 3), np.uint8), "TIFF")) is None
    assert foreign_format(b"\x00\x00\x00\x18ftypisom\x00\x00\x00\x00isommp42") is None  # a video


def test_only_regular_files_are_looked_at(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    assert not looks_like_image(tmp_path / "pipe")
    assert not looks_like_image(tmp_path / "folder")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_images_of_pillow(picture: np.ndarray, mode: str) -> None:
    image = Image.fromarray(picture).convert("P" if mode == "PA" else mode)
    image = image.convert(mode)
    found = to_colour(read_image(image))
    assert np.abs(found.astype(float) - np.asarray(image.convert("RGB"))).mean() < 2


def test_deep_images_of_pillow(picture: np.ndarray) -> None:
    deep = picture[:, :, 0].astype(np.uint16) * 100
    assert np.array_equal(read_image(Image.fromarray(deep)), read_image(deep))


def test_images_of_pillow_where_arrays_are_taken(picture: np.ndarray) -> None:
    image = Image.fromarray(picture)
    a, b = hardnet.extract(picture, keypoints=50), hardnet.extract(image, keypoints=50)
    assert b.path is None
    assert np.array_equal(b.pixels, picture)
    assert np.array_equal(a.descriptors, b.descriptors)
    found, expected = (hardnet.match(a, other, keypoints=50) for other in (image, picture))
    assert len(found.indices) == len(expected.indices) > 10
    sift = HardNet.create(50)
    ours, rows = sift.detectAndCompute(image, None)
    same, expected = sift.detectAndCompute(np.ascontiguousarray(picture[:, :, ::-1]), None)
    assert [k.pt for k in ours] == [k.pt for k in same]
    assert np.array_equal(rows, expected)
