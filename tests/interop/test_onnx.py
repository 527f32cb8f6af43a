"""The hand-written ONNX graphs against PyTorch, and the export command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.descriptors import load
from hardnet.errors import HardnetError
from hardnet.interop.onnx import (
    Convolution,
    best_scale,
    fold,
    photo_patches,
    quantise_weights,
    relu_chain,
    to_onnx,
    to_onnx_int8,
)
from hardnet.nets import Net, TFeat, build_net, read_checkpoint, save_checkpoint
from hardnet.nets.hardnet import normalise_patches


def _torch(net: Net, patches: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return net(torch.from_numpy(patches).float()[:, None]).numpy()


def test_folding_changes_no_layer(net: Net, patches: np.ndarray) -> None:
    x = normalise_patches(torch.from_numpy(patches[:8]).float()[:, None])
    with torch.inference_mode():
        expected = net.features(x).flatten(1)
        for i, layer in enumerate(layers := relu_chain(net)):
            weight, bias = torch.from_numpy(layer.weight), torch.from_numpy(layer.bias)
            x = F.conv2d(x, weight, bias, layer.stride, layer.padding)
            x = x.relu() if i < len(layers) - 1 else x
    assert len(layers) == 7
    torch.testing.assert_close(x.flatten(1), expected, atol=1e-4, rtol=1e-4)


def test_float_graph_gives_the_values_of_torch(
    net: Net, patches: np.ndarray, tmp_path: Path
) -> None:
    (tmp_path / "net.onnx").write_bytes(to_onnx(net))
    describe = load(tmp_path / "net.onnx")
    assert (describe.name, describe.dim, describe.patch_size) == ("net", 128, 32)
    np.testing.assert_allclose(describe(patches), _torch(net, patches), atol=1e-5)


def test_int8_graph_stays_close(net: Net, patches: np.ndarray, tmp_path: Path) -> None:
    written = to_onnx_int8(net, patches[:100])
    (tmp_path / "q.onnx").write_bytes(written)
    unseen = patches[100:]
    cosine = (load(tmp_path / "q.onnx")(unseen) * _torch(net, unseen)).sum(1)
    # Random weights have no margin against noise: a trained network is held to 0.999 elsewhere.
    assert cosine.mean() > 0.99
    assert cosine.min() > 0.95
    assert len(written) < 0.3 * len(to_onnx(net))


def test_the_same_bytes_every_time(small_net: Net, patches: np.ndarray) -> None:
    assert to_onnx(small_net) == to_onnx(small_net)
    assert to_onnx_int8(small_net, patches[:64]) == to_onnx_int8(small_net, patches[:64])


def test_quantised_weights_are_within_half_a_step_per_channel() -> None:
    weight = np.random.default_rng(0).normal(size=(5, 4, 3, 3)).astype(np.float32)
    weight *= np.array([1, 10, 100, 1e-3, 0], np.float32)[:, None, None, None]
    integers, scale = quantise_weights(weight)
    restored = integers * scale[:, None, None, None]
    assert np.abs(integers).max() == 63
    assert (np.abs(restored - weight) <= 0.501 * scale[:, None, None, None]).all()


def test_best_scale_clips_a_lone_outlier_but_not_a_uniform_range() -> None:
    uniform = torch.linspace(0, 1, 100_000)
    assert best_scale(uniform, levels=15) == pytest.approx(1 / 15, rel=0.05)
    outlier = torch.cat([uniform, torch.tensor([3.0])])
    assert best_scale(outlier, levels=15) < 0.5 * 3 / 15


def test_only_hardnet_has_an_8_bit_form_and_calibration_needs_patches(
    net: Net, patches: np.ndarray
) -> None:
    with pytest.raises(HardnetError, match="TFeat has no 8-bit form"):
        to_onnx_int8(TFeat(), patches)
    with pytest.raises(HardnetError, match="at least 64 patches, got 3"):
        to_onnx_int8(net, patches[:3])


@pytest.fixture
def few(photos: Path, tmp_path: Path) -> Path:
    """A folder of two photographs to calibrate with."""
    few = tmp_path / "photos"
    few.mkdir()
    for name in ("camera.png", "brick.png"):
        (few / name).write_bytes((photos / name).read_bytes())
    return few


def test_export_command_writes_the_three_files(small_net: Net, few: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "in.safetensors", small_net, "hardnet-tiny", {"pairs": 5})
    out = tmp_path / "out"
    arguments = ["export", str(tmp_path / "in.safetensors"), "-o", str(out), "--json"]
    done = CliRunner().invoke(app, [*arguments, "--int8", "--calibration", str(few)])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert sorted(facts["bytes"]) == sorted(p.name for p in out.glob("hardnet*"))
    names = ("hardnet-tiny.onnx", "hardnet-tiny.safetensors", "hardnet-tiny-int8.onnx")
    assert set(facts["bytes"]) == set(names)
    assert facts["max_difference_to_torch"] < 1e-5
    assert facts["int8_mean_cosine"] > 0.99
    assert read_checkpoint(out / "hardnet-tiny.safetensors").metadata["pairs"] == 5


def test_export_says_before_writing_that_there_is_no_8_bit_form(
    photos: Path, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "in.safetensors", TFeat(), "tfeat")
    arguments = ["export", str(tmp_path / "in.safetensors"), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*arguments, "--int8", "--calibration", str(photos)])
    assert "has no 8-bit form" in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", [["--int8"], ["--average", "y.pth"], ["--windows", "12+24"]])
def test_export_without_calibration_says_what_is_missing(tmp_path: Path, option: list[str]) -> None:
    done = CliRunner().invoke(app, ["export", "x.pth", "-o", str(tmp_path), *option])
    assert isinstance(done.exception, HardnetError)
    assert f"{option[0]} needs --calibration" in str(done.exception)


def test_export_learns_how_windows_are_joined(few: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    save_checkpoint(tmp_path / "in.safetensors", build_net("hardnet-tiny"), "hardnet-tiny")
    arguments = ["export", str(tmp_path / "in.safetensors"), "-o", str(tmp_path / "out"), "--json"]
    done = CliRunner().invoke(app, [*arguments, "--windows", "12+24", "--calibration", str(few)])
    assert done.exit_code == 0, done.output
    assert "hardnet-tiny.windows.npz" in json.loads(done.stdout)["bytes"]
    for file in ("hardnet-tiny.onnx", "hardnet-tiny.safetensors"):
        joined = load(f"{tmp_path / 'out' / file}@12+24")
        patches = photo_patches(few, 400, descriptor=joined)
        assert patches.shape[1:] == (2, 32, 32)
        # Principal components: over photographs, no two of the numbers go together.
        vectors = joined.projection(joined.side_by_side(patches))
        together = np.corrcoef(vectors.T[:10])
        assert np.abs(together - np.eye(10)).max() < 0.3
    wrong = CliRunner().invoke(app, [*arguments, "--windows", "12", "--calibration", str(few)])
    assert "two windows or more" in str(wrong.exception)


def test_export_of_a_mean_names_its_parts(few: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.safetensors" for name in "ab"]
    for seed, file in enumerate(files):
        torch.manual_seed(seed)
        save_checkpoint(file, build_net("hardnet-tiny"), "hardnet-tiny")
    arguments = ["export", str(files[0]), "--average", str(files[1]), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*arguments, "--calibration", str(few)])
    assert done.exit_code == 0, done.output
    made = read_checkpoint(tmp_path / "out" / "hardnet-tiny.safetensors")
    assert [part["name"] for part in made.metadata["average"]] == ["a.safetensors", "b.safetensors"]
    one, other = (read_checkpoint(file).state for file in files)
    for name in one:
        if name.endswith("weight"):
            assert torch.allclose(made.state[name], (one[name] + other[name]) / 2, atol=1e-7)


def test_real_patches_are_reproducible_and_errors_name_the_folder(
    photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "camera.png").write_bytes((photos / "camera.png").read_bytes())
    patches = photo_patches(tmp_path, 50)
    assert patches.shape == (50, 32, 32)
    np.testing.assert_array_equal(patches, photo_patches(tmp_path, 50))
    (tmp_path / "broken.png").write_bytes(b"no image")
    assert len(photo_patches(tmp_path, 50)) > 20
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(HardnetError, match="contains no image"):
        photo_patches(empty, 50)
    with pytest.raises(HardnetError, match="no folder"):
        photo_patches(tmp_path / "none", 50)


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
