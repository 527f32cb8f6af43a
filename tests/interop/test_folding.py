"""Batch normalisation folded into the layer before it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hardnet.errors import HardnetError
from hardnet.interop.folding import Convolution, fold


def _random_norm(norm: nn.BatchNorm2d | nn.BatchNorm1d) -> nn.BatchNorm2d | nn.BatchNorm1d:
    for tensor in (norm.running_mean, norm.weight, norm.bias):
        if tensor is not None:
            nn.init.normal_(tensor)
    assert norm.running_var is not None
    nn.init.uniform_(norm.running_var, 0.5, 2)
    return norm.eval()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_a_folded_convolution_gives_the_same_values(bias: bool, affine: bool) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=bias)
    norm = _random_norm(nn.BatchNorm2d(5, affine=affine))
    (folded,) = fold([conv, nn.Dropout(0.3), norm])
    assert isinstance(folded, Convolution)
    x = torch.randn(2, 3, 8, 8)
    weight, shift = torch.from_numpy(folded.weight), torch.from_numpy(folded.bias)
    found = F.conv2d(x, weight, shift, folded.stride, folded.padding)
    torch.testing.assert_close(found, norm(conv(x)), atol=1e-5, rtol=1e-5)


def test_a_folded_fully_connected_layer_gives_the_same_values() -> None:
    torch.manual_seed(0)
    dense, norm = nn.Linear(7, 4), _random_norm(nn.BatchNorm1d(4))
    (folded,) = fold([dense, norm])
    assert isinstance(folded, Convolution)
    x = torch.randn(6, 7)
    found = x.numpy() @ folded.weight.T + folded.bias
    np.testing.assert_allclose(found, norm(dense(x)).detach().numpy(), atol=1e-5)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.BatchNorm2d(1)],
        [nn.Conv2d(1, 1, 3), nn.ReLU(), nn.BatchNorm2d(1)],
        [nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1), nn.BatchNorm2d(1)],
        [nn.Conv2d(2, 2, 3, groups=2)],
        [nn.Conv2d(1, 1, 3, dilation=2)],
        [nn.Conv2d(1, 1, 3, padding="same")],
        [nn.Conv2d(1, 1, (3, 5))],
        [nn.Conv2d(1, 1, 3, stride=(1, 2))],
        [nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect")],
    ],
)
def test_what_cannot_be_folded_is_named(layers: list[nn.Module]) -> None:
    with pytest.raises(HardnetError, match="cannot be exported"):
        fold(layers)
