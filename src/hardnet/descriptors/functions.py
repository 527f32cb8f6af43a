"""A user's descriptor: ``module:function``, a Python function from patches to an array.

The function gets (N, S, S) uint8 patches as they are on disk, resized to (N, P, P) if it has an
attribute ``patch_size = P``, in portions of at most 1024, and returns (N, D): floating point
numbers are compared by L2 as they are (they are not scaled to unit length: that would change the
metric), uint8 is taken as packed bits and compared by Hamming distance.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.errors import HardnetError, counted
from hardnet.frames import check_patches, grey_bytes, resize_patches
from hardnet.image_files import file_digest
from hardnet.provenance import probe_patches
from hardnet.storage import find_code

PORTION = 1024


class FunctionDescriptor:
    """A function that is named ``module:function``; see :func:`hardnet.storage.find_code`."""

    def __init__(self, spec: str) -> None:
        found = find_code(spec)
        if inspect.isclass(found) or not callable(found):
            kind = "a class" if inspect.isclass(found) else f"a {type(found).__name__}"
            raise HardnetError(f"{spec} is {kind}; give a function from patches to descriptors")
        size = getattr(found, "patch_size", None)
        if size is not None and (not isinstance(size, int) or size < 1):
            raise HardnetError(f"{spec} has patch_size {size!r}; it must be a number of pixels")
        self.name, self._function, self._patch_size = spec, found, size

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
        probe = self._describe(probe_patches()[:1])
        return probe.shape[1], probe.dtype

    @property
    def dim(self) -> int:
        width, kind = self._row
        return width * 8 if kind == np.uint8 else width

    def __call__(self, patches: ArrayLike) -> NDArray[Any]:
        """(N, S, S) or (N, 1, S, S) patches of grey values 0..255 -> (N, D) float32 or bits."""
        grey = grey_bytes(check_patches(patches))
        if not len(grey):
            width, kind = self._row
            return np.empty((0, width), kind)
        parts = [self._describe(grey[i : i + PORTION]) for i in range(0, len(grey), PORTION)]
        if len({(part.shape[1], part.dtype) for part in parts}) > 1:
            found = ", ".join(f"{part.dtype} of length {part.shape[1]}" for part in parts)
            raise HardnetError(f"{self.name} returned rows of different kinds: {found}")
        return np.concatenate(parts)

    def _describe(self, grey: NDArray[np.uint8]) -> NDArray[Any]:
        if self._patch_size is not None:
            grey = np.asarray(resize_patches(grey, self._patch_size), np.uint8)
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
