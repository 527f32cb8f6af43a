from __future__ import annotations

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from hardnet.image_files import declared_size, is_truncated, may_be_transparent


def encoded(suffix: str, **options: object) -> bytes:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (37, 53, 3), np.uint8))
    data = io.BytesIO()
    picture.save(data, suffix, **options)
    return data.getvalue()


@pytest.mark.parametrize("suffix", ["PNG", "JPEG", "BMP", "TIFF", "PPM"])
def test_size_in_the_header(suffix: str) -> None:
    assert declared_size(encoded(suffix)) == (53, 37)


def test_size_of_rare_variants() -> None:
    assert declared_size(encoded("JPEG", progressive=True)) == (53, 37)
    upside_down = bytearray(encoded("BMP"))
    upside_down[22:26] = (-37).to_bytes(4, "little", signed=True)
    assert declared_size(bytes(upside_down)) == (53, 37)
    assert declared_size(b"P5\n# made by hand\n53 37\n255\n") == (53, 37)
    little_endian = cv2.imencode(".tiff", np.zeros((37, 53), np.uint8))[1].tobytes()
    assert declared_size(little_endian) == (53, 37)
    motorola = b"MM\x00*\x00\x00\x00\x08\x00\x02" + b"".join(
        bytes([1, tag, 0, 3, 0, 0, 0, 1, 0, value, 0, 0]) for tag, value in ((0, 53), (1, 37))
    )
    assert declared_size(motorola) == (53, 37)


@pytest.mark.parametrize("suffix", ["PNG", "JPEG", "BMP", "TIFF", "PPM", "WEBP"])
def test_no_prefix_of_a_file_is_an_exception(suffix: str) -> None:
    data = encoded(suffix)
    for end in range(0, len(data), 7 if len(data) > 2000 else 1):
        size = declared_size(data[:end])
        assert size in (None, (53, 37)) or suffix == "PPM"  # its numbers may be cut in two
        is_truncated(data[:end])
        may_be_transparent(data[:end])


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
