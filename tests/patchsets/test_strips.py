"""Sizes from headers agree with what OpenCV decodes; damage is named."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.strips import picture_size, read_picture


@pytest.mark.parametrize("suffix", [".png", ".bmp"])
@pytest.mark.parametrize("shape", [(30, 10), (130, 65), (3, 7), (17, 5, 3)])
def test_size_and_pixels(tmp_path: Path, suffix: str, shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    path = tmp_path / f"ä b{suffix}"
    path.write_bytes(cv2.imencode(suffix, pixels)[1].tobytes())
    assert picture_size(path) == (shape[1], shape[0])
    grey = pixels if pixels.ndim == 2 else cv2.cvtColor(pixels, cv2.COLOR_BGR2GRAY)
    assert np.abs(read_picture(path).astype(int) - grey).max() <= (pixels.ndim == 3)


@pytest.mark.parametrize("suffix", [".png", ".bmp"])
@pytest.mark.parametrize("keep", [0.02, 0.5, 0.999])
def test_a_file_cut_short_is_named(
    tmp_path: Path, camera: np.ndarray, suffix: str, keep: float
) -> None:
    path = tmp_path / f"cut{suffix}"
    data = cv2.imencode(suffix, camera)[1].tobytes()
    path.write_bytes(data[: int(len(data) * keep)])
    for read in (picture_size, read_picture):
        with pytest.raises(HardnetError, match=rf"cut\{suffix} is truncated"):
            read(path)


def test_damage_inside_is_named_on_decoding(
    tmp_path: Path, camera: np.ndarray, capfd: pytest.CaptureFixture[str]
) -> None:
    data = bytearray(cv2.imencode(".png", camera)[1].tobytes())
    data[len(data) // 2 : len(data) // 2 + 500] = bytes(500)
    (tmp_path / "bad.png").write_bytes(data)
    with pytest.raises(HardnetError, match=r"bad\.png is truncated or damaged"):
        read_picture(tmp_path / "bad.png")


@pytest.mark.parametrize("content", [b"", b"BM123", b"\x89PNG\r\n\x1a\n", b"<html>Moved</html>"])
def test_other_things_are_not_pictures(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.png").write_bytes(content)
    with pytest.raises(HardnetError, match=r"x\.png is damaged or neither"):
        picture_size(tmp_path / "x.png")


def test_an_absent_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match=r"x\.png is missing"):
        read_picture(tmp_path / "x.png")
