"""`hardnet bench retrieval` from the command line to the files it writes."""

import json

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.errors import HardnetError
from hardnet.images import read_image, to_grey

pytest.importorskip("numba")
pytest.importorskip("faiss")

run = CliRunner()


@pytest.fixture(scope="module")
def collection(photos, tmp_path_factory):
    """Two things, each seen twice, one folder per label; and a folder of other photographs."""
    root = tmp_path_factory.mktemp("data")
    for name in ("chelsea", "coffee"):
        image = cv2.resize(to_grey(read_image(photos / f"{name}.png")), (320, 240))
        turn = cv2.getRotationMatrix2D((160, 120), 20, 0.9)
        (root / "things" / name).mkdir(parents=True)
        cv2.imwrite(str(root / "things" / name / "1.png"), image)
        cv2.imwrite(str(root / "things" / name / "2.png"), cv2.warpAffine(image, turn, (320, 240)))
    (root / "others").mkdir()
    for name in ("brick", "grass", "gravel", "camera", "moon", "text"):
        image = to_grey(read_image(photos / f"{name}.png"))
        cv2.imwrite(str(root / "others" / f"{name}.png"), np.tile(image, (1, 2))[:300, :400])
    return root


def arguments(collection, *more):
    return [
        *("bench", "retrieval", str(collection / "things"), "--layout", "labels"),
        *("--vocabulary-images", str(collection / "others"), "--words", "32"),
        *("--descriptors", "rootsift", "--keypoints", "100", "--modes", "bow,he+sv", "--no-asmk"),
        *more,
    ]


def test_from_folder_to_tables(collection, tmp_path):
    output = tmp_path / "retrieval.json"
    more = ["--distractors", str(collection / "others"), "--counts", "2", "-o", str(output)]
    done = run.invoke(app, arguments(collection, *more, "--store", str(tmp_path / "store")))
    assert done.exit_code == 0, done.output
    assert "things, 4 photos, 4 queries" in done.output
    results = json.loads(output.read_text())
    assert results["kind"] == "retrieval"
    assert results["queries"] == [f"{n}/{k}.png" for n in ("chelsea", "coffee") for k in (1, 2)]
    assert [(r["mode"], r["distractors"]) for r in results["rows"]] == [
        ("bow", 0),
        ("he+sv", 0),
        ("bow", 2),
        ("he+sv", 2),
    ]
    assert results["rows"][1]["map"]["others"] == 1.0
    settings = results["provenance"]["settings"]
    # What both options name is shared out, none to both.
    assert settings["vocabulary_photos"] + settings["distractor_photos"] == 6
    assert settings["words"] == 32
    assert settings["extraction"]["keypoints"] == 100
    assert "SHA-256" in results["rules"]["vocabulary"]
    assert str(tmp_path) not in output.read_text()
    done = run.invoke(app, ["bench", "table", str(output)])
    assert done.exit_code == 0, done.output
    assert "mAP (%) against the number of distractors" in done.stdout


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--objects", "1-2"], "--objects is for"),
        (["--modes", "bow,magic"], "no mode"),
        (["--labels", "none.csv"], r"none\.csv cannot be read"),
        (["--layout", "ukbench", "--objects", "9-3"], "FIRST-LAST"),
        (["--layout", "oxford"], "both called 1"),
        (["--layout", "revisited"], r"no gnd_NAME\.json"),
    ],
)
def test_mistakes_are_found_before_the_work(collection, tmp_path, more, words):
    done = run.invoke(app, arguments(collection, *more, "--store", str(tmp_path)))
    assert isinstance(done.exception, HardnetError)
    with pytest.raises(HardnetError, match=words):
        raise done.exception
    assert not list(tmp_path.iterdir())
