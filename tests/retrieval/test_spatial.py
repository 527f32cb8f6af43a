"""Spatial verification: against explicit loops, and in cases whose answer is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import comb, log, sqrt
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.frames import Frames, from_similarity, transform
from hardnet.retrieval.query import Query
from hardnet.retrieval.search import rerank
from hardnet.retrieval.store.segment import (
    IndexedImage,
    Segment,
    pack_frames,
    unpack_frames,
    write_segment,
)
from hardnet.retrieval.verification import PIECE_FEATURES, Verification, Verified, verify_parts


def verify_images(
    query: Query, segment: Segment, images: Sequence[int], how: Verification
) -> list[Verified]:
    numbers = np.asarray(images, np.int64).reshape(-1)
    found = verify_parts(query, [(segment, 0, numbers)], how)
    return [found[image] for image in numbers.tolist()]


SIZE = (1024, 768)
WORDS = 4096
SIMILARITY = np.array([[0.8, 0.2, 50.0], [-0.2, 0.8, 160.0]])
AFFINE = np.array([[0.7, 0.25, 60.0], [-0.1, 0.9, 70.0]])


def frames_of(rng: np.random.Generator, count: int, size: tuple[int, int] = SIZE) -> Frames:
    """Keypoints of a photo: anywhere, of any size and angle."""
    place = rng.uniform((60, 60), (size[0] - 60, size[1] - 60), (count, 2))
    return from_similarity(place, rng.uniform(2, 10, count), rng.uniform(0, 2 * np.pi, count))


def moved(frames: Frames, affine: np.ndarray) -> Frames:
    return transform(frames, np.vstack([affine, [0, 0, 1]]))


def bits_of(words: np.ndarray, flipped: int = 0) -> np.ndarray:
    """(N, 2) a signature for each word, with some bits flipped."""
    words = words.astype(np.uint64)
    both = np.stack([words * np.uint64(0x9E3779B97F4A7C15), words * np.uint64(0xBF58476D1CE4E5B9)])
    return (both.T ^ np.uint64((1 << flipped) - 1)).copy()


def query_of(
    *views: tuple[Frames, np.ndarray], sizes: tuple[tuple[int, int], ...] | None = None
) -> Query:
    """A query of views: frames, and a word for each."""
    words = np.concatenate([words for _, words in views]).astype(np.int32)
    return Query(
        words=words[:, None],
        signatures=bits_of(words)[:, None],
        frames=np.concatenate([frames for frames, _ in views]),
        view=np.repeat(np.arange(len(views), dtype=np.int32), [len(v[0]) for v in views]),
        view_sizes=sizes or (SIZE,) * len(views),
        boxes=(None,) * len(views),
    )


@pytest.fixture
def segment_of(tmp_path: Path):
    """Makes a segment of images: frames, a word for each, the size of the image."""

    def make(*images: tuple[Frames, np.ndarray], size: tuple[int, int] = SIZE) -> Segment:
        path = tmp_path / "segment"
        path.unlink(missing_ok=True)
        indexed = [
            IndexedImage(
                str(number), size, words.astype(np.int32), bits_of(words), pack_frames(frames, size)
            )
            for number, (frames, words) in enumerate(images)
        ]
        write_segment(path, indexed, WORDS)
        return Segment(path)

    return make


def corner_error(found: Verified, truth: np.ndarray, size: tuple[int, int] = SIZE) -> float:
    """How far the corners of the query are from where they belong, at most, in pixels."""
    assert found.transform is not None
    corners = np.array([(0, 0), (size[0], 0), size, (0, size[1])])
    apart = (found.transform - truth) @ np.column_stack([corners, np.ones(4)]).T
    return float(np.hypot(*apart).max())


@pytest.mark.parametrize("truth", [SIMILARITY, AFFINE])
def test_a_known_map_among_outliers(segment_of, truth: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    frames, words = frames_of(rng, 200), np.arange(200)
    placed = moved(frames, truth)
    placed[60:] = frames_of(rng, 140)  # 60 inliers, 140 outliers
    (found,) = verify_images(
        query_of((frames, words)), segment_of((placed, words)), [0], Verification()
    )
    assert set(range(60)) <= set(found.pairs[:, 0].tolist())
    assert found.inliers == len(found.pairs) <= 64
    assert found.tentatives == 200
    assert corner_error(found, truth) < 0.5
    assert found.view == 0


def test_the_identical_image(segment_of) -> None:
    rng = np.random.default_rng(1)
    frames, words = frames_of(rng, 500), rng.permutation(WORDS)[:500]
    segment = segment_of((frames, words))
    (found,) = verify_images(query_of((frames, words)), segment, [0], Verification())
    assert found.inliers == 500
    # Places are stored to a quarter of a pixel here; 500 of them average that out.
    assert corner_error(found, np.eye(2, 3)) < 0.1
    own = segment.postings_of(0)
    np.testing.assert_array_equal(np.sort(found.pairs[:, 1]), np.sort(own))


def slow_inliers(
    query: Frames, image: Frames, model: np.ndarray, limit: float, ratio: float
) -> list[int]:
    """Of pairs i, i: those that agree with a (2, 3) model."""
    inverse = np.linalg.inv(np.vstack([model, [0, 0, 1]]))[:2]
    chosen = []
    for j in range(len(query)):
        there = model @ [*query[j, :, 2], 1] - image[j, :, 2]
        back = inverse @ [*image[j, :, 2], 1] - query[j, :, 2]
        area = np.linalg.det(model[:, :2] @ query[j, :, :2]) / np.linalg.det(image[j, :, :2])
        if there @ there + back @ back < limit and abs(log(area)) < log(ratio):
            chosen.append(j)
    return chosen


def slow_fit(query: Frames, image: Frames, chosen: list[int]) -> np.ndarray:
    """Least squares over centres, and over axes with a tenth of the weight."""
    rows, targets = [], []
    for j in chosen:
        for column, kind, weight in ((2, 1.0, 1.0), (0, 0.0, sqrt(0.1)), (1, 0.0, sqrt(0.1))):
            rows.append(weight * np.array([*query[j, :, column], kind]))
            targets.append(weight * image[j, :, column].astype(np.float64))
    return np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)[0].T


def slow_verify(query: Frames, image: Frames, limit: float) -> tuple[list[int], np.ndarray]:
    """All hypotheses and the local optimisation, for pairs i, i; without the last polish."""
    best, best_model = [], np.zeros((2, 3))
    for i in range(len(query)):
        linear = image[i, :, :2].astype(np.float64) @ np.linalg.inv(query[i, :, :2])
        model = np.column_stack([linear, image[i, :, 2] - linear @ query[i, :, 2]])
        chosen = slow_inliers(query, image, model, limit, sqrt(1000))
        if len(chosen) <= len(best) or len(chosen) < 3:
            continue
        best, best_model = chosen, model
        for wider in (sqrt(2), sqrt(2) - (sqrt(2) - 1) / 3, sqrt(2) - (sqrt(2) - 1) * 2 / 3, 1):
            model = slow_fit(query, image, chosen)
            chosen = slow_inliers(query, image, model, wider * limit, sqrt(1000))
            if len(chosen) < 3:
                break
        else:
            if len(chosen) >= len(best):
                best, best_model = chosen, model
    return best, best_model


@pytest.mark.parametrize("seed", range(4))
def test_equal_to_explicit_loops(segment_of, seed: int) -> None:
    """Loose threshold, wrong scales, noise in place and angle: every rule has work to do."""
    rng = np.random.default_rng(seed)
    frames, words = frames_of(rng, 40), np.arange(40)
    placed = moved(frames, AFFINE)
    placed[:, :, 2] += rng.normal(0, 12, (40, 2))
    placed[20:] = frames_of(rng, 20)
    placed[:4, :, :2] *= 7  # 49 times the area
    verification = Verification(pixels=20.0, min_inliers=3)
    segment = segment_of((placed, words))
    (found,) = verify_images(query_of((frames, words)), segment, [0], verification)
    stored = unpack_frames(pack_frames(placed, SIZE), SIZE)
    expected, model = slow_verify(frames, stored, 20.0**2)
    assert found.pairs[:, 0].tolist() == expected
    assert not {0, 1, 2, 3} & set(expected)
    assert len(expected) >= 5
    # The last polish moves the model by less than the threshold.
    assert 0 < corner_error(found, model) < 40


def test_photos_of_any_size_have_the_same_inliers(segment_of) -> None:
    rng = np.random.default_rng(3)
    frames, words = frames_of(rng, 60), np.arange(60)
    placed = moved(frames, SIMILARITY)
    placed[:, :, 2] += rng.uniform(-35, 35, (60, 2))
    counts = []
    for factor in (1, 4):
        size = (SIZE[0] * factor, SIZE[1] * factor)
        segment = segment_of((placed * np.float32(factor), words), size=size)
        for shrink in (1, 0.25):
            query = query_of(
                (frames * np.float32(shrink), words),
                sizes=((int(SIZE[0] * shrink), int(SIZE[1] * shrink)),),
            )
            (found,) = verify_images(query, segment, [0], Verification())
            counts.append(found.pairs.tolist())
            assert found.transform is not None
            growth = sqrt(np.linalg.det(found.transform[:, :2])) * shrink / factor
            assert growth == pytest.approx(sqrt(0.68), rel=0.1)
    assert counts[0] == counts[1] == counts[2] == counts[3]
    assert 10 < len(counts[0]) < 60


def test_one_to_one(segment_of) -> None:
    """A repeated structure: 30 features of one word on one spot are no 30 inliers."""
    rng = np.random.default_rng(4)
    frames, words = frames_of(rng, 3), np.arange(3)
    crowd = np.repeat(frames[:1], 30, axis=0)
    crowd[:, :, 2] += rng.uniform(-3, 3, (30, 2)).astype(np.float32)
    many = np.concatenate([crowd, frames[1:]]), np.array([0] * 30 + [1, 2])
    verification = Verification(min_inliers=1)
    (found,) = verify_images(query_of((frames, words)), segment_of(many), [0], verification)
    assert found.inliers == 3
    (found,) = verify_images(query_of(many), segment_of((frames, words)), [0], verification)
    assert found.inliers == 3
    (found,) = verify_images(query_of(many), segment_of(many), [0], verification)
    assert found.inliers == 32
    for column in range(2):
        assert len(np.unique(found.pairs[:, column])) == 32


@pytest.mark.parametrize("direction", [(1, 0), (0.6, 0.8)])
def test_centres_on_a_line(segment_of, direction: tuple[float, float]) -> None:
    """Centres on a line leave the map open; the frames do not."""
    rng = np.random.default_rng(5)
    along = rng.uniform(100, 700, 12)[:, None] * np.array(direction)
    frames = from_similarity(along, rng.uniform(5, 10, 12), rng.uniform(0, 6, 12))
    words = np.arange(12)
    (found,) = verify_images(
        query_of((frames, words)),
        segment_of((moved(frames, SIMILARITY), words)),
        [0],
        Verification(),
    )
    assert found.inliers == 12
    assert found.transform is not None
    # To the precision of stored angles and sizes: 1.4 degrees, 4 percent.
    np.testing.assert_allclose(found.transform[:, :2], SIMILARITY[:, :2], atol=0.03)


def test_all_on_one_spot(segment_of) -> None:
    rng = np.random.default_rng(6)
    frames = from_similarity(np.full((10, 2), 300.0), rng.uniform(3, 9, 10), rng.uniform(0, 6, 10))
    words = np.arange(10)
    (found,) = verify_images(
        query_of((frames, words)),
        segment_of((moved(frames, SIMILARITY), words)),
        [0],
        Verification(),
    )
    assert found.inliers == 10
    assert found.transform is not None
    np.testing.assert_allclose(found.transform[:, :2], SIMILARITY[:, :2], atol=0.05)


def test_a_mirrored_photo_is_not_verified_as_a_whole(segment_of) -> None:
    """Frames cannot mirror: of mirrored places only those near one spot agree."""
    rng = np.random.default_rng(7)
    frames, words = frames_of(rng, 200), np.arange(200)
    mirrored = frames.copy()
    mirrored[:, 0, 2] = SIZE[0] - frames[:, 0, 2]
    (found,) = verify_images(
        query_of((frames, words)), segment_of((mirrored, words)), [0], Verification()
    )
    assert found.inliers < 40
    if found.transform is not None:
        assert np.linalg.det(found.transform[:, :2]) > 0


def test_the_best_view_answers(segment_of) -> None:
    rng = np.random.default_rng(9)
    frames, words = frames_of(rng, 80), np.arange(80)
    other, few = frames_of(rng, 80), np.arange(80)
    segment = segment_of((moved(frames, SIMILARITY), words))
    query = query_of((other, few), (frames[:30], words[:30]), (frames[:30], words[:30]))
    (found,) = verify_images(query, segment, [0], Verification())
    assert (found.view, found.inliers) == (1, 30)
    assert found.pairs[:, 0].min() >= 80
    assert corner_error(found, SIMILARITY) < 0.5


def test_what_counts_as_verified(segment_of) -> None:
    rng = np.random.default_rng(10)
    frames = frames_of(rng, 12)
    words = np.arange(12)
    query = query_of((frames, words))
    segment = segment_of(
        (moved(frames, SIMILARITY)[:3], words[:3]),
        (moved(frames, SIMILARITY)[:4], words[:4]),
        (frames[:0], words[:0]),
        (frames, words + 1000),
    )
    three, four, empty, others = verify_images(query, segment, [0, 1, 2, 3], Verification())
    assert (three.inliers, three.transform, len(three.pairs)) == (0, None, 0)
    assert four.inliers == 4
    assert four.transform is not None
    for nothing in (empty, others):
        assert (nothing.inliers, nothing.transform, nothing.view) == (0, None, 0)
        assert nothing.pairs.shape == (0, 2)
    assert [one.image for one in (three, four, empty, others)] == [0, 1, 2, 3]


def test_a_query_without_features_and_no_images(segment_of) -> None:
    frames, words = frames_of(np.random.default_rng(0), 5), np.arange(5)
    segment = segment_of((frames, words))
    (found,) = verify_images(query_of((frames[:0], words[:0])), segment, [0], Verification())
    assert found.transform is None
    assert verify_images(query_of((frames, words)), segment, [], Verification()) == []


def test_any_number_of_threads_and_any_order_give_the_same(segment_of) -> None:
    rng = np.random.default_rng(11)
    count, features = 45, PIECE_FEATURES // 20
    frames, words = frames_of(rng, features), np.arange(features)
    images = []
    for _ in range(count):
        placed = moved(frames, SIMILARITY)
        lost = rng.random(features) < 0.7
        placed[lost] = frames_of(rng, int(lost.sum()))
        images.append((placed, words))
    segment, query = segment_of(*images), query_of((frames, words))
    before = cv2.getNumThreads()
    answers = []
    try:
        for threads in (1, 2):
            cv2.setNumThreads(threads)
            answers.append(verify_images(query, segment, np.arange(count), Verification()))
    finally:
        cv2.setNumThreads(before)
    answers.append(verify_images(query, segment, np.arange(count)[::-1], Verification())[::-1])
    assert sum(one.inliers for one in answers[0]) > count * 20
    for other in answers[1:]:
        for a, b in zip(answers[0], other, strict=True):
            assert (a.image, a.inliers, a.view) == (b.image, b.inliers, b.view)
            np.testing.assert_array_equal(a.transform, b.transform)
            np.testing.assert_array_equal(a.pairs, b.pairs)


def test_a_wall_of_bricks_is_bounded(segment_of) -> None:
    """One word for all 600 features: 360,000 pairs, of which 2048 are looked at."""
    rng = np.random.default_rng(12)
    frames, words = frames_of(rng, 600), np.full(600, 9)
    segment = segment_of((frames, words))
    (found,) = verify_images(query_of((frames, words)), segment, [0], Verification())
    # The signatures are all the same, so the first pairs are of the first features.
    assert 0 < found.inliers <= 600
    assert len(np.unique(found.pairs[:, 1])) == found.inliers


def test_rerank() -> None:
    none = np.zeros((0, 2), np.int64)

    def answer(image: int, inliers: int) -> Verified:
        return Verified(image, inliers, np.eye(2, 3) if inliers else None, 0, none)

    images = np.array([10, 11, 12, 13, 14, 15])
    scores = np.array([0.9, 0.8, 0.8, 0.7, 0.3, 0.3], np.float32)
    verified = [answer(14, 30), answer(12, 5), answer(10, 0), answer(13, 5), answer(11, 0)]
    order = rerank(images, scores, verified, [10, 12, 13, 14])
    assert images[order].tolist() == [14, 12, 13, 10, 11, 15]
    assert rerank(images, scores, [], [10]).tolist() == [0, 1, 2, 3, 4, 5]
    # Equal inliers and scores: the lower number.
    both = [answer(15, 4), answer(14, 4)]
    assert rerank(images[::-1], scores[::-1], both, {14, 15})[:2].tolist() == [1, 0]
    assert len(rerank(images[:0], scores[:0], [], [])) == 0


def test_inliers_beyond_chance_raise_the_score() -> None:
    none = np.zeros((0, 2), np.int64)

    def answer(image: int, inliers: int, tentatives: int) -> Verified:
        return Verified(image, inliers, np.eye(2, 3), 0, none, tentatives)

    images = np.array([10, 11, 12, 13, 14, 15])
    scores = np.array([0.9, 0.8, 0.5, 0.4, 0.0, 0.0], np.float32)
    # 12: 6 inliers, 3 and 0.03 * 50 of them by chance: 0.5 * 2.5 = 1.25. 13: no more than chance.
    verified = [answer(12, 6, 50), answer(13, 6, 100), answer(15, 4, 0), answer(11, 20, 0)]
    order = rerank(images, scores, verified, {11})
    assert images[order].tolist() == [11, 12, 10, 13, 15, 14]
    order = rerank(images, scores, verified[:2], ())
    assert images[order].tolist() == [12, 10, 11, 13, 14, 15]


def test_sure_is_more_than_chance() -> None:
    def answer(inliers: int, tentatives: int, features: int = 10**6) -> Verified:
        pairs = np.zeros((inliers, 2), np.int64)
        return Verified(0, inliers, np.eye(2, 3), 0, pairs, tentatives, features)

    verification = Verification()
    assert verification.is_sure(answer(10, 0))
    assert not verification.is_sure(answer(9, 90))
    assert verification.is_sure(answer(21, 1000))
    assert not verification.is_sure(answer(20, 1000))
    # Ten candidates of each of 100 features: by chance 9.6 features have one on the right spot.
    assert verification.is_sure(answer(20, 1000, 100))
    assert not verification.is_sure(answer(19, 1000, 100))
    # However many candidates there are, no more than all 100 features can be inliers by chance.
    assert verification.is_sure(answer(110, 10**6, 100))
    assert not verification.is_sure(answer(109, 10**6, 100))
    unverified = Verified(0, 50, None, 0, np.zeros((0, 2), np.int64))
    assert not verification.is_sure(unverified)


def test_few_features_may_be_sure_too() -> None:
    def answer(inliers: int, tentatives: int, features: int) -> Verified:
        pairs = np.zeros((inliers, 2), np.int64)
        return Verified(0, inliers, np.eye(2, 3), 0, pairs, tentatives, features)

    verification = Verification()
    # One candidate for each of 20 features, so 1 % of them agree with one of 20 hypotheses by
    # chance. Six others do in 20 * 27132 * 1e-12 = 5e-7 cases at most, seven in 1e-8, eight in
    # 20 * 75582 * 1e-16 = 2e-10.
    assert [verification.is_sure(answer(k, 20, 20)) for k in (7, 8, 9)] == [False, False, True]
    assert replace(verification, false_alarms=1e-6).is_sure(answer(7, 20, 20))
    # Nearly all of the few candidates agree, whatever the number of features.
    assert verification.is_sure(answer(7, 9, 355))
    assert not verification.is_sure(answer(5, 14, 12))
    assert not verification.is_sure(answer(3, 3, 3))  # not even re-ranked


def test_the_bound_for_few_features_is_above_what_chance_gives() -> None:
    """Features that agree at random, counted, beside the sum that the bound stands for."""
    rng = np.random.default_rng(0)
    features, hypotheses, chance, trials = 12, 5, 0.1, 20_000
    others = rng.random((trials, hypotheses, features - 1)) < chance
    best = others.sum(axis=2).max(axis=1) + 1  # and the inlier that made the hypothesis
    verification = Verification(verified_share=chance, verified_inliers=1000)
    for inliers in (4, 5, 6):
        expected = hypotheses * comb(features - 1, inliers - 1) * chance ** (inliers - 1)
        assert (best >= inliers).mean() < expected
        sure = replace(verification, max_hypotheses=hypotheses, false_alarms=1.01 * expected)
        unsure = replace(sure, false_alarms=0.99 * expected)
        pairs = np.zeros((inliers, 2), np.int64)
        found = Verified(0, inliers, np.eye(2, 3), 0, pairs, features, features)
        assert sure.is_sure(found)
        assert not unsure.is_sure(found)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pixels": 0},
        {"pixels": float("nan")},
        {"area_ratio": 1},
        {"ma": 0},
        {"shortlist": 0},
        {"first": 0},
    ],
)
def test_settings_that_mean_nothing(wrong: dict) -> None:
    with pytest.raises(HardnetError, match=next(iter(wrong))):
        Verification(**wrong)
