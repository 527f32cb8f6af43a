"""Features of one image in one ``.npz`` file: plain numpy, read without pickle.

>>> from hardnet.interop import npz
>>> features = npz.read_features("feats/left.jpg.npz")  # doctest: +SKIP
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.interop.entry import ARRAYS, FACTS, Entry, Fact, from_entry, to_entry
from hardnet.storage import OwnedFolder, as_path, replacing

SUFFIX = ".npz"


def write_features(path: str | os.PathLike[str], features: Features, *, half: bool = False) -> None:
    """Write a file that is either whole or not there.

    Args:
        path: ends in ``.npz``; its folder is made if it is missing.
        features: of one image.
        half: descriptors as float16: half the size, three digits.
    """
    path = as_path(path)
    write_entry(path, to_entry(features, path.parent, half))


def read_features(path: str | os.PathLike[str]) -> Features:
    """Features as :func:`write_features` or ``hardnet extract`` wrote them."""
    path = as_path(path)
    name = path.name.removesuffix(SUFFIX)
    return from_entry(read_entry(path), path.parent, str(path), descriptor=name)


def write_entry(path: Path, entry: Entry, owned: OwnedFolder | None = None) -> None:
    """Write an entry; raises OSError if the disk does not take it.

    Args:
        path: of the file.
        entry: the content.
        owned: the folder that the file is in; see :func:`hardnet.storage.replacing`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {name: np.array(value) for name, value in entry.facts.items()}
    with replacing(path, owned) as part, part.open("wb") as stream:
        np.savez(stream, **content | dict(entry.arrays))


def read_entry(path: Path, names: tuple[str, ...] = ARRAYS + FACTS) -> Entry:
    """Read an entry, or only what is called ``names``."""
    try:
        with np.load(path, allow_pickle=False) as file:
            found: dict[str, NDArray[Any]] = {n: file[n] for n in names if n in file}
    except FileNotFoundError as error:
        raise HardnetError(f"{path} does not exist: check the path") from error
    except (OSError, ValueError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise HardnetError(f"{path} is not a file of features: {error}") from error
    facts: dict[str, Fact] = {name: found.pop(name).item() for name in FACTS if name in found}
    return Entry(found, facts)
