"""Counts of the benchmark of copies, by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from copies import EDITS, FRAMES
from find_copies import (
    Given,
    GroupSettings,
    Made,
    Method,
    components,
    corner_error,
    edit_row,
    hash_method,
    make_collection,
    method_row,
    scene_rows,
    sweep_rows,
)

from hardnet.images import read_image, write_image

CROP = next(edit for edit in EDITS if edit.name == "crop 50 %")
SIZE = (400, 300)
CUT = np.array([[1.0, 0, -40], [0, 1.0, -30]])


def photo(name: str, exposure: str, scene: str, **more: object) -> Made:
    return Made(Path(name), exposure, scene, SIZE, **more)  # type: ignore[arg-type]


MADE = [
    photo("a", "a", "street"),
    photo("a1", "a", "street", edit=CROP, transform=CUT),
    photo("b", "b", "street"),
    photo("b1", "b", "street", edit=CROP, transform=CUT),
    *(photo(f"o{i}", f"o{i}", "cup", object_of="cups") for i in range(4)),
]


def test_recall_kind_and_map() -> None:
    off = CUT + np.array([[0, 0, 4.0], [0, 0, 0]])
    ours = Method({("a", "a1"): ("crop", off), ("b", "b1"): ("scene", CUT)}, [], [])
    row = edit_row(CROP, MADE, {"hardnet": ours, "phash": Method({}, [], [])})
    assert row["copies"] == 2
    assert row["hardnet"] == 0.5
    assert row["kind_right"] == 0.5
    assert row["phash"] == 0
    assert row["map_error"] == pytest.approx(100 * 4 / 400)
    assert corner_error(CUT, MADE[1], SIZE) == pytest.approx(0)


def test_wrong_groups_and_objects() -> None:
    method = Method(
        {("a", "b"): ("copy", None)},
        copies=[["a", "a1"], ["a", "b"]],
        groups=[["a", "a1"], ["a", "b"], ["o0", "o1", "o2"], ["b", "o3"]],
    )
    row = method_row("ours", method, MADE)
    assert row["false_copies"] == 1
    assert row["false_copies_per_1000"] == 125
    assert row["false_groups"] == 1
    assert row["same_object"] == 3 / 6


def test_views_of_a_scene() -> None:
    method = Method(
        {("a", "a1"): ("crop", None), ("a", "b"): ("burst", None)},
        copies=[["a", "a1"]],
        groups=[["a", "a1"], ["a", "a1", "b"]],
        kinds=["crop", "burst"],
    )
    both = {"photos": 2, "pairs": {"burst": 1}, "together": 1.0, "group": "burst"}
    assert list(scene_rows(method, MADE)) == [{"scene": "street", **both}]
    nothing = {"photos": 2, "pairs": {}, "together": 0.0, "group": "-"}
    assert list(scene_rows(Method({}, [], []), MADE)) == [{"scene": "street", **nothing}]


def test_sweeps_and_false_panoramas() -> None:
    sweeps = [
        photo(f"{name}{at}", f"{name}{at}", name, shared=shared)
        for name, shared in (("s", 60), ("t", 60), ("u", 30))
        for at in range(3)
    ]
    method = Method(
        {},
        copies=[],
        groups=[["s2", "s1", "s0"], ["t0", "t2", "t1"], ["u0", "u1"], ["a", "b"], ["u2", "a"]],
        kinds=["panorama", "panorama", "panorama", "panorama", "scene"],
    )
    assert list(sweep_rows(method, [*MADE, *sweeps])) == [
        {"shared": 60, "sweeps": 2, "found": 1.0, "ordered": 0.5},
        {"shared": 30, "sweeps": 1, "found": 0.0, "ordered": 0.0},
    ]
    row = method_row("ours", method, [*MADE, *sweeps])
    assert row["false_panoramas"] == 1  # of two photos of a street
    assert row["false_groups"] == 1


def test_components() -> None:
    pairs = [("a", "b"), ("c", "d"), ("b", "e")]
    assert sorted(components(pairs)) == [["a", "b", "e"], ["c", "d"]]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> list[Made]:
    root = tmp_path_factory.mktemp("collection")
    (root / "given").mkdir()
    for name in ("coffee.png", "camera.png"):
        write_image(root / "given" / name, read_image(photos / name))
    settings = GroupSettings(sources=1, size=240, pages=1)
    folders, made = [root / "given"], root / "made"
    given = Given(folders, folders, folders, folders)
    out = list(make_collection(given, settings, made, lambda *_: None))
    before = {path: path.stat().st_mtime_ns for path in made.iterdir()}
    list(make_collection(given, settings, made, lambda *_: None))
    assert {path: path.stat().st_mtime_ns for path in made.iterdir()} == before
    return out


def test_the_collection_has_its_copies(collection: list[Made]) -> None:
    assert len(collection) == 2 + len(EDITS) + 2 + 2 + 2 * FRAMES + 2
    assert len({one.path for one in collection}) == len(collection)
    assert sum(one.object_of is not None for one in collection) == 2


def test_hashes_find_recompression_and_no_crop(collection: list[Made]) -> None:
    pytest.importorskip("imagehash")
    method = hash_method(collection, "phash", 8, lambda *_: None)
    by_name = {edit.name: edit for edit in EDITS}
    assert edit_row(by_name["JPEG 10"], collection, {"phash": method})["phash"] == 1
    assert edit_row(by_name["crop 25 %"], collection, {"phash": method})["phash"] == 0
