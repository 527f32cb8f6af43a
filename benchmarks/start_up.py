"""How long users wait for a command: each one in a new process.

Every command is timed from the start of its process to its end. ``python -c pass`` and OpenCV's
SIFT matching the same two photos, import included, alternate with them for comparison.
For the first search after installation, an index is built and searched, and searched again, with
empty caches. Give the Python of an installation like a user's (`pip install .`), because typer
imports other packages if they are installed.

Example: python benchmarks/start_up.py --python venv/bin/python
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import typer
from measuring import Output, Repetitions, finish, photo_pair, photos_of, run_script

from hardnet.descriptors import shipped_names
from hardnet.images import list_images, read_image, to_grey

OURS = ("hardnet-small", "hardnet")
LIMITS = {"help": 0.3, "match": 1.5, "search again": 1.0}
"""Seconds that these should stay below."""
FIRST_SEARCH = 2.0
"""Seconds by which the first search may be slower than the second."""
SIDE = 1600

_SIFT = """
import sys, cv2, numpy as np
a, b = (cv2.imread(path, cv2.IMREAD_GRAYSCALE) for path in sys.argv[1:3])
sift = cv2.SIFT.create(nfeatures=2048)
(ka, da), (kb, db) = (sift.detectAndCompute(image, None) for image in (a, b))
pairs = cv2.BFMatcher(cv2.NORM_L2).knnMatch(da, db, k=2)
good = [m for m, n in pairs if m.distance < 0.8 * n.distance]
xy_a = np.array([ka[m.queryIdx].pt for m in good])
xy_b = np.array([kb[m.trainIdx].pt for m in good])
cv2.findHomography(xy_a, xy_b, cv2.USAC_MAGSAC, 3.0)
"""


def main(
    photos: Annotated[
        Path | None, typer.Option(help="Folder of the collection [HARDNET_DATA/ukbench, skimage].")
    ] = None,
    count: Annotated[int, typer.Option(help="Photos of the large index.")] = 1000,
    few: Annotated[int, typer.Option(help="Photos of the index of a new installation.")] = 20,
    pair: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Photos to match [graf 1 and 2 of HARDNET_DATA, else a stereo pair]."),
    ] = None,
    descriptor: Annotated[
        str | None, typer.Option(help="A name or a weights file [hardnet-small, or hardnet].")
    ] = None,
    python: Annotated[
        Path, typer.Option(help="Python of the installation to measure.", show_default="this one")
    ] = Path(sys.executable),
    repetitions: Repetitions = 5,
    output: Output = Path("results/start_up.json"),
) -> None:
    """Seconds and processor seconds of each command; writes a JSON file."""
    descriptor = descriptor or next(n for n in OURS if n in shipped_names())
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        a, b = (
            _enlarged(path, work / name)
            for path, name in zip(pair or photo_pair(2), "ab", strict=True)
        )
        everything, wanted = list_images(photos_of("ukbench", photos)), max(count, few)
        collection = everything[:: max(len(everything) // wanted, 1)][:wanted]
        hardnet = [str(python), "-m", "hardnet"]
        index = work / "index"
        build = ["index", "build", "--descriptor", descriptor]
        _run([*hardnet, *build, str(index), *map(str, collection[:count])])
        commands = {
            "python": [str(python), "-c", "pass"],
            "help": [*hardnet, "--help"],
            "opencv-sift": [str(python), "-c", _SIFT, str(a), str(b)],
            "match": [*hardnet, "match", str(a), str(b), "--descriptor", f"{descriptor}@12"],
            "match, three windows": [*hardnet, "match", str(a), str(b), "--descriptor", descriptor],
            "search again": [*hardnet, "search", str(index), str(collection[0])],
        }
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
        for repetition in range(repetitions + 1):
            for name, command in commands.items():
                times = _run(command)
                if repetition:  # the first one fills the system caches
                    taken[name].append(times)
        rows = {name: _median(times) for name, times in taken.items()}
        fresh = {
            "NUMBA_CACHE_DIR": str(work / "numba"),
            "HARDNET_CACHE": str(work / "cache"),
        }
        new = work / "new"
        search = [*hardnet, "search", str(new), str(collection[0])]
        steps = {
            "first build": [*hardnet, *build, str(new), *map(str, collection[:few])],
            "first search": search,
            "second search": search,
        }
        rows |= {name: _median([_run(command, fresh)]) for name, command in steps.items()}
    late = rows["first search"]["seconds"] - rows["second search"]["seconds"]
    found = {
        "rows": rows,
        "first_search_slower_by": late,
        "match_to_sift": rows["match"]["seconds"] / rows["opencv-sift"]["seconds"],
        "limits": LIMITS | {"first search": FIRST_SEARCH},
    }
    settings: dict[str, Any] = {
        "photos": min(count, len(collection)),
        "photos_of_a_fresh_installation": few,
        "descriptor": descriptor,
        "packages": _packages(python),
    }
    finish("start_up", found, [], output, **settings)


def _packages(python: Path) -> int:
    """How many packages the installation has, since some are imported if they are there."""
    script = "import importlib.metadata as m; print(len(list(m.distributions())))"
    done = subprocess.run([str(python), "-c", script], capture_output=True, text=True, check=True)
    return int(done.stdout)


def _run(command: list[str], variables: dict[str, str] | None = None) -> tuple[float, float]:
    """Seconds and CPU seconds of a command that must succeed (or exit with 1: nothing verified)."""
    environment = os.environ | (variables or {})
    # A user's Python keeps its compiled files.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start, before = time.perf_counter(), os.times()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    seconds, after = time.perf_counter() - start, os.times()
    if done.returncode > 1 or "error:" in done.stderr:
        raise SystemExit(f"{shlex.join(command[:6])} failed: {done.stderr}")
    used = after.children_user + after.children_system
    return seconds, used - before.children_user - before.children_system


def _median(times: list[tuple[float, float]]) -> dict[str, Any]:
    seconds, processor = np.median(times, axis=0)
    return {"seconds": float(seconds), "processor_seconds": float(processor)}


def _enlarged(path: Path, name: Path) -> Path:
    """A JPEG file of the photo with a longer side of 1600 pixels."""
    grey = to_grey(read_image(path))
    scale = SIDE / max(grey.shape)
    out = name.with_suffix(".jpg")
    cv2.imwrite(str(out), cv2.resize(grey, None, fx=scale, fy=scale))
    return out


if __name__ == "__main__":
    run_script(main)
