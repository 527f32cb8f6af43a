"""Descriptors by name, by weights file, or as a Python function.

The names are those of the weights that are shipped, one for every ``.onnx`` file in ``WEIGHTS``
(a network and its file have the same name), and those of descriptors that need no weights.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hardnet.descriptors.base import Descriptor, Descriptors
from hardnet.errors import HardnetError
from hardnet.stored_names import check_registered

WEIGHTS = Path(__file__).parent.parent / "weights"
"""Where the shipped weights lie inside the package."""


def load(name_or_path: str | Path, threads: int | None = None) -> Descriptor:
    """A descriptor, ready to call on patches.

    ``module:function`` runs the module: give what a person named, and pass a name that was read
    from a file through :func:`registered` first.

    Args:
        name_or_path: a name of :func:`names`, or the path of a weights file: ``.onnx`` runs on
            onnxruntime, ``.safetensors``, ``.pth``, ``.pt`` and ``.params`` on PyTorch; or
            ``module:function``, your own (:mod:`hardnet.descriptors.user_function`).
        threads: threads of onnxruntime; all usable cores by default. OpenCV and PyTorch have their
            own, process-wide settings.

    Raises:
        HardnetError: no such name or file, a file that is not a descriptor's, or a descriptor that
            the installed OpenCV does not have.
    """
    text = str(name_or_path)
    if text in _WITHOUT_WEIGHTS:
        return _WITHOUT_WEIGHTS[text]()
    if text in shipped_names():
        return _onnx(WEIGHTS / f"{text}.onnx", text, threads)
    suffix = Path(text).suffix.lower()
    if suffix == ".onnx":
        return _onnx(Path(text), None, threads)
    if suffix in _TORCH_SUFFIXES:
        from hardnet.descriptors.torch_net import TorchDescriptor

        return TorchDescriptor(text)
    if ":" in text:
        from hardnet.descriptors.user_function import FunctionDescriptor

        return FunctionDescriptor(text)
    near = difflib.get_close_matches(text, names(), n=1, cutoff=0.4)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise HardnetError(
        f"unknown descriptor {text!r}{hint}; known: {', '.join(names())}, "
        f"a weights file ending in .onnx, {', '.join(_TORCH_SUFFIXES)}, or module:function"
    )


def registered(name: object, source: Path, again: str) -> str:
    """A name that was read from a file: one of :func:`names`, never a module or a path.

    Args:
        name: as read.
        source: the file.
        again: how a person names the descriptor, for the error.
    """
    return check_registered(name, "descriptor", names(), source, again)


def names() -> list[str]:
    """The descriptors that need no file; some need OpenCV's contrib modules."""
    return sorted([*shipped_names(), *_WITHOUT_WEIGHTS])


def shipped_names() -> list[str]:
    """The descriptors whose weights come with the package."""
    return sorted(path.stem for path in WEIGHTS.glob("*.onnx"))


def available_names() -> list[str]:
    """Those of :func:`names` that this installation can load."""
    from hardnet.descriptors.opencv_learned import KINDS, is_available

    return [name for name in names() if name not in KINDS or is_available(name)]


def _onnx(path: Path, name: str | None, threads: int | None) -> Descriptor:
    from hardnet.descriptors.hardnet_onnx import OnnxDescriptor

    return OnnxDescriptor(path, name, threads)


def _sift(root: bool) -> Descriptor:
    from hardnet.descriptors.sift import SiftDescriptor

    return SiftDescriptor(root)


def _pixels() -> Descriptor:
    from hardnet.descriptors.pixels import PixelsDescriptor

    return PixelsDescriptor()


def _opencv(name: str) -> Descriptor:
    from hardnet.descriptors.opencv_learned import OpenCVDescriptor

    return OpenCVDescriptor(name)


_TORCH_SUFFIXES = (".safetensors", ".pth", ".pt", ".params")
WEIGHTS_SUFFIXES = (".onnx", *_TORCH_SUFFIXES)
"""How the names of weights files end."""
_WITHOUT_WEIGHTS: dict[str, Callable[[], Descriptor]] = {
    "pixels": _pixels,
    "rootsift": partial(_sift, root=True),
    "sift": partial(_sift, root=False),
    **{name: partial(_opencv, name) for name in ("beblid", "boostdesc", "teblid", "vgg")},
}

__all__ = [
    "WEIGHTS",
    "WEIGHTS_SUFFIXES",
    "Descriptor",
    "Descriptors",
    "available_names",
    "load",
    "names",
    "registered",
    "shipped_names",
]
