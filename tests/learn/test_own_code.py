"""A loss and a network of the user, named in the recipe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.descriptors import load
from hardnet.errors import HardnetError
from hardnet.learn.losses import pair_loss, triplet_margin
from hardnet.learn.recipe import read_recipe
from hardnet.learn.trainer import Trainer
from hardnet.nets import load_net
from hardnet.patchsets.patchset import PatchSet

CODE = """
import torch
from torch import nn
from hardnet.nets.hardnet import Net, flatten, normalise_patches, unit_length

def steep(positive, negative, margin):
    return 2 * (margin + positive - negative).clamp_min(0).mean()

def plain(positive, negative):
    return (positive - negative.clamp_max(2)).mean()

def wrong(positive, negative):
    return positive - negative

class Few(Net):
    dim = 16

    def __init__(self, dropout=0.0):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 8, stride=8)
        self.drop = nn.Dropout(dropout)
        self.last = nn.Conv2d(8, 16, 4)

    def layers(self):
        return (normalise_patches, self.first, nn.ReLU(), self.drop, self.last, flatten,
                unit_length)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "idea.py").write_text(CODE)
    (tmp_path / "r.yaml").write_text(
        "data: [x]\nloss: idea:steep\nmargin: 0.5\nnet: idea:Few\nbatch: 8\npairs: 24\n"
        "lr: 0.1\naccelerator: cpu\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def some_patches() -> PatchSet:
    rng = np.random.default_rng(0)
    base = rng.normal(128, 40, (20, 8, 8)).repeat(4, 1).repeat(4, 2).repeat(3, 0)
    grey = (base + rng.normal(0, 12, base.shape)).clip(0, 255).astype(np.uint8)
    return PatchSet("textures", grey, np.arange(60) // 3, np.zeros((0, 2), np.int64))


def test_a_loss_of_two_distances(place: Path) -> None:
    positive, negative = torch.tensor([0.3, 0.9]), torch.tensor([0.5, torch.inf])
    expected = 2 * triplet_margin(positive, negative, 0.5)
    assert pair_loss("idea:steep", 0.5)(positive, negative) == expected
    assert pair_loss("idea:plain", 0.5)(positive, negative).item() == pytest.approx(-0.65)
    with pytest.raises(HardnetError, match="idea:wrong must return one number"):
        pair_loss("idea:wrong", 0.5)(positive, negative)


def test_trained_resumed_and_exported(place: Path) -> None:
    settings = read_recipe("r.yaml", [])
    weights = Trainer(settings, some_patches(), place / "run").run()
    assert weights.name == "Few.safetensors"
    again = Trainer(read_recipe("r.yaml", ["workers=2"]), some_patches(), place / "run", None, True)
    assert again.step == 3
    again._lock.release()
    # No file is trusted to name code: a person does, to make an .onnx of it.
    with pytest.raises(HardnetError, match=r"is of network 'idea:Few'; .* hardnet export --net"):
        load_net(weights)
    words = ["export", str(weights), "-o", "out", "--net", "idea:Few", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    patches = some_patches().patches
    found = load("out/Few.onnx")(patches)
    np.testing.assert_allclose(found, again.describe(patches), atol=1e-5)
    begun = read_recipe("r.yaml", [f"init={weights}"])
    other = Trainer(begun, some_patches(), place / "other")
    np.testing.assert_allclose(other.describe(patches), found, atol=1e-5)
    other._lock.release()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("loss=idea:absent", "idea has no 'absent'"),
        ("loss=nothing:absent", "no module 'nothing'"),
        ("net=idea:steep", "idea:steep is not a network: give a subclass"),
        ("net=idea:absent", "idea has no 'absent'"),
        ("net=hardnett", "unknown net 'hardnett'; did you mean hardnet"),
    ],
)
def test_mistakes_are_named_before_training(place: Path, change: str, message: str) -> None:
    with pytest.raises(HardnetError, match=message):
        read_recipe("r.yaml", [change])
