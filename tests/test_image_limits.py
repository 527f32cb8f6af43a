"""Image files that would take more memory than the limit are refused before they are decoded."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import zlib
from functools import reduce
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.errors import HardnetError
from hardnet.image_files import ENVIRONMENT, MAX_SCANS, max_image_bytes, parse_size
from hardnet.images import read_image
from hardnet.patchsets.build.colmap_model import read_photo
from hardnet.patchsets.fetch import Source, read_frames, read_pictures
from hardnet.patchsets.patchset import picture_size, read_picture

READ = """
import json, resource, sys, time
from hardnet.errors import HardnetError
from hardnet.images import read_image
kilobytes = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    before, start = kilobytes(), time.perf_counter()
    try:
        found = read_image(path).shape
    except HardnetError as error:
        found = str(error)
    print(json.dumps([found, (kilobytes() - before) / 1000, time.perf_counter() - start]))
"""
SMALL = 10**6  # a bomb is small
Answer = tuple[Any, float, float]


def read_in_a_child(*paths: Path, limit: str = "") -> list[Answer]:
    """What `read_image` says or the shape it returns, megabytes it took more, and seconds.

    Of each path, all in one process: what takes a lot after another that did is not seen.
    """
    done = subprocess.run(
        [sys.executable, "-c", READ, *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {ENVIRONMENT: limit},
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def gif(width: int, height: int) -> bytes:
    """A black picture: code 6 is two pixels, 7 is three and so on, until the table is full."""
    codes, left = [4, 0], width * height - 1  # 4 clears the table, 0 is one black pixel
    while left > 1:
        code = min(codes[-1] + 1 if codes[-1] else 6, left + 4, 4094)
        codes.append(code)
        left -= code - 4
    codes += [0] * left
    bits = []
    for number, code in enumerate(codes):  # the table grows by one, and codes with it
        bits += [code >> k & 1 for k in range(min(number + 4, 4095).bit_length())]
    packed = np.packbits(bits, bitorder="little").tobytes()
    blocks = b"".join(
        bytes([len(packed[at : at + 255])]) + packed[at : at + 255]
        for at in range(0, len(packed), 255)
    )
    screen = struct.pack("<HHBBB", width, height, 0x81, 0, 0) + bytes(12)
    frame = b"," + struct.pack("<HHHHBB", 0, 0, width, height, 0, 2)
    return b"GIF89a" + screen + frame + blocks + b"\x00;"


def tiff(tags: list[tuple[int, int]], big: bool = False, rows: int = 1) -> bytes:
    """A TIFF file with these tags, and ``rows`` strips that are all the same deflated zeros."""
    strip = zlib.compress(bytes(300_000), 9)
    entry, number, table = ("<HHQQ", "<Q", 16) if big else ("<HHII", "<H", 8)
    head = (
        b"II+\x00\x08\x00\x00\x00" + struct.pack("<Q", table) if big else b"II*\x00\x08\x00\x00\x00"
    )
    every = sorted([*tags, (259, 8), (284, 1), (273, 0), (279, 0)], key=lambda tag: tag[0])
    length = struct.calcsize(number) + len(every) * struct.calcsize(entry) + 8
    offsets, counts = table + length, table + length + 4 * rows
    places = {273: offsets if rows > 1 else counts + 4, 279: counts if rows > 1 else len(strip)}
    entries = b"".join(
        struct.pack(entry, tag, 4, rows if tag in places else 1, places.get(tag, value))
        for tag, value in every
    )
    data = struct.pack("<I", counts + 4 * rows) * rows + struct.pack("<I", len(strip)) * rows
    return head + struct.pack(number, len(every)) + entries + bytes(8) + data + strip


def picture(width: int, height: int, bits: int = 8, samples: int = 3) -> list[tuple[int, int]]:
    return [(256, width), (257, height), (258, bits), (262, 2), (277, samples), (278, 1)]


def png(width: int, height: int, pixel_bytes: int, bits: int, kind: int) -> bytes:
    """A black picture; one deflated block, flushed, is valid any number of times."""
    pack = zlib.compressobj(9)
    head = pack.compress(b"") + pack.flush(zlib.Z_FULL_FLUSH)
    row = 1 + width * pixel_bytes
    rows = 64
    block = pack.compress(bytes(row * rows)) + pack.flush(zlib.Z_FULL_FLUSH)
    check = (row * height % 65521) << 16 | 1
    stream = head + block * (height // rows) + b"\x03\x00" + struct.pack(">I", check)
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)),
        (b"IDAT", stream),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )


def jpeg(width: int, height: int, *options: int) -> bytes:
    return bytes(cv2.imencode(".jpg", np.zeros((height, width, 3), np.uint8), list(options))[1])


def hidden_size(width: int, height: int) -> bytes:
    """The true size follows a marker without a segment, which a careless reader would skip."""
    data = jpeg(64, 64)
    start = data.index(b"\xff\xc0")
    true = data[: start + 5] + struct.pack(">HH", height, width) + data[start + 9 :]
    decoy = 0xFFE0 - 2  # what follows the marker, read as its length
    padded = true[:2] + b"\xff\x01" + true[2:]
    return padded[:-2] + bytes(decoy) + jpeg(64, 64)[2:]


def webp(width: int, height: int) -> bytes:
    sides = b"".join((side - 1).to_bytes(3, "little") for side in (width, height))
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\x02\x00\x00\x00" + sides
    body += b"ANIM" + struct.pack("<IIH", 6, 0, 0)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def jpeg2000(width: int, height: int, palette: int = 0) -> bytes:
    size = struct.pack(">HHIIIIIIIIH", 41, 0, width, height, 0, 0, width, height, 0, 0, 1)
    columns = b"pclr" + struct.pack(">HB", 2, palette) if palette else b""
    return (
        b"\x00\x00\x00\x0cjP  \r\n\x87\n" + columns + b"\xff\x4f\xff\x51" + size + b"\x07\x01\x01"
    )


BOMBS = {
    "screen.gif": lambda: gif(32000, 32000),
    "big.tiff": lambda: tiff(picture(30000, 30000), big=True, rows=30000),
    "twice.tiff": lambda: tiff([*picture(30000, 30000), (256, 16), (257, 16)], rows=30000),
    "twice-last.tiff": lambda: tiff([(256, 16), (257, 16), *picture(30000, 30000)], rows=30000),
    "deep.tiff": lambda: tiff(picture(16384, 16384, 16, 4), rows=16384),
    "tiles.tiff": lambda: tiff([*picture(32, 32), (322, 16000), (323, 16000)]),
    "strip.tiff": lambda: tiff(
        [tag for tag in picture(32, 32) if tag[0] != 278] + [(278, 1 << 23)]
    ),
    "deep.png": lambda: png(16384, 16384, 8, 16, 6),
    "hidden.jpg": lambda: hidden_size(60000, 60000),
    "canvas.webp": lambda: webp(40000, 40000),
    "claim.jp2": lambda: jpeg2000(20000, 20000),
    "palette.jp2": lambda: jpeg2000(5000, 5000, palette=200),
    "core.bmp": lambda: (
        b"BM" + bytes(12) + struct.pack("<IHHHH", 12, 60000, 60000, 1, 24) + bytes(99)
    ),
    "comment.pgm": lambda: b"P5\n# a comment\r40000 40000\r255\r\n20 20\n255\n" + bytes(400),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """Bombs, what is no file, and large photos, read by one process; what may take memory last."""
    folder = tmp_path_factory.mktemp("bombs")
    for name, make in BOMBS.items():
        (folder / name).write_bytes(make())
        size = (folder / name).stat().st_size
        assert size < (3 * SMALL if name == "deep.png" else SMALL), name
    os.mkfifo(folder / "pipe.jpg")
    with (folder / "large.png").open("wb") as file:
        file.truncate(3 * 10**9)
    usual = jpeg(3000, 3000, cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    last = usual.rindex(b"\xff\xda")
    (folder / "scans.jpg").write_bytes(usual[:last] + usual[last:-2] * 300 + b"\xff\xd9")
    (folder / "usual.jpg").write_bytes(usual)
    (folder / "honest.jpg").write_bytes(jpeg(6000, 6000))
    with socket.socket(socket.AF_UNIX) as listener:
        with contextlib.chdir(folder):  # the path of a socket must be short
            listener.bind("socket.jpg")
        names = [*BOMBS, "pipe.jpg", "socket.jpg", "large.png", "scans.jpg", "usual.jpg"]
        names.append("honest.jpg")
        found = read_in_a_child(Path("/dev/zero"), *(folder / name for name in names))
    return dict(zip(["zero", *names], found, strict=True))


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_they_take_memory(answers: dict[str, Answer], name: str) -> None:
    found, megabytes, seconds = answers[name]
    assert "decoded: more than 1000 MB" in found
    assert "--max-image-bytes" in found
    assert megabytes < 50
    assert seconds < 5


def test_the_bombs_would_go_off(tmp_path: Path) -> None:
    """The same builders make pictures that OpenCV decodes to the end when they are smaller."""
    flat = {
        "a.gif": gif(600, 400),
        "a.tiff": tiff(picture(600, 400), big=True, rows=400),
        "twice.tiff": tiff([*picture(600, 400), (256, 16), (257, 16)], rows=400),
        "a.png": png(640, 448, 8, 16, 6),
    }
    for name, data in flat.items():
        (tmp_path / name).write_bytes(data)
        decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        assert decoded is not None, name
        assert decoded.shape[1] >= 600, name
        assert read_image(tmp_path / name).shape[:2] == decoded.shape[:2]


def test_a_size_that_the_header_hides(tmp_path: Path) -> None:
    """AVIF: 16x16 in the header, another picture inside. Not decoded by this process."""
    (tmp_path / "lie.avif").write_bytes(
        b"\x00\x00\x00 ftypavif\x00\x00\x00\x00avifmif1miaf" + bytes(99)
    )
    with pytest.raises(HardnetError, match="convert it to JPEG or PNG"):
        read_image(tmp_path / "lie.avif")


def test_progressive_jpegs_of_many_scans(answers: dict[str, Answer]) -> None:
    found, _, seconds = answers["scans.jpg"]
    assert f"scans, more than {MAX_SCANS}" in found
    assert seconds < 2
    assert answers["usual.jpg"][0] == [3000, 3000, 3]


def test_only_regular_files_are_opened(answers: dict[str, Answer], tmp_path: Path) -> None:
    for name in ("pipe.jpg", "socket.jpg", "zero"):
        found, megabytes, _ = answers[name]
        assert "is a pipe, device or socket" in found
        assert megabytes < 20
    os.mkfifo(pipe := tmp_path / "pipe.jpg")
    for reader in (picture_size, read_picture, lambda path: read_photo(path, (9, 9))):
        with pytest.raises(HardnetError, match="is a pipe"):
            reader(pipe)


def test_the_command_line_says_it_in_one_line(photos: Path) -> None:
    done = CliRunner().invoke(app, ["match", "/dev/zero", str(photos / "coins.png")])
    assert isinstance(done.exception, HardnetError)
    assert str(done.exception) == ("/dev/zero is a pipe, device or socket: save it as a file first")


def test_large_files_are_not_read(answers: dict[str, Answer]) -> None:
    found, megabytes, _ = answers["large.png"]
    assert "is a file of 3000 MB: more than 1000 MB" in found
    assert megabytes < 20


def test_honest_large_photos_are_read(answers: dict[str, Answer]) -> None:
    found, megabytes, _ = answers["honest.jpg"]
    assert found == [6000, 6000, 3]
    assert megabytes < 400


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["progressive.jpg", "a.jpg", "a.gif", "deep.png", "a.tiff", "a.jp2"],
)
def test_memory_of_what_is_allowed(tmp_path: Path, name: str) -> None:
    """Decoders and conversions hold copies; they stay a small multiple of the limit."""
    if name.endswith("jpg"):
        options = [cv2.IMWRITE_JPEG_PROGRESSIVE, 1] if name == "progressive.jpg" else []
        data = jpeg(6400, 5184, *options)
    elif name == "deep.png":
        data = png(3840, 3200, 8, 16, 6)
    elif name == "a.gif":
        data = gif(5000, 5000)
    elif name == "a.tiff":
        data = tiff(picture(6400, 5000), big=True, rows=5000)
    else:
        cv2.imwrite(str(tmp_path / "made.jp2"), np.zeros((2800, 2900, 3), np.uint8))
        data = (tmp_path / "made.jp2").read_bytes()
    (tmp_path / name).write_bytes(data)
    [(found, megabytes, _)] = read_in_a_child(tmp_path / name, limit="100MB")
    assert isinstance(found, list), found
    assert megabytes < 450
    [(found, megabytes, _)] = read_in_a_child(tmp_path / name, limit="80MB")
    assert "more than 80 MB" in found
    assert megabytes < 20


def test_the_limit_can_be_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg(200, 100))
    monkeypatch.setenv(ENVIRONMENT, "59KB")
    with pytest.raises(HardnetError, match="claims 200x100 pixels, "):
        read_image(path)
    assert read_image(path, max_bytes=60000).shape == (100, 200, 3)
    monkeypatch.setenv(ENVIRONMENT, "60KB")
    assert read_image(path).shape == (100, 200, 3)
    monkeypatch.delenv(ENVIRONMENT)
    assert max_image_bytes() == 10**9
    monkeypatch.setenv(ENVIRONMENT, "lots")
    with pytest.raises(HardnetError, match="HARDNET_MAX_IMAGE_BYTES: 'lots' is not a size"):
        read_image(path)


@pytest.mark.parametrize(
    ("text", "size"),
    [("2000", 2000), ("500MB", 500 * 10**6), ("1.5 gb", 1500 * 10**6), ("3k", 3000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "2TB", "MB", "1e9"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_the_option(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT, "1GB")  # restored afterwards: the option writes it
    photo = str(photos / "coins.png")
    refused = CliRunner().invoke(app, ["match", photo, photo, "--max-image-bytes", "100KB"])
    assert isinstance(refused.exception, HardnetError)
    assert "more than 0.1 MB" in str(refused.exception)
    small = ["--keypoints", "100", "--descriptor", "rootsift"]
    read = CliRunner().invoke(app, ["match", photo, photo, "--max-image-bytes", "1MB", *small])
    assert read.exit_code == 0
    wrong = CliRunner().invoke(app, ["match", photo, photo, "--max-image-bytes", "lots"])
    assert wrong.exit_code == 2


def test_every_command_that_reads_pictures_has_the_option() -> None:
    every = [
        *("match", "extract", "search", "colmap", "train", "export"),
        *("index build", "index add", "index vocabulary"),
        *("data info", "data fetch", "data frames", "data build photos", "data build colmap"),
        *("data build sfm", "data build sequences", "data build detections"),
        *(f"bench {name}" for name in ("brown", "w1bs", "hpatches", "stereo", "retrieval")),
        *("bench sfm", "bench pairs", "experiment ablation"),
    ]
    whole: Any = typer.main.get_command(app)
    for words in every:
        whole.load(words.split()[0])
        command = reduce(lambda group, name: group.commands[name], words.split(), whole)
        options = [option for each in command.params for option in each.opts]
        assert "--max-image-bytes" in options, words


def test_other_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch strips, photos of COLMAP models, fetched photos, videos."""
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((200, 100), np.uint8))
    cv2.imwrite(str(tmp_path / "b.png"), np.zeros((20, 20), np.uint8))
    code = cv2.VideoWriter_fourcc(*"MJPG")
    video = cv2.VideoWriter(str(tmp_path / "a.avi"), code, 10, (320, 240))
    video.write(np.zeros((240, 320, 3), np.uint8))
    video.release()
    source = Source("npm", "here", "CC0", ("*.png",))
    assert [image is None for _, image in read_pictures(source, tmp_path)] == [False, False]
    monkeypatch.setenv(ENVIRONMENT, "10KB")
    for read in (read_picture, lambda path: read_photo(path, (100, 200))):
        with pytest.raises(HardnetError, match="claims 100x200 pixels"):
            read(tmp_path / "a.png")
    assert [image is None for _, image in read_pictures(source, tmp_path)] == [True, False]
    with pytest.raises(HardnetError, match="claims 320x240 pixels"):
        next(read_frames(tmp_path / "a.avi"))
