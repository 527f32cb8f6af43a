"""The files of a run: those it begins with, goes on from, and ends with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from hardnet.errors import HardnetError
from hardnet.learn.checkpoint import CHECKPOINT, failed_write, read_state
from hardnet.learn.origin import ORIGIN, record_origin
from hardnet.learn.recipe import Recipe, refuse_changes, write_recipe
from hardnet.learn.runlog import LOG
from hardnet.nets import Net, build_net
from hardnet.nets.checkpoints import read_checkpoint, save_checkpoint
from hardnet.storage import FolderLock, OwnedFolder, replacing

RECIPE = "recipe.yaml"
PATIENCE = 10.0
"""Seconds: so long may a process of a killed run take to notice that it is to end."""


def open_run(
    folder: Path, recipe: Recipe, resume: bool, lock: FolderLock
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Begin a run, or go on with one; its resolved recipe and its origin are written.

    Args:
        folder: of the run; made if absent.
        recipe: the settings.
        resume: go on from the folder's checkpoint; otherwise a folder with one is refused.
        lock: of the folder; it is held when this returns.

    Returns:
        The checkpoint to go on from (None for a new run), and the facts of the run's origin.
    """
    if folder.exists() and not folder.is_dir():
        raise HardnetError(f"{folder} is a file: name the folder of the run with --output")
    if resume and not (folder / CHECKPOINT).exists():
        raise HardnetError(f"{folder} has no {CHECKPOINT} to resume from")
    folder.mkdir(parents=True, exist_ok=True)
    if not lock.take(PATIENCE):
        raise HardnetError(
            f"another process is training in {folder}: wait for its end or stop it, or use another "
            "--output"
        )
    try:
        return _open_locked(folder, recipe, resume)
    except BaseException:
        lock.release()
        raise


def _open_locked(
    folder: Path, recipe: Recipe, resume: bool
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    state = None
    if (folder / CHECKPOINT).exists():
        if not resume:
            raise HardnetError(f"{folder} holds a run already; continue it with --resume")
        state = read_state(folder)
        if state["seed"] != recipe.seed:
            raise HardnetError(
                f"{folder / CHECKPOINT} was made with seed {state['seed']}; resume with that seed"
            )
        if (folder / RECIPE).exists():
            refuse_changes(folder / RECIPE, recipe)
    _own(folder, recipe, state is not None)
    facts = record_origin(folder, recipe, state["step"] if state else 0)
    write_recipe(recipe, folder / RECIPE)
    return state, facts


def _own(folder: Path, recipe: Recipe, begun: bool) -> None:
    """Say which files of the folder are ours; files of others with their names are an error."""
    names = (CHECKPOINT, RECIPE, ORIGIN, LOG, weights_file(folder, recipe).name)
    marked = OwnedFolder.find(folder) is not None
    owned = OwnedFolder.mark(folder)
    if begun and not marked:  # by a version without lists of files: its checkpoint is the proof
        owned.adopt(*names)
    owned.sweep()
    for name in names:
        owned.claim(name)


def first_net(recipe: Recipe, resume: bool, device: torch.device) -> Net:
    """The network with the weights a run begins with; a resumed run replaces them."""
    torch.manual_seed(recipe.seed)
    net = build_net(recipe.net, recipe.dropout)
    if recipe.init and not resume:
        stored = read_checkpoint(recipe.init)
        if stored.net != recipe.net:
            raise HardnetError(
                f"init: {recipe.init} holds weights of {stored.net}, and the recipe trains "
                f"{recipe.net}: use --set net={stored.net}, or other weights"
            )
        net.load_state_dict(stored.state)
    # Channels last is the layout oneDNN and cuDNN convolve in: no reordering at each layer.
    net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net


def weights_file(folder: Path, recipe: Recipe) -> Path:
    """Where the final weights of a run are."""
    return folder / f"{recipe.net}.safetensors"


def write_weights(
    folder: Path, net: Net, recipe: Recipe, pairs: int, facts: dict[str, Any]
) -> None:
    """Write the final weights, with the origin of the run as their metadata."""
    path = weights_file(folder, recipe)
    origin = {key: value for key, value in facts.items() if key != "settings"}
    metadata = {"recipe": facts["settings"], "pairs": pairs, **origin}
    try:
        with replacing(path) as part:
            save_checkpoint(part, net, recipe.net, metadata)
    except (OSError, SafetensorError) as error:
        raise failed_write(path, error) from error
