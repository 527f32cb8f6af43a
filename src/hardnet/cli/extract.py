"""`hardnet extract`: describe photos into a file for hloc, or for later."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from hardnet.cli.options import AsJson, Describing, Photos, Workers, grouped, option, reads_images
from hardnet.cli.output import Stage, answer, say
from hardnet.errors import counted

if TYPE_CHECKING:
    from hardnet.interop.extraction import ExtractionReport


@reads_images
@grouped
def extract(
    how: Describing,
    images: Photos,
    output: Path = option(..., "A .h5 file, or a folder for one .npz per photo.", "--output", "-o"),
    half: bool = option(False, "Descriptors as float16: half the size, three digits.", "--half"),
    workers: Workers = None,
    overwrite: bool = option(False, "Begin again, whatever the output holds.", "--overwrite"),
    as_json: AsJson = False,
) -> None:
    """Describe photos: an HDF5 file in the layout of hloc, or a folder of npz files.

    It can be stopped at any moment; the same command continues. Photos that were described before
    and have not changed are not done again; photos that cannot be read are skipped and listed.

    Exit code 0: all photos are described. 1: some were skipped, or the output cannot be written.

    Example:  hardnet extract photos/ -o feats.h5
    """
    # Imported here so that `hardnet --help` does not wait for OpenCV.
    from hardnet.descriptors import for_photos
    from hardnet.images import named_images
    from hardnet.interop.extraction import ExtractionSettings, extract_to

    start = time.perf_counter()
    form, photos = for_photos(how.descriptor), named_images(images)
    settings = ExtractionSettings(**how.asked(descriptor=form, half=half))
    with Stage(resumes=True) as stage:
        report = extract_to(
            output, photos, settings, workers=workers, overwrite=overwrite, progress=stage
        )
    for reason in report.skipped.values():
        say(f"skipped: {reason}", error=True)
    seconds = time.perf_counter() - start
    skipped = [{"image": name, "reason": why} for name, why in report.skipped.items()]
    facts = {"output": str(output), **vars(report), "skipped": skipped}
    facts["seconds"] = round(seconds, 3)
    answer(as_json, facts, _summary(report, output, seconds))
    if report.skipped:
        raise typer.Exit(1)


def _summary(report: ExtractionReport, output: Path, seconds: float) -> str:
    parts = [f"{counted(report.described, 'photo')} described in {seconds:.1f} s"]
    if report.described:
        parts.append(f"{report.keypoints / report.described:.0f} keypoints each")
    if report.unchanged:
        parts.append(f"{report.unchanged} unchanged")
    if report.skipped:
        parts.append(f"{len(report.skipped)} skipped")
    return f"{output}: {', '.join(parts)}"
