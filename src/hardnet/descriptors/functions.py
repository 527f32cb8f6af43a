"""Your own descriptor: ``module:function``, a Python function from patches to an array.

The function gets (N, S, S) uint8 patches as they are on disk, resized to (N, P, P) if it has an
attribute ``patch_size = P``, in portions of at most 1024, and returns (N, D): floating point
numbers are compared by L2 as they are (they are not scaled to unit length: that would change the
metric), uint8 is taken as packed bits and compared by Hamming distance.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.descriptors import check_patches, grey_bytes, resize_patches
from hardnet.errors import HardnetError, counted
from hardnet.provenance import probe_patches
from hardnet.storage import file_digest, find_code

PORTION = 1024

Function = Callable[[NDArray[np.uint8]], Any]


class FunctionDescriptor:
    """A function that is named ``module:function``; see :func:`hardnet.storage.find_code`."""

    def __init__(self, spec: str) -> None:
        self.name = spec
        self._function = find_function(spec)
        size = getattr(self._function, "patch_size", None)
        if size is not None and (not isinstance(size, int) or size < 1):
            raise HardnetError(f"{spec} has patch_size {size!r}; it must be a number of pixels")
        self._patch_size: int | None = size

    @cached_property
    def weights(self) -> str:
        """The name of the function, and what its source and the files around it contain."""
        module, _, path = self.name.partition(":")
        files = _sources(module)
        with suppress(TypeError):  # functools.partial, objects that can be called, ...
            if (found := inspect.getsourcefile(inspect.unwrap(self._function))) is not None:
                files.add(Path(found).resolve())
        digests = sorted({file_digest(file) for file in files if file.is_file()})
        return f"{path} in source {' '.join(digests)}"

    @cached_property
    def _row(self) -> tuple[int, np.dtype[Any]]:
        probe = self._describe(_resized(probe_patches()[:1], self._patch_size))
        return probe.shape[1], probe.dtype

    @property
    def dim(self) -> int:
        """Length of a vector, or number of bits."""
        width, kind = self._row
        return width * 8 if kind == np.uint8 else width

    def __call__(self, patches: ArrayLike) -> NDArray[Any]:
        """(N, S, S) or (N, 1, S, S) patches of grey values 0..255 -> (N, D) float32 or bits."""
        grey = _resized(grey_bytes(check_patches(patches)), self._patch_size)
        if not len(grey):
            width, kind = self._row
            return np.empty((0, width), kind)
        parts = [self._describe(grey[i : i + PORTION]) for i in range(0, len(grey), PORTION)]
        if len({(part.shape[1], part.dtype) for part in parts}) > 1:
            found = ", ".join(f"{part.dtype} of length {part.shape[1]}" for part in parts)
            raise HardnetError(f"{self.name} returned rows of different kinds: {found}")
        return np.concatenate(parts)

    def _describe(self, grey: NDArray[np.uint8]) -> NDArray[Any]:
        try:
            returned = self._function(grey)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise HardnetError(
                f"{self.name} failed on patches of shape {grey.shape} and type uint8: {reason}"
            ) from error
        try:
            rows: NDArray[Any] = np.asarray(returned)
        except Exception as error:
            raise HardnetError(f"{self.name} returned no array: {error}") from error
        if rows.ndim != 2 or len(rows) != len(grey) or not rows.shape[1]:
            what = f"shape {rows.shape}" if rows.ndim else f"a {type(returned).__name__}"
            wanted = f"({len(grey)}, D) for {counted(len(grey), 'patch')}"
            raise HardnetError(f"{self.name} must return {wanted}, got {what}")
        if rows.dtype == np.uint8:
            return rows
        if not np.issubdtype(rows.dtype, np.floating):
            raise HardnetError(
                f"{self.name} returned {rows.dtype}; it must return floating point numbers, "
                "or packed bits as uint8"
            )
        rows = rows.astype(np.float32, copy=False)
        bad = ~np.isfinite(rows).all(1)
        if bad.any():
            which = f"{bad.sum()} of {counted(len(rows), 'patch')}"
            raise HardnetError(f"{self.name} returned NaN or infinity for {which}")
        return rows


def find_function(spec: str) -> Function:
    """What ``module:function`` names; the function may be ``object.method``."""
    found = find_code(spec)
    if inspect.isclass(found) or not callable(found):
        kind = "a class" if inspect.isclass(found) else f"a {type(found).__name__}"
        raise HardnetError(f"{spec} is {kind}; give a function from patches to descriptors")
    function: Function = found
    return function


def _sources(module_name: str) -> set[Path]:
    """The files of a module and of all that is loaded from its folder: helpers count as well.

    For a module that is installed as a single file, that is the file alone.
    """
    top = sys.modules[module_name.partition(".")[0]]
    file = getattr(sys.modules[module_name], "__file__", None)
    if file is None:
        return set()
    folder = Path(getattr(top, "__file__", None) or file).resolve().parent
    files = {Path(file).resolve()}
    if folder.name not in ("site-packages", "dist-packages"):
        loaded = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
        found = [Path(name) for name in loaded if name and name.endswith(".py")]
        # Folders, not files: there are thousands of modules, and links take the disk's time.
        real = {place: place.resolve() for place in {path.parent for path in found}}
        inside = {place for place, at in real.items() if folder in (at, *at.parents)}
        files |= {real[path.parent] / path.name for path in found if path.parent in inside}
    return files


def _resized(grey: NDArray[np.uint8], size: int | None) -> NDArray[np.uint8]:
    return grey if size is None else np.asarray(resize_patches(grey, size), np.uint8)
