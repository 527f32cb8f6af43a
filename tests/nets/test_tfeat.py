"""TFeat against kornia's, and both published layouts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from hardnet.nets import HardTFeat, TFeat, load_net, read_checkpoint


@pytest.fixture
def published(data: Path) -> Path:
    folder = data.parent / "weights"
    if not folder.is_dir():
        pytest.skip(f"no published weights in {folder}")
    return folder


def test_published_weights_give_the_values_of_kornia(
    patches: torch.Tensor, published: Path
) -> None:
    kornia = pytest.importorskip("kornia.feature")
    path = published / "tfeat-liberty.params"
    theirs = kornia.TFeat(False).eval()
    theirs.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    ours = load_net(path)
    assert isinstance(ours, TFeat)
    with torch.inference_mode():
        torch.testing.assert_close(ours.raw(patches), theirs(patches), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("file", "net"),
    [
        ("tfeat-liberty.params", "tfeat"),
        ("tfeat-notredame.params", "tfeat"),
        ("tfeat-yosemite.params", "tfeat"),
        ("HardTFeat.pth", "hardtfeat"),
    ],
)
def test_published_files_are_recognised_and_tell_patches_apart(
    file: str, net: str, published: Path, patches: torch.Tensor
) -> None:
    assert read_checkpoint(published / file).net == net
    with torch.inference_mode():
        model = load_net(published / file)
        # A patch moved by a pixel stays nearest to itself among 64.
        moved = torch.roll(patches, 1, dims=3)
        nearest = (model(patches) @ model(moved).T).argmax(1)
    assert (nearest == torch.arange(len(patches))).float().mean() > 0.9


def test_hardtfeat_starts_as_hardnet_does() -> None:
    conv = HardTFeat().features[3]
    assert isinstance(conv, nn.Conv2d)
    rows = conv.weight.detach().flatten(1)
    torch.testing.assert_close(rows @ rows.T, 0.36 * torch.eye(64), atol=1e-5, rtol=0)
    assert conv.bias is not None
    assert (conv.bias == 0.01).all()
