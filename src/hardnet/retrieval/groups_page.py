"""The groups of a collection as one HTML file that needs nothing else, to look at and to send.

The page gets thumbnails, groups and pairs as data and builds itself; names of files are only ever
shown as text.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from hardnet.errors import HardnetError
from hardnet.images import read_image, shrink, to_colour
from hardnet.retrieval.groups import Groups, Pair
from hardnet.retrieval.photos import shown
from hardnet.storage import as_path, replacing

THUMBNAIL = 320
"""Pixels of the longer side."""
QUALITY = 72
MOST_PHOTOS = 3000
"""Thumbnails of a page, those of the largest groups; a browser has to hold them all."""
MOST_PAIRS = 60
"""Pairs of a group that can be looked at, those with the most inliers."""


def write_page(
    path: str | os.PathLike[str],
    groups: Groups,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> None:
    """Write groups, as ``find_groups`` gives them, as an .html file."""
    path = as_path(path)
    content = page_data(groups, progress)
    # "</" would end the element that holds the data, whatever JSON it stands in.
    data = json.dumps(content, separators=(",", ":")).replace("</", "<\\/")
    page = (files("hardnet") / "retrieval" / "groups_page.html").read_text("utf-8")
    try:
        with replacing(path) as part:
            part.write_text(page.replace("@DATA@", data), encoding="utf-8")
    except OSError as error:
        raise HardnetError(f"{path} cannot be written: {error.strerror or error}") from error


def page_data(
    groups: Groups, progress: Callable[[str, int, int], None] = lambda what, done, total: None
) -> dict[str, Any]:
    """What the page shows, as JSON values.

    ``photos`` have a path, a size and a thumbnail (a data URI, or null if the file is gone);
    ``groups`` name photos by number, and their pairs with outlines and inliers in pixels.
    """
    chosen: dict[str, int] = {}
    for group in groups.groups:
        for photo in group.photos:
            if len(chosen) < MOST_PHOTOS:
                chosen.setdefault(photo, len(chosen))
    photos = []
    for done, photo in enumerate(chosen):
        progress("thumbnails", done, len(chosen))
        photos.append(_photo(photo))
    of_photo: dict[str, list[Pair]] = {}
    for pair in groups.pairs:
        of_photo.setdefault(pair.a, []).append(pair)
    shown_groups = []
    for group in groups.groups:
        members = [chosen[photo] for photo in group.photos if photo in chosen]
        inside = set(group.photos)
        pairs = [
            pair
            for photo in group.photos
            for pair in of_photo.get(photo, ())
            if pair.b in inside and pair.a in chosen and pair.b in chosen
        ]
        pairs.sort(key=lambda pair: -pair.inliers)
        shown_groups.append(
            {
                "kind": group.kind,
                "count": len(group.photos),
                "photos": members,
                "best": chosen.get(group.best),
                "pairs": [_pair(pair, chosen) for pair in pairs[:MOST_PAIRS]],
            }
        )
    return {"photos": photos, "groups": shown_groups, "total": groups.photos}


def _pair(pair: Pair, numbers: dict[str, int]) -> dict[str, Any]:
    return {
        "a": numbers[pair.a],
        "b": numbers[pair.b],
        "kind": pair.kind,
        "inliers": pair.inliers,
        "transform": np.round(pair.transform, 4).ravel().tolist(),
        "overlap": [round(share, 3) for share in pair.overlap],
        "points": np.round(pair.points).astype(int).tolist(),
    }


def _photo(photo: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": shown(photo), "size": None, "bytes": None, "src": None}
    try:
        pixels = to_colour(read_image(photo))
    except HardnetError:
        return facts
    small, _ = shrink(pixels, THUMBNAIL)
    good, data = cv2.imencode(".jpg", small[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    if good:
        facts["src"] = f"data:image/jpeg;base64,{base64.b64encode(data.tobytes()).decode()}"
    facts["size"] = [pixels.shape[1], pixels.shape[0]]
    facts["bytes"] = Path(photo).stat().st_size
    return facts
