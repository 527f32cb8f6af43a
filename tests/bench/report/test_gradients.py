"""The figure of gradient magnitudes: what its pixels show."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

from hardnet.bench.report.experiment import draw_gradients
from hardnet.errors import HardnetError

BLUE, PALE = (0x00, 0x72, 0xB2), (0xF7, 0xF7, 0xF7)


@pytest.fixture(scope="module")
def figure(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    path = tmp_path_factory.mktemp("figure") / "gradients.png"
    draw_gradients(path)
    image = cv2.imread(str(path))
    assert image is not None
    return image[:, :, ::-1].astype(int)


def test_as_much_of_it_is_blue_as_the_losses_say(figure: np.ndarray) -> None:
    """Magnitude 1 fills 7/8 of both triplet panels, and 1 + 1/2 + 1 + 1 contrastive ones."""
    blue, pale = (int((abs(figure - np.array(c)) < 8).all(axis=2).sum()) for c in (BLUE, PALE))
    # 0 fills 1/8 of both triplet panels and half of one contrastive panel.
    assert blue / pale == pytest.approx((2 * 7 / 8 + 3.5) / (2 / 8 + 0.5), rel=0.05)


def test_softmin_has_shades_between(figure: np.ndarray) -> None:
    red = np.unique(figure[(figure[:, :, 0] < figure[:, :, 2])][:, 0])
    assert len(red) > 100


def test_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match=r"\.png or \.svg"):
        draw_gradients(tmp_path / "a.pdf")
