"""The groups of a collection as one HTML file that needs nothing else, to look at and to send.

The page gets thumbnails, groups and pairs as data and builds itself; names of files are only ever
shown as text.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
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
    """Write groups as a page.

    Args:
        path: an .html file.
        groups: as ``find_groups`` gives them.
        progress: called with what is done, how many are done, how many there are.
    """
    path = as_path(path)
    content = page_data(groups, progress)
    # "</" would end the element that holds the data, whatever JSON it stands in.
    data = json.dumps(content, separators=(",", ":")).replace("</", "<\\/")
    head, tail = _PAGE.split("@DATA@")
    try:
        with replacing(path) as part:
            part.write_text(f"{head}{data}{tail}", encoding="utf-8")
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


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>Groups of photos</title>
<style>
:root { color-scheme: light dark; --line: #8884; --faint: #888; --mark: #e8590c; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 1200px; padding: 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 0 0 .5rem; }
section { border-top: 1px solid var(--line); padding: 1rem 0; }
.kinds button, .pairs button { font: inherit; border: 1px solid var(--line); border-radius: 6px;
  background: none; color: inherit; padding: .15rem .6rem; margin: 0 .3rem .3rem 0; }
.kinds button[aria-pressed=true] { background: var(--mark); color: white; }
.photos { display: flex; flex-wrap: wrap; gap: .8rem; }
button { cursor: pointer; }
figure { margin: 0; width: 200px; }
figure svg, dialog svg { width: 100%; height: auto; display: block; border-radius: 4px; }
figure.best svg { outline: 3px solid var(--mark); }
figcaption { font-size: .8rem; overflow-wrap: anywhere; color: var(--faint); }
.gone { aspect-ratio: 4/3; display: grid; place-items: center; background: var(--line); }
details { margin-top: .6rem; } summary { cursor: pointer; }
dialog { width: min(1100px, 95vw); border: 1px solid var(--line); border-radius: 8px; }
polygon { fill: none; stroke: var(--mark); }
</style>
</head>
<body>
<h1></h1>
<div class="kinds" role="group" aria-label="Kinds"></div>
<main></main>
<dialog><form method="dialog"><button>Close</button></form><p></p><div></div></dialog>
<script type="application/json" id="data">@DATA@</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const svgns = "http://www.w3.org/2000/svg";
function make(name, text, parent) {
  const element = document.createElement(name);
  if (text) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}
function draw(name, facts, parent) {
  const element = document.createElementNS(svgns, name);
  for (const [key, value] of Object.entries(facts)) element.setAttribute(key, value);
  if (parent) parent.append(element);
  return element;
}
function picture(photo, x, parent) {
  draw("image", {href: photo.src, x, y: 0, width: photo.size[0], height: photo.size[1],
    preserveAspectRatio: "none"}, parent);
}
function move(m, x, y) { return [m[0] * x + m[1] * y + m[2], m[3] * x + m[4] * y + m[5]]; }
function back(m) {
  const d = m[0] * m[4] - m[1] * m[3];
  const [a, b, c, e] = [m[4] / d, -m[1] / d, -m[3] / d, m[0] / d];
  return [a, b, -a * m[2] - b * m[5], c, e, -c * m[2] - e * m[5]];
}
function outline(size, m, shift, parent, width) {
  const [w, h] = [size[0] - .5, size[1] - .5];
  const points = [[-.5, -.5], [w, -.5], [w, h], [-.5, h]].map(p => {
    const [x, y] = move(m, ...p);
    return `${(x + shift).toFixed(1)},${y.toFixed(1)}`;
  });
  draw("polygon", {points: points.join(" "), "stroke-width": width}, parent);
}
function name(photo) { return photo.path.split("/").pop(); }
function about(photo) {
  const size = photo.size ? `${photo.size[0]} x ${photo.size[1]}` : "cannot be read";
  return photo.bytes ? `${size}, ${(photo.bytes / 1e3).toFixed(0)} kB` : size;
}
function figure(group, number, parent) {
  const photo = data.photos[number];
  const best = group.kind === "copy" && group.best === number;
  const box = make("figure", "", parent);
  if (best) box.className = "best";
  if (photo.src) {
    const [w, h] = photo.size;
    const svg = draw("svg", {viewBox: `0 0 ${w} ${h}`, role: "img", "aria-label": photo.path}, box);
    picture(photo, 0, svg);
    for (const pair of group.pairs) {
      if (pair.kind !== "crop") continue;
      const wide = Math.max(w, h) / 90;
      if (pair.b === number && pair.overlap[0] > pair.overlap[1])
        outline(data.photos[pair.a].size, pair.transform, 0, svg, wide);
      if (pair.a === number && pair.overlap[1] > pair.overlap[0])
        outline(data.photos[pair.b].size, back(pair.transform), 0, svg, wide);
    }
  } else make("div", "gone", box).className = "gone";
  const caption = make("figcaption", name(photo), box);
  caption.title = photo.path;
  make("br", "", caption);
  caption.append(about(photo) + (best ? ", best" : ""));
}
function show(pair) {
  const [a, b] = [data.photos[pair.a], data.photos[pair.b]];
  const dialog = document.querySelector("dialog");
  dialog.querySelector("p").textContent = `${pair.kind}: ${a.path} and ${b.path}, ` +
    `${pair.inliers} inliers; ${Math.round(100 * pair.overlap[0])} % of the first and ` +
    `${Math.round(100 * pair.overlap[1])} % of the second are in both`;
  const place = dialog.querySelector("div");
  place.replaceChildren();
  if (a.src && b.src) {
    const tall = Math.max(a.size[1], b.size[1]), gap = tall / 30, shift = a.size[0] + gap;
    const svg = draw("svg", {viewBox: `0 0 ${shift + b.size[0]} ${tall}`}, place);
    picture(a, 0, svg); picture(b, shift, svg);
    pair.points.forEach(([x, y, u, v], i) => {
      const stroke = `hsl(${Math.round(360 * i / pair.points.length)} 85% 50%)`;
      const wide = tall / 350;
      draw("line", {x1: x, y1: y, x2: u + shift, y2: v, stroke, "stroke-width": wide}, svg);
      for (const [cx, cy] of [[x, y], [u + shift, v]])
        draw("circle", {cx, cy, r: tall / 130, fill: "none", stroke, "stroke-width": wide}, svg);
    });
    if (!["scene", "panorama"].includes(pair.kind))
      outline(a.size, pair.transform, shift, svg, tall / 200);
  }
  dialog.showModal();
}
function section(group, parent) {
  const box = make("section", "", parent);
  box.dataset.kind = group.kind;
  make("h2", `${group.kind}: ${group.count} photo${group.count === 1 ? "" : "s"}`, box);
  const photos = make("div", "", box);
  photos.className = "photos";
  for (const number of group.photos) figure(group, number, photos);
  if (group.photos.length < group.count)
    make("p", `and ${group.count - group.photos.length} more`, box);
  if (!group.pairs.length) return;
  const more = make("details", "", box);
  const pairs = group.pairs.length === 1 ? "1 pair" : `${group.pairs.length} pairs`;
  make("summary", `${pairs}: click one to see why`, more);
  const list = make("div", "", more);
  list.className = "pairs";
  for (const pair of group.pairs) {
    const [a, b] = [data.photos[pair.a], data.photos[pair.b]];
    const button = make("button", `${name(a)} - ${name(b)}: ${pair.kind}, ${pair.inliers}`, list);
    button.addEventListener("click", () => show(pair));
  }
}
const counts = {};
for (const group of data.groups) counts[group.kind] = (counts[group.kind] || 0) + 1;
document.querySelector("h1").textContent =
  `${data.groups.length} groups among ${data.total} photos`;
const main = document.querySelector("main"), kinds = document.querySelector(".kinds");
for (const group of data.groups) section(group, main);
for (const kind of Object.keys(counts)) {
  const button = make("button", `${kind} ${counts[kind]}`, kinds);
  button.setAttribute("aria-pressed", "true");
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", on);
    for (const one of main.children) if (one.dataset.kind === kind) one.hidden = !on;
  });
}
</script>
</body>
</html>
"""
