"""Descriptors by name and by file; the shipped weights."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hardnet import descriptors
from hardnet.cli.app import app
from hardnet.descriptors import (
    WEIGHTS,
    Descriptor,
    available_names,
    load,
    names,
    shipped_names,
)
from hardnet.errors import HardnetError


def test_names() -> None:
    assert {"hardnet", "hardnet-int8"} <= set(shipped_names())
    always = [*shipped_names(), "pixels", "rootsift", "sift"]
    assert names() == sorted([*always, "beblid", "boostdesc", "teblid", "vgg"])
    assert set(always) <= set(available_names()) <= set(names())


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_files_say_which_network_they_are_of(name: str) -> None:
    from hardnet.interop.onnx import to_onnx
    from hardnet.nets import load_net, read_checkpoint

    net = name.removesuffix("-int8")
    assert read_checkpoint(WEIGHTS / f"{net}.safetensors").net == net
    if net == name:
        exported = to_onnx(load_net(WEIGHTS / f"{net}.safetensors"))
        assert exported == (WEIGHTS / f"{name}.onnx").read_bytes()


def test_a_file_put_beside_the_shipped_ones_is_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patches: np.ndarray
) -> None:
    """What ``hardnet export`` writes for a HardTFeat, put where the shipped weights are."""
    import torch

    from hardnet.nets import HardTFeat, save_checkpoint

    torch.manual_seed(0)
    net = HardTFeat().eval()
    save_checkpoint(tmp_path / "in.safetensors", net, "hardtfeat")
    command = ["export", str(tmp_path / "in.safetensors"), "-o", str(tmp_path / "weights")]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    monkeypatch.setattr(descriptors, "WEIGHTS", tmp_path / "weights")
    assert shipped_names() == ["hardtfeat"]
    describe = load("hardtfeat")
    assert describe.name == "hardtfeat"
    with torch.inference_mode():
        expected = net(torch.from_numpy(patches).float()[:, None]).numpy()
    np.testing.assert_allclose(describe(patches), expected, atol=1e-5)
    with pytest.raises(HardnetError, match=r"did you mean 'hardtfeat'.*known: .*hardtfeat"):
        load("hardtfeet")


@pytest.mark.parametrize("command", [["match"], ["bench", "brown"]])
def test_help_lists_every_name(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "800"})
    assert ", ".join(names()) in done.output


@pytest.mark.parametrize("name", available_names())
def test_every_name_loads_a_descriptor(name: str, patches: np.ndarray) -> None:
    describe = load(name)
    assert isinstance(describe, Descriptor)
    assert describe.name == name
    described = describe(patches)
    width = describe.dim // 8 if described.dtype == np.uint8 else describe.dim
    assert described.shape == (len(patches), width)


def test_networks_say_what_they_are() -> None:
    assert repr(load("hardnet")) == "Descriptor hardnet: patches -> 128-D"
    assert repr(load("hardnet@12+24")) == "Descriptor hardnet@12+24: patches -> 128-D"


def test_unknown_name_lists_the_names_and_the_nearest() -> None:
    with pytest.raises(
        HardnetError, match=r"'harndet' \(did you mean 'hardnet'\?\); known: beblid, "
    ):
        load("harndet")
    with pytest.raises(
        HardnetError, match=r"unknown descriptor 'qqq'; known: .*, hardnet, .* or module:function"
    ):
        load("qqq")


@pytest.mark.parametrize("name", ["a.onnx", "a.safetensors", "a.pth"])
def test_missing_and_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(HardnetError, match="no weights file"):
        load(tmp_path / name)
    (tmp_path / name).write_bytes(b"no network")
    with pytest.raises(HardnetError, match=name.replace(".", r"\.")):
        load(tmp_path / name)


def test_an_onnx_file_that_is_no_descriptor(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    make, real = onnx.helper, onnx.TensorProto.FLOAT
    graph = make.make_graph(
        [make.make_node("Relu", ["x"], ["y"])],
        "g",
        [make.make_tensor_value_info("x", real, ["N", 3, 224, 224])],
        [make.make_tensor_value_info("y", real, ["N", 3, 224, 224])],
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "relu.onnx")
    with pytest.raises(HardnetError, match=r"relu\.onnx maps .*224.*a descriptor maps"):
        load(tmp_path / "relu.onnx")


def test_onnx_equals_torch_and_threads_change_nothing(weights: Path, patches: np.ndarray) -> None:
    torch_values = load(weights / "net.safetensors")(patches)
    one = load(weights / "net.onnx", threads=1)(patches)
    two = load(weights / "net.onnx", threads=2)(patches)
    np.testing.assert_allclose(one, torch_values, atol=1e-5)
    np.testing.assert_array_equal(one, two)


def test_describing_needs_no_torch() -> None:
    code = (
        "import sys, numpy; from hardnet.descriptors import load;"
        "load('rootsift')(numpy.zeros((1, 32, 32), 'uint8'));"
        "load('hardnet')(numpy.zeros((1, 32, 32), 'uint8'));"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_torch_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, weights: Path, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    new = shutil.copy(weights / "net.safetensors", tmp_path)  # a network that is loaded is kept
    with pytest.raises(HardnetError, match=r"torch is not installed.*hardnet\[train\]"):
        load(new)


def test_shipped_weights_agree_with_each_other(patches: np.ndarray) -> None:
    exact = load("hardnet")(patches)
    np.testing.assert_allclose(load(WEIGHTS / "hardnet.safetensors")(patches), exact, atol=1e-4)
    assert (load("hardnet-int8")(patches) * exact).sum(1).mean() > 0.999


@pytest.mark.parametrize("name", ["net.onnx", "net.safetensors"])
def test_a_network_is_kept_while_its_file_stays_the_same(
    weights: Path, tmp_path: Path, patches: np.ndarray, name: str
) -> None:
    path, patches = tmp_path / name, patches[:5]
    shutil.copy(weights / name, path)
    first, again = load(path), load(path)
    assert again is not first  # each has its settings
    assert again._run is first._run
    with ThreadPoolExecutor(2) as pool:
        for values in pool.map(lambda _: load(path)(patches), range(4)):
            np.testing.assert_array_equal(values, first(patches))
    # Other weights under the same name are other descriptors; what was loaded stays.
    before = first(patches)
    shutil.copy(WEIGHTS / f"hardnet{path.suffix}", path)
    replaced = load(path)
    np.testing.assert_array_equal(first(patches), before)
    assert np.abs(replaced(patches) - before).max() > 0.1
    np.testing.assert_allclose(replaced(patches), load("hardnet")(patches), atol=1e-4)
