"""A work folder knows what is done, and for what; COLMAP's own SIFT in a database."""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.interop.colmap.mapping import (
    WorkFolder,
    extract_sift,
    photo_facts,
)
from hardnet.storage import OwnedFolder


def test_stages_are_remembered(tmp_path: Path) -> None:
    inputs = {"settings": {"params": (1.5, 2.0)}, "photos": []}
    with WorkFolder(tmp_path / "work", inputs) as state:
        assert not state.has("features")
        state.add("features")
    with WorkFolder(tmp_path / "work", inputs) as again:
        assert again.has("features")
        assert not again.has("matches")
    other = WorkFolder(tmp_path / "work", inputs | {"settings": {"params": (1.5, 2.1)}})
    with pytest.raises(HardnetError, match=r"made with settings params="), other:
        pass
    with WorkFolder(tmp_path / "work", inputs) as again:  # the refused one let the folder go
        again.forget("features", "models")
    with WorkFolder(tmp_path / "work", inputs) as again:
        assert not again.has("features")


def test_one_process_at_a_time_and_the_other_one_changes_nothing(tmp_path: Path) -> None:
    with WorkFolder(tmp_path, {}) as state:
        late = WorkFolder(tmp_path, {})
        with pytest.raises(HardnetError, match="another process works in"), late:
            pass
        state.add("features")
    with late:  # knows what was done while it waited
        assert late.has("features")


def test_a_run_killed_before_its_first_word(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with WorkFolder(tmp_path, {}):
        pass
    (tmp_path / "state.json").write_text('{"done": [')
    with pytest.raises(HardnetError, match=r"state\.json is damaged"), WorkFolder(tmp_path, {}):
        pass


def test_a_folder_or_a_file_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("not yours")
    for place in (tmp_path, tmp_path / "letter.txt"):
        with pytest.raises(HardnetError, match="is in the way"), WorkFolder(place, {}):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_photo_that_changes_is_another(tmp_path: Path) -> None:
    photo = tmp_path / "in" / "a.jpg"
    photo.parent.mkdir()
    photo.write_bytes(b"12")
    before = photo_facts(tmp_path, [photo])
    assert before[0][:2] == ["in/a.jpg", 2]
    photo.write_bytes(b"123")
    assert photo_facts(tmp_path, [photo]) != before


pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")


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
    extract_sift(path, images, ["a.png"], 320)
    with pycolmap.Database.open(path) as database:
        assert [camera.width for camera in database.read_all_cameras()] == [320]
        assert database.num_keypoints() > 10
