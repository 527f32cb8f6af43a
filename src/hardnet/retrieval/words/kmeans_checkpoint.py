"""The state of a training between two iterations, as one file."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hardnet.errors import HardnetError


def write(
    path: Path, words: NDArray[np.float32], iterations: int, identity: Mapping[str, Any]
) -> None:
    """Replace the file at once: whoever is killed here leaves the old one or the new one.

    Args:
        path: the file.
        words: (K, D) after so many iterations.
        iterations: how many.
        identity: what the training is of; only the same one can go on.
    """
    facts = {"iterations": str(iterations), "identity": json.dumps(identity, sort_keys=True)}
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(save({"words": np.ascontiguousarray(words)}, facts))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path, identity: Mapping[str, Any]) -> tuple[NDArray[np.float32], int] | None:
    """The words (K, D) and how many iterations made them; None if it is of another training."""
    try:
        with safe_open(str(path), framework="numpy") as stored:
            facts: dict[str, str] = stored.metadata() or {}
            if facts.get("identity") != json.dumps(identity, sort_keys=True):
                return None
            return stored.get_tensor("words"), int(facts["iterations"])
    except (SafetensorError, OSError) as error:
        raise HardnetError(f"{path} is not a readable checkpoint, delete it: {error}") from error
