"""`hardnet index`: make, change and examine an index of photos."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from hardnet.cli.cluster import Cluster, describing_on
from hardnet.cli.options import (
    DescriptorName,
    DetectorName,
    Keypoints,
    KnownDescriptor,
    MaxSize,
    Upright,
    reads_images,
)
from hardnet.cli.output import Stage, say
from hardnet.errors import HardnetError, counted

if TYPE_CHECKING:
    from hardnet.retrieval.build import BuildReport


_REMOVE = """Remove photos, or all photos of a folder, from an index. The files stay.

The room is free after `hardnet index compact`.

Examples:  hardnet index remove photos.index photos/blurred.jpg photos/old

           hardnet index remove photos.index --gone
"""
_COMPACT = """Join small segments and free the room of removed photos.

Example:  hardnet index compact photos.index
"""
_INFO = """Show how many photos and features an index has, and how they were described.

Example:  hardnet index info photos.index
"""
_LIST = """List the photos of an index, one path per line.

Examples:  hardnet index list photos.index

           hardnet index list photos.index --without-features
"""
_VERIFY = """Read all files of an index and compare their checksums.

Exit code 0: all is as it was written. 1: something is damaged; it is named.

Example:  hardnet index verify photos.index
"""


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    group = typer.Typer(
        help="Make, change and examine an index of photos.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    group.command("build", help=_BUILD)(reads_images(_build))
    group.command("add", help=_ADD)(reads_images(_add))
    group.command("vocabulary", help=_VOCABULARY)(reads_images(_vocabulary))
    group.command("remove", help=_REMOVE)(_remove)
    group.command("compact", help=_COMPACT)(_compact)
    group.command("info", help=_INFO)(_info)
    group.command("list", help=_LIST)(_list)
    group.command("verify", help=_VERIFY)(_verify)
    app.add_typer(group, name="index")


def _remove(
    folder: Folder,
    images: Annotated[
        list[Path] | None,
        typer.Argument(metavar="IMAGES...", help="Photos, and folders of photos."),
    ] = None,
    gone: Annotated[
        bool, typer.Option("--gone", help="Also the photos whose files are gone.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    from hardnet.retrieval.index import Index

    if not images and not gone:
        raise HardnetError("name the photos to remove, or use --gone")
    index = Index(folder)
    removed = index.remove(images) if images else 0
    if gone:
        removed += index.remove_gone()
    if as_json:
        print(json.dumps({"index": str(folder), "removed": removed, "images": len(index)}))
    else:
        say(f"{folder}: {counted(removed, 'photo')} removed, {len(index)} left")


def _compact(folder: Folder) -> None:
    from hardnet.retrieval.index import Index

    index = Index(folder)
    before = index.info()
    with Stage() as stage:
        index.compact(progress=stage)
    after = index.info()
    say(
        f"{folder}: {counted(before['segments'], 'segment')} became {after['segments']}, "
        f"{_megabytes(before['bytes'])} became {_megabytes(after['bytes'])}",
    )


def _info(folder: Folder, as_json: AsJson = False) -> None:
    from hardnet.retrieval.index import Index

    found = Index(folder).info()
    if as_json:
        print(json.dumps(found))
        return
    settings = found["settings"]
    table = Table(show_header=False, box=None, padding=(0, 2))
    rows: dict[str, Any] = {
        "photos": found["images"],
        "features": found["features"],
        "size": f"{_megabytes(found['bytes'])} in {counted(found['segments'], 'segment')}"
        + (f", {found['bytes_per_feature']} bytes per feature" if found["features"] else ""),
        "removed, not yet compacted": found["removed"],
        "words": f"{found['words']} (vocabulary {found['vocabulary']['fingerprint']}, "
        f"{_megabytes(found['vocabulary']['bytes'])})",
        "descriptor": settings["descriptor"],
        "detector": settings["detector"] + (", upright" if settings["upright"] else ""),
        "keypoints": f"{settings['keypoints']} per photo, of {settings['max_size']} pixels"
        if settings["max_size"]
        else f"{settings['keypoints']} per photo",
        "generation": found["generation"],
    }
    for name, value in rows.items():
        table.add_row(name, escape(str(value)))
    Console(emoji=False).print(table)


def _list(
    folder: Folder,
    without_features: Annotated[
        bool,
        typer.Option("--without-features", help="Only those without any, which no query finds."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    from hardnet.retrieval.index import Index
    from hardnet.retrieval.photos import shown

    found = Index(folder).features()
    chosen = {path: count for path, count in found.items() if not (without_features and count)}
    if as_json:
        photos = [{"path": path, "features": count} for path, count in chosen.items()]
        print(json.dumps({"index": str(folder), "photos": photos}))
        return
    for path in chosen:
        say(shown(path))


def _verify(folder: Folder, as_json: AsJson = False) -> None:
    from hardnet.retrieval.store.snapshot import verify

    with Stage() as stage:
        report = verify(folder, stage)
    if as_json:
        facts = {"index": str(folder), **vars(report), "problems": list(report.problems)}
        print(json.dumps(facts))
    for problem in report.problems:
        say(f"damaged: {problem}", error=True)
    if not as_json and report.ok:
        size = _megabytes(report.bytes)
        say(f"{folder}: {counted(report.files, 'file')}, {size}, all as they were written")
    if not report.ok:
        raise typer.Exit(1)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


_BUILD = """Make an index of photos, to search it with `hardnet search`.

It can be stopped at any moment; the same command continues. Photos that are in the index and have
not changed are not done again, photos that changed are replaced; photos that cannot be read are
skipped and listed. Visual words are trained on the photos themselves unless --vocabulary has some.
The descriptor hardnet-int8 is quicker.

With --cluster, worker processes of Ray describe the photos, which must be under the same path on
all nodes; --workers is then their number. The index is the same.

Hidden folders and thumbnails that other programs made are left out, unless --hidden is given.

Exit code 0: all photos are indexed. 1: some were skipped, or the index cannot be written.

Example:  hardnet index build photos.index photos/
"""
_ADD = """Add photos to an index; those that changed are replaced.

With --cluster, worker processes of Ray describe the photos; see `hardnet index build --help`.

Example:  hardnet index add photos.index new/ one.jpg
"""
_VOCABULARY = """Train visual words on photos, for indexes of other photos.

It can be stopped at any moment; the same command continues.

Example:  hardnet index vocabulary photos/ -o words.safetensors --words 65536
"""

Folder = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.")]
Images = Annotated[
    list[Path],
    typer.Argument(metavar="IMAGES...", help="Photos, and folders; searched recursively."),
]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Threads that read and detect; one per core.")
]
Hidden = Annotated[
    bool, typer.Option("--hidden", help="Also hidden folders and files, and thumbnails.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def _build(
    folder: Folder,
    images: Images,
    vocabulary: Annotated[
        Path | None, typer.Option(help="Visual words of `hardnet index vocabulary`.")
    ] = None,
    words: Annotated[
        int | None, typer.Option(min=1, help="How many to train; chosen by the number of features.")
    ] = None,
    detector: DetectorName = "dog",
    descriptor: DescriptorName = "hardnet",
    keypoints: Keypoints = 1024,
    max_size: MaxSize = 1024,
    upright: Upright = False,
    hidden: Hidden = False,
    workers: Workers = None,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    # Imported here so that `hardnet --help` does not wait for OpenCV and numba.
    from hardnet.retrieval import precompile
    from hardnet.retrieval.build import build, form_for
    from hardnet.retrieval.photos import IndexSettings, named_photos
    from hardnet.retrieval.vocabulary import load

    start = time.perf_counter()
    given = None if vocabulary is None else load(vocabulary)
    form = form_for(folder, descriptor, given)
    settings = IndexSettings(detector, form, keypoints, max_size or None, upright)
    left_out: list[Path] = []
    photos = named_photos(images, folder, hidden=hidden, left_out=left_out)
    precompile.start()
    with _resumable() as stage, describing_on(cluster, settings, workers) as describing:
        report = build(
            folder,
            photos,
            settings,
            vocabulary=given,
            words=words,
            workers=workers,
            describing=describing,
            progress=stage,
        )
    _finish(report, folder, time.perf_counter() - start, as_json, left_out)


def _add(
    folder: Folder,
    images: Images,
    descriptor: KnownDescriptor = None,
    hidden: Hidden = False,
    workers: Workers = None,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    from hardnet.retrieval.build import build
    from hardnet.retrieval.photos import named_photos, stored_settings
    from hardnet.retrieval.store.snapshot import open_snapshot

    start = time.perf_counter()
    settings = stored_settings(open_snapshot(folder).settings, folder, descriptor)
    left_out: list[Path] = []
    photos = named_photos(images, folder, hidden=hidden, left_out=left_out)
    with _resumable() as stage, describing_on(cluster, settings, workers) as describing:
        report = build(
            folder,
            photos,
            settings,
            workers=workers,
            describing=describing,
            progress=stage,
        )
    _finish(report, folder, time.perf_counter() - start, as_json, left_out)


def _vocabulary(
    images: Images,
    output: Annotated[Path, typer.Option("--output", "-o", help="A .safetensors file.")],
    words: Annotated[int, typer.Option(min=1, help="How many.")],
    detector: DetectorName = "dog",
    descriptor: DescriptorName = "hardnet",
    keypoints: Keypoints = 1024,
    max_size: MaxSize = 1024,
    upright: Upright = False,
    seed: Annotated[int, typer.Option(min=0, help="Of the sample and the training.")] = 0,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    from hardnet.descriptors import fastest
    from hardnet.retrieval.build import write_vocabulary
    from hardnet.retrieval.photos import IndexSettings

    start = time.perf_counter()
    form = fastest(descriptor)
    settings = IndexSettings(detector, form, keypoints, max_size or None, upright)
    with _resumable() as stage:
        made, skipped = write_vocabulary(
            output, images, settings, words=words, seed=seed, workers=workers, progress=stage
        )
    seconds = time.perf_counter() - start
    for reason in skipped.values():
        say(f"skipped: {reason}", error=True)
    if as_json:
        facts = {"output": str(output), "words": len(made), "fingerprint": made.digest}
        print(json.dumps(facts | {"skipped": skipped, "seconds": round(seconds, 3)}))
    else:
        say(f"{output}: {counted(len(made), 'word')} in {seconds:.1f} s")
    if skipped:
        raise typer.Exit(1)


@contextmanager
def _resumable() -> Iterator[Stage]:
    """The progress bar; Ctrl-C says that nothing is lost."""
    errors = Console(stderr=True, emoji=False)
    try:
        with Stage(errors) as stage:
            yield stage
    except KeyboardInterrupt:
        say("stopped: what is done is kept; the same command continues", error=True)
        raise typer.Exit(130) from None


def _finish(
    report: BuildReport, folder: Path, seconds: float, as_json: bool, left_out: Sequence[Path]
) -> None:
    from hardnet.retrieval.photos import path_of, shown

    for reason in report.skipped.values():
        say(f"skipped: {reason}", error=True)
    for name in report.without_features:
        say(f"without features: {shown(path_of(name, folder))}", error=True)
    if left_out:
        say(
            f"left out: {len(left_out)} in hidden folders or thumbnails, such as {left_out[0]}; "
            "--hidden takes them",
            error=True,
        )
    if as_json:
        skipped = [{"image": name, "reason": why} for name, why in report.skipped.items()]
        facts = {"index": str(folder), **vars(report), "skipped": skipped}
        facts["left_out"] = [str(photo) for photo in left_out]
        print(json.dumps(facts | {"seconds": round(seconds, 3)}))
    else:
        say(_summary(report, folder, seconds))
    if report.skipped:
        raise typer.Exit(1)


def _summary(report: BuildReport, folder: Path, seconds: float) -> str:
    parts = [f"{counted(report.indexed, 'photo')} indexed in {seconds:.1f} s"]
    if report.indexed:
        parts.append(f"{report.features / report.indexed:.0f} features each")
    if report.replaced:
        parts.append(f"{report.replaced} of them replaced")
    if report.without_features:
        parts.append(f"{len(report.without_features)} without any feature")
    if report.unchanged:
        parts.append(f"{report.unchanged} unchanged")
    if report.skipped:
        parts.append(f"{len(report.skipped)} skipped")
    return f"{folder}: {', '.join(parts)}"
