"""A work folder knows what is done, and for what."""

from __future__ import annotations

from pathlib import Path

import pytest

from hardnet.errors import HardnetError
from hardnet.sfm.work_folder import WorkFolder, photo_facts


def test_stages_are_remembered(tmp_path: Path) -> None:
    inputs = {"settings": {"params": (1.5, 2.0)}, "photos": []}
    state = WorkFolder(tmp_path / "work", inputs)
    assert not state.has("features")
    state.add("features")
    again = WorkFolder(tmp_path / "work", inputs)
    assert again.has("features")
    assert not again.has("matches")
    with pytest.raises(HardnetError, match="other photos or settings"):
        WorkFolder(tmp_path / "work", inputs | {"settings": {"params": (1.5, 2.1)}})


def test_a_folder_or_a_file_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("not yours")
    for place in (tmp_path, tmp_path / "letter.txt"):
        with pytest.raises(HardnetError, match="holds other files"):
            WorkFolder(place, {})


def test_a_photo_that_changes_is_another(tmp_path: Path) -> None:
    photo = tmp_path / "in" / "a.jpg"
    photo.parent.mkdir()
    photo.write_bytes(b"12")
    before = photo_facts(tmp_path, [photo])
    assert before[0][:2] == ["in/a.jpg", 2]
    photo.write_bytes(b"123")
    assert photo_facts(tmp_path, [photo]) != before
