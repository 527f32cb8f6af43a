"""The state of a run on disk: written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.storage import OwnedFolder, replacing

CHECKPOINT = "last.ckpt"


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that a kill or a full disk leaves the previous version in place.

    Args:
        path: the file.
        write: writes the content to the open file it is given.
    """
    owned = OwnedFolder.find(path.parent)
    if owned is not None:
        owned.claim(path.name)
    try:
        with replacing(path, owned) as part, part.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # PyTorch reports a failed write as RuntimeError
        raise failed_write(path, error) from error


def failed_write(path: Path, error: Exception) -> HardnetError:
    """The error to raise when ``path`` could not be replaced."""
    kept = "; the previous one is intact" if path.exists() else ""
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    return HardnetError(
        f"{path} could not be written ({reason}){kept}: make room and continue with --resume"
    )


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint of a run: step, seed, network, optimizer, average of the weights."""
    write_whole(folder / CHECKPOINT, lambda file: torch.save(state, file))


def read_state(folder: Path) -> dict[str, Any]:
    """Read the checkpoint of a run."""
    path = folder / CHECKPOINT
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        read = {key: state[key] for key in ("step", "seed", "net", "optimizer")}
        return read | {"average": state.get("average")}  # not in files of earlier versions
    except Exception as error:
        reason = str(error).splitlines()[0]
        raise HardnetError(f"{path} is not a checkpoint of a training run: {reason}") from error


def last_step(folder: Path) -> int | None:
    """The step of a run's checkpoint; None without one."""
    return int(read_state(folder)["step"]) if (folder / CHECKPOINT).exists() else None


def write_mined(folder: Path, epoch: int, mined: NDArray[np.int64]) -> None:
    """Keep the hard negatives of an epoch: a run resumed in its middle needs them."""
    OwnedFolder.mark(folder)  # so that it can be dropped
    write_whole(_mined_file(folder, epoch), lambda file: np.save(file, mined))


def read_mined(folder: Path, epoch: int) -> NDArray[np.int64]:
    """The (N,) hard negatives that :func:`write_mined` kept."""
    path = _mined_file(folder, epoch)
    try:
        mined: NDArray[np.int64] = np.load(path)
    except (OSError, ValueError) as error:
        raise HardnetError(
            f"{path}, the mined negatives of the checkpoint's epoch, cannot be read ({error}): "
            "restore it, or begin again in another --output"
        ) from error
    return mined


def drop_mined(folder: Path, before: int) -> None:
    """Remove the hard negatives of epochs that no checkpoint needs any more."""
    owned = OwnedFolder.mark(folder)
    for name in owned.names(".npy"):
        epoch = name.removeprefix("mined-").removesuffix(".npy")
        if epoch.isdecimal() and int(epoch) < before:
            owned.remove(name)


def _mined_file(folder: Path, epoch: int) -> Path:
    return folder / f"mined-{epoch}.npy"
