"""What the header of an image file says, compared with what is decoded."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from hardnet.image_files import is_truncated, may_be_transparent, read_header, scans


def encoded(suffix: str, **options: object) -> bytes:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (37, 53, 3), np.uint8))
    data = io.BytesIO()
    picture.save(data, suffix, **options)
    return data.getvalue()


@pytest.mark.parametrize("suffix", ["PNG", "JPEG", "WEBP"])
def test_truncated(suffix: str) -> None:
    data = encoded(suffix)
    assert not is_truncated(data)
    assert is_truncated(data[: len(data) // 2])
    assert is_truncated(data[:-12])


def test_transparency() -> None:
    assert not may_be_transparent(encoded("JPEG"))
    assert not may_be_transparent(encoded("PNG"))
    for mode in ("LA", "RGBA"):
        data = io.BytesIO()
        Image.new(mode, (20, 20)).save(data, "PNG")
        assert may_be_transparent(data.getvalue())
    data = io.BytesIO()
    Image.new("P", (20, 20)).save(data, "PNG", transparency=0)
    assert may_be_transparent(data.getvalue())


WIDTH, HEIGHT = 153, 137


def noise(channels: int, dtype: type = np.uint8) -> np.ndarray:
    shape = (HEIGHT, WIDTH) if channels == 1 else (HEIGHT, WIDTH, channels)
    values = np.random.default_rng(0).integers(0, 255, shape)
    return values.astype(dtype)


def encoded_noise(suffix: str, channels: int = 3, dtype: type = np.uint8, *options: int) -> bytes:
    good, data = cv2.imencode(suffix, noise(channels, dtype), list(options))
    assert good
    return bytes(data)


def by_pillow(kind: str, mode: str = "RGB", **options: object) -> bytes:
    data = io.BytesIO()
    Image.fromarray(noise(3)).convert(mode).save(data, kind, **options)
    return data.getvalue()


def written(tmp_path: Path, name: str, pixels: np.ndarray) -> bytes:
    assert cv2.imwrite(str(tmp_path / name), pixels)
    return (tmp_path / name).read_bytes()


def files(tmp_path: Path) -> dict[str, bytes]:
    """A file of every kind that OpenCV decodes and we let it."""
    found = {
        "grey.jpg": encoded_noise(".jpg", 1),
        "colour.jpg": encoded_noise(".jpg"),
        "progressive.jpg": encoded_noise(".jpg", 3, np.uint8, cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        "cmyk.jpg": by_pillow("JPEG", "CMYK"),
        "grey.png": encoded_noise(".png", 1),
        "grey-16.png": encoded_noise(".png", 1, np.uint16),
        "colour.png": encoded_noise(".png"),
        "alpha-16.png": encoded_noise(".png", 4, np.uint16),
        "grey-alpha.png": by_pillow("PNG", "LA"),
        "palette.png": by_pillow("PNG", "P"),
        "clear-palette.png": by_pillow("PNG", "P", transparency=3),
        "clear-grey.png": by_pillow("PNG", "L", transparency=3),
        "grey.tiff": encoded_noise(".tiff", 1),
        "colour.tiff": encoded_noise(".tiff"),
        "alpha-16.tiff": encoded_noise(".tiff", 4, np.uint16),
        "float.tiff": encoded_noise(".tiff", 3, np.float32),
        "double.tiff": encoded_noise(".tiff", 1, np.float64),
        "one-bit.tiff": by_pillow("TIFF", "1"),
        "palette.tiff": by_pillow("TIFF", "P"),
        "cmyk.tiff": by_pillow("TIFF", "CMYK"),
        "big.tiff": by_pillow("TIFF", "RGB", big_tiff=True),
        "lossy.webp": encoded_noise(".webp", 3, np.uint8, cv2.IMWRITE_WEBP_QUALITY, 80),
        "lossless.webp": encoded_noise(".webp"),
        "alpha.webp": encoded_noise(".webp", 4),
        "animated.webp": by_pillow(
            "WEBP", "RGB", save_all=True, append_images=[Image.fromarray(noise(3)[::-1])]
        ),
        "colour.gif": by_pillow("GIF"),
        "grey.bmp": by_pillow("BMP", "L"),
        "colour.bmp": encoded_noise(".bmp"),
        "alpha.bmp": by_pillow("BMP", "RGBA"),
        "bits.pbm": b"P4\n# by hand\n%d %d\n" % (WIDTH, HEIGHT) + bytes(20 * HEIGHT),
        "grey.pgm": encoded_noise(".pgm", 1),
        "colour-16.ppm": encoded_noise(".ppm", 3, np.uint16),
        "text.ppm": encoded_noise(".ppm", 3, np.uint8, cv2.IMWRITE_PXM_BINARY, 0),
        "grey.jp2": written(tmp_path, "a.jp2", noise(1)),
        "colour-16.jp2": written(tmp_path, "b.jp2", noise(3, np.uint16)),
    }
    jp2 = found["grey.jp2"]
    return found | {"bare.j2k": jp2[jp2.index(b"\xff\x4f\xff\x51") :]}


def test_headers_say_what_is_decoded(tmp_path: Path) -> None:
    for name, data in files(tmp_path).items():
        header = read_header(data)
        assert header is not None, name
        assert (header.width, header.height) == (WIDTH, HEIGHT), name
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        assert decoded is not None, name
        assert decoded.shape[:2] == (HEIGHT, WIDTH), name
        # Never too few; a palette may be grey, and JPEG 2000 is decoded to 32 bits.
        assert decoded.nbytes <= header.decoded_bytes <= 6 * decoded.nbytes, name
        if name.endswith((".jpg", ".png")) and "clear" not in name:
            assert header.decoded_bytes == decoded.nbytes, name


def test_no_prefix_of_a_file_is_an_exception(tmp_path: Path) -> None:
    for name, data in files(tmp_path).items():
        for end in [*range(0, 300, 7), *range(300, len(data), 997)]:
            header = read_header(data[:end])
            if header is not None and not name.endswith((".ppm", ".pgm")):
                assert (header.width, header.height) == (WIDTH, HEIGHT), (name, end)
            is_truncated(data[:end])
            may_be_transparent(data[:end])


def test_rare_variants() -> None:
    upside_down = bytearray(encoded_noise(".bmp"))
    upside_down[22:26] = (-HEIGHT).to_bytes(4, "little", signed=True)
    old = b"BM" + bytes(12) + struct.pack("<IHHHH", 12, WIDTH, HEIGHT, 1, 24)
    motorola = b"MM\x00*\x00\x00\x00\x08\x00\x02" + b"".join(
        bytes([1, tag, 0, 3, 0, 0, 0, 1, 0, value, 0, 0])
        for tag, value in ((0, WIDTH), (1, HEIGHT))
    )
    for data in (bytes(upside_down), old, motorola):
        header = read_header(data)
        assert header is not None
        assert (header.width, header.height) == (WIDTH, HEIGHT)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"these are words",
        b"\x00\x00\x00 ftypavif\x00\x00\x00\x00avifmif1miafMA1B",  # its header may lie
        b"\x76\x2f\x31\x01" + bytes(99),  # OpenEXR
        b"PF\n20000 20000\n-1.0\n",  # PFM, which OpenCV would decode
        b"P7\nWIDTH 20000\nHEIGHT 20000\nDEPTH 3\nMAXVAL 65535\nENDHDR\n",
        b"#?RGBE\nFORMAT=32-bit_rle_rgbe\n\n-Y 20000 +X 20000\n",
        struct.pack(">8I", 0x59A66A95, 20000, 20000, 24, 0, 1, 0, 0),  # Sun raster
        b"RIFF\x00\x01\x00\x00WEBP\x2f" + bytes(99),  # a bare stream inside
        b"II*\x00\x08\x00\x00\x00\xff\xff",  # a directory longer than the file
        b"P5\n99999999999 2\n255\n",
        b"P5 20#9999\n20 255\n",  # a comment for us, two numbers for OpenCV
    ],
)
def test_what_cannot_be_followed_has_no_header(data: bytes) -> None:
    assert read_header(data) is None


def test_scans_are_counted_up_to_the_end_of_the_picture() -> None:
    plain = encoded_noise(".jpg")
    progressive = encoded_noise(".jpg", 3, np.uint8, cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    assert scans(plain) == 1
    assert 5 < scans(progressive) < 20
    assert scans(plain + progressive) == 1  # a trailer
    assert scans(encoded_noise(".png")) == 1
