"""`hardnet bench retrieval`: how well photographs of the same thing are found."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from hardnet.bench.development import Setup
from hardnet.bench.retrieval import collections, features, run
from hardnet.bench.retrieval.collections import PhotoCollection
from hardnet.cli import options as shared
from hardnet.cli.bench_output import StoredComparison
from hardnet.cli.options import argument, option, reads_images
from hardnet.cli.output import Stage
from hardnet.errors import HardnetError


@reads_images
def retrieval(
    rivals: StoredComparison,
    data: Path = argument("Folder of the collection.", metavar="DATA"),
    vocabulary_images: list[Path] = option(
        ..., "Folders of other photos to train visual words on."
    ),
    layout: Literal["ukbench", "oxford", "revisited", "labels"] = option(
        "ukbench",
        "ukbench (ukbench00000.jpg, four photos per object); oxford (photos and NAME_1_"
        "query.txt, _good, _ok, _junk); revisited (photos and gnd_NAME.json); labels (one "
        "folder per label, or --labels).",
    ),
    labels_file: Path | None = option(None, "CSV of --layout labels: image,label.", "--labels"),
    objects: str | None = option(None, "Of UKBench, only these: FIRST-LAST, as in 25-99."),
    modes: str = option(
        "bow,bow+sv,bow+qe,he,he+sv,hqe,hqe+sv",
        "Separated by commas: bow, bow+sv, bow+qe, he, he+sv, hqe, hqe+sv; MODE:sa and "
        "MODE:ma8 for one and for eight words per query feature.",
    ),
    asmk: bool = option(True, "Include the asmk package."),
    words: int = option(8192, "Size of the vocabulary.", min=1),
    detector: shared.DetectorName = "dog",
    keypoints: shared.Keypoints = 1000,
    size: int = option(0, "Resize the collection to this longer side; 0: as it is.", min=0),
    upright: shared.Upright = False,
    spread: shared.Spread = False,
    distractors: list[Path] | None = option(
        None, "Folders of photos that no query should find, as crops."
    ),
    counts: str = option("100,300,1000", "Numbers of distractors for the curve, comma-separated."),
    seed: shared.Seed = 0,
) -> None:
    """Image retrieval: mean average precision, N-S, milliseconds per query.

    Every descriptor describes the same keypoints and has a vocabulary of the same size, trained on
    other photographs. An interrupted run continues where it stopped.

    Example: hardnet bench retrieval oxford5k --layout oxford --vocabulary-images paris6k
    """
    settings = run.RetrievalSettings(
        extraction=Setup(detector, upright, keypoints, None, spread),
        longer_side=size or None,
        words=words,
        modes=tuple(name.strip() for name in modes.split(",")),
        asmk=asmk,
        distractors=_numbers(counts) if distractors else (),
        seed=seed,
    )
    collection = _read(data, layout, labels_file, objects)
    others = features.images_of(distractors or [])
    trained, distracting = features.split(features.images_of(vocabulary_images), others)
    if not trained:
        raise HardnetError("no photo is left for the vocabulary: name more --vocabulary-images")
    photos = [features.BenchPhoto(name, path) for name, path in trained]
    with (
        Stage(resumes=True) as stage,
        tempfile.TemporaryDirectory(prefix="hardnet-retrieval-") as work,
    ):
        usual = features.usual_size(collection.images.values())
        cut = features.crops(distracting, usual, settings.longer_side)
        contestants, place = rivals.load(), Path(work)
        unreadable, rows = run.compare(
            collection, contestants, settings, photos, cut, rivals.store, place, stage
        )
    rules = {"truth": collection.about, "ap": run.AP_RULE}
    if cut:
        rules |= {"distractors": features.CROP_RULE, "vocabulary": features.SPLIT_RULE}
    body = {
        "kind": "retrieval",
        "collection": {
            "name": collection.name,
            "images": len(collection.images),
            "protocols": collection.protocols,
        },
        "rules": rules,
        "unreadable": unreadable,
        "queries": [question.name for question in collection.questions],
        "rows": rows,
    }
    chosen = {
        "layout": layout,
        "objects": objects,
        **asdict(settings),
        "vocabulary_photos": len(trained),
        "distractor_photos": len(distracting),
        "distractor_crops": len(cut),
    }
    rivals.finish(body, chosen, [data, *vocabulary_images, *(distractors or [])])


def _read(
    data: Path, layout: str, labels_file: Path | None, objects: str | None
) -> PhotoCollection:
    if objects is not None and layout != "ukbench":
        raise HardnetError("--objects is for --layout ukbench: leave it out")
    if labels_file is not None and layout != "labels":
        raise HardnetError("--labels is for --layout labels: leave it out")
    if layout == "labels":
        return collections.read_labels(data, labels_file)
    if layout != "ukbench":
        read = collections.read_oxford if layout == "oxford" else collections.read_revisited
        return read(data)
    if objects is None:
        return collections.read_ukbench(data)
    first, _, last = objects.partition("-")
    if not first.isdigit() or not last.isdigit() or int(last) < int(first):
        raise HardnetError(f"--objects {objects!r} is not FIRST-LAST, as in 25-99")
    return collections.read_ukbench(data, range(int(first), int(last) + 1))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise HardnetError(f"--counts {text!r} are not numbers, as in 100,300") from error
    if min(counts) < 0:
        raise HardnetError(f"--counts {text!r}: none may be below 0")
    return counts


COMMANDS = (retrieval,)
