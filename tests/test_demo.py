"""The demo with the shipped weights: a real stereo pair, judged by its measured disparity."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import cv2

DEMO = Path(__file__).parents[1] / "examples" / "demo.py"
LINE = re.compile(
    r"(\S+): (\d+) matches, (\d+) inliers; .* known at (\d+) of them and confirms (\d+)"
)


def test_shipped_weights_match_the_pair_and_the_disparity_agrees(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, DEMO], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = {row[0]: [int(n) for n in row[1:]] for row in LINE.findall(done.stdout)}
    _, inliers, known, confirmed = found["hardnet"]
    assert inliers > 800
    assert confirmed > 0.85 * known > 0.7 * inliers
    # A tenth less than RootSIFT would mean broken weights or a wrong window, not bad luck.
    assert confirmed > 0.9 * found["rootsift"][3]
    assert cv2.imread(str(tmp_path / "demo" / "motorcycle.png")).shape[1] > 800
