from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from hardnet.image_files import is_truncated, may_be_transparent


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
