"""Files that users name, and which images are safe to decode: in memory, and in seconds.

All code that reads images gets their bytes here, once their header claims no more than the limit
and the file is complete (OpenCV decodes half a file without an error and fills the rest with grey).
Headers are read as OpenCV's decoders read them. If a file can be understood in two ways, the larger
size counts; a file whose header cannot be parsed is not decoded. Formats whose header does not bind
the decoder are called foreign; ``hardnet.images`` decodes them in a process with limits.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hardnet.errors import HardnetError

ENVIRONMENT = "HARDNET_MAX_IMAGE_BYTES"
"""The environment variable that sets the limit; the option --max-image-bytes writes it."""
DEFAULT_MAX_BYTES = 10**9
"""For decoded pixels and for a file: a colour photo of 333 megapixels."""
MAX_SCANS = 100
"""For a progressive JPEG file: encoders write about ten, and each costs a pass over the image."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMG]?)B?", re.IGNORECASE)

_BROKEN = (struct.error, LookupError, ValueError, StopIteration)
"""What reading a header raises that ends too early or contradicts itself."""

JPEG, PNG, JPEG2000 = b"\xff\xd8", b"\x89PNG", b"\xff\x4f\xff\x51"
# A marker that has a segment or ends the file. Markers below 0xC0 and restart markers have none:
# a decoder skips them and continues at the next byte.
_JPEG_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # these contain the size
_JPEG_SCAN, _JPEG_END = 0xDA, 0xD9
_PNG_END = b"IEND\xaeB`\x82"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 4, 6: 4}  # by colour type
_GAP = rb"\s(?:\s|#[^\r\n]*[\r\n])*"  # one blank ends a number, only then comments may follow
# Bitmaps (P1, P4) do not state the largest value, which is 1.
_PNM = re.compile(
    rb"P(?:[14]|([2356]))"
    + _GAP
    + rb"(\d{1,9})"
    + _GAP
    + rb"(\d{1,9})(?(1)"
    + _GAP
    + rb"(\d{1,9}))\s"
)


def as_path(path: str | os.PathLike[str]) -> Path:
    """A path from a user; an empty one, as from an unset variable, is an error."""
    if not os.fspath(path):
        raise HardnetError('a path is empty: name a file or folder ("." is the current folder)')
    return Path(path)


def file_digest(path: Path | str) -> str:
    """SHA-256 of a file's content, as hex."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def file_state(path: Path) -> tuple[int, ...]:
    """What changes when a file does: inode, size, time of its content, time of any change.

    The last of these (ctime) tells a file from one that was copied over it with its old date.
    """
    facts = path.stat()
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def state_of(image: Path) -> dict[str, int]:
    """The state of an image file as files of features keep it; a copy of the image has it too."""
    _, size, changed, _ = file_state(image)
    return {"bytes": size, "mtime_ns": changed}


def parse_size(text: str) -> int:
    """Bytes of "2000000", "500MB" or "1.5 GB"; a ValueError for anything else."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not (size := int(float(found[1]) * _UNITS[found[2].upper()])):
        raise ValueError(f"'{text}' is not a size: give a number of bytes, or 500MB, or 2GB")
    return size


def max_image_bytes() -> int:
    """The limit: ``HARDNET_MAX_IMAGE_BYTES`` if set, otherwise :data:`DEFAULT_MAX_BYTES`."""
    try:
        return parse_size(os.environ.get(ENVIRONMENT) or str(DEFAULT_MAX_BYTES))
    except ValueError as error:
        raise HardnetError(f"{ENVIRONMENT}: {error}") from None


def require_regular_file(path: Path) -> int:
    """The size of a regular file; others are refused, because pipes block and devices never end."""
    status = path.stat()
    if stat.S_ISREG(status.st_mode):
        return status.st_size
    if not stat.S_ISDIR(status.st_mode):
        raise HardnetError(f"{path} is a pipe, device or socket: save it as a file first")
    if not os.access(path, os.R_OK | os.X_OK):
        raise HardnetError(f"{path} is a folder that you may not read: change its permissions")
    raise HardnetError(f"{path} is a folder: name one file in it")


def read_image_file(path: Path) -> bytes:
    """The bytes of an image file that is complete and safe to decode in memory and time."""
    limit = max_image_bytes()
    data = read_bytes(path, limit)
    check_image_bytes(path, data, limit)
    return data


def read_bytes(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes."""
    try:
        if (size := require_regular_file(path)) <= limit:
            with path.open("rb") as file:
                data = file.read(limit + 1)  # kernel files have no size until they are read
            size = len(data)
    except FileNotFoundError as error:
        raise HardnetError(f"{path} does not exist: check the path") from error
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror}") from error
    if size > limit:
        raise _over(f"{path} is a file of {_megabytes(size)}", limit)
    return data


def check_image_bytes(path: Path, data: bytes, limit: int) -> None:
    """Raise if a file is not a complete image or needs too much memory or time to decode."""
    if not data:
        raise HardnetError(f"{path} is empty: copy or download it again")
    if is_truncated(data):
        raise HardnetError(f"{path} is truncated: copy or download it again")
    if (header := read_header(data)) is None:
        raise HardnetError(
            f"{path} is damaged or not an image that can be read safely: convert it to JPEG or PNG"
        )
    _check_claim(path, header, limit)
    if (count := scans(data)) > MAX_SCANS:
        raise HardnetError(
            f"{path} is a progressive JPEG of {count} scans, more than {MAX_SCANS}, which would "
            "take minutes: convert it to PNG"
        )


def check_size(path: Path, width: int, height: int, pixel_bytes: int, limit: int) -> None:
    """Raise if an image of this size would need more than ``limit`` bytes."""
    _check_claim(path, _header(width, height, pixel_bytes), limit)


def _check_claim(path: Path, header: ImageHeader, limit: int) -> None:
    if header.decoded_bytes > limit:
        claim = f"{header.width}x{header.height} pixels, {_megabytes(header.decoded_bytes)} decoded"
        raise _over(f"{path} claims {claim}", limit)


def _over(what: str, limit: int) -> HardnetError:
    advice = f"shrink it or raise the limit (--max-image-bytes, {ENVIRONMENT})"
    return HardnetError(f"{what}: more than {_megabytes(limit)}, {advice}")


def _megabytes(size: int) -> str:
    return f"{size / 10**6:.{0 if size >= 10**7 else 1}f} MB"


SUFFIXES = frozenset(
    {".avif", ".bmp", ".gif", ".heic", ".heif", ".jp2", ".jpeg", ".jpg", ".pgm", ".png", ".ppm"}
    | {".tif", ".tiff", ".webp"}
)
"""Files in a folder with these suffixes count as images, whatever they contain."""

_RAW_SUFFIXES = frozenset(
    {".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".pef", ".raf", ".rw2", ".srw"}
)
_RAW_STARTS = (b"FUJIFILMCCD-RAW", b"IIRO", b"IIRS", b"MMOR", b"IIU\x00", b"FOVb", b"\x00MRM")
_OTHER_STARTS = {
    b"8BPS": "Photoshop",
    b"\x76\x2f\x31\x01": "OpenEXR",
    b"\xff\x0a": "JPEG XL",
    b"\x00\x00\x00\x0cJXL \r\n\x87\n": "JPEG XL",
    b"P7\n": "PAM",
    b"PF\n": "PFM",
    b"Pf\n": "PFM",
    b"#?RGBE": "Radiance HDR",
    b"#?RADIANCE": "Radiance HDR",
    b"\x59\xa6\x6a\x95": "Sun raster",
}
_DNG_VERSION, _TIFF_KIND, _TIFF_CHILDREN = 50706, 254, 330  # tags


def looks_like_image(path: Path) -> bool:
    """Whether a file in a folder is an image by its name or, if it can be opened, its content.

    A pipe or a loop of links that is named like an image is one: reading it tells the user why it
    cannot be used. A broken link is not an image.
    """
    is_named = (suffix := path.suffix.lower()) in SUFFIXES | _RAW_SUFFIXES
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError:
        return is_named
    if is_named or not stat.S_ISREG(mode):
        return is_named and not stat.S_ISDIR(mode)
    try:
        with path.open("rb") as file:
            head = file.read(4096)  # enough to show what it is
    except OSError:
        return False
    return foreign_format(head, suffix) is not None or any(start.match(head) for start in _FORMATS)


def foreign_format(data: bytes, suffix: str = "") -> str | None:
    """The name of the format of an image whose header does not bind its decoder; None for others.

    ``data`` must include the first bytes. The ``suffix`` of the name matters because some raw files
    otherwise look like TIFF files.
    """
    if data[4:8] == b"ftyp":
        end = int.from_bytes(data[:4], "big")
        brands = {data[at : at + 4] for at in (8, *range(16, min(end, 256), 4))}
        if b"crx " in brands:
            return "camera raw"
        if brands & {b"avif", b"avis"}:
            return "AVIF"
        heic = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
        return "HEIC" if brands & heic else None
    if data.startswith(_RAW_STARTS):
        return "camera raw"
    if data[:4] in (b"II*\x00", b"MM\x00*"):
        is_raw = suffix.lower() in _RAW_SUFFIXES or data[8:10] == b"CR" or _shows_preview(data)
        return "camera raw" if is_raw else None
    return next((name for start, name in _OTHER_STARTS.items() if data.startswith(start)), None)


def _shows_preview(data: bytes) -> bool:
    """Whether the first image of a TIFF file is a preview of one that OpenCV does not read."""
    with suppress(*_BROKEN):
        tags = _tiff_tags(data, {_DNG_VERSION, _TIFF_KIND, _TIFF_CHILDREN})
        return _DNG_VERSION in tags or (_TIFF_CHILDREN in tags and tags.get(_TIFF_KIND) == {1})
    return False


def claimed_size(data: bytes) -> tuple[int, int] | None:
    """The largest width and height that an AVIF or HEIC file claims for any of its images."""
    ends = [match.end() for match in re.finditer(b"ispe", data)]
    found = [struct.unpack_from(">II", data, end + 4) for end in ends if end + 12 <= len(data)]
    return max(found, key=lambda size: size[0] * size[1], default=None)


def is_truncated(data: bytes) -> bool:
    """Whether the file ends before its image does, as far as the format shows it."""
    if data.startswith(JPEG):
        return all(marker != _JPEG_END for marker, _ in jpeg_segments(data))
    if data.startswith(PNG):
        return _PNG_END not in data
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return len(data) < 8 + int.from_bytes(data[4:8], "little")
    return False


def may_be_transparent(data: bytes) -> bool:
    """False if the image certainly has no alpha channel."""
    if data.startswith(PNG):
        return data[25:26] in (b"\x04", b"\x06") or b"tRNS" in data  # grey or RGB, and alpha
    return not data.startswith(JPEG)


@dataclass(frozen=True)
class ImageHeader:
    """What a header claims; width and height are as stored: EXIF rotation is not applied.

    The bytes are those of the pixels in memory, or of the decoder's own copy if that is larger.
    """

    width: int
    height: int
    decoded_bytes: int


def read_header(data: bytes) -> ImageHeader | None:
    """The claims of an image file; None if its format is unknown or its header broken."""
    read = next((read for start, read in _FORMATS.items() if start.match(data)), None)
    with suppress(*_BROKEN):
        return read(data) if read is not None else None
    return None


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Each marker of a JPEG file and where its segment starts, in order, up to the end marker."""
    # Walk the segments instead of searching: thumbnails and trailers have their own markers.
    position = 2
    while (found := _JPEG_MARKER.search(data, position)) is not None:
        marker = data[found.start() + 1]
        yield marker, found.end()
        if marker == _JPEG_END:
            return
        position = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")


def scans(data: bytes) -> int:
    """How many passes over the image a decoder makes: the scans of a progressive JPEG file."""
    if not data.startswith(JPEG):
        return 1
    return sum(marker == _JPEG_SCAN for marker, _ in jpeg_segments(data))


def _header(width: int, height: int, pixel_bytes: int) -> ImageHeader:
    return ImageHeader(width, height, width * height * pixel_bytes)


def _jpeg(data: bytes) -> ImageHeader:
    start = next(at for marker, at in jpeg_segments(data) if marker in _JPEG_FRAMES)
    height, width, components = struct.unpack_from(">HHB", data, start + 3)
    return _header(width, height, 1 if components == 1 else 3)


def _png(data: bytes) -> ImageHeader:
    name, width, height, bits, kind = struct.unpack_from(">4sIIBB", data, 12)
    if name != b"IHDR":
        raise ValueError
    channels = 4 if b"tRNS" in data else _PNG_CHANNELS[kind]
    return _header(width, height, channels * (2 if bits > 8 else 1))


def _bmp(data: bytes) -> ImageHeader:
    (header_size,) = struct.unpack_from("<I", data, 14)
    layout = "<HHHH" if header_size == 12 else "<iiHH"
    width, height, _, bits = struct.unpack_from(layout, data, 18)
    # The height is negative if the top row is stored first.
    return _header(abs(width), abs(height), 4 if bits == 32 else 3)


def _webp(data: bytes) -> ImageHeader:
    kind, start = data[12:16], data[20:30]
    if len(start) < 10:
        raise ValueError
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", start, 6)
        return _header(width & 0x3FFF, height & 0x3FFF, 3)
    if kind == b"VP8X":
        width, height = (int.from_bytes(start[at : at + 3], "little") for at in (4, 7))
    elif kind == b"VP8L":
        bits = int.from_bytes(start[1:5], "little")
        width, height = bits & 0x3FFF, bits >> 14 & 0x3FFF
    else:
        raise ValueError
    return _header(width + 1, height + 1, 4)


def _jpeg2000(data: bytes) -> ImageHeader:
    palettes = [data[found.end() + 2] for found in re.finditer(b"pclr", data)]
    headers = []
    for found in re.finditer(JPEG2000, data):
        right, bottom, left, top = struct.unpack_from(">IIII", data, found.start() + 8)
        (components,) = struct.unpack_from(">H", data, found.start() + 40)
        # The decoder keeps 32 bits of each component, and again of each that a palette makes of it.
        pixel_bytes = 4 * (components + max(palettes, default=0))
        headers.append(_header(max(right - left, 0), max(bottom - top, 0), pixel_bytes))
    return max(headers, key=lambda header: header.decoded_bytes)


def _pnm(data: bytes) -> ImageHeader:
    kind, width, height, top = next(_PNM.finditer(data)).groups(default=b"0")
    channels = 3 if kind in (b"3", b"6") else 1
    return _header(int(width), int(height), channels * (2 if int(top) > 255 else 1))


def _gif(data: bytes) -> ImageHeader:
    width, height = struct.unpack_from("<HH", data, 6)
    return _header(width, height, 4)


_WIDTH, _HEIGHT, _BITS, _COLOURS, _SAMPLES, _STRIP_ROWS = 256, 257, 258, 262, 277, 278
_TILE_WIDTH, _TILE_HEIGHT = 322, 323
_TIFF_READ = {_WIDTH, _HEIGHT, _BITS, _COLOURS, _SAMPLES, _STRIP_ROWS, _TILE_WIDTH, _TILE_HEIGHT}
_TIFF_TYPES = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 13: "I", 16: "Q", 17: "q"}
_TIFF_GREY, _TIFF_LOG_COLOURS = {0, 1}, {32844, 32845}  # the latter are decoded to three floats
_TIFF_MOST_VALUES = 1000  # of one of these tags: one per channel
_WHOLE_PICTURE = {0, 0xFFFFFFFF}  # as the number of rows of a strip


def _tiff(data: bytes) -> ImageHeader:
    tags = _tiff_tags(data, _TIFF_READ)
    width, height = max(tags[_WIDTH]), max(tags[_HEIGHT])
    colours = tags.get(_COLOURS, {0})
    channels = max(tags.get(_SAMPLES, {1}))
    if not colours <= _TIFF_GREY:
        channels = max(channels, 3)
    bits = max(tags.get(_BITS, {1}))
    depth = next(size for size in (1, 2, 4, 8) if bits <= 8 * size)
    pixel_bytes = 12 if colours & _TIFF_LOG_COLOURS else channels * depth
    # Strips and tiles may be larger than the image, and the decoder holds a whole one as RGBA.
    strips = tags.get(_STRIP_ROWS, set()) - _WHOLE_PICTURE
    parts = [max(tags.get(_TILE_WIDTH, {0})) * max(tags.get(_TILE_HEIGHT, {0}))]
    parts += [width * rows for rows in strips if rows > height]
    decoded = max(width * height * pixel_bytes, max(parts) * max(pixel_bytes, 4))
    return ImageHeader(width, height, decoded)


def _tiff_tags(data: bytes, wanted: Set[int]) -> dict[int, set[int]]:
    """All values of these tags in the first directory; a tag may occur more than once."""
    order, big = "<" if data[:2] == b"II" else ">", 43 in data[2:4]
    offset, number, entry_size = ("Q", "Q", 20) if big else ("I", "H", 12)
    (table,) = struct.unpack_from(order + offset, data, 8 if big else 4)
    (count,) = struct.unpack_from(order + number, data, table)
    first = table + struct.calcsize("<" + number)
    if first + count * entry_size > len(data):
        raise ValueError
    tags: dict[int, set[int]] = {}
    for start in range(first, first + count * entry_size, entry_size):
        tag, kind, values = struct.unpack_from(order + "HH" + offset, data, start)
        if tag not in wanted:
            continue
        if values > _TIFF_MOST_VALUES:
            raise ValueError
        place = start + entry_size - struct.calcsize("<" + offset)
        layout = f"{order}{values}{_TIFF_TYPES[kind]}"
        if struct.calcsize(layout) > struct.calcsize("<" + offset):
            (place,) = struct.unpack_from(order + offset, data, place)
        tags.setdefault(tag, set()).update(map(abs, struct.unpack_from(layout, data, place)))
    return tags


_FORMATS: dict[re.Pattern[bytes], Callable[[bytes], ImageHeader]] = {
    re.compile(start, re.DOTALL): read
    for start, read in {
        rb"\xff\xd8\xff": _jpeg,
        rb"\x89PNG": _png,
        rb"II[*+]\0|MM\0[*+]": _tiff,
        rb"RIFF....WEBP": _webp,
        rb"GIF8[79]a": _gif,
        # Two letters alone could start a text: the size of the header is one of seven.
        rb"BM.{12}[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0": _bmp,
        _PNM.pattern: _pnm,
        rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n": _jpeg2000,
    }.items()
}
"""How a file of each format that OpenCV decodes here begins."""
