from __future__ import annotations

from math import log, sqrt
from pathlib import Path

import numpy as np

from hardnet.retrieval.store.segment import IndexedImage, Segment, write_segment
from hardnet.retrieval.store.snapshot import IMAGES_PER_PIECE, compute_statistics

WORDS = 70_000  # more than two bytes hold


def make_segment(path: Path, images: list[list[int]]) -> Segment:
    write_segment(
        path,
        [
            IndexedImage(
                name=f"{path.name}/{i}",
                size=(640, 480),
                words=np.array(words, np.int32),
                signatures=np.zeros((len(words), 2), np.uint64),
                geometry=np.zeros((len(words), 3), np.uint16),
            )
            for i, words in enumerate(images)
        ],
        WORDS,
    )
    return Segment(path)


def test_three_images_by_hand(tmp_path: Path) -> None:
    segment = make_segment(tmp_path / "s", [[5, 69_999, 5], [69_999, 7], []])
    found = compute_statistics([segment], [None], WORDS)
    l3, l15 = log(3), log(3 / 2)
    assert found.images == 3
    assert found.document_counts[[5, 7, 69_999, 0]].tolist() == [1, 1, 2, 0]
    np.testing.assert_allclose(found.idf[[5, 7, 69_999, 0]], [l3, l3, l15, 0], rtol=1e-6)
    np.testing.assert_allclose(
        found.bow_norms[0], [sqrt((2 * l3) ** 2 + l15**2), sqrt(l3**2 + l15**2), 0], rtol=1e-6
    )
    np.testing.assert_allclose(
        found.he_norms[0], [sqrt(l3**2 + l15**2), sqrt(l3**2 + l15**2), 0], rtol=1e-6
    )


def test_removing_an_image_is_as_if_it_had_never_been(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 50, rng.integers(0, 30)).tolist() for _ in range(40)]
    living = rng.random(40) < 0.6
    whole = make_segment(tmp_path / "a", images)
    rest = make_segment(tmp_path / "b", [x for x, keep in zip(images, living, strict=True) if keep])
    removed, never = (
        compute_statistics([whole], [living], WORDS),
        compute_statistics([rest], [None], WORDS),
    )
    assert removed.images == never.images == living.sum()
    np.testing.assert_array_equal(removed.document_counts, never.document_counts)
    np.testing.assert_array_equal(removed.idf, never.idf)
    np.testing.assert_array_equal(removed.bow_norms[0][living], never.bow_norms[0])
    np.testing.assert_array_equal(removed.he_norms[0][living], never.he_norms[0])


def test_division_into_segments_and_pieces_changes_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    count = 2 * IMAGES_PER_PIECE + 30
    images = [rng.integers(0, 99, rng.integers(0, 30)).tolist() for _ in range(count)]
    one = compute_statistics([make_segment(tmp_path / "a", images)], [None], WORDS)
    parts = [make_segment(tmp_path / "b", images[:11]), make_segment(tmp_path / "c", images[11:])]
    two = compute_statistics(parts, [None, None], WORDS)
    np.testing.assert_array_equal(one.idf, two.idf)
    np.testing.assert_array_equal(one.bow_norms[0], np.concatenate(two.bow_norms))
    np.testing.assert_array_equal(one.he_norms[0], np.concatenate(two.he_norms))


def test_an_index_without_images_or_with_none_left(tmp_path: Path) -> None:
    empty = compute_statistics([], [], 10)
    assert (empty.images, empty.idf.tolist(), empty.he_norms) == (0, [0] * 10, ())
    segment = make_segment(tmp_path / "s", [[1, 2]])
    gone = compute_statistics([segment], [np.array([False])], WORDS)
    assert gone.images == 0
    assert not gone.idf.any()
    assert not gone.document_counts.any()
