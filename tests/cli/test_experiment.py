"""`hardnet experiment` from the shell, on tiny sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from hardnet.cli.app import app
from hardnet.errors import HardnetError
from hardnet.patchsets.brown import BrownWriter

run = CliRunner()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny set and a recipe that trains on it."""
    root = tmp_path_factory.mktemp("experiment")
    rng = np.random.default_rng(0)
    base = rng.normal(128, 10, (64, 8, 8)).repeat(8, 1).repeat(8, 2).repeat(3, 0)
    patches = (base + rng.normal(0, 60, base.shape)).clip(0, 255).astype(np.uint8)
    with BrownWriter(root / "set") as writer:
        writer.add(patches, np.arange(len(patches)) // 3, 0)
        writer.finish(100, 0, {})
    (root / "tiny.yaml").write_text(
        f"data: [{root / 'set'}]\nnet: tfeat\nbatch: 16\nlr: 0.1\ndropout: 0.0\naccelerator: cpu\n"
    )
    return root


def experiment(name: str, files: Path, *arguments: object) -> Any:
    common = ("experiment", name, files / "tiny.yaml", "--brown", files / "set", "--threads", 1)
    return run.invoke(app, [str(a) for a in (*common, *arguments)])


def test_batch_size_from_the_shell(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    options = ("--budget", 64, "--cells", "batch-16,batch-32,batch-64", "-o", tmp_path / "out")
    done = experiment("batch-size", files, *options, "--results", tmp_path / "r.json")
    assert done.exit_code == 0, (done.output, done.exception)
    results = json.loads((tmp_path / "r.json").read_text())
    assert [cell["runs"][0]["steps"] for cell in results["cells"][:3]] == [4, 2, 1]
    assert results["missing"] == [f"batch-{n}" for n in (128, 256, 512, 1024, 2048)]
    assert "every doubling of the batch helps up to 512" in done.output
    assert "no significant benefit" in done.output
    assert results["provenance"]["settings"]["budget"] == 64
    assert str(files) not in (tmp_path / "r.json").read_text()
    assert cv2.imread(str(tmp_path / "out" / "batch-size.png")).std() > 5


@pytest.mark.slow
def test_equal_steps_and_ablation_epochs(files: Path, tmp_path: Path) -> None:
    options = ("--budget", 1024, "--cells", "batch-16", "--equal", "steps", "-o", tmp_path / "b")
    assert experiment("batch-size", files, *options).exit_code == 0
    results = json.loads((tmp_path / "b" / "results.json").read_text())
    assert results["cells"][0]["runs"][0]["steps"] == 2
    options = ("--budget", 64, "--cells", "hardest-triplet", "--epochs", 2, "-o", tmp_path / "a")
    assert experiment("ablation", files, *options).exit_code == 0
    settings = json.loads((tmp_path / "a" / "experiment.json").read_text())
    assert (settings["budget"], settings["epoch"]) == (64, 32)


def test_mistakes_are_named(files: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "x")
    for name, arguments, message in [
        ("recipes", ["--set", "lr=1"], "--set lr: this is what the cells of recipes differ in"),
        ("recipes", ["--set", "pairs=9"], "--budget"),
        ("ablation", ["--set", "epoch=9"], "--epochs"),
        ("recipes", ["--set", "lrr=9"], "did you mean lr"),
        ("recipes", ["--cells", "nope"], "no such cell"),
    ]:
        done = experiment(name, files, *arguments, *out)
        assert isinstance(done.exception, HardnetError), (arguments, done.output, done.exception)
        assert message in str(done.exception)
    assert not (tmp_path / "x").exists()


@pytest.mark.slow
def test_gradients(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run.invoke(app, ["experiment", "gradients", "-o", str(tmp_path / "g.png")])
    assert done.exit_code == 0, (done.output, done.exception)
    assert cv2.imread(str(tmp_path / "g.png")).std() > 5
