"""The mean of weights of several files: by hand, and what cannot be averaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hardnet.errors import HardnetError
from hardnet.nets import average_files, build_net, load_net, save_checkpoint


def saved(path: Path, name: str, seed: int) -> Path:
    torch.manual_seed(seed)
    save_checkpoint(path, build_net(name), name)
    return path


@pytest.fixture
def patches() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (1100, 32, 32), np.uint8)


def test_weights_are_the_mean_and_statistics_are_measured_again(
    tmp_path: Path, patches: np.ndarray
) -> None:
    files = [saved(tmp_path / f"{n}.safetensors", "hardnet-tiny", n) for n in range(3)]
    net = average_files(files, patches)
    parts = [load_net(file) for file in files]
    for name, weight in net.named_parameters():
        mean = sum(part.get_parameter(name).double() for part in parts) / 3
        assert torch.allclose(weight.double(), mean, atol=1e-7), name
    # The first statistics, by hand: two parts of the patches, each part counted alike.
    seen: list[torch.Tensor] = []
    norm = next(m for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d))
    norm.register_forward_pre_hook(lambda _, x: seen.append(x[0].detach()))
    for part in (patches[:1024], patches[1024:]):
        net(torch.from_numpy(part[:, None].astype(np.float32)))
    mean = torch.stack([x.mean((0, 2, 3)) for x in seen]).mean(0)
    var = torch.stack([x.var((0, 2, 3)) for x in seen]).mean(0)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert torch.allclose(norm.running_mean, mean, atol=1e-5)
    assert torch.allclose(norm.running_var, var, rtol=1e-4)
    assert not any(module.training for module in net.modules())


def test_weights_of_two_networks(tmp_path: Path, patches: np.ndarray) -> None:
    one = saved(tmp_path / "one.safetensors", "hardnet-tiny", 0)
    other = saved(tmp_path / "other.safetensors", "hardtfeat", 0)
    with pytest.raises(HardnetError, match=r"other.safetensors is of network hardtfeat.*one net"):
        average_files([one, other], patches)
