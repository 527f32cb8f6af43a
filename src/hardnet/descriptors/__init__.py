"""Descriptors by name, by weights file, or as a Python function.

The names are those of the weights that are shipped, one for every ``.onnx`` file in ``WEIGHTS``
(a network and its file have the same name), and those of descriptors that need no weights.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from hardnet.descriptors.base import Descriptor, Descriptors, PixelsDescriptor
from hardnet.errors import HardnetError, InputError
from hardnet.stored_names import check_registered

__all__ = [
    "WEIGHTS",
    "WEIGHTS_SUFFIXES",
    "Descriptor",
    "Descriptors",
    "Spec",
    "available_names",
    "load",
    "names",
    "parse_specs",
    "registered",
    "shipped_names",
]

WEIGHTS = Path(__file__).parent.parent / "weights"
"""Where the shipped weights lie inside the package."""

_TORCH_SUFFIXES = (".safetensors", ".pth", ".pt", ".params")
WEIGHTS_SUFFIXES = (".onnx", *_TORCH_SUFFIXES)
"""How the names of weights files end."""

_OPENCV = ("beblid", "boostdesc", "rootsift", "sift", "teblid", "vgg")
_LABELLED = re.compile(r"(?P<label>[^\[\]=]+?)\s*(\[(?P<trained>[^\[\]=]+)\])?\s*=(?P<spec>.*)")


def load(name_or_path: str | Path, threads: int | None = None) -> Descriptor:
    """A descriptor, ready to call on patches.

    Networks are kept: to load the same weights again costs nothing while their file stays the same.

    ``module:function`` runs the module: give what a person named, and pass a name that was read
    from a file through :func:`registered` first.

    Args:
        name_or_path: a name of :func:`names`, or the path of a weights file: ``.onnx`` runs on
            onnxruntime, ``.safetensors``, ``.pth``, ``.pt`` and ``.params`` on PyTorch; or
            ``module:function``, your own (:mod:`hardnet.descriptors.functions`).
        threads: threads of onnxruntime; all usable cores by default. OpenCV and PyTorch have their
            own, process-wide settings.

    Raises:
        HardnetError: no such name or file, a file that is not a descriptor's, or a descriptor that
            the installed OpenCV does not have.
    """
    text = str(name_or_path)
    suffix = Path(text).suffix.lower()
    if text == "pixels":
        return PixelsDescriptor()
    if text in _OPENCV:
        from hardnet.descriptors import opencv

        return opencv.load(text)
    if text in (shipped := shipped_names()) or suffix == ".onnx":
        from hardnet.descriptors.onnx import OnnxDescriptor

        path = WEIGHTS / f"{text}.onnx" if text in shipped else Path(text)
        return OnnxDescriptor(path, threads=threads)
    if suffix in _TORCH_SUFFIXES:
        from hardnet.descriptors.torch import TorchDescriptor

        return TorchDescriptor(text)
    if ":" in text:
        from hardnet.descriptors.functions import FunctionDescriptor

        return FunctionDescriptor(text)
    near = difflib.get_close_matches(text, names(), n=1, cutoff=0.4)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise InputError(
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
    return sorted([*shipped_names(), "pixels", *_OPENCV])


def shipped_names() -> list[str]:
    """The descriptors whose weights come with the package."""
    return sorted(path.stem for path in WEIGHTS.glob("*.onnx"))


def available_names() -> list[str]:
    """Those of :func:`names` that this installation can load."""
    from hardnet.descriptors.opencv import KINDS, is_available

    return [name for name in names() if name not in KINDS or is_available(name)]


@dataclass(frozen=True)
class Spec:
    """One descriptor of a list.

    Attributes:
        label: what tables call it.
        trained: the patch set it was trained on, None if that does not matter.
        spec: what ``hardnet.descriptors.load`` takes.
    """

    label: str
    trained: str | None
    spec: str


def parse_specs(text: str) -> list[Spec]:
    """Descriptors as they are typed: ``SIFT=sift,TFeat[liberty]=tfeat-liberty.params``.

    A comma-separated list of ``SPEC``, ``LABEL=SPEC`` or ``LABEL[TRAINED]=SPEC``.

    Without a label, a file is called by its name and everything else as it is typed.

    Raises:
        HardnetError: an empty entry, a label that is not written like this, or one used twice.
    """
    specs = [_parse_spec(entry.strip()) for entry in text.split(",")]
    seen: dict[tuple[str, str | None], Spec] = {}
    for spec in specs:
        other = seen.setdefault((spec.label, spec.trained), spec)
        if other is not spec:
            label = spec.label + (f"[{spec.trained}]" if spec.trained else "")
            raise HardnetError(
                f"two descriptors are called {label!r} ({other.spec} and {spec.spec}): "
                "give them labels, as in LABEL=SPEC"
            )
    return specs


def _parse_spec(entry: str) -> Spec:
    label, trained, spec = None, None, entry
    if "=" in entry:
        match = _LABELLED.fullmatch(entry)
        if not match:
            raise HardnetError(f"{entry!r} is neither LABEL=SPEC nor LABEL[TRAINED]=SPEC")
        label, trained, spec = match["label"].strip(), match["trained"], match["spec"].strip()
    if not spec:
        raise HardnetError(f"a descriptor is missing in the list at {entry!r}")
    return Spec(label or Path(spec).name, trained.strip() if trained else None, spec)
