"""`hardnet groups` on collections from a thousand to a hundred thousand photos: time and memory.

Photos are simulated from the statistics of real ones, see ``synthetic.py``, and every tenth is a
copy. Describing a photo takes the same time at any size and is measured on real photos in the same
run.

Example: python benchmarks/groups.py --photos photos --largest 100000
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Annotated, Any

import numpy as np
import typer
from measuring import (
    Descriptor,
    Output,
    choose,
    finish,
    in_fresh_process,
    memory_mb,
    photos_of,
    run_script,
)
from synthetic import Collection, measure_shape

from hardnet.retrieval.comparing import SHORTLIST, Comparing
from hardnet.retrieval.index import Index
from hardnet.retrieval.kinds import Thresholds
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.store.writer import Writer

SIZES = (1000, 10_000, 100_000)
WORDS = 1 << 16
BATCH = 5000
EVERY = 10
"""Every tenth photo is a copy of the one before it."""
COPIES = 50
"""Number of copies to search for."""
ASKED = 100
"""Photos to compare, spread over the collection; the others would take as long each."""


def main(
    photos: Annotated[
        list[Path] | None,
        typer.Option(help="Folders of photos to measure [HARDNET_DATA/ukbench, or skimage's]."),
    ] = None,
    count: Annotated[int, typer.Option(help="Number of photos, spread evenly.")] = 60,
    largest: Annotated[int, typer.Option(help="Photos of the largest collection.")] = 100_000,
    features: Annotated[int, typer.Option(help="Features per photo, on average.")] = 400,
    words: Annotated[int, typer.Option(help="Words of the growing index.")] = WORDS,
    descriptor: Descriptor = "hardnet",
    work: Annotated[
        Path | None, typer.Option(help="Folder for the index, deleted afterwards [temporary].")
    ] = None,
    output: Output = Path("results/groups_growth.json"),
) -> None:
    """CPU time per photo and memory at each size; writes a JSON file."""
    sizes = [size for size in SIZES if size < largest] + [largest]
    paths = choose(photos or [photos_of("ukbench")], count)
    with tempfile.TemporaryDirectory(dir=work) as name:
        folder = Path(name)
        real, described = describe(folder / "real", paths, descriptor)
        shape = measure_shape(real.snapshot)
        collection = Collection(shape, words, features)
        rows = grow(folder / "index", collection, sizes)
    finish(
        "groups_growth",
        {"describe_ms": described, "rows": rows},
        paths,
        output,
        photos=len(paths),
        shape=shape.facts(),
        asked=ASKED,
        shortlist=SHORTLIST,
        copies=f"every {EVERY}th photo",
    )


def describe(folder: Path, paths: list[Path], descriptor: str) -> tuple[Index, float]:
    """An index of real photos, and the CPU time of reading and describing one, in ms."""
    index = Index.build(folder, paths, descriptor=descriptor, words=1024)
    some = paths[: max(len(paths) // 4, 1)]
    index.extract(some[0])
    start = process_time()
    for path in some:
        index.extract(path)
    return index, 1e3 * (process_time() - start) / len(some)


def grow(folder: Path, collection: Collection, sizes: list[int]) -> list[dict[str, Any]]:
    """One row per size; each index is the previous one with photos added."""
    rows, images = [], 0
    create: Any = {"settings": {"max_size": None}, "vocabulary": collection.vocabulary()}
    for size in sizes:
        with Writer(folder, create) as writer:
            while images < size:
                batch = collection.images(images, min(images + BATCH, size))
                writer.add(with_copies(batch))
                images += len(batch)
            writer.commit()
        create = None
        rows.append({"photos": size} | in_fresh_process(measure, folder))
        print(json.dumps(rows[-1]), flush=True)
    return rows


def with_copies(images: list[IndexedImage]) -> list[IndexedImage]:
    """Every tenth image shows the same as the one before it."""
    out = list(images)
    for at in range(1, len(images), EVERY):
        out[at] = replace(images[at - 1], name=images[at].name)
    return out


def measure(folder: Path) -> dict[str, Any]:
    """Compare some photos in a new process."""
    index = Index(folder)
    comparing = Comparing(index, index.snapshot, Thresholds())
    names = sorted(index.snapshot.names())
    image = dict(zip(names, index.snapshot.find_many(names).tolist(), strict=True))
    numbers = [image[names[at]] for at in np.linspace(0, len(names) - 1, ASKED).astype(int)]
    comparing.plain(numbers[0])
    start = process_time()
    for number in numbers:
        comparing.plain(number)
    each = (process_time() - start) / len(numbers)
    copied = range(1, len(names), EVERY)
    copied = copied[:: max(len(copied) // COPIES, 1)]
    found = [image[names[at - 1]] in comparing.plain(image[names[at]]) for at in copied]
    return {
        "compare_ms": 1e3 * each,
        "copies_found": float(np.mean(found)),
        "peak_memory_mb": memory_mb("VmHWM"),
    }


if __name__ == "__main__":
    run_script(main)
