"""COLMAP's own SIFT into a database."""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")

from hardnet.sfm import sift
from hardnet.storage import OwnedFolder


def test_what_a_killed_process_left_does_not_come_back(tmp_path: Path) -> None:
    images, killed, path = tmp_path / "in", tmp_path / "killed.db", tmp_path / "database.db"
    images.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (60, 80), np.uint8)
    cv2.imwrite(str(images / "a.png"), cv2.resize(noise, (320, 240)))
    with pycolmap.Database.open(killed) as database:
        for number in (1, 2, 3):
            camera = pycolmap.Camera.create_from_model_name(number, "PINHOLE", 9.0, 10, 10)
            database.write_camera(camera)
        left = sorted(tmp_path.glob("killed.db*"))  # as they are while it is open
        assert len(left) > 1
        for file in left:
            name = file.name.replace("killed", "database")
            shutil.copy(file, OwnedFolder.mark(tmp_path).claim(name))
    sift.extract(path, images, ["a.png"], 320)
    with pycolmap.Database.open(path) as database:
        assert [camera.width for camera in database.read_all_cameras()] == [320]
        assert database.num_keypoints() > 10
