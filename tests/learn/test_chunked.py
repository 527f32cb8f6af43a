"""Chunks change the memory of a training step, and nothing else.

Most comparisons are in float64. In float32 two correct computations differ where an activation is
within rounding of zero: ReLU then passes the gradient of one and not of the other.
"""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn

from hardnet.learn.chunked import ChunkedNet, Store, dropout, kept_values
from hardnet.learn.losses import hardnet_loss
from hardnet.nets import NETS, build_net
from hardnet.nets.hardnet import Layer, apply

PAIRS = 11


def some_patches(n: int = 2 * PAIRS) -> Tensor:
    return torch.rand(n, 1, 32, 32, generator=torch.Generator().manual_seed(1)).double()


def make_net(name: str, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return build_net(name, dropout).double()


def loss_of(descriptors: Tensor) -> Tensor:
    n = len(descriptors) // 2
    return hardnet_loss(descriptors[:n], descriptors[n:])


def gradients(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in net.named_parameters()}


class Awkward(nn.Module):
    """What no registered network has: scale and bias, 1-D norms, two dropouts, norm after norm."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = nn.Sequential(
            nn.BatchNorm2d(1),
            nn.Conv2d(1, 4, 5, stride=3, padding="valid", bias=True),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, groups=2),
            nn.BatchNorm2d(6, momentum=None),
            nn.BatchNorm2d(6, track_running_stats=False),
            nn.MaxPool2d(2),
            nn.Dropout(0.5),
            nn.Conv2d(6, 5, 3, padding=1, padding_mode="reflect"),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(80, 7),
            nn.BatchNorm1d(7),
        )

    def layers(self) -> tuple[Layer, ...]:
        return tuple(self.stack)

    def forward(self, x: Tensor) -> Tensor:
        return apply(self.layers(), x)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(net, marks=() if net in ("hardnet-small", "tfeat") else pytest.mark.slow)
        for net in NETS
    ],
)
@pytest.mark.parametrize("chunk", [8, 100])
def test_descriptors_gradients_and_statistics_are_those_of_plain_training(
    name: str, chunk: int
) -> None:
    plain = make_net(name)
    net = copy.deepcopy(plain)
    chunked = ChunkedNet(net, chunk)
    for _ in range(2):
        plain.zero_grad()
        net.zero_grad()
        expected = plain.train()(some_patches())
        loss_of(expected).backward()
        found = chunked(some_patches(), seed=3)
        loss_of(found).backward()
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)
    torch.testing.assert_close(gradients(net), gradients(plain), atol=1e-11, rtol=1e-8)
    torch.testing.assert_close(net.state_dict(), plain.state_dict(), atol=1e-12, rtol=1e-9)


def test_layers_that_no_registered_network_has() -> None:
    torch.manual_seed(0)
    plain = Awkward().double()
    for layer in plain.stack:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(layer.weight)
            nn.init.normal_(layer.bias)
    net = copy.deepcopy(plain)
    weights = torch.randn(22, 7).double()
    (plain.train()(some_patches()) * weights).sum().backward()
    (ChunkedNet(net, 5)(some_patches(), seed=0) * weights).sum().backward()  # type: ignore[arg-type]
    torch.testing.assert_close(gradients(net), gradients(plain), atol=1e-11, rtol=1e-8)
    torch.testing.assert_close(net.state_dict(), plain.state_dict(), atol=1e-12, rtol=1e-9)


def test_two_batches_on_their_way_at_once() -> None:
    plain = make_net("hardnet-small")
    net = copy.deepcopy(plain)
    chunked = ChunkedNet(net, 8)
    for _ in range(2):  # the second time with the memory of the first
        for describe in (plain.train(), lambda x: chunked(x, seed=0)):
            both = [describe(some_patches()), describe(some_patches(16) * 0.5 + 0.1)]
            (both[0].sum() + both[1].sum()).backward()
    torch.testing.assert_close(gradients(net), gradients(plain), atol=1e-10, rtol=1e-8)


def test_frozen_parameters_stay_without_gradient() -> None:
    net = make_net("hardnet-tiny")
    net.features[3].weight.requires_grad_(False)
    loss_of(ChunkedNet(net, 8)(some_patches(), seed=0)).backward()
    assert net.features[3].weight.grad is None
    assert net.features[0].weight.grad.abs().max() > 0


def test_float32_is_as_near_to_the_truth_as_plain_training() -> None:
    truth = make_net("hardnet-small")
    plain, net = copy.deepcopy(truth).float(), copy.deepcopy(truth).float()
    exact = truth.train()(some_patches())
    ours = ChunkedNet(net, 8)(some_patches().float(), seed=0)
    theirs = plain.train()(some_patches().float())
    assert (ours - exact).abs().max() < max(2 * (theirs - exact).abs().max(), 1e-6)
    for value, expected in zip(net.buffers(), truth.buffers(), strict=True):
        torch.testing.assert_close(value.double(), expected.double(), atol=1e-6, rtol=1e-6)


def test_a_large_mean_does_not_spoil_the_variance() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(1, affine=False)

        def layers(self) -> tuple[Layer, ...]:
            return (self.norm, nn.Flatten())

    x = some_patches().float() + 1000
    found = ChunkedNet(Shifted(), 8)(x, seed=0)  # type: ignore[arg-type]
    exact = x.double()
    exact = ((exact - exact.mean()) / (exact.var(correction=0) + 1e-5).sqrt()).flatten(1)
    assert (found - exact).abs().max() < 1e-3


@pytest.mark.parametrize("name", ["hardnet-small", "tfeat"])
def test_dropout_follows_the_rows_not_the_chunks(name: str) -> None:
    def run(chunk: int, order: Tensor, seed: int = 5) -> tuple[Tensor, dict[str, Tensor]]:
        net = make_net(name, dropout=0.3)
        found = ChunkedNet(net, chunk)(some_patches()[order], seed, rows=order)[order.argsort()]
        loss_of(found).backward()
        return found, gradients(net)

    forwards = torch.arange(2 * PAIRS)
    mixed = torch.randperm(2 * PAIRS, generator=torch.Generator().manual_seed(0))
    found, gradient = run(100, forwards)
    for chunk, order in [(3, forwards), (8, mixed)]:
        other, other_gradient = run(chunk, order)
        torch.testing.assert_close(other, found, atol=1e-11, rtol=0)
        torch.testing.assert_close(other_gradient, gradient, atol=1e-11, rtol=1e-8)
    assert (run(100, forwards, seed=6)[0] - found).abs().max() > 1e-3


@pytest.mark.parametrize(
    "name", ["hardnet-small", pytest.param("hardtfeat", marks=pytest.mark.slow)]
)
def test_threads_give_the_same_bits_each_time_and_leave_pytorch_as_it_was(name: str) -> None:
    def run() -> list[Tensor]:
        net = make_net(name, dropout=0.3).float()
        found = ChunkedNet(net, 12)(some_patches().float(), seed=1)
        loss_of(found).backward()
        return [found.detach(), *gradients(net).values(), *net.buffers()]

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        first, second = run(), run()
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        alone = run()
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    torch.testing.assert_close(alone[0], first[0], atol=1e-5, rtol=0)


def test_dropout_keeps_the_right_share_and_the_mean() -> None:
    rows = np.arange(64)
    masked = dropout(torch.ones(64, 16, 8, 8), 0.3, 2**63 - 1, 0, rows)
    assert masked.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert (masked == 0).float().mean() == pytest.approx(0.3, abs=0.01)
    by_place = (masked == 0).float().mean(0)  # no place is dropped in all rows alike
    assert 0.0 < by_place.min() < 0.3 < by_place.max() < 1.0
    other_layer = dropout(torch.ones(64, 16, 8, 8), 0.3, 2**63 - 1, 1, rows)
    assert ((other_layer == 0) != (masked == 0)).float().mean() > 0.3
    x = torch.ones(3, 5)
    assert dropout(x, 0.0, 0, 0, rows[:3]) is x


def test_gradients_are_those_of_finite_differences_under_dropout() -> None:
    net = make_net("hardnet-small", dropout=0.3)
    weights = torch.randn(8, 128, generator=torch.Generator().manual_seed(2)).double()

    def value() -> Tensor:
        return (ChunkedNet(net, 3)(some_patches(8), seed=9) * weights).sum()

    value().backward()
    layers = [layer for layer in net.features if isinstance(layer, nn.Conv2d)]
    for parameter in (layers[1].weight, layers[-1].weight):
        index = tuple(np.unravel_index(int(parameter.grad.abs().argmax()), parameter.shape))
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter[index] += sign * 1e-6
                values.append(float(value()))
                parameter[index] -= sign * 1e-6
        slope = (values[0] - values[1]) / 2e-6
        assert slope == pytest.approx(float(parameter.grad[index]), rel=1e-4)


def test_backward_refuses_changed_weights_and_a_second_run() -> None:
    net = make_net("hardnet-tiny")
    loss = loss_of(ChunkedNet(net, 8)(some_patches(), seed=0))
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    loss = loss_of(ChunkedNet(net, 8)(some_patches(), seed=0))
    with torch.no_grad():
        net.features[0].weight += 1
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()


def test_store_fills_gaps_and_keeps_layouts() -> None:
    store = Store(10, torch.empty(0))
    images = torch.arange(6.0).view(1, 2, 3, 1).permute(0, 3, 1, 2)  # channels last
    store.put("a", images)
    store.put("b", torch.ones(1).expand(2))
    assert store["a"].stride() == images.stride()
    store.drop("a")
    store.put("c", torch.arange(5.0))
    store.put("d", torch.arange(12.0)[::6])  # behind b
    store.put("e", torch.zeros(1))  # between c and b
    store.put("f", torch.full((3,), 7.0))  # nowhere: kept outside
    expected = {"b": [1, 1], "c": [0, 1, 2, 3, 4], "d": [0, 6], "e": [0], "f": [7, 7, 7]}
    assert {name: store[name].tolist() for name in expected} == expected
    assert "a" not in store
    store.clear()
    assert "b" not in store


def test_hardnet_keeps_256_kb_per_patch() -> None:
    sizes = [32 * 32 * 32, 32 * 32 * 32, 64 * 16 * 16, 64 * 16 * 16, 128 * 8 * 8, 128 * 8 * 8, 128]
    assert kept_values(sizes) * 4 == 256 * 1024
    assert kept_values([]) == 0


PROGRAM = """
import sys
from pathlib import Path
import torch
from hardnet.learn.trainer import keep_freed_memory
from hardnet.learn.chunked import ChunkedNet
from hardnet.nets import build_net
keep_freed_memory()
torch.set_num_threads(1)
patches = torch.rand(int(sys.argv[1]), 1, 32, 32)
chunked = ChunkedNet(build_net("hardnet", 0.1), 32)
for seed in range(2):
    chunked(patches, seed).sum().backward()
lines = Path("/proc/self/status").read_text().splitlines()
print(next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_grows_by_256_kb_per_patch() -> None:
    peaks = [
        int(subprocess.check_output([sys.executable, "-c", PROGRAM, str(n)])) for n in (128, 512)
    ]
    # 4 KB for the patch itself; plain training takes 1.1 MB.
    assert 240 < (peaks[1] - peaks[0]) / (512 - 128) < 300
