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
from hardnet.nets import build_net, load_net, read_checkpoint, save_checkpoint


def test_round_trip_keeps_weights_dropout_and_metadata(
    tmp_path: Path, patches: torch.Tensor
) -> None:
    net = build_net("hardnet-tiny", 0.25).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    net(patches)
    path = tmp_path / "net.safetensors"
    save_checkpoint(path, net, "hardnet-tiny", {"recipe": {"lr": 10.0}, "pairs": 3})
    stored = read_checkpoint(path)
    assert stored.net == "hardnet-tiny"
    assert stored.metadata == {
        "net": "hardnet-tiny",
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


@pytest.fixture
def state() -> dict[str, Any]:
    """Parameters as in a published file, of a network that is made quickly."""
    return dict(build_net("hardnet-tiny").state_dict())


@pytest.mark.parametrize(
    "change", [dict, _wrapped, _parallel, _old, lambda s: _wrapped(_parallel(_old(s)))]
)
def test_published_layouts_load(
    tmp_path: Path, change: Any, state: dict[str, Any], patches: torch.Tensor
) -> None:
    torch.save(change(state), tmp_path / "net.pth")
    net = build_net("hardnet-tiny").eval()
    net.load_state_dict(state)
    with torch.inference_mode():
        assert torch.equal(load_net(tmp_path / "net.pth")(patches), net(patches))


def test_loading_draws_no_random_numbers(tmp_path: Path, state: dict[str, Any]) -> None:
    torch.save(state, tmp_path / "net.pth")
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


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        (
            "features.99.weight",
            None,
            r"missing features\.0\.weight; unexpected features\.99\.weight",
        ),
        (
            "features.0.weight",
            torch.zeros(8, 1, 3, 3),
            r"features\.0\.weight is \(8, 1, 3, 3\) instead",
        ),
        (
            "features.3.weight",
            torch.full((32, 16, 3, 3), torch.nan),
            r"NaN or infinity in features\.3",
        ),
    ],
)
def test_parameters_that_do_not_fit_are_named(
    tmp_path: Path, state: dict[str, Any], parameter: str, value: torch.Tensor | None, message: str
) -> None:
    state[parameter] = state.pop("features.0.weight") if value is None else value
    torch.save(state, tmp_path / "odd.pth")
    with pytest.raises(HardnetError, match=rf"odd\.pth.*{message}"):
        load_net(tmp_path / "odd.pth")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"backbone.weight": torch.zeros(3)}, r"is not a checkpoint.*backbone\.weight"),
        (torch.zeros(3), "holds a Tensor, not a state dict"),
    ],
)
def test_what_is_no_checkpoint_of_ours(tmp_path: Path, content: Any, message: str) -> None:
    torch.save(content, tmp_path / "foreign.pth")
    with pytest.raises(HardnetError, match=rf"foreign\.pth {message}"):
        load_net(tmp_path / "foreign.pth")


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


def test_safetensors_of_another_program_is_recognised_by_its_shapes(
    tmp_path: Path, state: dict[str, Any]
) -> None:
    save_file(state, tmp_path / "n.safetensors", {"format": "pt"})
    assert read_checkpoint(tmp_path / "n.safetensors").net == "hardnet-tiny"


def test_unknown_names_list_the_known() -> None:
    with pytest.raises(HardnetError, match="unknown network 'vgg'; known: hardnet, hardnet-medium"):
        build_net("vgg")
