"""`hardnet index`: build, change and inspect an index of photos."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.filesize import decimal

from hardnet.cli import options as shared
from hardnet.cli.options import AsJson, Photos, Workers, argument, option, reads_images
from hardnet.cli.output import Stage, answer, say, show
from hardnet.descriptors import for_photos
from hardnet.errors import HardnetError, counted
from hardnet.retrieval.build import build, form_for, write_vocabulary
from hardnet.retrieval.index import Index
from hardnet.retrieval.photos import Describing as Describers
from hardnet.retrieval.photos import IndexSettings, named_photos, path_of, shown, stored_settings
from hardnet.retrieval.store.snapshot import open_snapshot, verify
from hardnet.retrieval.vocabulary import load

Folder = Annotated[Path, argument("Folder of the index.", metavar="INDEX")]

app = shared.group("index", "Build, change and inspect an index of photos.")


@dataclass(frozen=True)
class IndexDescribing(shared.Describing):
    """The same options with the best defaults for an index."""

    descriptor: shared.DescriptorName = "hardnet-small@12"
    keypoints: shared.Keypoints = 1024
    max_size: shared.MaxSize = 1024
    spread: shared.Spread = True


@dataclass(frozen=True)
class Added:
    """The options of commands that put photos into an index."""

    folder: Folder
    images: Photos
    hidden: bool = option(False, "Include hidden folders and files, and thumbnails.")
    workers: Workers = None
    cluster: shared.Cluster = None
    as_json: AsJson = False

    def index(self, settings: IndexSettings, **vocabulary: Any) -> None:
        """Index the photos and report what was done."""
        folder, workers, left_out = self.folder, self.workers, list[Path]()
        photos = named_photos(self.images, folder, hidden=self.hidden, left_out=left_out)
        with Stage(resumes=True) as stage, describing_on(self.cluster, settings, workers) as by:
            how = {"workers": workers, "describing": by, "progress": stage, **vocabulary}
            report = build(folder, photos, settings, **how)
        for name in report.without_features:
            say(f"without features: {shown(path_of(name, folder))}", error=True)
        if left_out:
            say(
                f"left out: {len(left_out)} in hidden folders or thumbnails, such as "
                f"{left_out[0]}; --hidden includes them",
                error=True,
            )
        facts = {"index": str(folder), **vars(report), "left_out": [str(one) for one in left_out]}
        done = f"{folder}: {counted(report.indexed, 'photo')} indexed"
        more = {
            "features_each": round(report.features / max(report.indexed, 1)),
            "of_them_replaced": report.replaced,
            "without_features": len(report.without_features),
            "unchanged": report.unchanged,
        }
        stage.finish(self.as_json, facts, report.skipped, done, **more)


@contextmanager
def describing_on(
    address: str | None, settings: IndexSettings, workers: int | None
) -> Iterator[Describers | None]:
    """Cluster workers that describe photos, or None without an address."""
    if address is None:
        yield None
        return
    from hardnet.retrieval.cluster.describers import describers_on

    # Ray reports dead workers on stdout, where a machine expects JSON.
    with redirect_stdout(sys.stderr), describers_on(address, settings, workers) as describers:
        yield describers


@app.command("build")
@reads_images
def _build(
    how: IndexDescribing,
    added: Added,
    vocabulary: Path | None = option(None, "Visual words from `hardnet index vocabulary`."),
    words: int | None = option(
        None, "Number of visual words to train [depends on the number of features].", min=1
    ),
) -> None:
    """Build an index of photos for `hardnet search`.

    Stop it at any time; the same command resumes. Photos that are in the index and have not changed
    are not described again, changed photos are replaced, and photos that cannot be read are skipped
    and listed. Visual words are trained on the photos themselves unless --vocabulary is given.

    With --cluster, Ray workers describe the photos, which must have the same path on all nodes;
    --workers is then their number. The index is the same.

    Hidden folders and thumbnails of other programs are left out unless --hidden is given.

    Exit code 0: all photos are indexed. 1: some were skipped, or the index cannot be written.

    Example: hardnet index build photos.index photos/
    """
    known = None if vocabulary is None else load(vocabulary)
    descriptor = form_for(added.folder, how.descriptor, known)
    settings = IndexSettings(**how.asked(descriptor=descriptor))
    added.index(settings, vocabulary=known, words=words)


@app.command("add")
@reads_images
def _add(added: Added, descriptor: shared.KnownDescriptor = None) -> None:
    """Add photos to an index; changed photos are replaced.

    With --cluster, Ray workers describe the photos; see `hardnet index build --help`.

    Example: hardnet index add photos.index new/ one.jpg
    """
    folder = added.folder
    added.index(stored_settings(open_snapshot(folder).settings, folder, descriptor))


@app.command("vocabulary")
@reads_images
def _vocabulary(
    how: IndexDescribing,
    images: Photos,
    output: Path = option(..., "The .safetensors file to write.", "--output", "-o"),
    words: int = option(..., "Number of words.", min=1),
    seed: shared.Seed = 0,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train visual words on photos, for indexes of other photos.

    Stop it at any time; the same command resumes.

    Example: hardnet index vocabulary photos/ -o words.safetensors --words 65536
    """
    settings = IndexSettings(**how.asked(descriptor=for_photos(how.descriptor)))
    with Stage(resumes=True) as stage:
        made, skipped = write_vocabulary(
            output, images, settings, words=words, seed=seed, workers=workers, progress=stage
        )
    facts = {"output": str(output), "words": len(made), "digest": made.digest}
    stage.finish(as_json, facts, skipped, f"{output}: {counted(len(made), 'word')}")


@app.command("remove")
def _remove(
    folder: Folder,
    images: list[Path] | None = argument("Photos or folders of photos.", None, metavar="IMAGES..."),
    gone: bool = option(False, "Also remove photos whose files no longer exist.", "--gone"),
    as_json: AsJson = False,
) -> None:
    """Remove photos, or all photos of a folder, from an index. The files are kept.

    `hardnet index compact` frees the space; until then `hardnet index restore` undoes the removal.

    Example: hardnet index remove photos.index photos/blurred.jpg photos/old
    """
    if not images and not gone:
        raise HardnetError("name the photos to remove, or use --gone")
    index = Index(folder)
    removed = (index.remove(images) if images else 0) + (index.remove_gone() if gone else 0)
    facts = {"index": str(folder), "removed": removed, "images": len(index)}
    answer(as_json, facts, f"{folder}: {counted(removed, 'photo')} removed, {len(index)} left")


@app.command("restore")
@reads_images
def _restore(
    folder: Folder,
    images: list[Path] | None = argument("Photos [all removed ones].", None, metavar="[IMAGES]..."),
    as_json: AsJson = False,
) -> None:
    """Undo the removal of photos.

    Once its space is freed, by `hardnet index compact` or when photos are added, a removed photo
    cannot be restored: add it again.

    Example: hardnet index restore photos.index photos/blurred.jpg
    """
    index = Index(folder)
    restored = index.restore(images or index.removed())
    facts = {"index": str(folder), "restored": restored, "images": len(index)}
    line = f"{folder}: {counted(restored, 'photo')} restored, {len(index)} photos now"
    answer(as_json, facts, line)


@app.command("compact")
def _compact(folder: Folder) -> None:
    """Merge small segments and free the space of removed photos.

    Example: hardnet index compact photos.index
    """
    index = Index(folder)
    before = index.info()
    with Stage() as stage:
        index.compact(progress=stage)
    after = index.info()
    say(
        f"{folder}: from {counted(before['segments'], 'segment')} to {after['segments']}, "
        f"from {decimal(before['bytes'])} to {decimal(after['bytes'])}"
    )


@app.command("info")
def _info(folder: Folder, as_json: AsJson = False) -> None:
    """Show how many photos and features an index has, and how they were described.

    Example: hardnet index info photos.index
    """
    found = Index(folder).info()
    if as_json:
        print(json.dumps(found))
        return
    settings, vocabulary = found["settings"], found["vocabulary"]
    size = f"{decimal(found['bytes'])} in {counted(found['segments'], 'segment')}"
    if found["features"]:
        size += f", {found['bytes_per_feature']} bytes per feature"
    words = f"{vocabulary['digest']}, {decimal(vocabulary['bytes'])}"
    flags = [name for name in ("upright", "spread") if settings.get(name)]
    most = settings["max_size"]
    rows = {
        "photos": found["images"],
        "features": found["features"],
        "size": size,
        "removed, not yet compacted": found["removed"],
        "words": f"{found['words']} (vocabulary {words})",
        "descriptor": settings["descriptor"],
        "detector": ", ".join([settings["detector"], *flags]),
        "keypoints": f"{settings['keypoints']} per photo"
        + (f" of at most {most} pixels" if most else ""),
        "generation": found["generation"],
    }
    show(rows.items())


@app.command("list")
def _list(
    folder: Folder,
    without_features: bool = option(
        False, "Only photos without features, which no query can find.", "--without-features"
    ),
    as_json: AsJson = False,
) -> None:
    """List the photos of an index, one path per line.

    Example: hardnet index list photos.index --without-features
    """
    found = Index(folder).features()
    chosen = {path: count for path, count in found.items() if not (without_features and count)}
    if as_json:
        photos = [{"path": path, "features": count} for path, count in chosen.items()]
        print(json.dumps({"index": str(folder), "photos": photos}))
        return
    for path in chosen:
        say(shown(path))


@app.command("verify")
def _verify(folder: Folder, as_json: AsJson = False) -> None:
    """Read all files of an index and check their checksums.

    Exit code 0: everything is intact. 1: something is damaged; the damage is listed.

    Example: hardnet index verify photos.index
    """
    with Stage() as stage:
        report = verify(folder, stage)
    facts = {"index": str(folder), **vars(report), "problems": list(report.problems)}
    if as_json or report.ok:
        files = f"{counted(report.files, 'file')}, {decimal(report.bytes)}"
        answer(as_json, facts, f"{folder}: {files}, all intact")
    for problem in report.problems:
        say(f"damaged: {problem}", error=True)
    if not report.ok:
        raise typer.Exit(1)
