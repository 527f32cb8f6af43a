"""The same calls with OpenCV's SIFT and with HardNet: only the numbers in the rows may differ."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from hardnet import descriptors
from hardnet.errors import HardnetError
from hardnet.features import extract
from hardnet.frames import from_opencv
from hardnet.interop.opencv import HardNet, HardNet_create

FLAT = np.full((100, 100), 9, np.uint8)


@pytest.fixture(scope="module")
def colour(photos: Path) -> np.ndarray:
    """A BGR photograph, as cv2.imread gives it."""
    return cv2.imread(str(photos / "astronaut.png"))[:150, :220]


@pytest.fixture(scope="module")
def grey(colour: np.ndarray) -> np.ndarray:
    return cv2.cvtColor(colour, cv2.COLOR_BGR2GRAY)


@pytest.fixture(scope="module")
def ours() -> HardNet:
    return HardNet()


@pytest.fixture(scope="module")
def sift() -> cv2.SIFT:
    return cv2.SIFT.create(enable_precise_upscale=True)


def fields(point: cv2.KeyPoint) -> tuple[Any, ...]:
    return point.pt, point.size, point.angle, point.response, point.octave, point.class_id


def form(value: Any) -> Any:
    """All about a result except the numbers in the descriptors."""
    if isinstance(value, tuple | list):
        return type(value).__name__, [form(item) for item in value]
    if isinstance(value, np.ndarray):
        return "array", value.shape, value.dtype, value.flags.c_contiguous
    if isinstance(value, cv2.KeyPoint):
        return "keypoint", repr(fields(value))  # repr: NaN is itself
    return type(value).__name__, value if isinstance(value, int | type(None)) else None


def outcome(call: Callable[[Any, np.ndarray], Any], feature: Any, image: np.ndarray) -> Any:
    try:
        return form(call(feature, image))
    except cv2.error:
        return "cv2.error"


def left_half(image: np.ndarray) -> np.ndarray:
    mask = np.zeros(image.shape[:2], np.uint8)
    mask[:, : image.shape[1] // 2] = 1
    return mask


ODD = [
    cv2.KeyPoint(-50, -50, 5, 10),
    cv2.KeyPoint(1e4, 1e4, 5, 10),
    cv2.KeyPoint(0, 0, 50, 0),
    cv2.KeyPoint(50, 50, 5, -1, 0.5, 7, 33),
    cv2.KeyPoint(50, 50, 0),
    cv2.KeyPoint(50, 50, -3),
    cv2.KeyPoint(50, 50, float("nan")),
    cv2.KeyPoint(50, 50, 5, float("nan")),
    cv2.KeyPoint(float("nan"), 50, 5),
]

CALLS: dict[str, Callable[[Any, np.ndarray], Any]] = {
    "detect": lambda f, i: f.detect(i),
    "detect, no mask": lambda f, i: f.detect(i, None),
    "detect by keywords": lambda f, i: f.detect(image=i, mask=None),
    "detect in the mask": lambda f, i: f.detect(i, left_half(i)),
    "detect in the mask (H, W, 1)": lambda f, i: f.detect(i, left_half(i)[:, :, None]),
    "detect, mask without pixels": lambda f, i: f.detect(i, np.zeros((0, 0), np.uint8)),
    "detect, mask of zeros": lambda f, i: f.detect(i, left_half(i) * 0),
    "detect, mask of another type": lambda f, i: f.detect(i, left_half(i).astype(np.int8)),
    "detect, mask in colour": lambda f, i: f.detect(i, np.dstack([left_half(i)] * 3)),
    "detect in nothing": lambda f, i: f.detect(FLAT),
    "detect in None": lambda f, i: f.detect(None),
    "detect in no pixels": lambda f, i: f.detect(np.zeros((0, 0), np.uint8)),
    "detect in floats": lambda f, i: f.detect(i.astype(np.float32)),
    "detect in a list": lambda f, i: f.detect([i, FLAT]),
    "detect in a tuple": lambda f, i: f.detect((i, i)),
    "detect in no list": lambda f, i: f.detect([]),
    "detect in a list, masks": lambda f, i: f.detect([i, i], [left_half(i), left_half(i) * 0]),
    "detect in a list, a mask and None": lambda f, i: f.detect([i, i], [left_half(i), None]),
    "detect in a list, too few masks": lambda f, i: f.detect([i, i], [left_half(i)]),
    "detect in a list, no masks": lambda f, i: f.detect([i, i], []),
    "detect in a list, mask of one": lambda f, i: f.detect([i, i], left_half(i)),
    "detect in every second pixel": lambda f, i: f.detect(i[::2, ::2]),
    "detect in a dot": lambda f, i: f.detect(i[:1, :1]),
    "detect in a strip": lambda f, i: f.detect(i[:1]),
    "both": lambda f, i: f.detectAndCompute(i, None),
    "both by keywords": lambda f, i: f.detectAndCompute(image=i, mask=None),
    "both, all arguments": lambda f, i: f.detectAndCompute(i, None, None, False),
    "both in the mask": lambda f, i: f.detectAndCompute(i, left_half(i)),
    "both, mask of zeros": lambda f, i: f.detectAndCompute(i, left_half(i) * 0),
    "both in nothing": lambda f, i: f.detectAndCompute(FLAT, None),
    "both in None": lambda f, i: f.detectAndCompute(None, None),
    "both in no pixels": lambda f, i: f.detectAndCompute(np.zeros((0, 0), np.uint8), None),
    "both in floats": lambda f, i: f.detectAndCompute(i.astype(np.float32), None),
    "both in 16 bits": lambda f, i: f.detectAndCompute(i.astype(np.uint16), None),
    "both in a name": lambda f, i: f.detectAndCompute("photo.jpg", None),
    "both in a list": lambda f, i: f.detectAndCompute([i, i], None),
    "both in (H, W, 1)": lambda f, i: f.detectAndCompute(i[:, :, :1], None),
    "both in BGRA": lambda f, i: f.detectAndCompute(np.dstack([i, i[:, :, :1]]), None),
    "both in a dot": lambda f, i: f.detectAndCompute(i[:1, :1], None),
    "both in a strip": lambda f, i: f.detectAndCompute(i[:, :1], None),
    "both with provided keypoints": lambda f, i: f.detectAndCompute(i, None, None, True),
    "compute": lambda f, i: f.compute(i, f.detect(i)),
    "compute a list": lambda f, i: f.compute(i, list(f.detect(i))),
    "compute an array": lambda f, i: f.compute(i, np.array(f.detect(i), object)),
    "compute backwards": lambda f, i: f.compute(i, f.detect(i)[::-1]),
    "compute by keywords": lambda f, i: f.compute(image=i, keypoints=f.detect(i)),
    "compute nothing": lambda f, i: f.compute(i, []),
    "compute None": lambda f, i: f.compute(i, None),
    "compute odd keypoints": lambda f, i: f.compute(i, ODD),
    "compute without an image": lambda f, i: f.compute(None, ODD[:1]),
    "compute without pixels": lambda f, i: f.compute(np.zeros((0, 5), np.uint8), ODD[:1]),
    "compute in floats": lambda f, i: f.compute(i.astype(np.float32), ODD[:1]),
    "compute in a small image": lambda f, i: f.compute(i[:3, :3], [cv2.KeyPoint(1, 1, 5)]),
    "compute points that are none": lambda f, i: f.compute(i, [(1, 2)]),
    "compute lists": lambda f, i: f.compute([i, i], [f.detect(i), []]),
    "compute lists, one too few": lambda f, i: f.compute([i, i], [f.detect(i)]),
    "compute lists, points": lambda f, i: f.compute([i], ODD[:1]),
    "compute an image, lists": lambda f, i: f.compute(i, [ODD[:1]]),
    "descriptorSize": lambda f, i: f.descriptorSize(),
    "descriptorType": lambda f, i: f.descriptorType(),
    "defaultNorm": lambda f, i: f.defaultNorm(),
    "empty": lambda f, i: f.empty(),
    "clear": lambda f, i: f.clear(),
    "getDefaultName": lambda f, i: f.getDefaultName(),
    "getNFeatures": lambda f, i: f.getNFeatures(),
    "getNOctaveLayers": lambda f, i: f.getNOctaveLayers(),
    "getContrastThreshold": lambda f, i: f.getContrastThreshold() == 0.04,
    "getEdgeThreshold": lambda f, i: f.getEdgeThreshold() == 10,
    "getSigma": lambda f, i: f.getSigma() == 1.6,
}


@pytest.mark.parametrize("name", CALLS)
def test_as_sift_does_it(name: str, colour: np.ndarray, sift: cv2.SIFT, ours: HardNet) -> None:
    expected = outcome(CALLS[name], sift, colour)
    assert outcome(CALLS[name], ours, colour) == expected


def test_every_method_of_sift_is_there(ours: HardNet) -> None:
    public = {name for name in dir(cv2.SIFT) if not name.startswith("_")}
    assert {n for n in public if not hasattr(ours, n)} == set()


def test_the_rows_are_the_descriptors_of_the_keypoints(grey: np.ndarray, ours: HardNet) -> None:
    keypoints, rows = ours.detectAndCompute(grey, None)
    expected = extract(grey, frames=keypoints)
    np.testing.assert_array_equal(rows, expected.descriptors)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)
    order = np.random.default_rng(0).permutation(len(keypoints))
    again, shuffled = ours.compute(grey, [keypoints[i] for i in order])
    assert [fields(k) for k in again] == [fields(keypoints[i]) for i in order]
    np.testing.assert_allclose(shuffled, rows[order], atol=1e-6)


def test_bgr_is_made_grey_as_sift_does(colour: np.ndarray, grey: np.ndarray, ours: HardNet) -> None:
    rows = ours.detectAndCompute(colour, None)[1]
    np.testing.assert_array_equal(rows, ours.detectAndCompute(grey, None)[1])
    wrong = ours.compute(colour[:, :, ::-1].copy(), ours.detect(grey))[1]
    assert np.abs(wrong - rows).max() > 0.05  # blue is not red


def test_keypoints_without_a_measurement_have_rows_of_zeros(
    grey: np.ndarray, ours: HardNet
) -> None:
    _, rows = ours.compute(grey, ODD)
    assert (np.abs(rows).sum(1) > 0).tolist() == [True] * 4 + [False] * 5
    assert np.isfinite(rows).all()


def test_no_angle_is_upright(grey: np.ndarray, ours: HardNet) -> None:
    points = [cv2.KeyPoint(120, 90, 9, angle) for angle in (-1, 0, 90)]
    _, rows = ours.compute(grey, points)
    np.testing.assert_array_equal(rows[0], rows[1])
    assert np.linalg.norm(rows[2] - rows[0]) > 0.3


OTHERS = {
    "orb": lambda: cv2.ORB_create(200),
    "fast": lambda: cv2.FastFeatureDetector_create(40),
    "gftt": lambda: cv2.GFTTDetector_create(100),
    "mser": lambda: cv2.MSER_create(),
    "brisk": lambda: cv2.BRISK_create(),
    "akaze": lambda: cv2.AKAZE_create(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_keypoints_of_any_detector(name: str, grey: np.ndarray, ours: HardNet) -> None:
    try:
        detector = OTHERS[name]()
    except AttributeError:
        pytest.skip(f"OpenCV {cv2.__version__} has no {name} here")
    found = detector.detect(grey, None)
    assert len(found) > 10
    kept, rows = ours.compute(grey, found)
    assert [fields(k) for k in kept] == [fields(k) for k in found]
    np.testing.assert_array_equal(rows, extract(grey, frames=from_opencv(found)).descriptors)


def test_the_window_can_be_another(grey: np.ndarray, ours: HardNet) -> None:
    points = cv2.ORB_create(20).detect(grey, None)
    small = [cv2.KeyPoint(*k.pt, k.size / 3, k.angle) for k in points]
    _, expected = ours.compute(grey, small)
    _, rows = HardNet(window=4).compute(grey, points)
    np.testing.assert_allclose(rows, expected, atol=1e-5)
    with pytest.raises(HardnetError, match="window"):
        HardNet(window=0)


def test_parameters_are_those_of_sift(grey: np.ndarray) -> None:
    options = {"nfeatures": 40, "nOctaveLayers": 4, "contrastThreshold": 0.02, "sigma": 1.4}
    expected = cv2.SIFT.create(**options, enable_precise_upscale=True).detect(grey)
    for made in (
        HardNet(**options),
        HardNet.create(**options),
        HardNet_create(40, 4, 0.02, 10, 1.4),
    ):
        assert list(map(fields, made.detect(grey))) == list(map(fields, expected))
    made.setNFeatures(7)
    assert made.getNFeatures() == 7
    assert len(made.detect(grey)) < 10  # SIFT keeps all that are as strong as the seventh
    biased = HardNet(enable_precise_upscale=False).detect(grey)
    assert list(map(fields, biased)) == list(map(fields, cv2.SIFT_create().detect(grey)))
    with pytest.raises(AttributeError, match="nothing"):
        _ = made.nothing


def test_parameters_in_a_file_of_opencv(tmp_path: Path) -> None:
    file = str(tmp_path / "sift.yml")
    HardNet(nfeatures=7, sigma=1.5).write(file)
    storage = cv2.FileStorage(file, cv2.FILE_STORAGE_READ)
    for other in (HardNet(), cv2.SIFT_create()):
        other.read(storage.root())
        assert (other.getNFeatures(), other.getSigma()) == (7, 1.5)


@pytest.mark.parametrize("shape", [(5, 220), (150, 5), (220, 150)])
def test_a_mask_that_does_not_fit(grey: np.ndarray, ours: HardNet, shape: tuple[int, int]) -> None:
    # OpenCV 4 and 5 read past the end of it.
    mask = np.ones(shape, np.uint8)
    for call in (lambda: ours.detect(grey, mask), lambda: ours.detectAndCompute(grey, mask)):
        with pytest.raises(cv2.error, match="mask"):
            call()
    with pytest.raises(HardnetError, match="mask"):
        ours.detect([grey, grey], [None, mask])


def test_an_array_for_the_result_is_used_if_it_fits(grey: np.ndarray, ours: HardNet) -> None:
    points = ours.detect(grey)[:5]
    fits, too_large = np.zeros((5, 128), np.float32), np.zeros((6, 128), np.float32)
    assert ours.compute(grey, points, fits)[1] is fits
    np.testing.assert_array_equal(fits, ours.compute(grey, points)[1])
    assert ours.compute(grey, points, too_large)[1].shape == (5, 128)
    assert not too_large.any()


def test_umat_gives_umat(grey: np.ndarray, ours: HardNet) -> None:
    points, rows = ours.detectAndCompute(cv2.UMat(grey), None)
    assert isinstance(rows, cv2.UMat)
    np.testing.assert_array_equal(rows.get(), ours.compute(grey, points)[1])


@pytest.mark.parametrize(
    ("name", "size", "kind", "norm"),
    [
        ("hardnet-int8", 128, cv2.CV_32F, cv2.NORM_L2),
        ("rootsift", 128, cv2.CV_32F, cv2.NORM_L2),
        ("bits", 1, cv2.CV_8U, cv2.NORM_HAMMING),
    ],
)
def test_other_descriptors(grey: np.ndarray, name: str, size: int, kind: int, norm: int) -> None:
    made = HardNet(20, descriptor=Bits() if name == "bits" else name)
    assert (made.descriptorSize(), made.descriptorType(), made.defaultNorm()) == (size, kind, norm)
    points, rows = made.detectAndCompute(grey, None)
    assert rows.shape == (len(points), size)
    matches = cv2.BFMatcher(made.defaultNorm(), crossCheck=False).match(rows, rows)
    assert max(m.distance for m in matches) == 0


class Bits:
    """Eight bits per patch."""

    name, dim = "bits", 8

    def __call__(self, patches: np.ndarray) -> np.ndarray:
        means = patches.reshape(len(patches), 8, -1).mean(2)
        return np.packbits(means > means.mean(1, keepdims=True), axis=1)


def test_matchers_take_the_rows(photos: Path) -> None:
    left = cv2.imread(str(photos / "motorcycle_left.png"))
    right = cv2.imread(str(photos / "motorcycle_right.png"))
    ours = HardNet(300)
    (ka, a), (kb, b) = ours.detectAndCompute(left, None), ours.detectAndCompute(right, None)
    distances = np.linalg.norm(a[:, None] - b[None], axis=2)
    flann = cv2.FlannBasedMatcher({"algorithm": 1, "trees": 4}, {"checks": 1000})
    for matcher in (cv2.BFMatcher(cv2.NORM_L2), flann):
        found = matcher.knnMatch(a, b, k=2)
        right_answers = [m.trainIdx == distances[m.queryIdx].argmin() for m, _ in found]
        assert np.mean(right_answers) > (0.999 if matcher is not flann else 0.9)
        good = [m for m, n in found if m.distance < 0.8 * n.distance]
        rows = [abs(ka[m.queryIdx].pt[1] - kb[m.trainIdx].pt[1]) < 2 for m in good]
        assert len(good) > 80
        assert np.mean(rows) > 0.9  # a rectified pair: matches lie in the same row
    mutual = cv2.BFMatcher(cv2.NORM_L2, crossCheck=True).match(a, b)
    assert all(distances[:, m.trainIdx].argmin() == m.queryIdx for m in mutual)
    picture = cv2.drawMatches(left, ka, right, kb, good, None)
    assert picture.shape[1] == left.shape[1] + right.shape[1]
    rich = cv2.DRAW_MATCHES_FLAGS_DRAW_RICH_KEYPOINTS
    assert cv2.drawKeypoints(left, ka, None, flags=rich).shape == left.shape
    assert cv2.KeyPoint_convert(ka).shape == (len(ka), 2)


def test_keypoints_and_matches_are_pickled_and_copied(grey: np.ndarray, ours: HardNet) -> None:
    points = (*ours.detect(grey)[:20], cv2.KeyPoint(1, 2, 3, 4, 5, 6, 7))
    for same in (pickle.loads(pickle.dumps(points)), copy.deepcopy(points)):
        assert list(map(fields, same)) == list(map(fields, points))
    assert fields(copy.copy(points[0])) == fields(points[0])
    match = pickle.loads(pickle.dumps(cv2.DMatch(1, 2, 3, 4.5)))
    assert (match.queryIdx, match.trainIdx, match.imgIdx, match.distance) == (1, 2, 3, 4.5)


def test_pickles_of_keypoints_need_opencv_only() -> None:
    assert b"hardnet" not in pickle.dumps(cv2.KeyPoint(1, 2, 3))


def test_itself_is_pickled_and_copied(grey: np.ndarray) -> None:
    made = HardNet(50, sigma=1.4, descriptor="hardnet-int8", window=10)
    made.setContrastThreshold(0.03)
    expected, rows = made.detectAndCompute(grey, None)
    for same in (pickle.loads(pickle.dumps(made)), copy.copy(made), copy.deepcopy(made)):
        points, again = same.detectAndCompute(grey, None)
        assert list(map(fields, points)) == list(map(fields, expected))
        np.testing.assert_array_equal(again, rows)


def _in_another_process(image: np.ndarray) -> tuple[Any, Any]:
    return HardNet(10, descriptor="rootsift").detectAndCompute(image, None)


def test_results_of_other_processes(grey: np.ndarray) -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        ((points, rows),) = pool.map(_in_another_process, [grey])
    here = _in_another_process(grey)
    assert list(map(fields, points)) == list(map(fields, here[0]))
    np.testing.assert_array_equal(rows, here[1])


def test_the_default_is_shipped(ours: HardNet, grey: np.ndarray) -> None:
    with pytest.raises(HardnetError, match="hardnet-int8"):
        HardNet(descriptor="hardnet-int9")
    made = HardNet(5, descriptor=descriptors.load(descriptors.for_photos(descriptors.DEFAULT)))
    points = made.detect(grey)
    np.testing.assert_array_equal(made.compute(grey, points)[1], ours.compute(grey, points)[1])
