"""Any weights file of a registered network, run by PyTorch: for training code and experiments."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hardnet.descriptors.base import Descriptors, check_patches, resize_patches, unit_rows
from hardnet.descriptors.digest import file_state
from hardnet.errors import HardnetError, MissingExtraError
from hardnet.storage import file_digest

if TYPE_CHECKING:
    from hardnet.nets import Net

BATCH = 128


class TorchDescriptor:
    """A network of ``hardnet.nets`` with weights from a file.

    Args:
        path: ``.safetensors`` or a published state dict (``.pth``, ``.pt``, ``.params``).
        name: what to call it; the file's stem by default.
    """

    def __init__(self, path: Path | str, name: str | None = None) -> None:
        if not Path(path).is_file():
            raise HardnetError(f"no weights file {path}")
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("torch", "train") from error
        self._torch = torch
        self._net, digest = _opened(Path(path).resolve(), file_state(Path(path)))
        self.name = name or Path(path).stem
        self.dim = self._net.dim
        self.weights = f"torch {digest}"

    def __call__(self, patches: ArrayLike) -> Descriptors:
        """(N, S, S) or (N, 1, S, S) grey patches -> (N, D) unit vectors."""
        checked = resize_patches(check_patches(patches), self._net.patch_size)
        out = np.empty((len(checked), self.dim), np.float32)
        with self._torch.inference_mode():
            for start in range(0, len(checked), BATCH):
                batch = checked[start : start + BATCH, None].astype(np.float32)
                described = self._net(self._torch.from_numpy(batch)).numpy()
                out[start : start + BATCH] = unit_rows(described)
        return out


@lru_cache(maxsize=8)
def _opened(path: Path, _state: tuple[int, ...]) -> tuple[Net, str]:
    """The network of a file and the digest of its weights, kept while the file stays the same."""
    from hardnet.nets.checkpoints import load_net

    return load_net(path), file_digest(path)
