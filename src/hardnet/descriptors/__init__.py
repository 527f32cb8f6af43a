"""Descriptors by name, by weights file, or as a Python function."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

from hardnet.descriptors.base import Descriptor, Descriptors
from hardnet.errors import HardnetError

WEIGHTS = Path(__file__).parent.parent / "weights"
"""Where the shipped weights lie inside the package."""


def load(name_or_path: str | Path, threads: int | None = None) -> Descriptor:
    """A descriptor, ready to call on patches.

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
    if text in _BY_NAME:
        return _BY_NAME[text](threads)
    suffix = Path(text).suffix.lower()
    if suffix == ".onnx":
        return _onnx(Path(text), None, threads)
    if suffix in _TORCH_SUFFIXES:
        from hardnet.descriptors.torch_net import TorchDescriptor

        return TorchDescriptor(text)
    if ":" in text:
        from hardnet.descriptors.user_function import FunctionDescriptor

        return FunctionDescriptor(text)
    near = difflib.get_close_matches(text, _BY_NAME, n=1, cutoff=0.4)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise HardnetError(
        f"unknown descriptor {text!r}{hint}; known: {', '.join(names())}, "
        f"a weights file ending in .onnx, {', '.join(_TORCH_SUFFIXES)}, or module:function"
    )


def names() -> list[str]:
    """The descriptors that need no file; some need OpenCV's contrib modules."""
    return sorted(_BY_NAME)


def available_names() -> list[str]:
    """Those of :func:`names` that this installation can load."""
    from hardnet.descriptors.opencv_learned import KINDS, is_available

    return [name for name in names() if name not in KINDS or is_available(name)]


def _onnx(path: Path, name: str | None, threads: int | None) -> Descriptor:
    from hardnet.descriptors.hardnet_onnx import OnnxDescriptor

    return OnnxDescriptor(path, name, threads)


def _shipped(name: str) -> Callable[[int | None], Descriptor]:
    return lambda threads: _onnx(WEIGHTS / f"{name}.onnx", name, threads)


def _sift(root: bool) -> Callable[[int | None], Descriptor]:
    def build(threads: int | None) -> Descriptor:
        from hardnet.descriptors.sift import SiftDescriptor

        return SiftDescriptor(root)

    return build


def _pixels(threads: int | None) -> Descriptor:
    from hardnet.descriptors.pixels import PixelsDescriptor

    return PixelsDescriptor()


def _opencv(name: str) -> Callable[[int | None], Descriptor]:
    def build(threads: int | None) -> Descriptor:
        from hardnet.descriptors.opencv_learned import OpenCVDescriptor

        return OpenCVDescriptor(name)

    return build


_TORCH_SUFFIXES = (".safetensors", ".pth", ".pt", ".params")
_BY_NAME: dict[str, Callable[[int | None], Descriptor]] = {
    "hardnet": _shipped("hardnet"),
    "hardnet-int8": _shipped("hardnet-int8"),
    "pixels": _pixels,
    "rootsift": _sift(root=True),
    "sift": _sift(root=False),
    **{name: _opencv(name) for name in ("beblid", "boostdesc", "teblid", "vgg")},
}

__all__ = ["WEIGHTS", "Descriptor", "Descriptors", "available_names", "load", "names"]
