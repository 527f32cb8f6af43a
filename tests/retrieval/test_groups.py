"""Made copies of a few photos: the kinds, the maps and the overlaps are known."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from copies import border, crop, mirror, resize, turn

from hardnet.images import read_image, write_image
from hardnet.retrieval.groups import Groups, Pair, find_groups
from hardnet.retrieval.index import Index
from hardnet.retrieval.kinds import corners, moved

SOURCE = "coffee.png"
OTHERS = ("camera.png", "coins.png", "motorcycle_left.png", "motorcycle_right.png")
SETTINGS = {"words": 64, "descriptor": "rootsift", "keypoints": 500, "max_size": 600}


@pytest.fixture(scope="module")
def truth(photos: Path) -> dict[str, tuple[str, np.ndarray, np.ndarray]]:
    """Name -> kind, pixels, map from the source."""
    pixels = read_image(photos / SOURCE)
    rng = np.random.default_rng(0)
    return {
        "small.png": ("copy", *resize(pixels, 0.6, 0.6)),
        "framed.png": ("copy", *border(pixels, 0.08)),
        "part.png": ("crop", *crop(pixels, rng, 0.35)),
        "turned.png": ("rotated", *turn(pixels, 90)),
        "tilted.png": ("rotated", *turn(pixels, 25, cut=True)),
        "mirror.png": ("mirrored", *mirror(pixels)),
    }


@pytest.fixture(scope="module")
def place(
    tmp_path_factory: pytest.TempPathFactory,
    photos: Path,
    truth: dict[str, tuple[str, np.ndarray, np.ndarray]],
) -> Path:
    root = tmp_path_factory.mktemp("groups")
    (root / "photos").mkdir()
    for name in (SOURCE, *OTHERS):
        shutil.copy(photos / name, root / "photos")
    for name, (_, pixels, _) in truth.items():
        write_image(root / "photos" / name, pixels)
    Index.build(root / "index", root / "photos", **SETTINGS)
    return root


@pytest.fixture(scope="module")
def found(place: Path) -> Groups:
    return find_groups(Index(place / "index"))


def pair_of(found: Groups, a: str, b: str) -> Pair | None:
    names = {a, b}
    return next((p for p in found.pairs if {Path(p.a).name, Path(p.b).name} == names), None)


@pytest.mark.parametrize(
    "name", ["small.png", "framed.png", "part.png", "turned.png", "tilted.png", "mirror.png"]
)
def test_a_copy_has_its_kind_and_its_map(
    name: str, found: Groups, truth: dict[str, tuple[str, np.ndarray, np.ndarray]]
) -> None:
    kind, pixels, transform = truth[name]
    pair = pair_of(found, SOURCE, name)
    assert pair is not None
    assert pair.kind == kind
    source, copy = (600, 400), (pixels.shape[1], pixels.shape[0])
    # The name of the source comes before those of most copies.
    forward = Path(pair.a).name == SOURCE
    expected = transform if forward else np.linalg.inv(np.vstack([transform, [0, 0, 1]]))[:2]
    size = source if forward else copy
    apart = np.abs(moved(corners(size), pair.transform) - moved(corners(size), expected))
    assert apart.max() < 0.01 * max(source)


def test_the_scene_has_the_rest(found: Groups) -> None:
    pair = pair_of(found, "motorcycle_left.png", "motorcycle_right.png")
    assert pair is not None
    assert pair.kind in ("burst", "scene")
    sources = {SOURCE, "small.png", "framed.png", "part.png", "turned.png", "tilted.png"}
    sources.add("mirror.png")
    for pair in found.pairs:
        names = {Path(pair.a).name, Path(pair.b).name}
        assert names <= sources or names == {"motorcycle_left.png", "motorcycle_right.png"}


def test_groups_grow_from_level_to_level(found: Groups) -> None:
    sets = [frozenset(group.photos) for group in found.groups]
    assert len(set(sets)) == len(sets)
    [copies] = [group for group in found.groups if group.kind == "copy"]
    assert {Path(photo).name for photo in copies.photos} == {SOURCE, "small.png", "framed.png"}
    assert Path(copies.best).name == SOURCE  # the framed one has more pixels, but a border
    [edits] = [set(g.photos) for g in found.groups if g.kind in ("crop", "rotated", "mirrored")]
    assert set(copies.photos) < edits
    assert len(edits) == 7


def test_only_what_is_new_is_compared(place: Path, found: Groups) -> None:
    again = find_groups(Index(place / "index"))
    assert again.compared == 0
    assert again.to_json() == found.to_json()


def test_a_stopped_run_continues(place: Path, found: Groups, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "all")
    shutil.rmtree(tmp_path / "all" / "index" / "groups")
    index = Index(tmp_path / "all" / "index")
    seen: list[tuple[str, int]] = []

    def stop(what: str, done: int, total: int) -> None:
        seen.append((what, total))
        if what == "comparing" and done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        find_groups(index, mirrored=False, progress=stop)
    seen.clear()
    progress = lambda what, done, total: seen.append((what, total))  # noqa: E731
    again = find_groups(index, mirrored=False, progress=progress)
    assert ("comparing", len(index) - 5) in seen
    plain = [pair.kind for pair in found.pairs if pair.kind != "mirrored"]
    assert [pair.kind for pair in again.pairs] == plain


@pytest.mark.parametrize("factor", [1.0, 0.6])
def test_a_photo_and_its_copy_are_found_without_other_photos(
    factor: float, photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "photos").mkdir()
    shutil.copy(photos / SOURCE, tmp_path / "photos")
    write_image(
        tmp_path / "photos/copy.png", resize(read_image(photos / SOURCE), factor, factor)[0]
    )
    settings = {**SETTINGS, "words": None}
    index = Index.build(tmp_path / "index", tmp_path / "photos", **settings)
    pair = pair_of(find_groups(index, mirrored=False), SOURCE, "copy.png")
    assert pair is not None
    assert pair.kind == "copy"


def test_every_copy_is_found_in_a_folder_of_copies(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(5):
        shutil.copy(photos / SOURCE, tmp_path / f"photos/{number}.png")
    index = Index.build(tmp_path / "index", tmp_path / "photos", **SETTINGS)
    assert len(find_groups(index, mirrored=False).pairs) == 10
