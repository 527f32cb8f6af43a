"""The students of DesDis: published weights load, fit, and describe."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hardnet import descriptors
from hardnet.interop.onnx import to_onnx, to_onnx_int8
from hardnet.nets import build_net, load_net, read_checkpoint

MULTIPLY_ADDS = {8: 0.38, 16: 1.35, 24: 2.91, 32: 5.05}
"""Millions per patch, as published."""


def multiply_adds(name: str) -> int:
    """Multiplications of one patch with the weights of convolutions and dense layers."""
    total = 0
    with torch.no_grad(), torch.device("meta"):
        net = build_net(name)
        x = torch.zeros(1, 1, net.patch_size, net.patch_size)
        for layer in net.eval().layers():
            x = layer(x)
            if isinstance(layer, nn.Conv2d | nn.Linear):
                places = x.shape[2] * x.shape[3] if isinstance(layer, nn.Conv2d) else 1
                total += layer.weight.numel() * places
    return total


@pytest.fixture
def published(data: Path) -> Path:
    folder = data.parent / "weights" / "desdis"
    if not folder.is_dir():
        pytest.skip(f"no published weights in {folder}")
    return folder


@pytest.mark.parametrize("width", MULTIPLY_ADDS)
def test_published_weights_are_recognised(published: Path, width: int) -> None:
    path = published / f"DesDis-{width}.pth"
    assert read_checkpoint(path).net == f"student{width}"
    assert descriptors.load(path).dim == 128


def test_the_cost_is_the_published_one_and_that_counted_by_hand() -> None:
    for width, millions in MULTIPLY_ADDS.items():
        assert multiply_adds(f"student{width}") / 1e6 == pytest.approx(millions, abs=0.02)
    first, second = 16 * 16 * 32 * 9, 8 * 8 * 48 * 32 * 9
    third, fourth, last = 8 * 8 * 48 * 48 * 9, 8 * 8 * 64 * 48 * 9, 64 * 8 * 8 * 128
    assert multiply_adds("hardnet-small") == first + second + third + fourth + last
    # Two convolutions of 7 x 7 and 6 x 6, and a dense layer.
    assert multiply_adds("tfeat") == 26 * 26 * 32 * 49 + 8 * 8 * 64 * 32 * 36 + 64 * 64 * 128
    costs = [multiply_adds(f"hardnet-{size}") for size in ("tiny", "small", "medium")]
    assert costs[0] < costs[1] < 5_000_000 < costs[2]


@pytest.mark.parametrize("size", ["small", pytest.param("tiny", marks=pytest.mark.slow)])
def test_8_bit_integers_stay_close(size: str, patches: torch.Tensor, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = build_net(f"hardnet-{size}")
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # average instead of decay
    with torch.no_grad():
        net(patches)
    net.eval()
    grey = patches[:, 0].numpy().astype("uint8")
    (tmp_path / "q.onnx").write_bytes(to_onnx_int8(net, grey))
    with torch.inference_mode():
        expected = net(torch.from_numpy(grey).float()[:, None]).numpy()
    cosine = (descriptors.load(tmp_path / "q.onnx")(grey) * expected).sum(1)
    assert cosine.mean() > 0.99
    assert (tmp_path / "q.onnx").stat().st_size < 0.35 * len(to_onnx(net))


def test_values_by_plain_functions(published: Path, patches: torch.Tensor) -> None:
    path = published / "DesDis-32.pth"
    state = torch.load(path, map_location="cpu", weights_only=True)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        return (x - mean[:, None, None]) / torch.sqrt(variance[:, None, None] + 1e-5)

    mean, std = patches.mean((2, 3), keepdim=True), patches.std((2, 3), keepdim=True, correction=0)
    x = (patches - mean) / std
    layers = (("layer1.1", "layer1.2"), ("layer2.0", "layer2.1"), ("layer3.0", "layer3.1"))
    for convolution, following in layers:
        x = F.conv2d(x, state[f"{convolution}.weight"], stride=2, padding=1)
        x = F.relu(norm(x, following))
    x = F.relu(norm(F.conv2d(x, state["layer3.3.weight"], padding=1), "layer3.4"))
    x = norm(F.conv2d(x, state["desc.1.weight"], state["desc.1.bias"]), "desc.2")
    with torch.inference_mode():
        ours = load_net(path)(patches)
    torch.testing.assert_close(ours, F.normalize(x.flatten(1)), atol=2e-5, rtol=0)
