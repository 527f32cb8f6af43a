from __future__ import annotations

import resource
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest
from PIL import Image

from hardnet.errors import HardnetError, InputError
from hardnet.images import list_images, read_image, shrink, to_colour, to_grey, write_image

if TYPE_CHECKING:
    from conftest import FuzzedImages


def exif_jpeg(pixels: np.ndarray, orientation: int, thumbnail: bytes = b"") -> bytes:
    """A JPEG of RGB pixels with an EXIF orientation tag (and anything after it in the segment)."""
    data = cv2.imencode(".jpg", pixels[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes()
    entry = struct.pack(">HHIHH", 0x0112, 3, 1, orientation, 0)
    tiff = b"MM\x00*" + struct.pack(">I", 8) + struct.pack(">H", 1) + entry + b"\x00" * 4
    body = b"Exif\x00\x00" + tiff + thumbnail
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]


# What a viewer must do to the stored pixels, by the EXIF standard.
UPRIGHT = {
    1: lambda p: p,
    2: lambda p: p[:, ::-1],
    3: lambda p: p[::-1, ::-1],
    4: lambda p: p[::-1],
    5: lambda p: p.transpose(1, 0, 2),
    6: lambda p: np.rot90(p, -1),
    7: lambda p: p[::-1, ::-1].transpose(1, 0, 2),
    8: lambda p: np.rot90(p, 1),
}


@pytest.fixture(scope="module")
def cat(photos: Path) -> np.ndarray:
    return read_image(photos / "chelsea.png")


@pytest.mark.parametrize("orientation", sorted(UPRIGHT))
def test_exif_rotation_is_applied(cat: np.ndarray, tmp_path: Path, orientation: int) -> None:
    path = tmp_path / "turned.jpg"
    path.write_bytes(exif_jpeg(cat, orientation))
    expected = UPRIGHT[orientation](cat)
    found = read_image(path)
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).mean() < 2


def test_colour_order_is_rgb(tmp_path: Path) -> None:
    red = np.zeros((20, 30, 3), np.uint8)
    red[:, :, 0] = 200
    write_image(tmp_path / "red.png", red)
    np.testing.assert_array_equal(read_image(tmp_path / "red.png"), red)
    assert cv2.imread(str(tmp_path / "red.png"))[0, 0].tolist() == [0, 0, 200]


def test_unicode_path(cat: np.ndarray, tmp_path: Path) -> None:
    path = tmp_path / "Fußgänger 猫.png"
    write_image(path, cat)
    np.testing.assert_array_equal(read_image(str(path)), cat)


def test_sixteen_bits_are_scaled_to_their_maximum(cat: np.ndarray, tmp_path: Path) -> None:
    twelve_bit = to_grey(cat).astype(np.uint16) * 16  # as a 12-bit camera stores it
    cv2.imwrite(str(tmp_path / "deep.png"), twelve_bit)
    found = read_image(tmp_path / "deep.png")
    expected = twelve_bit / twelve_bit.max() * 255
    assert found.dtype == np.uint8
    assert np.abs(found - expected).max() <= 0.51


def test_transparent_is_white(cat: np.ndarray, tmp_path: Path) -> None:
    bgra = np.dstack([cat[:, :, ::-1], np.full(cat.shape[:2], 255, np.uint8)])
    bgra[:100, :, 3] = 0
    bgra[100:150, :, 3] = 128
    cv2.imwrite(str(tmp_path / "alpha.png"), bgra)
    found = read_image(tmp_path / "alpha.png")
    assert (found[:100] == 255).all()
    half = cat[100:150] * (128 / 255) + 255 * (127 / 255)
    assert np.abs(found[100:150] - half).max() <= 0.51
    np.testing.assert_array_equal(found[150:], cat[150:])


def test_grey_stays_grey(camera: np.ndarray, tmp_path: Path) -> None:
    write_image(tmp_path / "grey.png", camera)
    assert to_grey(read_image(tmp_path / "grey.png")).shape == camera.shape
    assert to_colour(camera).shape == (512, 512, 3)


def test_arrays(camera: np.ndarray) -> None:
    np.testing.assert_array_equal(read_image(camera[:, :, None]), camera)
    np.testing.assert_array_equal(read_image(camera / 255), camera)
    np.testing.assert_array_equal(read_image(camera.astype(np.float32)), camera)
    np.testing.assert_array_equal(read_image(camera > 99), (camera > 99).astype(np.uint8) * 255)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((0, 9)), "shape"),
        (np.zeros((3, 3, 3, 3)), "shape"),
        (np.zeros((30, 30, 7), np.uint8), "7 channels"),
        (np.full((30, 30), np.nan), "NaN"),
        (np.zeros((1, 1), np.uint8), "too small"),
    ],
)
def test_bad_arrays(array: np.ndarray, words: str) -> None:
    with pytest.raises(HardnetError, match=words):
        read_image(array)


def broken_files(folder: Path, cat: np.ndarray) -> dict[str, Path]:
    thumbnail = cv2.imencode(".jpg", cat[:32, :32])[1].tobytes()
    whole = {
        "cut.jpg": exif_jpeg(cat, 1),
        "cut_thumbnail.jpg": exif_jpeg(cat, 1, thumbnail),
        **{
            f"cut{suffix}": cv2.imencode(suffix, cat)[1].tobytes()
            for suffix in (".png", ".webp", ".bmp", ".tiff")
        },
    }
    for name, data in whole.items():
        (folder / name).write_bytes(data[: len(data) * 6 // 10])
    (folder / "text.jpg").write_text("these are words, not pixels\n" * 50)
    (folder / "empty.png").write_bytes(b"")
    (folder / "folder.png").mkdir()
    cv2.imwrite(str(folder / "dot.png"), np.zeros((1, 1, 3), np.uint8))
    return {path.name: path for path in folder.iterdir()} | {"none.jpg": folder / "none.jpg"}


def test_broken_files_are_named_in_one_line(
    cat: np.ndarray, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    paths = broken_files(tmp_path, cat)
    reasons = {
        "none.jpg": "does not exist",
        "folder.png": "is a folder",
        "empty.png": "is empty",
        "text.jpg": "not an image",
        "dot.png": "1x1 pixels: too small",
        "cut.jpg": "truncated",
        "cut_thumbnail.jpg": "truncated",
        "cut.png": "truncated",
        "cut.webp": "truncated",
        "cut.bmp": "damaged",
        "cut.tiff": "damaged",
    }
    assert set(reasons) == set(paths)
    for name, words in reasons.items():
        with pytest.raises(HardnetError, match=words) as caught:
            read_image(paths[name])
        assert str(paths[name]) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert capfd.readouterr().err == ""  # OpenCV keeps quiet


def test_whole_jpegs_are_not_called_truncated(cat: np.ndarray, tmp_path: Path) -> None:
    thumbnail = cv2.imencode(".jpg", cat[:32, :32])[1].tobytes()
    progressive = cv2.imencode(".jpg", cat, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    restarts = cv2.imencode(".jpg", cat, [cv2.IMWRITE_JPEG_RST_INTERVAL, 4])[1].tobytes()
    trailer = exif_jpeg(cat, 1, thumbnail) + b"\xff\xda video of a moving photo"
    for data in (progressive, restarts, trailer):
        (tmp_path / "whole.jpg").write_bytes(data)
        assert read_image(tmp_path / "whole.jpg").shape == cat.shape


def test_shrink_reports_the_true_factor_of_each_axis() -> None:
    image = np.zeros((667, 1000), np.uint8)
    small, (fx, fy) = shrink(image, 400)
    assert small.shape == (267, 400)
    assert (fx, fy) == (0.4, 267 / 667)


def test_shrink_never_enlarges(camera: np.ndarray) -> None:
    assert shrink(camera, 512)[0] is camera
    assert shrink(camera, None) == (camera, (1.0, 1.0))


def test_shrink_averages() -> None:
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 200
    assert (shrink(stripes, 32)[0] == 100).all()


@pytest.mark.parametrize(("name", "words"), [("a.nope", ".png or .jpg"), ("no/a.png", "written")])
def test_unwritable_pictures(camera: np.ndarray, tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(HardnetError, match=words):
        write_image(tmp_path / name, camera)


def test_a_picture_that_does_not_fit_on_the_disk_leaves_the_old_one(
    camera: np.ndarray, tmp_path: Path
) -> None:
    path = tmp_path / "camera.png"
    write_image(path, camera[:32, :32])
    before, (soft, hard) = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(HardnetError, match="cannot be written"):
            write_image(path, camera)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_picture_written_through_a_link(camera: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "link.png").symlink_to("camera.png")
    write_image(tmp_path / "link.png", camera)
    assert (tmp_path / "link.png").is_symlink()
    assert (read_image(tmp_path / "camera.png") == to_colour(camera)).all()


def test_every_fuzzed_image_is_read_or_refused(fuzzed_images: FuzzedImages) -> None:
    files = {p for p in fuzzed_images.folder.rglob("*") if p.is_file()}
    names = {p.relative_to(fuzzed_images.folder).as_posix() for p in files}
    assert names == {*fuzzed_images.readable, *fuzzed_images.broken}
    for name, words in fuzzed_images.broken.items():
        with pytest.raises(HardnetError, match=words) as caught:
            read_image(fuzzed_images.folder / name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)
    for name, shows in fuzzed_images.readable.items():
        found = to_colour(read_image(fuzzed_images.folder / name))
        expected = shows if shows.ndim == 3 else np.repeat(shows[:, :, None], 3, 2)
        assert found.shape == expected.shape, name
        seen = slice(0, 100) if name == "garbage.jpg" else slice(None)
        assert np.abs(found[seen].astype(float) - expected[seen]).mean() < 4, name


def test_a_folder_of_fuzzed_images_can_be_listed(fuzzed_images: FuzzedImages) -> None:
    found = {
        p.relative_to(fuzzed_images.folder).as_posix() for p in list_images(fuzzed_images.folder)
    }
    assert found == {*fuzzed_images.readable, *fuzzed_images.broken}  # but not "a folder.jpg"
    with pytest.raises(HardnetError, match="is a folder"):
        read_image(fuzzed_images.folder / "a folder.jpg")


def test_threads_leave_opencv_as_loud_as_it_was(fuzzed_images: FuzzedImages) -> None:
    log = cv2.utils.logging if hasattr(cv2.utils, "logging") else cv2
    before = log.getLogLevel()
    paths = [fuzzed_images.folder / "palette.png"] * 60
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(read_image, paths))
    assert log.getLogLevel() == before


def test_large_arrays_are_converted_as_small_ones(camera: np.ndarray) -> None:
    deep, clear = camera.astype(np.uint16) * 100, np.dstack([camera] * 4)
    for small, more in ((deep, (5, 5)), (clear, (3, 2, 1))):  # more than one block
        expected = np.tile(read_image(small), more[: read_image(small).ndim])
        np.testing.assert_array_equal(read_image(np.tile(small, more)), expected)


@pytest.mark.slow
def test_a_hundred_megapixels(huge_image: Path) -> None:
    code = f"""
import resource, hardnet
found = hardnet.extract({str(huge_image)!r}, descriptor="rootsift")
print(len(found), *found.image_size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, width, height, megabytes = map(int, done.stdout.split())
    assert (count, width, height) == (2048, 10000, 10000)
    assert megabytes < 1500


@pytest.mark.parametrize("source", [7, None, ["a.jpg"]])
def test_what_is_no_image_at_all(source: object) -> None:
    with pytest.raises(InputError, match="a path, an array or a Pillow image, not "):
        read_image(source)  # type: ignore[arg-type]


def test_complex_numbers_are_no_image(camera: np.ndarray) -> None:
    with pytest.raises(HardnetError, match="contains complex128 values"):
        read_image(camera.astype(complex))


def test_a_pillow_image_of_half_a_file(camera: np.ndarray, tmp_path: Path) -> None:
    data = cv2.imencode(".png", camera)[1].tobytes()
    (tmp_path / "half.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(HardnetError, match="the Pillow image cannot be read"):
        read_image(Image.open(tmp_path / "half.png"))
