"""Descriptors by name, by weights file, or as a Python function: patches -> vectors.

A name is that of a shipped weights file (one for every ``.onnx`` in ``WEIGHTS``) or of a
descriptor that needs no weights. All take (N, S, S) or (N, 1, S, S) patches of any integer or float
type, any brightness range and any S, and networks give (N, D) float32 of length 1. A patch without
any contrast describes nothing: its zero vector becomes the uniform vector 1/sqrt(D), so that
nothing downstream meets a NaN.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.errors import HardnetError, InputError, MissingExtraError, counted
from hardnet.frames import WINDOW_SIGMAS, check_patches, resize_patches
from hardnet.image_files import file_digest, file_state
from hardnet.storage import check_registered
from hardnet.threads import interrupts_held, map_threads, usable_cores

Descriptors = NDArray[np.float32]
"""(N, D) float32, one unit vector per patch."""

WEIGHTS = Path(__file__).parent.parent / "weights"
"""Where the shipped weights lie inside the package."""

_TORCH_SUFFIXES = (".safetensors", ".pth", ".pt", ".params")
WEIGHTS_SUFFIXES = (".onnx", *_TORCH_SUFFIXES)  # how the names of weights files end
PRECISION = "HARDNET_PRECISION"
"""The environment variable that chooses between the forms of a network: float32, int8 or auto."""

DEFAULT = "hardnet-small"
"""Describes photos unless another is named: nearly as good as "hardnet" in a fifth of its time."""

WINDOWS = {"hardnet": "12+24+48", "hardnet-small": "12+24+48"}
"""The windows, in sigmas of a keypoint, that shipped networks describe in photos; 12 for others."""

LARGEST_WINDOW = 4.0
"""How many times as wide as the narrowest window of a descriptor the widest may be."""

EVENNESS = 0.25
"""How far the projection evens out the spread of its numbers: 0 not at all, 1 whitens them."""

_WINDOWS = re.compile(r"(.+)@(\d+(?:\.\d+)?(?:\+\d+(?:\.\d+)?)*)")
_INT8 = "-int8"
_OPENCV = ("beblid", "boostdesc", "pixels", "rootsift", "sift", "teblid", "vgg")
_ONNX_BATCHES = 16, 64  # the smallest, where patches are few for the threads, and the largest
_TORCH_BATCH = 128
_ZERO = 1e-6  # shorter than this, a vector's direction is rounding


@runtime_checkable
class Descriptor(Protocol):
    """Describes patches; any benchmark and any pipeline takes any descriptor.

    The type of what it returns is the metric: float32 vectors are compared by L2 distance, uint8
    rows are packed bits, compared by Hamming distance. Vectors have length 1, except those of VGG
    and of users' functions.

    It may have attributes ``weights``, which says which weights, source or library computes it, and
    ``digest`` of its weights file, which distinguishes features of different weights.
    """

    @property
    def name(self) -> str: ...

    @property
    def dim(self) -> int:
        """Length D of a vector, or the number of bits."""

    def __call__(self, patches: ArrayLike) -> NDArray[Any]:
        """(N, S, S) or (N, 1, S, S) patches -> (N, D) float32, or (N, D / 8) uint8 packed bits."""


def load(name_or_path: str | Path, threads: int | None = None) -> Descriptor:
    """A descriptor, ready to call on patches.

    A name is taken literally: "hardnet" is 32-bit floats and one window. What describes photos
    loads ``for_photos("hardnet")``. Networks are kept while their files stay the same.

    ``module:function`` runs the module: give what a person named, and pass a name that was read
    from a file through :func:`registered` first.

    Args:
        name_or_path: a name of :func:`names`, or the path of a weights file: ``.onnx`` runs on
            onnxruntime, ``.safetensors``, ``.pth``, ``.pt`` and ``.params`` on PyTorch; or
            ``module:function`` (:mod:`hardnet.descriptors.functions`). Any of them may end in the
            windows it describes: ``hardnet@12+24`` (:class:`WindowsDescriptor`).
        threads: of onnxruntime; all usable cores by default. OpenCV and PyTorch have process-wide
            settings.
    """
    text, windows = split_windows(str(name_or_path))
    if windows:
        one = load(text, threads)
        if windows == (WINDOW_SIGMAS,):
            return one
        return WindowsDescriptor(one, windows, _stored_projection(one, windows))
    if text in _OPENCV:
        from hardnet.descriptors import opencv

        return opencv.load(text)
    if text in shipped_names():
        return NetDescriptor(WEIGHTS / f"{text}.onnx", threads)
    if Path(text).suffix.lower() in WEIGHTS_SUFFIXES:
        return NetDescriptor(Path(text), threads)
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

    A shipped network describes all its ``WINDOWS``, unless the name says which: ``hardnet@12``. It
    runs in 8 bits (``name-int8``) where it has such a form and the CPU prefers it; the environment
    variable ``HARDNET_PRECISION`` (float32 or int8) overrides this. If ``made_with``, the name in a
    file, is a form of the name, it stays: an index has one form on every machine.
    """
    wanted = os.environ.get(PRECISION) or "auto"
    if wanted not in ("auto", "float32", "int8"):
        raise HardnetError(f"{PRECISION} is {wanted!r}: choose auto, float32 or int8")
    network, at, windows = name.partition("@")
    usual = WINDOWS.get(network.removesuffix(_INT8), "")
    ends = [f"@{windows}"] if at else [f"@{usual}", ""] if usual else [""]
    has_int8 = f"{network}{_INT8}" in shipped_names()
    forms = [network, f"{network}{_INT8}"] if has_int8 else [network]
    if made_with in [form + end for form in forms for end in ends]:
        return str(made_with)
    takes_int8 = has_int8 and (wanted == "int8" or (wanted == "auto" and prefers_int8()))
    return (forms[-1] if takes_int8 else network) + ends[0]


@cache
def prefers_int8() -> bool:
    """Whether 8-bit integers are faster than floats: AVX2, VNNI, AMX or ARM's dot product."""
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
    """A name that was read from a file: one of :func:`names`, never a module or a path."""
    plain = split_windows(name)[0] if isinstance(name, str) else name
    check_registered(plain, "descriptor", names(), source, again)
    return str(name)


def names() -> list[str]:
    """The descriptors that need no file; some need OpenCV's contrib modules."""
    return sorted([*shipped_names(), *_OPENCV])


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


def unit_rows(vectors: NDArray[np.float32]) -> Descriptors:
    """(N, D) -> (N, D) of length 1; a zero row becomes the uniform vector 1/sqrt(D)."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    dim = vectors.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = np.where(length > _ZERO, vectors / length, np.float32(dim**-0.5))
    return unit.astype(np.float32, copy=False)


class NetDescriptor:
    """A network in a weights file; see :func:`load`.

    An ONNX file maps (N, 1, S, S) raw grey values to (N, D). Each of ``threads`` runs *small
    batches* through one shared single-threaded session: activations stay in the caches, and no
    thread waits for another at the end of a layer. The vector of a patch does not depend on its
    batch. PyTorch runs one batch after the other, on as many threads as it likes.
    """

    def __init__(self, path: Path, threads: int | None = None) -> None:
        if not path.is_file():
            raise HardnetError(f"no weights file {path}")
        self.path, self.name = path, path.stem
        self._onnx = path.suffix.lower() == ".onnx"
        self.threads = threads or usable_cores()
        opened = (_open_onnx if self._onnx else _open_torch)(path.resolve(), file_state(path))
        self._run, self.patch_size, self.dim, self.digest = opened
        self.weights = f"{'onnx' if self._onnx else 'torch'} {self.digest}"

    def __repr__(self) -> str:
        return f"Descriptor {self.name}: patches -> {self.dim}-D"

    def __call__(self, patches: ArrayLike) -> Descriptors:
        """(N, S, S) or (N, 1, S, S) grey patches -> (N, D) unit vectors."""
        checked = resize_patches(check_patches(patches), self.patch_size)
        out = np.empty((len(checked), self.dim), np.float32)
        threads, step = 1, _TORCH_BATCH
        if self._onnx:
            threads, (least, most) = self.threads, _ONNX_BATCHES
            step = min(max(-(-len(checked) // (4 * threads)), least), most)

        def describe(start: int) -> None:
            batch = checked[start : start + step, None].astype(np.float32, copy=False)
            try:
                rows = self._run(batch)
            except Exception as error:  # onnxruntime's errors share no public base class
                reason = str(error).partition("\n")[0]
                raise HardnetError(f"the network {self.name} cannot run: {reason}") from error
            if rows.shape != (len(batch), self.dim):
                given = counted(len(batch), "patch")
                raise HardnetError(f"the network {self.name} gives {rows.shape} for {given}")
            bad = ~np.isfinite(rows).all(axis=1)
            if bad.any():
                which = f"{bad.sum()} of {counted(len(batch), 'patch')}"
                raise HardnetError(
                    f"the network {self.name} gives NaN or infinity for {which}: its weights are "
                    "damaged, or its training left the finite numbers"
                )
            out[start : start + step] = unit_rows(rows.astype(np.float32, copy=False))

        map_threads(describe, range(0, len(checked), step), threads)
        return out


_Opened = tuple[Callable[[NDArray[np.float32]], NDArray[Any]], int, int, str]
"""The function of a network, S, D, and the digest of its weights file."""


@lru_cache(maxsize=8)
def _open_onnx(path: Path, _state: tuple[int, ...]) -> _Opened:
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
    read, given = (
        [value.shape for value in x] for x in (session.get_inputs(), session.get_outputs())
    )
    match [*read, *given]:
        case [[_, 1, int(side), int(height)], [_, int(dim)]] if side == height:
            name = session.get_inputs()[0].name
            # run releases Python's lock
            return lambda batch: session.run(None, {name: batch})[0], side, dim, file_digest(path)
    raise HardnetError(f"{path} maps {read} -> {given}; a descriptor maps [N, 1, S, S] -> [N, D]")


@lru_cache(maxsize=8)
def _open_torch(path: Path, _state: tuple[int, ...]) -> _Opened:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "train") from error
    from hardnet.nets import load_net

    net = load_net(path)

    def run(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return np.asarray(net(torch.from_numpy(batch)).numpy())

    return run, net.patch_size, net.dim, file_digest(path)


@dataclass(frozen=True)
class Projection:
    """(x - mean) matrix: K D numbers of K windows -> D, not yet of unit length."""

    mean: NDArray[np.float32]
    matrix: NDArray[np.float32]

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.mean.tobytes() + self.matrix.tobytes()).hexdigest()

    def __call__(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """(N, K D) vectors side by side -> (N, D)."""
        return np.asarray((vectors - self.mean) @ self.matrix, np.float32)


class WindowsDescriptor:
    """One descriptor of several windows of a keypoint, joined to one unit vector.

    ``hardnet@12+24+48`` joins three windows; ``rootsift@16`` is one that is not the default. A
    narrow window distinguishes keypoints where the scene has depth, a wide one where light has
    changed what is near. A projection of the vectors side by side keeps the D numbers that vary
    most among photographs. It lies beside the weights: ``hardnet.windows.npz`` is that of all forms
    of ``hardnet``. Without one, the windows are averaged.
    """

    def __init__(
        self, inner: Descriptor, windows: Sequence[float], projection: Projection | None = None
    ) -> None:
        text = windows_text(windows)
        if not 0 < min(windows) <= max(windows) <= LARGEST_WINDOW * min(windows):
            raise InputError(
                f"{inner.name}@{text}: give windows in sigmas of a keypoint, the widest at most "
                f"{LARGEST_WINDOW:g} times the narrowest"
            )
        self.name, self.dim = f"{inner.name}@{text}", inner.dim
        self.windows = tuple(windows)
        self.projection, self._inner = projection, inner
        if projection is not None:
            text += f"/{projection.digest}"
        digest = getattr(inner, "digest", "")
        self.digest = f"{digest}@{text}" if digest else ""
        self.weights = f"{getattr(inner, 'weights', '')}@{text}"

    def __repr__(self) -> str:
        return f"Descriptor {self.name}: patches -> {self.dim}-D"

    def __call__(self, patches: ArrayLike) -> NDArray[Any]:
        """(N, K, S, S) grey patches, one per window, -> (N, D) unit vectors.

        (N, S, S) and (N, 1, S, S) are patches of the widest window, the others are in the middle.
        """
        if len(self.windows) == 1:
            return self._inner(patches)
        each = self.side_by_side(patches)
        if self.projection is not None:
            return unit_rows(self.projection(each))
        return unit_rows(each.reshape(len(each), len(self.windows), self.dim).sum(axis=1))

    def side_by_side(self, patches: ArrayLike) -> NDArray[np.float32]:
        """Patches as for a call -> (N, K D), the unit vectors of all windows."""
        vectors = [self._inner(part) for part in self._split(patches)]
        if any(rows.dtype != np.float32 for rows in vectors):
            raise InputError(f"{self.name}: bits cannot be joined; give one window alone")
        return np.concatenate(vectors, axis=1)

    def _split(self, patches: ArrayLike) -> Iterator[NDArray[Any]]:
        given = np.asarray(patches)
        if given.ndim == 4 and given.shape[1] == len(self.windows):
            yield from given.swapaxes(0, 1)
            return
        wide = check_patches(patches)
        side = wide.shape[1]
        for window in self.windows:
            inset = round(side * (1 - window / max(self.windows)) / 2)
            yield wide[:, inset : side - inset, inset : side - inset]


def windows_text(windows: Iterable[float]) -> str:
    """(12.0, 24.0) -> "12+24"."""
    return "+".join(f"{window:g}" for window in windows)


def windows_file(weights: Path) -> Path:
    """Where the projections of a network lie; its forms share them."""
    return weights.with_name(weights.stem.removesuffix(_INT8) + ".windows.npz")


def _stored_projection(inner: Descriptor, windows: Sequence[float]) -> Projection | None:
    path = getattr(inner, "path", None)
    if path is None or len(windows) == 1 or not (file := windows_file(path)).is_file():
        return None
    projections, learned_for = _read_projections(file.resolve(), file_state(file))
    if getattr(inner, "digest", "") not in learned_for:
        raise HardnetError(
            f"{file} was learned for other weights than {path}: make it again by "
            "`hardnet export --windows`, or move it away"
        )
    text = windows_text(windows)
    found = projections.get(text)
    if found is not None and found.matrix.shape != (len(windows) * inner.dim, inner.dim):
        raise HardnetError(f"{file}: {text} is no projection of {path}")
    return found


@lru_cache(maxsize=8)
def _read_projections(
    path: Path, _state: tuple[int, ...]
) -> tuple[dict[str, Projection], frozenset[str]]:
    import zlib
    from zipfile import BadZipFile

    try:
        with np.load(path, allow_pickle=False) as file:
            texts = [name.removesuffix(".matrix") for name in file if name.endswith(".matrix")]
            found = {n: Projection(file[f"{n}.mean"], file[f"{n}.matrix"]) for n in texts}
            weights = frozenset(map(str, file["weights"]))
        for one in found.values():
            if one.mean.shape != one.matrix.shape[:1] or not np.isfinite(one.matrix).all():
                raise ValueError("its numbers are damaged")
        return found, weights
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        raise HardnetError(f"{path} cannot be read as projections of windows: {error}") from error


def learn_projection(vectors: NDArray[np.float32], dim: int) -> Projection:
    """Principal components of (N, K D) vectors of photographs, somewhat evened (``EVENNESS``)."""
    if len(vectors) < 2 * vectors.shape[1]:
        raise HardnetError(
            f"{len(vectors)} patches are too few for {vectors.shape[1]} numbers each: give more "
            "photographs"
        )
    mean = vectors.mean(axis=0, dtype=np.float64)
    spread, axes = np.linalg.eigh(np.cov(vectors.T.astype(np.float64)))
    spread, axes = spread[::-1][:dim], axes[:, ::-1][:, :dim]
    # The sign of an axis is the library's choice: fixed, so that machines agree.
    axes = axes * np.where(axes[np.abs(axes).argmax(axis=0), np.arange(dim)] < 0, -1, 1)
    scale = np.maximum(spread, spread[0] * 1e-6) ** (-EVENNESS / 2)
    return Projection(mean.astype(np.float32), (axes * scale).astype(np.float32))


def save_projections(
    path: Path, projections: Mapping[str, Projection], weights: Sequence[str]
) -> None:
    """Write projections, by the text of their windows, and the digests of their weights files."""
    arrays: dict[str, Any] = {"weights": np.array(weights)}
    for text, projection in projections.items():
        arrays |= {f"{text}.mean": projection.mean, f"{text}.matrix": projection.matrix}
    with path.open("wb") as file:
        np.savez(file, **arrays)
