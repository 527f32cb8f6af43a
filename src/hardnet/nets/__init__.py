"""The networks, by name.

A network is one file with one ``nn.Module`` that maps (N, 1, S, S) grey patches to (N, dim) unit
vectors, has ``dim`` and ``patch_size``, takes its dropout rate, and says by ``layers()`` what its
forward applies in order (training runs large batches layer by layer); one line here registers it.
"""

from __future__ import annotations

from typing import TypeAlias

from hardnet.errors import HardnetError
from hardnet.nets.hardnet import HardNet
from hardnet.nets.tfeat import HardTFeat, TFeat

Net: TypeAlias = HardNet | TFeat | HardTFeat

NETS: dict[str, type[Net]] = {
    "hardnet": HardNet,
    "tfeat": TFeat,
    "hardtfeat": HardTFeat,
}


def build_net(name: str, dropout: float | None = None) -> Net:
    """A new network with random weights; ``dropout`` None takes the network's own default."""
    if name not in NETS:
        raise HardnetError(f"unknown network {name!r}; known: {', '.join(sorted(NETS))}")
    return NETS[name]() if dropout is None else NETS[name](dropout)


__all__ = ["NETS", "HardNet", "HardTFeat", "Net", "TFeat", "build_net"]
