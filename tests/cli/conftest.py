"""Commands in this process, and a photograph seen six times, as image sequences on disk."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import cv2
import numpy as np
import pytest

from hardnet.cli.app import main


@dataclass
class Run:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object) -> Run:
    """Run a command in this process, which saves the time of starting another."""
    out, err = StringIO(), StringIO()
    with (
        patch.object(sys, "argv", ["hardnet", *map(str, arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    assert isinstance(end.value.code, int)
    return Run(end.value.code, out.getvalue(), err.getvalue())


@contextmanager
def ctrl_c_when(reached: Callable[[], bool]) -> Iterator[None]:
    """Interrupt the command that runs in this process, once, when it has come that far."""
    over = threading.Event()

    def watch() -> None:
        while not over.is_set() and not reached():
            time.sleep(0.002)
        if not over.is_set():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    # Whoever started the tests in the background may have switched it off.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def command() -> Callable[..., Run]:
    return run


@pytest.fixture(scope="session")
def sequences(tmp_path_factory: pytest.TempPathFactory, camera: np.ndarray) -> Path:
    """Two sequences of five targets: parts of a real photograph, turned further each time."""
    root = tmp_path_factory.mktemp("sequences")
    for name, part in {"left": camera[:, :320], "right": camera[:, -320:]}.items():
        folder = root / name
        folder.mkdir()
        height, width = part.shape
        cv2.imwrite(str(folder / "1.png"), part)
        for k in range(2, 7):
            turn = cv2.getRotationMatrix2D((width / 2, height / 2), 3.0 * k, 1 - 0.02 * k)
            homography = np.vstack([turn, [0, 0, 1]])
            seen = cv2.warpPerspective(part, homography, (width, height))
            cv2.imwrite(str(folder / f"{k}.png"), seen)
            np.savetxt(folder / f"H_1_{k}", homography)
    return root
