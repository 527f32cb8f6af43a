"""What holds for every registered network, and for one that is registered only here."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.descriptors import load
from hardnet.errors import HardnetError
from hardnet.interop.onnx import to_onnx
from hardnet.nets import NETS, Net, build_net, load_net, read_checkpoint, save_checkpoint
from hardnet.nets.hardnet import Layer, apply, flatten, normalise_patches, unit_length


class Toy(Net):
    """A network as somebody might add it: other sizes, learned batch norm, two dense layers."""

    dim = 24
    patch_size = 16

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Sequential(
            nn.Linear(8 * 8 * 8, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(dropout)
        )
        self.last = nn.Linear(32, self.dim)

    def layers(self) -> tuple[Layer, ...]:
        return (normalise_patches, *self.body, flatten, *self.head, self.last, unit_length)


MADE: dict[str, Net] = {}
ALIKE = ("student8", "student16", "student24", "hardnet", "hardnet-tiny", "hardnet-medium")
"""Networks that differ from another one, which is faster, in their widths and depth alone."""


@pytest.fixture(
    params=[pytest.param(n, marks=pytest.mark.slow if n in ALIKE else ()) for n in [*NETS, "toy"]]
)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a network; a file and a line are all it takes."""
    monkeypatch.setitem(NETS, "toy", Toy)
    return str(request.param)


@pytest.fixture
def shown(name: str, patches: Tensor) -> Tensor:
    """(32, 1, S, S) patches of a photograph at the size of the network, 0..255."""
    return F.interpolate(patches[:32], NETS[name].patch_size, mode="area")


@pytest.fixture
def net(name: str, shown: Tensor) -> Net:
    """Random weights, the statistics of these patches, evaluation mode."""
    if name not in MADE:
        torch.manual_seed(0)
        net = build_net(name)
        for module in net.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                module.momentum = None  # average instead of decay
        with torch.no_grad():
            net(shown)
        MADE[name] = net.eval()
    return deepcopy(MADE[name])


def test_gives_unit_vectors(net: Net, shown: Tensor) -> None:
    with torch.inference_mode():
        found = net(shown)
    assert found.shape == (32, net.dim)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(32), atol=1e-5, rtol=0)
    # It looks at the patch: no two of them are described alike.
    similar = found @ found.T - 2 * torch.eye(32)
    assert similar.max() < 0.9999


def test_forward_is_its_layers(net: Net, shown: Tensor) -> None:
    with torch.inference_mode():
        assert torch.equal(net(shown), apply(net.layers(), shown))
    listed = {
        p for layer in net.layers() if isinstance(layer, nn.Module) for p in layer.parameters()
    }
    assert listed == set(net.parameters())


def test_a_patch_is_described_alone(net: Net, shown: Tensor) -> None:
    with torch.inference_mode():
        whole = net(shown)
        for rows in (slice(0, 1), slice(5, 9)):
            torch.testing.assert_close(net(shown[rows]), whole[rows], atol=1e-5, rtol=0)
        assert torch.equal(net(shown), whole)  # and nothing is random


def test_brightness_and_contrast_change_nothing(net: Net, shown: Tensor) -> None:
    with torch.inference_mode():
        torch.testing.assert_close(net(shown * 0.5 + 30), net(shown), atol=2e-3, rtol=0)


def test_flat_patches_stay_finite(net: Net) -> None:
    side = net.patch_size
    flat = torch.stack([torch.full((1, side, side), grey) for grey in (0.0, 128.0, 255.0)])
    flat.requires_grad_()
    found = net.train()(flat)
    assert found.isfinite().all()
    found.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in net.parameters())


def test_dropout_is_what_is_asked_for_and_for_training_only(name: str, shown: Tensor) -> None:
    half = build_net(name, 0.5)
    assert [m.p for m in half.modules() if isinstance(m, nn.Dropout)] == [0.5]
    assert not torch.equal(half.train()(shown), half(shown))
    none = build_net(name, 0.0).train()
    torch.testing.assert_close(none(shown), none(shown), atol=1e-6, rtol=0)


def test_every_parameter_learns(net: Net, shown: Tensor) -> None:
    net.train()
    pattern = torch.linspace(-1, 1, net.dim)
    (net(shown) * pattern).sum().backward()
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
    # (Biases before batch normalisation have none: it takes them away.)
    assert all(
        p.grad.abs().max() > 0 for p in net.parameters() if p.ndim > 1 and p.grad is not None
    )


def test_a_seed_gives_the_same_weights(name: str) -> None:
    nets = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        nets.append(build_net(name).state_dict())
    assert all(torch.equal(nets[0][key], nets[1][key]) for key in nets[0])
    assert not all(torch.equal(nets[0][key], nets[2][key]) for key in nets[0])


def test_overfits_a_few_pairs(name: str, shown: Tensor) -> None:
    """The loss of the paper, written out, on 16 pairs: from random to separated."""
    torch.manual_seed(0)
    net = build_net(name, 0.0).train()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    anchors = shown[::2]
    positives = torch.roll(anchors, 2, dims=3) + 20 * torch.randn(anchors.shape)
    losses = []
    for _ in range(10):
        a, p = net(torch.cat([anchors, positives])).chunk(2)
        distances = torch.cdist(a, p)
        others = distances + 10 * torch.eye(16)
        nearest = torch.minimum(others.min(0).values, others.min(1).values)
        loss = (1 + distances.diagonal() - nearest).clamp_min(0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0], losses


def test_weights_come_back(name: str, net: Net, shown: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    save_checkpoint(path, net, name, {"pairs": 3})
    stored = read_checkpoint(path)
    assert (stored.net, stored.metadata["pairs"]) == (name, 3)
    again = load_net(path)
    assert type(again) is NETS[name]
    with torch.inference_mode():
        assert torch.equal(again(shown), net(shown))


def test_a_plain_state_dict_is_recognised(name: str, net: Net, tmp_path: Path) -> None:
    torch.save(net.state_dict(), tmp_path / "net.pth")
    assert read_checkpoint(tmp_path / "net.pth").net == name


def test_onnx_gives_the_same_values(net: Net, shown: Tensor, tmp_path: Path) -> None:
    exported = to_onnx(net)
    assert exported == to_onnx(net)
    (tmp_path / "net.onnx").write_bytes(exported)
    describe = load(tmp_path / "net.onnx")
    assert describe.dim == net.dim
    with torch.inference_mode():
        expected = net(shown).numpy()
    pixels = shown[:, 0].numpy()
    for count in (0, 1, 3, 32):
        np.testing.assert_allclose(describe(pixels[:count]), expected[:count], atol=1e-5)


@pytest.mark.parametrize("name", ["toy"], indirect=True)
def test_export_command_writes_files_of_its_name(name: str, net: Net, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "in.safetensors", net, name)
    arguments = ["export", str(tmp_path / "in.safetensors"), "-o", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert set(facts["bytes"]) == {f"{name}.onnx", f"{name}.safetensors"}
    assert facts["max_difference_to_torch"] < 1e-5


def test_a_layer_that_onnx_export_does_not_know_is_named() -> None:
    class Odd(Toy):
        def layers(self) -> tuple[Layer, ...]:
            return (nn.GELU(), *super().layers())

    class Long(Toy):
        def layers(self) -> tuple[Layer, ...]:
            return super().layers()[:-1]

    with pytest.raises(HardnetError, match=r"does not know the layer GELU.*interop\.onnx"):
        to_onnx(Odd().eval())
    with pytest.raises(HardnetError, match="Long cannot be exported: it must end in unit_length"):
        to_onnx(Long().eval())
