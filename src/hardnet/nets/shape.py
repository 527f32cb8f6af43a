"""AffNet and OriNet (Mishkin et al. 2018): the shape and the orientation of a patch, learned.

Both are HardNet's trunk with a quarter to a half of its channels, and a last layer with three or
two outputs. The published weights (``features.N.*``) fit.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from hardnet.errors import HardnetError
from hardnet.nets.hardnet import conv_block

_CHANNELS = ((1, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1))
_COUNTER = "num_batches_tracked"  # older PyTorch did not save it, and it changes no output


class FrameNet(nn.Module):
    """(N, 1, 32, 32) patches -> (N, outputs) numbers between -1 and 1.

    With ``padding`` in the last layer, the outputs are means over several places.
    """

    def __init__(self, outputs: int, padding: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, channels, stride in _CHANNELS:
            layers += conv_block(inputs, channels, stride)
        last = nn.Conv2d(_CHANNELS[-1][1], outputs, 8, padding=padding)
        self.features = nn.Sequential(*layers, nn.Dropout(0.25), last, nn.Tanh())

    def forward(self, patches: Tensor) -> Tensor:
        """Each patch is normalised by its own mean and standard deviation first."""
        spread, mean = torch.std_mean(patches, (1, 2, 3), keepdim=True)
        out: Tensor = self.features((patches - mean) / (spread + 1e-6))
        return out.mean((2, 3))


class AffNet(FrameNet):
    """The shape in which a patch is best described."""

    def __init__(self) -> None:
        super().__init__(outputs=3, padding=0)

    def shapes(self, patches: Tensor) -> Tensor:
        """(N, 1, 32, 32) -> (N, 2, 2) lower triangular shapes with determinant 1."""
        out: Tensor = self(patches)
        x, y, z = out.unbind(1)
        shape: Tensor = torch.stack([1 + x, torch.zeros_like(x), y, 1 + z], 1).view(-1, 2, 2)
        return shape / torch.sqrt((1 + x) * (1 + z))[:, None, None]


class OriNet(FrameNet):
    """The direction of a patch."""

    def __init__(self) -> None:
        super().__init__(outputs=2, padding=1)

    def angles(self, patches: Tensor) -> Tensor:
        """(N, 1, 32, 32) -> (N,) radians, clockwise on screen as in frames."""
        out: Tensor = self(patches)
        sine, cosine = out.unbind(1)
        return -torch.atan2(sine, cosine)  # the published net measures counter-clockwise


_Net = TypeVar("_Net", bound=FrameNet)


def load_weights(net: _Net, path: Path) -> _Net:
    """The network with published weights, ready to run."""
    name = type(net).__name__
    if not path.is_file():
        raise HardnetError(f"no weights file {path}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        state = state.get("state_dict", state)
        missing, unexpected = net.load_state_dict(state, strict=False)
    except (pickle.UnpicklingError, RuntimeError, EOFError, AttributeError, TypeError) as error:
        raise HardnetError(f"{path} does not contain the weights of {name}") from error
    if unexpected or any(not key.endswith(_COUNTER) for key in missing):
        raise HardnetError(f"{path} does not contain the weights of {name}")
    return net.eval()
