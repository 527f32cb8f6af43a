"""Descriptors that are networks: an ONNX file run by onnxruntime, a weights file run by PyTorch."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from hardnet.descriptors.base import Descriptors, check_patches, finite_rows, resize_patches
from hardnet.errors import HardnetError, MissingExtraError
from hardnet.storage import file_digest, file_state
from hardnet.threads import usable_cores

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

    from hardnet.nets import Net

_ONNX_BATCH = 16
_TORCH_BATCH = 128


class OnnxDescriptor:
    """A network in an ONNX file with input (N, 1, S, S) float and output (N, D) float.

    The way HardNet is shipped: the graph holds everything from raw grey values to unit vectors.
    Parallel over *small batches*, not inside layers: every thread runs whole batches of 16 patches
    through one shared single-threaded session. The activations of a batch stay close to the caches,
    threads never wait for each other at layer ends (which costs most when the machine is shared),
    and memory does not grow with the number of patches.

    Args:
        path: the ``.onnx`` file.
        name: what to call it; the file's stem by default.
        threads: how many batches run at the same time; all usable cores by default.
    """

    def __init__(
        self, path: Path | str, name: str | None = None, threads: int | None = None
    ) -> None:
        path = Path(path)
        self.name = name or path.stem
        self.threads = threads or usable_cores()
        if not path.is_file():
            raise HardnetError(f"no weights file {path}")
        self._session, digest = _open_onnx(path.resolve(), file_state(path))
        self._input = self._session.get_inputs()[0].name
        self.patch_size, self.dim = _sizes(self._session, path)
        self.digest, self.weights = digest, f"onnx {digest}"

    def __call__(self, patches: ArrayLike) -> Descriptors:
        """(N, S, S) or (N, 1, S, S) grey patches -> (N, D) unit vectors."""
        checked = resize_patches(check_patches(patches), self.patch_size)
        out = np.empty((len(checked), self.dim), np.float32)

        def describe(start: int) -> None:
            batch = checked[start : start + _ONNX_BATCH, None].astype(np.float32, copy=False)
            try:
                described = self._session.run(None, {self._input: batch})[0]
            except Exception as error:  # onnxruntime's errors share no public base class
                reason = str(error).partition("\n")[0]
                raise HardnetError(f"the network {self.name} cannot run: {reason}") from error
            if described.shape != (len(batch), self.dim):
                raise HardnetError(
                    f"the network {self.name} gives {described.shape} for {len(batch)} patches"
                )
            out[start : start + _ONNX_BATCH] = finite_rows(described, self.name)

        starts = range(0, len(checked), _ONNX_BATCH)
        threads = min(self.threads, len(starts))
        if threads <= 1:
            for start in starts:
                describe(start)
            return out
        with ThreadPoolExecutor(threads) as pool:  # session.run releases the GIL
            for _ in pool.map(describe, starts):
                pass
        return out


@lru_cache(maxsize=8)
def _open_onnx(path: Path, _state: tuple[int, ...]) -> tuple[InferenceSession, str]:
    """The network of a file and the digest of its weights, kept while the file stays the same."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors only; they are raised as well
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
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
        self._net, digest = _open_torch(Path(path).resolve(), file_state(Path(path)))
        self.name = name or Path(path).stem
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
    from hardnet.nets.checkpoints import load_net

    return load_net(path), file_digest(path)
