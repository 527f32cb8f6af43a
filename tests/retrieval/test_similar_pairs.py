from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.comparing import similar_pairs, write_pairs
from hardnet.retrieval.index import Index

NAMES = ("camera.png", "motorcycle_left.png", "coins.png", "motorcycle_right.png", "coffee.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    root = tmp_path_factory.mktemp("similar")
    (root / "photos").mkdir()
    for name in NAMES:
        shutil.copy(photos / name, root / "photos")
    Index.build(
        root / "index", root / "photos", words=64, descriptor="rootsift", keypoints=200,
        max_size=400,
    )  # fmt: skip
    return root


def test_two_photos_of_one_thing_are_a_pair(place: Path) -> None:
    from hardnet.interop.colmap.reconstruction import read_pairs

    photos = {f"set/{name}": place / "photos" / name for name in NAMES}
    pairs, unknown = similar_pairs(place / "index", photos, similar=1)
    assert unknown == []
    assert ("set/motorcycle_left.png", "set/motorcycle_right.png") in pairs
    assert 3 <= len(pairs) <= len(NAMES)
    assert all(a < b for a, b in pairs)
    assert sorted(set(pairs)) == pairs
    all_of_them, _ = similar_pairs(place / "index", photos, similar=100)
    assert len(all_of_them) == 10
    write_pairs(place / "pairs.txt", pairs)
    assert read_pairs(place / "pairs.txt", list(photos)) == pairs


def test_photos_that_are_not_asked_for_are_no_partners(place: Path) -> None:
    photos = {name: place / "photos" / name for name in ("camera.png", "motorcycle_left.png")}
    pairs, _ = similar_pairs(place / "index", photos)
    assert pairs == [("camera.png", "motorcycle_left.png")]


def test_photos_that_are_not_indexed(place: Path) -> None:
    photos = {name: place / "photos" / name for name in (*NAMES[:2], "new.png")}
    pairs, unknown = similar_pairs(place / "index", photos)
    assert (len(pairs), unknown) == (1, ["new.png"])
    del photos[NAMES[0]]
    with pytest.raises(HardnetError, match=r"has 1 of 2 photos: .*hardnet index add"):
        similar_pairs(place / "index", photos)
