"""One experiment in one folder: resumable at any moment, run by any number of processes.

Every network that is trained is tested on pairs of Brown sets and sequences of an HPatches set.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardnet.bench import brown
from hardnet.bench.grids import Cell, Grid, cell_recipe, collect
from hardnet.bench.hpatches import protocol
from hardnet.bench.hpatches.lists import prepare
from hardnet.errors import DivergedError, HardnetError, Steps, silent
from hardnet.learn.recipe import FREE, Recipe
from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.hpatches import LEVELS, TAGS, as_patchset, read_hpatches
from hardnet.patchsets.patchset import Ints, Patches, PatchSet, folder_and_split, open_sets
from hardnet.provenance import data_digest
from hardnet.storage import FolderLock, refuse_other_settings, replacing

RESULTS = "results.json"
SETTINGS = "experiment.json"
SCORE = "score.json"
LOCK = "lock"
CONVENTION = f"ap_{protocol.PAPER_CONVENTION['matching']}"


@dataclass(frozen=True)
class Tests:
    """What to test on; ``pairs`` per Brown set, ``strip`` patches per strip, 0 for all."""

    __test__ = False  # pytest: no test class

    brown: tuple[Path, ...] = ()
    hpatches: Path | None = None
    pairs: int = 0
    strip: int = 0

    @property
    def folders(self) -> list[Path]:
        return [*self.brown, *([self.hpatches] if self.hpatches else [])]

    def open(self, size: int, progress: Steps = silent) -> HeldOut:
        """For patches of side ``size``; pairs from a list's start, patches evenly of a strip."""
        opened = []
        for folder in self.brown:
            found = read_brown(folder, size, progress)
            found = replace(found, pairs=found.pairs[: self.pairs]) if self.pairs else found
            labels = found.pair_labels
            if not len(labels) or labels.all() or not labels.any():
                raise HardnetError(
                    f"{folder}: FPR95 needs both matching and non-matching test pairs"
                )
            opened.append(found)
        strips: dict[tuple[str, str], Ints] = {}
        if self.hpatches is None:
            return HeldOut(tuple(opened), None, strips)
        source, first = read_hpatches(self.hpatches), 0
        for name, sequence in source.sequences.items():
            taken = min(self.strip or sequence.count, sequence.count)
            chosen = np.arange(taken, dtype=np.int64) * sequence.count // taken
            for tag in TAGS:
                strips[name, tag] = first + chosen
                first += sequence.count
        patches = as_patchset(source, tuple(source.sequences), size, progress)
        return HeldOut(tuple(opened), patches, strips)


Describe = Callable[[Patches], NDArray[np.float32]]
"""(N, S, S) patches -> (N, D) descriptors."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The test sets, opened once for all cells.

    ``strips``: (sequence, tag) -> the rows of ``hpatches`` that are used of this strip.
    """

    brown: tuple[PatchSet, ...]
    hpatches: PatchSet | None
    strips: Mapping[tuple[str, str], Ints]

    def score(self, describe: Describe) -> dict[str, Any]:
        rows = [brown.evaluate(lambda _, patches: describe(patches()), s, "") for s in self.brown]
        kept = ("set", "pairs", "fpr95", "low", "high")
        scores = [{key: row[key] for key in kept} for row in rows]
        if self.hpatches is None:
            return {"brown": scores, "matching": None}
        patches = self.hpatches.patches
        # The reference is used at each noise level: describe every strip once.
        described = {strip: describe(np.asarray(patches[r])) for strip, r in self.strips.items()}
        counts = {name: len(r) for (name, tag), r in self.strips.items() if tag == "ref"}
        tasks = prepare("full", tuple(counts), counts, chosen=("matching",))
        rows, mean = protocol.matching(lambda *strip: described[strip], tasks)

        def means(key: str, values: Iterable[str]) -> dict[str, float]:
            ap = {v: [row[CONVENTION] for row in rows if row[key] == v] for v in values}
            return {value: float(np.mean(each)) for value, each in ap.items()}

        by = {"noise": means("noise", LEVELS), "sequences": means("sequence", counts)}
        return {"brown": scores, "matching": {"set": self.hpatches.name, **mean, **by}}


class Run(NamedTuple):
    """One training run: a cell with one seed, in the folder ``CELL`` or ``CELL-seedK``."""

    cell: Cell
    folder: Path
    recipe: Recipe


class Event(NamedTuple):
    """Progress: ``done`` of ``total`` steps of the run ``name``."""

    name: str
    done: int
    total: int
    info: str


Listener = Callable[[Event], None]


class Experiment:
    """A grid in a folder; a folder that was started with other settings is refused.

    ``CELL/`` are training runs, ``results.json`` is the result. The ``pairs`` of the recipe are the
    budget of a cell; ``cells`` are names separated by commas, empty for all.
    """

    def __init__(
        self, grid: Grid, base: Recipe, folder: Path, tests: Tests, cells: str = "", seeds: int = 1
    ) -> None:
        if not tests.folders:
            raise HardnetError("name a set to test on with --brown, --hpatches or both")
        if base.devices > 1:
            raise HardnetError(
                "a cell runs on one device: start the same command once per device, "
                "each process takes the cells that are free"
            )
        self.grid, self.base, self.folder, self.tests = grid, base, folder, tests
        # Every cell with the first seed, then every cell with the next one.
        self._all = []
        for seed in range(seeds):
            for cell in grid.cells:
                name = f"{cell.name}-seed{seed}" if seed else cell.name
                self._all.append(Run(cell, folder / name, cell_recipe(base, cell, seed)))
        chosen = grid.choose(cells)
        self.runs = [run for run in self._all if run.cell in chosen]
        begin(folder, self.settings())

    def settings(self) -> dict[str, Any]:
        """Everything that affects a number, as JSON; sets by name and digest, not by path."""
        recipe = {k: v for k, v in asdict(self.base).items() if k not in (*FREE, "pairs", "data")}
        return {
            "experiment": self.grid.name,
            "budget": self.base.pairs,
            "data": [_named(name) for name in self.base.data],
            **recipe,
            "init": _named(self.base.init) if self.base.init else "",
            "brown": [_named(str(folder)) for folder in self.tests.brown],
            "hpatches": _named(str(self.tests.hpatches)) if self.tests.hpatches else None,
            "test_pairs": self.tests.pairs,
            "strip_patches": self.tests.strip,
            "cells": {cell.name: dict(cell.changes) for cell in self.grid.cells},
        }

    @property
    def data(self) -> list[Path]:
        return [_folder(name) for name in self.base.data] + self.tests.folders

    def finished(self) -> int:
        return sum((run.folder / SCORE).exists() for run in self.runs)

    def run(self, report: Listener = silent, opening: Steps = silent) -> list[Run]:
        """Do all chosen runs that are free; return those another process is working on."""
        from hardnet.learn.batches import PairSampler
        from hardnet.learn.losses import Objective
        from hardnet.nets import find_net

        size = find_net(self.base.net).patch_size  # an unknown name fails first
        train_set = open_sets(self.base.data, size, opening)
        cell, _, recipe = max(self.runs, key=lambda run: run.recipe.batch)
        try:
            PairSampler(train_set.points, recipe.batch, 0, train_set.sets, recipe.weights)
        except HardnetError as error:
            raise HardnetError(f"cell {cell.name}: {error}") from None
        for run in self.runs:
            Objective(**run.recipe.axes)
        held_out = self.tests.open(size, opening)
        taken = []
        for run in self.runs:
            if read_score(run.folder) is not None:
                continue
            with locked(run.folder) as mine:
                if not mine:
                    taken.append(run)
                elif read_score(run.folder) is None:  # another process may have finished it
                    _train_and_test(run, train_set, held_out, report)
        return [run for run in taken if read_score(run.folder) is None]

    def finish(self, provenance: dict[str, Any], output: Path | None = None) -> dict[str, Any]:
        """Gather what is finished and write ``results.json``, and ``output`` if given.

        Processes write one after the other, so that the last one sees all cells.
        """
        trained = " + ".join(Path(name).name for name in self.base.data)
        tested = " + ".join(_folder(str(folder)).name for folder in self.tests.folders)
        training = (
            f"{self.base.net} with a budget of {self.base.pairs:,} pairs per cell (the paper: "
            f"50,000,000) on {trained}, tested on {tested}"
        )
        with locked(self.folder, wait=True):
            scores: dict[str, dict[str, Any]] = {}
            for run in self._all:
                scores.setdefault(run.cell.name, {})[run.folder.name] = read_score(run.folder)
            results = collect(self.grid, scores) | {"training": training, "provenance": provenance}
            for path in (self.folder / RESULTS, *([output] if output else [])):
                path.parent.mkdir(parents=True, exist_ok=True)
                _write_json(path, results)
        return results


def _folder(name: str) -> Path:
    return Path(folder_and_split(name)[0])


def _named(name: str) -> str:
    folder = _folder(name)
    split = name.removeprefix(str(folder))
    return f"{folder.resolve().name}{split} {data_digest(folder).sha256[:12]}"


def _train_and_test(run: Run, train_set: PatchSet, held_out: HeldOut, report: Listener) -> None:
    from hardnet.learn.run import CHECKPOINT
    from hardnet.learn.trainer import Trainer

    _, folder, recipe = run
    trainer = Trainer(recipe, train_set, folder, resume=(folder / CHECKPOINT).exists())

    def tell(done: int, info: str) -> None:
        report(Event(folder.name, done, recipe.steps, info))

    score: dict[str, Any] = {"seed": recipe.seed, "batch": recipe.batch}
    tell(trainer.step, "first step")
    try:
        trainer.run(
            lambda at: tell(at.step, f"loss {at.loss:.3f} {at.pairs_per_second:.0f} pairs/s")
        )
    except DivergedError as error:
        score["failed"] = str(error)
    # The log survives a killed process.
    with (folder / "log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    pairs = len(rows) * recipe.batch
    seconds = sum(recipe.batch / float(row["pairs_per_second"]) for row in rows)
    last = [float(row["loss"]) for row in rows[-max(1, len(rows) // 10) :]]
    score |= {
        "steps": len(rows),
        "pairs": pairs,
        "seconds": round(seconds, 1),
        "pairs_per_second": round(pairs / seconds, 1) if seconds else 0.0,
        "loss": float(np.mean(last)) if last else float("nan"),
    }
    if "failed" not in score:
        tell(recipe.steps, "testing")
        score |= held_out.score(trainer.describe)
    _write_json(folder / SCORE, score)


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Lock a folder for this process; yields whether that succeeded."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, LOCK)
    try:
        yield lock.take(math.inf if wait else 0)
    finally:
        lock.release()


def begin(folder: Path, settings: Mapping[str, Any]) -> None:
    now = json.loads(json.dumps(settings))
    path = folder / SETTINGS
    with locked(folder, wait=True):  # two processes may be started at once
        if not path.exists():
            _write_json(path, now)
            return
        try:
            was = asdict(Recipe()) | json.loads(path.read_text())
        except (OSError, ValueError, TypeError) as error:
            raise HardnetError(f"{path} cannot be read ({error}); delete {folder}") from error
    refuse_other_settings(was, now, folder, "use that value, or another --output")


def read_score(folder: Path) -> dict[str, Any] | None:
    """None until the run is finished."""
    try:
        score: dict[str, Any] = json.loads((folder / SCORE).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise HardnetError(f"{folder / SCORE} is damaged ({error}); delete it") from error
    return score


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with replacing(path) as part:
        part.write_text(json.dumps(content, indent=1) + "\n")
