"""Lists that take long to draw or to read, kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import TypeVar
from zipfile import BadZipFile

import numpy as np

from hardnet.bench.hpatches.drawing import PairLists, RetrievalLists
from hardnet.patchsets.cache import replacing, user_cache

Lists = TypeVar("Lists", PairLists, RetrievalLists)


def remembered(kind: type[Lists], key: list[object], make: Callable[[], Lists]) -> Lists:
    """What ``make`` gives, from the cache if it was made before.

    Args:
        kind: type of the lists.
        key: everything they depend on, as JSON values.
        make: called if they are not stored.
    """
    digest = hashlib.sha256(json.dumps([kind.__name__, *key]).encode()).hexdigest()
    path = user_cache() / "hpatches-lists" / f"{digest[:16]}.npz"
    try:
        with np.load(path) as stored:
            return kind(**{field.name: stored[field.name] for field in fields(kind)})
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        pass  # absent or broken: made again
    lists = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part, part.open("wb") as stream:
            np.savez(stream, **asdict(lists))
    except OSError:
        pass  # a cache that cannot be written costs time, not the result
    return lists
