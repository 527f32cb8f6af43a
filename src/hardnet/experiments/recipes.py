"""Rows of Table 1 of the paper: the NIPS and post-NIPS recipes, with and without augmentation."""

from __future__ import annotations

from hardnet.experiments import paper
from hardnet.experiments.claims import Claim
from hardnet.experiments.grid import Cell, Grid

RECIPES = {
    "nips": ("NIPS (lr 0.1, dropout 0.1)", {"lr": 0.1, "dropout": 0.1}),
    "post-nips": ("post-NIPS (lr 10, dropout 0.3)", {"lr": 10.0, "dropout": 0.3}),
}
AUGMENT = {"": ("plain", False), "-flip": ("flip / rotate", True)}
_IN_PAPER = {
    "nips": "HardNetNIPS",
    "nips-flip": "HardNet+NIPS",
    "post-nips": "HardNet",
    "post-nips-flip": "HardNet+",
}


def grid() -> Grid:
    """Two recipes times two."""
    cells = tuple(
        Cell(
            name + suffix,
            row,
            column,
            {**changes, "augment": augment},
            paper.RECIPES[_IN_PAPER[name + suffix]][-1],
        )
        for name, (row, changes) in RECIPES.items()
        for suffix, (column, augment) in AUGMENT.items()
    )
    return Grid(
        "recipes",
        "Recipes",
        "recipe",
        "fpr95",
        paper.RECIPES_SOURCE,
        paper.RECIPES_SAYS,
        cells,
        (
            Claim(
                "the post-NIPS recipe beats the NIPS recipe",
                tuple((f"post-nips{suffix}", f"nips{suffix}") for suffix in AUGMENT),
            ),
            Claim(
                "flip / rotate helps each recipe", tuple((f"{name}-flip", name) for name in RECIPES)
            ),
        ),
    )
