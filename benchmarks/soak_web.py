"""Many clients use `hardnet serve` for a while: no server errors, and memory that does not grow.

Example: python benchmarks/soak_web.py --minutes 10
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import cv2
import httpx
import numpy as np
import typer
from measuring import SKIMAGE, Output, finish, memory_mb, run_script

from hardnet.errors import HardnetError
from hardnet.images import read_image, shrink, write_image
from hardnet.retrieval.index import Index

PHOTOS = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png",
    "motorcycle_left.png", "motorcycle_right.png", "page.png", "rocket.jpg",
)  # fmt: skip
EVERY = 2.0
"""Seconds between two measurements of the server's memory."""
SETTLED = 0.25
"""Share of the run until caches and threads have settled: memory is compared after it."""

Request = Callable[["Visitor"], httpx.Response]
"""The requests that a client may send."""


def main(
    clients: Annotated[int, typer.Option(min=1, help="At a time.")] = 20,
    minutes: Annotated[float, typer.Option(min=0.1, help="How long.")] = 10,
    output: Output = Path("results/serve_soak.json"),
) -> None:
    """Status codes, times and memory of a server in use; writes a JSON file."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        uploads = _collection(root)
        with _serving(root / "index") as (url, process):
            log, memory = _use(url, process, clients, 60 * minutes, uploads)
    settled = [m for m in memory if m["seconds"] > SETTLED * 60 * minutes] or memory
    half = len(settled) // 2
    early, late = (
        float(np.mean([m["megabytes"] for m in part]))
        for part in (settled[:half] or settled, settled[half:])
    )
    statuses = Counter(str(status) for _, status, _ in log)
    found = {
        "requests": len(log),
        "statuses": dict(sorted(statuses.items())),
        "server_errors": sum(status >= 500 for _, status, _ in log),
        "by_request": {kind: _times(log, kind) for kind in REQUESTS},
        "memory": {
            "first_megabytes": memory[0]["megabytes"],
            "early_megabytes": round(early, 1),
            "late_megabytes": round(late, 1),
            "most_megabytes": max(m["megabytes"] for m in memory),
            "course": memory,
        },
    }
    arguments = ["--clients", f"{clients}", "--minutes", f"{minutes:g}"]
    finish("serve_soak", found, [], output, arguments, photos=len(PHOTOS))
    print(f"{len(log)} requests: {dict(statuses)}; memory {early:.0f} MB, later {late:.0f} MB")


def _collection(root: Path) -> list[bytes]:
    """Make photos and their index; returns photos as uploads."""
    (root / "photos").mkdir()
    for name in PHOTOS:
        photo = read_image(SKIMAGE / name)
        write_image(root / "photos" / f"{Path(name).stem}.jpg", shrink(photo, 400)[0])
    Index.build(
        root / "index", root / "photos", words=256, descriptor="rootsift", keypoints=300,
        max_size=400,
    )  # fmt: skip
    return [path.read_bytes() for path in sorted((root / "photos").iterdir())]


@contextmanager
def _serving(index: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-u", "-m", "hardnet", "serve", str(index), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            found = re.search(r"http://\S+?(?=/\s)", first)
            if found is None:
                raise HardnetError(f"the server did not start: {first}")
            yield found[0], process
        finally:
            process.terminate()


@dataclass(frozen=True)
class Visitor:
    """One client, its random generator, the photos of the index and those it may upload."""

    client: httpx.Client
    rng: np.random.Generator
    photos: list[dict[str, Any]]
    uploads: list[bytes]

    def match(self) -> httpx.Response:
        """Match two photos."""
        a, b = self.rng.choice(len(self.uploads), 2)
        both = {"a": ("a.jpg", self.uploads[a]), "b": ("b.jpg", self.uploads[b])}
        how = {"keypoints": "200", "max_size": "300", "descriptor": "rootsift"}
        return self.client.post("/match", files=both, data=how)

    def search(self) -> httpx.Response:
        """Search for a part of a photo of the index."""
        asked = {"photo": self._photo(), "box": "50,50,200,150"}
        return self.client.post("/search", data=asked)

    def thumbnail(self) -> httpx.Response:
        """A small picture."""
        return self.client.get(f"/photos/{self._photo()}/thumbnail")

    def listing(self) -> httpx.Response:
        """Names of photos."""
        return self.client.get("/photos", params={"limit": 5})

    def broken(self) -> httpx.Response:
        """Half a photo."""
        half = self.uploads[int(self.rng.integers(len(self.uploads)))][:3000]
        return self.client.post("/extract", files={"file": ("half.jpg", half)})

    def _photo(self) -> str:
        return str(self.photos[int(self.rng.integers(len(self.photos)))]["id"])


REQUESTS: dict[str, Request] = {
    "match": Visitor.match,
    "search": Visitor.search,
    "thumbnail": Visitor.thumbnail,
    "list": Visitor.listing,
    "broken photo": Visitor.broken,
}


def _use(
    url: str, process: subprocess.Popen[str], clients: int, seconds: float, uploads: list[bytes]
) -> tuple[list[tuple[str, int, float]], list[dict[str, float]]]:
    """(request, status, seconds) of all requests, and the memory over time."""
    log: list[tuple[str, int, float]] = []
    start = time.monotonic()

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with httpx.Client(base_url=url, timeout=300) as client:
            visitor = Visitor(client, rng, client.get("/photos").json()["photos"], uploads)
            while time.monotonic() - start < seconds:
                kind = list(REQUESTS)[int(rng.integers(len(REQUESTS)))]
                begun = time.monotonic()
                answer = REQUESTS[kind](visitor)
                log.append((kind, answer.status_code, time.monotonic() - begun))
                if answer.status_code == 429:
                    time.sleep(float(answer.headers["retry-after"]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    memory = []
    while any(thread.is_alive() for thread in threads):
        now = round(memory_mb("VmRSS", process.pid), 1)
        memory.append({"seconds": round(time.monotonic() - start, 1), "megabytes": now})
        time.sleep(EVERY)
    return log, memory


def _times(log: list[tuple[str, int, float]], kind: str) -> dict[str, float]:
    times = [1000 * seconds for name, status, seconds in log if name == kind and status != 429]
    if not times:
        return {"requests": 0}
    return {
        "requests": len(times),
        "median_ms": round(float(np.median(times)), 1),
        "slowest_ms": round(max(times), 1),
    }


if __name__ == "__main__":
    cv2.setNumThreads(1)
    run_script(main)
