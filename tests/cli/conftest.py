"""Commands in this process, and a photograph seen six times, as image sequences on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.cli.app import main


@dataclass
class Run:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Run]:
    """Run a command in this process, which saves the time of starting another."""

    def run(*arguments: object) -> Run:
        monkeypatch.setattr(sys, "argv", ["hardnet", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        assert isinstance(end.value.code, int)
        return Run(end.value.code, *capsys.readouterr())

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
