from __future__ import annotations

import numpy as np

from hardnet.matching.draw import GAP, MAX_HEIGHT, draw_matches


def paper(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), 200, np.uint8)


def test_photos_stand_side_by_side_at_equal_height() -> None:
    picture = draw_matches(paper(300, 200), paper(600, 500), np.zeros((0, 2)), np.zeros((0, 2)))
    assert picture.shape == (600, 400 + GAP + 500, 3)


def test_large_photos_are_shrunk_and_a_caption_adds_a_strip() -> None:
    empty = np.zeros((0, 2))
    plain = draw_matches(paper(2000, 1000), paper(2000, 1000), empty, empty)
    assert plain.shape[0] == MAX_HEIGHT
    with_text = draw_matches(paper(2000, 1000), paper(2000, 1000), empty, empty, "12 matches")
    assert with_text.shape[0] > MAX_HEIGHT
    assert with_text[MAX_HEIGHT:].min() < 120  # there is ink in it


def test_both_ends_carry_the_colour_of_their_place() -> None:
    a = np.array([[20.0, 20], [180, 20], [20, 180], [180, 180]])
    b = a[::-1].copy()
    picture = draw_matches(paper(200, 200), paper(200, 200), a, b).astype(int)
    colours = [picture[int(y), int(x)] for x, y in a]
    for (x, y), colour in zip(b, colours, strict=True):
        assert np.abs(picture[int(y), int(x) + 200 + GAP] - colour).max() < 40
    for i in range(4):
        for j in range(i):
            assert np.abs(colours[i] - colours[j]).max() > 80


def test_grey_photos_are_welcome() -> None:
    grey = np.full((100, 100), 90, np.uint8)
    picture = draw_matches(grey, grey, np.array([[50.0, 50]]), np.array([[10.0, 10]]))
    assert picture.shape == (100, 200 + GAP, 3)
    assert np.ptp(picture[50, 50]) > 50  # a coloured dot


def test_lines_are_spread_over_the_photo() -> None:
    crowd = np.random.default_rng(0).uniform(0, 10, (1000, 2))
    lonely = np.array([[300.0, 350], [390, 250]])
    both = np.concatenate([crowd, lonely])
    picture = draw_matches(paper(400, 400), paper(400, 400), both, both)
    for _, y in lonely:  # a level line, through the right photo as well
        assert np.ptp(picture[int(y) - 1 : int(y) + 2, 450].astype(int)) > 50
    assert not np.ptp(picture[300, 450])
