from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hardnet.images import read_image, write_image
from hardnet.retrieval.draw import GAP, LABEL, TILE, contact_sheet, draw_results
from hardnet.retrieval.query import Hit, QueryImage, Results

ORANGE, BLUE = (235, 120, 20), (30, 110, 215)
STEP_X, STEP_Y = TILE[0] + GAP, TILE[1] + LABEL + GAP


@pytest.fixture
def grey(tmp_path: Path) -> Path:
    """A photo of twice the size of a tile, without any structure."""
    path = tmp_path / "grey.png"
    write_image(path, np.full((2 * TILE[1], 2 * TILE[0]), 128, np.uint8))
    return path


def tile(sheet: np.ndarray, row: int, column: int) -> np.ndarray:
    y, x = GAP + row * STEP_Y, GAP + column * STEP_X
    return sheet[y : y + TILE[1], x : x + TILE[0]]


def painted(pixels: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """(n, 2) x, y of the pixels of a colour."""
    return np.argwhere((pixels == colour).all(2))[:, ::-1]


def test_the_query_then_the_hits_in_order(grey: Path) -> None:
    region = np.array([(100.0, 80), (300, 80), (300, 200), (100, 200)])
    transform = np.eye(2, 3)
    hits = [
        Hit(str(grey), 0, 1.5, 20, True, transform, region),
        Hit(str(grey), 1, 0.2, 4, False, transform, region),
        *[Hit(str(grey), i, 0.1) for i in range(2, 6)],
    ]
    asked = (QueryImage((640, 480), 80, (40.0, 60.0, 200.0, 100.0), str(grey)),)
    sheet = contact_sheet(Results(hits, query=asked))
    # A row of one query and two rows of hits, four in a row.
    assert sheet.shape == (GAP + 3 * STEP_Y, GAP + 4 * STEP_X, 3)
    box = painted(tile(sheet, 0, 0), BLUE)
    np.testing.assert_allclose(box.min(0), (20, 30), atol=2)
    np.testing.assert_allclose(box.max(0), (120, 80), atol=2)
    found = painted(tile(sheet, 1, 0), ORANGE)
    np.testing.assert_allclose(found.min(0), (50, 40), atol=2)
    np.testing.assert_allclose(found.max(0), (150, 100), atol=2)
    assert not len(painted(tile(sheet, 1, 1), ORANGE)), "not verified"
    assert (tile(sheet, 0, 0)[5, 5] == 128).all()
    assert (tile(sheet, 0, 1) == (250, 250, 248)).all(), "paper beside the query"
    assert (tile(sheet, 2, 1)[5, 5] == 128).all(), "the sixth hit"
    assert (tile(sheet, 2, 2) == (250, 250, 248)).all()


def test_a_photo_that_is_gone_is_a_grey_tile(grey: Path, tmp_path: Path) -> None:
    hits = [Hit(str(tmp_path / "gone.jpg"), 0, 1.0), Hit(str(grey), 1, 0.5)]
    sheet = contact_sheet(Results(hits, query=(QueryImage((640, 480), 9, None, str(grey)),)))
    assert (tile(sheet, 1, 0)[5, 5] == (222, 222, 220)).all()
    assert (tile(sheet, 1, 1)[5, 5] == 128).all()


def test_tall_photos_keep_their_shape() -> None:
    tall = np.full((960, 320), 128, np.uint8)
    sheet = contact_sheet(Results([], query=(QueryImage((320, 960), 0, None, None, tall),)))
    across = np.flatnonzero((tile(sheet, 0, 0)[120] == 128).all(1))
    assert len(across) == 80
    assert abs((across[0] + across[-1]) / 2 - TILE[0] / 2) < 2


def test_odd_names_and_wild_transforms_do_not_stop_it(grey: Path, tmp_path: Path) -> None:
    name = "Fußgänger 猫 " + "very long " * 20 + ".png"
    odd = tmp_path / name
    odd.write_bytes(grey.read_bytes())
    far = np.array([(-1e12, 5), (1e12, 5), (1e12, np.inf), (-1e12, 1e9)])
    hit = Hit(str(odd), 0, 1.0, 9, True, np.eye(2, 3), far)
    results = Results([hit], query=(QueryImage((640, 480), 9, None, str(grey)),))
    results.draw(tmp_path / "sheet.png")
    sheet = read_image(tmp_path / "sheet.png")
    label = sheet[GAP + STEP_Y + TILE[1] : GAP + STEP_Y + TILE[1] + LABEL]
    assert (label[:, GAP : GAP + TILE[0]] < 200).any()
    assert (label[:, GAP + TILE[0] :] > 240).all(), "the name is shortened to its tile"


def test_labels_tell_folders_apart_and_take_any_script(grey: Path) -> None:
    def label(path: str) -> np.ndarray:
        sheet = contact_sheet(Results([Hit(path, 0, 1.0)]))
        return sheet[GAP + TILE[1] : GAP + TILE[1] + LABEL]

    here = label("photos/2019/beach.jpg")
    assert (here != label("photos/2020/beach.jpg")).any(), "the folder is part of the label"
    assert (here == label("elsewhere/2019/beach.jpg")).all(), "but not all that is above it"
    names = ("猫.jpg", "犬.jpg", "кошка.jpg", "собак.jpg", "γάτα.jpg")
    labels = [label(f"photos/{name}").tobytes() for name in names]
    assert len(set(labels)) == len(names), "no script becomes question marks"


def test_several_searches_are_one_picture(grey: Path, tmp_path: Path) -> None:
    one = Results([Hit(str(grey), 0, 1.0)], query=(QueryImage((640, 480), 9, None, str(grey)),))
    draw_results(tmp_path / "both.png", [one, one])
    both, alone = read_image(tmp_path / "both.png"), contact_sheet(one)
    assert (both == np.concatenate([alone, alone])).all()
