"""Descriptors by name, by weights file, or as a Python function: patches -> vectors.

The names are those of the weights that are shipped, one for every ``.onnx`` file in ``WEIGHTS``
(a network and its file have the same name), and those of descriptors that need no weights.

What goes in and what comes out is checked here, once, for all of them. In: (N, S, S) or
(N, 1, S, S), any integer or float type, any brightness range, any S; all else is a HardnetError
that says what is wrong. Out: (N, D) float32 of length 1. A patch without any contrast describes
nothing; where a descriptor gives it the zero vector, it becomes the uniform vector 1/sqrt(D), so
that nothing downstream meets a NaN.
"""

from __future__ import annotations

import difflib
import os
import platform
import re
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.errors import HardnetError, InputError, MissingExtraError, counted
from hardnet.storage import check_registered, file_digest, file_state
from hardnet.threads import interrupts_held, map_threads, usable_cores

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from hardnet.nets import Net

Descriptors = NDArray[np.float32]
"""(N, D) float32, one unit vector per patch."""

Patches = NDArray[np.uint8] | NDArray[np.float32]

_ONNX_BATCHES = 16, 64  # the smallest, where patches are few for the threads, and the largest
_TORCH_BATCH = 128
_ZERO = 1e-6  # shorter than this, a vector's direction is rounding

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


@runtime_checkable
class Descriptor(Protocol):
    """Describes patches; any benchmark and any pipeline takes any descriptor.

    The type of what it returns is the metric: float32 vectors are compared by L2 distance, uint8
    rows are packed bits, compared by Hamming distance (``hardnet.matching.neighbours``). Vectors
    have length 1, except where a descriptor was learned otherwise (VGG) or is a user's function.

    A descriptor may have an attribute ``weights``: a text that says which weights, source or
    library computes it, for ``provenance.descriptor_digest``; and an attribute ``digest`` of its
    weights file, by which features of different weights are told apart.
    """

    @property
    def name(self) -> str:
        """What tables and files call it."""
        ...

    @property
    def dim(self) -> int:
        """Length D of a vector, or the number of bits."""
        ...

    def __call__(self, patches: ArrayLike) -> NDArray[Any]:
        """Describe (N, S, S) or (N, 1, S, S) grey patches of any size.

        Returns:
            (N, D) float32 vectors, or (N, D / 8) uint8 packed bits.
        """
        ...


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
    text, windows = split_windows(str(name_or_path))
    if windows:
        from hardnet.descriptors.windows import join_windows
        from hardnet.frames import WINDOW_SIGMAS

        one = load(text, threads)
        return one if windows == (WINDOW_SIGMAS,) else join_windows(one, windows)
    suffix = Path(text).suffix.lower()
    if text == "pixels":
        return PixelsDescriptor()
    if text in _OPENCV:
        from hardnet.descriptors import opencv

        return opencv.load(text)
    if text in (shipped := shipped_names()) or suffix == ".onnx":
        path = WEIGHTS / f"{text}.onnx" if text in shipped else Path(text)
        return OnnxDescriptor(path, threads=threads)
    if suffix in _TORCH_SUFFIXES:
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


def check_patches(patches: ArrayLike) -> Patches:
    """(N, S, S) or (N, 1, S, S) patches, or an empty list, as one (N, S, S) array.

    It is uint8 if they were, else float32. Wrong shapes and types, NaN and infinity are an error.
    """
    try:
        array: NDArray[Any] = np.asarray(patches)
    except ValueError as error:  # a list of patches of different sizes
        raise InputError(f"patches must all have one size: {error}") from error
    if array.ndim == 1 and not len(array):
        return np.zeros((0, 1, 1), np.uint8)
    if array.ndim == 4 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 3:
        raise InputError(
            f"patches must have shape (N, S, S) or (N, 1, S, S), got {array.shape}"
            + ("; one patch is patch[None]" if array.ndim == 2 else "")
        )
    if array.shape[1] != array.shape[2]:
        raise InputError(f"patches must be square, got {array.shape[1]} x {array.shape[2]}")
    if len(array) and not array.shape[1]:
        raise InputError("patches have no pixels")
    if array.dtype == np.uint8:
        return array
    if array.dtype.kind not in "fiu":
        raise InputError(f"patches must be numbers, got {array.dtype}")
    array = array.astype(np.float32)
    bad = ~np.isfinite(array).all(axis=(1, 2))
    if bad.any():
        raise InputError(
            f"{bad.sum()} of {len(array)} patches contain NaN or infinity, "
            f"the first is number {int(np.argmax(bad))}"
        )
    return array


def resize_patches(patches: Patches, size: int) -> Patches:
    """(N, S, S) -> (N, size, size) of the same type, each patch on its own.

    ``cv2.INTER_LINEAR``, as the published evaluation does: 64 -> 32 is the mean of 2 x 2 pixels.
    Larger ones than 65 -> 32 are first halved by averaging, because bilinear interpolation over
    steps of more than two pixels would skip the pixels between.
    """
    import cv2  # here: the names of all descriptors are in the help of commands, without OpenCV

    if patches.shape[1] == size or not len(patches):
        return patches.reshape(len(patches), size, size)
    out = np.empty((len(patches), size, size), patches.dtype)
    for i, patch in enumerate(patches):
        while patch.shape[0] > 2 * size + 1:
            half = patch.shape[0] // 2
            patch = cv2.resize(patch, (half, half), interpolation=cv2.INTER_AREA)
        out[i] = cv2.resize(patch, (size, size), interpolation=cv2.INTER_LINEAR)
    return out


def grey_bytes(patches: Patches) -> NDArray[np.uint8]:
    """(N, S, S) as whole grey values 0..255, for what reads nothing else.

    Values outside 0..255, or 0..1, which rounding would destroy, are an error.
    """
    if patches.dtype == np.uint8:
        return patches.astype(np.uint8, copy=False)
    low, high = float(patches.min(initial=0)), float(patches.max(initial=0))
    whole = np.round(patches)
    if low < 0 or high > 255 or (high <= 1 and not np.array_equal(whole, patches)):
        raise InputError(
            f"patches have values from {low:.3g} to {high:.3g}; "
            "this descriptor reads grey values 0..255"
        )
    return np.asarray(whole, np.uint8)


def unit_rows(vectors: NDArray[np.float32]) -> Descriptors:
    """(N, D) -> (N, D) of length 1; a zero row becomes the uniform vector 1/sqrt(D)."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    dim = vectors.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = np.where(length > _ZERO, vectors / length, np.float32(dim**-0.5))
    return unit.astype(np.float32, copy=False)


def finite_rows(vectors: NDArray[Any], name: str) -> Descriptors:
    """:func:`unit_rows` of what a network gives, which is an error where it is no number."""
    if not np.isfinite(vectors).all():
        bad = int((~np.isfinite(vectors).all(axis=1)).sum())
        which = f"{bad} of {counted(len(vectors), 'patch')}"
        raise HardnetError(
            f"the network {name} gives NaN or infinity for {which}: its "
            "weights are damaged, or its training left the finite numbers"
        )
    return unit_rows(vectors.astype(np.float32, copy=False))


class PixelsDescriptor:
    """The patch itself at 16 x 16, minus its mean: what learning and engineering have to beat.

    The dot product of two such vectors is the normalised cross-correlation of the patches.
    """

    name = "pixels"
    side = 16
    dim = side * side
    weights = f"pixels {side}"

    def __call__(self, patches: ArrayLike) -> Descriptors:
        """(N, S, S) or (N, 1, S, S) grey patches -> (N, 256) unit vectors."""
        exact = check_patches(patches).astype(np.float32)  # resizing bytes would round
        rows = resize_patches(exact, self.side).reshape(-1, self.dim).astype(np.float32)
        # The mean of equal float32 numbers may differ from them in the last digit: a flat patch
        # must give zeros here, not amplified rounding.
        flat = rows.max(1, initial=-np.inf) == rows.min(1, initial=np.inf)
        rows -= rows.mean(1, keepdims=True)
        rows[flat] = 0
        return unit_rows(rows)


class OnnxDescriptor:
    """A network in an ONNX file with input (N, 1, S, S) float and output (N, D) float.

    The way HardNet is shipped: the graph holds everything from raw grey values to unit vectors.
    Parallel over *small batches*, not inside layers: every one of ``threads`` runs whole batches of
    16 to 64 patches through one shared single-threaded session. The activations of a batch stay
    close to the caches, threads never wait for each other at layer ends (which costs most when the
    machine is shared), and memory does not grow with the number of patches. What a patch gives does
    not depend on its batch.
    """

    def __init__(
        self, path: Path | str, name: str | None = None, threads: int | None = None
    ) -> None:
        path = Path(path)
        if not path.is_file():
            raise HardnetError(f"no weights file {path}")
        self.path, self.name = path, name or path.stem
        self.threads = threads or usable_cores()
        self._session, digest = _open_onnx(path.resolve(), file_state(path))
        self._input = self._session.get_inputs()[0].name
        self.patch_size, self.dim = _sizes(self._session, path)
        self.digest, self.weights = digest, f"onnx {digest}"

    def __call__(self, patches: ArrayLike) -> Descriptors:
        """(N, S, S) or (N, 1, S, S) grey patches -> (N, D) unit vectors."""
        checked = resize_patches(check_patches(patches), self.patch_size)
        out = np.empty((len(checked), self.dim), np.float32)

        least, most = _ONNX_BATCHES
        step = min(max(-(-len(checked) // (4 * self.threads)), least), most)

        def describe(start: int) -> None:
            batch = checked[start : start + step, None].astype(np.float32, copy=False)
            try:
                described = self._session.run(None, {self._input: batch})[0]  # releases the GIL
            except Exception as error:  # onnxruntime's errors share no public base class
                reason = str(error).partition("\n")[0]
                raise HardnetError(f"the network {self.name} cannot run: {reason}") from error
            if described.shape != (len(batch), self.dim):
                given = counted(len(batch), "patch")
                raise HardnetError(f"the network {self.name} gives {described.shape} for {given}")
            out[start : start + step] = finite_rows(described, self.name)

        map_threads(describe, range(0, len(checked), step), self.threads)
        return out


@lru_cache(maxsize=8)
def _open_onnx(path: Path, _state: tuple[int, ...]) -> tuple[InferenceSession, str]:
    with interrupts_held():
        import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only; they are raised as well
    try:
        providers = ["CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime's errors share no public base class
        reason = str(error).splitlines()[0]
        raise HardnetError(f"{path} cannot be read as an ONNX network: {reason}") from error
    return session, file_digest(path)


def _sizes(session: InferenceSession, path: Path) -> tuple[int, int]:
    """(S, D) of a network that reads (N, 1, S, S) and gives (N, D)."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) == 1 and len(outputs) == 1:
        read, given = inputs[0].shape, outputs[0].shape
        fixed = all(isinstance(n, int) for n in (*read[1:], *given[1:]))
        if fixed and len(read) == 4 and read[1] == 1 and read[2] == read[3] and len(given) == 2:
            return int(read[2]), int(given[1])
    shapes = f"{[i.shape for i in inputs]} -> {[o.shape for o in outputs]}"
    raise HardnetError(f"{path} maps {shapes}; a descriptor maps [N, 1, S, S] -> [N, D]")


class TorchDescriptor:
    """A network of ``hardnet.nets`` with weights from a file, run by PyTorch.

    The file is ``.safetensors`` or a published state dict (``.pth``, ``.pt``, ``.params``).
    """

    def __init__(self, path: Path | str, name: str | None = None) -> None:
        if not Path(path).is_file():
            raise HardnetError(f"no weights file {path}")
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("torch", "train") from error
        self._torch = torch
        self._net, digest = _open_torch(Path(path).resolve(), file_state(Path(path)))
        self.path, self.name = Path(path), name or Path(path).stem
        self.dim = self._net.dim
        self.digest, self.weights = digest, f"torch {digest}"

    def __call__(self, patches: ArrayLike) -> Descriptors:
        """(N, S, S) or (N, 1, S, S) grey patches -> (N, D) unit vectors."""
        checked = resize_patches(check_patches(patches), self._net.patch_size)
        out = np.empty((len(checked), self.dim), np.float32)
        with self._torch.inference_mode():
            for start in range(0, len(checked), _TORCH_BATCH):
                batch = checked[start : start + _TORCH_BATCH, None].astype(np.float32)
                described = self._net(self._torch.from_numpy(batch)).numpy()
                out[start : start + _TORCH_BATCH] = finite_rows(described, self.name)
        return out


@lru_cache(maxsize=8)
def _open_torch(path: Path, _state: tuple[int, ...]) -> tuple[Net, str]:
    from hardnet.nets import load_net

    return load_net(path), file_digest(path)
