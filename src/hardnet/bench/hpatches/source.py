"""Where the descriptors of a set come from: a store that describes what it lacks, or CSV files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hardnet import descriptors
from hardnet.bench.csv_folder import CsvFolder, write_csv
from hardnet.bench.hpatches.strips import Lookup
from hardnet.bench.store import Store
from hardnet.errors import HardnetError
from hardnet.patchsets.fingerprint import fingerprint
from hardnet.patchsets.hpatches import TAGS, HPatches


@dataclass(frozen=True)
class Source:
    """Descriptors of a set by strip, and what tells them from all others."""

    lookup: Lookup
    identity: str


def open_source(spec: str, hpatches: HPatches, store: Store) -> Source:
    """The descriptors that ``spec`` names on a set.

    Args:
        spec: what ``hardnet.descriptors.load`` takes, or a folder of CSV files. A name wins over a
            folder of that name; ``./name`` is the folder.
        hpatches: the set.
        store: of predictions.
    """
    data, sequences = fingerprint(hpatches.folder), hpatches.sequences
    folder = Path(spec)
    if spec not in descriptors.names() and folder.is_dir():
        files = CsvFolder(folder)
        return Source(
            lambda name, tag: files.get(name, tag, sequences[name].count),
            f"csv {fingerprint(folder)} of {data}",
        )
    if spec.endswith("/"):
        raise HardnetError(f"there is no folder {spec} of descriptors, SEQUENCE/ref.csv ...")
    predictions = store.open(descriptors.load(spec), data)
    return Source(
        lambda name, tag: predictions.get(f"{name}/{tag}", lambda: sequences[name].patches(tag)),
        f"{predictions.folder.parent.name} of {data}",
    )


def describe_all(
    source: Source, names: Sequence[str], progress: Callable[[int, int], None]
) -> None:
    """Ask for every strip of the sequences ``names`` once: what is missing is described."""
    strips = [(name, tag) for name in names for tag in TAGS]
    for done, strip in enumerate(strips, 1):
        source.lookup(*strip)
        progress(done, len(strips))


def write_all(source: Source, names: Sequence[str], folder: Path) -> None:
    """Write the descriptors of the sequences ``names`` as CSV files."""
    for name in names:
        for tag in TAGS:
            write_csv(folder, name, tag, source.lookup(name, tag))
