"""One vector for several windows of a keypoint.

A narrow window tells keypoints apart where the scene has depth, a wide one where light has changed
what is near. What a network says of each window is put side by side, and a projection makes the D
numbers of it that vary most among photographs. The projection belongs to the weights and lies
beside them: ``hardnet.windows.npz`` is that of ``hardnet.onnx``, ``hardnet-int8.onnx`` and
``hardnet.safetensors``. Where there is none, the windows are averaged.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.descriptors import Descriptor, check_patches, unit_rows
from hardnet.errors import HardnetError, InputError
from hardnet.storage import file_state

SUFFIX = ".windows.npz"
LARGEST_WINDOW = 4.0
"""How many times as wide as the narrowest window of a descriptor the widest may be."""

EVENNESS = 0.25
"""How far the projection evens out the spread of its numbers: 0 not at all, 1 whitens them."""

_WEIGHTS = "weights"


@dataclass(frozen=True)
class Projection:
    """(x - mean) matrix: K D numbers of K windows -> D, not yet of unit length."""

    mean: NDArray[np.float32]
    matrix: NDArray[np.float32]

    @property
    def digest(self) -> str:
        """Of its values."""
        return hashlib.sha256(self.mean.tobytes() + self.matrix.tobytes()).hexdigest()

    def __call__(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """(N, K D) vectors side by side -> (N, D)."""
        return np.asarray((vectors - self.mean) @ self.matrix, np.float32)


class WindowsDescriptor:
    """What one descriptor says about several windows of a keypoint, in one unit vector.

    ``hardnet@12+24+48`` joins three windows; ``rootsift@16`` is one that is not the default.

    Attributes:
        windows: in sigmas: which patches are cut.
        projection: how their vectors are joined; None: averaged.
    """

    def __init__(
        self, inner: Descriptor, windows: Sequence[float], projection: Projection | None = None
    ) -> None:
        widest, narrowest = max(windows), min(windows)
        text = windows_text(windows)
        if not 0 < narrowest <= widest <= LARGEST_WINDOW * narrowest:
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


def join_windows(inner: Descriptor, windows: Sequence[float]) -> WindowsDescriptor:
    """A descriptor of several windows, with the projection that lies beside its weights, if any."""
    path = getattr(inner, "path", None)
    projection = None
    if path is not None and len(windows) > 1:
        kept = stored_projections(path, getattr(inner, "digest", ""))
        projection = kept.get(windows_text(windows))
        shape = (len(windows) * inner.dim, inner.dim)
        if projection is not None and projection.matrix.shape != shape:
            raise HardnetError(
                f"{windows_file(path)}: {windows_text(windows)} is no projection of {path}"
            )
    return WindowsDescriptor(inner, windows, projection)


def stored_projections(weights: Path, digest: str) -> dict[str, Projection]:
    """The projections that lie beside a weights file, by the text of their windows.

    Those of weights with another ``digest`` are an error.
    """
    file = windows_file(weights)
    if not file.is_file():
        return {}
    kept = _read(file.resolve(), file_state(file))
    if digest not in kept.weights:
        raise HardnetError(
            f"{file} was learned for other weights than {weights}: make it again by "
            "`hardnet export --windows`, or move it away"
        )
    return kept.projections


def learn_projection(vectors: NDArray[np.float32], dim: int) -> Projection:
    """The projection to ``dim`` numbers that keeps most of (N, K D) vectors of photographs.

    Principal components; where a few of them vary much more than the others, those are held back
    a little (``EVENNESS``).
    """
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


def windows_text(windows: Iterable[float]) -> str:
    """(12.0, 24.0) -> "12+24"."""
    return "+".join(f"{window:g}" for window in windows)


def windows_file(weights: Path) -> Path:
    """Where the projections of a network lie; its forms share them."""
    return weights.with_name(weights.stem.removesuffix("-int8") + SUFFIX)


def save_projections(
    path: Path, projections: Mapping[str, Projection], weights: Sequence[str]
) -> None:
    """Write projections, by the text of their windows, and the digests of the weights files."""
    arrays: dict[str, Any] = {_WEIGHTS: np.array(weights)}
    for text, projection in projections.items():
        arrays |= {f"{text}.mean": projection.mean, f"{text}.matrix": projection.matrix}
    with path.open("wb") as file:
        np.savez(file, **arrays)


@dataclass(frozen=True)
class _Kept:
    weights: frozenset[str]
    projections: dict[str, Projection]


@lru_cache(maxsize=8)
def _read(path: Path, _state: tuple[int, ...]) -> _Kept:
    try:
        with np.load(path, allow_pickle=False) as file:
            names = [name.removesuffix(".matrix") for name in file if name.endswith(".matrix")]
            found = {n: Projection(file[f"{n}.mean"], file[f"{n}.matrix"]) for n in names}
            weights = frozenset(map(str, file[_WEIGHTS]))
        for one in found.values():
            if one.mean.shape != one.matrix.shape[:1] or not np.isfinite(one.matrix).all():
                raise ValueError("its numbers are damaged")
        return _Kept(weights, found)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error) as error:
        raise HardnetError(f"{path} cannot be read as projections of windows: {error}") from error
