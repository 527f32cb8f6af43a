"""A folder of photos: one by one, overlapped, and each stage alone, in one run.

No pipeline can be faster than its slowest stage, or than the work of all stages shared evenly by
all cores. If every stage already uses all cores, the second limit applies.

Example: python benchmarks/extract_folder.py --images photos
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from measuring import SKIMAGE, Keypoints, Output, Repetitions, finish, run_script

from hardnet import descriptors, detectors, provenance
from hardnet.errors import HardnetError
from hardnet.features import Features, describe, extract, find, prepare
from hardnet.images import list_images
from hardnet.interop.extraction import ExtractionSettings, extract_to
from hardnet.pipeline import extract_many
from hardnet.retrieval.build import build
from hardnet.retrieval.photos import IndexSettings, named_photos

OURS = ("hardnet", "hardnet-int8", "hardnet-small", "hardnet-small-int8")
MIN_SIDE = 400
"""Smaller images of scikit-image are icons and test patterns, not photographs."""


def main(
    images: Annotated[
        list[Path] | None,
        typer.Option(help="Folders of photos [scikit-image's, and those in HARDNET_DATA]."),
    ] = None,
    count: Annotated[int, typer.Option(help="Number of photos, spread evenly.")] = 20,
    descriptor: Annotated[
        list[str] | None,
        typer.Option(help="Names or weights files [hardnet and hardnet-small]."),
    ] = None,
    detector: Annotated[str, typer.Option()] = "dog",
    keypoints: Keypoints = 2048,
    workers: Annotated[int | None, typer.Option(help="[one per core]")] = None,
    repetitions: Repetitions = 1,
    output: Output = Path("results/extract_folder.json"),
) -> None:
    """Seconds, processor seconds and memory; writes a JSON file."""
    paths = _choose(images or _default_folders(), count)
    rows = []
    shipped = [name for name in OURS if name in descriptors.shipped_names()]
    for name in descriptor or shipped:
        settings = ExtractionSettings(detector, name, keypoints)
        row = {"descriptor": Path(name).stem} | _measure(paths, settings, workers, repetitions)
        row["memory_mb"] = {
            how: _peak_memory(how, paths, settings, workers) for how in ("sequential", "overlapped")
        }
        rows.append(row)
        if rows[0]["descriptor"] == "hardnet":
            for key, way in (("speed_of_hardnet", "hdf5"), ("index_speed_of_hardnet", "index")):
                row[key] = rows[0]["seconds"][way] / row["seconds"][way]
        print(json.dumps(row), flush=True)
    sizes = [prepare(path).image_size for path in paths]
    megapixels = round(float(np.mean([np.prod(s) / 1e6 for s in sizes])), 2)
    finish(
        "extract_folder", {"rows": rows}, paths, output, images=len(paths), megapixels=megapixels
    )


def _default_folders() -> list[Path]:
    found = [SKIMAGE]
    if data := os.environ.get("HARDNET_DATA"):
        found += [Path(data) / part for part in ("sfm", "ukbench", "oxford-affine")]
    return [folder for folder in found if folder.is_dir()]


def _choose(folders: list[Path], count: int) -> list[Path]:
    """Photos taken evenly from all folders, in mixed order."""
    groups = []
    for folder in folders:
        good = []
        for path in list_images(folder):
            try:
                if min(prepare(path).grey.shape) >= MIN_SIDE:
                    good.append(path)
            except HardnetError:
                continue
            if len(good) >= count:
                break
        groups.append(good)
    mixed = [path for k in range(count) for group in groups for path in group[k : k + 1]]
    return mixed[:count]


def _measure(
    paths: list[Path], settings: ExtractionSettings, workers: int | None, repetitions: int
) -> dict[str, Any]:
    """Medians of alternating runs, so that load affects all equally."""
    detect, network = detectors.load(settings.detector), descriptors.load(settings.descriptor)
    how = IndexSettings(settings.detector, settings.descriptor, settings.keypoints)
    options = {"detector": detect, "descriptor": network, "keypoints": settings.keypoints}

    def one_by_one() -> list[Features]:
        return [extract(path, **options) for path in paths]  # type: ignore[arg-type]

    def overlapped() -> list[Any]:
        return [f for _, f in extract_many(paths, workers=workers, **options)]  # type: ignore[arg-type]

    def to_file() -> None:
        with tempfile.TemporaryDirectory() as folder:
            named = {f"{k}.jpg": path for k, path in enumerate(paths)}
            as_indexed = ExtractionSettings(**asdict(how))
            extract_to(Path(folder) / "feats.h5", named, as_indexed, workers=workers)

    def to_index() -> None:
        with tempfile.TemporaryDirectory() as folder:
            index = Path(folder) / "index"
            build(index, named_photos(paths, index), how, workers=workers)

    to_index()  # warms up what is loaded once
    one_by_one()  # fills the system caches and starts all threads
    taken: dict[str, list[tuple[float, float]]] = {}
    same = True
    for _ in range(repetitions):
        a = _timed(taken, "sequential", one_by_one)
        b = _timed(taken, "overlapped", overlapped)
        same &= all(
            np.array_equal(x.descriptors, y.descriptors) and np.array_equal(x.frames, y.frames)
            for x, y in zip(a, b, strict=True)
        )
        _timed(taken, "hdf5", to_file)
        _timed(taken, "index", to_index)
        read = _timed(taken, "decode", lambda: list(map(prepare, paths)))
        found = _timed(taken, "detect", list, (find(p, detect, settings.keypoints) for p in read))
        _timed(taken, "describe", list, (describe(each, network) for each in found))
    seconds = {name: float(np.median([t for t, _ in times])) for name, times in taken.items()}
    processor = {name: float(np.median([c for _, c in times])) for name, times in taken.items()}
    slowest = max(("decode", "detect", "describe"), key=seconds.__getitem__)
    work = sum(processor[stage] for stage in ("decode", "detect", "describe"))
    cores = provenance.machine()["cores"]
    return {
        "seconds": seconds,
        "processor_seconds": processor,
        "slowest_stage": slowest,
        "ratio_to_slowest_stage": seconds["overlapped"] / seconds[slowest],
        "ratio_to_all_cores_busy": seconds["overlapped"] / (work / cores),
        "speedup": seconds["sequential"] / seconds["overlapped"],
        "index_to_extraction": seconds["index"] / seconds["hdf5"],
        "same_bits": bool(same),
    }


def _timed(
    taken: dict[str, list[tuple[float, float]]], name: str, work: Callable[..., Any], *of: Any
) -> Any:
    start, processor = time.perf_counter(), time.process_time()
    result = work(*of)
    times = time.perf_counter() - start, time.process_time() - processor
    taken.setdefault(name, []).append(times)
    return result


_MEMORY = """
import json, sys
from pathlib import Path
from hardnet.features import extract
from hardnet.pipeline import extract_many
how, paths, settings, workers = json.loads(sys.argv[1])
options = {k: settings[k] for k in ("detector", "descriptor", "keypoints", "max_size")}
if how == "sequential":
    found = (extract(path, **options) for path in paths)
else:
    found = extract_many([Path(path) for path in paths], workers=workers, **options)
for _ in found:
    pass
lines = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024)
"""


def _peak_memory(
    how: str, paths: list[Path], settings: ExtractionSettings, workers: int | None
) -> float:
    """Peak memory in MB of a process that describes the first photos and discards the results."""
    words = json.dumps([how, [str(path) for path in paths[:8]], asdict(settings), workers])
    command = [sys.executable, "-c", _MEMORY, words]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


if __name__ == "__main__":
    run_script(main)
