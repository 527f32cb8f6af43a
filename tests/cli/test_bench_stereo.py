"""`hardnet bench stereo` from the command line to the files it writes."""

import json

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.errors import HardnetError
from hardnet.images import read_image, to_grey

run = CliRunner()


@pytest.fixture(scope="module")
def evd(photos, tmp_path_factory):
    """Two pairs in the layout of EVD."""
    root = tmp_path_factory.mktemp("data") / "evd"
    for part in "12h":
        (root / part).mkdir(parents=True)
    view = np.vstack([cv2.getRotationMatrix2D((150, 150), 15, 0.9), [0, 0, 1]])
    for name in ("camera", "gravel"):
        image = cv2.resize(to_grey(read_image(photos / f"{name}.png")), (300, 300))
        cv2.imwrite(str(root / "1" / f"{name}.png"), image)
        cv2.imwrite(str(root / "2" / f"{name}.png"), cv2.warpPerspective(image, view, (300, 300)))
        np.savetxt(root / "h" / f"{name}.txt", view)
    return root


def test_from_folder_to_tables_and_figures(evd, tmp_path):
    output = tmp_path / "stereo.json"
    arguments = ["bench", "stereo", str(evd), "-o", str(output), "--keypoints", "300"]
    arguments += ["--descriptors", "rootsift,pixels", "--rule", "geometry", "--ratio", "0.85"]
    done = run.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "Table 3" in done.output
    results = json.loads(output.read_text())
    assert results["kind"] == "stereo"
    assert results["rule"]["name"] == "geometry"
    assert results["sets"] == [{"name": "EVD", "pairs": 2, "complete": 15}]
    settings = results["provenance"]["settings"]
    assert (settings["strategy"]["ratio"], settings["keypoints"]) == (0.85, 300)
    assert (settings["detectors"], settings["rule"]) == (["dog"], "geometry")
    summary = {entry["descriptor"]: entry for entry in results["summary"]}
    assert summary["rootsift"]["matched"] == 2
    assert summary["rootsift"]["auc"]["10"] > 0.7
    done = run.invoke(app, ["bench", "report", str(output), "-o", str(tmp_path / "report")])
    assert done.exit_code == 0, done.output
    names = {path.name for path in (tmp_path / "report").iterdir()}
    assert {"stereo.md", "stereo.tex", "stereo-pairs.png", "stereo-accuracy.svg"} <= names


def test_check_says_what_is_missing(evd, tmp_path):
    done = run.invoke(app, ["bench", "stereo", str(evd), "--check"])
    assert done.exit_code == 1
    assert "EVD: 2 of 15 pairs (homography)" in done.stdout
    assert "1/NAME.*" in done.stdout
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "pairs.txt").write_text(f"{evd}/1/camera.png {evd}/2/camera.png\n" * 22)
    done = run.invoke(app, ["bench", "stereo", f"GDB={mine}", str(mine), "--check"])
    assert done.exit_code == 0
    assert "GDB: 22 of 22 pairs (no ground truth)" in done.stdout


def test_check_without_a_folder_says_what_the_sets_hold():
    done = run.invoke(app, ["bench", "stereo", "--check"])
    assert done.exit_code == 0
    assert (
        "LTLL (Large Time Lags Locations: old and new photos): 172 pairs; images and" in done.stdout
    )
    done = run.invoke(app, ["bench", "stereo"])
    assert isinstance(done.exception, HardnetError)
    assert "--check" in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--detectors", "dog,orb"], "orb"),
        (["--descriptors", "hardnut"], "did you mean"),
        (["--ratio", "1.5"], "ratio is 1.5"),
    ],
)
def test_mistakes_are_named_before_any_work(evd, arguments, message):
    done = run.invoke(app, ["bench", "stereo", str(evd), *arguments])
    assert isinstance(done.exception, HardnetError)
    assert message in str(done.exception)
