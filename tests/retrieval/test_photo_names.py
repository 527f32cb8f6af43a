from __future__ import annotations

import os
from pathlib import Path

import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.photos import name_of, named_photos, path_of, shown


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """photos/{a.jpg,deep/b.png} and an index beside them that has pictures itself."""
    for name in ("photos/a.jpg", "photos/deep/b.png", "index/sheet.png", "other/a.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"-")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_names_are_seen_from_the_index(place: Path) -> None:
    found = named_photos([Path("photos"), Path("other/a.jpg")], Path("index"))
    assert found == {
        "../photos/a.jpg": Path("photos/a.jpg"),
        "../photos/deep/b.png": Path("photos/deep/b.png"),
        "../other/a.jpg": Path("other/a.jpg"),
    }


def test_a_photo_has_one_name_however_it_is_written(place: Path) -> None:
    ways = [Path("photos/a.jpg"), place / "photos/a.jpg", Path("photos/deep/../a.jpg")]
    os.symlink(place / "photos", place / "link")
    ways.append(Path("link/a.jpg"))
    assert len(named_photos(ways, Path("index"))) == 1
    # But a photo that is a link is what the link is called.
    os.symlink(place / "photos/a.jpg", place / "photos/favourite.jpg")
    assert name_of("photos/favourite.jpg", Path("index")) == "../photos/favourite.jpg"


def test_pictures_inside_the_index_are_not_photos(place: Path) -> None:
    assert len(named_photos([place], Path("index"))) == 3


def test_names_lead_back_to_the_photos(place: Path) -> None:
    for photo in ("photos/a.jpg", "photos/deep/b.png"):
        name = name_of(photo, Path("index"))
        assert path_of(name, Path("index")) == str((place / photo).resolve())
        assert shown(path_of(name, Path("index"))) == photo
    assert shown("/elsewhere/c.jpg") == "/elsewhere/c.jpg"
    assert shown("/é/a\nb\x1b[31m.jpg") == "/é/a\\nb\\x1b[31m.jpg"


def test_an_index_moves_with_its_photos(place: Path) -> None:
    name = name_of("photos/a.jpg", Path("index"))
    (place / "project").mkdir()
    for folder in ("photos", "index"):
        (place / folder).rename(place / "project" / folder)
    assert Path(path_of(name, Path("project/index"))).is_file()


def test_a_folder_without_images(place: Path) -> None:
    (place / "empty").mkdir()
    with pytest.raises(HardnetError, match="empty contains no image"):
        named_photos([Path("empty")], Path("index"))


def test_nothing_but_hidden_photos(tmp_path: Path) -> None:
    hidden = tmp_path / "photos" / ".cache" / "a.jpg"
    hidden.parent.mkdir(parents=True)
    hidden.touch()
    words = r"every photo is hidden .*1 photo, such as .*a.jpg.*--hidden"
    with pytest.raises(HardnetError, match=words):
        named_photos([tmp_path / "photos"], tmp_path / "index")
    for given, options in (("photos", {"hidden": True}), ("photos/.cache", {})):
        found = named_photos([tmp_path / given], tmp_path / "index", **options)
        assert found == {"../photos/.cache/a.jpg": tmp_path / "photos" / ".cache" / "a.jpg"}
