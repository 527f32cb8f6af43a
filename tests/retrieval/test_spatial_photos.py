"""Spatial verification of real photographs whose geometry is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest

import hardnet
from hardnet.features import Features
from hardnet.images import read_image, to_grey
from hardnet.retrieval.query import Query, make_query, region_of
from hardnet.retrieval.store.segment import (
    IndexedImage,
    Segment,
    pack_frames,
    unpack_frames,
    write_segment,
)
from hardnet.retrieval.verification import Verification, Verified, verify_parts
from hardnet.retrieval.vocabulary import Vocabulary, prepare


def verify_images(
    query: Query, segment: Segment, images: Sequence[int], how: Verification
) -> list[Verified]:
    numbers = np.asarray(images, np.int64).reshape(-1)
    found = verify_parts(query, [(segment, 0, numbers)], how)
    return [found[image] for image in numbers.tolist()]


WORDS = 128
AFFINE = np.array([[0.75, 0.3, -20.0], [-0.25, 0.8, 120.0]])
HOMOGRAPHY = np.array([[0.9, 0.1, 20.0], [-0.05, 0.95, 30.0], [2e-4, 1e-4, 1.0]])
BOX = (180.0, 60.0, 150.0, 180.0)  # the man and his camera


def extract(pixels: np.ndarray) -> Features:
    return hardnet.extract(pixels, descriptor="hardnet-small", keypoints=600)


def small_vocabulary(features: list[Features]) -> Vocabulary:
    """Words that are descriptors, picked at random."""
    rng = np.random.default_rng(0)
    everything = np.concatenate([one.descriptors for one in features])
    mean = everything.mean(axis=0)
    words = prepare(rng.permutation(everything)[:WORDS], mean)
    projection = np.linalg.qr(rng.standard_normal((128, 128)))[0].astype(np.float32)
    thresholds = (words @ projection.T).astype(np.float16) * np.float16(0.5)
    return Vocabulary(words, mean, projection, thresholds, features[0].descriptor)


def segment_of(path: Path, features: list[Features], vocabulary: Vocabulary) -> Segment:
    indexed = []
    for number, one in enumerate(features):
        ready = vocabulary.prepare(one.descriptors)
        word = vocabulary.assign(ready)
        signatures = vocabulary.signatures(ready, word)[:, 0]
        packed = pack_frames(one.frames, one.image_size)
        indexed.append(IndexedImage(str(number), one.image_size, word[:, 0], signatures, packed))
    write_segment(path, indexed, WORDS)
    return Segment(path)


@pytest.fixture(scope="module")
def scene(camera: np.ndarray, photos: Path, tmp_path_factory: pytest.TempPathFactory):
    """Features of a photo, a vocabulary, and a segment of it, of its warps and of other photos."""
    own = extract(camera)
    size = (600, 560)
    homography = np.vstack([AFFINE, [0, 0, 1]])
    turned = cv2.warpAffine(camera, AFFINE, size, borderMode=cv2.BORDER_REPLICATE)
    tilted = cv2.warpPerspective(camera, HOMOGRAPHY, size, borderMode=cv2.BORDER_REPLICATE)
    others = [to_grey(read_image(photos / name)) for name in ("coffee.png", "brick.png")]
    features = [own, *(extract(pixels) for pixels in (turned, tilted, *others))]
    vocabulary = small_vocabulary(features[2:])
    path = tmp_path_factory.mktemp("scene") / "segment"
    segment = segment_of(path, features, vocabulary)
    return own, vocabulary, segment, (np.eye(3), homography, HOMOGRAPHY)


def worst_error(transform: np.ndarray, truth: np.ndarray, points: np.ndarray) -> float:
    """How far points are carried from where a homography puts them, at most, in pixels."""
    exact = cv2.perspectiveTransform(points[None].astype(np.float64), truth)[0]
    return float(np.hypot(*(points @ transform[:, :2].T + transform[:, 2] - exact).T).max())


def test_photo_and_warps_are_found_and_others_are_not(scene) -> None:
    own, vocabulary, segment, truths = scene
    query = make_query(own, vocabulary)
    found = verify_images(query, segment, np.arange(5), Verification())
    same, turned, tilted, *others = found
    assert same.inliers >= 0.95 * len(own)
    assert turned.inliers > 100
    assert tilted.inliers > 100
    assert [Verification().is_sure(one) for one in found] == [True, True, True, False, False]
    assert len(others) == 2

    # Corners of the whole photo, in pixels; measured: 0.05 and 0.08.
    corners = np.array([(0, 0), (511, 0), (511, 511), (0, 511)], np.float64)
    for one, truth, pixels in ((same, truths[0], 0.15), (turned, truths[1], 0.5)):
        assert one.transform is not None
        assert worst_error(one.transform, truth, corners) < pixels
    # A homography is not affine: right in the middle of the inliers, off at the corners.
    assert tilted.transform is not None
    middle = own.frames[tilted.pairs[:, 0], :, 2].mean(axis=0)[None]
    assert worst_error(tilted.transform, truths[2], middle) < 3
    # Nearly all inliers are right.
    for one, truth in zip((same, turned, tilted), truths, strict=True):
        exact = cv2.perspectiveTransform(own.frames[one.pairs[:, 0], :, 2][None], truth)[0]
        image = segment.image_ids[one.pairs[:, 1]]
        assert len(np.unique(image)) == 1
        stored = unpack_frames(segment.geometry[one.pairs[:, 1]], segment.image_sizes[one.image])[
            :, :, 2
        ]
        assert (np.hypot(*(stored - exact).T) < 5).mean() > 0.9


def test_the_region_of_a_box_lands_where_it_is(scene) -> None:
    own, vocabulary, segment, truths = scene
    query = make_query(own, vocabulary, box=BOX)
    assert 30 < len(query) < len(own)
    for number, found in enumerate(verify_images(query, segment, np.arange(3), Verification())):
        assert Verification().is_sure(found)
        assert found.transform is not None
        region = region_of(query.region(0), found.transform)
        x, y, width, height = BOX
        corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
        exact = cv2.perspectiveTransform(np.array([corners]), truths[number])[0]
        assert np.hypot(*(region - exact).T).max() < (1 if number < 2 else 8)


def test_a_crop_of_a_photo_is_found_where_it_was_cut(scene, camera: np.ndarray) -> None:
    """A file of its own, so its keypoints are others and its size is."""
    _, vocabulary, segment, truths = scene
    x, y, width, height = (int(value) for value in BOX)
    query = make_query(extract(camera[y : y + height, x : x + width]), vocabulary)
    found = verify_images(query, segment, np.arange(5), Verification())
    cut = np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], np.float64)
    corners = np.array([(0, 0), (width, 0), (width, height), (0, height)], np.float64)
    for number in (0, 1):
        transform = found[number].transform
        assert transform is not None
        assert worst_error(transform, truths[number] @ cut, corners) < 1
    assert not any(Verification().is_sure(one) for one in found[3:])


@pytest.mark.slow
def test_unrelated_photos_are_rarely_verified(data: Path, tmp_path: Path) -> None:
    """10 objects, 4 photos each; the vocabulary is tiny, so that much agrees by chance."""
    paths = sorted((data / "ukbench").rglob("*.jpg"))[:40]
    features = [extract(read_image(path)) for path in paths]
    vocabulary = small_vocabulary(features)
    segment = segment_of(tmp_path / "segment", features, vocabulary)
    same, other = [], []
    for number, one in enumerate(features):
        found = verify_images(make_query(one, vocabulary), segment, np.arange(40), Verification())
        for answer in found:
            if answer.image != number:
                related = answer.image // 4 == number // 4
                (same if related else other).append(Verification().is_sure(answer))
    assert np.mean(same) > 0.85
    assert np.mean(other) < 0.002


def test_pages_of_one_font_are_not_the_same_page(tmp_path: Path) -> None:
    """Every letter agrees with every other of its kind, and many lie on the right spot."""
    numbers = [str(digit) * 3 for digit in range(10)]
    pages = []
    for seed in range(2):
        rng, page = np.random.default_rng(seed), np.full((1000, 800), 255, np.uint8)
        for line in range(30):
            place, text = (20, 40 + 32 * line), " ".join(rng.choice(numbers, 9))
            cv2.putText(page, text, place, cv2.FONT_HERSHEY_SIMPLEX, 0.7, 0, 2, cv2.LINE_AA)
        pages.append(page)
        cv2.imwrite(str(tmp_path / f"{seed}.png"), page)
    paths = [tmp_path / "0.png", tmp_path / "1.png"]
    settings = {
        "words": 512,
        "descriptor": "hardnet-small@12+24",
        "keypoints": 600,
        "spread": False,
    }
    index = hardnet.Index.build(tmp_path / "index", paths, **settings)
    results = index.search(paths[0])
    assert [Path(hit.path).name for hit in results] == ["0.png", "1.png"]
    same, other = results
    assert same.verified
    assert other.inliers > 20, "more than 10 and one in a hundred of those that are looked at"
    assert not other.verified
