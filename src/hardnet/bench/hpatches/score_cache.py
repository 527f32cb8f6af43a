"""Scores that were computed before, for the same descriptors, lists, settings and code.

The tasks take half a minute per descriptor at full size; a table that is made again, or made
longer by one descriptor, should not pay for the others once more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hardnet.bench import bootstrap, metrics
from hardnet.bench.hpatches.run import Settings
from hardnet.bench.hpatches.tasks import Tasks
from hardnet.errors import HardnetError
from hardnet.matching import distances
from hardnet.patchsets.cache import replacing

FOLDER = "scores"


def stored_scores(
    folder: Path,
    identity: str,
    tasks: Tasks,
    settings: Settings,
    compute: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """The results of one descriptor, computed if they are not stored yet.

    Args:
        folder: of the store.
        identity: of the descriptors: what made them, of which patches, under which label.
        tasks: the lists.
        settings: of the tasks.
        compute: makes the results.
    """
    path = folder / FOLDER / f"{_key(identity, tasks, settings)}.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    except (OSError, ValueError):
        pass  # absent, or cut short by a crash of the machine: compute
    results = compute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_text(json.dumps(results))
    except OSError as error:
        raise HardnetError(
            f"{path.parent} cannot be written ({error.strerror}): choose another with --store"
        ) from error
    return results


def _key(identity: str, tasks: Tasks, settings: Settings) -> str:
    digest = hashlib.sha256(json.dumps([identity, asdict(settings), tasks.facts()]).encode())
    digest.update(json.dumps([tasks.names, tasks.counts]).encode())
    for rows in (*vars(tasks.pairs).values(), *vars(tasks.retrieval).values()):
        digest.update(np.ascontiguousarray(rows).data)
    # Corrected code must not show the numbers of the code before.
    others = [Path(str(module.__file__)) for module in (bootstrap, metrics, distances)]
    for source in (*sorted(Path(__file__).parent.glob("*.py")), *others):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:24]
