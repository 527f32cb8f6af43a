"""The benchmark of relative poses: conventions on a made scene, errors and means by hand."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")

from hardnet.bench import pose
from hardnet.bench.development import Scene, Setup, contestants
from hardnet.descriptors import load
from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.patchsets.build.colmap_model import View

WIDTH, HEIGHT = 800, 600


def turn(axis: str, degrees: float) -> np.ndarray:
    vector = np.zeros(3)
    vector["xyz".index(axis)] = np.deg2rad(degrees)
    return cv2.Rodrigues(vector)[0]


def view(name: str, rotation: np.ndarray, centre: list[float], focal: float) -> View:
    camera = pycolmap.Camera(
        model="SIMPLE_RADIAL",
        width=WIDTH,
        height=HEIGHT,
        params=[focal, WIDTH / 2, HEIGHT / 2, -0.05],
    )
    translation = -rotation @ np.array(centre)
    return View(name, Path(name), camera, rotation, translation, np.zeros((0, 2)))


@pytest.fixture
def pair() -> pose.PosePair:
    """Two cameras of different focal length that look at the same box."""
    left = view("left", turn("y", 8), [-2.0, 0.1, 0.0], 700)
    right = view("right", turn("x", 3) @ turn("y", -12), [1.5, -0.3, 0.4], 1100)
    return pose.PosePair(left, right)


@pytest.fixture
def world() -> np.ndarray:
    return np.random.default_rng(0).uniform([-1.5, -1.5, 9], [1.5, 1.5, 14], (300, 3))


def test_directions_undo_the_projection(pair: pose.PosePair, world: np.ndarray) -> None:
    for each in (pair.a, pair.b):
        inside = each.to_camera(world)
        found = pose.directions(each, each.project(world))
        np.testing.assert_allclose(found, inside[:, :2] / inside[:, 2:], atol=1e-6)
    # The centre of the image is half a pixel before its middle: COLMAP counts from the corner.
    np.testing.assert_allclose(
        pose.directions(pair.a, [[WIDTH / 2 - 0.5, HEIGHT / 2 - 0.5]]), [[0, 0]], atol=1e-9
    )


def test_the_truth_leads_from_the_first_camera_to_the_second(
    pair: pose.PosePair, world: np.ndarray
) -> None:
    rotation, translation = pair.truth
    there = pair.a.to_camera(world) @ rotation.T + translation
    np.testing.assert_allclose(there, pair.b.to_camera(world), atol=1e-9)


def test_a_pose_is_found_among_false_matches(pair: pose.PosePair, world: np.ndarray) -> None:
    rng = np.random.default_rng(1)
    a, b = pair.a.project(world), pair.b.project(world)
    assert pose.pose_error(pose.estimate_pose(pair, a, b), pair.truth) < 0.01
    false = rng.permutation(len(world))[:120]
    b[false] = rng.uniform([0, 0], [WIDTH, HEIGHT], (len(false), 2))
    found = pose.estimate_pose(pair, a, b)
    assert pose.pose_error(found, pair.truth) < 0.3  # some false ones lie on their line
    assert found is not None
    again = pose.estimate_pose(pair, a, b)
    assert again is not None
    np.testing.assert_array_equal(found[0], again[0])  # the samples are seeded


def test_which_matches_agree_with_the_true_cameras(pair: pose.PosePair, world: np.ndarray) -> None:
    a, b = pair.a.project(world), pair.b.project(world)
    assert pose.agrees(pair, a, b).all()
    moved = b + np.random.default_rng(3).normal(0, 5, b.shape)
    agree = pose.agrees(pair, a, moved)
    assert 0.2 < agree.mean() < 0.9
    rotation, translation = pair.truth
    focal = (700 + 1100) / 2
    for k in range(len(world)):
        x = np.append(pose.directions(pair.a, a[k])[0], 1)
        y = np.append(pose.directions(pair.b, moved[k])[0], 1)
        there, back = np.cross(translation, rotation @ x), rotation.T @ np.cross(y, translation)
        gradient = np.hypot(np.hypot(*there[:2]), np.hypot(*back[:2]))
        assert agree[k] == (focal * abs(y @ there) / gradient <= 3)


def test_correct_matches_of_a_pair(pair: pose.PosePair, world: np.ndarray) -> None:
    a, b = pair.a.project(world[:50]), pair.b.project(world[:50])
    b[40:] = b[40:][::-1]  # ten false ones, of which a few agree by chance
    vectors = np.eye(128, dtype=np.float32)[:50]
    blurred = vectors + 0.2 * np.roll(vectors, 1, 1)  # false ones are told from others less clearly
    blurred[40:] += 0.4 * np.roll(vectors, 1, 1)[40:]

    def extract(path: Path) -> Features:
        xy, rows = (a, vectors) if path == pair.a.path else (b, blurred)
        frames = np.zeros((len(xy), 2, 3), np.float32)
        frames[:, :, :2], frames[:, :, 2] = np.eye(2), xy
        return Features(frames, np.ones(len(xy), np.float32), rows, (WIDTH, HEIGHT), "test")

    found = pose.score_pair(extract(pair.a.path), extract(pair.b.path), pair)
    by_chance = int(pose.agrees(pair, a[40:], b[40:]).sum())
    assert found.correct == 40 + by_chance  # all are taken: 80 % of 50
    assert found.errors[1.0] < 1
    again = found.matched.repeated(1.0)
    assert len(again) == pose.REPEATS
    assert again == found.matched.repeated(1.0)
    for k, error in enumerate(again):
        order = np.random.default_rng(k).permutation(len(found.matched.ratios))
        xy_a, xy_b = found.matched.xy_a[order], found.matched.xy_b[order]
        assert error == pose.pose_error(pose.estimate_pose(pair, xy_a, xy_b), pair.truth)


def test_a_score_is_the_mean_over_estimates_of_a_pair(pair: pose.PosePair) -> None:
    class Lucky(pose.Matched):
        def repeated(self, ratio: float) -> list[float]:
            return [0.5] * 5 + [180.0] * 5  # half of the time

    nothing = np.zeros((0, 2), np.float32)
    one = pose.PairScore(Lucky(pair, nothing, nothing, nothing[:, 0]), {0.9: 0.5}, 7)
    scene = Scene("church", ((pair.a.path, pair.b.path, pair),))
    entry = pose.summarise([scene], {"church": [one]})
    assert entry["report"]["maa"] == pytest.approx(0.5)
    assert entry["scenes"]["church"]["curve"][0] == pytest.approx(0.5)
    assert entry["scenes"]["church"]["correct"] == 7


def test_too_few_matches_give_no_pose(pair: pose.PosePair, world: np.ndarray) -> None:
    a, b = pair.a.project(world)[:4], pair.b.project(world)[:4]
    assert pose.estimate_pose(pair, a, b) is None
    assert pose.estimate_pose(pair, np.zeros((0, 2)), np.zeros((0, 2))) is None
    assert pose.estimate_pose(pair, np.zeros((20, 2)), np.zeros((20, 2))) is None


@pytest.mark.parametrize(
    ("rotation", "direction", "error"),
    [
        (turn("z", 5), [1.0, 0, 0], 5),  # the rotation is worse
        (np.eye(3), [np.cos(0.2), np.sin(0.2), 0], np.rad2deg(0.2)),  # the direction is
        (turn("y", 7), [0, 3.0, 0], 90),
        (np.eye(3), [-2.0, 0, 0], 0),  # up to the sign and the length
        (turn("x", 180), [1.0, 0, 0], 180),
    ],
)
def test_errors_by_hand(rotation: np.ndarray, direction: list[float], error: float) -> None:
    truth = np.eye(3), np.array([4.0, 0, 0])
    assert pose.pose_error((rotation, np.array(direction)), truth) == pytest.approx(error, abs=1e-5)


def test_no_estimate_counts_as_half_a_turn() -> None:
    assert pose.pose_error(None, (np.eye(3), np.ones(3))) == 180


def test_mean_accuracy_by_hand() -> None:
    # Below 1, 2 and 3 degrees (3 is not below 3): 1 of 4; below 4 to 9: 2; below 10: 3.
    assert pose.maa([0.5, 3, 9.5, 180]) == pytest.approx((3 * 0.25 + 6 * 0.5 + 0.75) / 10)
    assert pose.maa([]) == 0


def test_the_ratio_of_a_scene_is_chosen_on_the_others() -> None:
    good, bad = [0.5, 0.5], [90.0, 90.0]
    errors = {
        "a": {0.8: good, 0.9: bad},
        "b": {0.8: bad, 0.9: good},
        "c": {0.8: good, 0.9: good},
    }
    # a: b and c say 0.9. b: a and c say 0.8. c: a and b say the same of both, the larger is taken.
    assert pose.choose_ratios(errors) == {"a": 0.9, "b": 0.8, "c": 0.9}
    assert pose.choose_ratios({"a": errors["a"]}) == {"a": 0.9}  # the default of the pipeline


def test_pairs_of_a_model_see_enough_from_different_places(
    tmp_path: Path, world: np.ndarray
) -> None:
    scene = tmp_path / "church"
    (scene / "images").mkdir(parents=True)
    views = [
        view("1.png", turn("y", 8), [-2.0, 0.1, 0.0], 700),
        view("2.png", turn("y", 8), [-1.99, 0.1, 0.0], 700),  # as good as the same place
        view("3.png", turn("y", -12), [1.5, -0.3, 0.4], 900),
        view("4.png", turn("y", -9), [1.0, 0.3, 0.4], 900),  # sees 20 of the points only
    ]
    write_model(scene / "colmap", views, world[:80], {"4.png": 20})
    for each in views:
        cv2.imwrite(str(scene / "images" / each.name), np.zeros((HEIGHT, WIDTH), np.uint8))
    found = pose.read_pose_scene(scene)
    names = [(a.name, b.name) for a, b, _ in found.pairs]
    assert names == [("1.png", "3.png"), ("2.png", "3.png")]
    rotation, translation = found.pairs[0][2].truth
    expected = pose.PosePair(views[0], views[2]).truth
    np.testing.assert_allclose(rotation, expected[0], atol=1e-9)
    np.testing.assert_allclose(translation, expected[1], atol=1e-9)


def write_model(folder: Path, views: list[View], points: np.ndarray, seen: dict[str, int]) -> None:
    """A COLMAP text model; a view in ``seen`` sees only that many points."""
    folder.mkdir()
    cameras, images = [], []
    tracks: list[list[str]] = [[] for _ in points]
    for number, each in enumerate(views, 1):
        numbers = " ".join(str(x) for x in each.camera.params)
        cameras.append(f"{number} SIMPLE_RADIAL {WIDTH} {HEIGHT} {numbers}")
        x, y, z, w = pycolmap.Rotation3d(each.rotation).quat
        placed = " ".join(f"{v:.15g}" for v in (w, x, y, z, *each.translation))
        images.append(f"{number} {placed} {number} {each.name}")
        visible = seen.get(each.name, len(points))
        pixels = each.project(points[:visible]) + 0.5
        images.append(" ".join(f"{u:.9g} {v:.9g} {i + 1}" for i, (u, v) in enumerate(pixels)))
        for i in range(visible):
            tracks[i].append(f"{number} {i}")
    rows = [
        f"{i + 1} {' '.join(map(str, xyz))} 0 0 0 0 {' '.join(track)}"
        for i, (xyz, track) in enumerate(zip(points, tracks, strict=True))
    ]
    for name, lines in (("cameras", cameras), ("images", images), ("points3D", rows)):
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")


def test_a_folder_without_cameras_is_named(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="has no true cameras: neither"):
        pose.read_pose_scene(tmp_path)


def test_neighbours_of_the_fountain_are_found_to_a_degree(data: Path) -> None:
    scene = pose.read_pose_scene(data / "sfm" / "fountain-P11")
    assert len(scene.pairs) == pose.MAX_PAIRS
    by_name = {view.name: view for _, _, pair in scene.pairs for view in (pair.a, pair.b)}
    close = pose.PosePair(by_name["0004.jpg"], by_name["0006.jpg"])
    (one,) = contestants({"rootsift": load("rootsift")}, [Setup(keypoints=1000)])
    a, b = (one.features(view.path) for view in (close.a, close.b))
    assert pose.score_pair(a, b, close).errors[0.85] < 1
