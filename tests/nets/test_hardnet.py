"""HardNet: the published architecture, value by value."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hardnet.nets import HardNet


def test_has_the_published_number_of_parameters() -> None:
    assert sum(p.numel() for p in HardNet().parameters()) == 1_334_560


def test_gives_the_values_of_kornia_with_the_same_weights(patches: torch.Tensor) -> None:
    kornia = pytest.importorskip("kornia.feature")
    torch.manual_seed(0)
    ours = HardNet()
    ours(patches)  # training mode: batch norm statistics of real patches
    theirs = kornia.HardNet(False)
    theirs.load_state_dict(ours.state_dict())
    ours.eval()
    theirs.eval()
    with torch.inference_mode():
        torch.testing.assert_close(ours(patches), theirs(patches), atol=1e-5, rtol=0)


def test_starts_orthogonal_with_gain_0_6() -> None:
    for conv in HardNet().features:
        if isinstance(conv, nn.Conv2d) and conv.in_channels > 1:
            rows = conv.weight.detach().flatten(1)
            expected = 0.36 * torch.eye(len(rows))
            torch.testing.assert_close(rows @ rows.T, expected, atol=1e-5, rtol=0)
    # 9 inputs cannot have 32 orthogonal rows: there the columns are.
    first = next(HardNet().features.children()).weight.detach().flatten(1)
    torch.testing.assert_close(first.T @ first, 0.36 * torch.eye(9), atol=1e-5, rtol=0)


def test_no_gradient_through_the_patch_statistics() -> None:
    from hardnet.nets.hardnet import normalise_patches

    patch = torch.rand(1, 1, 4, 4, requires_grad=True)
    normalise_patches(patch)[0, 0, 1, 2].backward()
    assert patch.grad is not None
    # One output depends on one pixel: the others enter through mean and deviation only.
    assert torch.count_nonzero(patch.grad) == 1
