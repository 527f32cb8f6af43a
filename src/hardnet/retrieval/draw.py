"""A picture of a search: the query, and below it what was found."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, counted
from hardnet.images import Pixels, read_image, to_colour, write_image
from hardnet.retrieval.query import Hit, QueryImage, Results, region_of

TILE = 320, 240
"""Room for a photo, in pixels; it keeps its proportions."""
COLUMNS = 4
GAP = 14
LABEL = 44
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_TEXT = 0.46
_FACE: Any = cv2.FontFace("uni") if hasattr(cv2, "FontFace") else None  # OpenCV 5: most scripts
_FACE_SIZE = 13
_PAPER = (250, 250, 248)
_INK = (60, 60, 64)
_FAINT = (150, 150, 152)
_QUERY = (30, 110, 215)
_FOUND = (235, 120, 20)
_BITS = 4  # OpenCV draws at sub-pixel positions given in units of 1/16 pixel


class Tile(NamedTuple):
    """One photo of the sheet."""

    source: str | Pixels  # a file, or pixels
    title: str  # first line under it
    note: str  # second line
    outline: NDArray[np.float64] | None  # (n, 2) corners in pixels of the photo, or None
    colour: tuple[int, int, int]  # of the outline and of the title


def draw_results(path: str | os.PathLike[str], answers: Sequence[Results]) -> None:
    """Write a picture of one or several searches, one below the other."""
    write_image(path, np.concatenate([contact_sheet(results) for results in answers]))


def contact_sheet(results: Results, columns: int = COLUMNS) -> Pixels:
    """Picture of a search: the query images in the first rows, the hits in order below.

    A photo that cannot be read any more is a grey tile with its name. Returns (H, W, 3) RGB.
    """
    asked = [_query_tile(image) for image in results.query]
    found = [_hit_tile(rank, hit) for rank, hit in enumerate(results.hits, 1)]
    rows = [
        tiles[start : start + columns]
        for tiles in (asked, found)
        for start in range(0, len(tiles), columns)
    ]
    width = GAP + columns * (TILE[0] + GAP)
    height = GAP + len(rows) * (TILE[1] + LABEL + GAP)
    sheet = np.full((height, width, 3), _PAPER, np.uint8)
    for r, row in enumerate(rows):
        for c, tile in enumerate(row):
            y, x = GAP + r * (TILE[1] + LABEL + GAP), GAP + c * (TILE[0] + GAP)
            sheet[y : y + TILE[1] + LABEL, x : x + TILE[0]] = _draw(tile)
    return sheet


def _query_tile(image: QueryImage) -> Tile:
    source = image.path or "" if image.pixels is None else image.pixels
    name = Path(image.path).name if image.path else "array"
    outline = None if image.box is None else region_of(image.box, np.eye(2, 3))
    return Tile(source, f"query: {name}", counted(image.features, "feature"), outline, _QUERY)


def _hit_tile(rank: int, hit: Hit) -> Tile:
    path = Path(hit.path)  # the folder tells photos of one name apart
    title = f"{rank}  " + f"{path.parent.name}/{path.name}".lstrip("/")
    if not hit.verified:
        note = f"score {hit.score:.3g}, {hit.verdict}"
        return Tile(hit.path, title, note, None, _INK)
    note = f"{hit.verdict}, {counted(hit.inliers, 'inlier')}, score {hit.score:.3g}"
    return Tile(hit.path, title, note, hit.region, _FOUND)


def _draw(tile: Tile) -> Pixels:
    out = np.full((TILE[1] + LABEL, TILE[0], 3), _PAPER, np.uint8)
    try:
        pixels = read_image(tile.source)
    except HardnetError:
        cv2.rectangle(out, (0, 0), (TILE[0] - 1, TILE[1] - 1), (222, 222, 220), -1)
        _write(out, "cannot be read", (TILE[0] // 2 - 56, TILE[1] // 2), _FAINT)
    else:
        height, width = pixels.shape[:2]
        factor = min(TILE[0] / width, TILE[1] / height)
        size = max(round(width * factor), 1), max(round(height * factor), 1)
        how = cv2.INTER_AREA if factor < 1 else cv2.INTER_LINEAR
        photo = np.array(cv2.resize(to_colour(pixels), size, interpolation=how), np.uint8)
        if tile.outline is not None:
            corners = (tile.outline + 0.5) * np.divide(size, (width, height)) - 0.5
            # A wild transform must not leave the range of OpenCV's integers.
            points = np.round(np.clip(corners, -1e4, 1e4) * (1 << _BITS)).astype(np.int32)
            for colour, thickness in ((_INK, 5), (tile.colour, 3)):  # a rim shows on any photo
                cv2.polylines(photo, [points], True, colour, thickness, cv2.LINE_AA, _BITS)
        y, x = (TILE[1] - len(photo)) // 2, (TILE[0] - photo.shape[1]) // 2
        out[y : y + len(photo), x : x + photo.shape[1]] = photo
    _write(out, tile.title, (2, TILE[1] + 18), tile.colour)
    _write(out, tile.note, (2, TILE[1] + 36), _INK)
    return out


def _write(
    picture: Pixels, text: str, place: tuple[int, int], colour: tuple[int, int, int]
) -> None:
    """One line; a long name loses its middle."""
    if _FACE is None:
        folded = unicodedata.normalize("NFKD", text)
        text = "".join(c for c in folded if not unicodedata.combining(c))
        text = text.encode("ascii", "backslashreplace").decode()
    room, kept, line = picture.shape[1] - place[0], len(text), text
    while _width(line) > room:
        kept -= 1
        line = text[: kept // 2] + ".." + text[-(kept - kept // 2) :]
    if _FACE is None:
        cv2.putText(picture, line, place, _FONT, _TEXT, colour, 1, cv2.LINE_AA)
    else:
        cv2.putText(picture, line, place, colour, _FACE, _FACE_SIZE)


def _width(line: str) -> int:
    if _FACE is None:
        return int(cv2.getTextSize(line, _FONT, _TEXT, 1)[0][0])
    return int(cv2.getTextSize((10_000, 100), line, (0, 50), _FACE, _FACE_SIZE)[2])
