"""`hardnet index` and `hardnet search` from the command line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hardnet.images import read_image, write_image
from hardnet.retrieval import vocabulary as vocabularies
from hardnet.retrieval.index import Index
from hardnet.retrieval.store.snapshot import open_snapshot

QUICK = ("--descriptor", "rootsift", "--keypoints", "150", "--max-size", "300")
NAMES = ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "rocket.jpg")


Hardnet = Callable[..., Any]


@pytest.fixture
def hardnet(command: Hardnet) -> Hardnet:
    return command


@pytest.fixture
def place(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a few photos in it."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in NAMES:
        shutil.copy(photos / name, folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def original(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos and their index, for all tests to copy."""
    root = tmp_path_factory.mktemp("original")
    (root / "photos").mkdir()
    for name in NAMES:
        shutil.copy(photos / name, root / "photos")
    settings = {"descriptor": "rootsift", "keypoints": 150, "max_size": 300}
    Index.build(root / "index", root / "photos", words=64, **settings)
    return root


@pytest.fixture
def built(place: Path, original: Path) -> Path:
    shutil.copytree(original / "index", place / "index")
    return place


def test_the_walk_of_a_new_user(hardnet: Hardnet, place: Path, photos: Path) -> None:
    run = hardnet("index", "build", "index", "photos", *QUICK)
    assert run.returncode == 0, run.stderr
    assert all("elapsed" in line for line in run.stderr.splitlines())  # of a busy machine
    assert run.stdout.startswith("index: 6 photos indexed in ")
    assert "150 features each" in run.stdout
    write_image("crop.png", read_image("photos/coffee.png")[60:340, 150:480])
    run = hardnet("search", "index", "crop.png", "-k", 3, "-o", "sheet.png")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    rank, _, inliers, verdict, path = lines[1].split()
    assert (rank, verdict, path) == ("1", "verified", "photos/coffee.png")
    assert int(inliers) > 15
    assert lines[-2].startswith("milliseconds: load ")
    assert "verify" in lines[-2]
    assert lines[-1] == "picture: sheet.png"
    sheet = read_image("sheet.png")
    assert (sheet == (235, 120, 20)).all(2).any(), "the region is outlined"
    shutil.copy(photos / "motorcycle_left.png", "photos")
    run = hardnet("index", "build", "index", "photos", *QUICK)
    assert "1 photo indexed" in run.stdout
    assert "6 unchanged" in run.stdout
    run = hardnet("index", "add", "index", photos / "motorcycle_right.png", "--json")
    assert json.loads(run.stdout)["indexed"] == 1
    run = hardnet("search", "index", photos / "motorcycle_right.png", "--json", "-k", 2)
    found = json.loads(run.stdout)
    assert [Path(hit["path"]).name for hit in found["hits"]] == [
        "motorcycle_right.png", "motorcycle_left.png",
    ]  # fmt: skip
    run = hardnet("index", "remove", "index", photos / "motorcycle_right.png", "photos/coffee.png")
    assert run.stdout.strip() == "index: 2 photos removed, 6 left"
    assert "coffee" not in hardnet("search", "index", "crop.png").stdout
    run = hardnet("index", "restore", "index", "photos/coffee.png", "--json")
    assert json.loads(run.stdout) == {"index": "index", "restored": 1, "images": 7}
    assert "photos/coffee.png" in hardnet("search", "index", "crop.png").stdout
    run = hardnet("index", "restore", "index")
    assert run.stdout.strip() == "index: 1 photo restored, 8 photos now"
    hardnet("index", "remove", "index", photos / "motorcycle_right.png", "photos/coffee.png")
    Path("photos/rocket.jpg").unlink()
    run = hardnet("index", "remove", "index", "--gone", "--json")
    assert json.loads(run.stdout) == {"index": "index", "removed": 1, "images": 5}
    assert "name the photos" in hardnet("index", "remove", "index").stderr
    run = hardnet("index", "compact", "index")
    assert "to 1," in run.stdout
    run = hardnet("index", "verify", "index")
    assert run.returncode == 0
    assert "all intact" in run.stdout


def test_json_of_a_search(hardnet: Hardnet, built: Path) -> None:
    run = hardnet("search", "index", "photos/chelsea.png", "--box", "100,60,180,150", "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["index"], found["images"], found["mode"]) == ("index", 6, "he+sv")
    assert found["missing"] == []
    (query,) = found["query"]
    assert (query["path"], query["size"]) == ("photos/chelsea.png", [451, 300])
    assert query["box"] == [100, 60, 180, 150]
    hit = found["hits"][0]
    assert hit["path"] == str((built / "photos" / "chelsea.png").resolve())
    assert hit["verified"]
    assert hit["inliers"] > 10
    np.testing.assert_allclose(hit["transform"], np.eye(2, 3), atol=1.5)
    np.testing.assert_allclose(hit["region"][0], (100, 60), atol=2)
    assert {"load", "describe", "words", "score", "verify", "rank"} <= set(found["seconds"])


def test_several_views_and_modes(hardnet: Hardnet, built: Path) -> None:
    photo = read_image("photos/astronaut.png")
    write_image("left.png", photo[:, :300])
    write_image("right.png", photo[:, 200:])
    views = ("left.png", "right.png")
    for mode in ("bow", "hqe+sv"):
        run = hardnet("search", "index", *views, "--views", "--mode", mode, "--json", "-k", 1)
        found = json.loads(run.stdout)
        assert found["hits"][0]["path"].endswith("astronaut.png")
        assert len(found["query"]) == 2
        assert found["mode"] == mode
    boxes = ("--box", "0,0,300,512", "--box", "10,10,100,100")
    assert hardnet("search", "index", *views, *boxes).returncode == 0


def test_queries_are_answered_one_by_one(hardnet: Hardnet, built: Path) -> None:
    queries = ("photos/coins.png", "photos/coffee.png")
    run = hardnet("search", "index", *queries, "-k", 1, "--json", "-o", "both.png")
    answers = json.loads(run.stdout)
    assert [answer["query"][0]["path"] for answer in answers] == list(queries)
    assert [Path(answer["hits"][0]["path"]).name for answer in answers] == [
        "coins.png",
        "coffee.png",
    ]
    run = hardnet("search", "index", *queries, "-k", 1, "-o", "both.png")
    lines = run.stdout.splitlines()
    assert [line for line in lines if line.startswith("query: ")] == [
        f"query: {query}" for query in queries
    ]
    assert len(read_image("both.png")) > 1000, "both queries and both hits"


def test_only_what_is_verified(hardnet: Hardnet, built: Path, photos: Path) -> None:
    def hits(*words: object) -> list[Any]:
        return json.loads(hardnet("search", "index", *words, "--json").stdout)["hits"]

    everything = hits("photos/coins.png")
    assert len(everything) > 1
    assert [hit["verified"] for hit in everything].count(True) == 1
    assert hits("photos/coins.png", "--verified") == everything[:1]
    most = everything[0]["inliers"]
    assert hits("photos/coins.png", "--min-inliers", most) == everything[:1]
    assert hits("photos/coins.png", "--min-inliers", most + 1) == []
    other = hardnet("search", "index", photos / "page.png")
    assert other.returncode == 1, "hits, but none is verified"
    assert "no hit is verified" in other.stderr
    assert "unsure" in other.stdout or "not verified" in other.stdout
    assert hardnet("search", "index", photos / "page.png", "--mode", "he").returncode == 0
    run = hardnet("search", "index", photos / "page.png", "--mode", "he", "--verified")
    assert run.returncode == 1
    assert "mode he verifies nothing: use one with sv" in run.stderr


def test_photos_are_listed(hardnet: Hardnet, built: Path) -> None:
    assert hardnet("index", "list", "index").stdout.split() == [f"photos/{n}" for n in NAMES]
    write_image("flat.png", np.full((90, 90), 77, np.uint8))
    run = hardnet("index", "add", "index", "flat.png")
    assert "without features: flat.png" in run.stderr
    assert "1 without features" in run.stdout
    assert hardnet("index", "list", "index", "--without-features").stdout.split() == ["flat.png"]
    listed = json.loads(hardnet("index", "list", "index", "--json").stdout)["photos"]
    assert {Path(one["path"]).name: one["features"] for one in listed}["flat.png"] == 0
    assert sum(one["features"] > 0 for one in listed) == len(NAMES)


def test_hidden_folders_and_thumbnails_are_left_out(hardnet: Hardnet, built: Path) -> None:
    copies = [".trash/a.png", "@eaDir/b.png", "year/Thumbnails/c.png", "year/.d.png"]
    for copy in copies:
        Path("photos", copy).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("photos/coins.png", Path("photos", copy))
    run = hardnet("index", "add", "index", "photos", "--json")
    assert run.returncode == 0
    found = json.loads(run.stdout)
    assert found["indexed"] == found["replaced"], "the photos were copied"
    assert sorted(found["left_out"]) == sorted(f"photos/{copy}" for copy in copies)
    assert "left out: 4 in hidden folders or thumbnails" in run.stderr
    assert "--hidden" in run.stderr
    # What is named itself is meant.
    run = hardnet("index", "add", "index", "photos/.trash/a.png", "photos/@eaDir", "--json")
    assert json.loads(run.stdout)["indexed"] == 2
    run = hardnet("index", "add", "index", "photos", "--hidden", "--json")
    assert json.loads(run.stdout)["indexed"] == 2


def test_mistakes_of_a_search(hardnet: Hardnet, built: Path) -> None:
    photo = "photos/camera.png"
    for arguments, message in (
        (("nowhere", photo), "nowhere"),
        (("index", "absent.jpg"), "absent.jpg does not exist"),
        (("index", photo, "--mode", "best"), "no mode 'best': choose bow,"),
        (("index", photo, "--box", "1,2,3"), "--box 1,2,3: give x,y,width,height"),
        (("index", photo, "--box", "600,0,9,9"), "outside the query, which is 512x512"),
        (("index", photo, "--box", "6,0,0,9"), "x,y,width,height"),
        (("index", photo, photo, "--box", "6,0,9,9"), "1 --box for 2 QUERY"),
    ):
        run = hardnet("search", *arguments)
        assert run.returncode == 1
        assert message in run.stderr
        assert len(run.stderr.splitlines()) == 1
        assert run.stdout == ""


def test_a_picture_that_cannot_be_written_costs_no_hits(hardnet: Hardnet, built: Path) -> None:
    Path("file").write_text("")
    run = hardnet("search", "index", "photos/coffee.png", "--json", "-o", "file/sheet.png")
    assert run.returncode == 1
    assert json.loads(run.stdout)["hits"]
    assert "file" in run.stderr


def test_nothing_found(hardnet: Hardnet, built: Path) -> None:
    write_image("flat.png", np.full((90, 90), 77, np.uint8))
    run = hardnet("search", "index", "flat.png", "-o", "sheet.png")
    assert run.returncode == 1
    assert "nothing found: there is no keypoint in the query" in run.stderr
    assert Path("sheet.png").exists()
    run = hardnet("search", "index", "photos/rocket.jpg", "--box", "2,2,4,4", "--json")
    assert run.returncode == 1
    assert json.loads(run.stdout)["hits"] == []
    assert "no keypoint in the box" in run.stderr
    hardnet("index", "remove", "index", "photos")
    run = hardnet("search", "index", "photos/rocket.jpg")
    assert run.returncode == 1
    assert "the index is empty" in run.stderr


def test_broken_photos_are_listed_and_the_rest_is_there(hardnet: Hardnet, place: Path) -> None:
    Path("photos/bad [bold].jpg").write_text("words")
    write_image("photos/flat.png", np.full((90, 90), 77, np.uint8))
    arguments = ("index", "build", "index", "photos", "none.jpg", *QUICK, "--words", "64")
    run = hardnet(*arguments, "--json")
    assert run.returncode == 1
    found = json.loads(run.stdout)
    assert (found["indexed"], found["without_features"]) == (7, ["../photos/flat.png"])
    skipped = [Path(bad["image"]).name for bad in found["skipped"]]
    assert sorted(skipped) == ["bad [bold].jpg", "none.jpg"]
    assert len(run.stderr.splitlines()) == 3
    assert run.stderr.count("skipped: ") == 2
    assert "without features: photos/flat.png" in run.stderr
    again = hardnet(*arguments)
    assert again.returncode == 1
    assert "0 photos indexed" in again.stdout
    assert "7 unchanged, 2 skipped" in again.stdout
    Path("empty").mkdir()
    run = hardnet("index", "build", "other", "empty", *QUICK)
    assert run.returncode == 1
    assert "empty contains no image" in run.stderr
    assert not Path("other").exists()


def test_info_and_damage(hardnet: Hardnet, built: Path) -> None:
    found = json.loads(hardnet("index", "info", "index", "--json").stdout)
    assert (found["images"], found["words"]) == (6, 64)
    assert found["features"] == 900
    assert found["settings"]["descriptor"] == "rootsift"
    assert found["vocabulary"]["provenance"]["words_asked"] == 64
    shown = hardnet("index", "info", "index").stdout
    assert "rootsift" in shown
    assert "900" in shown
    (segment,) = Path("index/segments").iterdir()
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-100] + bytes(100))
    run = hardnet("index", "verify", "index")
    assert run.returncode == 1
    assert str(segment) in run.stderr
    segment.write_bytes(whole[: len(whole) // 2])
    run = hardnet("index", "verify", "index", "--json")
    assert run.returncode == 1
    assert len(json.loads(run.stdout)["problems"]) == 1
    run = hardnet("search", "index", "photos/camera.png")
    assert run.returncode == 1
    assert str(segment) in run.stderr


def test_a_vocabulary_of_other_photos(hardnet: Hardnet, place: Path, photos: Path) -> None:
    train = (photos / "brick.png", photos / "page.png", photos / "text.png")
    run = hardnet(
        "index", "vocabulary", *train, "-o", "words.safetensors", "--words", 40, *QUICK, "--json"
    )
    assert run.returncode == 0, run.stderr
    made = json.loads(run.stdout)
    assert made["words"] == 40
    assert vocabularies.load("words.safetensors").digest == made["digest"]
    assert sorted(path.name for path in place.iterdir()) == ["photos", "words.safetensors"]
    given = ("--vocabulary", "words.safetensors")
    run = hardnet("index", "build", "index", "photos", *QUICK, *given)
    assert run.returncode == 0, run.stderr
    assert open_snapshot("index").vocabulary.digest == made["digest"]
    assert "photos/coins.png" in hardnet("search", "index", "photos/coins.png", "-k", 1).stdout
    run = hardnet("index", "build", "other", "photos", "--descriptor", "sift", *given)
    assert run.returncode == 1
    assert "words of rootsift, not of sift" in run.stderr


@pytest.mark.slow
def test_a_build_that_is_killed_continues(hardnet: Hardnet, place: Path) -> None:
    """Killed twice: while the sample is described, and as soon as something is committed."""
    rng = np.random.default_rng(0)
    for name in NAMES:  # small and many: quick, and killed in the middle
        photo = read_image(f"photos/{name}")[::3, ::3]
        Path(f"photos/{name}").unlink()
        for k in range(3):
            pixels = np.roll(photo, tuple(rng.integers(0, 60, 2)), (0, 1))
            write_image(f"photos/{Path(name).stem}{k}.png", pixels)
    command = ("index", "build", "index", "photos", *QUICK, "--words", "64")
    program = (
        "import sys\n"
        "from hardnet.cli.app import main\n"
        "from hardnet.retrieval import build\n"
        "build.build.__kwdefaults__['commit_images'] = 5\n"
        "main()"
    )
    seen = {"described": 0, "committed": 0}
    for goal in ("described", "committed"):
        process = subprocess.Popen(
            [sys.executable, "-c", program, *command], stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 60
        while not seen[goal] and process.poll() is None and time.monotonic() < deadline:
            seen["described"] = len(list(Path("index/build/features").glob("*.npz")))
            if Path("index/manifest.json").exists():
                seen["committed"] = open_snapshot("index").images
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() in (-signal.SIGKILL, 0), process.communicate()[1]
        if goal == "described":
            if not Path("index/manifest.json").exists():
                early = hardnet("search", "index", "photos/camera0.png")
                assert "index has no photos yet" in early.stderr
            other = hardnet(*command[:-1], "99")
            assert other.returncode == 1
            assert "words=64, not 99" in other.stderr or "not 99" in other.stderr
    assert seen["described"] > 0
    kept = seen["committed"]
    assert kept > 0
    run = hardnet(*command, "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["unchanged"] >= kept
    assert found["indexed"] + found["unchanged"] == 18
    index = Index("index")
    assert len(index) == 18
    assert index.verify().ok
    assert not Path("index/build").exists()
    assert hardnet("search", "index", "photos/camera0.png", "-k", 1).returncode == 0
