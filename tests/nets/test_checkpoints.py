"""Weights files: what is written comes back, what does not fit is refused by name."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hardnet.errors import HardnetError
from hardnet.nets import HardNet, build_net, load_net, read_checkpoint, save_checkpoint


def test_round_trip_keeps_weights_dropout_and_metadata(
    tmp_path: Path, patches: torch.Tensor
) -> None:
    net = build_net("hardnet", 0.25).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net(patches)
    path = tmp_path / "net.safetensors"
    save_checkpoint(path, net, "hardnet", {"recipe": {"lr": 10.0}, "pairs": 3})
    stored = read_checkpoint(path)
    assert stored.net == "hardnet"
    assert stored.metadata == {
        "net": "hardnet",
        "dropout": 0.25,
        "recipe": {"lr": 10.0},
        "pairs": 3,
    }
    again = load_net(path)
    assert not again.training
    assert next(m.p for m in again.modules() if isinstance(m, torch.nn.Dropout)) == 0.25
    for (key, a), (_, b) in zip(net.state_dict().items(), again.state_dict().items(), strict=True):
        assert torch.equal(a, b), key


def _wrapped(state: dict[str, Any]) -> dict[str, Any]:
    return {"epoch": 9, "state_dict": state}


def _parallel(state: dict[str, Any]) -> dict[str, Any]:
    return {f"module.{k}": v for k, v in state.items()}


def _old(state: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in state.items() if "num_batches" not in k}


@pytest.mark.parametrize(
    "change", [dict, _wrapped, _parallel, _old, lambda s: _wrapped(_parallel(_old(s)))]
)
def test_published_layouts_load(tmp_path: Path, change: Any, patches: torch.Tensor) -> None:
    net = HardNet().eval()
    torch.save(change(net.state_dict()), tmp_path / "net.pth")
    with torch.inference_mode():
        assert torch.equal(load_net(tmp_path / "net.pth")(patches), net(patches))


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    torch.save(HardNet().state_dict(), tmp_path / "net.pth")
    torch.manual_seed(3)
    load_net(tmp_path / "net.pth")
    after = torch.rand(4)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(4))


class _Harmful:
    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.flag),)


@pytest.mark.parametrize("modern", [True, False])
def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path: Path, modern: bool) -> None:
    flag, path = tmp_path / "executed", tmp_path / "evil.pth"
    content = {"state_dict": _Harmful(flag)}
    if modern:
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    with pytest.raises(HardnetError, match=r"evil\.pth") as caught:
        load_net(path)
    assert not flag.exists()
    assert "weights_only" not in str(caught.value)  # PyTorch's text suggests to switch it off


def test_missing_and_unexpected_parameters_are_named(tmp_path: Path) -> None:
    state = HardNet().state_dict()
    state["features.99.weight"] = state.pop("features.0.weight")
    torch.save(state, tmp_path / "odd.pth")
    with pytest.raises(
        HardnetError,
        match=r"odd\.pth.*hardnet.*missing features\.0\.weight; unexpected features\.99\.weight",
    ):
        load_net(tmp_path / "odd.pth")


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    state = HardNet().state_dict()
    state["features.0.weight"] = torch.zeros(16, 1, 3, 3)
    torch.save(state, tmp_path / "thin.pth")
    with pytest.raises(HardnetError, match=r"features\.0\.weight is \(16, 1, 3, 3\) instead of"):
        load_net(tmp_path / "thin.pth")


def test_nan_weights_are_refused(tmp_path: Path) -> None:
    state = HardNet().state_dict()
    state["features.3.weight"][0, 0, 0, 0] = float("nan")
    torch.save(state, tmp_path / "nan.pth")
    with pytest.raises(HardnetError, match=r"NaN or infinity in features\.3\.weight"):
        load_net(tmp_path / "nan.pth")


def test_another_networks_checkpoint_is_refused(tmp_path: Path) -> None:
    torch.save({"backbone.weight": torch.zeros(3)}, tmp_path / "foreign.pth")
    with pytest.raises(HardnetError, match=r"foreign\.pth is not a checkpoint.*backbone\.weight"):
        load_net(tmp_path / "foreign.pth")


def test_a_tensor_instead_of_a_state_dict_is_refused(tmp_path: Path) -> None:
    torch.save(torch.zeros(3), tmp_path / "tensor.pth")
    with pytest.raises(HardnetError, match="holds a Tensor, not a state dict"):
        load_net(tmp_path / "tensor.pth")


@pytest.mark.parametrize("name", ["text.pth", "text.safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello, this is no network\n" * 20])
def test_files_that_are_no_weights(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(HardnetError, match=name.replace(".", r"\.")):
        load_net(tmp_path / name)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="no weights file"):
        load_net(tmp_path / "none.safetensors")


def test_safetensors_of_a_network_we_do_not_know(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "n.safetensors", {"net": '"sosnet"'})
    with pytest.raises(HardnetError, match="'sosnet'; this version knows hardnet"):
        load_net(tmp_path / "n.safetensors")


def test_safetensors_of_another_program_is_recognised_by_its_shapes(tmp_path: Path) -> None:
    save_file(HardNet().state_dict(), tmp_path / "n.safetensors", {"format": "pt"})
    assert read_checkpoint(tmp_path / "n.safetensors").net == "hardnet"


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(HardnetError, match="unknown network 'vgg'; known: hardnet, hardnet-medium"):
        build_net("vgg")
