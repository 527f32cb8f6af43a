"""The hand-written ONNX graphs against PyTorch, and the export command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.descriptors.onnx import OnnxDescriptor
from hardnet.errors import HardnetError
from hardnet.interop.calibration import real_patches
from hardnet.interop.onnx import to_onnx
from hardnet.interop.quantise import best_scale, quantise_weights, relu_chain, to_onnx_int8
from hardnet.nets import HardNet, TFeat
from hardnet.nets.checkpoints import read_checkpoint, save_checkpoint
from hardnet.nets.layers import normalise_patches


def _torch(net: HardNet, patches: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        return net(torch.from_numpy(patches).float()[:, None]).numpy()


def test_folding_changes_no_layer(net: HardNet, patches: np.ndarray) -> None:
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
    net: HardNet, patches: np.ndarray, tmp_path: Path
) -> None:
    (tmp_path / "net.onnx").write_bytes(to_onnx(net))
    describe = OnnxDescriptor(tmp_path / "net.onnx")
    assert (describe.name, describe.dim, describe.patch_size) == ("net", 128, 32)
    np.testing.assert_allclose(describe(patches), _torch(net, patches), atol=1e-5)


def test_int8_graph_stays_close(net: HardNet, patches: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "q.onnx").write_bytes(to_onnx_int8(net, patches[:100]))
    unseen = patches[100:]
    cosine = (OnnxDescriptor(tmp_path / "q.onnx")(unseen) * _torch(net, unseen)).sum(1)
    # Random weights have no margin against noise: a trained network is held to 0.999 elsewhere.
    assert cosine.mean() > 0.99
    assert cosine.min() > 0.95
    assert len(to_onnx_int8(net, patches[:100])) < 0.3 * len(to_onnx(net))


def test_the_same_bytes_every_time(net: HardNet, patches: np.ndarray) -> None:
    assert to_onnx(net) == to_onnx(net)
    assert to_onnx_int8(net, patches[:64]) == to_onnx_int8(net, patches[:64])


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
    net: HardNet, patches: np.ndarray
) -> None:
    with pytest.raises(HardnetError, match="only hardnet has an 8-bit form, not TFeat"):
        to_onnx_int8(TFeat(), patches)
    with pytest.raises(HardnetError, match="at least 64 patches, got 3"):
        to_onnx_int8(net, patches[:3])


def test_export_command_writes_the_three_files(net: HardNet, photos: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "in.safetensors", net, "hardnet", {"pairs": 5})
    out, few = tmp_path / "out", tmp_path / "photos"
    few.mkdir()
    for name in ("camera.png", "brick.png"):
        (few / name).write_bytes((photos / name).read_bytes())
    arguments = ["export", str(tmp_path / "in.safetensors"), "-o", str(out), "--json"]
    done = CliRunner().invoke(app, [*arguments, "--int8", "--calibration", str(few)])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert sorted(facts["bytes"]) == sorted(p.name for p in out.iterdir())
    assert set(facts["bytes"]) == {"hardnet.onnx", "hardnet.safetensors", "hardnet-int8.onnx"}
    assert facts["max_difference_to_torch"] < 1e-5
    assert facts["int8_mean_cosine"] > 0.99
    assert read_checkpoint(out / "hardnet.safetensors").metadata["pairs"] == 5


def test_export_says_before_writing_that_there_is_no_8_bit_form(
    photos: Path, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "in.safetensors", TFeat(), "tfeat")
    arguments = ["export", str(tmp_path / "in.safetensors"), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*arguments, "--int8", "--calibration", str(photos)])
    assert "only hardnet has an 8-bit form" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_export_int8_without_calibration_says_what_is_missing(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["export", "x.pth", "-o", str(tmp_path), "--int8"])
    assert isinstance(done.exception, HardnetError)
    assert "--calibration" in str(done.exception)


def test_real_patches_are_reproducible_and_errors_name_the_folder(
    photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "camera.png").write_bytes((photos / "camera.png").read_bytes())
    patches = real_patches(tmp_path, 50)
    assert patches.shape == (50, 32, 32)
    np.testing.assert_array_equal(patches, real_patches(tmp_path, 50))
    (tmp_path / "broken.png").write_bytes(b"no image")
    assert len(real_patches(tmp_path, 50)) > 20
    (empty := tmp_path / "empty").mkdir()
    with pytest.raises(HardnetError, match="contains no image"):
        real_patches(empty, 50)
    with pytest.raises(HardnetError, match="no folder"):
        real_patches(tmp_path / "none", 50)
