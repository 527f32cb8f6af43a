"""The networks, by name, and their weights files.

To add one, write a subclass of :class:`Net` in a file here and add it to ``NETS``: recipes, weights
files, training, ``hardnet export`` and ``tests/nets`` then accept its name. If ONNX export reports
an unknown layer, add it to ``hardnet.interop.onnx``. To try a network without a file here, give
recipes and ``hardnet export --net`` a ``module:Class``. No file is trusted to name code.

Our weights are safetensors files whose metadata names the network. Files published by others are
PyTorch state dicts, with or without a ``{"state_dict": ...}`` around them and a ``module.`` before
the names; they are read with ``weights_only=True``, so that a file can never run code. The names
and shapes of the parameters identify the network, so no two networks may share all of them.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hardnet.errors import HardnetError
from hardnet.image_files import as_path
from hardnet.images import Pixels
from hardnet.nets.hardnet import FrameNet, HardNet, HardTFeat, Net, TFeat, small, student
from hardnet.storage import find_code

NETS: dict[str, type[Net]] = {
    "hardnet": HardNet,
    "tfeat": TFeat,
    "hardtfeat": HardTFeat,
    "hardnet-tiny": small("Tiny", 16, 32, 32, 32),  # a third of the cost of the next
    "hardnet-small": small("Small", 32, 48, 48, 64),
    "hardnet-medium": small("Medium", 32, 64, 64, 96),  # nearly twice its cost
    **{f"student{width}": student(width) for width in (8, 16, 24, 32)},
}


def find_net(name: str) -> type[Net]:
    """The class of a network that a user named: a registered one, or theirs as ``module:Class``."""
    if name in NETS:
        return NETS[name]
    if ":" not in name:
        raise HardnetError(f"unknown network {name!r}; known: {', '.join(sorted(NETS))}")
    found = find_code(name)
    if not (isinstance(found, type) and issubclass(found, Net)):
        raise HardnetError(f"{name} is not a network: give a subclass of hardnet.nets.Net")
    return found


def build_net(name: str, dropout: float | None = None) -> Net:
    """A new network with random weights, and the default of its kind for ``dropout`` None."""
    kind = find_net(name)
    return kind() if dropout is None else kind(dropout)


_WRAPPERS = ("state_dict", "model_state_dict", "model")
_COUNTER = "num_batches_tracked"  # older PyTorch did not save it, and it changes no descriptor


@dataclass(frozen=True)
class Checkpoint:
    """Weights and what is known about them."""

    net: str
    kind: type[Net]
    state: dict[str, Tensor]
    metadata: dict[str, Any] = field(default_factory=dict)


def save_checkpoint(
    path: Path | str, net: nn.Module, name: str, metadata: Mapping[str, Any] | None = None
) -> None:
    """Write ``net`` as safetensors.

    ``name`` is that of a network of ``NETS``, or a user's ``module:Class``; ``metadata`` are
    further facts (recipe, data, scores), JSON values.
    """
    dropout = next((float(m.p) for m in net.modules() if isinstance(m, nn.Dropout)), 0.0)
    facts = {"net": name, "dropout": dropout, **(metadata or {})}
    state = {k: v.detach().cpu().contiguous() for k, v in net.state_dict().items()}
    if name in NETS:
        _fit(NETS[name], name, state, Path(path))
    save_file(state, path, {k: json.dumps(v, sort_keys=True) for k, v in facts.items()})


def read_checkpoint(path: Path | str, named: tuple[str, type[Net]] | None = None) -> Checkpoint:
    """Read any supported weights file; HardnetError says which file and what does not fit.

    ``named``: name and class of a user's network that the weights should fit.
    """
    path = as_path(path)
    if not path.is_file():
        raise HardnetError(f"no weights file {path}")
    if path.suffix == ".safetensors":
        state, metadata = _read_safetensors(path)
        name = metadata.get("net")
        if named is None and name is not None and name not in NETS:
            export = ": hardnet export --net makes an .onnx of it" if ":" in str(name) else ""
            raise HardnetError(
                f"{path} is of network {name!r}; this version knows {', '.join(sorted(NETS))}"
                f"{export}"
            )
    else:
        state, metadata, name = _read_published(path), {}, None
    if named is None:
        name = name or _recognise(state, path)
        named = name, NETS[name]
    net, kind = named
    return Checkpoint(net, kind, _fit(kind, net, state, path), metadata)


FrameNetKind = TypeVar("FrameNetKind", bound=FrameNet)


def load_weights(net: FrameNetKind, path: Path) -> FrameNetKind:
    """AffNet or OriNet with published weights, ready to run."""
    if not path.is_file():
        raise HardnetError(f"no weights file {path}")
    net.load_state_dict(_fit(type(net), type(net).__name__, _read_published(path), path))
    return net.eval()


def load_net(path: Path | str, named: tuple[str, type[Net]] | None = None) -> Net:
    """The network of :func:`read_checkpoint`, ready to describe (evaluation mode)."""
    checkpoint = read_checkpoint(path, named)
    kind, dropout = checkpoint.kind, checkpoint.metadata.get("dropout")
    with torch.device("meta"):  # no initialisation: no computation, no random numbers
        net = kind() if dropout is None else kind(dropout)
    net.load_state_dict(checkpoint.state, assign=True)
    return net.eval()


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as stored:
            # Copies: a tensor of the mapped file changes if the file is overwritten.
            state = {key: stored.get_tensor(key).clone() for key in stored.keys()}  # noqa: SIM118
            raw: dict[str, str] = stored.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise HardnetError(f"{path} is not a readable safetensors file: {error}") from error
    metadata: dict[str, Any] = dict(raw)
    for key, value in raw.items():
        with suppress(json.JSONDecodeError):  # written by another program
            metadata[key] = json.loads(value)
    return state, metadata


def _read_published(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        # PyTorch's message recommends weights_only=False: for such a file the worst advice.
        objects = "nsupported" in str(error)
        reason = "it holds Python objects" if objects else "damaged or no weights"
        raise HardnetError(f"{path} cannot be read as a PyTorch state dict ({reason})") from error
    if not isinstance(content, dict):
        raise HardnetError(f"{path} holds a {type(content).__name__}, not a state dict")
    wrapped = (content.get(wrapper) for wrapper in _WRAPPERS)
    state = next((inner for inner in wrapped if isinstance(inner, dict)), content)
    return {str(k).removeprefix("module."): v for k, v in state.items() if isinstance(v, Tensor)}


def _recognise(state: Mapping[str, Tensor], path: Path) -> str:
    def agreement(name: str) -> int:
        return sum(k in state and state[k].shape == v for k, v in _shapes(NETS[name]).items())

    best = max(NETS, key=agreement)
    if agreement(best) == 0:
        raise HardnetError(
            f"{path} is not a checkpoint of {', '.join(sorted(NETS))}: "
            f"it contains {_some(list(state)) or 'no tensors'}"
        )
    return best


def _fit(
    kind: type[Net] | type[FrameNet], name: str, state: Mapping[str, Tensor], path: Path
) -> dict[str, Tensor]:
    shapes = _shapes(kind)
    problems = {
        "missing": [k for k in shapes if k not in state and not k.endswith(_COUNTER)],
        "unexpected": [k for k in state if k not in shapes and not k.startswith(kind.unrelated)],
        "shape:": [
            f"{k} is {tuple(state[k].shape)} instead of {tuple(shape)}"
            for k, shape in shapes.items()
            if k in state and state[k].shape != shape
        ],
    }
    if found := "; ".join(f"{what} {_some(keys)}" for what, keys in problems.items() if keys):
        raise HardnetError(f"{path} does not fit the network {name}: {found}")
    used = {k: state.get(k, torch.zeros((), dtype=torch.int64)) for k in shapes}
    broken = [k for k, v in used.items() if not torch.isfinite(v).all()]
    if broken:
        raise HardnetError(f"{path} contains NaN or infinity in {_some(broken)}")
    return used


def _shapes(kind: type[Net] | type[FrameNet]) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {k: v.shape for k, v in kind().state_dict().items()}


def _some(names: list[str], most: int = 4) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


_BATCH = 1024
"""Patches at a time for the statistics, as many as a batch of training has."""


def average_files(paths: Sequence[Path], patches: Pixels) -> Net:
    """The network with the mean weights of several files, ready to describe.

    The mean of weights with the same start often keeps most of what each of them learnt. Batch
    statistics are measured on ``patches`` (N, S, S) of the network's size.
    """
    mean, net = Average(), load_net(paths[0])
    first = read_checkpoint(paths[0]).net
    for path in paths:
        name = read_checkpoint(path).net
        if name != first:
            raise HardnetError(
                f"{path} is of network {name}, {paths[0]} of {first}: only weights of one network "
                "can be averaged"
            )
        mean.add(load_net(path))
    with torch.no_grad():
        mean.copy_to(net)
        for module in net.modules():
            module.training = isinstance(module, _BatchNorm)  # and no dropout
        with fresh_statistics(net):
            for part in torch.split(torch.from_numpy(patches[:, None].astype(np.float32)), _BATCH):
                net(part)
    return net.eval()


class Average:
    """The mean of the weights after each step that was added (stochastic weight averaging).

    Batch normalisation statistics cannot be averaged usefully: they are measured again with the
    averaged weights.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean: dict[str, Tensor] = {}

    def add(self, net: nn.Module) -> None:
        self._count += 1
        for name, parameter in net.named_parameters():
            weight = parameter.detach()
            mean = self._mean.get(name, weight).to(weight)  # a checkpoint is read into memory
            self._mean[name] = torch.lerp(mean, weight, 1 / self._count)

    def copy_to(self, net: nn.Module) -> None:
        for name, parameter in net.named_parameters():
            parameter.detach().copy_(self._mean[name])

    def state_dict(self) -> dict[str, Any]:
        return {"count": self._count, "mean": self._mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._count, self._mean = int(state["count"]), dict(state["mean"])


@contextmanager
def fresh_statistics(net: nn.Module) -> Iterator[None]:
    """Reset batch normalisation, which then takes the mean over all batches it sees here."""
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    try:
        yield
    finally:
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum


__all__ = ["NETS", "HardNet", "HardTFeat", "Net", "TFeat", "build_net", "find_net"]
