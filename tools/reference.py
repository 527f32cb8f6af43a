"""Record the results of the commands, and compare them after a change of the code.

Refactoring must not change a single number. This script runs every command on small real data,
records what it printed or wrote, and later reports which results differ:

    python tools/reference.py record reference.json --data ../shared/data
    python tools/reference.py check reference.json --data ../shared/data --only match,train

Times, machine facts, versions and paths are left out; everything else must be equal to the last
digit. A check is valid only with the weights of the record.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

VOLATILE = frozenset(
    {"seconds", "provenance", "origin", "machine", "versions", "command", "milliseconds", "ms"}
    | {"total_seconds", "created", "date", "revision", "store", "output", "index", "bytes", "work"}
)
DETECTORS = ("dog", "hessian", "hessian-affine", "mser")
MODES = ("bow", "bow+sv", "bow+qe", "he", "he+sv", "hqe", "hqe+sv")
STEPS = 20


class Recorder:
    """Runs commands in a scratch folder and returns their results without what may vary."""

    def __init__(self, data: Path, scratch: Path) -> None:
        self.data, self.scratch = data, scratch

    def run(self, *words: str | Path) -> Any:
        """The JSON that a command printed, if any."""
        call = [sys.executable, "-m", "hardnet.cli.app", *map(str, words)]
        # One thread: summing in another order changes the last digits.
        limits = {"OMP_NUM_THREADS": "1", "HARDNET_THREADS": "1", "COLUMNS": "200"}
        done = subprocess.run(
            call, cwd=self.scratch, env=os.environ | limits, capture_output=True, text=True
        )
        # Exit code 1 with output is a result, too: nothing was verified.
        if done.returncode > 1 or (done.returncode and not done.stdout.strip()):
            raise SystemExit(f"{' '.join(call)} ended with {done.returncode}:\n{done.stderr}")
        try:
            return self.plain(json.loads(done.stdout))
        except json.JSONDecodeError:
            return None

    def plain(self, value: Any) -> Any:
        """Without times, machine facts and paths."""
        if isinstance(value, dict):
            return {k: self.plain(v) for k, v in value.items() if k not in VOLATILE}
        if isinstance(value, list):
            return [self.plain(v) for v in value]
        if isinstance(value, str):
            return value.replace(str(self.scratch), "SCRATCH").replace(str(self.data), "DATA")
        return value

    def bench(self, *words: str | Path) -> Any:
        """A benchmark without anything cached by an earlier one."""
        return self.run("bench", *words, "--json")

    def photos(self, *patterns: str) -> list[Path]:
        """Photos of the data folder by pattern, in order."""
        found = [path for pattern in patterns for path in sorted(self.data.glob(pattern))]
        if not found:
            raise SystemExit(
                f"{self.data}: no photo matches {patterns}; give the folder with --data"
            )
        return found


def match(on: Recorder) -> Iterator[tuple[str, Any]]:
    """The demo's pair and three others, with every detector."""
    from importlib.resources import files

    demo = files("skimage") / "data" / "motorcycle_left.png"
    pairs = {
        "motorcycle": (str(demo), str(demo).replace("left", "right")),
        "graf": tuple(map(str, on.photos("oxford-affine/graf/*[13].png"))),
        "leaves": tuple(map(str, on.photos("oxford-affine/trees/*[14].png"))),
        "evd": (str(on.photos("evd/1/*")[0]), str(on.photos("evd/2/*")[0])),
    }
    for name, pair in pairs.items():
        for detector in DETECTORS:
            yield f"{name} {detector}", on.run("match", *pair, "--detector", detector, "--json")
    yield "graf mods", on.run("match", *pairs["graf"], "--strategy", "mods", "--guided", "--json")


def features(on: Recorder) -> Iterator[tuple[str, Any]]:
    """The features of one photo, as arrays."""
    import h5py

    photo = on.photos("multiview/chair/*.jpg")[0]
    for descriptor in ("hardnet", "rootsift", "hardtfeat"):
        out = on.scratch / f"{descriptor}.h5"
        on.run("extract", photo, "-o", out, "--descriptor", descriptor, "--keypoints", "500")
        with h5py.File(out) as file:
            found: dict[str, str] = {}
            file.visititems(
                lambda name, item, found=found: (
                    found.update({name: _digest(item[()].tobytes())})
                    if isinstance(item, h5py.Dataset)
                    else None
                )
            )
        yield descriptor, found


def index(on: Recorder) -> Iterator[tuple[str, Any]]:
    """Forty photos, ten queries, every mode."""
    photos = on.photos("ukbench/*.jpg", "ukbench/*/*.jpg")[:40]
    folder = on.scratch / "photos.index"
    on.run("index", "build", folder, *photos, "--words", "512", "--keypoints", "300")
    yield "info", on.run("index", "info", folder, "--json")
    for mode in MODES:
        answers = [
            on.run("search", folder, photo, "--mode", mode, "--json") for photo in photos[::4]
        ]
        yield mode, answers


def train(on: Recorder) -> Iterator[tuple[str, Any]]:
    """Losses of 20 steps of every sampling and loss, float64, on a small real set."""
    import torch

    from hardnet.learn.losses import Objective
    from hardnet.nets.hardnet import HardNet

    torch.set_num_threads(1)
    samplings = ("hardest", "random", "classical")
    losses = (("triplet", 1.0), ("softmin", 1.0), ("contrastive", 1.0), ("contrastive", 2.0))
    cells = [(s, *loss, r) for s in samplings for loss in losses for r in ("none", "cpr")]
    for cell in [*cells, ("all", "l2net", 1.0, "none")]:
        sampling, loss, margin, regularizer = cell
        objective = Objective(
            sampling=sampling,
            loss=loss,
            margin=margin,
            regularizer=regularizer,
            anchor_swap=True,
            same_patch=0.008,
        )
        torch.manual_seed(0)
        net = HardNet().double().train()
        optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, dampening=0.9)
        draw = torch.Generator().manual_seed(1)
        values = []
        for _ in range(STEPS):
            base = torch.rand(16, 1, 32, 32, generator=draw, dtype=torch.float64)
            noise = torch.rand(2, 16, 1, 32, 32, generator=draw, dtype=torch.float64)
            anchors, positives = net(base), net(base + 0.3 * noise[0])
            mined = net(noise[1]) if objective.streams == 3 else None
            terms = objective(anchors, positives, mined, draw)
            optimiser.zero_grad()
            terms.loss.backward()
            optimiser.step()
            values.append(terms.loss.item())
        yield " ".join(map(str, cell)), values


def patches(on: Recorder) -> Iterator[tuple[str, Any]]:
    """Patch sets byte by byte, and the patch benchmarks on them."""
    lund = on.data / "sfm" / "lund-door"
    model = lund / "colmap_ground_truth"
    few = on.scratch / "few-photos"
    few.mkdir(exist_ok=True)
    for photo in on.photos("multiview/chair/*.jpg")[:4]:
        (few / photo.name).write_bytes(photo.read_bytes())
    graf = on.data / "oxford-affine"
    build = ("data", "build")
    sets = {
        "photos": (few, "--points", "60", "--pairs", "500", "--workers", "1"),
        "colmap": (model, "--images", lund / "images", "--points", "200", "--pairs", "500"),
        "sequences": (graf, "--limit", "40", "--workers", "1"),
    }
    for kind, words in sets.items():
        on.run(*build, kind, *words, "-o", on.scratch / kind)
        yield kind, _tree(on.scratch / kind)
    changes = on.scratch / "changes"
    on.run(*build, "sequences", graf, "--layout", "w1bs", "--limit", "40", "-o", changes)
    yield "changes", _tree(changes)
    some = ("--descriptors", "hardnet,rootsift,pixels", "--store", on.scratch / "store")
    yield "brown", on.bench("brown", on.scratch / "colmap", *some)
    yield "hpatches", on.bench("hpatches", on.scratch / "sequences", "--pairs", "2000", *some)
    yield "w1bs", on.bench("w1bs", changes, *some)


def pairs(on: Recorder) -> Iterator[tuple[str, Any]]:
    """The benchmarks of image pairs and of retrieval."""
    oxford = on.data / "oxford-affine"
    yield "pairs", on.bench("pairs", oxford, "--sequences", "graf", "--keypoints", "500")
    wxbs = (f"WxBS={on.data / 'wxbs'}", f"EVD={on.data / 'evd'}")
    store = ("--store", on.scratch / "store")
    yield "stereo", on.bench("stereo", *wxbs, "--keypoints", "500", *store)
    chair = on.data / "multiview" / "chair"
    small = ("--objects", "0-9", "--words", "512", "--keypoints", "200", "--no-asmk")
    some = ("--descriptors", "hardnet,rootsift,hardtfeat")
    modes = ("--modes", ",".join(MODES), "--vocabulary-images", chair)
    yield "retrieval", on.bench("retrieval", on.data / "ukbench", *some, *small, *modes, *store)


def colmap(on: Recorder) -> Iterator[tuple[str, Any]]:
    """The rows of a COLMAP database."""
    photos = on.data / "multiview" / "berlin-street"
    work = on.scratch / "berlin"
    on.run("colmap", photos, "-o", work, "--keypoints", "800", "--no-mapping", "--workers", "1")
    with sqlite3.connect(next(work.rglob("*.db"))) as database:
        for table in ("cameras", "images", "keypoints", "matches", "two_view_geometries"):
            rows = database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
            yield table, _digest(repr(rows).encode())


def _tree(folder: Path) -> dict[str, str]:
    # Skip the JSON next to the patches, which has versions and the command.
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = [path for path in files if path.suffix not in (".json", ".safetensors")]
    return {str(path.relative_to(folder)): _digest(path.read_bytes()) for path in kept}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


PARTS: dict[str, Callable[[Recorder], Iterator[tuple[str, Any]]]] = {
    part.__name__: part for part in (match, features, index, train, patches, pairs, colmap)
}


def main() -> None:
    """Record or check."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("record", "check"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    options = parser.parse_args()
    known = json.loads(options.file.read_text()) if options.file.exists() else {}
    differing = 0
    for part in options.only.split(","):
        with tempfile.TemporaryDirectory() as scratch:
            on = Recorder(options.data.resolve(), Path(scratch))
            for name, answer in PARTS[part](on):
                # Through JSON, so that tuples become lists as in the file.
                answer, key = json.loads(json.dumps(answer)), f"{part}: {name}"
                if options.action == "record":
                    known[key] = answer
                    print(f"recorded  {key}", flush=True)
                else:
                    same = key in known and known[key] == answer
                    differing += not same
                    print(f"{'equal    ' if same else 'DIFFERENT'} {key}", flush=True)
                    if not same:
                        where = _first_difference(known.get(key), answer)
                        print(f"    {where}", flush=True)
    if options.action == "record":
        options.file.write_text(json.dumps(known, indent=1, sort_keys=True))
    sys.exit(1 if differing else 0)


def _first_difference(before: Any, after: Any, path: str = "") -> str:
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            if before.get(key) != after.get(key):
                return _first_difference(before.get(key), after.get(key), f"{path}/{key}")
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for k, (x, y) in enumerate(zip(before, after, strict=True)):
            if x != y:
                return _first_difference(x, y, f"{path}/{k}")
    return f"{path or '/'}: {str(before)[:200]} -> {str(after)[:200]}"


if __name__ == "__main__":
    main()
