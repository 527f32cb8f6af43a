"""An index of real photographs: built, searched, changed."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

import hardnet
from hardnet.descriptors import WEIGHTS
from hardnet.errors import HardnetError
from hardnet.images import read_image, write_image
from hardnet.retrieval.index import Index
from hardnet.retrieval.photos import stored_settings
from hardnet.retrieval.search import MODES
from hardnet.retrieval.store.snapshot import read_manifest, write_manifest

NAMES = (
    "astronaut.png", "brick.png", "camera.png", "chelsea.png", "coffee.png", "coins.png",
    "motorcycle_left.png", "motorcycle_right.png", "page.png", "rocket.jpg",
)  # fmt: skip
QUICK = {"descriptor": "rootsift", "keypoints": 250, "max_size": 400}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """A folder with photos and their index."""
    root = tmp_path_factory.mktemp("collection")
    (root / "photos").mkdir()
    for name in NAMES:
        shutil.copy(photos / name, root / "photos")
    Index.build(root / "index", root / "photos", words=256, **QUICK)
    return root


@pytest.fixture(scope="module")
def index(made: Path) -> Index:
    """For tests that only search."""
    return Index(made / "index")


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """For tests that change something: a copy, which an index survives."""
    shutil.copytree(made, tmp_path / "own")
    return tmp_path / "own"


def names(results) -> list[str]:
    return [Path(hit.path).name for hit in results]


def test_a_turned_crop_finds_its_photo(index: Index, made: Path) -> None:
    photo = read_image(made / "photos" / "astronaut.png")
    turn = cv2.getRotationMatrix2D((256, 200), 25, 1.2)
    crop = cv2.warpAffine(photo, turn, (512, 512))[60:360, 100:420]
    results = index.search(crop, k=3)
    assert names(results)[0] == "astronaut.png"
    hit = results[0]
    assert hit.path == str((made / "photos" / "astronaut.png").resolve())
    assert hit.inliers > 20
    # From the crop back into the photo.
    expected = np.linalg.inv(np.vstack([turn, [0, 0, 1]]))[:2]
    expected[:, 2] += expected[:, :2] @ [100, 60]
    corners = np.array([(-0.5, -0.5), (319.5, -0.5), (319.5, 299.5), (-0.5, 299.5)])
    np.testing.assert_allclose(hit.region, corners @ expected[:, :2].T + expected[:, 2], atol=4)
    np.testing.assert_allclose(hit.transform[:, :2], expected[:, :2], atol=0.02)
    assert all(other.inliers < hit.inliers / 2 for other in results[1:])
    stages = list(results.seconds)
    assert stages[:4] == ["load", "read", "detect", "cut"]
    assert stages[-3:] == ["score", "verify", "rank"]


def test_the_photo_itself_and_its_near_duplicate(index: Index, made: Path) -> None:
    results = index.search(made / "photos" / "motorcycle_left.png")
    assert names(results)[:2] == ["motorcycle_left.png", "motorcycle_right.png"]
    assert results[0].inliers > 200
    np.testing.assert_allclose(results[0].transform, np.eye(2, 3), atol=0.3)
    assert results[0].score == max(hit.score for hit in results)
    assert results[1].inliers > 15


def test_every_mode(index: Index, made: Path) -> None:
    crop = index.extract(read_image(made / "photos" / "coffee.png")[50:350, 150:500])
    for name, mode in MODES.items():
        results = index.search(crop, k=20, mode=name)
        assert names(results)[0] == "coffee.png", name
        assert len(results) <= len(NAMES), name
        assert (results[0].transform is not None) == (mode.verification is not None), name
        assert all(seconds >= 0 for seconds in results.seconds.values()), name


def test_a_box(index: Index, made: Path) -> None:
    photo = index.extract(made / "photos" / "chelsea.png")
    box = (110.0, 60.0, 160.0, 140.0)
    whole, part = index.search(photo), index.search(photo, box=box)
    assert names(part)[0] == "chelsea.png"
    xy = photo.xy
    inside = (xy > (110, 60)).all(1) & (xy < (270, 200)).all(1)
    assert part.query[0].features == inside.sum() < whole.query[0].features == len(xy)
    assert part.query[0].box == box
    corners = [(110, 60), (270, 60), (270, 200), (110, 200)]
    np.testing.assert_allclose(part[0].region, corners, atol=2)


def test_boxes_that_make_no_sense(index: Index, made: Path) -> None:
    photo = index.extract(made / "photos" / "chelsea.png")  # 451 x 300
    for box in ((451, 0, 10, 10), (0, 300, 10, 10), (-50, 10, 50, 10), (5, -9, 5, 9)):
        with pytest.raises(HardnetError, match="outside the query, which is 451x300 pixels"):
            index.search(photo, box=box)
    for box in ((10, 10, 0, 50), (10, 10, 50, -1), (10, 10, np.nan, 5)):
        with pytest.raises(HardnetError, match="x,y,width,height"):
            index.search(photo, box=box)
    # One that only sticks out is what of it is inside.
    assert names(index.search(photo, box=(-100, -100, 1000, 1000)))[0] == "chelsea.png"


def test_several_views_of_one_object(index: Index, made: Path) -> None:
    photo = read_image(made / "photos" / "coffee.png")
    left, right = index.extract(photo[:, :330]), index.extract(photo[:, 270:])
    results = index.search([left, right])
    assert names(results)[0] == "coffee.png"
    assert [view.features for view in results.query] == [len(left), len(right)]
    assert results[0].transform[0, 2] == pytest.approx((0, 270)[results[0].view], abs=4)
    only = index.search([left, right], box=[None, (100, 100, 150, 150)])
    assert only.query[0].features == results.query[0].features
    assert 0 < only.query[1].features < results.query[1].features
    with pytest.raises(HardnetError, match="1 box for 2 query images"):
        index.search([left, right], box=(0, 0, 50, 50))


def test_paths_arrays_and_features_are_all_the_same(index: Index, made: Path) -> None:
    photo = made / "photos" / "rocket.jpg"
    ways = [photo, str(photo), read_image(photo), index.extract(photo)]
    found = [[(hit.image, hit.score, hit.inliers) for hit in index.search(way)] for way in ways]
    assert found[0]
    assert found == [found[0]] * 4
    other = hardnet.extract(photo, descriptor="sift", keypoints=50, max_size=200)
    with pytest.raises(HardnetError, match="described by sift and the index by rootsift"):
        index.search(other)


def test_nothing_to_search_with(index: Index, made: Path) -> None:
    flat = np.full((100, 150), 90, np.uint8)
    results = index.search(flat)
    assert list(results) == []
    assert results.query[0].features == 0
    sky = index.search(made / "photos" / "rocket.jpg", box=(5, 5, 3, 3))
    assert list(sky) == []
    with pytest.raises(HardnetError, match="k is 0"):
        index.search(flat, k=0)


def test_more_hits_than_photos(index: Index, made: Path) -> None:
    results = index.search(made / "photos" / "camera.png", k=10_000)
    assert names(results)[0] == "camera.png"
    assert len(results) == len(set(names(results))) <= len(NAMES)


def test_a_query_of_more_features_than_the_index_has_words(index: Index, made: Path) -> None:
    photo = made / "photos" / "astronaut.png"
    features = hardnet.extract(photo, descriptor="rootsift", keypoints=700, max_size=None)
    assert len(features) > 2 * 256
    assert names(index.search([features, features]))[0] == "astronaut.png"


def test_a_build_without_a_usable_photo_says_why(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(5):
        (tmp_path / f"photos/{number}.jpg").touch()
    with pytest.raises(HardnetError, match=r"0\.jpg.*; .*1\.jpg.*; .*2\.jpg.*; and 2 photos more"):
        Index.build(tmp_path / "index", tmp_path / "photos", **QUICK)
    with pytest.raises(HardnetError, match=r"skipped: .*nowhere does not exist"):
        Index.build(tmp_path / "index", tmp_path / "nowhere", **QUICK)
    with pytest.raises(HardnetError, match="there are no photos"):
        Index.build(tmp_path / "index", [], **QUICK)
    latin = tmp_path / os.fsdecode(b"latin1 \xfc.png")
    with pytest.raises(
        HardnetError, match=rf"^{tmp_path}/latin1 \\udcfc.png is not a name in UTF-8"
    ):
        Index.build(tmp_path / "index", latin, **QUICK)
    assert not (tmp_path / "index").exists()


def test_a_build_that_was_refused_does_not_choose_the_settings(made: Path, tmp_path: Path) -> None:
    words, photo = Index(made / "index").snapshot.vocabulary, made / "photos" / "coins.png"
    with pytest.raises(HardnetError, match="the vocabulary has words of rootsift"):
        Index.build(tmp_path / "index", photo, vocabulary=words, descriptor="sift")
    flat = tmp_path / "flat.png"
    write_image(flat, np.full((100, 150), 90, np.uint8))
    with pytest.raises(HardnetError, match="no photo has a keypoint"):
        Index.build(tmp_path / "index", flat, descriptor="sift", keypoints=99)
    mine = str(shutil.copy(WEIGHTS / "hardnet-small-int8.onnx", tmp_path / "mine.onnx"))
    with pytest.raises(HardnetError, match="no photo has a keypoint"):
        Index.build(tmp_path / "index", flat, descriptor=mine)
    assert (tmp_path / "index" / "weights").is_dir(), "a copy of mine.onnx"
    assert len(Index.build(tmp_path / "index", photo, vocabulary=words, **QUICK)) == 1


def test_a_folder_of_somebody_elses_weights_is_not_taken(made: Path, tmp_path: Path) -> None:
    (tmp_path / "index" / "weights").mkdir(parents=True)
    (tmp_path / "index" / "weights" / "thesis.onnx").write_bytes(b"mine")
    with pytest.raises(HardnetError, match=r"not empty \(it has weights\)"):
        Index.build(tmp_path / "index", made / "photos", **QUICK)
    assert (tmp_path / "index" / "weights" / "thesis.onnx").read_bytes() == b"mine"


def test_one_photo_and_photos_without_features(tmp_path: Path, photos: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    write_image(folder / "flat.png", np.full((100, 150), 90, np.uint8))
    with pytest.raises(HardnetError, match="no photo has a keypoint"):
        Index.build(tmp_path / "index", folder, **QUICK)
    shutil.copy(photos / "coins.png", folder)
    index = Index.build(tmp_path / "index", folder, **QUICK)
    assert len(index) == 2
    # Every word is in every photo that has words, so its weight is small; geometry is not.
    results = index.search(folder / "coins.png")
    assert names(results) == ["coins.png"]
    assert results[0].inliers > 100
    assert index.remove(folder / "flat.png") == 1
    assert names(index.search(folder / "coins.png")) == ["coins.png"]
    assert index.remove(folder) == 1
    assert len(index) == 0
    assert list(index.search(folder / "coins.png")) == []


def test_a_removal_can_be_undone(own: Path) -> None:
    index = Index(own / "index")
    coins, page = (str(own / "photos" / name) for name in ("coins.png", "page.png"))
    before = index.search(coins, k=1)[0]
    assert index.remove([coins, page]) == 2
    assert index.removed() == [coins, page]
    assert index.restore([coins]) == 1
    assert index.restore([coins]) == 0
    assert index.removed() == [page]
    after = index.search(coins, k=1)[0]
    assert (after.path, after.inliers) == (before.path, before.inliers)
    index.compact()
    assert index.removed() == []
    with pytest.raises(HardnetError, match=r"page\.png was not removed from this index, or its"):
        index.restore(page)
    assert index.add(page).indexed == 1


def test_only_what_was_removed_is_restored(own: Path) -> None:
    index = Index(own / "index")
    coins, new = own / "photos" / "coins.png", own / "new.png"
    shutil.copy(coins, new)
    count = len(index)
    index.remove(coins)
    with pytest.raises(HardnetError, match=r"new\.png was not removed from this index"):
        index.restore([coins, new])
    assert len(index) == count - 1, "neither was restored"
    assert index.restore(coins) == 1


def test_add_remove_replace(own: Path, photos: Path, tmp_path: Path) -> None:
    index, reader = Index(own / "index"), Index(own / "index")
    report = index.add(own / "photos")
    assert (report.indexed, report.unchanged) == (0, len(NAMES))
    shutil.copy(photos / "coins.png", own / "photos" / "new.png")
    report = index.add([own / "photos", photos / "clock_motion.png"])
    assert (report.indexed, report.replaced, report.unchanged) == (2, 0, len(NAMES))
    assert len(index) == len(NAMES) + 2
    assert len(reader) == len(NAMES), "until it looks again"
    assert reader.refresh()
    assert not reader.refresh()
    assert len(reader) == len(NAMES) + 2
    query = read_image(photos / "coins.png")
    assert set(names(reader.search(query, k=2))) == {"coins.png", "new.png"}
    # The file becomes another picture.
    shutil.copy(photos / "clock_motion.png", own / "photos" / "new.png")
    report = index.add(own / "photos")
    assert (report.indexed, report.replaced, report.unchanged) == (1, 1, len(NAMES))
    assert len(index) == len(NAMES) + 2
    assert index.search(query, k=1)[0].path.endswith("coins.png")
    assert set(names(index.search(photos / "clock_motion.png", k=2))) == {
        "new.png", "clock_motion.png",
    }  # fmt: skip
    # It becomes no picture at all.
    (own / "photos" / "new.png").write_text("words")
    report = index.add(own / "photos")
    assert list(report.skipped) == ["../photos/new.png"]
    assert "new.png" not in names(index.search(photos / "clock_motion.png", k=20))
    assert index.remove([photos / "clock_motion.png", own / "photos" / "coins.png"]) == 2
    assert "coins.png" not in names(index.search(query, k=20))
    before = index.info()
    assert before["removed"] > 0
    index.compact()
    after = index.info()
    assert after["removed"] == 0
    assert after["segments"] == 1
    assert after["images"] == len(NAMES) - 1 == len(index.paths())
    assert index.verify().ok
    with pytest.raises(HardnetError, match=r"coins\.png is not in the index"):
        index.remove(own / "photos" / "coins.png")


def test_adding_to_an_index_is_building_it_at_once(own: Path, made: Path, tmp_path: Path) -> None:
    from hardnet.retrieval.build import build
    from hardnet.retrieval.photos import IndexSettings, named_photos

    vocabulary = Index(made / "index").snapshot.vocabulary
    photos = named_photos([own / "photos"], own / "other")
    settings = IndexSettings(**QUICK)
    build(own / "other", photos, settings, vocabulary=vocabulary, commit_images=3)
    whole, parts = Index(own / "index"), Index(own / "other")
    assert whole.paths() == parts.paths()
    for name in ("camera.png", "page.png"):
        found = [
            {hit.path: (hit.score, hit.inliers) for hit in index.search(own / "photos" / name)}
            for index in (whole, parts)
        ]
        assert found[0] == found[1]


def test_photos_that_are_gone(own: Path) -> None:
    index = Index(own / "index")
    (own / "photos" / "camera.png").unlink()
    (own / "photos" / "coins.png").rename(own / "coins.png")
    # A folder that is a link now: its photos are there, under the names they have.
    (own / "photos").rename(own / "elsewhere")
    (own / "photos").symlink_to("elsewhere")
    assert index.remove_gone() == 2
    assert index.remove_gone() == 0
    assert len(index) == len(NAMES) - 2
    (own / "elsewhere").rename(own / "unplugged")
    gone = rf"every photo of .* is gone \({len(index)}\): is their disk there"
    with pytest.raises(HardnetError, match=gone):
        index.remove_gone()
    assert len(Index(own / "index")) == len(NAMES) - 2


def test_settings_do_not_mix(own: Path, tmp_path: Path) -> None:
    photos = own / "photos"
    changes = (
        ({"keypoints": 100}, "keypoints=250, not 100"),
        ({"descriptor": "sift"}, "descriptor=rootsift, not sift"),
        ({"upright": True}, "upright=False, not True"),
        ({"spread": False}, "spread=True, not False"),
        ({"words": 99}, "has 256 words, not 99"),
    )
    for change, message in changes:
        with pytest.raises(HardnetError, match=message):
            Index.build(own / "index", photos, **QUICK | change)
    assert len(Index.build(own / "index", photos, words=256, **QUICK)) == len(NAMES)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(HardnetError, match=r"not empty \(it has letter.txt\)"):
        Index.build(tmp_path / "full", photos, **QUICK)
    with pytest.raises(HardnetError, match="is a file"):
        Index.build(photos / "camera.png", photos, **QUICK)


def test_other_weights_behind_the_same_name(own: Path) -> None:
    manifest = read_manifest(own / "index")
    settings = manifest.settings | {"weights": "others"}
    write_manifest(own / "index", replace(manifest, settings=settings))
    with pytest.raises(HardnetError, match="made with other weights"):
        Index(own / "index").search(own / "photos" / "camera.png")


def test_many_threads_read_while_one_writes(own: Path, photos: Path) -> None:
    index = Index(own / "index")
    query = index.extract(own / "photos" / "camera.png")
    expected = [(hit.path, hit.inliers) for hit in index.search(query)]

    def look(_: int) -> list[tuple[str, int]]:
        reader = Index(own / "index")
        return [(hit.path, hit.inliers) for hit in reader.search(query)]

    with ThreadPoolExecutor(4) as pool:
        found = pool.map(look, range(12))
        shared = pool.map(lambda _: index.search(query), range(12))
        Index(own / "index").add(photos / "text.png")
        for hits in found:
            assert hits[0] == expected[0]
        for results in shared:
            assert [(hit.path, hit.inliers) for hit in results] == expected


def test_an_index_needs_no_rights_and_no_photos(own: Path) -> None:
    query = Index(own / "index").extract(own / "photos" / "coins.png")
    shutil.rmtree(own / "photos")
    os.chmod(own / "index", 0o555)
    try:
        assert names(Index(own / "index").search(query))[0] == "coins.png"
    finally:
        os.chmod(own / "index", 0o755)


def test_a_box_has_keypoints_of_its_own(index: Index, made: Path) -> None:
    """A quiet photo on a page whose print has all the strongest keypoints."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 2, (150, 200)).astype(np.uint8) * 255
    page = cv2.resize(blocks, (1600, 1200), interpolation=cv2.INTER_NEAREST)
    photo = cv2.resize(read_image(made / "photos" / "chelsea.png"), None, fx=0.8, fy=0.8)
    height, width = photo.shape[:2]
    grey = cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY)
    page[500 : 500 + height, 700 : 700 + width] = (128 + (grey.astype(float) - 128) / 2).astype(
        np.uint8
    )
    box = (700.0, 500.0, float(width), float(height))
    results = index.search(page, box=box)
    assert results.query[0].features > 100
    assert names(results)[0] == "chelsea.png"
    assert results[0].verified
    # The transform is in pixels of the page.
    expected = np.array([[1.25, 0, -700 * 1.25 + 0.125], [0, 1.25, -500 * 1.25 + 0.125]])
    np.testing.assert_allclose(results[0].transform[:, :2], expected[:, :2], atol=0.02)
    np.testing.assert_allclose(results[0].region[0], (-0.5, -0.5), atol=4)
    inside = index.extract(page, box)
    assert len(inside) <= QUICK["keypoints"]
    assert inside.image_size == (1600, 1200)
    assert (inside.xy > (700, 500)).all()
    assert (inside.xy < (700 + width, 500 + height)).all()


def test_spread_keypoints_are_remembered(tmp_path: Path, photos: Path) -> None:
    settings = QUICK | {"keypoints": 100, "words": 16}
    index = Index.build(tmp_path / "index", photos / "rocket.jpg", **settings)
    assert index.settings.spread
    photo = read_image(photos / "rocket.jpg")
    usual = {name: settings[name] for name in ("descriptor", "keypoints", "max_size")}
    plain, spread = (hardnet.extract(photo, **usual, spread=spread) for spread in (False, True))
    assert not np.array_equal(plain.frames, spread.frames)
    np.testing.assert_array_equal(index.extract(photo).frames, spread.frames)
    box = (50.0, 50.0, 500.0, 300.0)
    other = Index.build(tmp_path / "other", photos / "rocket.jpg", spread=False, **settings)
    found = [one.extract(photo, box) for one in (index, other)]
    assert [len(one) for one in found] == [100, 100]
    cells = [len({tuple(cell) for cell in (one.xy // 50).astype(int)}) for one in found]
    assert cells[0] > cells[1]


def test_an_index_of_a_version_that_did_not_spread(own: Path) -> None:
    kept = stored_settings(
        {
            name: value
            for name, value in Index(own / "index").snapshot.settings.items()
            if name != "spread"
        },
        own / "index",
    )
    assert kept == replace(Index(own / "index").settings, spread=False)
