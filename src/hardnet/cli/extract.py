"""`hardnet extract`: describe photos and store the features, for example for hloc."""

from __future__ import annotations

from pathlib import Path

from hardnet.cli.options import AsJson, Describing, Photos, Workers, option, reads_images
from hardnet.cli.output import Stage, refuse_inputs
from hardnet.descriptors import for_photos
from hardnet.errors import counted
from hardnet.images import named_images
from hardnet.interop.extraction import ExtractionSettings, extract_to


@reads_images
def extract(
    how: Describing,
    images: Photos,
    output: Path = option(
        ..., "An .h5 file, or a folder for one .npz file per photo.", "--output", "-o"
    ),
    half: bool = option(False, "Store descriptors as float16: half the size, three digits."),
    workers: Workers = None,
    overwrite: bool = option(False, "Start over and replace the existing output."),
    as_json: AsJson = False,
) -> None:
    """Describe photos: an HDF5 file in the layout of hloc, or a folder of npz files.

    Stop it at any time; the same command resumes. Photos that were described before and have not
    changed are not described again; photos that cannot be read are skipped and listed.

    Exit code 0: all photos are described. 1: some were skipped, or the output cannot be written.

    Example: hardnet extract photos/ -o feats.h5
    """
    refuse_inputs(output, [path for path in images if not path.is_dir()])
    form, photos = for_photos(how.descriptor), named_images(images)
    settings = ExtractionSettings(**how.asked(descriptor=form, half=half))
    with Stage(resumes=True) as stage:
        report = extract_to(
            output, photos, settings, workers=workers, overwrite=overwrite, progress=stage
        )
    facts = {"output": str(output), **vars(report)}
    each = round(report.keypoints / max(report.described, 1))
    done = f"{output}: {counted(report.described, 'photo')} described"
    more = {"keypoints_each": each, "unchanged": report.unchanged}
    stage.finish(as_json, facts, report.skipped, done, **more)
