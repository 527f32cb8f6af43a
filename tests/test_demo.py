"""The demo with the shipped weights: a real stereo pair, judged by its measured disparity."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import cv2
import pytest

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"
LINE = re.compile(
    r"(\S+): (\d+) matches, (\d+) inliers; .* known at (\d+) of them and confirms (\d+)"
)


def test_shipped_weights_match_the_pair_and_the_disparity_agrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(DEMO), "--keypoints", "1024"])
    runpy.run_path(str(DEMO), run_name="__main__")
    found = {row[0]: [int(n) for n in row[1:]] for row in LINE.findall(capsys.readouterr().out)}
    _, inliers, known, confirmed = found["hardnet-small"]
    assert inliers > 200
    assert confirmed > 0.85 * known > 0.7 * inliers
    # A tenth less than RootSIFT would mean broken weights or a wrong window, not bad luck.
    assert confirmed > 0.9 * found["rootsift"][3]
    assert cv2.imread(str(tmp_path / "demo" / "motorcycle.png")).shape[1] > 800
