"""The folder of a run: its lock, recipe, checkpoint, log and provenance; and how a run is stopped.

Every file is written completely or not at all. A run stops between two steps, never within one.
"""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError

from hardnet import provenance
from hardnet.errors import HardnetError
from hardnet.learn.recipe import ORIGIN, Recipe, refuse_changes
from hardnet.learn.teacher import load_teacher, weights_of
from hardnet.nets import NETS, Net, find_net, read_checkpoint, save_checkpoint
from hardnet.patchsets.patchset import folder_and_split
from hardnet.storage import FolderLock, OwnedFolder, replacing

RECIPE, LOG = "recipe.yaml", "log.csv"
CHECKPOINT, PREVIOUS = "last.ckpt", "previous.ckpt"
PATIENCE = 10.0  # seconds that a process of a killed run may take to notice and end
COLUMNS = (
    "step",
    "pairs",
    "lr",
    "loss",
    "positive",
    "negative",
    "pairs_per_second",
    "fpr95",
    "teacher",
)


def open_run(
    folder: Path, recipe: Recipe, resume: bool, lock: FolderLock
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Start a run, or continue one from its checkpoint, with the lock held.

    Returns the checkpoint (None for a new run) and the facts of the run's origin.
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
        state = None
        if (folder / CHECKPOINT).exists():
            if not resume:
                raise HardnetError(f"{folder} holds a run already; continue it with --resume")
            state = read_state(folder)
            if state["seed"] != recipe.seed:
                made = f"was made with seed {state['seed']}; resume with that seed"
                raise HardnetError(f"{folder / CHECKPOINT} {made}")
            if (folder / RECIPE).exists():
                refuse_changes(folder / RECIPE, recipe)
        names = (CHECKPOINT, PREVIOUS, RECIPE, ORIGIN, LOG, weights_file(folder, recipe).name)
        marked = OwnedFolder.find(folder) is not None
        owned = OwnedFolder.mark(folder)
        if state and not marked:  # version 0.1 kept no list; the checkpoint proves it is ours
            owned.adopt(*names)
        owned.sweep()
        for name in names:
            owned.claim(name)
        facts = record_origin(folder, recipe, state["step"] if state else 0)
        write_recipe(recipe, folder / RECIPE)
        return state, facts
    except BaseException:
        lock.release()
        raise


def first_net(recipe: Recipe, resume: bool, device: torch.device) -> Net:
    """The network with the weights a run starts from; a resumed run replaces them."""
    torch.manual_seed(recipe.seed)
    kind = find_net(recipe.net)
    net = kind(recipe.dropout)
    if recipe.init and not resume:
        stored = read_checkpoint(recipe.init, None if recipe.net in NETS else (recipe.net, kind))
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
    return folder / f"{recipe.net.rpartition(':')[2]}.safetensors"


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


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that a kill or a full disk leaves the previous version in place."""
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
    kept = "; the previous one is intact" if path.exists() else ""
    reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
    begun = (path.parent / CHECKPOINT).exists()
    advice = "continue with --resume" if begun else "start again: nothing was saved yet"
    return HardnetError(f"{path} could not be written ({reason}){kept}: free space and {advice}")


def write_recipe(recipe: Recipe, path: Path) -> None:
    """Write the resolved recipe as YAML; a run is resumed with it."""
    from omegaconf import OmegaConf

    text = OmegaConf.to_yaml(OmegaConf.structured(recipe))
    write_whole(path, lambda file: file.write(text.encode()))


def write_state(folder: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint; the previous one is kept in case the new one is damaged on disk."""
    path, before = folder / CHECKPOINT, folder / PREVIOUS
    if path.exists():
        try:
            with replacing(before) as part:
                part.unlink()
                os.link(path, part)
        except OSError:  # a disk without links
            content = path.read_bytes()
            write_whole(before, lambda file: file.write(content))
    write_whole(path, lambda file: torch.save(state, file))


def read_state(folder: Path) -> dict[str, Any]:
    """The checkpoint of a run; if it is damaged, the previous one, with a warning."""
    try:
        return _read_state(folder / CHECKPOINT)
    except HardnetError as error:
        if not (folder / PREVIOUS).exists():
            raise
        state = _read_state(folder / PREVIOUS)
        warnings.warn(f"{error}; using {PREVIOUS} of step {state['step']}", stacklevel=2)
        return state


def _read_state(path: Path) -> dict[str, Any]:
    damaged = f"{path} is damaged, or not a checkpoint of a training run"
    try:
        with zipfile.ZipFile(path) as entries:  # each entry has a checksum, which PyTorch ignores
            if entries.testzip() is not None:
                damaged = f"{path} is damaged: its checksums do not fit"
                raise ValueError
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        read = {key: state[key] for key in ("step", "seed", "net", "optimizer")}
        return read | {"average": state.get("average")}  # version 0.1 has none
    except Exception as error:  # PyTorch would advise weights_only=False, which is unsafe
        raise HardnetError(damaged) from error


def last_step(folder: Path) -> int | None:
    return int(read_state(folder)["step"]) if (folder / CHECKPOINT).exists() else None


class RunLog:
    """Append rows; a resumed run first drops the rows after its checkpoint."""

    def __init__(self, folder: Path, step: int) -> None:
        self._path = folder / LOG
        rows: list[dict[str, str]] = []
        if step and self._path.exists():
            with self._path.open(newline="") as file:
                rows = list(csv.DictReader(file))
        # A row cut short by a kill or a full disk has empty columns.
        rows = [r for r in rows if None not in r.values() and int(r["step"]) <= step]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self._path, lambda file: file.write(text.getvalue().encode()))
        self._board: Any = None
        with suppress(ImportError):  # curves are a convenience; a run does not need them
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def add(self, row: dict[str, float]) -> None:
        """Append one row; absent columns stay empty."""
        try:
            with self._path.open("a", newline="") as file:
                csv.DictWriter(file, COLUMNS).writerow(row)
        except OSError as error:
            raise failed_write(self._path, error) from error
        if self._board is not None:
            for key in set(row) - {"step", "pairs"}:
                self._board.add_scalar(key, row[key], int(row["step"]))

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def record_origin(folder: Path, recipe: Recipe, step: int) -> dict[str, Any]:
    """Write the facts of a new run; check and extend those of one that continues.

    ``resumed`` lists the same facts, without settings and data, for each time it was resumed.
    """
    settings = asdict(recipe)
    settings["data"] = [provenance.without_folders(name) for name in recipe.data]
    for key in ("validation", "init", "teacher"):
        settings[key] = provenance.without_folders(settings[key])
    facts = provenance.collect(provenance.command_line(), settings)
    facts["data"] = [_data_facts(name) for name in recipe.data]
    if recipe.teacher:
        facts["teacher"] = weights_of(load_teacher(recipe.teacher))
    facts["resumed"] = []
    path = folder / ORIGIN
    if step and path.exists():
        try:
            begun = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise HardnetError(f"{path} cannot be read: {error}; restore or remove it") from error
        changed = f"changed since {folder} was begun: train in another --output, or restore"
        for was, now in zip(begun["data"], facts["data"], strict=True):
            if was["sha256"] != now["sha256"]:
                raise HardnetError(f"the patch set {now['name']} has {changed} the set")
        if begun.get("teacher") != facts.get("teacher"):
            raise HardnetError(f"the weights of the teacher {recipe.teacher} have {changed} them")
        for key in ("settings", "data", "teacher", "resumed"):
            facts.pop(key, None)
        begun["resumed"].append({"step": step, **facts})
        facts = begun
    write_whole(path, lambda file: file.write(f"{json.dumps(facts, indent=1)}\n".encode()))
    return facts


def _data_facts(name: str) -> dict[str, Any]:
    """The digest of one training set; a set made by a program, without a folder, has none."""
    folder = Path(folder_and_split(name)[0])
    found = asdict(provenance.data_digest(folder)) if folder.exists() else {}
    return {"name": provenance.without_folders(name), "sha256": None, "files": 0, **found}


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Within the block, the first ctrl-C or SIGTERM only sets the event; a second one interrupts.

    An interrupt within a step would leave some weights updated and others not. Outside the main
    thread, where Python allows no signal handlers, this does nothing.
    """
    asked, before = threading.Event(), {}

    def ask(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
