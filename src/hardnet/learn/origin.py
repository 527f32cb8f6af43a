"""Where the weights of a run come from: ``provenance.json`` beside them, and in their metadata."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hardnet import provenance
from hardnet.errors import HardnetError
from hardnet.learn.checkpoint import write_whole
from hardnet.learn.recipe import Recipe
from hardnet.provenance import data_digest

ORIGIN = "provenance.json"


def record_origin(folder: Path, recipe: Recipe, step: int) -> dict[str, Any]:
    """Write the facts of a run that begins; check and extend those of a run that goes on.

    Args:
        folder: of the run.
        recipe: its settings.
        step: where it goes on; 0 for a new run.

    Returns:
        Command, settings, data (one fingerprint per set), machine, versions, revision, date; and
        ``resumed``: the same facts, without settings and data, of each time it went on.
    """
    facts = provenance.collect(provenance.command_line(), _settings(recipe))
    facts["data"] = [_data_facts(name) for name in recipe.data]
    facts["resumed"] = []
    path = folder / ORIGIN
    if step and path.exists():
        begun = _read(path)
        for was, now in zip(begun["data"], facts["data"], strict=True):
            if was["sha256"] != now["sha256"]:
                raise HardnetError(
                    f"the patch set {now['name']} has changed since {folder} was begun: "
                    "train in another --output, or restore the set"
                )
        again = {k: v for k, v in facts.items() if k not in ("settings", "data", "resumed")}
        begun["resumed"].append({"step": step, **again})
        facts = begun
    write_whole(path, lambda file: file.write(f"{json.dumps(facts, indent=1)}\n".encode()))
    return facts


def _settings(recipe: Recipe) -> dict[str, Any]:
    settings = asdict(recipe)
    settings["data"] = [provenance.without_folders(name) for name in recipe.data]
    for key in ("validation", "init"):
        settings[key] = provenance.without_folders(settings[key])
    return settings


def _data_facts(name: str) -> dict[str, Any]:
    """DataDigest of one training set; a set that is no folder, made by a program, has none."""
    folder = Path(name)
    if not folder.exists():
        folder = Path(name.rpartition(":")[0] or name)  # FOLDER:SPLIT
    shown = provenance.without_folders(name)
    if not folder.exists():
        return {"name": shown, "sha256": None, "files": 0}
    found = data_digest(folder)
    return {"name": shown, "sha256": found.sha256, "files": found.files}


def _read(path: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise HardnetError(f"{path} cannot be read: {error}; restore or remove it") from error
    return facts
