"""`hardnet bench light`, `ratio` and `pose` from the command line to the files they write."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from hardnet.cli.app import app

run = CliRunner()


@pytest.fixture(scope="module")
def frames(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """A fixed camera by day, in the evening and at night; it is none of those that choose."""
    folder = tmp_path_factory.mktemp("cameras") / "courtyard"
    folder.mkdir()
    image = cv2.imread(str(photos / "brick.png"), cv2.IMREAD_GRAYSCALE)[:256, :256]
    rng = np.random.default_rng(0)
    for name, gain in (("day", 1.0), ("evening", 0.6), ("night", 0.2)):
        noisy = image * gain + rng.normal(0, 2, image.shape)
        cv2.imwrite(str(folder / f"{name}.png"), np.clip(noisy, 0, 255).astype(np.uint8))
    return folder


@pytest.mark.parametrize(("kind", "part"), [("light", "cameras"), ("ratio", "scenes")])
def test_from_folder_to_tables(kind: str, part: str, frames: Path, tmp_path: Path) -> None:
    output = tmp_path / f"{kind}.json"
    arguments = ["bench", kind, str(frames), "-o", str(output), "--keypoints", "200"]
    done = run.invoke(app, [*arguments, "--descriptors", "rootsift,pixels"])
    assert done.exit_code == 0, done.output
    results = json.loads(output.read_text())
    assert results["kind"] == kind
    shown = [(entry["setup"], entry["descriptor"]) for entry in results["entries"]]
    ways = ("dog", "dog upright")
    assert shown == [(way, name) for way in ways for name in ("rootsift", "pixels")]
    best = results["entries"][2]
    assert best["report"]["ap"] > 0.5
    low, high = best["report"]["interval"]
    assert low <= best["report"]["ap"] <= high
    assert best["choose"]["ap"] is None
    assert best[part]["courtyard"]["role"] == "report"
    assert best["report"]["ap"] == best[part]["courtyard"]["ap"]
    shown = run.invoke(app, ["bench", "table", str(output)])
    assert shown.exit_code == 0, shown.output
    assert "Held-out scenes: courtyard; tuning scenes: none." in shown.stdout
    assert f"{best['report']['ap']:.3f}" in shown.stdout


def test_what_was_described_is_not_described_again(frames: Path, tmp_path: Path) -> None:
    arguments = ["bench", "light", str(frames), "--upright", "--keypoints", "100", "--json"]
    arguments += ["--descriptors", "rootsift", "--store", str(tmp_path / "store")]
    first = json.loads(run.invoke(app, arguments).stdout)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*.npy")}
    assert len(kept) == 3  # one file per frame
    second = json.loads(run.invoke(app, arguments).stdout)
    assert first["entries"] == second["entries"]
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.slow
def test_pose_of_real_photos(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")
    output = tmp_path / "pose.json"
    scene = data / "sfm" / "sacre-coeur"
    arguments = ["bench", "pose", str(scene), "-o", str(output), "--upright"]
    done = run.invoke(app, [*arguments, "--keypoints", "500", "--descriptors", "rootsift"])
    assert done.exit_code == 0, done.output
    (entry,) = json.loads(output.read_text())["entries"]
    numbers = entry["scenes"]["sacre-coeur"]
    assert numbers["ratio"] == 0.9
    assert len(numbers["errors"]["0.9"]) == 39
    below = [
        np.mean([error < limit for error in numbers["errors"]["0.9"]]) for limit in range(1, 11)
    ]
    assert entry["report"]["maa"] == pytest.approx(np.mean(below), abs=0.01)
    assert 0.05 < entry["report"]["maa"] < 0.9
    done = run.invoke(app, ["bench", "table", str(output), "--figure", str(tmp_path / "pose.png")])
    assert done.exit_code == 0, done.output
    assert "| dog upright | rootsift |" in done.output
    assert (tmp_path / "pose.png").is_file()


def test_mistakes_are_named(frames: Path, tmp_path: Path) -> None:
    pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")
    for arguments, words in (
        (["pose", str(frames)], "has no true cameras"),
        (["light", str(tmp_path)], "contains no image"),
        (["light", str(frames), "--detectors", "dgo"], "dgo"),
        (["ratio", str(frames), "--descriptors", "rotsift"], "rotsift"),
    ):
        done = run.invoke(app, ["bench", *arguments])
        assert done.exit_code == 1
        assert words in str(done.exception) + done.output


RIVAL = """
import hardnet

def upright(photo, keypoints):
    return hardnet.extract(photo, descriptor="rootsift", keypoints=keypoints, orientation="upright")

def wrong(photo, keypoints):
    return photo
"""


def test_a_rival_with_its_own_detector_takes_part(
    frames: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rival.py").write_text(RIVAL)
    monkeypatch.chdir(tmp_path)
    arguments = ["bench", "light", str(frames), "--json", "--keypoints", "200", "--upright"]
    arguments += ["--descriptors", "rootsift", "--extractors"]
    done = run.invoke(app, [*arguments, "Rival=rival:upright"])
    assert done.exit_code == 0, done.output
    ours, rival = json.loads(done.stdout)["entries"]
    assert (rival["setup"], rival["descriptor"]) == ("own detector", "Rival")
    assert rival["report"] == ours["report"]
    done = run.invoke(app, [*arguments, "Rival=rival:wrong"])
    assert done.exit_code != 0
    assert "not hardnet.Features" in str(done.exception)
    arguments[1] = "ratio"
    done = run.invoke(app, [*arguments, "Rival=rival:upright"])
    assert "the same for all" in str(done.exception)
