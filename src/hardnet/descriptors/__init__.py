"""Descriptors by name, by weights file, or as a Python function.

The names are those of the weights that are shipped, one for every ``.onnx`` file in ``WEIGHTS``
(a network and its file have the same name), and those of descriptors that need no weights.
"""

from __future__ import annotations

import difflib
import os
import platform
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.errors import HardnetError, InputError
from hardnet.stored_names import check_registered

if TYPE_CHECKING:
    from hardnet.descriptors.base import (
        Descriptor,
        Descriptors,
        OnnxDescriptor,
        TorchDescriptor,
    )

__all__ = [
    "DEFAULT",
    "WEIGHTS",
    "WEIGHTS_SUFFIXES",
    "Descriptor",
    "Descriptors",
    "OnnxDescriptor",
    "TorchDescriptor",
    "are_alike",
    "available_names",
    "described_by",
    "for_photos",
    "load",
    "names",
    "registered",
    "shipped_names",
]


def __getattr__(name: str) -> Any:
    # When they are first used: the help of commands lists the names below and needs no numpy.
    if name not in ("Descriptor", "Descriptors", "OnnxDescriptor", "TorchDescriptor"):
        raise AttributeError(f"module 'hardnet.descriptors' has no attribute '{name}'")
    return getattr(import_module("hardnet.descriptors.base"), name)


WEIGHTS = Path(__file__).parent.parent / "weights"
"""Where the shipped weights lie inside the package."""

_TORCH_SUFFIXES = (".safetensors", ".pth", ".pt", ".params")
WEIGHTS_SUFFIXES = (".onnx", *_TORCH_SUFFIXES)
"""How the names of weights files end."""

PRECISION = "HARDNET_PRECISION"
"""The environment variable that chooses between the forms of a network: float32, int8 or auto."""

DEFAULT = "hardnet-small"
"""Describes photos unless another is named: nearly as good as "hardnet" in a fifth of its time."""

WINDOWS = {"hardnet": "12+24+48", "hardnet-small": "12+24+48"}
"""The windows, in sigmas of a keypoint, that shipped networks describe in photos; 12 for others."""

_WINDOWS = re.compile(r"(.+)@(\d+(?:\.\d+)?(?:\+\d+(?:\.\d+)?)*)")
_FORMER_WINDOWS = "@12+24"  # in files of version 0.7
_INT8 = "-int8"
_OPENCV = ("beblid", "boostdesc", "rootsift", "sift", "teblid", "vgg")


def load(name_or_path: str | Path, threads: int | None = None) -> Descriptor:
    """A descriptor, ready to call on patches.

    A name is taken literally: "hardnet" is 32-bit floats and one window, "hardnet-int8" is 8-bit
    integers. Everything that describes photos loads ``for_photos("hardnet")``.

    Networks are kept: to load the same weights again costs nothing while their file stays the same.

    ``module:function`` runs the module: give what a person named, and pass a name that was read
    from a file through :func:`registered` first.

    Args:
        name_or_path: a name of :func:`names`, or the path of a weights file: ``.onnx`` runs on
            onnxruntime, ``.safetensors``, ``.pth``, ``.pt`` and ``.params`` on PyTorch; or
            ``module:function``, your own (:mod:`hardnet.descriptors.functions`). Any of them may
            end in the windows it describes, ``hardnet@12+24`` (:mod:`hardnet.descriptors.windows`).
        threads: threads of onnxruntime; all usable cores by default. OpenCV and PyTorch have their
            own, process-wide settings.
    """
    from hardnet.descriptors import base

    text, windows = split_windows(str(name_or_path))
    if windows:
        from hardnet.descriptors.windows import join_windows
        from hardnet.frames import WINDOW_SIGMAS

        one = load(text, threads)
        return one if windows == (WINDOW_SIGMAS,) else join_windows(one, windows)
    suffix = Path(text).suffix.lower()
    if text == "pixels":
        return base.PixelsDescriptor()
    if text in _OPENCV:
        from hardnet.descriptors import opencv

        return opencv.load(text)
    if text in (shipped := shipped_names()) or suffix == ".onnx":
        path = WEIGHTS / f"{text}.onnx" if text in shipped else Path(text)
        return base.OnnxDescriptor(path, threads=threads)
    if suffix in _TORCH_SUFFIXES:
        return base.TorchDescriptor(text)
    if ":" in text:
        from hardnet.descriptors.functions import FunctionDescriptor

        return FunctionDescriptor(text)
    near = difflib.get_close_matches(text, names(), n=1, cutoff=0.4)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise InputError(
        f"unknown descriptor {text!r}{hint}; known: {', '.join(names())}, "
        f"a weights file ending in .onnx, {', '.join(_TORCH_SUFFIXES)}, or module:function"
    )


def for_photos(name: str, made_with: str | None = None) -> str:
    """The form of a network that describes photos best on this CPU, for a name a person gave.

    A shipped network with several windows (``WINDOWS``) describes all of them, unless the name
    says which: ``hardnet@12``. One that has an 8-bit form (``name-int8``) runs in it where that is
    faster on the CPU (:func:`prefers_int8`), else in 32-bit floats. The environment
    variable ``HARDNET_PRECISION`` (float32 or int8) decides otherwise, and a name that ends in
    ``-int8`` is a decision already. Files keep the name that this returns, so that an index stays
    with one form whichever machine opens it: ``made_with`` is taken if it is a form of the name.
    """
    wanted = os.environ.get(PRECISION) or "auto"
    if wanted not in ("auto", "float32", "int8"):
        raise HardnetError(f"{PRECISION} is {wanted!r}: choose auto, float32 or int8")
    network, at, windows = name.partition("@")
    usual = WINDOWS.get(network.removesuffix(_INT8), "")
    ends = [f"@{windows}"] if at else [f"@{usual}", _FORMER_WINDOWS, ""] if usual else [""]
    has_int8 = f"{network}{_INT8}" in shipped_names()
    forms = [network, f"{network}{_INT8}"] if has_int8 else [network]
    if made_with in [form + end for form in forms for end in ends]:
        return str(made_with)
    takes_int8 = has_int8 and (wanted == "int8" or (wanted == "auto" and prefers_int8()))
    return forms[takes_int8] + ends[0]


@cache
def prefers_int8() -> bool:
    """Whether 8-bit integers are faster than floats: AVX2, VNNI, AMX or ARM's dot product.

    With AVX2 alone by half (``benchmarks/describe.py``), with the others by more. False where the
    CPU cannot be asked.
    """
    if (platform.system(), platform.machine()) == ("Darwin", "arm64"):
        return True
    try:
        words = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return False
    return not words.isdisjoint({"avx2", "avx_vnni", "avx512_vnni", "amx_int8", "asimddp"})


def split_windows(name: str) -> tuple[str, tuple[float, ...]]:
    """The name of a descriptor without its windows, and these in sigmas; none if it names none."""
    found = _WINDOWS.fullmatch(name)
    return (found[1], tuple(map(float, found[2].split("+")))) if found else (name, ())


def is_registered(name: str) -> bool:
    """Whether a name, with or without windows, is one of :func:`names`."""
    return split_windows(name)[0] in names()


def registered(name: object, source: Path, again: str) -> str:
    """A name that was read from a file: one of :func:`names`, never a module or a path.

    ``again`` says, for the error, how a person names the descriptor.
    """
    plain = split_windows(name)[0] if isinstance(name, str) else name
    check_registered(plain, "descriptor", names(), source, again)
    return str(name)


def names() -> list[str]:
    """The descriptors that need no file; some need OpenCV's contrib modules."""
    return sorted([*shipped_names(), "pixels", *_OPENCV])


def shipped_names() -> list[str]:
    """The descriptors whose weights come with the package."""
    return sorted(path.stem for path in WEIGHTS.glob("*.onnx"))


def available_names() -> list[str]:
    """Those of :func:`names` that this installation can load."""
    from hardnet.descriptors.opencv import KINDS, is_available

    return [name for name in names() if name not in KINDS or is_available(name)]


def are_alike(name: str, weights: str, other_name: str, other_weights: str) -> bool:
    """Whether two sets of descriptors can be compared, by the name and the digest of each.

    Weights decide where both are known: every file may be called "hardnet".
    """
    return weights == other_weights if weights and other_weights else name == other_name


def described_by(name: str, weights: str) -> str:
    """A descriptor in words: "hardnet (weights 0123456789ab)"."""
    return f"{name} (weights {weights[:12]})" if weights else name
