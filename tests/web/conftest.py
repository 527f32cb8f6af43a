"""A collection of small photographs, and servers of it that really listen."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the extra [web] is not installed")

import httpx

from hardnet.images import read_image, shrink, write_image
from hardnet.retrieval.index import Index
from hardnet.web.app import listen, make_app, server
from hardnet.web.state import Settings, State

NAMES = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png",
    "motorcycle_left.png", "motorcycle_right.png", "page.png", "rocket.jpg",
)  # fmt: skip
QUICK = {"descriptor": "rootsift", "keypoints": 250, "max_size": 400}


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """A folder with photos, some of them copies of others, their index, and photos to add."""
    root = tmp_path_factory.mktemp("served")
    (root / "photos").mkdir()
    (root / "new").mkdir()
    for name in NAMES:
        write_image(root / "photos" / name, shrink(read_image(photos / name), 400)[0])
    coffee = read_image(root / "photos" / "coffee.png")
    height, width = coffee.shape[:2]
    crop = coffee[height // 6 : -height // 6, width // 6 : -width // 6]
    write_image(root / "photos" / "coffee_crop.png", crop)
    turn = cv2.getRotationMatrix2D((width / 2, height / 2), 30, 0.8)
    write_image(
        root / "photos" / "coffee_turned.png", cv2.warpAffine(coffee, turn, (width, height))
    )
    write_image(root / "new" / "clock.png", read_image(photos / "clock_motion.png"))
    (root / "new" / "words.png").write_text("no picture")
    Index.build(root / "index", root / "photos", words=256, **QUICK)
    return root


@dataclass
class Running:
    """A server: its address, a client of it, and what it is made of."""

    url: str
    client: httpx.Client
    state: State
    root: Path

    def photo(self, name: str) -> dict[str, object]:
        """A photo of the collection by the end of its path."""
        [found] = self.client.get("/photos", params={"text": name}).json()["photos"]
        return found


@contextmanager
def serving(settings: Settings, root: Path) -> Iterator[Running]:
    """A server on a free port, in a thread."""
    app = make_app(settings)
    listener = listen("127.0.0.1", 0)
    running = server(app)
    thread = threading.Thread(target=running.run, args=([listener],))
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        while not running.started:
            time.sleep(0.02)
        with httpx.Client(base_url=url, timeout=120) as client:
            yield Running(url, client, app.app.state.shared, root)
    finally:
        running.should_exit = True
        thread.join(30)


@pytest.fixture(scope="session")
def site(made: Path) -> Iterator[Running]:
    """For tests that change nothing."""
    results = Path(__file__).parents[2] / "results"
    settings = Settings(index=made / "index", roots=[made / "new"], results=results, workers=2)
    with serving(settings, made) as running:
        yield running


@pytest.fixture
def own_site(made: Path, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """A server of a copy of the collection, with any settings, for tests that change something."""
    root = tmp_path / "own"
    shutil.copytree(made, root)
    settings = Settings(index=root / "index", roots=[root / "new"], workers=1)
    open_ones = []

    def start(**changes: object) -> Running:
        context = serving(replace(settings, **changes), root)
        open_ones.append(context)
        return context.__enter__()

    yield start
    for context in open_ones:
        context.__exit__(None, None, None)


@pytest.fixture(scope="session")
def files(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Photos that are in no index: a stereo pair, a turned one, a broken one."""
    root = tmp_path_factory.mktemp("uploads")
    found = {}
    for side in ("left", "right"):
        found[side] = root / f"{side}.jpg"
        write_image(found[side], read_image(photos / f"motorcycle_{side}.png"))
    turned = np.rot90(read_image(photos / "coffee.png"))
    found["turned"] = root / "turned.jpg"
    write_image(found["turned"], np.ascontiguousarray(turned))
    found["broken"] = root / "broken.jpg"
    found["broken"].write_bytes(found["left"].read_bytes()[:5000])
    return found
