"""The example: an OpenCV program before and after one line is changed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import cv2
import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "opencv_sift.py"


@pytest.mark.slow  # tests/interop/test_opencv.py has the same calls
def test_one_line_makes_more_of_the_same_keypoints(tmp_path: Path) -> None:
    found = {}
    for name, options in {"before": ["--sift"], "after": ["--output", "a.png"]}.items():
        command = [sys.executable, EXAMPLE, *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        found[name] = [int(n) for n in re.findall(r"(\d+)(?!%|\d)", done.stdout)]
    assert found["before"][:2] == found["after"][:2] == [2000, 2000]
    assert found["after"][3] > found["before"][3] > 600  # inliers
    assert cv2.imread(str(tmp_path / "a.png")).shape[1] > 1000
