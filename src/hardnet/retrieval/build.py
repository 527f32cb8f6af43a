"""Photos become an index; what is in it already is not done again.

Work can be stopped at any moment, even by ``kill -9``; the same call then continues. Features of
the vocabulary's sample wait in the folder ``build`` inside the index until they are indexed; all
others are committed a few hundred at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hardnet import descriptors
from hardnet.descriptors import Descriptor, are_alike, described_by
from hardnet.detectors import Detector
from hardnet.errors import HardnetError, Progress, silent
from hardnet.features import Features
from hardnet.image_files import state_of
from hardnet.retrieval.photos import (
    DESCRIPTOR,
    WORK,
    Describing,
    IndexSettings,
    compare,
    is_index,
    keep_weights,
    named_photos,
    quantise_many,
    refuse_bits,
    weights_of,
)
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.retrieval.store.writer import NewIndex, Writer, committed
from hardnet.retrieval.training import VOCABULARY, has_features, kept_features, train_on_photos
from hardnet.retrieval.vocabulary import Vocabulary
from hardnet.storage import FolderLock, OwnedFolder, publish, refuse_foreign, replacing

COMMIT_IMAGES = 500
"""Photos that are committed at once: about a minute's work is lost if the process is killed."""

_SETTINGS = "settings.json"
_LOCK = "lock"


@dataclass
class BuildReport:
    """What became of the photos."""

    indexed: int = 0  # how many were indexed now
    replaced: int = 0  # how many of these were in the index before, with another content
    unchanged: int = 0  # how many were in the index as they are
    features: int = 0  # of those that were indexed now
    without_features: list[str] = field(default_factory=list)  # names; no query finds them
    skipped: dict[str, str] = field(default_factory=dict)  # name -> why it could not be indexed


def build(
    folder: Path,
    photos: Mapping[str, Path],
    settings: IndexSettings | None = None,
    *,
    vocabulary: Vocabulary | None = None,
    words: int | None = None,
    workers: int | None = None,
    describing: Describing | None = None,
    commit_images: int = COMMIT_IMAGES,
    progress: Progress = silent,
) -> BuildReport:
    """Make an index of photos (name -> file, see ``named_photos``), or continue one.

    An index of other settings is refused. Visual words are trained on a sample of the photos unless
    a vocabulary is given; ``words`` is how many, by default a number that suits the collection.
    ``describing`` describes photos with these settings, by default ``workers`` threads of this
    process. Every ``commit_images`` photos are committed.
    """
    settings = settings or IndexSettings()
    loaded, kept = _checked(settings)
    describe = loaded[1]
    describing = describing or Describing(settings, workers, loaded)
    report = BuildReport()
    photos = _with_good_names(photos, report)
    if report.skipped and not photos and not is_index(folder):
        raise HardnetError(next(iter(report.skipped.values())))
    if vocabulary is not None:
        words_of, given = vocabulary.described_by, (describe.name, getattr(describe, "digest", ""))
        if not are_alike(*words_of, *given):
            raise HardnetError(
                f"the vocabulary has words of {described_by(*words_of)}, not of "
                f"{described_by(*given)}: use --descriptor {vocabulary.descriptor}, or another "
                "vocabulary"
            )
    with _building(folder) as work:
        create: NewIndex | None = None
        if is_index(folder):
            _check_index(folder, kept, vocabulary, words)
        else:
            digest = None if vocabulary is None else vocabulary.digest
            begin(work, kept | {"words": words, "vocabulary": digest}, folder)
            keep_weights(settings, folder).load()  # a copy that does not load shows now
            if vocabulary is None:
                vocabulary, _ = train_on_photos(
                    photos, work.path, describing, words=words, progress=progress
                )
            create = {"settings": kept, "vocabulary": vocabulary}
        with Writer(folder, create) as writer:
            writer.commit()  # an empty index, which later commits fill
            _index(writer, work.path, photos, describing, report, commit_images, progress)
            if report.indexed:
                writer.compact(progress=progress)
                writer.commit()
    return report


def write_vocabulary(
    output: Path,
    images: Sequence[Path],
    settings: IndexSettings,
    *,
    words: int,
    seed: int = 0,
    workers: int | None = None,
    progress: Progress = silent,
) -> tuple[Vocabulary, dict[str, str]]:
    """Train words on photos, and folders of photos, into a file.

    What is done so far is kept in a folder beside it. Returns also why photos were skipped.
    """
    if not output.parent.is_dir():
        raise HardnetError(f"{output.parent} is not a folder: make it, or choose another output")
    loaded, kept = _checked(settings)
    work = output.with_name(f"{output.name}.parts")
    photos = named_photos(images, work)
    with _owned(work, output) as ours:
        begin(ours, kept | {"words": words, "seed": seed}, output)
        describing = Describing(settings, workers, loaded)
        made = train_on_photos(photos, work, describing, words=words, seed=seed, progress=progress)
        publish(work / VOCABULARY, output)
    return made


def form_for(folder: Path, descriptor: str, vocabulary: Vocabulary | None = None) -> str:
    """The form of a network (``hardnet.descriptors.for_photos``) that an index has or gets."""
    made_with = None if vocabulary is None else vocabulary.descriptor
    if vocabulary is None and is_index(folder):
        made_with = str(open_snapshot(folder).settings["descriptor"])
    if descriptor == DESCRIPTOR and made_with is not None and descriptors.is_registered(made_with):
        return made_with  # nothing else was named: earlier versions had other defaults
    return descriptors.for_photos(descriptor, made_with)


def _index(
    writer: Writer,
    work: Path,
    photos: Mapping[str, Path],
    describing: Describing,
    report: BuildReport,
    commit_images: int,
    progress: Progress,
) -> None:
    snapshot = open_snapshot(writer.folder)
    states: dict[str, dict[str, int]] = {}  # of the files; a later change shows in it
    known: set[str] = set()
    images = snapshot.find_many(list(photos)).tolist()
    for (name, photo), image in zip(photos.items(), images, strict=True):
        try:
            state = state_of(photo)
        except OSError:  # reading it will say why
            state = {}
        if image >= 0 and tuple(state.values()) == snapshot.file(image):
            report.unchanged += 1
            continue
        states[name] = state
        if image >= 0:
            known.add(name)
    total = len(states) + report.unchanged
    progress("indexing", report.unchanged, total)

    def indexed() -> Generator[tuple[str, IndexedImage | HardnetError], None, None]:
        """First photos that the vocabulary's sample had, then the others."""
        rest = {}

        def kept() -> Iterator[tuple[str, Features]]:
            for name in states:
                features = kept_features(name, photos[name], work)
                if features is None:
                    rest[name] = photos[name]
                else:
                    yield name, features

        for image in quantise_many(kept(), snapshot.vocabulary):
            yield image.name, image
        with closing(describing.indexed(list(rest.values()), snapshot.vocabulary)) as others:
            for name, (_, result) in zip(rest, others, strict=True):
                yield name, result

    waiting = 0
    with closing(indexed()) as results:
        for done, (name, result) in enumerate(results, 1):
            if not isinstance(result, HardnetError):
                size, time = (states[name].get(fact, 0) for fact in ("bytes", "mtime_ns"))
                writer.add([replace(result, name=name, file_bytes=size, mtime_ns=time)])
                waiting += 1
                report.indexed += 1
                report.replaced += name in known
                report.features += len(result)
                if not len(result):
                    report.without_features.append(name)
            else:
                report.skipped[name] = str(result)
                if name in known:  # it has changed, and cannot be read any more
                    writer.remove([name])
                    waiting += 1
            if waiting >= commit_images:
                writer.commit()
                waiting = 0
            progress("indexing", report.unchanged + done, total)
    if waiting:
        writer.commit()


def _checked(settings: IndexSettings) -> tuple[tuple[Detector, Descriptor], dict[str, Any]]:
    """What the settings name, and what an index keeps of them."""
    detect, describe = settings.load()
    refuse_bits(describe(np.zeros((1, 32, 32), np.float32)), describe.name)
    return (detect, describe), settings.to_json() | weights_of(settings, describe)


def _with_good_names(photos: Mapping[str, Path], report: BuildReport) -> dict[str, Path]:
    """Photos whose names are text; the others are skipped: they could not be printed."""
    good = {}
    for name, photo in photos.items():
        try:
            name.encode()
            good[name] = photo
        except UnicodeEncodeError:
            readable = name.encode(errors="backslashreplace").decode()
            given = str(photo).encode(errors="backslashreplace").decode()
            report.skipped[readable] = f"{given} is not a name in UTF-8: rename the file"
    return good


def _check_index(
    folder: Path, settings: Mapping[str, Any], vocabulary: Vocabulary | None, words: int | None
) -> None:
    snapshot = open_snapshot(folder)
    compare(snapshot.settings, settings, folder)
    words_there = snapshot.vocabulary
    if vocabulary is not None and vocabulary.digest != words_there.digest:
        raise HardnetError(
            f"{folder} was made with another vocabulary: leave it out, or build another index"
        )
    asked = words_there.provenance.get("words_asked") or len(words_there)
    if words is not None and words not in (asked, len(words_there)):
        raise HardnetError(
            f"{folder} has {len(words_there)} words, not {words}: leave --words out, or build "
            "another index"
        )


@contextmanager
def _building(folder: Path) -> Iterator[OwnedFolder]:
    work = folder / WORK
    if folder.exists() and not folder.is_dir():
        raise HardnetError(f"{folder} is a file: name a folder for the index")
    is_new = not folder.exists()
    begun = OwnedFolder.find(folder) or OwnedFolder.find(work)
    others = set() if is_new else set(os.listdir(folder)) - {WORK}
    if others and not is_index(folder) and begun is None:
        raise HardnetError(
            f"{folder} is no index and not empty (it has {min(others)}): name a new folder"
        )
    try:
        with _owned(work, folder) as unfinished:
            yield unfinished
    except HardnetError:
        if is_new:
            with suppress(OSError):  # something is in it
                folder.rmdir()
        raise


@contextmanager
def _owned(work: Path, result: Path) -> Iterator[OwnedFolder]:
    """Nobody else works in the folder, which is made; what we made there goes in the end.

    After an error described photos stay, and the same work continues with them. A folder without
    any goes, too: a command that was refused must not decide the settings of the next one. Errors
    of the disk say what could not be made, and what to do.
    """
    lock = FolderLock(work, _LOCK)
    try:
        refuse_foreign(work, [_LOCK])
        work.mkdir(parents=True, exist_ok=True)
        if not lock.take():
            raise HardnetError(f"another process is making {result}: wait for its end, or stop it")
        try:
            ours = OwnedFolder.begin(work, [_LOCK])
            ours.sweep()
            try:
                yield ours
            except HardnetError:
                if not has_features(work):
                    ours.dissolve(lock)
                raise
            ours.dissolve(lock)
        finally:
            lock.remove()
            lock.release()
    except OSError as error:
        state = f"{committed(result)}; " if result.is_dir() else ""
        raise HardnetError(
            f"{result} cannot be written: {error.strerror or error}; {state}check the disk and "
            "your rights to the folder, then repeat the command: it continues with what is done"
        ) from error


def begin(work: OwnedFolder, settings: Mapping[str, Any], result: Path) -> None:
    """Note the settings of the work, or compare them with those it was begun with."""
    path = work.claim(_SETTINGS)
    if not path.exists():
        with replacing(path) as part:
            part.write_text(json.dumps(settings, indent=1) + "\n")
        return
    try:
        was = dict(json.loads(path.read_text()))
    except (ValueError, TypeError):
        raise HardnetError(f"{path} is damaged: delete {work.path} to begin again") from None
    try:
        compare(was, settings, result)
    except HardnetError as error:
        raise HardnetError(f"{error} (or delete {work.path} to begin again)") from None
