"""Shared by the scripts: threads, alternating runs, new processes, photos, results files."""

from __future__ import annotations

import multiprocessing
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import wraps
from importlib.resources import files
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import cv2
import numpy as np
import typer
from report.tables import write

from hardnet import provenance
from hardnet.errors import HardnetError
from hardnet.images import list_images

SKIMAGE = Path(str(files("skimage") / "data"))
"""The photos that come with scikit-image."""

Output = Annotated[Path, typer.Option("--output", "-o")]
Threads = Annotated[int, typer.Option(help="Threads of every contestant.")]
Repetitions = Annotated[int, typer.Option(help="Measurements per median.")]
Keypoints = Annotated[int, typer.Option(help="Per image.", min=1)]
Descriptor = Annotated[str, typer.Option(help="Name or weights file.")]


_options: dict[str, Any] = {}


def run_script(main: Callable[..., None]) -> None:
    """Run the command of a script; its numbers and names are settings of the results."""

    @wraps(main)
    def recorded(**options: Any) -> None:
        _options.update(
            {k: v for k, v in options.items() if isinstance(v, (bool, int, float, str))}
        )
        main(**options)

    typer.run(recorded)


def finish(
    kind: str,
    found: Mapping[str, Any],
    data: Iterable[Path],
    output: Path,
    arguments: Sequence[str] | None = None,
    **settings: Any,
) -> None:
    """Write a results file with its tables, and print the tables.

    ``arguments`` stand for those of the command line; ``settings`` are added to its options.
    """
    words = map(provenance.without_folders, sys.argv[1:] if arguments is None else arguments)
    command = f"python {shlex.join([f'benchmarks/{Path(sys.argv[0]).name}', *words])}"
    origin = provenance.collect(command, _options | settings, data)
    for table in write({"kind": kind, **found, "provenance": origin}, output):
        print(f"{table.markdown()}\n")


def say(what: str, done: int, total: int) -> None:
    """Progress, now and then."""
    if done == total or not done % 50:
        print(f"{what} {done}/{total}", file=sys.stderr)


def use_threads(threads: int) -> None:
    """Restart the script if BLAS, which reads the number when loaded, uses a different one."""
    if os.environ.get("OMP_NUM_THREADS") != str(threads):
        variables = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | variables)
    cv2.setNumThreads(threads)


def seconds_of(work: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    start = perf_counter()
    work()
    return perf_counter() - start


def median_seconds(
    contestants: Mapping[str, Callable[[], object]], repetitions: int
) -> dict[str, float]:
    """Median seconds of each contestant; runs alternate, so that load affects all equally."""
    spent: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repetitions):
        for name, work in contestants.items():
            spent[name].append(seconds_of(work))
    return {name: float(np.median(each)) for name, each in spent.items()}


def in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a new process: memory left by an earlier measurement would count as this one's."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def memory_mb(field: str, process: int | str = "self") -> float:
    """A field of a process: VmRSS current, VmHWM peak, RssAnon own, RssFile mapped files."""
    text = Path(f"/proc/{process}/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) / 1024


def extra_memory_mb(work: Callable[[], object]) -> float:
    """By how much the peak memory of a call exceeds the current memory."""
    before = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts here
    work()
    return memory_mb("VmHWM") - before


def photos_of(part: str, given: Path | None = None) -> Path:
    """A folder of photos: the one given, else this part of HARDNET_DATA, else scikit-image's."""
    folder = Path(os.environ.get("HARDNET_DATA", "")) / part
    if given is None and "HARDNET_DATA" in os.environ and folder.is_dir():
        return folder
    return given or SKIMAGE


def photo_pair(second: int) -> tuple[Path, Path]:
    """Images 1 and ``second`` of graf in HARDNET_DATA, else a stereo pair."""
    graf = photos_of("oxford-affine/graf")
    if graf == SKIMAGE:
        return SKIMAGE / "motorcycle_left.png", SKIMAGE / "motorcycle_right.png"
    return graf / "1.png", graf / f"{second}.png"


def choose(folders: Sequence[Path], count: int) -> list[Path]:
    """At most ``count`` photos, spread evenly over the folders."""
    paths = [path for folder in folders for path in list_images(folder)]
    if not paths:
        raise HardnetError(f"no photos in {', '.join(str(folder) for folder in folders)}")
    places = np.linspace(0, len(paths) - 1, min(count, len(paths))).round().astype(int)
    return [paths[place] for place in places]
