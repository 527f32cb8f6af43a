"""Revisited Oxford and Paris (ROxford5k, RParis6k): Easy, Medium and Hard.

The ground truth is distributed as a pickle, a format that runs whatever its author wrote when it is
opened. It is never opened here: convert it once, where you trust it, into JSON of the same layout::

    python -c "import json, pickle, sys
    json.dump(pickle.load(open(sys.argv[1], 'rb')), open(sys.argv[2], 'w'),
              default=lambda value: value.tolist())" gnd_roxford5k.pkl gnd_roxford5k.json

``imlist`` names the images that are searched, ``qimlist`` those that ask, and ``gnd`` has for each
query ``bbx`` (x1, y1, x2, y2) and the places in ``imlist`` of its ``easy``, ``hard`` and ``junk``
images.

========  ===========  ==================
protocol  positives    junk
========  ===========  ==================
easy      easy         junk, hard
medium    easy, hard   junk
hard      hard         junk, easy
========  ===========  ==================

The query's own image is never in a ranking. A query without positives does not count in the mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hardnet.bench.retrieval.collection import (
    Judgement,
    PhotoCollection,
    Question,
    by_stem,
    corner_box,
)
from hardnet.errors import HardnetError
from hardnet.interop.image_names import named_images

ABOUT = (
    "revisited: easy, medium and hard positives; junk and the query's own image are taken out of "
    "the ranking; a query without positives does not count in the mean; features of the query are "
    "those of its whole image with centres strictly inside the region"
)


def read(folder: Path) -> PhotoCollection:
    """Read a collection.

    Args:
        folder: holds, at any depth, the photographs and one ``gnd_NAME.json``.

    Raises:
        HardnetError: no ground truth, it is damaged, or an image that it names is missing.
    """
    path = _ground_truth(folder)
    try:
        truth = json.loads(path.read_text())
        searched, asking, rows = list(truth["imlist"]), list(truth["qimlist"]), truth["gnd"]
        images = named_images([folder])
        stems = by_stem(images)
        names = [_image(stem, path, stems) for stem in searched]
        queries = [_image(stem, path, stems) for stem in asking]
        questions = tuple(
            _question(stem, name, row, names)
            for stem, name, row in zip(asking, queries, rows, strict=True)
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise HardnetError(
            f"{path} is not a ground truth with imlist, qimlist and gnd: convert it again ({error})"
        ) from error
    return PhotoCollection(
        name=path.stem.removeprefix("gnd_"),
        images={name: images[name] for name in names},
        questions=questions,
        queries_only={name: images[name] for name in queries if name not in names},
        about=ABOUT,
    )


def _ground_truth(folder: Path) -> Path:
    found = sorted(folder.rglob("gnd_*.json"))
    if len(found) == 1:
        return found[0]
    if found:
        raise HardnetError(f"{folder} has {len(found)} files gnd_*.json: keep one of them")
    pickles = sorted(folder.rglob("gnd_*.pkl"))
    if pickles:
        raise HardnetError(
            f"{pickles[0]} is a pickle, which is not opened here: convert it to "
            f"{pickles[0].stem}.json as docs/retrieval.md shows"
        )
    raise HardnetError(f"{folder} has no gnd_NAME.json: add the ground truth")


def _question(stem: str, image: str, row: Mapping[str, Any], names: list[str]) -> Question:
    easy, hard, junk = (
        frozenset(names[int(place)] for place in row[what]) for what in ("easy", "hard", "junk")
    )
    itself = frozenset({image})
    left, top, right, bottom = (float(value) for value in row["bbx"])
    return Question(
        name=stem,
        image=image,
        group=stem.rpartition("_")[0] or stem,
        judgements={
            "easy": Judgement(easy - itself, junk | hard | itself),
            "medium": Judgement((easy | hard) - itself, junk | itself),
            "hard": Judgement(hard - itself, junk | easy | itself),
        },
        box=corner_box(left, top, right, bottom),
    )


def _image(stem: str, path: Path, stems: Mapping[str, str]) -> str:
    if stem not in stems:
        raise HardnetError(f"{path} names {stem}, but there is no such image: add it")
    return stems[stem]
