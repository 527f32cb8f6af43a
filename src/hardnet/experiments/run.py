"""Run the cells of a grid in one folder: resumable at any moment, by any number of processes."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hardnet.errors import DivergedError, HardnetError
from hardnet.experiments.folder import SCORE, locked, read_score, write_json
from hardnet.experiments.grid import Cell, cell_recipe
from hardnet.experiments.held_out import HeldOut
from hardnet.learn.recipe import Recipe
from hardnet.patchsets.patchset import PatchSet


@dataclass(frozen=True)
class Run:
    """One training run: a cell with one seed."""

    cell: Cell
    seed: int
    folder: Path
    recipe: Recipe


@dataclass(frozen=True)
class Event:
    """What happens: ``done`` of ``total`` steps of the run ``name``."""

    name: str
    done: int
    total: int
    info: str


Report = Callable[[Event], None]


def plan(cells: Sequence[Cell], base: Recipe, seeds: int, folder: Path) -> list[Run]:
    """All runs: every cell with the first seed, then every cell with the next one.

    A run has the folder ``CELL``, or ``CELL-seedK`` for a further seed.
    """
    return [
        Run(
            cell,
            seed,
            folder / (f"{cell.name}-seed{seed}" if seed else cell.name),
            cell_recipe(base, cell, seed),
        )
        for seed in range(seeds)
        for cell in cells
    ]


def check(runs: Sequence[Run], train_set: PatchSet) -> None:
    """Fail now, not after hours, if a cell cannot be trained on the set."""
    from hardnet.learn.objective import build_objective
    from hardnet.patchsets.pairs import PairSampler

    largest = max(runs, key=lambda run: run.recipe.batch)
    try:
        PairSampler(
            train_set.points, largest.recipe.batch, 0, train_set.sets, largest.recipe.weights
        )
    except HardnetError as error:
        raise HardnetError(f"cell {largest.cell.name}: {error}") from None
    for run in runs:
        build_objective(**run.recipe.axes)


def run_free(
    runs: Sequence[Run], train_set: PatchSet, held_out: HeldOut, report: Report | None = None
) -> list[Run]:
    """Do every run that is neither finished nor being done by another process.

    Returns:
        The runs that another process is doing.
    """
    taken = []
    for run in runs:
        if read_score(run.folder) is not None:
            continue
        with locked(run.folder) as mine:
            if not mine:
                taken.append(run)
            elif read_score(run.folder) is None:  # it may have been finished meanwhile
                _do(run, train_set, held_out, report)
    return [run for run in taken if read_score(run.folder) is None]


def _do(run: Run, train_set: PatchSet, held_out: HeldOut, report: Report | None) -> None:
    """Train, test, write the score."""
    from hardnet.learn.checkpoint import CHECKPOINT
    from hardnet.learn.trainer import Trainer

    name, recipe = run.folder.name, run.recipe
    trainer = Trainer(recipe, train_set, run.folder, resume=(run.folder / CHECKPOINT).exists())

    def tell(done: int, info: str) -> None:
        if report:
            report(Event(name, done, recipe.steps, info))

    score: dict[str, Any] = {"seed": recipe.seed, "batch": recipe.batch}
    tell(trainer.step, "first step")
    try:
        trainer.run(
            lambda at: tell(at.step, f"loss {at.loss:.3f} {at.pairs_per_second:.0f} pairs/s")
        )
    except DivergedError as error:
        score["failed"] = str(error)
    score |= _training(run.folder, recipe.batch)
    if "failed" not in score:
        tell(recipe.steps, "testing")
        score |= held_out.score(trainer.describe)
    write_json(run.folder / SCORE, score)


def _training(folder: Path, batch: int) -> dict[str, float]:
    """Steps, seconds, speed and final loss, from the log: it outlives a killed process."""
    rows = list(_rows(folder / "log.csv"))
    seconds = sum(batch / float(row["pairs_per_second"]) for row in rows)
    last = [float(row["loss"]) for row in rows[-max(1, len(rows) // 10) :]]
    return {
        "steps": len(rows),
        "pairs": len(rows) * batch,
        "seconds": round(seconds, 1),
        "pairs_per_second": round(len(rows) * batch / seconds, 1) if seconds else 0.0,
        "loss": float(np.mean(last)) if last else float("nan"),
    }


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)
