from __future__ import annotations

import importlib.util
import sys

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError, MissingExtraError
from hardnet.matching.geometry import (
    MIN_INLIERS,
    Grid,
    check_cameras,
    estimate,
    is_mirrored,
    log10_false_alarms,
    normalise,
    relative_pose,
    sampson_error,
    to_fundamental,
    transfer_error,
    verify,
)

SIZE = np.array([800, 600])
HOMOGRAPHY = np.array([[0.9, 0.2, 30], [-0.15, 1.1, 40], [1e-4, -5e-5, 1]])


def project(homography: np.ndarray, points: np.ndarray) -> np.ndarray:
    lifted = np.concatenate([points, np.ones((len(points), 1))], 1) @ homography.T
    return lifted[:, :2] / lifted[:, 2:]


LEFT = np.array([[700, 0, 400], [0, 700, 300], [0, 0, 1.0]])
RIGHT = np.array([[900, 0, 380], [0, 920, 310], [0, 0, 1.0]])
TURN = np.deg2rad(8)
ROTATION = np.array([[np.cos(TURN), 0, np.sin(TURN)], [0, 1, 0], [-np.sin(TURN), 0, np.cos(TURN)]])
TRANSLATION = np.array([-0.8, 0.1, 0.2])
ESTIMATORS = ["magsac"]
if importlib.util.find_spec("pydegensac"):
    ESTIMATORS.append("degensac")
FITS = [("magsac", "essential")]  # which degensac does not have
FITS += [(estimator, kind) for estimator in ESTIMATORS for kind in ("homography", "fundamental")]
Planted = tuple[np.ndarray, np.ndarray, np.ndarray]


def plane(good: int, bad: int, seed: int = 0) -> Planted:
    """Matches of a plane with half a pixel of noise, and random ones; which are right."""
    rng = np.random.default_rng(seed)
    a = rng.uniform(0, SIZE, (good + bad, 2))
    b = project(HOMOGRAPHY, a) + rng.normal(0, 0.5, (good + bad, 2))
    b[good:] = rng.uniform(0, SIZE, (bad, 2))
    return a, b, np.arange(good + bad) < good


def scene(good: int, bad: int, seed: int = 0, noise: float = 0.5) -> Planted:
    """The same for a scene with depth, seen by two different cameras."""
    rng = np.random.default_rng(seed)
    points = rng.uniform([-2, -1.5, 3], [2, 1.5, 9], (good + bad, 3))
    a = project(LEFT, points[:, :2] / points[:, 2:])
    other = points @ ROTATION.T + TRANSLATION
    b = project(RIGHT, other[:, :2] / other[:, 2:]) + rng.normal(0, noise, (good + bad, 2))
    b[good:] = rng.uniform(0, SIZE, (bad, 2))
    return a, b, np.arange(good + bad) < good


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("model", "bad"), [("auto", 0), ("auto", 400), ("homography", 200)])
def test_planted_homography_is_found(estimator: str, model: str, bad: int) -> None:
    a, b, truth = plane(150, bad)
    found = verify(a, b, model, estimator=estimator)
    assert found.kind == "homography"
    grid = np.array([[x, y] for x in (50, 400, 750) for y in (50, 300, 550)], float)
    np.testing.assert_allclose(project(found.model, grid), project(HOMOGRAPHY, grid), atol=1)
    assert found.inliers[truth].mean() > 0.98
    assert found.inliers[~truth].sum() <= 2
    again = verify(a.copy(), b.copy(), model, estimator=estimator)
    np.testing.assert_array_equal(again.model, found.model)
    np.testing.assert_array_equal(again.inliers, found.inliers)


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(("model", "bad"), [("auto", 0), ("fundamental", 100)])
def test_planted_fundamental_matrix_is_found(estimator: str, model: str, bad: int) -> None:
    a, b, truth = scene(200, bad)
    found = verify(a, b, model, estimator=estimator)
    assert found.kind == "fundamental"
    assert found.inliers[truth].mean() > 0.95
    assert not bad or found.inliers[~truth].mean() < 0.1
    assert np.median(sampson_error(found.model, a[truth], b[truth])) < 1
    assert abs(np.linalg.det(found.model / np.linalg.norm(found.model))) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_few_right_matches_are_found_among_many_because_the_best_are_tried_first(seed: int) -> None:
    # 60 of 400: a draw of seven has no false one once in 600,000 times. The right ones have ranks
    # in the better half, as the ratio test gives them.
    a, b, truth = scene(60, 340, seed)
    rng = np.random.default_rng(seed)
    rank = np.where(truth, rng.uniform(0, 0.5, len(a)), rng.uniform(0, 1, len(a)))
    order = np.argsort(rank)
    found = verify(a[order], b[order], "fundamental")
    assert found.inliers[truth[order]].mean() > 0.95


@pytest.mark.parametrize(("count", "seeds"), [(10, 5), (100, 4), (500, 2), (2000, 1)])
def test_random_matches_are_never_verified(count: int, seeds: int) -> None:
    """Neither by a fundamental matrix nor by a homography: "auto" tries both."""
    for seed in range(seeds):
        a, b, _ = plane(0, count, seed)
        found = verify(a, b)
        assert found.kind is None
        assert found.model is None
        assert not found.inliers.any()


def test_one_place_seen_many_times_is_no_evidence() -> None:
    # Keypoints with several orientations: 40 matches, but only four places.
    a, b, _ = plane(4, 0)
    rng = np.random.default_rng(0)
    a, b = (np.repeat(p, 10, axis=0) + rng.uniform(0, 0.1, (40, 2)) for p in (a, b))
    noise = plane(0, 40, 1)
    assert verify(np.vstack([a, noise[0]]), np.vstack([b, noise[1]])).kind is None


@pytest.mark.parametrize("count", [0, 1, 4, MIN_INLIERS - 1])
def test_too_few_matches(count: int) -> None:
    a, b, _ = plane(count, 0)
    found = verify(a, b)
    assert found.kind is None
    assert found.inliers.shape == (count,)


def test_few_but_perfect_matches_are_believed() -> None:
    a, b, _ = plane(12, 0)
    assert verify(a, b).kind == "homography"


def test_transfer_error_by_hand() -> None:
    shift = np.array([[1.0, 0, 3], [0, 1, 4], [0, 0, 1]])
    points = np.array([[10.0, 20]])
    assert transfer_error(shift, points, points)[0] == pytest.approx(5)
    assert transfer_error(-shift, points, points)[0] == pytest.approx(5)  # the sign is free
    behind = np.array([[1.0, 0, 0], [0, 1, 0], [-0.01, 0, 1]])
    assert transfer_error(behind, np.array([[200.0, 0]]), np.zeros((1, 2)))[0] == np.inf


def test_sampson_error_by_hand() -> None:
    # A pure sideways motion: rows must agree, and both sides share the error.
    sideways = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    a, b = np.array([[10.0, 20], [5, 5]]), np.array([[70.0, 22], [90, 5]])
    np.testing.assert_allclose(sampson_error(sideways, a, b), [2 / np.sqrt(2), 0])


def test_false_alarms_by_hand() -> None:
    a, b, _ = plane(10, 10)
    b = np.clip(b, 0, (999, 499))
    b[0], b[1] = (0, 0), (999, 499)  # the box of b: 1000 x 500
    inliers = np.arange(20) < 10
    # (20 - 4) * C(20, 10) * C(10, 4) * (pi 9 / 500000)^6
    expected = np.log10(16 * 184756 * 210 * (np.pi * 9 / 500000) ** 6)
    assert log10_false_alarms(a, b, inliers, "homography", 3.0) == pytest.approx(expected)
    assert log10_false_alarms(a, b, np.arange(20) < 4, "homography", 3.0) == 0


def angle(one: np.ndarray, other: np.ndarray) -> float:
    """Degrees between two directions."""
    cosine = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
    return float(np.rad2deg(np.arccos(np.clip(cosine, -1, 1))))


@pytest.mark.parametrize("bad", [0, 200])
def test_planted_essential_matrix_and_its_pose(bad: int) -> None:
    a, b, truth = scene(200, bad)
    found = verify(a, b, "essential", cameras=(LEFT, RIGHT))
    assert found.kind == "essential"
    assert found.inliers[truth].mean() > 0.95
    assert not bad or found.inliers[~truth].mean() < 0.1
    values = np.linalg.svd(found.model, compute_uv=False)
    assert values[1] / values[0] > 0.98  # two equal singular values and a zero one
    assert values[2] / values[0] < 1e-6
    pose = relative_pose(found, a, b)
    assert np.linalg.norm(pose.translation) == pytest.approx(1)
    assert angle(pose.translation, TRANSLATION) < 2
    turned = np.rad2deg(np.arccos((np.trace(pose.rotation @ ROTATION.T) - 1) / 2))
    assert turned < 0.5
    assert pose.in_front[truth & found.inliers].mean() > 0.98
    assert not pose.in_front[~found.inliers].any()


def test_pose_from_a_fundamental_matrix_and_cameras() -> None:
    a, b, _ = scene(300, 50, noise=0.1)
    found = verify(a, b, "fundamental")
    assert angle(relative_pose(found, a, b, (LEFT, RIGHT)).translation, TRANSLATION) < 3
    with pytest.raises(HardnetError, match="essential"):
        relative_pose(found, a, b)


def test_no_pose_from_a_homography() -> None:
    a, b, _ = plane(50, 0)
    with pytest.raises(HardnetError, match="no pose from a geometry of kind homography"):
        relative_pose(verify(a, b, "homography"), a, b, (LEFT, RIGHT))


def test_essential_and_fundamental_matrix_by_hand() -> None:
    cross = np.array(
        [
            [0, -TRANSLATION[2], TRANSLATION[1]],
            [TRANSLATION[2], 0, -TRANSLATION[0]],
            [-TRANSLATION[1], TRANSLATION[0], 0],
        ]
    )
    essential = cross @ ROTATION
    a, b, _ = scene(50, 0, noise=0)
    directions = np.c_[normalise(a, LEFT), np.ones(50)], np.c_[normalise(b, RIGHT), np.ones(50)]
    residual = np.einsum("ni,ij,nj->n", directions[1], essential, directions[0])
    np.testing.assert_allclose(residual, 0, atol=1e-12)
    fundamental = to_fundamental(essential, (LEFT, RIGHT))
    np.testing.assert_allclose(sampson_error(fundamental, a, b), 0, atol=1e-9)
    assert np.linalg.norm(fundamental) == pytest.approx(1)


@pytest.mark.parametrize(("estimator", "kind"), FITS)
@pytest.mark.parametrize("what", ["none", "one", "two", "place", "line", "zero"])
def test_degenerate_matches_are_not_believed(estimator: str, kind: str, what: str) -> None:
    x = np.linspace(0, 500, 60)
    points = {
        "none": np.zeros((0, 2)),
        "one": np.ones((1, 2)),
        "two": np.array([[1.0, 2], [30, 40]]),
        "place": np.full((60, 2), 7.0),
        "line": np.stack([x, 2 * x], 1),
        "zero": np.zeros((60, 2)),
    }[what]
    cameras = (LEFT, RIGHT) if kind == "essential" else None
    found = verify(points, points + 5, kind, 3.0, estimator, cameras)
    assert found.inliers.shape == (len(points),)
    if what != "line":
        assert found.kind is None
    assert found.model is None or np.isfinite(found.model).all()


@pytest.mark.parametrize(("estimator", "kind"), FITS)
def test_estimate_same_input_same_output(estimator: str, kind: str) -> None:
    a, b, _ = scene(60, 100)
    threads = cv2.getNumThreads()
    found = []
    try:
        for count in (1, 4):
            cv2.setNumThreads(count)
            cv2.setRNGSeed(count)
            found.append(estimate(a, b, kind, 3.0, estimator, (LEFT, RIGHT)))
    finally:
        cv2.setNumThreads(threads)
    assert found[0] is not None
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_without_pydegensac_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydegensac", None)
    a, b, _ = plane(20, 0)
    with pytest.raises(MissingExtraError, match=r"hardnet\[degensac\]"):
        verify(a, b, "homography", estimator="degensac")


def test_degensac_has_no_essential_matrix() -> None:
    a, b, _ = scene(20, 0)
    with pytest.raises(HardnetError, match="magsac"):
        verify(a, b, "essential", estimator="degensac", cameras=(LEFT, RIGHT))


def test_an_essential_matrix_needs_cameras() -> None:
    a, b, _ = scene(20, 0)
    with pytest.raises(HardnetError, match="needs cameras"):
        verify(a, b, "essential")


@pytest.mark.parametrize(
    ("camera", "message"),
    [
        (np.eye(2), r"shape \(2, 2\)"),
        (np.full((3, 3), np.nan), "finite"),
        (np.diag([0.0, 700, 1]), "fx"),
        (LEFT.T, "fx"),
    ],
)
def test_wrong_cameras_are_said(camera: np.ndarray, message: str) -> None:
    with pytest.raises(HardnetError, match=message):
        check_cameras((LEFT, camera))
    with pytest.raises(HardnetError, match="two images, got 1"):
        check_cameras((LEFT,))  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["auto", "homography", "fundamental"])
def test_cameras_that_would_not_be_used_are_refused(model: str) -> None:
    points = np.random.default_rng(0).uniform(0, 500, (30, 2))
    with pytest.raises(HardnetError, match=f"for the model essential, not for {model}"):
        verify(points, points, model, cameras=(LEFT, RIGHT))


@pytest.mark.parametrize("seed", range(2))
def test_a_mirror_turns_triangles_round(seed: int) -> None:
    for points in (plane, scene):
        a, b, _ = points(60, 0, seed)
        assert not is_mirrored(a, b)
        assert is_mirrored(a, b * (-1, 1))
        assert is_mirrored(a[:, ::-1], b)
        assert not is_mirrored(a[:, ::-1], b[:, ::-1])
    assert not is_mirrored(a[:2], b[:2] * (-1, 1))  # two matches have no order
    line = np.repeat(a[:, :1], 2, axis=1)
    assert not is_mirrored(line, line * (-1, 1))


@pytest.mark.parametrize("radius", [0.5, 3.0, 40.0, 1000.0])
def test_grid_equals_explicit_loops(radius: float) -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(-50, 100, (80, 2))
    queries = rng.uniform(-200, 200, (70, 2))
    query, point = Grid(points, radius).near(queries)
    pairs = list(zip(query.tolist(), point.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {
        (q, p)
        for q in range(len(queries))
        for p in range(len(points))
        if ((queries[q] - points[p]) ** 2).sum() <= radius**2
    }


def test_the_radius_itself_is_near() -> None:
    query, point = Grid([[0.0, 0], [3, 4], [6, 8]], 5.0).near([[0.0, 0]])
    assert query.tolist() == [0, 0]
    assert sorted(point.tolist()) == [0, 1]


def test_rows_of_a_grid_do_not_wrap() -> None:
    # The last cell of one row and the first of the next are neighbours in memory only.
    points = np.array([[0.0, 0], [9, 0], [0, 1], [9, 1]])
    query, point = Grid(points, 1.0).near(points)
    assert sorted(zip(query.tolist(), point.tolist(), strict=True)) == [
        (0, 0), (0, 2), (1, 1), (1, 3), (2, 0), (2, 2), (3, 1), (3, 3),
    ]  # fmt: skip


def test_what_is_not_finite_is_near_nothing() -> None:
    query, point = Grid([[0.0, 0]], 2.0).near([[np.nan, 0], [0, 1], [np.inf, 0], [-1e300, 0]])
    assert query.tolist() == [1]
    assert point.tolist() == [0]
    for points, queries in ((np.zeros((0, 2)), np.zeros((3, 2))), (np.zeros((3, 2)), [])):
        query, point = Grid(points, 1.0).near(queries)
        assert query.shape == point.shape == (0,)
