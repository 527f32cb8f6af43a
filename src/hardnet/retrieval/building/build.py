"""Photos become an index; what is in it already is not done again.

Everything can be stopped at any moment, also by ``kill -9``: the same call goes on. The features of
the vocabulary's sample wait in the folder ``build`` inside the index until they are indexed; all
others are committed every so many photos.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from hardnet.errors import HardnetError
from hardnet.interop.feature_files import state_of
from hardnet.retrieval.building.build_folder import (
    building,
    check_descriptor,
    check_index,
    is_index,
)
from hardnet.retrieval.building.describing import Describing, DescribingHere
from hardnet.retrieval.building.index_settings import (
    IndexSettings,
    identity,
    keep_weights,
    stored_settings,
)
from hardnet.retrieval.building.own_vocabulary import kept_features, train_on_photos
from hardnet.retrieval.building.quantise import check_descriptor_kind, quantise
from hardnet.retrieval.building.work_folder import begin
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.retrieval.store.writer import NewIndex, Writer
from hardnet.retrieval.vocabulary import Vocabulary

COMMIT_IMAGES = 500
"""So many photos are committed at once: about a minute's work is lost if the process is killed."""

Progress = Callable[[str, int, int], None]


@dataclass
class BuildReport:
    """What became of the photos.

    Attributes:
        indexed: how many were indexed now.
        replaced: how many of these were in the index before, with another content.
        unchanged: how many were in the index as they are.
        features: of those that were indexed now.
        without_features: how many of these have no keypoint, so that no query finds them.
        skipped: name -> why it could not be indexed.
    """

    indexed: int = 0
    replaced: int = 0
    unchanged: int = 0
    features: int = 0
    without_features: int = 0
    skipped: dict[str, str] = field(default_factory=dict)


def build(
    folder: Path,
    photos: Mapping[str, Path],
    settings: IndexSettings | None = None,
    *,
    vocabulary: Vocabulary | None = None,
    words: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    describing: Describing | None = None,
    commit_images: int = COMMIT_IMAGES,
    progress: Progress = lambda what, done, total: None,
) -> BuildReport:
    """Make an index of photos, or go on with one.

    Args:
        folder: of the index.
        photos: name -> file, by ``photo_names.named_photos``.
        settings: how photos are described; an index of others is refused.
        vocabulary: visual words; by default they are trained on a sample of the photos.
        words: how many to train; by default a number that suits the collection.
        seed: of the training.
        workers: threads; see :func:`hardnet.pipeline.extract_many`.
        describing: who describes photos with these settings; by default threads of this process.
        commit_images: so many photos are committed at once.
        progress: told how far it is.

    Raises:
        HardnetError: other settings, somebody else is writing, no keypoint anywhere.
    """
    settings = settings or IndexSettings()
    _, describe = settings.load()
    check_descriptor_kind(describe)
    kept = settings.to_json() | identity(settings, describe)
    report = BuildReport()
    photos = _with_good_names(photos, report)
    with building(folder) as work:
        create: NewIndex | None = None
        if is_index(folder):
            check_index(folder, kept, vocabulary, words)
        else:
            given = None if vocabulary is None else vocabulary.fingerprint
            begin(work, kept | {"words": words, "vocabulary": given}, folder)
            keep_weights(settings, folder).load()  # a copy that does not load shows now
            if vocabulary is None:
                vocabulary, _ = train_on_photos(
                    photos,
                    work.path,
                    settings,
                    words=words,
                    seed=seed,
                    workers=workers,
                    describing=describing,
                    progress=progress,
                )
            check_descriptor(vocabulary, describe.name)
            create = {"settings": kept, "vocabulary": vocabulary}
        with Writer(folder, create) as writer:
            writer.commit()  # an empty index, which later commits fill
            describing = describing or DescribingHere(settings, workers)
            _index(writer, folder, work.path, photos, describing, report, commit_images, progress)
            if report.indexed:
                writer.compact(progress=progress)
                writer.commit()
    return report


def add(
    folder: Path,
    photos: Mapping[str, Path],
    descriptor: str | None = None,
    *,
    workers: int | None = None,
    commit_images: int = COMMIT_IMAGES,
    progress: Progress = lambda what, done, total: None,
) -> BuildReport:
    """Add photos to an index that exists, with its own settings; see :func:`build`.

    ``descriptor`` must be given if it is a Python function, which an index cannot name.
    """
    settings = stored_settings(open_snapshot(folder).settings, folder, descriptor)
    return build(
        folder,
        photos,
        settings,
        workers=workers,
        commit_images=commit_images,
        progress=progress,
    )


def _index(
    writer: Writer,
    folder: Path,
    work: Path,
    photos: Mapping[str, Path],
    describing: Describing,
    report: BuildReport,
    commit_images: int,
    progress: Progress,
) -> None:
    """Add the photos that are new or changed, and commit them."""
    snapshot = open_snapshot(folder)
    vocabulary = snapshot.vocabulary
    states: dict[str, dict[str, int]] = {}
    known: set[str] = set()
    images = snapshot.find_many(list(photos)).tolist()
    for (name, photo), image in zip(photos.items(), images, strict=True):
        try:
            states[name] = state_of(photo)
        except OSError:  # reading it will say why
            states[name] = {}
        if image >= 0:
            known.add(name)
            if tuple(states[name].values()) == snapshot.file(image):
                report.unchanged += 1
                del states[name]
    total = len(states) + report.unchanged
    progress("indexing", report.unchanged, total)
    waiting = 0
    results = _indexed(
        {name: photos[name] for name in states}, states, work, vocabulary, describing
    )
    with closing(results):
        for done, (name, result) in enumerate(results, 1):
            if isinstance(result, HardnetError):
                report.skipped[name] = str(result)
                if name in known:  # it has changed, and cannot be read any more
                    writer.remove([name])
                    waiting += 1
            else:
                writer.add([result])
                waiting += 1
                report.indexed += 1
                report.replaced += name in known
                report.features += len(result)
                report.without_features += not len(result)
            if waiting >= commit_images:
                writer.commit()
                waiting = 0
            progress("indexing", report.unchanged + done, total)
    if waiting:
        writer.commit()


def _with_good_names(photos: Mapping[str, Path], report: BuildReport) -> dict[str, Path]:
    """Photos whose names are text; the others are skipped: they could not be printed."""
    good = {}
    for name, photo in photos.items():
        try:
            name.encode()
            good[name] = photo
        except UnicodeEncodeError:
            readable = name.encode(errors="backslashreplace").decode()
            report.skipped[readable] = f"{readable} is not a name in UTF-8: rename the file"
    return good


def _indexed(
    photos: Mapping[str, Path],
    states: Mapping[str, Mapping[str, int]],
    work: Path,
    vocabulary: Vocabulary,
    describing: Describing,
) -> Generator[tuple[str, IndexedImage | HardnetError], None, None]:
    """What the index keeps: first of photos that the vocabulary's sample had, then of others."""
    rest = {}
    for name, photo in photos.items():
        features = kept_features(name, photo, work)
        if features is None:
            rest[name] = photo
        else:
            yield name, quantise(name, features, vocabulary, states[name])
    with closing(describing.indexed(rest, states, vocabulary)) as results:
        yield from results
