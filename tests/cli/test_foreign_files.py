"""No command deletes or changes a file that it did not make, wherever it lies and however named."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import hardnet
from hardnet.descriptors import WEIGHTS
from hardnet.errors import HardnetError
from hardnet.interop import feature_files
from hardnet.patchsets.brown import BrownWriter

Command = Callable[..., object]

CHEAP = ("--keypoints", "100", "--max-size", "200", "--descriptor", "rootsift")

RECIPE = "data: [set]\nnet: hardnet-tiny\nvalidation: ''\nbatch: 8\npairs: 32\n"

HOSTILE = (
    "thesis.tex",
    "notes.part",
    "a.png.npz",
    "a.npz",
    "other.npz",
    "lock",
    "extract.lock",
    "extract.json",
    "settings.json",
    "state.json",
    "state.part",
    "kmeans",
    "kmeans.1.tmp",
    "last.ckpt",
    "last.ckpt.part",
    "mined-0.npy",
    "log.csv",
    "recipe.yaml",
    "manifest.json",
    "manifest.json.part",
    "vocabulary.safetensors",
    "vocabulary-0123456789abcdef.safetensors",
    "hardnet.safetensors",
    "database.db",
    "database.db-wal",
    "database.db-shm",
    "hardnet.onnx",
    "SOURCES.md",
    ".partial/train/mine.jpg",
    "build/thesis.tex",
    "build/settings.json",
    "features/other.npz",
    "segments/00000002-0000.safetensors",
    "segments/00000009-0000.safetensors",
    "generations/00000002.safetensors",
    "generations/00000009.safetensors",
    "sparse/0/cameras.bin",
    "sparse/notes.txt",
    "train/mine.jpg",
    "x.h5.parts/a.png.npz",
    "x.h5.parts/notes.part",
    "w.safetensors.parts/kmeans",
    "set.999999999.part/info.txt",
    "set.999999999-0123abcd.part/info.txt",
    "cache/patches-32.0123456789ab.npy",
)


@pytest.fixture
def place(
    photos: Path, camera: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder with two photos, a patch set and a recipe, which is the current one."""
    (tmp_path / "photos").mkdir()
    for name, source in (("a.png", "camera.png"), ("b.png", "brick.png")):
        shutil.copy(photos / source, tmp_path / "photos" / name)
    with BrownWriter(tmp_path / "set") as writer:
        writer.add(
            np.stack([camera[i : i + 64, i : i + 64] for i in range(20)]), np.arange(20) // 2, 0
        )
        writer.finish(5, 0, {})
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plant(*names: str) -> dict[Path, bytes]:
    """Foreign files where nothing is."""
    planted = {}
    for path in map(Path, names):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(f"mine: {path}")
            planted[path] = path.read_bytes()
    return planted


def intact(planted: dict[Path, bytes]) -> bool:
    return {path: path.read_bytes() for path in planted if path.exists()} == planted


def test_a_folder_called_build_is_not_ours(command: Command, place: Path) -> None:
    mine = plant("project/build/thesis.tex")
    run = command("index", "build", "project", "photos", *CHEAP)
    assert run.returncode == 1
    assert "build" in run.stderr
    assert intact(mine)
    assert command("index", "build", "e.index", "photos", *CHEAP).returncode == 0
    mine |= plant("e.index/build/thesis.tex")
    run = command("index", "add", "e.index", "photos")
    assert run.returncode == 1
    assert "thesis.tex" in run.stderr
    assert intact(mine)


def test_features_beside_files_of_others(command: Command, place: Path) -> None:
    mine = plant("Downloads/film.part", "Downloads/sub/film.part", "Downloads/extract.lock")
    for options in ((), (), ("--overwrite",)):
        assert command("extract", "photos", "-o", "Downloads", *CHEAP, *options).returncode == 0
        assert intact(mine)
        assert len(feature_files.read_npz("Downloads/a.png.npz")) > 50
        mine |= plant("Downloads/other.npz", "Downloads/sub/other.npz")


def test_a_foreign_file_in_the_place_of_features_is_named(command: Command, place: Path) -> None:
    assert command("extract", "photos/a.png", "-o", "out", *CHEAP).returncode == 0
    mine = plant("out/b.png.npz")
    run = command("extract", "photos", "-o", "out", *CHEAP)
    assert run.returncode == 1
    assert "b.png.npz" in run.stdout + run.stderr
    assert intact(mine)


@pytest.mark.parametrize("name", ["notes.part", "a.png.npz", "thesis.tex"])
def test_foreign_folders_called_parts(command: Command, place: Path, name: str) -> None:
    mine = plant(f"x.h5.parts/{name}", f"w.safetensors.parts/{name}")
    for line in (
        ("extract", "photos", "-o", "x.h5", *CHEAP),
        ("extract", "photos", "-o", "x.h5", *CHEAP, "--overwrite"),
        ("index", "vocabulary", "photos", "-o", "w.safetensors", "--words", "20", *CHEAP),
    ):
        run = command(*line)
        assert run.returncode == 1
        assert name in run.stderr
        assert intact(mine)


def test_an_empty_argument_is_not_the_current_folder(command: Command, place: Path) -> None:
    assert command("index", "build", "e.index", "photos", *CHEAP).returncode == 0
    for line in (
        ("index", "remove", "e.index", ""),
        ("index", "add", "e.index", ""),
        ("index", "build", "", "photos"),
        ("extract", "photos", "-o", ""),
        ("extract", "photos", "--output="),
        ("match", "", "photos/a.png"),
        ("search", "e.index", ""),
        ("data", "info", ""),
        ("", "match"),
    ):
        run = command(*line)
        assert run.returncode == 1
        assert "is empty" in run.stderr
        assert len(run.stderr.splitlines()) == 1
    assert len(hardnet.Index("e.index")) == 2


def test_an_empty_path_in_python(place: Path) -> None:
    hardnet.Index.build("e.index", "photos", keypoints=100, max_size=200, descriptor="rootsift")
    index = hardnet.Index("e.index")
    features = hardnet.extract("photos/a.png", keypoints=10)
    for call in (
        lambda: hardnet.extract(""),
        lambda: hardnet.match("", "photos/a.png"),
        lambda: hardnet.load(""),
        lambda: hardnet.Index(""),
        lambda: hardnet.Index.build("", "photos"),
        lambda: hardnet.Index.build("f.index", ["photos", ""]),
        lambda: index.add(""),
        lambda: index.remove([""]),
        lambda: index.search(""),
        lambda: feature_files.read_npz(""),
        lambda: feature_files.write_npz("", features),
        lambda: feature_files.write_hdf5("", "a", features),
        lambda: feature_files.hdf5_names(""),
    ):
        with pytest.raises(HardnetError, match=r"empty|unknown descriptor ''"):
            call()
    assert len(hardnet.Index("e.index")) == 2


def commands(sequences: Path) -> Iterator[tuple[str, ...]]:
    """Every command that writes, into the folder ``here``."""
    yield "index", "build", "here", "photos", *CHEAP
    yield "index", "add", "here", "photos"
    yield "index", "remove", "here", "photos/a.png"
    yield "index", "compact", "here"
    yield "index", "vocabulary", "photos", "-o", "here/w.safetensors", "--words", "20", *CHEAP
    for overwrite in ((), ("--overwrite",)):
        yield "extract", "photos", "-o", "here", *CHEAP, *overwrite
        yield "extract", "photos", "-o", "here/x.h5", *CHEAP, *overwrite
    yield "colmap", "photos", "-o", "here", *CHEAP
    yield "data", "build", "sequences", str(sequences), "-o", "here/set", "--workers", "1"
    yield "data", "info", "here"
    yield "train", "recipe.yaml", "-o", "here"
    yield "export", str(WEIGHTS / "hardnet.safetensors"), "-o", "here"


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_no_command_touches_files_of_others(
    command: Command, place: Path, sequences: Path, when: str
) -> None:
    """Planted in an empty folder, or in one where the same command has worked already."""
    for line in commands(sequences):
        shutil.rmtree("here", ignore_errors=True)
        if when == "after":
            Path("here").mkdir()
            if line[1] in ("add", "remove", "compact"):
                command("index", "build", "here", "photos", *CHEAP)
            run = command(*line)
            assert run.returncode == 0 or line[0] in ("colmap", "data"), (line, run.stderr)
        mine = plant(*(f"here/{name}" for name in HOSTILE))
        run = command(*line)
        assert intact(mine), line
        assert run.returncode == 0 or run.stderr + run.stdout, line


def test_training_names_what_is_in_its_way(command: Command, place: Path) -> None:
    mine = plant("run/log.csv")
    run = command("train", "recipe.yaml", "-o", "run")
    assert run.returncode == 1
    assert "log.csv is in the way" in run.stderr
    assert intact(mine)
