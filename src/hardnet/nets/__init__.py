"""The networks, by name.

To add one, write one file and one line. The file has a subclass of :class:`Net`:

- its constructor takes the dropout rate, with a default, and makes the modules;
- ``layers()`` gives them in the order in which they are applied. A layer is a module or a function
  that treats every patch alone (batch normalisation excepted): normally ``normalise_patches``
  first, ``unit_length`` last, convolutions in between;
- ``dim`` and ``patch_size`` if they are not 128 and 32.

The line is its entry in ``NETS``. Then recipes (``net: name``), weights files, chunked and
distributed training, ``hardnet export`` and the tests of all networks (``tests/nets``) take it by
that name. Weights files are recognised by names and shapes of their parameters, so two networks
must not have all of these in common. If it has a layer that ONNX export does not know, export says
so: that is one function in ``hardnet.interop.onnx``.

To try one out, write no file here: recipes take ``net: module:Class``, and so does
``hardnet export --net``. The weights then remember the name, but no file is trusted to name code.
"""

from __future__ import annotations

from hardnet.errors import HardnetError
from hardnet.nets.hardnet import (
    HardNet,
    Medium,
    Small,
    Student8,
    Student16,
    Student24,
    Student32,
    Tiny,
)
from hardnet.nets.layers import Net
from hardnet.nets.tfeat import HardTFeat, TFeat
from hardnet.stored_names import find_code

NETS: dict[str, type[Net]] = {
    "hardnet": HardNet,
    "tfeat": TFeat,
    "hardtfeat": HardTFeat,
    "hardnet-tiny": Tiny,
    "hardnet-small": Small,
    "hardnet-medium": Medium,
    "student8": Student8,
    "student16": Student16,
    "student24": Student24,
    "student32": Student32,
}


def unknown_net(name: str) -> HardnetError:
    """The error that says which networks there are."""
    return HardnetError(f"unknown network {name!r}; known: {', '.join(sorted(NETS))}")


def find_net(name: str) -> type[Net]:
    """The class of a network that a person named: registered, or your own as ``module:Class``."""
    if name in NETS:
        return NETS[name]
    if ":" not in name:
        raise unknown_net(name)
    found = find_code(name)
    if not (isinstance(found, type) and issubclass(found, Net)):
        raise HardnetError(f"{name} is no network: give a subclass of hardnet.nets.Net")
    return found


def build_net(name: str, dropout: float | None = None) -> Net:
    """A new network with random weights; ``dropout`` None takes the network's own default."""
    if name not in NETS:
        raise unknown_net(name)
    return NETS[name]() if dropout is None else NETS[name](dropout)


__all__ = ["NETS", "HardNet", "HardTFeat", "Net", "TFeat", "build_net", "find_net"]
