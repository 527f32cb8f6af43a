"""Curves of logs written by hand."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.bench.report.experiment import draw_training, read_log, thin
from hardnet.errors import HardnetError

LOG = "step,pairs,loss,fpr95\n1,64,1.0,\n2,128,0.5,0.02\n3,192,0.25,\n"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "log.csv").write_text(LOG)
    return folder


def test_a_curve_is_the_column_where_it_has_values(run: Path) -> None:
    pairs, loss = read_log(run, "loss")
    assert pairs.tolist() == [64, 128, 192]
    assert loss.tolist() == [1.0, 0.5, 0.25]
    pairs, fpr95 = read_log(run, "fpr95")
    assert (pairs.tolist(), fpr95.tolist()) == ([128], [0.02])


def test_thinning_takes_means_of_neighbours() -> None:
    assert thin(np.array([1.0, 3.0, 5.0, 7.0]), 2).tolist() == [2, 6]
    assert thin(np.array([1.0, 3.0]), 5).tolist() == [1, 3]
    assert len(thin(np.array([]))) == 0


def test_the_figure_has_both_panels(run: Path, tmp_path: Path) -> None:
    draw_training([run], tmp_path / "curves.png")
    image = cv2.imread(str(tmp_path / "curves.png"))
    halves = image[:, : image.shape[1] // 2], image[:, image.shape[1] // 2 :]
    assert all((half.std(2) > 20).any() for half in halves)  # a coloured line in each


def test_a_folder_without_a_log_is_said(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match=r"no log\.csv"):
        draw_training([tmp_path], tmp_path / "curves.png")
