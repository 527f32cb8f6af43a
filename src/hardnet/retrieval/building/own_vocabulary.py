"""A vocabulary of the user's own photos.

The features of a sample of the photos are written into a work folder, one file per photo, and the
words are trained on them. A process that is killed goes on where it was; whoever indexes the photos
afterwards takes their features from there.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.interop import feature_files
from hardnet.interop.extraction import ExtractionSettings, extract_to
from hardnet.interop.feature_files import state_of
from hardnet.retrieval.building.describing import Describing
from hardnet.retrieval.building.index_settings import IndexSettings, identity
from hardnet.retrieval.building.photo_names import named_photos
from hardnet.retrieval.building.quantise import check_descriptor_kind
from hardnet.retrieval.building.work_folder import begin, owned
from hardnet.retrieval.vocabulary import Vocabulary, load, save, size_for
from hardnet.storage import OwnedFolder, replacing

PER_WORD = 24
"""Features to train one word on: more make a better word, but all must fit in memory at once."""

FEWEST_PER_WORD = 8
"""A collection of a few photos gets so few words that views of one thing can share them."""

VOCABULARY = "vocabulary.safetensors"

Progress = Callable[[str, int, int], None]


def train_on_photos(
    photos: Mapping[str, Path],
    work: Path,
    settings: IndexSettings,
    *,
    words: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    describing: Describing | None = None,
    progress: Progress = lambda what, done, total: None,
) -> tuple[Vocabulary, dict[str, str]]:
    """Train words on a seeded sample of photos.

    Args:
        photos: name -> file. The sample depends on names only, and grows with the collection.
        work: folder for what is done so far; ``kept_features`` reads from it.
        settings: how photos are described.
        words: how many; by default a number that suits the collection.
        seed: of the sample and of the training.
        workers: threads; see :func:`hardnet.pipeline.extract_many`.
        describing: who describes photos with these settings; by default threads of this process.
        progress: told how far it is.

    Returns:
        The vocabulary, also written to ``work``; and why photos of the sample were skipped, by
        name.
    """
    if words is not None and words < 1:
        raise HardnetError(f"words is {words}: give at least 1")
    expected = words or size_for(len(photos) * settings.keypoints)
    count = math.ceil(expected * PER_WORD / settings.keypoints)
    sample = sorted(photos, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    chosen = {_key(name): name for name in sample[:count]}
    ours = OwnedFolder.mark(work)
    features = ours.claim("features/")
    report = extract_to(
        features,
        {key: photos[name] for key, name in chosen.items()},
        ExtractionSettings(
            settings.detector,
            settings.descriptor,
            settings.keypoints,
            settings.max_size,
            settings.upright,
        ),
        workers=workers,
        extract=None if describing is None else describing.features,
        progress=progress,
    )
    skipped = {chosen[key]: why for key, why in report.skipped.items()}
    path = ours.claim(VOCABULARY)
    if path.exists():  # it was trained, and killed just before the index began
        return load(path), skipped
    kept = [features / f"{key}{feature_files.NPZ}" for key in chosen if key not in report.skipped]
    rows, name = _descriptors(kept, expected * PER_WORD, progress)
    if not len(rows):
        raise HardnetError(
            f"none of {len(chosen)} photos has a keypoint: there is nothing to make visual words of"
            + (f" (skipped: {len(skipped)})" if skipped else "")
        )
    suits = size_for(len(rows) * len(photos) // max(len(kept), 1))
    size = words or max(min(suits, len(rows) // FEWEST_PER_WORD), 1)
    from hardnet.retrieval import kmeans

    vocabulary = kmeans.train(
        rows[: size * PER_WORD],
        min(size, len(rows)),
        descriptor=name,
        seed=seed,
        progress=progress,
        checkpoint=ours.claim("kmeans"),
        provenance={
            "photos": len(kept),
            "settings": settings.to_json(),
            "seed": seed,
            "words_asked": words,
        },
    )
    with replacing(path) as part:
        save(vocabulary, part)
    return vocabulary, skipped


def write_vocabulary(
    output: Path,
    images: Sequence[Path],
    settings: IndexSettings,
    *,
    words: int,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> tuple[Vocabulary, dict[str, str]]:
    """Train words on photos into a file; what is done so far is kept in a folder beside it.

    Args:
        output: the file.
        images: photos, and folders of photos.
        settings: see :func:`train_on_photos`, like all the following.
        words: see there.
        seed: see there.
        workers: see there.
        progress: see there.
    """
    if not output.parent.is_dir():
        raise HardnetError(f"{output.parent} is not a folder: make it, or choose another output")
    _, describe = settings.load()
    check_descriptor_kind(describe)
    work = output.with_name(f"{output.name}.parts")
    photos = named_photos(images, work)
    with owned(work, output) as ours:
        kept = settings.to_json() | identity(settings, describe)
        begin(ours, kept | {"words": words, "seed": seed}, output)
        made = train_on_photos(
            photos, work, settings, words=words, seed=seed, workers=workers, progress=progress
        )
        os.replace(work / VOCABULARY, output)
    return made


def kept_features(name: str, photo: Path, work: Path) -> Features | None:
    """The features of a photo that the sample had, if its file is still as it was then."""
    path = work / "features" / f"{_key(name)}{feature_files.NPZ}"
    try:
        facts = feature_files.read_entry(path, ("bytes", "mtime_ns")).facts
        return feature_files.read_npz(path) if dict(facts) == state_of(photo) else None
    except (HardnetError, OSError):  # not of the sample; or gone, which reading it will say
        return None


def _descriptors(
    files: list[Path], most: int, progress: Progress
) -> tuple[NDArray[np.float32], str]:
    """The first ``most`` descriptors (N, D) of these files, and the name of the descriptor."""
    rows, name, found = np.zeros((0, 1), np.float32), "", 0
    for done, path in enumerate(files):
        progress("reading", done, len(files))
        features = feature_files.read_npz(path)
        name = features.descriptor
        if not len(features):
            continue
        if not found:  # all at once: to join parts at the end would take twice the memory
            rows = np.empty((most, features.descriptors.shape[1]), np.float32)
        part = features.descriptors[: most - found]
        rows[found : found + len(part)] = part
        found += len(part)
        if found == most:
            break
    return rows[:found], name


def _key(name: str) -> str:
    """A name of a photo as a name of a file: "../a.jpg" would lie outside the folder."""
    return hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()[:24]
