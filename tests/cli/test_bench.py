"""`hardnet bench` from the command line to the files it writes."""

import json

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.errors import HardnetError

run = CliRunner()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two sequences of one target each: a textured picture, turned by a few degrees."""
    root = tmp_path_factory.mktemp("data")
    for seed, name in enumerate(("moss", "sand")):
        folder = root / name
        folder.mkdir()
        noise = np.random.default_rng(seed).normal(size=(300, 400)).astype(np.float32)
        texture = sum(cv2.GaussianBlur(noise, (0, 0), s) * s for s in (1.5, 3, 6))
        image = cv2.normalize(texture, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)
        turn = np.vstack([cv2.getRotationMatrix2D((200, 150), 8, 0.9), [0, 0, 1]])
        cv2.imwrite(str(folder / "1.png"), image)
        cv2.imwrite(str(folder / "2.png"), cv2.warpPerspective(image, turn, (400, 300)))
        np.savetxt(folder / "H_1_2", turn)
    return root


@pytest.fixture(scope="module")
def output(data, tmp_path_factory):
    """Results of `bench pairs`."""
    output = tmp_path_factory.mktemp("results") / "pairs.json"
    arguments = ["bench", "pairs", str(data), "-o", str(output), "--keypoints", "300"]
    done = run.invoke(app, [*arguments, "--descriptors", "rootsift,pixels"])
    assert done.exit_code == 0, done.output
    return output


def test_pairs_finds_correct_matches_and_verifies_easy_pairs(output):
    results = json.loads(output.read_text())
    total = results["total"]["rootsift"]["all"]
    assert total["pairs"] == total["verified"] == 2
    assert 100 < total["correct"] <= total["tentative"] <= 600
    assert "15" in results["rules"]["verified"]


def test_sequences_can_be_chosen_and_json_printed(data):
    arguments = ["bench", "pairs", str(data), "--descriptors", "pixels", "--keypoints", "100"]
    done = run.invoke(app, [*arguments, "--sequences", "sand", "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert {row["sequence"] for row in rows} == {"sand"}


def test_table_prints_markdown_and_latex_and_draws_the_figure(output, tmp_path):
    picture = tmp_path / "docs" / "bars.png"
    done = run.invoke(app, ["bench", "table", str(output), "--figure", str(picture)])
    assert done.exit_code == 0, done.output
    total = json.loads(output.read_text())["total"]["rootsift"]["all"]
    counts = f"| rootsift | {total['verified']} / 2 | {total['tentative']} | {total['correct']} |"
    assert counts in done.stdout
    assert cv2.imread(str(picture)) is not None
    done = run.invoke(app, ["bench", "table", str(output), "--latex"])
    assert r"\begin{tabular}" in done.stdout


def test_mistakes_are_named(data, tmp_path):
    for arguments, message in [
        (["pairs", str(tmp_path / "none")], "no such folder"),
        (["pairs", str(data), "--sequences", "mud"], "mud"),
        (["pairs", str(data), "--descriptors", "pixels,pixels"], "two descriptors"),
        (["table", str(data / "moss" / "H_1_2")], "cannot read results"),
    ]:
        done = run.invoke(app, ["bench", *arguments])
        assert isinstance(done.exception, HardnetError)
        assert message in str(done.exception)
