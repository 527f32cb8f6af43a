"""A grid: named cells, each a recipe with a few keys changed, and what they should show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hardnet.errors import HardnetError
from hardnet.experiments.claims import Claim
from hardnet.experiments.paper import Value
from hardnet.learn.recipe import Recipe


@dataclass(frozen=True)
class Cell:
    """One place of the paper's table or figure.

    Attributes:
        name: of its folder.
        row: its line in the table.
        column: its column in the table.
        changes: keys of the recipe that make it this cell.
        paper: what the paper has there; None for nothing.
    """

    name: str
    row: str
    column: str
    changes: Mapping[str, Any]
    paper: Value | None = None


@dataclass(frozen=True)
class Grid:
    """An experiment of the paper.

    Attributes:
        name: of the command.
        title: of the table.
        corner: what the rows are.
        measure: of the paper: "matching" (mAP, larger is better) or "fpr95" (smaller is better).
        source: where the paper has it.
        says: what the paper concludes.
        cells: in the order of the table.
        claims: orderings that the paper states.
        notes: what a reader of the numbers must know.
    """

    name: str
    title: str
    corner: str
    measure: str
    source: str
    says: str
    cells: tuple[Cell, ...]
    claims: tuple[Claim, ...]
    notes: tuple[str, ...] = ()

    def choose(self, names: str) -> tuple[Cell, ...]:
        """The cells ``names``, separated by commas; all of them for an empty text."""
        if not names.strip():
            return self.cells
        known = {cell.name: cell for cell in self.cells}
        chosen = [name.strip() for name in names.split(",")]
        for name in chosen:
            if name not in known:
                raise HardnetError(
                    f"--cells {name}: {self.name} has no such cell; it has {', '.join(known)}"
                )
        return tuple(cell for cell in self.cells if cell.name in chosen)


def cell_recipe(base: Recipe, cell: Cell, seed: int) -> Recipe:
    """The recipe of one run of a cell; ten checkpoints at least, so that little is lost."""
    recipe = replace(base, **cell.changes, seed=base.seed + seed, validation="")
    tenth = max(1, recipe.steps // 10)
    return replace(recipe, checkpoint_every=min(recipe.checkpoint_every, tenth))
