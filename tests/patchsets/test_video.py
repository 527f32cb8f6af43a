"""Frames of a real (encoded) video."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.errors import HardnetError
from hardnet.patchsets.video import read_frames, write_frames


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve frames; number k is grey 20 k."""
    path = tmp_path_factory.mktemp("video") / "steps.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
    for k in range(12):
        writer.write(np.full((48, 64, 3), 20 * k, np.uint8))
    writer.release()
    return path


def test_the_frames_asked_for_come_with_their_numbers(video: Path) -> None:
    got = {n: float(image.mean()) for n, image in read_frames(video, 2, 10, 4)}
    assert list(got) == [2, 6, 10]
    assert all(abs(grey - 20 * n) < 4 for n, grey in got.items())
    assert len(list(read_frames(video))) == 12


def test_frames_become_pictures_named_by_number(video: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["data", "frames", str(video), "-o", str(tmp_path / "out"), "--step", "5"]
    )
    assert result.exit_code == 0, result.output
    files = sorted((tmp_path / "out").iterdir())
    assert [f.name for f in files] == ["000000.png", "000005.png", "000010.png"]
    assert abs(float(cv2.imread(str(files[1])).mean()) - 100) < 4


def test_what_is_no_video_or_too_short_is_said(video: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.mp4"
    text.write_text("no video")
    with pytest.raises(HardnetError, match=r"text\.mp4 cannot be decoded as a video"):
        list(read_frames(text))
    with pytest.raises(HardnetError, match="no video"):
        list(read_frames(tmp_path / "none.mp4"))
    with pytest.raises(HardnetError, match="at frame 12"):
        list(read_frames(video, 0, 30))
    with pytest.raises(HardnetError, match="not an empty folder"):
        write_frames(video, tmp_path)


def test_a_last_frame_before_the_first_is_said(video: Path) -> None:
    with pytest.raises(HardnetError, match="last frame, 3, is before the first, 5"):
        list(read_frames(video, first=5, last=3))
