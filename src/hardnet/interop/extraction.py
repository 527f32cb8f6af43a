"""Describe many images into a file or a folder; what is there already is not done again."""

from __future__ import annotations

import errno
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet import descriptors, detectors
from hardnet.errors import HardnetError
from hardnet.features import KEYPOINTS, MAX_SIZE, Features
from hardnet.interop.entry import state_of
from hardnet.interop.feature_output import FeatureOutput, open_output
from hardnet.pipeline import extract_many

if TYPE_CHECKING:
    from hardnet.pipeline import Result

_TAKEN = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR)  # a folder where a file is, or the reverse

Progress = Callable[[str, int, int], None]
"""Called with what is done, how many are done, how many there are."""


@dataclass(frozen=True)
class Settings:
    """What decides the features of an image; see :func:`hardnet.extract`.

    ``half`` keeps descriptors as float16: half the size, three digits.
    """

    detector: str = "dog"
    descriptor: str = "hardnet"
    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    upright: bool = False
    half: bool = False


@dataclass
class Report:
    """What became of the images.

    Attributes:
        described: how many were described.
        unchanged: how many had been described before.
        keypoints: of those that were described now.
        skipped: name -> why it could not be described.
    """

    described: int = 0
    unchanged: int = 0
    keypoints: int = 0
    skipped: dict[str, str] = field(default_factory=dict)


def extract_to(
    output: Path,
    images: Mapping[str, Path],
    settings: Settings | None = None,
    *,
    workers: int | None = None,
    overwrite: bool = False,
    extract: Callable[[Sequence[Path]], Generator[Result, None, None]] | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Describe images into an HDF5 file (``.h5``, ``.hdf5``) or a folder of npz files.

    It can be interrupted at any moment, also by ``kill -9`` or a full disk: called again, it goes
    on. Images whose file has not changed since are not done again. One that cannot be read is
    skipped; the others are not affected. Entries of images that are not named now stay.

    Args:
        output: the file or folder.
        images: name -> file, e.g. by ``hardnet.images.named_images``.
        settings: how to describe; an output with others is refused.
        workers: see :func:`hardnet.pipeline.extract_many`.
        overwrite: begin anew, whatever is there.
        extract: who describes files with these settings; by default threads of this process.
        progress: told how far it is.

    Raises:
        HardnetError: other settings, somebody else is writing the output, or it cannot be written.
    """
    settings = settings or Settings()
    describe, detect = descriptors.load(settings.descriptor), detectors.load(settings.detector)
    kept: dict[str, Any] = asdict(settings) | {
        "weights": getattr(describe, "weights", None),
        "detector_weights": detectors.weights(settings.detector),
    }
    report = Report()
    with open_output(output, kept, overwrite) as store:
        todo = _todo(store, images, report)
        total = len(todo) + report.unchanged
        progress("describing", report.unchanged, total)
        files = [images[name] for name in todo]
        results = (
            extract(files)
            if extract is not None
            else extract_many(
                files,
                detector=detect,
                descriptor=describe,
                keypoints=settings.keypoints,
                max_size=settings.max_size,
                upright=settings.upright,
                workers=workers,
            )
        )
        with closing(results):
            for done, (name, (_, result)) in enumerate(zip(todo, results, strict=True), 1):
                if isinstance(result, HardnetError):
                    store.drop(name)
                    report.skipped[name] = str(result)
                else:
                    _add(store, name, result, todo[name], settings.half, report)
                progress("describing", report.unchanged + done, total)
        try:
            store.finish(lambda done, count: progress("writing", done, count))
        except HardnetError as error:
            raise _kept(store, str(error)) from error
    return report


def _todo(
    store: FeatureOutput, images: Mapping[str, Path], report: Report
) -> dict[str, dict[str, int]]:
    """The images that must be described, each with the state of its file."""
    todo = {}
    for name, image in images.items():
        try:
            name.encode()
        except UnicodeEncodeError:
            shown = name.encode(errors="backslashreplace").decode()
            report.skipped[shown] = f"{shown} is not a name in UTF-8: rename the file"
            continue
        try:
            state = state_of(image)
        except OSError:  # reading it will say why
            state = {}
        if state and store.has(name, state):
            report.unchanged += 1
        else:
            todo[name] = state
    return todo


def _add(
    store: FeatureOutput,
    name: str,
    features: Features,
    state: Mapping[str, int],
    half: bool,
    report: Report,
) -> None:
    try:
        store.add(name, features, state, half)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            report.skipped[name] = f"{features.path} has too long a name: rename the file"
            return
        if error.errno in _TAKEN:
            report.skipped[name] = (
                f"{features.path} cannot be called {name} in {store.folder}, which has something "
                "else there: rename it, or its folder"
            )
            return
        raise _kept(store, f"{store.folder} cannot be written: {error.strerror}") from error
    report.described += 1
    report.keypoints += len(features)


def _kept(store: FeatureOutput, what: str) -> HardnetError:
    return HardnetError(
        f"{what}; what is described is kept in {store.folder}: run the same command again to go on"
    )
