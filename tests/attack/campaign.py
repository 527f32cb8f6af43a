"""Attack the package for some minutes and count what happens.

    python tests/attack/campaign.py --minutes 10 -o results/attack.json

Each trial is a forked process with limits on memory and time, and everything is drawn from one
seed. What a trial may do is read a file, or refuse it in one line (a HardnetError); an index must
be whole after every kill, and hold the photos of before or of after. Anything else is a failure,
with the seed and number that repeat it.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
from PIL import Image

from hardnet import Features, provenance
from hardnet.errors import HardnetError
from hardnet.images import read_image
from hardnet.interop import feature_files
from hardnet.retrieval import vocabulary
from hardnet.retrieval.index import Index
from hardnet.retrieval.store.snapshot import open_snapshot, verify
from hardnet.storage import replacing

MEMORY = 1 << 30
"""Bytes that a trial may take in addition to what this process has."""
SECONDS = 20
"""Of computing, for one trial."""
WAIT = 120
"""Seconds by the clock after which a trial hangs."""
QUICK: dict[str, Any] = {"descriptor": "rootsift", "keypoints": 60, "max_size": 200}
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.link", "os.truncate", "os.rmdir")
"""What a process does to the file system, as Python's audit hooks call it."""

Results = dict[str, Counter[str]]


def picture(seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(0, 255, (160, 200, 3), np.uint8)
    return cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 3), None, 0, 255, cv2.NORM_MINMAX)


def trial(work: Callable[[], str], most_bytes: int = MEMORY) -> str:
    """What a forked process says of its work: one word; or how it ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        code = 0
        try:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + most_bytes, used + most_bytes))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(WAIT)  # a pipe that nobody writes to takes no time of computing
            os.write(writer, work().encode())
        except HardnetError as error:
            os.write(writer, b"refused" if "\n" not in str(error) else b"refused in many lines")
        except MemoryError:
            os.write(writer, b"MEMORY")
        except BaseException as error:
            os.write(writer, f"FOREIGN {type(error).__name__}".encode())
            code = 1
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        said = answer.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGKILL:
        return "killed"
    if status < 0:
        return f"CRASH {signal.Signals(-status).name}"
    return said or "NOTHING"


def seeds_of_files(folder: Path) -> dict[str, tuple[Path, Callable[[Path], object]]]:
    """A good file of each format, and what reads it."""
    found: dict[str, tuple[Path, Callable[[Path], object]]] = {}
    image = Image.fromarray(picture(0))
    kinds = {"jpg": "JPEG", "png": "PNG", "tiff": "TIFF", "webp": "WEBP", "gif": "GIF"}
    kinds |= {"bmp": "BMP", "jp2": "JPEG2000", "ppm": "PPM", "avif": "AVIF"}
    for suffix, kind in kinds.items():
        data = io.BytesIO()
        image.save(data, kind)
        (folder / f"seed.{suffix}").write_bytes(data.getvalue())
        found[suffix] = folder / f"seed.{suffix}", read_image
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(9, 2, 3)).astype(np.float32)
    rows = rng.normal(size=(9, 8)).astype(np.float32)
    features = Features(frames, np.ones(9, np.float32), rows, (40, 30), "mine")
    feature_files.write_npz(folder / "seed.npz", features)
    feature_files.write_hdf5(folder / "seed.h5", "x", features)
    found["npz"] = folder / "seed.npz", feature_files.read_npz
    found["h5"] = folder / "seed.h5", lambda path: feature_files.read_hdf5(path, "x")
    words = vocabulary.Vocabulary(
        rows, np.zeros(8, np.float32), rng.normal(size=(128, 8)).astype(np.float32),
        np.zeros((9, 128), np.float16), "mine",
    )  # fmt: skip
    vocabulary.save(words, folder / "seed.safetensors")
    found["safetensors"] = folder / "seed.safetensors", vocabulary.load
    return found


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A file with some bytes changed, cut, doubled, or set to what often breaks readers."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(out))
        near_start = rng.randrange(min(len(out), 256))
        kind = rng.randrange(6)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[near_start] = rng.randrange(256)
        elif kind == 2:
            width = rng.choice((2, 4, 8))
            value = rng.choice((0, 1, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**62))
            order = rng.choice(("little", "big"))
            out[near_start : near_start + width] = (value % 256**width).to_bytes(width, order)
        elif kind == 3:
            del out[at:]
        elif kind == 4:
            out[at:at] = out[near_start : near_start + rng.randrange(1, 64)]
        else:
            del out[at : at + rng.randrange(1, 64)]
        if not out:
            return b""
    return bytes(out)


def fuzz(folder: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """One mutated file of each format after the other."""
    seeds = seeds_of_files(folder)
    for _ in count():
        for name, (path, read) in seeds.items():
            target = folder / f"fuzzed{path.suffix}"
            target.write_bytes(mutated(path.read_bytes(), rng))

            def work(read: Callable[[Path], object] = read, target: Path = target) -> str:
                read(target)
                return "read"

            yield f"fuzz {name}", trial(work)


def made_index(folder: Path) -> Path:
    """Photos, more photos, and an index of the first ones."""
    for part, seeds in (("photos", range(3)), ("more", range(3, 5))):
        (folder / part).mkdir(parents=True)
        for seed in seeds:
            cv2.imwrite(str(folder / part / f"{seed}.png"), picture(seed))
    Index.build(folder / "index", folder / "photos", words=16, **QUICK)
    return folder


def change(place: Path, rng: random.Random) -> None:
    index = Index(place / "index")
    rng.choice(
        [
            lambda: index.add(place / "more", workers=1),
            lambda: index.remove([place / "photos" / "1.png"]),
            index.compact,
        ]
    )()


def state(place: Path) -> str:
    """Whether an index is whole, as a word."""
    report = verify(place / "index")
    if not report.ok:
        return f"DAMAGED {report.problems[0]}"
    names = {Path(name).name for name in open_snapshot(place / "index").names()}
    allowed = {f"{seed}.png" for seed in range(5)}
    least = {"0.png", "2.png"}  # no change removes these
    return "whole" if least <= names <= allowed else f"LOST {sorted(names)}"


def changed_state(place: Path) -> str:
    """After a second change, which is possible whatever the first one did."""
    Index(place / "index").add(place / "more", workers=1)
    return state(place)


def kills(original: Path, folder: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Kill a change of an index after a random time, and at a random event of the file system."""
    for number in count():
        place = folder / "killed"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(original, place)
        at_event = number % 2
        moment, event = rng.uniform(0, 0.3), rng.randrange(60)
        choice = random.Random(rng.random())

        def work(
            at_event: int = at_event, moment: float = moment, event: int = event,
            choice: random.Random = choice, place: Path = place,
        ) -> str:  # fmt: skip
            left = [event]

            def hook(name: str, arguments: tuple[Any, ...]) -> None:
                if name in EVENTS and str(place) in str(arguments[:1]):
                    left[0] -= 1
                    if left[0] < 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            if at_event:
                sys.addaudithook(hook)
            else:
                signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
                signal.setitimer(signal.ITIMER_REAL, max(moment, 1e-3))
            change(place, choice)
            return "finished"

        ended = trial(work)
        after = trial(partial(state, place))
        again = trial(partial(changed_state, place))
        good = ended in ("killed", "finished") and after == again == "whole"
        kind = "kill at event" if at_event else "kill at time"
        yield kind, f"{ended}, then whole" if good else f"FAILED {ended}, {after}, {again}"


def flips(original: Path, folder: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Change one byte of one file of an index: it is noticed, or the index answers."""
    files = [p for p in (original / "index").rglob("*") if p.is_file() and p.stat().st_size]
    for number in count():
        place = folder / "flipped"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(original, place)
        path = place / files[number % len(files)].relative_to(original)
        data = bytearray(path.read_bytes())
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)

        def use(place: Path = place) -> str:
            Index(place / "index").search(place / "photos" / "0.png")
            return "answers"

        def check(place: Path = place) -> str:
            return "unnoticed" if verify(place / "index").ok else "noticed"

        yield "flip, search", trial(use)
        seen = trial(check)
        listed = path.name.startswith((".", "lock"))  # notes of the work, not of the index
        yield "flip, verify", "noticed" if seen == "refused" else f"{seen}{' note' * listed}"


def full_disk(original: Path, folder: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """The system refuses to write more than some bytes to any file."""
    for _ in count():
        place = folder / "full"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(original, place)
        limit, choice = rng.randrange(1, 20_000), random.Random(rng.random())

        def work(place: Path = place, limit: int = limit, choice: random.Random = choice) -> str:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            change(place, choice)
            return "fitted"

        ended, after = trial(work), trial(partial(state, place))
        good = ended in ("fitted", "refused") and after == "whole"
        yield "full disk", f"{ended}, then whole" if good else f"FAILED {ended}, {after}"


def hostile(folder: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Things that are no files of the right kind, for every reader."""
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_text("some words\n" * 100)
    (folder / "noise").write_bytes(rng.randbytes(5000))
    with h5py.File(folder / "other.h5", "w") as file:
        file["x"] = np.zeros(3)
    things = [*folder.glob("[!s]*"), folder / "absent", Path("/dev/zero"), Path("/dev/null")]
    readers: dict[str, Callable[[Path], object]] = {
        "image": read_image,
        "npz": feature_files.read_npz,
        "features": Features.load,
        "h5": lambda path: feature_files.read_hdf5(path, "x"),
        "vocabulary": vocabulary.load,
        "index": lambda path: Index(path).snapshot,
    }
    for thing in things:
        for name, read in readers.items():

            def work(read: Callable[[Path], object] = read, thing: Path = thing) -> str:
                read(thing)
                return "READ"

            yield f"hostile {name}", trial(work)


def run(seconds: float, seed: int, folder: Path) -> tuple[Results, list[str]]:
    """All attacks in turn, for about this long.

    Returns:
        For each attack, how often which outcome was seen; and the outcomes that must not be.
    """
    cv2.setNumThreads(1)  # threads do not survive a fork
    original = made_index(folder / "original")
    Index(original / "index").search(original / "photos" / "0.png")  # compiled here, once
    rng = random.Random(seed)
    for name in ("fuzz", "kill", "flip", "full", "hostile"):
        (folder / name).mkdir()
    attacks = [
        fuzz(folder / "fuzz", rng),
        kills(original, folder / "kill", rng),
        flips(original, folder / "flip", rng),
        full_disk(original, folder / "full", rng),
        hostile(folder / "hostile", rng),
    ]
    results: Results = {}
    failures = []
    end = time.process_time() + child_seconds() + seconds
    while time.process_time() + child_seconds() < end and attacks:
        for attack in list(attacks):
            found = next(attack, None)
            if found is None:
                attacks.remove(attack)
                continue
            name, outcome = found
            results.setdefault(name, Counter())[outcome] += 1
            if outcome.split(",")[0].split(" ")[0].isupper() or outcome == "unnoticed":
                failures.append(
                    f"{name}: {outcome} (trial {sum(map(Counter.total, results.values()))})"
                )
    return results, failures


def child_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def table(body: dict[str, Any], minutes: float) -> dict[str, Any]:
    """The outcomes as `hardnet bench refresh` shows them."""
    failures = len(body["failures"])
    return {
        "title": "Attacks and their outcomes",
        "columns": ["attack", "outcomes"],
        "rows": [
            [name, ", ".join(f"{outcome} {number}" for outcome, number in found.items())]
            for name, found in body["outcomes"].items()
        ],
        "note": f"{body['trials']:,} trials in {minutes:g} minutes of computing; "
        f"{failures or 'none'} failed.",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="of computing")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results, failures = run(60 * given.minutes, given.seed, Path(folder))
    trials = sum(map(Counter.total, results.values()))
    body = {
        "kind": "attack",
        "trials": trials,
        "failures": failures,
        "outcomes": {name: dict(sorted(found.items())) for name, found in sorted(results.items())},
    }
    settings = {"minutes": given.minutes, "seed": given.seed, "memory": MEMORY, "seconds": SECONDS}
    command = f"python tests/attack/campaign.py --minutes {given.minutes:g} --seed {given.seed}"
    body |= {"tables": [table(body, given.minutes)]}
    body |= {"provenance": provenance.collect(command, settings)}
    if given.output is not None:
        import json

        with replacing(given.output) as part:
            part.write_text(json.dumps(body, indent=1) + "\n")
    for name, found in body["outcomes"].items():
        print(f"{name:20}", ", ".join(f"{outcome} {number}" for outcome, number in found.items()))
    print(f"{trials} trials, {len(failures)} failures", *failures, sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
