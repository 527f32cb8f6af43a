"""Training: it learns, it resumes to the same bits, it survives interruption."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hardnet.errors import HardnetError  # noqa: E402
from hardnet.learn.recipe import Recipe  # noqa: E402
from hardnet.learn.trainer import CHECKPOINT, Trainer  # noqa: E402
from hardnet.patchsets.brown_writer import BrownWriter  # noqa: E402
from hardnet.patchsets.patchset import PatchSet  # noqa: E402


@pytest.fixture(scope="module")
def patch_set() -> PatchSet:
    """Noisy copies of smooth random textures: easy to learn, impossible by luck."""
    rng = np.random.default_rng(0)
    texture = rng.normal(128, 40, (40, 8, 8)).clip(0, 255)
    base = texture.repeat(4, 1).repeat(4, 2)
    patches = base.repeat(4, 0) + rng.normal(0, 12, (160, 32, 32))
    points = np.arange(160) // 4
    pairs = np.stack([np.arange(0, 160, 4), np.arange(1, 160, 4)], 1)
    return PatchSet("textures", patches.clip(0, 255).astype(np.uint8), points, pairs)


def recipe(**changes: object) -> Recipe:
    settings: dict[str, object] = {
        "data": ["x"], "batch": 16, "pairs": 96, "dropout": 0.1, "checkpoint_every": 2,
        "accelerator": "cpu", "seed": 4,
    }  # fmt: skip
    return Recipe(**(settings | changes))  # type: ignore[arg-type]


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in trainer.net.state_dict().items()}


def test_learns_to_separate(patch_set: PatchSet, tmp_path: Path) -> None:
    trainer = Trainer(recipe(pairs=16 * 30), patch_set, tmp_path)
    losses: list[float] = []
    trainer.run(lambda progress: losses.append(progress.loss))
    assert len(losses) == 30
    assert np.mean(losses[-3:]) < 0.85 * np.mean(losses[:3])


def test_resumed_run_ends_with_the_same_bits(patch_set: PatchSet, tmp_path: Path) -> None:
    whole = Trainer(recipe(), patch_set, tmp_path / "whole")
    whole.run()

    class Stop(Exception):
        pass

    def stop_at_three(progress: object) -> None:
        if progress.step == 3:  # type: ignore[attr-defined]
            raise Stop

    first = Trainer(recipe(), patch_set, tmp_path / "parts")
    with pytest.raises(Stop):
        first.run(stop_at_three)
    torch.rand(7)  # the global generator has moved on: resuming must not depend on it
    second = Trainer(recipe(), patch_set, tmp_path / "parts", resume=True)
    assert second.step == 2  # the last checkpoint, not the last step
    second.run()
    for key, value in weights(whole).items():
        assert torch.equal(value, second.net.state_dict()[key]), key
    rows = [list(csv.DictReader((tmp_path / x / "log.csv").open())) for x in ("whole", "parts")]
    for a, b in zip(*rows, strict=True):
        a.pop("pairs_per_second"), b.pop("pairs_per_second")
        assert a == b


def test_validation_is_called_and_logged(patch_set: PatchSet, tmp_path: Path) -> None:
    seen = []

    def validate(describe) -> float:
        descriptors = describe(patch_set.patches[:10])
        assert descriptors.shape == (10, 128)
        assert np.allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-5)
        seen.append(descriptors)
        return 0.25

    Trainer(recipe(validate_every=2), patch_set, tmp_path, validate).run()
    assert len(seen) == 3
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [r["fpr95"] for r in rows] == ["", "0.25", "", "0.25", "", "0.25"]
    assert list((tmp_path / "tensorboard").glob("events*"))


def test_final_weights_load_again(patch_set: PatchSet, tmp_path: Path) -> None:
    from hardnet.nets.checkpoints import load_net, read_checkpoint

    trainer = Trainer(recipe(), patch_set, tmp_path)
    weights = trainer.run()
    facts = read_checkpoint(weights).metadata
    assert facts["recipe"]["seed"] == 4
    assert facts["pairs"] == 96
    net = load_net(weights)
    ours = trainer.describe(patch_set.patches[:5])
    with torch.no_grad():
        theirs = net.eval()(torch.from_numpy(patch_set.patches[:5])[:, None].float() / 255)
    assert np.allclose(ours, theirs.numpy(), atol=1e-6)


def test_a_folder_is_not_overwritten(patch_set: PatchSet, tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="to resume from"):
        Trainer(recipe(), patch_set, tmp_path, resume=True)
    Trainer(recipe(), patch_set, tmp_path).run()
    with pytest.raises(HardnetError, match="--resume"):
        Trainer(recipe(), patch_set, tmp_path)
    with pytest.raises(HardnetError, match="seed 4"):
        Trainer(recipe(seed=5), patch_set, tmp_path, resume=True)
    (tmp_path / CHECKPOINT).write_bytes(b"no checkpoint")
    with pytest.raises(HardnetError, match="not a checkpoint"):
        Trainer(recipe(), patch_set, tmp_path, resume=True)


def test_a_loss_that_is_not_finite_stops_the_run(patch_set: PatchSet, tmp_path: Path) -> None:
    trainer = Trainer(recipe(), patch_set, tmp_path)
    with torch.no_grad():
        trainer.net.features[0].weight.fill_(float("nan"))
    with pytest.raises(HardnetError, match="loss became nan"):
        trainer.run()


def test_ctrl_c_saves_and_resume_finishes(patch_set: PatchSet, tmp_path: Path) -> None:
    """The real command, really interrupted."""
    big = np.repeat(np.repeat(patch_set.patches, 2, 1), 2, 2)
    with BrownWriter(tmp_path / "set") as writer:
        writer.add(big, patch_set.points, 0)
        writer.finish(40, 0, {})
    (tmp_path / "r.yaml").write_text(
        "data: [set]\nvalidation: set\nbatch: 16\npairs: 640\ncheckpoint_every: 1000\n"
        "accelerator: cpu\n"
    )
    command = [sys.executable, "-m", "hardnet.cli.app", "train", "r.yaml", "-o", "run"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, env=environment)
    log = tmp_path / "run" / "log.csv"
    deadline = time.monotonic() + 120
    while not (log.exists() and len(log.read_text().splitlines()) > 5):
        assert time.monotonic() < deadline, "training did not start"
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors.decode()
    assert b"Continue with --resume" in errors
    saved = torch.load(tmp_path / "run" / CHECKPOINT, weights_only=True)["step"]
    assert 5 <= saved < 40
    done = subprocess.run(
        [*command, "--resume", "--set", "checkpoint_every=50"],
        cwd=tmp_path, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "run" / "hardnet.safetensors").exists()
    assert len(log.read_text().splitlines()) == 40 + 1
