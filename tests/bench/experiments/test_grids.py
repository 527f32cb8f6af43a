"""The grids hold the paper's cells, and every one can be trained."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hardnet.bench import grids
from hardnet.bench.grids import Grid, cell_recipe
from hardnet.errors import HardnetError
from hardnet.learn.recipe import Recipe

GRIDS = {
    "ablation": grids.ablation(),
    "pairs": grids.batch_size(100_000),
    "steps": grids.batch_size(100_000, "steps"),
    "recipes": grids.recipes(),
}


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS.keys())
def test_cells_have_names_of_their_own_and_change_real_keys(grid: Grid) -> None:
    names = [cell.name for cell in grid.cells]
    assert len(set(names)) == len(names)
    places = [(cell.row, cell.column) for cell in grid.cells]
    assert len(set(places)) == len(places)
    keys = {field.name for field in dataclasses.fields(Recipe)}
    assert all(set(cell.changes) <= keys for cell in grid.cells)
    known = set(names)
    assert all({*pair} <= known for claim in grid.claims for pair in claim.pairs)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS.keys())
def test_every_cell_has_an_objective(grid: Grid) -> None:
    pytest.importorskip("torch")
    from hardnet.learn.losses import Objective

    for cell in grid.cells:
        recipe = cell_recipe(Recipe(data=["x"]), cell, 0)
        keys = ("sampling", "loss", "margin", "regularizer", "anchor_swap", "same_patch")
        Objective(**{key: getattr(recipe, key) for key in keys})


def test_ablation_is_table_2() -> None:
    cells = {cell.name: cell for cell in GRIDS["ablation"].cells}
    assert len(cells) == 5 * 4 + 1
    assert cells["hardest-triplet"].paper == 0.482
    assert cells["classical-contrastive1-cpr"].paper == 0.055
    assert cells["random-softmin"].paper == "overfit"
    assert cells["l2net"].paper is None
    assert cells["classical-contrastive2-cpr"].changes == {
        "sampling": "classical", "regularizer": "cpr", "loss": "contrastive", "margin": 2.0,
    }  # fmt: skip
    hardest = [name for name in cells if name.startswith("hardest")]
    assert len(hardest) == 4
    assert all(cells[name].changes["regularizer"] == "none" for name in hardest)


def test_the_papers_own_numbers_agree_with_the_claims() -> None:
    """The claims are the paper's: its own table must show them."""
    values = {c.name: c.paper for c in GRIDS["ablation"].cells if isinstance(c.paper, float)}
    seen = 0
    for claim in GRIDS["ablation"].claims:
        for better, worse in claim.pairs:
            if better in values and worse in values:
                assert values[better] > values[worse], (claim.text, better, worse)
                seen += 1
    assert seen > 15


def test_means_of_table_1_are_those_of_its_cells() -> None:
    for name, (*values, mean) in grids.TABLE_1.items():
        assert np.mean(values) == pytest.approx(mean, abs=0.01), name


def test_equal_pairs_and_equal_steps() -> None:
    base = Recipe(data=["x"], pairs=100_000)
    runs = [cell_recipe(base, cell, 0) for cell in GRIDS["pairs"].cells]
    assert {run.pairs for run in runs} == {100_000}
    assert {run.lr for run in runs} == {10.0}
    assert [run.batch for run in runs] == [16, 32, 64, 128, 256, 512, 1024, 2048]
    runs = [cell_recipe(base, cell, 0) for cell in GRIDS["steps"].cells]
    assert {run.steps for run in runs} == {100_000 // 512}
    for run in runs:  # the rate reaches zero at the end of each cell's own schedule
        assert 0 < run.learning_rate(run.steps) <= 2 * run.lr / run.steps


def test_seeds_and_checkpoints() -> None:
    base = Recipe(data=["x"], pairs=40 * 1024, seed=5, validation="y")
    cell = GRIDS["recipes"].cells[0]
    third = cell_recipe(base, cell, 2)
    assert third.seed == 7
    assert third.checkpoint_every == 4  # of 40 steps
    assert third.validation == ""


def test_cells_are_chosen_by_name() -> None:
    chosen = GRIDS["recipes"].choose("post-nips, nips")
    assert [cell.name for cell in chosen] == ["nips", "post-nips"]
    assert GRIDS["recipes"].choose("") == GRIDS["recipes"].cells
    with pytest.raises(HardnetError, match="has no such cell; it has nips,"):
        GRIDS["recipes"].choose("nps")
